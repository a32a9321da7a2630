"""``check_grouped_env``: passes what keeps the contract, and names the group that breaks it."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import pytest
import torch

from recollect.base.types import Step
from recollect.envs import PettingZooLoop, make_grouped_env
from recollect.envs.checks import Seen, check_grouped_env
from recollect.errors import ConfigError, EnvError
from tests.support.grouped_worlds import EARLY, LAST_TWO, LATE, ONE_STEP, TOGETHER, Camp, Duo, Lives

PAIRS = {"girls": ["cat", "ann"], "boys": "b*"}


@pytest.mark.parametrize("lives", [TOGETHER, EARLY, LAST_TWO, LATE, ONE_STEP])
def test_pettingzoo_keeps_the_contract(lives: Lives) -> None:
    """S001-29: rules of ends, ``first`` and ``valid``, and seeds, with agents that come and go."""
    env = PettingZooLoop([functools.partial(Camp, lives, wide=("bob",))] * 3, PAIRS)
    seen = check_grouped_env(env, steps=60)
    assert seen["girls"].terminated + seen["girls"].truncated > 10
    assert (seen["girls"].invalid > 0) == (lives not in (TOGETHER, ONE_STEP))


@pytest.mark.parametrize(
    ("name", "policies", "steps"),
    [
        ("pettingzoo/knights_archers_zombies_v11", "shared", 200),
        ("pettingzoo/simple_speaker_listener_v4", "independent", 60),
    ],
)
def test_envs_by_other_people_keep_the_contract(name: str, policies: str, steps: int) -> None:
    env = make_grouped_env(name, 2, policies=policies)
    seen = check_grouped_env(env, steps=steps)
    assert all(one.terminated + one.truncated > 0 for one in seen.values())
    env.close()


def test_tensors_keep_the_contract() -> None:
    """Also ``snapshot`` and ``restore``."""
    assert check_grouped_env(Duo(), steps=16) == {"big": Seen(72, 12, 12, 24), "small": Seen(48, 0, 12, 0)}
    with pytest.raises(ConfigError, match="at least 2"):
        check_grouped_env(Duo(), steps=1)


class Edited(Duo):
    """A Duo with another part of the group "big" in every step."""

    def __init__(self, edit: Any):
        super().__init__()
        self.edit = edit

    def step(self, action: Any) -> Any:
        steps = super().step(action)
        return {**steps, "big": self.edit(steps["big"])}


def dead_rows_are_valid(step: Step) -> Step:
    return replace(step, valid=torch.ones_like(step.valid))


def first_is_missing(step: Step) -> Step:
    return replace(step, first=step.first & (torch.arange(6) % 2 == 0))


def rewards_of_the_dead(step: Step) -> Step:
    return replace(step, reward=torch.ones(6))


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (dead_rows_are_valid, "valid is true after an end that no first followed"),
        (first_is_missing, "valid is true after an end that no first followed"),
        (rewards_of_the_dead, "the reward is not zero, but valid is false"),
        (lambda step: None, "returned a NoneType, not a recollect.Step"),
    ],
)
def test_broken_rules_name_the_group(edit: Any, words: str) -> None:
    with pytest.raises(EnvError, match=rf"step \d+, group 'big'.*{words}"):
        check_grouped_env(Edited(edit), steps=16)


def test_broken_groups_and_states() -> None:
    class Lacks(Duo):
        def step(self, action: Any) -> Any:
            return {"big": super().step(action)["big"]}

    class Forgets(Duo):
        def restore(self, snapshot: Any) -> Any:
            return super().restore({**snapshot, "age": snapshot["age"] * 0})

    class Unseeded(Duo):
        resets = 0

        def reset(self, seed: int) -> Any:
            self.resets += 1
            return super().reset(seed + self.resets)

    for env, words in ((Lacks(), "step 0 returned .'big'.: return a dict with the groups big, small"),):
        with pytest.raises(EnvError, match=words):
            check_grouped_env(env, steps=14)
    with pytest.raises(EnvError, match=r"restore\(snapshot\(\)\) .*gave another obs, group 'big'"):
        check_grouped_env(Forgets(), steps=14)
    with pytest.raises(EnvError, match=r"reset\(seed=0\) .*gave another obs, group 'big' after 0 steps"):
        check_grouped_env(Unseeded(), steps=14)
