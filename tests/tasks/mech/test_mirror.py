"""Blue and red are alike: a game that is turned by half a turn, with sides swapped, is the same game."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recollect.base import tree
from recollect.tasks.mech import MechArena, maps
from recollect.tasks.mech.bot import MechBot
from tests.tasks.mech import scenes


def mirror_slots(task: MechArena) -> None:
    """The second half of the slots become the mirror images of the first."""
    half = task.num_envs // 2
    state = {name: value[:half] for name, value in task.snapshot().items()}
    images = scenes.mirrored(state)
    task.restore({name: torch.cat([value, images[name]]) for name, value in state.items()})


def assert_mirrored(task: MechArena) -> None:
    half = task.num_envs // 2
    state = task.snapshot()
    images = scenes.mirrored({name: value[:half] for name, value in state.items()})
    for name, value in state.items():
        assert torch.equal(value[half:], images[name]), name


def other_half(task: MechArena, rows: Tensor) -> Tensor:
    """[B, ...]: the rows of the first slots, and their images."""
    first = rows[: len(rows) // 2]
    return torch.cat([first, scenes.swapped(task, first)])


def check_game(mechs: int, steps: int = 62, **options) -> None:
    task = scenes.arena(mechs, 4, limit=11, **options)
    bot, generator = MechBot(task, 0.9), torch.Generator().manual_seed(mechs)
    # The bots of an image draw the numbers of those whose images they are.
    lanes = bot._lanes.expand(4, -1).reshape(-1)
    bot._lanes = other_half(task, lanes).view(4, -1)
    task.reset(mechs)
    mirror_slots(task)
    for t in range(steps):
        if t == 6:
            scenes.plant(task, 7 + mechs, 26.0)
            mirror_slots(task)
        action = bot.play()
        for name, part in action.items():
            assert torch.equal(part, other_half(task, part)), f"bots differ: {name}"
        wild = other_half(task, torch.rand(len(action["ewar"]), generator=generator) < 0.25)
        rough = tree.map(lambda part: other_half(task, part), scenes.at_random(task, generator))
        action = {
            name: torch.where(wild.view(-1, *(1,) * (part.dim() - 1)), rough[name], part)
            for name, part in action.items()
        }
        step = task.step(action)
        assert_mirrored(task)
        for leaf in (*tree.leaves(step.obs), *tree.leaves(step.final_obs), step.reward, step.valid):
            assert torch.equal(leaf, other_half(task, leaf))
        for flag in (step.first, step.terminated, step.truncated):
            assert torch.equal(flag, other_half(task, flag))
        for name, value in step.info.items():
            assert torch.equal(value.nan_to_num(), other_half(task, value).nan_to_num()), name
    assert task.games.sum() > 0


@pytest.mark.parametrize("mechs", scenes.SIZES)
def test_swapping_sides_mirrors_the_game(mechs: int) -> None:
    """Bit for bit: states, observations, rewards, ends and resets, and what bots choose."""
    check_game(mechs)


def test_maps_are_symmetric() -> None:
    """About their centre, and so is the coarse map, which both sides see unturned."""
    heights = maps.make(6, 3)
    assert torch.equal(heights, heights.flip(1))
    coarse = maps.coarse(heights)
    assert torch.equal(coarse, coarse.flip(1))
    assert 0.01 < coarse.mean() < 0.5


def test_cells_are_mirrored() -> None:
    """Also at edges of cells; the centre itself belongs to one side."""
    at = torch.cat([torch.rand(1000) * 50, torch.arange(1, 50).float(), torch.tensor([49.5, 50.0, 70.0])])
    x, y = at, at.flip(0)
    last = maps.SIDE**2 - 1
    for sx, sy in ((1, 1), (1, -1)):
        assert torch.equal(maps.cell(-sx * x, -sy * y).long(), last - maps.cell(sx * x, sy * y).long())
    inner = torch.tensor([0.5, -0.5, 3.7, -3.7, 49.4, -49.4])
    index = maps.cell(inner, torch.full_like(inner, -49.5)).long()
    assert index.tolist() == [50, 49, 53, 46, 99, 0]
