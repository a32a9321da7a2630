"""Agents that are dead, or not there yet, or never there: evaluations, recordings and infos."""

from __future__ import annotations

import pytest
import torch

from recollect.acting import trace
from recollect.acting.evaluate import evaluate
from recollect.acting.trace import record_env
from recollect.envs import make_env
from recollect.envs.contract import BatchedEnv
from recollect.errors import ConfigError
from tests.support.grouped_worlds import LATE, Camp, Lives
from tests.support.helpers import make_actor, make_policy

NEVER: Lives = {"ann": (9, 12, "terminated"), "bob": (0, 4, "truncated"), "cat": (0, 6, "terminated")}
"""Episodes are over before ann appears."""


def make(lives: Lives, slots: int = 2) -> BatchedEnv:
    return make_env(lambda: Camp(lives), slots)


@pytest.mark.parametrize(
    ("lives", "lengths"), [(LATE, [2, 2, 2, 2, 5, 5, 5, 5, 6, 6, 6, 6]), (NEVER, [4, 4, 4, 4, 6, 6, 6, 6])]
)
def test_evaluation(lives: Lives, lengths: list[int]):
    """S001-29: two lives of each agent in two slots; an agent that is absent from an episode misses it."""
    env = make(lives)
    found = evaluate(make_policy(env), env, episodes=12, max_steps=1000)
    assert sorted(found.lengths) == lengths
    assert len(found.returns) == len(lengths)


def test_an_evaluation_without_an_agent():
    env = make(NEVER)
    with pytest.raises(ConfigError, match=r"episodes = 1.*at least 3"):
        evaluate(make_policy(env), env, episodes=1, max_steps=1000)


def test_recording(monkeypatch: pytest.MonkeyPatch):
    """S001-29: the lives of the first agent, from its own first step; without it, an error."""
    late = make({"ann": (2, 6, "terminated"), "bob": (0, 7, "truncated")}, 1)
    found = record_env(make_policy(late), late, episodes=2)
    assert [(len(one), one.first.tolist()) for one in found] == [(4, [True, False, False, False])] * 2
    monkeypatch.setattr(trace, "MAX_ABSENT", 50)
    never = make(NEVER, 1)
    with pytest.raises(ConfigError, match=r"row 0.*List an agent first"):
        record_env(make_policy(never), never)
    assert record_env(make_policy(never), never, cancelled=lambda: True) == []


def test_infos_of_the_living():
    """S001-29: a dead agent's last number does not count; Camp reports the step of the episode."""
    env = make({"ann": (0, 6, "terminated"), "bob": (0, 2, "terminated"), "cat": (0, 1, "truncated")}, 3)
    actor = make_actor(env, make_policy(env), rollout=12, chunk=6)
    assert int(actor.collect().valid.sum()) == 3 * 2 * 9
    assert actor.info["info/step"] == pytest.approx(3.5)
    assert torch.equal(actor.collect().valid.sum(0), torch.tensor([12, 4, 2] * 3))
