"""The config: every field does something, names are found, and what cannot be meant is refused."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.config.fields import fields_of
from recollect.config.impala import ImpalaConfig
from recollect.config.iqn import IQNConfig
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.config.r2d2 import R2D2Config
from recollect.config.train import ALIASES, TrainConfig
from recollect.cores import GRUConfig
from recollect.errors import ConfigError
from recollect.training.parse_config import parse_config
from tests.support import config_cases as cases
from tests.support.config_runs import acts, encodes, equal, moves_weights, reports, weights

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
        "tolerance": functools.partial(cases.case_tolerance, **base),
        "gauge_every": functools.partial(cases.case_gauge_every, **base),
    }


def replay_cases(**algo: Any) -> dict[str, Callable[[], None]]:
    """Those of the settings that all algorithms on replay have."""
    base = cases.REPLAY | algo
    ranked = base | {"priority_exponent": 0.9}

    def moves(name: str, value: Any, **more: Any) -> Callable[[], None]:
        return functools.partial(cases.case_replay, base | more, name, value)

    return {
        **{name: moves(name, value) for name, value in cases.REPLAY_VALUES.items()},
        "double": moves("double", False, target_every=50, learning_rate=0.05),
        "learning_rate_end": moves("learning_rate_end", 0.5, learning_rate_schedule="linear"),
        "target_every": moves("target_every", 2),
        "target_rate": functools.partial(
            cases.case_replay, base | {"target_every": None, "target_rate": 0.1}, "target_rate", 0.5
        ),
        "priority_exponent": moves("priority_exponent", 0.3, priority_exponent=0.9),
        "priority_eta": functools.partial(cases.case_replay, ranked, "priority_eta", 0.1),
        "importance_exponent": functools.partial(cases.case_replay, ranked, "importance_exponent", 1.0),
        "epsilon": moves("epsilon", 0.6),
        "epsilon_end": moves("epsilon_end", 0.3, epsilon=0.9, epsilon_end=0.1),
        "epsilon_decay": moves("epsilon_decay", 1.0, epsilon=0.9, epsilon_end=0.1),
        "states": functools.partial(cases.case_states, base),
        "save_replay": functools.partial(cases.case_save_replay, base),
        "tolerance": functools.partial(cases.case_replay_tolerance, base),
        "gauge_every": functools.partial(cases.case_replay_gauge, base),
    }


CASES: dict[type, dict[str, Callable[[], None]]] = {
    TrainConfig: {
        "steps": cases.case_steps,
        "num_envs": cases.case_num_envs,
        "actors": cases.case_actors,
        "runtime": cases.case_runtime,
        "mode": cases.case_mode,
        "max_lag": cases.case_max_lag,
        "policies": cases.case_policies,
        "vs": cases.case_vs,
        "vs_kwargs": cases.case_vs_kwargs,
        "curriculum": cases.case_curriculum,
        "env_workers": cases.case_env_workers,
        "env_timeout": cases.case_env_timeout,
        "learners": cases.case_learners,
        "learner_processes": cases.case_learner_processes,
        "ray_address": cases.case_ray_address,
        "seed": moves_weights("seed", 1),
        "device": cases.case_device,
        "target_return": cases.case_target_return,
        "target_episodes": cases.case_target_episodes,
        "last_action_reward": cases.case_last_action_reward,
        "env_kwargs": cases.case_env_kwargs,
        "wrap": cases.case_wrap,
        "imports": cases.case_imports,
        "drop_obs": cases.case_drop_obs,
        "run": cases.case_run,
        "init_from": cases.case_init_from,
        "eval_every": cases.case_eval_every,
        "eval_episodes": cases.case_eval_episodes,
        "eval_mode": cases.case_eval_mode,
        "checkpoint_every": cases.case_checkpoint_every,
        "keep_checkpoints": cases.case_keep_checkpoints,
        "max_seconds": cases.case_max_seconds,
        "memory_limit": cases.case_memory_limit,
        "sinks": cases.case_sinks,
        "threads": cases.case_threads,
        "parallel": cases.case_parallel,
        "compile": cases.case_compile,
        "graphs": cases.case_graphs,
        "policy": moves_weights("policy", PolicyConfig(normalise_value=False)),
        "algo": cases.case_algo,
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
    R2D2Config: {
        **replay_cases(algo="r2d2"),
        "rescale": functools.partial(cases.case_replay, cases.REPLAY | {"algo": "r2d2"}, "rescale", False),
    },
    IQNConfig: {
        **replay_cases(algo="iqn"),
        **{
            name: functools.partial(cases.case_replay, cases.REPLAY | {"algo": "iqn"}, name, value)
            for name, value in {"quantiles": 3, "target_quantiles": 3, "kappa": 0.01}.items()
        },
    },
    PolicyConfig: {
        "encoder": moves_weights("encoder", EncoderConfig(hidden=(9,))),
        "core": moves_weights("core", GRUConfig(hidden=8)),
        "head": moves_weights("head", HeadConfig(gain=0.5)),
        "critic": moves_weights("critic", "separate"),
        "critic_obs": cases.case_critic_obs,
        "normalise_observations": moves_weights("normalise_observations", True, normalise_observations=False),
        "normalise_last_action": moves_weights("normalise_last_action", True, last_action_reward=True),
        "normalise_value": moves_weights("normalise_value", False),
        "value_decay": moves_weights("value_decay", 0.5),
        "precision": cases.case_precision,
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
        "symbols": encodes("symbols", "never", (7, 7, 3)),
        "tokens": encodes("tokens", "never", (16, 3)),
    },
}
"""Those of the cores are in tests/cores/test_core_configs.py."""
FIELDS = [(config, field.name) for config in CASES for field in dataclasses.fields(config)]


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize(("config", "name"), FIELDS, ids=[f"{c.__name__}.{n}" for c, n in FIELDS])
def test_every_field_does_something(config, name):
    """S003-17, S000-26, S001-24: a field without a visible effect, or without a case here, fails."""
    assert name in CASES[config], f"{config.__name__}.{name} is new: show here what it changes"
    CASES[config][name]()


def test_no_case_for_a_field_that_is_gone():
    """S000-26: the cases are those of the fields, and the same run twice is the same."""
    assert {(config, name) for config, cases in CASES.items() for name in cases} == set(FIELDS)
    assert equal(weights(), weights())


def test_every_field_is_documented():
    """S000-26: a docstring under each field, for whoever reads the config."""
    described = {(config, field.name) for config in CASES for field in fields_of(config) if field.doc}
    assert described == set(FIELDS)


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


def test_an_encoder_as_a_mapping(tmp_path):
    """What a config file accepts under encoder, Python accepts as a mapping, with the same errors."""
    mapping = {"name": "conv", "hidden": [32, 8], "layer_norm": "on"}
    encoder = TrainConfig().override(encoder=mapping).policy.encoder
    assert encoder == EncoderConfig(images="always", hidden=(32, 8), layer_norm=True)
    file = tmp_path / "run.yaml"
    file.write_text("env: delayed-cue\nencoder: {name: conv, hidden: [32, 8], layer_norm: on}\n")
    assert parse_config(["--config", str(file)]).config.policy.encoder == encoder
    assert PolicyConfig(encoder={"hidden": [8]}).encoder == EncoderConfig(hidden=(8,))
    own = PolicyConfig(encoder={"name": "my:Encoder", "width": 3}).encoder
    assert (own.name, own.options) == ("my:Encoder", {"width": 3})
    small = {"rollout": 8, "chunk": 4, "num_envs": 2, "minibatches": 1, "progress": False}
    with rc.train("delayed-cue", encoder={"hidden": [8]}, steps=16, **small) as agent:
        assert agent.policy.encoder.mlp.weight.shape[0] == 8
    for wrong, says in (
        ({"name": "conf"}, "did you mean 'conv'"),
        ({"hiden": [8]}, "no setting 'hiden'.*'hidden'"),
        ({"hidden": "wide"}, "encoder.hidden wide"),
    ):
        with pytest.raises(ConfigError, match=says):
            PolicyConfig(encoder=wrong)


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
        (
            {"algo": "imapla"},
            r"algo = 'imapla' \(did you mean 'impala'\?\): choose ppo or impala or r2d2 or iqn",
        ),
        (
            {"algo": 3},
            "algo = 3: choose ppo or impala or r2d2 or iqn, or give a PPOConfig or ImpalaConfig or ",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            TrainConfig().override(**settings)


def test_numbers_of_other_kinds_become_python_s():
    """S000-26: NumPy's numbers and 1e6 for a million are understood, and can be saved as JSON."""
    config = TrainConfig().override(steps=1e6, seed=np.int64(3), gamma=np.float32(0.5), entropy=0)
    assert (type(config.steps), config.steps) == (int, 1_000_000)
    assert (type(config.seed), type(config.algo.gamma)) == (int, float)
