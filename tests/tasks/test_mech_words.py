"""Observations and actions of the mech arena in words."""

from __future__ import annotations

import pytest
import torch

from recollect.base import spaces, tree
from recollect.base.types import Tree
from recollect.tasks import Task, make_task
from recollect.tasks.mech import words


def duel(spaces_: str, turned: float = 0.0) -> tuple[Task, dict[str, str]]:
    """Both mechs in the zone, six metres apart; blue looks ``turned`` to the right of red. What they see."""
    task = make_task("mech", 1, size="duel", maps=1, spaces=spaces_)
    task.reset(0)
    state = task.snapshot()
    state["x"][:], state["y"][:] = torch.tensor([[[-3.0], [3.0]]]), 0.0
    length = (1 + turned * turned) ** 0.5
    state["hx"][:] = torch.tensor([[[1 / length], [-1.0]]])
    state["hy"][:] = torch.tensor([[[-turned / length], [0.0]]])
    state["hp"][:, 0] *= 0.5
    state["z"].copy_(task.ground(state["x"], state["y"]))  # pyright: ignore[reportAttributeAccessIssue]
    task.restore(state)
    obs = task.step(spaces.zeros(task.action_space, 2)).obs
    return task, in_words(task, obs)


def in_words(task: Task, obs: Tree) -> dict[str, str]:
    """What each agent of slot 0 sees."""
    rows = [tree.index(obs, slice(i, i + 1)) for i in range(task.agents)]
    return dict(zip(task.agent_names, map(task.describe_row, rows)))


@pytest.mark.parametrize("kind", ["hybrid", "flat"])
def test_a_fight_in_the_zone(kind: str) -> None:
    task, seen = duel(kind, turned=1.0)
    assert seen["blue_0"] == (
        "medium with 50% hp, heat 0%, in the zone, contested, enemy medium 6 m ahead left (100% hp)"
    )
    assert seen["red_0"].endswith("in the zone, contested, enemy medium 6 m ahead (50% hp)")
    assert task.describe_row(task.restore(task.snapshot())) == seen["blue_0"]


def test_far_from_the_zone() -> None:
    """A game starts in a corner, without contacts; who takes no part sees nothing."""
    task = make_task("mech", 1, mechs=2, team=1, maps=1)
    seen = in_words(task, task.reset(3))
    assert seen["red_0"].startswith("heavy with 100% hp, heat 0%, zone ")
    assert seen["red_0"].endswith(" m ahead")
    assert seen["red_1"] == "destroyed"


@pytest.mark.parametrize(
    ("ahead", "left", "way"),
    [
        *((1, 0, "ahead"), (1, 1, "ahead left"), (0, 1, "left"), (-1, 1, "behind left"), (-1, 0, "behind")),
        *(
            (-1, -1, "behind right"),
            (0, -1, "right"),
            (1, -1, "ahead right"),
            (1, 0.3, "ahead"),
            (0, 0, "here"),
        ),
    ],
)
def test_eight_ways(ahead: float, left: float, way: str) -> None:
    assert words._way(ahead, left) == way
