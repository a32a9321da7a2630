"""Recurrent MAPPO: in each group of a team the critic sees the joint observation, the actor only its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.export.files import export_agent
from recollect.policy.policies import by_group
from tests.support.team_world import LENGTH, Alone, Team

SETTINGS: dict[str, Any] = {
    "num_envs": 16,
    "rollout": 16,
    "recurrent_mode": "full",
    "minibatches": 2,
    "core": {"name": "gru", "hidden": 16},
    "learning_rate": 5e-3,
    "critic": "separate",
    "threads": 1,
    "seed": 1,
    "progress": False,
}
JOINT: dict[str, Any] = {"critic_obs": ["team"]}


def trained(policies: str) -> rc.Agent:
    return rc.train(Team, policies=policies, steps=30_000, **JOINT, **SETTINGS)


@pytest.fixture(scope="module", params=["independent", "shared"])
def agent(request: pytest.FixtureRequest) -> rc.Agent:
    return trained(request.param)


def explained(agent: rc.Agent) -> list[float]:
    """The explained variance of the last updates, of each group."""
    names = [f"group/{group}/explained_variance" for group in agent.groups] or ["explained_variance"]
    return [float(np.mean([row[name] for row in agent.history.rows[-10:]])) for name in names]


def assert_explained(agent: rc.Agent) -> None:
    assert min(explained(agent)) > 0.9


def test_the_critic_sees_the_team(agent):
    """S001-29: it knows the luck of an episode, which no actor can; and the actors learn what they can."""
    assert_explained(agent)
    assert agent.evaluate(50, eval_mode="greedy", env=Alone).mean == pytest.approx(LENGTH)


def test_without_the_key_most_of_the_return_is_unexplained():
    """IPPO in the same env: nobody sees the luck."""
    blind = rc.train(Lucky, policies="independent", steps=30_000, **SETTINGS)
    assert max(explained(blind)) < 0.5


class Lucky(Team):
    """With the luck, and without the key."""

    def __init__(self) -> None:
        super().__init__()
        self._space = Alone()._space

    def _observe(self) -> dict[str, dict[str, np.ndarray]]:
        return {agent: {"own": found["own"]} for agent, found in super()._observe().items()}


def test_the_actor_does_not_see_the_team(agent):
    """Another ``team`` changes every value and no action."""
    for policy in by_group(agent.network).values():
        assert list(policy.actor_space.spaces) == ["own"]
        own, first = torch.eye(2)[torch.tensor([0, 1, 1])], torch.ones(3, dtype=torch.bool)
        state = policy.initial_state(3)
        with torch.no_grad():
            one, two = (
                policy.step({"own": own, "team": torch.tensor([[0.0, 1.0, luck, 0.0]] * 3)}, state, first)
                for luck in (-2.0, 2.0)
            )
        assert torch.equal(one[0].log_prob(torch.tensor([0, 1, 0])), two[0].log_prob(torch.tensor([0, 1, 0])))
        assert ((two[1] - one[1]).abs() > 1).all()


def test_acting_needs_no_key(agent, tmp_path: Path):
    """Evaluations, sessions, ``predict``, and the export of a group, which has no input for the team."""
    given = {"own": np.array([[1, 0]], np.float32)}
    for group in agent.groups or [""]:
        one = agent[group] if group else agent
        assert one.session(1).act(given).shape == (1,)
        assert one.predict(given, one.initial_state(1), True)[0].shape == (1,)
        file = export_agent(one, tmp_path / f"agent_{group}.pt2", "torch")
        about = json.loads(file.with_name(f"{file.name}.json").read_text())
        assert {part["name"] for part in about["inputs"]} == {"obs.own", "state", "first"}
    open_, closed = (agent.evaluate(8, seed=3, eval_mode="greedy", env=env) for env in (Team, Alone))
    assert (open_.lengths == closed.lengths).all()
