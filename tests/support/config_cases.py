"""What settings do that need more than a line to be seen: a case for each, which fails if it does nothing."""

from __future__ import annotations

import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect.base import row_threads
from recollect.base.cuda_graphs import Graphs
from recollect.config.policy import EncoderConfig
from recollect.config.ppo import PPOConfig
from recollect.cores import FramesConfig, LSTMConfig
from recollect.envs.workers import WorkerEnv
from recollect.errors import ConfigError, LostError, SpaceError
from recollect.learning import learner
from recollect.learning.learner import Learner
from recollect.policy import compiled, precision
from recollect.runtimes import inline_collector
from recollect.training.run_folder import Run
from tests.support.config_runs import TASK, differ, equal, trained
from tests.support.grouped_worlds import Camp
from tests.support.helpers import TensorWorld
from tests.support.own_parts import TINY, Flat, World
from tests.support.registered import FILE, place
from tests.support.secret_world import SMALL as SECRET
from tests.support.secret_world import SecretEnv
from tests.support.two_sides import AGENTS, TwoSides


def case_steps() -> None:
    assert [trained(steps=n).steps for n in (36, 37, 100)] == [36, 72, 108]


def case_num_envs() -> None:
    sizes = [len(trained("delayed-cue", **(TASK | {"num_envs": n})).history.rows) for n in (3, 6)]
    assert sizes == [2, 1]


def case_actors() -> None:
    one, two = (trained("delayed-cue", **(TASK | {"num_envs": 4, "actors": n})) for n in (1, 2))
    assert [len(agent._trainer.collector.envs) for agent in (one, two)] == [1, 2]
    assert one.history.rows[-1]["loss/policy"] != two.history.rows[-1]["loss/policy"]
    with pytest.raises(ConfigError, match="evenly"):
        trained("delayed-cue", **TASK, actors=2)


def elsewhere(**settings: Any) -> rc.Agent:
    """Six updates of two rows in another process."""
    with trained(
        "delayed-cue", **TASK | {"num_envs": 2, "steps": 144, "runtime": "processes"} | settings
    ) as agent:
        return agent


def case_runtime() -> None:
    one, other = (elsewhere(runtime=runtime) for runtime in ("inline", "processes"))
    assert "time/env" in other.history.rows[-1]
    assert "time/env" not in one.history.rows[-1]
    assert equal(one.policy.state_dict(), other.policy.state_dict()), "the same is learned"


def largest_lag(**settings: Any) -> float:
    return max(row["lag/max"] for row in elsewhere(**settings).history.rows)


def case_mode() -> None:
    assert largest_lag(mode="lockstep") == 0
    assert largest_lag(mode="async") == 1


def case_max_lag() -> None:
    assert largest_lag(mode="async", max_lag=0) == 0
    assert 1 <= largest_lag(mode="async", max_lag=3) <= 3


def case_env_workers() -> None:
    settings = TASK | {"num_envs": 2}
    for count in (0, 2):
        with trained("delayed-cue", **settings, env_workers=count) as agent:
            (env,) = agent._trainer.collector.envs
            assert isinstance(env, WorkerEnv) == (count > 0)
            if count:
                assert len(env.pids) == count


class Stalled(gym.Env):
    """Does not come back from its third step."""

    observation_space = gym.spaces.Box(0, 1, (2,))
    action_space = gym.spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        if self.steps == 3:
            time.sleep(600)
        return np.zeros(2, np.float32), 0.0, False, False, {}


def case_env_timeout() -> None:
    settings = without_env(TASK) | {"num_envs": 2, "runtime": "processes", "env_timeout": 0.5}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recollect.runtimes.restart_limits.DEATHS", 1)
        with pytest.raises(LostError, match="has not returned"):
            trained(Stalled, **settings)


def without_env(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("env_kwargs", "num_envs")}


def case_policies() -> None:
    with trained(
        Camp, **TASK | {"env_kwargs": {}, "policies": {"pair": ["ann", "bob"], "one": "c*"}}
    ) as agent:
        assert agent.groups == {"pair": ("ann", "bob"), "one": ("cat",)}
    with trained(Camp, **TASK | {"env_kwargs": {}}) as agent:
        assert not agent.groups


SIDES = TASK | {"env_kwargs": {}}


def case_vs() -> None:
    for vs, share in ((None, 1), ("self", 1), ("echo", 2)):
        with trained(TwoSides, **SIDES, vs=vs) as agent:
            assert agent._trainer.collector.rows * share == agent.config.num_envs * AGENTS


def case_vs_kwargs() -> None:
    with trained(TwoSides, **SIDES, vs="echo", vs_kwargs={"error": 0.5}) as agent:
        assert agent.make_env(2).player.error == 0.5


def case_curriculum() -> None:
    for team in (1, 2):
        with trained(TwoSides, **SIDES, curriculum={0: {"team": team}}) as agent:
            assert int(agent._trainer.collector.envs[0]._team) == team


def case_learners() -> None:
    settings = TASK | {"num_envs": 4}
    agents = []
    for learners in (1, 2):
        with trained("delayed-cue", **settings, learners=learners) as agent:
            assert bool(agent._trainer._updaters) == (learners > 1)
            agents.append(agent)
    one, two = (agent.history.rows for agent in agents)
    assert two[-1]["loss/policy"] == pytest.approx(one[-1]["loss/policy"], abs=1e-4), (
        "the same but for rounding"
    )


def case_learner_processes() -> None:
    pids, weights = [], []
    for elsewhere in (False, True):
        with trained("delayed-cue", **TASK, learner_processes=elsewhere) as agent:
            pids += [process.pid for process in agent._trainer._processes.values()]
            weights.append({name: leaf.clone() for name, leaf in agent.network.state_dict().items()})
    assert len(pids) == 1
    assert pids[0] != os.getpid()
    assert all(torch.equal(leaf, weights[1][name]) for name, leaf in weights[0].items())


def case_ray_address() -> None:
    pytest.importorskip("ray")
    with pytest.raises(ConfigError, match="Ray Client is not supported"):
        trained("delayed-cue", **TASK, runtime="ray", ray_address="ray://127.0.0.1:1")


def case_device() -> None:
    if torch.cuda.is_available():
        assert next(trained("delayed-cue", **TASK, device="cuda").policy.parameters()).is_cuda
    else:
        with pytest.raises(ConfigError, match="torch sees no GPU here: use device='cpu'"):
            trained("delayed-cue", **TASK, device="cuda")


def case_target_return() -> None:
    assert trained(steps=360, target_return=-1e9, target_episodes=1).steps == 36
    assert trained(steps=108, target_return=1e9, target_episodes=1).steps == 108


def case_target_episodes() -> None:
    assert trained(steps=360, target_return=-1e9, target_episodes=20).steps > 36


def case_last_action_reward() -> None:
    space = trained(last_action_reward=True).policy.observation_space
    assert set(space.spaces) == {"obs", "last_action", "last_reward"}


def case_env_kwargs() -> None:
    for horizon in (1, 4):
        agent = trained("delayed-cue", **(TASK | {"env_kwargs": {"horizon": horizon}}))
        assert agent.evaluate(2).lengths.tolist() == [horizon + 2] * 2


def case_wrap() -> None:
    assert rc.train(World, wrap=[Flat], progress=False, **TINY).policy.observation_space.shape == (1,)
    with pytest.raises(SpaceError, match="--wrap"):
        rc.train(World, **TINY)


def case_imports() -> None:
    with tempfile.TemporaryDirectory() as folder, place(Path(folder)):
        assert trained(imports=[FILE], algo="cautious").config.algo.caution == 2
    with pytest.raises(ConfigError, match="--import"):
        trained(algo="cautious")


def case_drop_obs() -> None:
    for drop in (["mission"], ["mission", "image"]):
        space = rc.train(World, drop_obs=drop, progress=False, **TINY).policy.observation_space
        assert set(space.spaces) == {"direction", "image"} - set(drop)


def case_critic_obs() -> None:
    for keys in ((), ("secret",)):
        policy = rc.train(SecretEnv, **SECRET, critic="separate", critic_obs=keys).policy
        assert set(policy.actor_space.spaces) == {"secret", "seen"} - set(keys)
        assert policy.critic_trunk.encoder.output_size == policy.encoder.output_size


def case_threads() -> None:
    for threads in (1, 2):
        seen: list[Any] = []
        trained(threads=threads, callbacks=[lambda *_, seen=seen: seen.append(row_threads._pool.get())])
        assert all((use[1] if use else 1) == threads for use in seen)
    assert row_threads._pool.get() is None, "as it was before"


def case_parallel() -> None:
    update = Learner.update
    for parallel, expected in (("rows", 1), ("operations", 2)):
        seen: list[int] = []

        def noting(self, *arguments, seen=seen, **named):
            seen.append(torch.get_num_threads())
            return update(self, *arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Learner, "update", noting)
            trained(threads=2, parallel=parallel)
        assert set(seen) == {expected}
    assert torch.get_num_threads() == 1, "as it was before"


class Advice(rc.Callback):
    """Keeps what a run warns of."""

    def __init__(self, kept: list[str]) -> None:
        self.kept = kept

    def on_warning(self, training: Any, text: str) -> None:
        self.kept.append(text)


def case_tolerance(**base: Any) -> None:
    """Every rounding above it is replayed, and said to be one."""
    said: dict[float, list[str]] = {1e-30: [], 1.0: []}
    for value, notes in said.items():
        trained(tolerance=value, callbacks=[Advice(notes)], **base)
    assert "rounding explains it" in "".join(said[1e-30])
    assert said[1.0] == []


def case_compile() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "BACKEND", "eager")
        assert trained(compile=True).policy.compiled_graphs > 0
    assert trained().policy.compiled_graphs == 0


def case_graphs() -> None:
    """Its effect needs a GPU (tests/training/test_gpu_graphs.py); here, that it arrives."""
    asked: list[bool] = []
    with pytest.MonkeyPatch.context() as patch:
        for module in (inline_collector, learner):
            patch.setattr(module, "Graphs", lambda device, is_on: asked.append(is_on) or Graphs(device))
        trained(graphs=True)
        trained(graphs=False)
    assert asked == [True, True, False, False]


def case_precision() -> None:
    if precision.probe() == "ok":
        differ({}, {"precision": "bf16"})
    else:
        with pytest.raises(ConfigError, match="not safe on this CPU"):
            trained(precision="bf16")


def case_gauge_every(**base: Any) -> None:
    for every, expected in ((0, []), (1, [0, 1, 2, 3]), (2, [0, 2])):
        rows = trained(steps=144, gauge_every=every, **base).history.rows
        assert [i for i, row in enumerate(rows) if "staleness" in row] == expected


def in_a_run(**settings: Any) -> Run:
    """The folder of a run of two updates."""
    run = trained("delayed-cue", **(TASK | settings), run=f"{RUNS.name}/{uuid.uuid4().hex}").run
    assert run is not None
    return run


def case_algo() -> None:
    differ({}, {"algo": PPOConfig(gamma=0.5)})
    differ({}, {"algo": "impala"})
    assert "rho/mean" in trained(algo="impala").history.rows[-1]


RUNS = tempfile.TemporaryDirectory(prefix="recollect-test-")


def case_run() -> None:
    assert len(in_a_run().metrics()) == 2
    assert trained("delayed-cue", **TASK).run is None


def case_init_from() -> None:
    run = in_a_run()
    plain = {name: value for name, value in TASK.items() if name not in ("core", "encoder", "head")}
    first = Watched()
    trained("delayed-cue", **plain, init_from=str(run.path), callbacks=[first])
    loaded = rc.load(run.path).policy.state_dict()
    assert equal(first.weights, loaded)


class Watched(rc.Callback):
    """The weights before the first update."""

    def on_start(self, training: Any) -> None:
        self.weights = {k: v.clone() for k, v in training.agent.policy.state_dict().items()}


def case_eval_every() -> None:
    counts = [len(in_a_run(eval_every=n, eval_episodes=2).evaluations()) for n in (0, 36, 72)]
    assert counts == [0, 2, 1]


def case_eval_episodes() -> None:
    for episodes in (2, 5):
        rows = in_a_run(eval_every=36, eval_episodes=episodes).evaluations()
        assert [len(row["returns"]) for row in rows] == [episodes] * 2


def case_eval_mode() -> None:
    for mode, measured in (("greedy", "greedy"), ("sampled", "sampled"), ("both", "greedy")):
        rows = in_a_run(eval_every=72, eval_episodes=2, eval_mode=mode).evaluations()
        assert [(row["mode"], "sampled" in row) for row in rows] == [(measured, mode == "both")]


def case_checkpoint_every() -> None:
    names = [[int(p.name) for p in in_a_run(checkpoint_every=n).checkpoints()] for n in (None, 36)]
    assert names == [[0, 72], [0, 36, 72]]


def case_keep_checkpoints() -> None:
    run = in_a_run(checkpoint_every=1, keep_checkpoints=1)
    assert [int(p.name) for p in run.checkpoints()] == [72]


def case_memory_limit() -> None:
    with pytest.raises(ConfigError, match="memory_limit is 1e-06 GB"):
        trained(memory_limit=1e-6)
    assert trained(memory_limit=1.0).steps > 0


def case_max_seconds() -> None:
    assert trained(steps=360, max_seconds=1e-9).steps == 36
    assert trained(steps=360, max_seconds=1e9).steps == 360


def case_sinks() -> None:
    assert not (in_a_run().path / "tensorboard").exists()
    pytest.importorskip("tensorboard")
    assert (in_a_run(sinks=("tensorboard",)).path / "tensorboard").exists()


# Algorithms on replay ------------------------------------------------------------------------------------

REPLAY: dict[str, Any] = {
    "rollout": 8,
    "chunk": 4,
    "burn_in_steps": 2,
    "n_step": 2,
    "stride": 2,
    "batch": 4,
    "replay_capacity": 120,
    "replay_warmup": 24,
    "replay_ratio": 2.0,
    "target_every": 3,
    "target_rate": None,
    "epsilon": 0.9,
    "epsilon_end": 0.4,
    "learning_rate": 1e-2,
    "core": LSTMConfig(hidden=8),
    "encoder": EncoderConfig(hidden=(8,)),
    "threads": 1,
    "steps": 240,
    "num_envs": 3,
}
REPLAY_VALUES: dict[str, Any] = {
    "rollout": 10,
    "chunk": 5,
    "burn_in_steps": 1,
    "n_step": 3,
    "bootstrap_time_limits": False,
    "stride": 4,
    "batch": 5,
    "replay_capacity": 90,
    "replay_warmup": 48,
    "replay_ratio": 1.0,
    "epsilon_ladder": 2.0,
    "learning_rate": 1e-3,
    "learning_rate_schedule": "linear",
    "learning_rate_warmup": 0.9,
    "gamma": 0.5,
    "max_grad_norm": 1e-3,
    "reward_scale": 3.0,
    "reward_clip": 0.5,
}
"""Other values of the settings, each of which changes the weights."""


def on_replay(callbacks: Any = (), **settings: Any) -> rc.Agent:
    """Ten updates of three rows."""
    return rc.train(TensorWorld(3), progress=False, callbacks=callbacks, **settings)


def case_replay(base: dict[str, Any], name: str, value: Any) -> None:
    """The weights differ from those with the field as in ``base``, and the same settings give the same."""
    one, two, again = (
        {k: v.clone() for k, v in on_replay(**settings).policy.state_dict().items()}
        for settings in (base, base | {name: value}, base)
    )
    assert equal(one, again)
    assert not equal(one, two)


def case_states(base: dict[str, Any]) -> None:
    frames = base | {"core": FramesConfig(frames=2), "states": "rebuilt"}
    learner: Any = on_replay(**frames)._trainer.learner
    assert not learner.replay.stores_states
    with pytest.raises(ConfigError, match="states='rebuilt'"):
        on_replay(**frames | {"states": "stored"})
    with pytest.raises(ConfigError, match="states='stored'"):
        on_replay(**base | {"states": "rebuilt"})


def case_save_replay(base: dict[str, Any]) -> None:
    for value in (False, True):
        agent: Any = on_replay(**base, save_replay=value)
        names = agent._trainer.learned(live=True).optimizer
        assert any(":replay." in name for name in names) == value


def case_replay_tolerance(base: dict[str, Any]) -> None:
    said: dict[float, list[str]] = {1e-30: [], 1.0: []}
    for value, notes in said.items():
        on_replay(**base, tolerance=value, callbacks=[Advice(notes)])
    assert "rounding explains it" in "".join(said[1e-30])
    assert said[1.0] == []


def case_replay_gauge(base: dict[str, Any]) -> None:
    for every, expected in ((0, [0, 1]), (1, list(range(10))), (4, [0, 1, 4, 8])):
        rows = on_replay(**base, gauge_every=every).history.rows
        assert [i for i, row in enumerate(rows) if "deviation/q" in row] == expected
