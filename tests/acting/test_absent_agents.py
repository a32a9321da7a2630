"""Agents that are dead, or not there yet, or never there: evaluations, recordings and infos."""

from __future__ import annotations

import pytest
import torch

from recollect.acting import recording
from recollect.acting.evaluate import evaluate
from recollect.acting.recording import record_env
from recollect.base.types import Step, Tree
from recollect.envs import make_env
from recollect.envs.contract import BatchedEnv, EnvWrapper
from recollect.errors import ConfigError
from tests.support.grouped_worlds import LATE, Camp, Lives
from tests.support.helpers import TensorWorld, make_actor, make_policy

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


def test_recording():
    """S001-29: the lives of each agent, from its own first step."""
    late = make({"ann": (2, 6, "terminated"), "bob": (0, 7, "truncated")}, 1)
    found = record_env(make_policy(late), late, episodes=2)
    assert [(one.agent, one.episode, one.start, len(one)) for one in found] == [
        *(("ann", 0, 2, 4), ("bob", 0, 0, 7)),
        *(("ann", 1, 2, 4), ("bob", 1, 0, 7)),
    ]
    for one in found:
        assert one.first.tolist() == [True] + [False] * (len(one) - 1)
        assert [step[0]["values"][2] for step in one.obs] == list(range(one.start, one.start + len(one)))
        assert one.returns[str(one.agent)] == one.return_
        assert (one.terminated, one.truncated, one.group) == (one.agent == "ann", one.agent == "bob", None)


def test_recording_of_one_agent(monkeypatch: pytest.MonkeyPatch):
    """S001-29: of one agent, also if others die later; if it never appears, an error."""
    late = make(LATE, 1)
    for wanted in ("bob", 1):
        found = record_env(make_policy(late), late, episodes=2, agents=[wanted])
        assert [(one.agent, one.episode, one.start, len(one)) for one in found] == [
            ("bob", 0, 2, 2),
            ("bob", 1, 2, 2),
        ]
        assert list(found[0].returns) == ["ann", "bob", "cat"]
    early = make({"ann": (0, 2, "terminated"), "bob": (0, 7, "truncated")}, 1)
    (cut,) = record_env(make_policy(early), early, episodes=2, agents=["ann"], max_steps=5)
    assert (len(cut), cut.terminated, cut.cut) == (2, True, False)
    monkeypatch.setattr(recording, "MAX_ABSENT", 50)
    never = make(NEVER, 1)
    assert [one.agent for one in record_env(make_policy(never), never)] == ["bob", "cat"]
    with pytest.raises(ConfigError, match=r"agent ann .*absence.*choose an agent"):
        record_env(make_policy(never), never, agents=["ann"])
    assert record_env(make_policy(never), never, agents=["ann"], cancelled=lambda: True) == []
    for wrong in ("anne", 3):
        with pytest.raises(ConfigError, match="its agents are ann, bob, cat"):
            record_env(make_policy(never), never, agents=[wrong])


class Pair(EnvWrapper):
    """The rows of two envs as the agents of one slot. Each starts its next episode at once."""

    def __init__(self) -> None:
        super().__init__(TensorWorld(2, lengths=(3, 5, 4)))
        self.num_envs, self.agents = 1, 2

    def reset(self, seed: int) -> Tree:
        return self.env.reset(seed)

    def step(self, action: Tree) -> Step:
        return self.env.step(action)


def test_recording_of_agents_that_start_anew_by_themselves():
    """Each is recorded from a first step to an end, and an episode waits for both."""
    env = Pair()
    found = record_env(make_policy(env), env, episodes=4)
    assert {one.agent for one in found} == {"0", "1"}
    for one in found:
        assert (len(one) in (3, 4, 5), one.cut, one.terminated or one.truncated) == (True, False, True)
        assert one.first.tolist() == [True] + [False] * (len(one) - 1)
    assert {one.episode for one in found} == {0, 1, 2, 3}


def test_infos_of_the_living():
    """S001-29: a dead agent's last number does not count; Camp reports the step of the episode."""
    env = make({"ann": (0, 6, "terminated"), "bob": (0, 2, "terminated"), "cat": (0, 1, "truncated")}, 3)
    actor = make_actor(env, make_policy(env), rollout=12, chunk=6)
    assert int(actor.collect().valid.sum()) == 3 * 2 * 9
    assert actor.info["info/step"] == pytest.approx(3.5)
    assert torch.equal(actor.collect().valid.sum(0), torch.tensor([12, 4, 2] * 3))
