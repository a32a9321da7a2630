"""The settings of algorithms on replay: those that contradict each other, a core or a head are refused."""

from __future__ import annotations

from typing import Any

import pytest

import recollect as rc
from recollect.config.impala import ImpalaConfig
from recollect.config.iqn import IQNConfig
from recollect.config.policy import HeadConfig
from recollect.config.r2d2 import R2D2Config
from recollect.config.replay import ReplayConfig
from recollect.cores import FramesConfig
from recollect.errors import ConfigError
from recollect.training.parse_config import parse_config
from tests.support.helpers import TensorWorld, make_policy
from tests.support.replay_setup import HEADS, SMALL


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": 1.5}, r"epsilon = 1.5: it must be in \[0, 1\]"),
        ({"epsilon": 0.1, "epsilon_end": 0.2}, "epsilon_end = 0.2 is above epsilon = 0.1"),
        ({"epsilon_decay": -0.1}, "epsilon_decay"),
        ({"epsilon_ladder": -1.0}, "epsilon_ladder"),
        ({"priority_eta": 2.0}, "priority_eta"),
        ({"priority_exponent": -1.0}, "priority_exponent"),
        ({"importance_exponent": 1.1}, "importance_exponent"),
        ({"target_every": None, "target_rate": None}, "set one of them"),
        ({"target_every": 5, "target_rate": 0.1}, "set one of them"),
        ({"target_every": 0, "target_rate": None}, "target_every"),
        ({"target_every": None, "target_rate": 0.0}, "target_rate"),
        ({"target_every": None, "target_rate": 1.1}, "target_rate"),
        ({"stride": 21}, "stride = 21 is above chunk = 20"),
        ({"stride": 0}, "stride"),
        ({"chunk": 0}, "chunk"),
        ({"n_step": 0}, "n_step"),
        ({"batch": 0}, "batch"),
        ({"burn_in_steps": -1}, "burn_in_steps"),
        ({"replay_ratio": 0.0}, "replay_ratio"),
        ({"replay_capacity": 0}, "replay_capacity"),
        ({"replay_warmup": -1}, "replay_warmup"),
        ({"replay_ratio": float("nan")}, "replay_ratio"),
        ({"gamma": 1.1}, "gamma"),
    ],
)
def test_numbers_that_cannot_be_meant(settings, words):
    """S003-17: refused when the config is made."""
    for kind in (R2D2Config, IQNConfig):
        with pytest.raises(ConfigError, match=words):
            kind(**settings)


@pytest.mark.parametrize("settings", [{"quantiles": 0}, {"target_quantiles": 0}, {"kappa": 0.0}])
def test_numbers_of_iqn(settings):
    """S003-17."""
    with pytest.raises(ConfigError, match=next(iter(settings))):
        IQNConfig(**settings)


def checked(config: ReplayConfig, core: Any = SMALL, head: Any = None, rows: int = 4) -> None:
    config.check(make_policy(TensorWorld(4), core, head=head or HEADS["r2d2"]), rows)


@pytest.mark.parametrize(
    ("given", "core", "words"),
    [
        ({"states": "rebuilt"}, SMALL, "it may remember any number of steps; use states='stored'"),
        ({"states": "rebuilt", "burn_in_steps": 2}, FramesConfig(frames=4), "it needs 3"),
        ({}, FramesConfig(frames=4), "states='rebuilt' with burn_in_steps=3"),
        ({"replay_capacity": 4 * 65}, SMALL, "need 66: raise it to at least 264"),
        ({"replay_capacity": 1_999}, SMALL, "replay_warmup = 2,000 is above replay_capacity = 1,999"),
    ],
)
def test_the_core_and_the_rows_fit(given, core, words):
    """S003-8: checked before anything is collected; the error tells which number would do."""
    with pytest.raises(ConfigError, match=words):
        checked(R2D2Config(**given), core)


def test_what_fits_is_accepted():
    """S003-8, S003-15: at the boundaries."""
    checked(R2D2Config())
    checked(R2D2Config(replay_capacity=4 * 66, replay_warmup=264))
    checked(R2D2Config(states="rebuilt", burn_in_steps=3), FramesConfig(frames=4))
    checked(R2D2Config(states="rebuilt", burn_in_steps=0), FramesConfig(frames=1))
    checked(R2D2Config(states="rebuilt", burn_in_steps=0), "none")


def test_the_head_fits():
    """S003-8: heads without Q-values, and without quantiles for iqn, are named with what to choose."""
    with pytest.raises(ConfigError, match=r"ActionHead has no Q-values.* leave head out"):
        checked(R2D2Config(), head=HeadConfig())
    with pytest.raises(ConfigError, match=r"QHead has no quantiles.* head='quantile'"):
        checked(IQNConfig(), head=HEADS["r2d2"])
    checked(R2D2Config(), head=HEADS["iqn"])


def test_states_are_stored_where_sequences_start():
    """S003-4: every stride steps of a rollout, from its first; just the first if states are rebuilt."""
    assert R2D2Config(rollout=16, chunk=5).state_steps == (0, 5, 10, 15)
    assert R2D2Config(rollout=16, stride=2).state_steps == tuple(range(0, 16, 2))
    assert R2D2Config(rollout=16, states="rebuilt").state_steps == (0,)
    assert R2D2Config(rollout=16, chunk=20).spacing == 16
    assert R2D2Config(rollout=16, chunk=20, states="rebuilt").spacing == 20


@pytest.mark.parametrize("algo", ["r2d2", "iqn"])
def test_by_flags(algo):
    """S003-17: settings of other algorithms are refused by name."""
    line = f"--algo {algo} --replay-ratio 2 --target-every none --target-rate 0.01 --chunk 8"
    found: Any = parse_config(line.split(), env="CartPole-v1").config.algo
    assert (found.replay_ratio, found.target_every, found.target_rate, found.chunk) == (2.0, None, 0.01, 8)
    for flag in ("--epochs 2", "--clip 0.1", "--entropy 0.1"):
        with pytest.raises(ConfigError, match=f"{algo} has no such setting"):
            parse_config([f"--algo={algo}", *flag.split()], env="CartPole-v1")
    with pytest.raises(ConfigError, match="has no such setting"):
        parse_config(["--replay-ratio", "2"], env="CartPole-v1")
    assert not hasattr(ImpalaConfig(), "replay_ratio")


def test_a_run_is_refused_before_it_collects():
    """S003-8: by ``train`` itself."""
    for settings, words in (
        ({"head": HEADS["r2d2"], "algo": "iqn"}, "no quantiles"),
        ({"algo": "r2d2", "core": FramesConfig(frames=3)}, "states='rebuilt'"),
    ):
        chosen: dict[str, Any] = settings
        with pytest.raises(ConfigError, match=words):
            rc.train(TensorWorld(3), steps=10, progress=False, **chosen)
