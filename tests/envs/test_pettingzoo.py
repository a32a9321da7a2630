"""PettingZooLoop: parallel envs whose agents come and go."""

from __future__ import annotations

import functools
import importlib
import re
import sys
import types
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test
from pettingzoo.utils.conversions import parallel_to_aec

from recollect.base.spaces import sample
from recollect.envs import GroupedEnv, PettingZooLoop, make_grouped_env
from recollect.envs.factory import is_multi_agent
from recollect.envs.pettingzoo import find_pettingzoo
from recollect.errors import ConfigError, SpaceError
from tests.support.grouped_worlds import (
    EARLY,
    LAST_TWO,
    LATE,
    ONE_STEP,
    TOGETHER,
    Camp,
    Duo,
    Lives,
    by_hand,
    by_loop,
)
from tests.support.helpers import TensorWorld
from tests.support.worlds import Counter

SCRIPTS = {"together": TOGETHER, "early": EARLY, "last two": LAST_TWO, "late": LATE, "one step": ONE_STEP}
PAIRS = {"girls": ["cat", "ann"], "boys": "b*"}


@pytest.mark.parametrize("policies", ["shared", "independent", PAIRS], ids=str)
@pytest.mark.parametrize("lives", SCRIPTS.values(), ids=SCRIPTS)
def test_equals_stepping_by_hand(lives: Lives, policies: Any) -> None:
    """S001-29: observations, rewards, ends, ``first`` and ``valid`` of every agent in three slots."""
    env = PettingZooLoop([functools.partial(Camp, lives)] * 3, policies)
    assert isinstance(env, GroupedEnv)
    for seed in (4, 5):
        assert by_loop(env, 20, seed) == by_hand(functools.partial(Camp, lives), 3, 20, seed)


HOW = st.sampled_from(["terminated", "truncated", "both"])
LIFE = st.tuples(st.integers(0, 3), st.integers(1, 4), HOW).map(
    lambda life: (life[0], sum(life[:2]), life[2])
)


@given(ann=st.tuples(st.just(0), st.integers(1, 7), HOW), bob=LIFE, cat=LIFE, slots=st.integers(1, 3))
def test_any_lives(ann: Any, bob: Any, cat: Any, slots: int) -> None:
    """S001-29: the same for any time at which agents appear and end; some episodes end before all appear."""
    make = functools.partial(Camp, {"ann": ann, "bob": bob, "cat": cat})
    assert by_loop(PettingZooLoop([make] * slots, PAIRS), 15, 1) == by_hand(make, slots, 15, 1)


@pytest.mark.parametrize("lives", SCRIPTS.values(), ids=SCRIPTS)
def test_different_spaces(lives: Lives) -> None:
    """S001-29: bob sees and does more than the others, in a group of his own."""
    make = functools.partial(Camp, lives, wide=("bob",))
    env = PettingZooLoop([make] * 2, PAIRS)
    assert env.groups["boys"].observation_space.shape == (6,)
    assert env.groups["girls"].observation_space.shape == (5,)
    assert by_loop(env, 20, 1) == by_hand(make, 2, 20, 1)
    with pytest.raises(SpaceError, match="'ann' and 'bob'"):
        PettingZooLoop([make])


def test_a_dead_agent_row_by_row() -> None:
    """Cat dies in step 1, ann in step 2, bob's end in step 5 resets the slot, and all are first."""
    env = PettingZooLoop([Camp])
    env.reset(0)
    action = {"agents": torch.zeros(3, dtype=torch.int64)}
    steps = [
        (s.valid.tolist(), (s.terminated | s.truncated).tolist(), s.first.tolist())
        for s in play(env, action, 6)
    ]
    no, yes = [False] * 3, [True] * 3
    assert steps == [
        (yes, [False, False, True], no),
        ([True, True, False], [True, False, False], no),
        ([False, True, False], no, no),
        ([False, True, False], no, no),
        ([False, True, False], [False, True, False], yes),
        (yes, [False, False, True], no),
    ]


def play(env: PettingZooLoop, action: Any, steps: int) -> Any:
    return ((env.step(action))["agents"] for _ in range(steps))


def test_an_absent_row_stays_in_its_space() -> None:
    """The observation of a row without an agent is one of the space, and allows every action."""

    class Odd(Camp):
        def observation_space(self, agent: str) -> Any:
            return SPACE

        def _observe(self, agent: str, action: Any) -> Any:
            return {"id": 4, "far": np.full(2, 3.0, np.float32), "action_mask": np.array([0, 1, 0], np.int8)}

    parts = {
        "id": spaces.Discrete(4, start=3),
        "far": spaces.Box(2, 5, (2,)),
        "action_mask": spaces.Box(0, 1, (3,), np.int8),
    }
    SPACE = spaces.Dict(parts)
    env = PettingZooLoop([functools.partial(Odd, LATE)])
    obs = env.reset(0)["agents"]
    assert obs["id"].tolist() == [4, 3, 3]
    assert obs["far"].tolist() == [[3, 3], [2, 2], [2, 2]]
    assert obs["action_mask"].tolist() == [[0, 1, 0], [1, 1, 1], [1, 1, 1]]


def test_seeds_do_not_depend_on_other_slots() -> None:
    """Slots 1 and 2 of three, made alone, are those of the three; a seed repeats."""
    whole, part = PettingZooLoop([Camp] * 3), PettingZooLoop([Camp] * 2, first_slot=1)
    one = whole.reset(7)["agents"].clone()
    assert torch.equal(part.reset(7)["agents"], one[3:])
    assert not torch.equal(whole.reset(8)["agents"], one)
    assert torch.equal(whole.reset(7)["agents"], one)
    assert len(set(one[:, 3].tolist())) > 3  # the drawn numbers


def test_a_step_outlives_the_next() -> None:
    env = PettingZooLoop([Camp] * 2)
    env.reset(0)
    action = {"agents": torch.zeros(6, dtype=torch.int64)}
    step = env.step(action)["agents"]
    kept = step.obs.clone(), step.valid.clone(), step.info["step"].clone()
    env.step(action)
    assert torch.equal(step.obs, kept[0])
    assert torch.equal(step.valid, kept[1])
    assert torch.equal(step.info["step"], kept[2])


def test_final_observations_are_copied_before_the_reset() -> None:
    """An env that has one array for everything."""

    class OneArray(Camp):
        shared: Any = None

        def _observe(self, agent: str, action: Any) -> np.ndarray:
            self.shared = self.shared or {a: np.zeros(5, np.float32) for a in self.possible_agents}
            self.shared[agent][:] = super()._observe(agent, action)
            return self.shared[agent]

    make = functools.partial(OneArray, LAST_TWO)
    assert by_loop(PettingZooLoop([make] * 2), 12, 3) == by_hand(make, 2, 12, 3)


def test_infos() -> None:
    """Numbers that all agents of a group have reported; a dead agent keeps its last. Texts are left out."""
    env = PettingZooLoop([functools.partial(Camp, EARLY)] * 2, PAIRS)
    env.reset(0)
    action = {"girls": torch.zeros(4, dtype=torch.int64), "boys": torch.zeros(2, dtype=torch.int64)}
    steps = [env.step(action) for _ in range(3)]
    assert [step["girls"].info["step"].tolist() for step in steps] == [[1, 1] * 2, [2, 1] * 2, [2, 1] * 2]
    assert steps[2]["boys"].info["step"].tolist() == [3, 3]
    assert steps[2]["boys"].info.keys() == {"step"}
    late = PettingZooLoop([functools.partial(Camp, LATE)])
    late.reset(0)
    shown = [step.info.keys() for step in play(late, {"agents": torch.zeros(3, dtype=torch.int64)}, 3)]
    assert shown == [set(), set(), {"step"}]


class Masked(Camp):
    """Has its action masks in the infos: agent k may do k alone."""

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
        obs, _ = super().reset(seed)
        return obs, {a: {"action_mask": self._mask(a)} for a in self.agents}

    def step(self, actions: Any) -> Any:
        assert all(self.possible_agents.index(a) == action for a, action in actions.items())
        *rest, infos = super().step(actions)
        return *rest, {
            a: info | {"action_mask": self._mask(a)} for a, info in infos.items() if a in self.agents
        }

    def _mask(self, agent: str) -> np.ndarray:
        return np.eye(3, dtype=np.int8)[self.possible_agents.index(agent)]


def test_masks_of_infos() -> None:
    """They are part of the observation, at a reset too; a dead agent may do anything."""
    env = PettingZooLoop([functools.partial(Masked, EARLY)])
    space = env.groups["agents"].observation_space
    assert space == spaces.Dict({"action_mask": spaces.MultiBinary(3), "obs": Camp(EARLY)._seen["ann"]})
    assert env.reset(0)["agents"]["action_mask"].tolist() == torch.eye(3).tolist()
    step = env.step({"agents": torch.arange(3)})["agents"]
    assert step.obs["action_mask"].tolist() == [[1, 0, 0], [0, 1, 0], [1, 1, 1]]
    assert step.final_obs["obs"][2].tolist()[:3] == [2, 0, 1]
    env.step({"agents": torch.arange(3)})


def test_agents_with_other_ids() -> None:
    """PettingZoo allows any hashable as an agent's id; groups have its text."""

    class Numbered(Camp):
        def __init__(self) -> None:
            super().__init__({0: (0, 2, "terminated"), 1: (0, 3, "truncated")})  # pyright: ignore[reportArgumentType]

    env = PettingZooLoop([Numbered], {"x": "0", "y": "1"})
    env.reset(0)
    zero = torch.zeros(1, dtype=torch.int64)
    assert env.step({"x": zero, "y": zero})["y"].reward.tolist() == [1010]


# By name, callable and object -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "env",
    [Camp(), Camp, lambda: Camp(), parallel_to_aec(Camp()), lambda: parallel_to_aec(Camp())],
    ids="object class function aec-object aec-function".split(),
)
def test_every_way_to_give_one(env: Any) -> None:
    made = make_grouped_env(env, 1)
    assert by_loop(made, 8, 2) == by_hand(Camp, 1, 8, 2)
    made.close()


def test_factory() -> None:
    env = make_grouped_env(Camp, 3, policies=PAIRS, env_kwargs={"lives": LATE}, first_slot=2)
    assert env.num_envs == 3
    assert make_grouped_env(env, 3) is env
    assert is_multi_agent(env)
    for wrong, kwargs, words in [
        (env, {"num_envs": 2}, "num_envs is 2"),
        (env, {"num_envs": 3, "policies": "independent"}, "made already"),
        (Camp(), {"num_envs": 2}, "give a callable"),
        (Camp, {"num_envs": 0}, "num_envs is 0"),
        (Camp, {"num_envs": 1, "env_kwargs": {"size": 3}}, "Camp does not take the options.*env_kwargs"),
        ("CartPole-v1", {"num_envs": 1}, "leave it out"),
        (3, {"num_envs": 1}, "a int, which has no groups"),
        (types.ModuleType("empty"), {"num_envs": 1}, "neither parallel_env nor env"),
    ]:
        with pytest.raises(ConfigError, match=words):
            make_grouped_env(wrong, **kwargs)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ("pettingzoo/simple_v3", True),
        ("pettingzoo.sisl.pursuit_v5:parallel_env", True),
        (Camp, True),
        (Camp(), True),
        (parallel_to_aec(Camp()), True),
        (functools.partial(Camp, LATE), True),
        (importlib.import_module("mpe2.simple_v3"), True),
        (importlib.import_module("mpe2.simple_v3").parallel_env, True),
        (Duo(), True),
        ("CartPole-v1", False),
        (Counter, False),
        (Counter(), False),
        (TensorWorld(2), False),
        (lambda: Camp(), False),
    ],
)
def test_what_has_several_agents(env: Any, expected: bool) -> None:
    assert is_multi_agent(env) == expected


def test_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="did you mean 'pettingzoo/knights_archers_zombies_v11'"):
        find_pettingzoo("pettingzoo/knights_archers_zombies_v3")
    with pytest.raises(ConfigError, match=r"tictactoe_v3 is turn-based.*turn_based_aec_to_parallel"):
        make_grouped_env("pettingzoo/tictactoe_v3", 1)
    monkeypatch.setitem(sys.modules, "mpe2.simple_v3", None)
    with pytest.raises(ConfigError, match=r"simple_v3 cannot be imported.*pip install 'mpe2'"):
        find_pettingzoo("pettingzoo/simple_v3")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mpe2" else found(name))
    with pytest.raises(ConfigError, match="need the package mpe2"):
        find_pettingzoo("pettingzoo/simple_spread_v3")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'recollect[pettingzoo]'")):
        find_pettingzoo("pettingzoo/simple_spread_v3")


@pytest.mark.parametrize("lives", SCRIPTS.values(), ids=SCRIPTS)
def test_the_scripts_pass_pettingzoos_own_test(lives: Lives) -> None:
    parallel_api_test(Camp(lives), num_cycles=30)


# Envs by other people ---------------------------------------------------------------------------------------


def test_knights_archers_zombies() -> None:
    """Agents die at different times; a slot starts anew when the last is dead."""
    policies = {"archers": "archer_*", "knights": "knight_*"}
    env = make_grouped_env("pettingzoo/knights_archers_zombies_v11", 2, policies=policies)
    seen = real(env, 400)
    assert seen["terminated"] > 4
    assert seen["invalid"] > 0
    assert seen["first"] > 0
    assert seen["first"] % 4 == 0
    env.close()


def test_speaker_listener() -> None:
    """Two agents with spaces of their own, and ends by time for both."""
    env = make_grouped_env(
        "pettingzoo/simple_speaker_listener_v4", 3, policies="independent", env_kwargs={"max_cycles": 9}
    )
    assert env.groups["listener_0"].observation_space.shape == (11,)
    seen = real(env, 20)
    assert seen == {"terminated": 0, "truncated": 12, "invalid": 0, "first": 12}
    env.close()


def real(env: GroupedEnv, steps: int) -> dict[str, int]:
    """Counts over random steps."""
    env.reset(0)
    counts = dict.fromkeys(("terminated", "truncated", "invalid", "first"), 0)
    rng = np.random.default_rng(0)
    for _ in range(steps):
        actions = {
            name: sample(group.action_space, env.num_envs * len(group.agents), rng)
            for name, group in env.groups.items()
        }
        for step in env.step(actions).values():
            for name in ("terminated", "truncated", "first"):
                counts[name] += int(getattr(step, name).sum())
            counts["invalid"] += int((~step.valid).sum())
    return counts
