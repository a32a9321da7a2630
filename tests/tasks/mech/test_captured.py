"""The path of a GPU, which takes all pairs and all shots and reads nothing on the host, on the CPU."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.tasks.mech.bot import MechBot
from tests.support.reads import unread
from tests.tasks.mech import scenes


@pytest.mark.parametrize("mechs", [3, 6])
def test_the_path_of_a_gpu_plays_the_same_game(mechs: int) -> None:
    """Bit for bit, with resets in between."""
    check_paths(mechs)


def check_paths(mechs: int, steps: int = 11) -> None:
    lists, whole = (scenes.arena(mechs, 3, limit=2) for _ in range(2))
    lists.reset(0)
    scenes.plant(lists, 2, 12.0)
    whole.restore(lists.snapshot())
    bots, generator = (MechBot(lists), MechBot(whole)), torch.Generator().manual_seed(0)
    for t in range(steps):
        scripted = bots[0].play()
        with unread():
            other = bots[1].play()
        for name, part in scripted.items():
            assert torch.equal(part, other[name]), name
        action = scripted if t % 2 else scenes.at_random(lists, generator)
        one = lists.step(action)
        with unread():
            two = whole.step(action)
        for name, value in lists.snapshot().items():
            assert torch.equal(value, whole.snapshot()[name]), name
        for a, b in zip(tree.leaves((one.obs, one.final_obs)), tree.leaves((two.obs, two.final_obs))):
            assert torch.equal(a, b)
        for name in ("first", "reward", "terminated", "truncated", "valid"):
            assert torch.equal(getattr(one, name), getattr(two, name)), name
