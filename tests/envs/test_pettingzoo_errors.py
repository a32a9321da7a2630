"""PettingZooLoop: envs that break PettingZoo's rules, and calls that cannot be meant."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch

from recollect.envs import PettingZooLoop
from recollect.errors import ConfigError, EnvError, SpaceError
from tests.support.grouped_worlds import EARLY, TOGETHER, Camp, Lives, by_hand, by_loop
from tests.support.worlds import Counter

PAIRS = {"girls": ["cat", "ann"], "boys": "b*"}


class Faulty(Camp):
    """Changes a result of step 2 by a function of the env and the five dicts."""

    def __init__(self, change: Any, lives: Lives = TOGETHER):
        super().__init__(lives)
        self.change = change

    def step(self, actions: Any) -> Any:
        result = super().step(actions)
        if self.now == 2:
            changed = self.change(self, *result)
            return result if changed is None else changed
        return result


def put(place: int, agent: str, value: Any) -> Any:
    return lambda env, *result: result[place].__setitem__(agent, value)


def drop(place: int, agent: str) -> Any:
    return lambda env, *result: [result[place].pop(agent)].clear()


def ends(env: Camp, obs: Any, rewards: Any, terminated: Any, truncated: Any, infos: Any) -> None:
    terminated["bob"] = True  # and it stays in agents


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(0, "bob", np.zeros(4, np.float32)), r"agent 'bob': the observation has shape \(4,\)"),
        (put(0, "bob", {"x": 1}), "agent 'bob': the observation is a dict"),
        (put(1, "bob", math.nan), "agent 'bob': the reward is nan"),
        (put(1, "bob", "much"), "agent 'bob': the reward is 'much'"),
        (put(2, "bob", 1), "agent 'bob': terminated is 1 .*not a bool"),
        (put(4, "bob", "?"), "agent 'bob': its info is a str"),
        (drop(0, "bob"), "agent 'bob': observations has no entry"),
        (drop(1, "bob"), "agent 'bob': rewards has no entry"),
        (drop(3, "bob"), "agent 'bob': truncations has no entry"),
        (lambda env, *r: r[:4], "step returned 4 values"),
        (lambda env, *r: (list(r[0]), *r[1:]), "observations is a list, not a dict"),
        (lambda env, *r: env.agents.append("eve"), "agents has 'eve', which is not in possible_agents"),
        (lambda env, *r: env.agents.remove("bob"), "agent 'bob': it is no longer in agents"),
        (lambda env, *r: env.agents.clear(), "agent 'ann': it is no longer in agents"),
        (ends, "agent 'bob': it has ended in this step, and is still in agents"),
        (lambda env, *r: 1 / 0, r"step\(.*\) raised ZeroDivisionError"),
    ],
)
def test_bad_steps(change: Any, words: str) -> None:
    """The error names the env, the step and the agent; a reset goes on."""
    env = PettingZooLoop([functools.partial(Faulty, change)], first_slot=4)
    action = {"agents": torch.zeros(3, dtype=torch.int64)}
    for _ in range(2):
        env.reset(0)
        env.step(action)
        with pytest.raises(EnvError, match=rf"env 4 \(camp_v0\), step 2.*{words}"):
            env.step(action)


def test_an_agent_does_not_come_back() -> None:
    env = PettingZooLoop([functools.partial(Faulty, lambda env, *r: env.agents.append("cat"), EARLY)])
    env.reset(0)
    env.step({"agents": torch.zeros(3, dtype=torch.int64)})
    with pytest.raises(EnvError, match="agent 'cat': it is in agents again after its end"):
        env.step({"agents": torch.zeros(3, dtype=torch.int64)})


def test_last_observations_that_are_missing() -> None:
    """A terminated agent needs none; the value of a truncated one is estimated from it."""
    lives = {"ann": (0, 2, "terminated"), "bob": (0, 2, "truncated")}
    action = {"agents": torch.zeros(2, dtype=torch.int64)}
    env = PettingZooLoop([functools.partial(Faulty, drop(0, "ann"), lives)])
    env.reset(0)
    env.step(action)
    assert env.step(action)["agents"].final_obs.tolist()[0] == [0] * 5
    env = PettingZooLoop([functools.partial(Faulty, drop(0, "bob"), lives)])
    env.reset(0)
    env.step(action)
    with pytest.raises(EnvError, match="agent 'bob': it is truncated, and observations has no entry"):
        env.step(action)


def test_an_env_that_keeps_its_agents_at_the_end() -> None:
    """All have ended: that is the end of the episode, whatever ``agents`` says."""

    class Keeps(Camp):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            self.agents = self.agents or list(self.possible_agents)
            return result

    env = PettingZooLoop([functools.partial(Keeps, TOGETHER)])
    assert by_loop(env, 8, 0) == by_hand(functools.partial(Camp, TOGETHER), 1, 8, 0)


def test_bad_resets() -> None:
    class Empty(Camp):
        def reset(self, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed)
            self.agents = []
            return {}, {}

    class Old(Camp):
        def reset(self, seed: Any = None, options: Any = None) -> Any:
            return super().reset(seed)[0]

    with pytest.raises(EnvError, match="agents is empty after a reset"):
        PettingZooLoop([Empty]).reset(0)
    with pytest.raises(EnvError, match=r"reset returned a dict, not \(observations, infos\)"):
        PettingZooLoop([Old])  # which is reset once, to see whether it has masks in its infos


def test_bad_spaces() -> None:
    class Lacks(Camp):
        def action_space(self, agent: str) -> Any:
            return None

    with pytest.raises(SpaceError, match=r"agent 'ann' of camp_v0 are .*return gymnasium spaces"):
        PettingZooLoop([Lacks])
    twins: Any = {1: (0, 2, "terminated"), "1": (0, 2, "terminated")}
    with pytest.raises(SpaceError, match="their texts must differ"):
        PettingZooLoop([functools.partial(Camp, twins)])


def test_bad_calls() -> None:
    env = PettingZooLoop([Camp], PAIRS)
    boys, girls = torch.zeros(1, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)
    with pytest.raises(EnvError, match="call reset"):
        env.step({"boys": boys, "girls": girls})
    env.reset(0)
    with pytest.raises(EnvError, match=r"the actions of \['girls'\]: give those of girls, boys"):
        env.step({"girls": girls})
    with pytest.raises(SpaceError, match="the action"):
        env.step({"boys": boys, "girls": boys})
    env.step({"boys": boys, "girls": girls})  # nothing was lost
    with pytest.raises(ConfigError, match="num_envs is 0"):
        PettingZooLoop([])
    camp = Camp()
    with pytest.raises(EnvError, match="in use already"):
        PettingZooLoop([lambda: camp] * 2)
    sizes = iter([(), ("ann",)])
    with pytest.raises(SpaceError, match=r"env 1 and env 0 differ in .* the spaces of ann"):
        PettingZooLoop([lambda: Camp(wide=next(sizes))] * 2, "independent")
    with pytest.raises(EnvError, match="returned a Counter, not a PettingZoo env"):
        PettingZooLoop([Counter])
