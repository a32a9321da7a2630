"""The config: every field does something, names are found, and what cannot be meant is refused."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import tempfile
import time
import uuid
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect import workers
from recollect.algos.impala import ImpalaConfig
from recollect.algos.ppo import PPO, PPOConfig
from recollect.config import ALIASES, TrainConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.envs.workers import WorkerEnv
from recollect.errors import AlignmentError, ConfigError, LostError
from recollect.policy import compiled, precision
from recollect.policy.encoders import EncoderConfig
from recollect.policy.heads import ActionHead, HeadConfig
from recollect.policy.policy import PolicyConfig
from recollect.runs import Run
from recollect.runtimes.learners import LearnerGroup
from tests.helpers import TensorWorld

BASE: dict[str, Any] = {
    "rollout": 12,
    "chunk": 4,
    "epochs": 2,
    "minibatches": 2,
    "learning_rate": 1e-2,
    "core": LSTMConfig(hidden=8),
    "encoder": EncoderConfig(hidden=(8,)),
    "head": HeadConfig(gain=1.0),
    "threads": 1,
    "steps": 72,
}
TASK = {**BASE, "num_envs": 3, "env_kwargs": {"horizon": 1}}


def trained(env: Any = None, callbacks: Any = (), **settings: Any) -> rc.Agent:
    """Two updates of 12 steps in 3 rows, unless the settings say otherwise."""
    env = TensorWorld(3) if env is None else env
    return rc.train(env, progress=False, callbacks=callbacks, **(BASE | settings))


def weights(**settings: Any) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in trained(**settings).policy.state_dict().items()}


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape and torch.equal(a[name], b[name]) for name in a
    )


def moves_weights(name: str, value: Any, **base: Any) -> Callable[[], None]:
    """After two updates the weights differ from those with the field as in ``base``."""
    return lambda: _differ(base, base | {name: value})


def reports(name: str, value: Any, metric: str, number: float, **base: Any) -> Callable[[], None]:
    """A metric says that the field is on, where the weights are the same but for rounding."""

    def check() -> None:
        assert metric not in trained(**base).history.rows[-1]
        assert trained(**base | {name: value}).history.rows[-1][metric] == number

    return check


def _differ(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert not equal(weights(**before), weights(**after))


def features(space: gym.Space, **fields: Any) -> torch.Tensor:
    torch.manual_seed(0)
    encoder = EncoderConfig(**fields).build(space)
    seen = torch.from_numpy(np.stack([space.sample() for _ in range(2)])) if space.seed(1) else None
    return encoder(seen).detach()


def encodes(name: str, value: Any, shape: tuple[int, ...] = (5,)) -> Callable[[], None]:
    """The features of the same observations differ."""
    kind = {} if len(shape) == 1 else {"dtype": np.uint8}
    space = gym.spaces.Box(0, 1 if len(shape) == 1 else 255, shape, **kind)

    def check() -> None:
        plain, changed = features(space), features(space, **{name: value})
        assert plain.shape != changed.shape or not torch.allclose(plain, changed)

    return check


def acts(name: str, value: Any, log_std: float | None = None) -> Callable[[], None]:
    """The density of the same action under a head with the same seed differs."""

    def density(config: HeadConfig) -> float:
        torch.manual_seed(0)
        head = ActionHead(gym.spaces.Box(-1, 1, (2,)), 4, config)
        if log_std is not None:
            with torch.no_grad():
                head.root.log_std.fill_(log_std)
        return float(head(torch.ones(1, 4)).log_prob(torch.full((1, 2), 0.3)).detach())

    def check() -> None:
        assert density(HeadConfig()) != density(HeadConfig(**{name: value}))

    return check


def case_steps() -> None:
    assert [trained(steps=n).steps for n in (36, 37, 100)] == [36, 72, 108]


def case_num_envs() -> None:
    sizes = [len(trained("delayed-cue", **(TASK | {"num_envs": n})).history.rows) for n in (3, 6)]
    assert sizes == [2, 1]


def case_actors() -> None:
    one, two = (trained("delayed-cue", **(TASK | {"num_envs": 4, "actors": n})) for n in (1, 2))
    assert [len(agent._trainer.crew.envs) for agent in (one, two)] == [1, 2]
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
            (env,) = agent._trainer.crew.envs
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
        patch.setattr("recollect.runtimes.processes.DEATHS", 1)
        with pytest.raises(LostError, match="has not come back"):
            trained(Stalled, **settings)


def without_env(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("env_kwargs", "num_envs")}


def case_learners() -> None:
    settings = TASK | {"num_envs": 4}
    agents = []
    for learners in (1, 2):
        with trained("delayed-cue", **settings, learners=learners) as agent:
            assert isinstance(agent._trainer._updater, LearnerGroup) == (learners > 1)
            agents.append(agent)
    one, two = (agent.history.rows for agent in agents)
    assert two[-1]["loss/policy"] == pytest.approx(one[-1]["loss/policy"], abs=1e-4), (
        "the same but for rounding"
    )


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


def case_threads() -> None:
    for threads in (1, 2):
        seen: list[Any] = []
        trained(threads=threads, callbacks=[lambda *_, seen=seen: seen.append(workers._pool.get())])
        assert all((use[1] if use else 1) == threads for use in seen)
    assert workers._pool.get() is None, "as it was before"


def case_parallel() -> None:
    update = PPO.update
    for parallel, expected in (("rows", 1), ("operations", 2)):
        seen: list[int] = []

        def noting(self, *arguments, seen=seen, **named):
            seen.append(torch.get_num_threads())
            return update(self, *arguments, **named)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PPO, "update", noting)
            trained(threads=2, parallel=parallel)
        assert set(seen) == {expected}
    assert torch.get_num_threads() == 1, "as it was before"


def case_tolerance(**base: Any) -> None:
    with pytest.raises(AlignmentError, match="raise `tolerance`"):
        trained(tolerance=1e-30, **base)


def case_compile() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "BACKEND", "eager")
        assert trained(compile=True).policy.compiled_graphs > 0
    assert trained().policy.compiled_graphs == 0


def case_precision() -> None:
    if precision.probe() == "ok":
        _differ({}, {"precision": "bf16"})
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
    _differ({}, {"algo": PPOConfig(gamma=0.5)})
    _differ({}, {"algo": "impala"})
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


def case_checkpoint_every() -> None:
    names = [[int(p.name) for p in in_a_run(checkpoint_every=n).checkpoints()] for n in (None, 36)]
    assert names == [[0, 72], [0, 36, 72]]


def case_keep_checkpoints() -> None:
    run = in_a_run(checkpoint_every=1, keep_checkpoints=1)
    assert [int(p.name) for p in run.checkpoints()] == [72]


def case_max_seconds() -> None:
    assert trained(steps=360, max_seconds=1e-9).steps == 36
    assert trained(steps=360, max_seconds=1e9).steps == 360


def case_sinks() -> None:
    assert not (in_a_run().path / "tensorboard").exists()
    pytest.importorskip("tensorboard")
    assert (in_a_run(sinks=("tensorboard",)).path / "tensorboard").exists()


BURN = {"recurrent_mode": "burn_in", "burn_in_steps": 2}
IMPALA = {"algo": "impala"}


def shared_cases(**base: Any) -> dict[str, Callable[[], None]]:
    """Those of the settings that all algorithms have, with ``base`` set besides."""
    return {
        "rollout": moves_weights("rollout", 8, **base),
        "chunk": moves_weights("chunk", 6, **base),
        "epochs": moves_weights("epochs", 3, **base),
        "minibatches": moves_weights("minibatches", 3, **base),
        "accumulate": reports("accumulate", 2, "passes", 2, **base),
        "batching": moves_weights("batching", "episodes", **base),
        "recurrent_mode": moves_weights("recurrent_mode", "full", **base),
        "burn_in_steps": moves_weights("burn_in_steps", 4, **BURN, **base),
        "learning_rate": moves_weights("learning_rate", 1e-3, **base),
        "actor_learning_rate": moves_weights("actor_learning_rate", 1e-3, **base),
        "critic_learning_rate": moves_weights("critic_learning_rate", 1e-3, **base),
        "learning_rate_schedule": moves_weights("learning_rate_schedule", "constant", **base),
        "learning_rate_end": moves_weights("learning_rate_end", 0.5, learning_rate_schedule="linear", **base),
        "learning_rate_warmup": moves_weights("learning_rate_warmup", 0.9, **base),
        "gamma": moves_weights("gamma", 0.9, **base),
        "gae_lambda": moves_weights("gae_lambda", 0.5, **base),
        "value_coef": moves_weights("value_coef", 1.0, **base),
        "entropy": moves_weights("entropy", 0.1, **base),
        "entropy_schedule": moves_weights("entropy_schedule", "constant", **base),
        "entropy_warmup": moves_weights("entropy_warmup", 0.9, entropy=0.1, **base),
        "entropy_end": moves_weights("entropy_end", 0.5, entropy_schedule="cosine", **base),
        "max_grad_norm": moves_weights("max_grad_norm", 0.01, **base),
        "weight_clip": moves_weights("weight_clip", 1.0, **base),
        "l2_init": moves_weights("l2_init", 1.0, **base),
        "next_obs_coef": moves_weights("next_obs_coef", 1.0, **base),
        "target_kl": moves_weights("target_kl", 1e-9, **base),
        "reward_scale": moves_weights("reward_scale", 0.1, **base),
        "reward_clip": moves_weights("reward_clip", 0.5, **base),
        "refresh_states": moves_weights("refresh_states", True, **base),
        "recompute_advantages": moves_weights("recompute_advantages", True, **base),
        "recompute_activations": reports("recompute_activations", True, "recomputed", 2, **base),
        "tolerance": functools.partial(case_tolerance, **base),
        "gauge_every": functools.partial(case_gauge_every, **base),
    }


CASES: dict[type, dict[str, Callable[[], None]]] = {
    TrainConfig: {
        "steps": case_steps,
        "num_envs": case_num_envs,
        "actors": case_actors,
        "runtime": case_runtime,
        "mode": case_mode,
        "max_lag": case_max_lag,
        "env_workers": case_env_workers,
        "env_timeout": case_env_timeout,
        "learners": case_learners,
        "ray_address": case_ray_address,
        "seed": moves_weights("seed", 1),
        "device": case_device,
        "target_return": case_target_return,
        "target_episodes": case_target_episodes,
        "last_action_reward": case_last_action_reward,
        "env_kwargs": case_env_kwargs,
        "run": case_run,
        "init_from": case_init_from,
        "eval_every": case_eval_every,
        "eval_episodes": case_eval_episodes,
        "checkpoint_every": case_checkpoint_every,
        "keep_checkpoints": case_keep_checkpoints,
        "max_seconds": case_max_seconds,
        "sinks": case_sinks,
        "threads": case_threads,
        "parallel": case_parallel,
        "compile": case_compile,
        "policy": moves_weights("policy", PolicyConfig(normalise_value=False)),
        "algo": case_algo,
    },
    PPOConfig: {
        **shared_cases(),
        "clip": moves_weights("clip", 0.001),
        "value_clip": moves_weights("value_clip", 0.001),
        "normalise_advantages": moves_weights("normalise_advantages", False),
    },
    ImpalaConfig: {
        **shared_cases(**IMPALA),
        "rho_clip": moves_weights("rho_clip", 0.5, c_clip=0.5, **IMPALA),
        "c_clip": moves_weights("c_clip", 0.3, **IMPALA),
        "clip": moves_weights("clip", 0.001, **IMPALA),
        "normalise_advantages": moves_weights("normalise_advantages", True, **IMPALA),
    },
    PolicyConfig: {
        "encoder": moves_weights("encoder", EncoderConfig(hidden=(9,))),
        "core": moves_weights("core", GRUConfig(hidden=8)),
        "head": moves_weights("head", HeadConfig(gain=0.5)),
        "normalise_observations": moves_weights("normalise_observations", True, normalise_observations=False),
        "normalise_value": moves_weights("normalise_value", False),
        "value_decay": moves_weights("value_decay", 0.5),
        "precision": case_precision,
    },
    HeadConfig: {
        "squash": acts("squash", False),
        "state_dependent_std": acts("state_dependent_std", True),
        "log_std_init": acts("log_std_init", -1.0),
        "log_std_min": acts("log_std_min", -2.0, log_std=-4.0),
        "log_std_max": acts("log_std_max", 0.0, log_std=0.9),
        "gain": acts("gain", 1.0),
    },
    EncoderConfig: {
        "hidden": encodes("hidden", (16,)),
        "activation": encodes("activation", "relu"),
        "layer_norm": encodes("layer_norm", True),
        "conv": encodes("conv", "nature", (36, 36, 3)),
        "images": encodes("images", "never", (16, 16, 3)),
        "tokens": encodes("tokens", "never", (16, 3)),
    },
}
"""Those of the cores are in tests/cores/test_core_configs.py."""
FIELDS = [(config, field.name) for config in CASES for field in dataclasses.fields(config)]


@pytest.mark.parametrize(("config", "name"), FIELDS, ids=[f"{c.__name__}.{n}" for c, n in FIELDS])
def test_every_field_does_something(config, name):
    """S000-26, S001-24: a field without a visible effect, or without a case here, fails."""
    assert name in CASES[config], f"{config.__name__}.{name} is new: show here what it changes"
    CASES[config][name]()


def test_no_case_for_a_field_that_is_gone():
    """S000-26: the cases are those of the fields, and the same run twice is the same."""
    assert {(config, name) for config, cases in CASES.items() for name in cases} == set(FIELDS)
    assert equal(weights(), weights())


def test_every_field_is_documented():
    """S000-26: a docstring under each field, for whoever reads the config."""
    for config in CASES:
        for field in dataclasses.fields(config):
            home = next(
                kind for kind in config.__mro__ if field.name in vars(kind).get("__annotations__", {})
            )
            source = inspect.getsource(home)
            after = source.split(f"    {field.name}: ", 1)[1].split("\n", 1)[1].lstrip()
            assert after.startswith('"""'), f"{config.__name__}.{field.name}"


def test_aliases_lead_to_our_names():
    """S000-26: every alias names a real field, and none hides one."""
    names = {
        f.name
        for config in (TrainConfig, PPOConfig, ImpalaConfig, PolicyConfig)
        for f in dataclasses.fields(config)
    }
    assert set(ALIASES.values()) <= names
    assert not set(ALIASES) & names


def test_flat_names_are_routed():
    config = TrainConfig().override(steps=5, gamma=0.5, core="gru")
    assert (config.steps, config.algo.gamma, config.policy.core) == (5, 0.5, "gru")
    both = TrainConfig().override(algo=PPOConfig(gamma=0.5), clip=0.1)
    assert (both.algo.gamma, both.algo.clip) == (0.5, 0.1)


def test_the_algorithm_by_name():
    """S000-26: a name is its config; settings go to the chosen one; those of another name their owner."""
    config = TrainConfig().override(algo="impala", rho_clip=2.0, gamma=0.9)
    assert config.algo == ImpalaConfig(rho_clip=2.0, gamma=0.9)
    assert TrainConfig(algo="impala").algo == ImpalaConfig()
    assert config.override(algo="impala", epochs=2).algo == ImpalaConfig(rho_clip=2.0, gamma=0.9, epochs=2)
    assert config.override(algo="ppo", clip=0.1).algo == PPOConfig(clip=0.1)
    for settings, words in (
        ({"rho_clip": 1.0}, r"rho_clip: ppo has no such setting, impala has: .* choose algo='impala'"),
        ({"algo": "impala", "value_clip": 1.0}, r"value_clip: impala has no .*, ppo has: .* algo='ppo'"),
        ({"algo": "imapla"}, r"algo = 'imapla' \(did you mean 'impala'\?\): choose ppo or impala"),
        ({"algo": 3}, "algo = 3: choose ppo or impala, or give a PPOConfig or ImpalaConfig"),
    ):
        with pytest.raises(ConfigError, match=words):
            TrainConfig().override(**settings)


def test_numbers_of_other_kinds_become_python_s():
    """S000-26: NumPy's numbers and 1e6 for a million are understood, and can be saved as JSON."""
    config = TrainConfig().override(steps=1e6, seed=np.int64(3), gamma=np.float32(0.5), entropy=0)
    assert (type(config.steps), config.steps) == (int, 1_000_000)
    assert (type(config.seed), type(config.algo.gamma)) == (int, float)
