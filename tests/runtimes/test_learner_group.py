"""Learners in processes of their own: the learning of one, and what becomes of the others' failures."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import recollect as rc
from recollect.acting.actor import Actor
from recollect.algos.catalog import make_learner
from recollect.config.impala import ImpalaConfig
from recollect.config.ppo import PPOConfig
from recollect.config.train import TrainConfig
from recollect.cores import LSTMConfig
from recollect.envs import make_env
from recollect.errors import ChildError, ConfigError, EnvError, LostError
from recollect.learning.learner import Learner
from recollect.learning.ranks import ALONE
from recollect.runtimes.learner_group import LearnerGroup
from recollect.runtimes.learner_server import LearnerState, learner_threads
from recollect.training.run_folder import Run
from tests.support.doomed import ends_soon
from tests.support.doomed_parts import Doomed
from tests.support.grouped_worlds import Duo
from tests.support.helpers import TensorWorld, make_policy

pytestmark = pytest.mark.usefixtures("warm_children")

SIZES: dict[str, Any] = {"rollout": 23, "chunk": 7, "minibatches": 3}


def make(algo: Any, core: Any = "none", rows: int = 4, **policy: Any) -> tuple[Learner[Any], Actor]:
    """A learner, and an actor with its policy."""
    env = TensorWorld(rows)
    network = make_policy(env, core, **policy)
    actor = Actor(env, network, rollout=algo.rollout, state_steps=algo.state_steps, seed=0)
    return make_learner(network, algo), actor


@contextmanager
def group_of(
    learner: Learner[Any], rows: int = 4, learners: int = 2, **config: Any
) -> Iterator[LearnerGroup]:
    """A group that is closed, and whose processes are gone, afterwards."""
    settings = TrainConfig(learners=learners, num_envs=rows, algo=learner.config, threads=1, **config)
    group = LearnerGroup(learner, settings, rows)
    pids: list[int] = []
    try:
        yield group
        pids += pids_of(group)
    finally:
        pids += pids_of(group)
        group.close()
        assert not any(is_running(pid) for pid in pids)


def pids_of(group: LearnerGroup) -> list[int]:
    return [peer._child.pid for peer in group._peers]  # pyright: ignore[reportAttributeAccessIssue] all are children


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def close_to(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    for name, value in a.items():
        torch.testing.assert_close(b[name], value, rtol=1e-3, atol=1e-5)


def same_state(a: LearnerState, b: LearnerState) -> bool:
    return (
        a.updates == b.updates
        and a.weights.keys() == b.weights.keys()
        and a.tensors.keys() == b.tensors.keys()
        and all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights)
        and all(torch.equal(a.tensors[name], b.tensors[name]) for name in a.tensors)
    )


@pytest.mark.parametrize(
    ("algo", "learners"),
    [(PPOConfig(epochs=2, **SIZES), 3), (ImpalaConfig(**SIZES), 2)],
    ids=["ppo-3", "impala-2"],
)
def test_processes_learn_what_one_learner_does(algo: Any, learners: int):
    """S002-15: several updates, odd splits; that all hold equal weights is checked within each update."""
    core = LSTMConfig(hidden=12)
    one, actor = make(algo, core, rows=5)
    many, _ = make(algo, core, rows=5)
    with group_of(many, rows=5, learners=learners) as group:
        for update in range(3):
            rollout = actor.collect(version=update)
            lag = int(update == 2)  # as if it came from older weights
            found = group.update(rollout, update / 3, lag=lag)
            alone = one.update(rollout, update / 3, lag=lag)
            assert found.keys() == alone.keys()
            for name in alone.keys() - {"padding"}:
                assert found[name] == pytest.approx(alone[name], rel=2e-3, abs=2e-4, nan_ok=True), name
        assert len(set(pids_of(group))) == learners - 1
    assert many.updates == 3
    close_to(one.policy.state_dict(), many.policy.state_dict())
    assert not dist.is_initialized()  # torch's own group stays free


def test_all_go_on_from_what_the_first_one_is_given():
    """S002-15: after a restore, or in a new group, the others have the state of the first."""
    algo = PPOConfig(epochs=1, l2_init=0.01, next_obs_coef=0.1, recurrent_mode="none", **SIZES)
    learner, actor = make(algo)
    with group_of(learner) as group:
        group.update(actor.collect())
        kept = LearnerState.of(learner)
        rollout = actor.collect()
        group.update(rollout, 0.5)
        after = LearnerState.of(learner)
        kept.put(learner)
        group.forget()
        group.update(rollout, 0.5)
        assert same_state(LearnerState.of(learner), after)
        kept.put(learner)
        group.close()
        group.update(rollout, 0.5)  # by new processes
        assert same_state(LearnerState.of(learner), after)


def test_a_bad_reward_and_a_killed_learner():
    """S000-25: errors name the row of the whole batch, and the learner; the first one is as it was."""
    learner, actor = make(PPOConfig(epochs=1, recurrent_mode="none", **SIZES))
    with group_of(learner, learners=3) as group:
        group.update(actor.collect())
        before, rollout = LearnerState.of(learner), actor.collect()
        reward = rollout.reward.clone()
        reward[4, 3] = torch.nan
        with pytest.raises(EnvError, match="reward of row 3 is nan at step 4"):
            group.update(replace(rollout, reward=reward))
        assert same_state(LearnerState.of(learner), before)
        group.update(rollout)  # nothing was begun: they go on
        before, rollout = LearnerState.of(learner), actor.collect()
        os.kill(pids_of(group)[1], signal.SIGKILL)
        lost = pytest.raises(LostError, match=r"learner 2 \(process \d+\) was killed by SIGKILL")
        with ends_soon(), lost:
            group.update(rollout)
        assert same_state(LearnerState.of(learner), before)
        assert learner.ranks is ALONE


@pytest.mark.parametrize("by", [None, signal.SIGKILL], ids=["raises", "dies"])
def test_a_learner_that_fails_in_mid_update(by: int | None, tmp_path: Path):
    """S000-25: its traceback arrives, nobody hangs in a sum, and no half an update is left."""
    algo = PPOConfig(epochs=2, recurrent_mode="none", **SIZES)
    marker = tmp_path / "failed"
    encoder = partial(Doomed, uses=6, by=by, marker=marker)
    learner, actor = make(algo, encoder=encoder)
    before = LearnerState.of(learner)
    with group_of(learner, learners=2) as group, ends_soon(marker.exists):
        if by:
            with pytest.raises(LostError, match=r"learner 1 .* was killed by SIGKILL"):
                group.update(actor.collect())
        else:
            with pytest.raises(ChildError, match=r"(?s)learner 1 failed:.*doomed_parts.*a fault of") as e:
                group.update(actor.collect())
            assert isinstance(e.value.__cause__, Exception)
        assert same_state(LearnerState.of(learner), before)


class KillLearner(rc.Callback):
    """Kills the second learner of a run at a number of steps."""

    def __init__(self, steps: int):
        self.steps = steps
        self.pid = 0
        self.is_done = False

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        (self.pid,) = pids_of(training._trainer._updaters[""])
        if training.steps == self.steps:
            os.kill(self.pid, signal.SIGKILL)
            self.is_done = True


def test_a_run_whose_learner_was_killed_can_be_resumed(tmp_path: Path):
    """S000-25, S003-18: it ends with that error and a checkpoint of the last whole update; none is left."""
    killer = KillLearner(240)
    given = {"rollout": 12, "chunk": 4, "num_envs": 4, "threads": 1, "steps": 480, "progress": False}
    lost = pytest.raises(LostError, match=r"learner 1 .* was killed by SIGKILL")
    with ends_soon(lambda: killer.is_done), lost:
        rc.train("delayed-cue", learners=2, run=str(tmp_path), callbacks=[killer], **given)
    assert not is_running(killer.pid)
    assert Run(tmp_path).checkpoints()[-1].name.lstrip("0") == "240"
    killer.steps = 0
    with rc.resume(tmp_path, progress=False, callbacks=[killer]) as agent:
        assert agent.steps == 480
    assert not is_running(killer.pid)


GROUPS: dict[str, Any] = {"rollout": 12, "chunk": 4, "num_envs": 4, "threads": 1, "progress": False}


def test_each_group_of_agents_has_its_learners():
    """S002-15, S001-29: two learners of each group learn what one learner does."""
    steps = 12 * 4 * 4
    with rc.train(Duo, steps=steps, **GROUPS) as one, rc.train(Duo, steps=steps, learners=2, **GROUPS) as two:
        pids = [pid for group in two._trainer._updaters.values() for pid in pids_of(group)]  # pyright: ignore
        assert len(set(pids)) == 2
        close_to(one.network.state_dict(), two.network.state_dict())
        assert {"group/big/loss/value", "group/small/loss/value"} <= two.history.last.keys()
    assert not any(is_running(pid) for pid in pids)


def test_if_a_learner_of_a_group_is_killed_no_group_has_learned(tmp_path: Path):
    """S000-25, S003-18: a checkpoint holds the last update of all groups, and can be resumed."""
    killed_in_the_second_group(tmp_path)


def killed_in_the_second_group(path: Path) -> None:
    states: list[list[LearnerState]] = []
    pids: list[int] = []

    def kill(training: Any, metrics: dict[str, float]) -> None:
        trainer = training._trainer
        states.append([LearnerState.of(learner) for learner in trainer.learners.values()])
        if training.updates == 2:
            pids.extend(pids_of(trainer._updaters["small"]))
            os.kill(pids[0], signal.SIGKILL)

    lost = pytest.raises(LostError, match=r"learner 1 of small \(process \d+\) was killed by SIGKILL")
    config = rc.TrainConfig().override(**{k: v for k, v in GROUPS.items() if k != "progress"}, learners=2)
    with rc.Agent.create(Duo, replace(config, run=str(path / "run"))) as agent:
        with ends_soon(lambda: bool(pids)), lost:
            agent.train(10_000, progress=False, callbacks=[kill])
        learners: Any = agent._trainer.learners.values()  # pyright: ignore[reportOptionalMemberAccess]
        after = [LearnerState.of(learner) for learner in learners]
        assert [same_state(a, b) for a, b in zip(states[-1], after)] == [True, True]
    with rc.resume(path / "run", env=Duo, steps=200, progress=False) as agent:
        assert agent._trainer.learner.updates > 2  # pyright: ignore[reportOptionalMemberAccess]


def test_an_agent_with_an_env_object_ends_its_learners():
    """S003-18: the env stays its owner's, the processes do not stay."""
    given = {"rollout": 12, "chunk": 4, "threads": 1, "steps": 48, "progress": False}
    with rc.train(make_env("delayed-cue", 4), learners=2, **given) as agent:
        (pid,) = pids_of(agent._trainer._updaters[""])  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]
        assert is_running(pid)
    assert not is_running(pid)


def test_more_learners_than_rows_are_refused():
    learner, _ = make(PPOConfig(recurrent_mode="none", **SIZES))
    with pytest.raises(ConfigError, match="learners = 8, but a rollout has only 4 rows"):
        LearnerGroup(learner, TrainConfig(learners=8), 4)


def test_learners_share_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("recollect.base.provenance.usable_cores", lambda: 8)
    assert [learner_threads(TrainConfig(learners=n)) for n in (1, 2, 3, 16)] == [8, 4, 2, 1]
    assert learner_threads(TrainConfig(learners=2, threads=5)) == 5
