"""The learner of each group in a process of its own: the same run, and what becomes of its failures."""

from __future__ import annotations

import gc
import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.base import tree
from recollect.config.iqn import IQNConfig
from recollect.config.ppo import PPOConfig
from recollect.config.replay import ReplayConfig
from recollect.envs import make_env
from recollect.errors import ChildError, ConfigError, EnvError, Interrupted, LostError
from recollect.runtimes import restart_limits
from recollect.runtimes.process.learner_process import LearnerProcess, update_at_once
from recollect.training.run_folder import Run
from tests.runtimes.test_learner_group import is_running, make
from tests.support.doomed import differing, ends_soon, wait_for
from tests.support.doomed_parts import Doomed, Waiting
from tests.support.grouped_worlds import Duo

pytestmark = pytest.mark.usefixtures("warm_children")

PPO: dict[str, Any] = {"rollout": 8, "chunk": 4, "minibatches": 2, "core": "gru"}
HUNT: dict[str, Any] = {
    "algo": "iqn",
    "policies": "independent",
    "env_kwargs": {"agents": 2, "length": 13},
    "core": "frames",
    "encoder": rc.EncoderConfig(hidden=(16,)),
    "states": "rebuilt",
    "burn_in_steps": 3,
    "rollout": 8,
    "chunk": 2,
    "batch": 8,
    "replay_capacity": 100,
    "replay_warmup": 60,
    "replay_ratio": 2.0,
    "save_replay": True,
}
ENVS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (Duo, PPO),
    "impala": (Duo, PPO | {"algo": "impala"}),
    "one group": ("delayed-cue", PPO),
    "iqn": ("treasure-hunt", HUNT),
}
OWN = ("speed/", "time/", "seconds", "queue", "restarts", "actor")
"""Metrics that are times, or of processes."""


def trained(kind: str, updates: int = 6, **more: Any) -> rc.Agent:
    env, settings = ENVS[kind]
    agents = {"ppo": 3, "impala": 3, "one group": 1, "iqn": 2}[kind]
    settings = settings | {"num_envs": 4, "threads": 1, "progress": False} | more
    return rc.train(env, **{"steps": updates * 4 * 8 * agents} | settings)


def state(agent: rc.Agent) -> dict[str, torch.Tensor]:
    """Weights, and all that the learners have beside them."""
    found = dict(agent.network.state_dict()) | agent._so_far().optimizer
    return {name: tensor.clone() for name, tensor in found.items()}


def rows(agent: rc.Agent) -> list[dict[str, str]]:
    """As texts, of which NaN equals itself."""
    return [{k: repr(v) for k, v in row.items() if not k.startswith(OWN)} for row in agent.history.rows]


def processes(agent: rc.Agent) -> dict[str, LearnerProcess]:
    return agent._trainer._processes  # pyright: ignore[reportOptionalMemberAccess]


def pids(agent: rc.Agent) -> list[int]:
    return [process.pid for process in processes(agent).values() if process.pid is not None]


def files() -> list[str]:
    """Open files of this process, without numbers."""
    found = []
    for file in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(file).split("[")[0])
        except OSError:
            continue
    return sorted(found)


def same_run(kind: str, **more: Any) -> None:
    with trained(kind, **more) as here:
        wanted, metrics = state(here), rows(here)
    with trained(kind, learner_processes=True, **more) as there:
        own = pids(there)
        assert len(set(own)) == (1 if kind == "one group" else 2)
        assert os.getpid() not in own
        assert differing(wanted, state(there)) == []
        assert rows(there) == metrics
    assert not any(is_running(pid) for pid in own)


@pytest.mark.parametrize("kind", ENVS)
def test_learner_processes_give_the_same_bits(kind: str):
    """S003-16, S003-9, S002-2: weights, optimisers, replays and all metrics are those of one process."""
    same_run(kind, normalise_observations=kind in ("ppo", "one group"))


def test_actors_and_learners_in_processes_give_the_same_bits():
    """S003-16: an actor process and a learner process per agent, in lockstep; two threads to share."""
    same_run("iqn", runtime="processes", threads=2)


def test_rows_in_threads_give_the_same_bits():
    """S003-16: each learner splits its rows as it does beside the other in one process."""
    same_run("ppo", num_envs=16, rollout=32, chunk=32, threads=2, steps=3 * 16 * 32 * 3)


def test_free_running_learners_keep_the_replay_ratio():
    """S003-15: where actors run ahead, optimiser steps follow from the steps collected, for each agent."""
    more = {"runtime": "processes", "mode": "async", "max_lag": 2, "gauge_every": 2}
    with trained("iqn", 30, learner_processes=True, **more) as agent:
        found = agent.history.rows
        learners: Any = agent._trainer.learners  # pyright: ignore[reportOptionalMemberAccess]
        assert len(learners) == 2
    assert max(row["lag/max"] for row in found) in (1, 2)
    for name in learners:
        before, owed, done = 0.0, 0.0, 0
        for row in found:
            own = {k.removeprefix(f"group/{name}/"): v for k, v in row.items()}
            collected = 4 * 8  # by this agent: both always live
            before += collected
            if before >= HUNT["replay_warmup"]:
                owed += HUNT["replay_ratio"] * collected / (HUNT["batch"] * HUNT["chunk"])
            done += int(own["minibatches"])
            assert done == int(owed)
            assert own["gradient_steps"] == done
        assert done > 100


@pytest.mark.parametrize("kind", ["ppo", "iqn"])
def test_a_run_resumes_bit_for_bit_with_and_without_processes(kind: str, tmp_path: Path):
    """S000-9: stopped and resumed with other places of the learners, a run equals one that was not."""
    more = {"eval_every": 0}
    with trained(kind, 8, run=str(tmp_path / "whole"), **more) as whole:
        wanted = state(whole)

    def stop(training: Any, metrics: dict[str, float]) -> None:
        if training.updates in (3, 6):
            training.stop()

    env = Duo if kind == "ppo" else None
    path = tmp_path / "stopped"
    with trained(kind, 8, run=str(path), callbacks=stop, learner_processes=True, **more) as stopped:
        assert 0 < stopped.steps < whole.steps
    with rc.resume(path, env=env, progress=False, callbacks=stop) as resumed:
        assert 0 < resumed.steps < whole.steps
    with rc.resume(path, env=env, progress=False, learner_processes=True) as resumed:
        assert resumed._trainer.is_exact  # pyright: ignore[reportOptionalMemberAccess]
        assert resumed.steps == whole.steps
        assert len(pids(resumed)) == 2
        assert differing(wanted, state(resumed)) == []


def test_the_weights_of_the_trainer_stay_in_place():
    """S003-11, S003-12: they get new values, whole, on the same tensors; the processes share none of them."""
    settings = rc.TrainConfig().override(num_envs=4, threads=1, learner_processes=True, **PPO)
    with rc.Agent.create(Duo, settings) as agent:
        before = dict(agent.network.state_dict())
        places = {name: (t.data_ptr(), t.dtype, t.device) for name, t in before.items()}
        values = tree.clone(before)
        agent.train(200, progress=False)
        after = agent.network.state_dict()
        assert {name: (t.data_ptr(), t.dtype, t.device) for name, t in after.items()} == places
        assert all(parameter.requires_grad for parameter in agent.network.parameters())
        same = {name for name, value in values.items() if torch.equal(after[name], value)}
        assert not same & {name for name, _ in agent.network.named_parameters()}


def test_an_env_object_is_trained_twice():
    """S003-18: its agent ends the processes at the end of its block, and their state is kept."""
    given = {"steps": 96, "progress": False, "threads": 1, **PPO}
    agents = []
    for more in ({}, {"learner_processes": True}):
        with rc.train(make_env("delayed-cue", 4), **given, **more) as agent:
            own = pids(agent)
        assert not any(is_running(pid) for pid in own)
        agent.train(96, progress=False)
        agents.append(state(agent))
        agent._trainer.close()  # pyright: ignore[reportOptionalMemberAccess]
    assert differing(*agents) == []


def test_weights_that_the_user_has_changed():
    """Between two trainings they count, as in one process."""
    found = []
    for elsewhere in (False, True):
        with trained("ppo", 2, learner_processes=elsewhere) as agent:
            with torch.no_grad():
                for tensor in agent.network.parameters():
                    tensor.mul_(0.5)
            agent.train(200, progress=False)
            found.append(state(agent))
    assert differing(*found) == []


# Failures ------------------------------------------------------------------------------------------------


def kill_at(update: int, killed: list[int], number: signal.Signals = signal.SIGKILL) -> Any:
    def kill(training: Any, metrics: dict[str, float]) -> None:
        if training.updates == update:
            killed.append(training._trainer._processes["small"].pid)
            os.kill(killed[0], number)

    return kill


LOST = {
    signal.SIGKILL: "was killed by SIGKILL",
    signal.SIGSTOP: "gave no sign of life for . s: it is stopped",
}


@pytest.mark.parametrize("number", LOST, ids=["killed", "stopped"])
def test_a_lost_learner_ends_the_run(number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """S000-25, S003-18: with its error, within seconds; the last checkpoint is resumed; nothing is left."""
    monkeypatch.setattr(restart_limits, "SILENCE", 2.0)
    gc.collect()  # of earlier tests
    before, killed, own = files(), list[int](), list[int]()

    def note(training: Any, metrics: dict[str, float]) -> None:
        own.extend(p.pid for p in training._trainer._processes.values())

    settings = PPO | {"run": str(tmp_path), "learner_processes": True, "checkpoint_every": 1}
    settings |= {"env_timeout": 3.0}
    config = rc.TrainConfig().override(num_envs=4, threads=1, runtime="processes", **settings)
    with rc.Agent.create(Duo, config) as agent:
        lost = pytest.raises(LostError, match=rf"the learner of small \(process \d+\) {LOST[number]}")
        with ends_soon(lambda: bool(killed)), lost:
            agent.train(2000, progress=False, callbacks=[note, kill_at(3, killed, number)])
    assert len(own) >= 6
    assert not any(is_running(pid) for pid in own)
    del lost, agent
    gc.collect()
    assert files() == before
    checkpoints = [int(path.name) for path in Run(tmp_path).checkpoints()]
    assert max(checkpoints) > 0
    with rc.resume(tmp_path, env=Duo, progress=False) as agent:
        assert agent.steps >= 2000


def patience(config: rc.TrainConfig, learner: Any, heartbeats: int) -> int | None:
    """The checks that a learner process survives after its last heartbeat; None: 200 and more."""
    process: Any = LearnerProcess(learner, config, name="", rows={"": 4}, seed=0)
    process._child, process._end = SimpleNamespace(), lambda: None
    for number in range(heartbeats + 1):
        process._board = SimpleNamespace(heartbeats=number, close=lambda: None)
        process.check_heartbeats()
    for count in range(200):
        try:
            process.check_heartbeats()
        except LostError:
            return count
    return None


def test_a_learner_is_given_up_after_the_limit_of_actors():
    """S000-25: seconds without a heartbeat count, not those of a long update."""
    learner, _ = make(PPOConfig(rollout=12, chunk=4))
    for env_timeout, at_start, later in [(60.0, 179, 75), (5.0, 124, 20), (None, 119, None)]:
        config = rc.TrainConfig(num_envs=4, algo=learner.config, env_timeout=env_timeout)
        assert patience(config, learner, 0) == at_start
        assert patience(config, learner, 300) == later


def test_the_heart_beats_during_an_update(tmp_path: Path):
    """S000-25: so that a long update is not taken for a process that is stopped."""
    started, goes_on = tmp_path / "started", tmp_path / "goes on"
    encoder = partial(Waiting, started=started, goes_on=goes_on)
    learner, actor = make(PPOConfig(recurrent_mode="none", rollout=12, chunk=4), encoder=encoder)
    config = rc.TrainConfig(num_envs=4, threads=1, algo=learner.config, learner_processes=True)
    process = LearnerProcess(learner, config, name="", rows={"": 4}, seed=0)
    try:
        process.begin(actor.collect(), 0.0, 0)
        wait_for(started.exists)
        board: Any = process._board
        before = board.heartbeats
        wait_for(lambda: board.heartbeats >= before + 2)
        goes_on.touch()
        assert process.settle()["learning_rate"] > 0
    finally:
        process.close()


def test_after_a_kill_the_agent_closes_and_does_not_learn_on():
    """S000-25: it has the weights; its optimiser is lost, and training with a new one is no silent choice."""
    killed: list[int] = []
    settings = rc.TrainConfig().override(num_envs=4, threads=1, learner_processes=True, **PPO)
    with rc.Agent.create(Duo, settings) as agent:
        with pytest.raises(LostError):
            agent.train(2000, progress=False, callbacks=[kill_at(2, killed)])
        with pytest.raises(LostError, match="resume the run"):
            agent.train(200, progress=False)
        own = pids(agent)
    assert agent.steps > 0
    assert not any(is_running(pid) for pid in own)


@pytest.mark.parametrize("by", [None, *LOST], ids=["raises", "dies", "stops"])
def test_a_learner_that_fails_in_mid_update(by: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """S000-25: its traceback and its group arrive; the other group's update is waited for, not lost."""
    monkeypatch.setattr(restart_limits, "SILENCE", 2.0)
    marker = tmp_path / "failed"
    encoder = partial(Doomed, uses=6, by=by, marker=marker)
    learner, actor = make(PPOConfig(epochs=2, recurrent_mode="none", rollout=12, chunk=4), encoder=encoder)
    config = rc.TrainConfig(num_envs=4, threads=1, algo=learner.config, env_timeout=3.0)
    process = LearnerProcess(learner, config, name="x", rows={"x": 4}, seed=0)
    try:
        with ends_soon(marker.exists):
            if by:
                with pytest.raises(LostError, match=rf"'x': the learner of x \(process \d+\) {LOST[by]}"):
                    update_at_once({"x": process}, {"x": actor.collect()}, 0.0, 0)
                with pytest.raises(LostError, match="resume"):
                    process.tensors()
            else:
                process.begin(actor.collect(), 0.0, 0)
                with pytest.raises(
                    ChildError, match=r"(?s)the learner of x failed:.*doomed_parts.*a fault of"
                ):
                    process.settle()
                process.begin(actor.collect(), 0.0, 1)  # it still runs
                assert process.settle()["learning_rate"] > 0
    finally:
        process.close()


def test_ctrl_c_saves_and_ends_the_processes(tmp_path: Path):
    """S003-18: the run is saved after its update, and goes on from there bit for bit."""
    own: list[int] = []

    def interrupt(training: Any, metrics: dict[str, float]) -> None:
        own.extend(p.pid for p in training._trainer._processes.values())
        if training.updates == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"stopped at step .* and saved"):
        trained("iqn", 5, run=str(tmp_path), learner_processes=True, callbacks=interrupt)
    gc.collect()
    wait_for(lambda: not any(is_running(pid) for pid in own))
    with trained("iqn", 5) as whole, rc.resume(tmp_path, progress=False) as resumed:
        assert len(pids(resumed)) == 2
        assert differing(state(whole), state(resumed)) == []


def test_a_bad_reward_names_its_group(tmp_path: Path):
    """S000-25: an error of an update is that of one process, and a checkpoint follows it."""
    given = {"steps": 10_000, "run": str(tmp_path), "learner_processes": True, "num_envs": 4, "threads": 1}
    with pytest.raises(EnvError, match=r"group 'big': .*reward of row \d is nan"):
        rc.train(Poor, progress=False, **PPO, **given)
    assert int(Run(tmp_path).checkpoints()[-1].name) > 0


class Poor(Duo):
    """Its rewards are not numbers from some step on."""

    made = 0

    def step(self, action: Any) -> Any:
        self.made += 1
        steps = super().step(action)
        if self.made > 30:
            steps["big"].reward[0] = torch.nan
        return steps


def test_warnings_come_through():
    """A deviation that rounding explains is reported as in one process."""
    seen: dict[bool, list[str]] = {}
    for elsewhere in (False, True):
        said = seen[elsewhere] = []

        class Listen(rc.Callback):
            def on_warning(self, training: Any, text: str, said: list[str] = said) -> None:
                said.append(text)

        more = {"tolerance": 1e-12, "num_envs": 8, "rollout": 32, "steps": 3 * 8 * 32}
        trained("one group", callbacks=[Listen()], learner_processes=elsewhere, **more).close()
    assert seen[False] == seen[True]
    assert any("rounding explains it" in text for text in seen[True])


def test_an_interrupted_wait_loses_nothing():
    """The reply of an update that was not waited for is taken with the next request."""
    learner, actor = make(PPOConfig(epochs=1, recurrent_mode="none", rollout=12, chunk=4))
    alone, _ = make(learner.config)
    config = rc.TrainConfig(num_envs=4, threads=1, algo=learner.config, learner_processes=True)
    process = LearnerProcess(learner, config, name="", rows={"": 4}, seed=0)
    try:
        for number in range(3):
            rollout = actor.collect(version=number)
            process.begin(rollout, 0.0, 1)
            alone.update(rollout, 0.0, lag=1)
        assert process.tensors().keys()
        assert learner.updates == 3
        assert differing(alone.policy.state_dict(), learner.policy.state_dict()) == []
    finally:
        process.close()


def test_data_parallel_learners_have_processes_already():
    with pytest.raises(ConfigError, match=r"learner_processes.*learners = 2"):
        rc.TrainConfig(learners=2, learner_processes=True)


def test_the_replay_is_only_in_its_process():
    """The trainer's process allocates none."""
    assert isinstance(IQNConfig(), ReplayConfig)
    with trained("iqn", 2, learner_processes=True) as agent:
        learners: Any = agent._trainer.learners.values()  # pyright: ignore[reportOptionalMemberAccess]
        assert not any("replay" in vars(learner) for learner in learners)
