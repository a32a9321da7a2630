"""GymLoop: single envs, stepped one after another."""

from __future__ import annotations

import math
import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from recollect.base import tree
from recollect.envs import BatchedEnv, GymLoop
from recollect.envs.checks import check_batched_env
from recollect.errors import ConfigError, EnvError, SpaceError
from tests.support.worlds import Counter, Scripted, by_batch, by_hand, choose

GOOD = np.zeros(2, np.float32)


@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("length", [None, 1])
def test_equals_stepping_by_hand(as_dict: bool, length: int | None) -> None:
    """S002-21: obs, final obs, rewards and flags of 3 envs, episodes of 1 to 4 steps or all of one."""

    def make() -> gym.Env:
        return Counter(as_dict, length, one_array=True)  # so that copies must be real

    env = GymLoop([make] * 3)
    assert by_batch(env, 40, seed=5) == by_hand(make, 3, 40, seed=5)


def test_shows_the_reset_before_it_acts() -> None:
    """S002-21: ``first`` marks the new episode's first sight, and the old one's last is kept apart."""
    env = GymLoop([lambda: Counter(length=2)])
    obs = env.reset(0)
    step = env.step(choose(obs))
    assert step.obs[0, :2].tolist() == [0, 1]
    assert not step.first[0]
    step = env.step(choose(step.obs))
    assert step.final_obs[0, :2].tolist() == [0, 2]
    assert step.obs[0].tolist()[:2] == [1, 0]
    assert step.obs[0, 3] == -1  # no action has been made in the new episode
    assert step.first[0]
    assert step.valid[0]


def test_both_flags_stay_apart() -> None:
    """S000-1: terminated and truncated arrive as the env gave them, alone and together."""
    seen = set()
    env = GymLoop([Counter] * 4)
    obs = env.reset(0)
    for _ in range(60):
        step = env.step(choose(obs))
        seen |= set(zip(step.terminated.tolist(), step.truncated.tolist()))
        assert torch.equal(step.first, step.terminated | step.truncated)
        obs = step.obs
    assert seen == {(False, False), (True, False), (False, True), (True, True)}


def test_keeps_the_contract() -> None:
    env = GymLoop([lambda: gym.make("CartPole-v1")] * 3)
    assert isinstance(env, BatchedEnv)
    assert check_batched_env(env, steps=80).terminated > 3


def test_a_step_outlives_the_next() -> None:
    """What was returned is not overwritten while the next step is made."""
    env = GymLoop([Counter] * 2)
    before = env.step(choose(env.reset(0)))
    kept = tree.clone(before.obs), before.reward.clone(), before.first.clone()
    env.step(choose(before.obs))
    assert torch.equal(before.obs, kept[0])
    assert torch.equal(before.reward, kept[1])
    assert torch.equal(before.first, kept[2])


def test_seeds_are_distinct_and_repeat() -> None:
    env = GymLoop([lambda: gym.make("CartPole-v1")] * 3)
    one, other = env.reset(1).clone(), env.reset(2).clone()
    assert torch.equal(env.reset(1), one)
    assert len({tuple(row) for row in torch.cat([one, other]).tolist()}) == 6
    alone = GymLoop([lambda: gym.make("CartPole-v1")])
    assert torch.equal(alone.reset(1)[0], one[0])  # a row does not depend on how many there are


def test_reset_in_the_middle_of_an_episode() -> None:
    env = GymLoop([Counter] * 3)
    first = by_batch(env, 7, seed=3)
    assert by_batch(env, 7, seed=3) == first


def test_actions_are_the_envs_own() -> None:
    """An env that changes its action in place does not change the rollout's."""

    class Clipper(Scripted):
        action_space = spaces.Box(-1, 1, (2,), np.float32)

        def step(self, action: Any) -> Any:
            action *= 0
            return super().step(action)

    env = GymLoop([Clipper])
    env.reset(0)
    action = torch.ones(1, 2)
    env.step(action)
    assert torch.equal(action, torch.ones(1, 2))


@pytest.mark.parametrize(
    ("result", "pattern"),
    [
        ((np.zeros(3, np.float32), 0.0, False, False, {}), r"shape \(3,\), and its space says \(2,\)"),
        (([0.0], 0.0, False, False, {}), r"shape \(1,\)"),
        (({"x": GOOD}, 0.0, False, False, {}), r"the observation is a dict with the keys \['x'\]"),
        ((None, 0.0, False, False, {}), r"the observation is a NoneType"),
        ((GOOD, math.nan, False, False, {}), r"the reward is nan .*division by zero"),
        ((GOOD, math.inf, False, False, {}), r"the reward is inf"),
        ((GOOD, 1e39, False, False, {}), r"the reward is 1e\+39 \(inf in float32\)"),
        ((GOOD, None, False, False, {}), r"the reward is None \(NoneType\), not a number"),
        ((GOOD, "1", False, False, {}), r"the reward is '1' \(str\), not a number"),
        ((GOOD, np.zeros(2), False, False, {}), r"the reward is array.*not a number"),
        ((GOOD, 0.0, True, {}), r"4 values.*a lone done is not accepted.*terminated and truncated"),
        ((GOOD, 0.0, True), r"3 values, and step returns \(obs, reward, terminated, truncated, info\)"),
        (GOOD, r"step returned a ndarray"),
        ((GOOD, 0.0, True, None, {}), r"truncated is None \(NoneType\), not a bool.*lone done"),
        ((GOOD, 0.0, 1, False, {}), r"terminated is 1 \(int\), not a bool"),
        ((GOOD[:1], 0.0, True, False, {}), r"the observation has shape \(1,\)"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_broken_steps_are_named(result: Any, pattern: str) -> None:
    """S000-1, S003-7: what is wrong, in which env and at which step; a lone done is rejected."""
    env = GymLoop([Scripted, lambda: Scripted(result)])
    env.reset(0)
    with pytest.raises(EnvError, match=pattern) as error:
        env.step(torch.zeros(2, dtype=torch.int64))
    assert re.search(r"env 1 \(Scripted\), step 1: ", str(error.value))


@pytest.mark.parametrize(
    ("start", "pattern"),
    [
        (GOOD, r"reset returned a ndarray, not \(obs, info\)"),
        ((GOOD, GOOD), r"reset returned a tuple, not \(obs, info\)"),
        ((np.zeros(5), {}), r"env 1 \(Scripted\), step 0: the observation has shape \(5,\)"),
    ],
)
def test_broken_resets_are_named(start: Any, pattern: str) -> None:
    env = GymLoop([Scripted, lambda: Scripted(start=start)])
    with pytest.raises(EnvError, match=pattern):
        env.reset(0)


def test_an_env_that_raises_is_named() -> None:
    env = GymLoop([Scripted, lambda: Scripted(fail=ValueError("the arm broke"))])
    env.reset(0)
    with pytest.raises(EnvError, match=r"env 1 .*step 1: step\(.*\) raised ValueError: the arm") as error:
        env.step(torch.zeros(2, dtype=torch.int64))
    assert isinstance(error.value.__cause__, ValueError)


def test_numbers_and_flags_in_arrays_of_one_are_taken() -> None:
    """S003-7: singleton dimensions are put right in one place."""
    result = (np.zeros((1, 2)), np.array([2.5]), np.bool_(False), np.array([False]), {})
    env = GymLoop([lambda: Scripted(result)])
    env.reset(0)
    step = env.step(torch.zeros(1, dtype=torch.int64))
    assert step.obs.shape == (1, 2)
    assert step.reward.tolist() == [2.5]


def test_integers_must_stay_integers() -> None:
    """S003-7: an image in 0..1 for a space of bytes would become black."""

    class Image(Scripted):
        observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    for obs, pattern in (
        (np.full((8, 8, 3), 0.5), "dtype float64, and its space says uint8"),
        (np.full((8, 8, 3), 300), "values from 300 to 300, which uint8 cannot hold"),
    ):
        env = GymLoop([lambda obs=obs: Image((obs, 0.0, False, False, {}), start=(obs, {}))])
        with pytest.raises(EnvError, match=pattern):
            env.reset(0)


def test_a_category_must_exist() -> None:
    class Token(Scripted):
        observation_space = spaces.Discrete(3, start=1)

    env = GymLoop([lambda: Token(start=(1, {})), lambda: Token(start=(4, {}))])
    with pytest.raises(EnvError, match=r"env 1 .*is 4, outside Discrete.*values are 1 to 3"):
        env.reset(0)


def test_compensating_lengths_do_not_shift_rows() -> None:
    short, long = (Scripted.good[:1], {}), (np.zeros(3, np.float32), {})
    env = GymLoop([lambda: Scripted(start=short), lambda: Scripted(start=long)])
    with pytest.raises(EnvError, match=r"env 0 .*shape \(1,\)"):
        env.reset(0)


def test_construction_errors() -> None:
    shared = Scripted()
    with pytest.raises(EnvError, match="env 1 returned an env that is in use already"):
        GymLoop([lambda: shared] * 2)
    with pytest.raises(EnvError, match=r"env 0 returned a int, not a gymnasium\.Env"):
        GymLoop([lambda: 3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="num_envs is 0"):
        GymLoop([])
    with pytest.raises(SpaceError, match=r"observation_space of env 1 is Dict.*must be equal"):
        GymLoop([Counter, lambda: Counter(as_dict=True)])

    class Words(Scripted):
        observation_space = spaces.Text(5)  # pyright: ignore[reportAssignmentType]

    with pytest.raises(SpaceError, match="observation_space of Words is a Text, which is not supported"):
        GymLoop([Words])


def test_wrong_use_is_named() -> None:
    env = GymLoop([Scripted] * 2)
    with pytest.raises(EnvError, match="call reset"):
        env.step(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(ConfigError, match="a seed is an integer from 0 up"):
        env.reset(-1)
    env.reset(0)
    with pytest.raises(SpaceError, match=r"the action has shape \(3,\), and its space says \(2,\)"):
        env.step(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(SpaceError, match="the action has dtype float32"):
        env.step(torch.zeros(2))
