"""The tensor program beside the slow truth, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from recollect.base.types import Step
from recollect.tasks.mech import MechArena, exact, maps
from recollect.tasks.mech.bot import MechBot
from tests.reference.mech import World
from tests.reference.mech_senses import observe
from tests.tasks.mech import scenes

FLYING = ("shot_x", "shot_y", "shot_z", "shot_vx", "shot_vy", "shot_vz", "shot_target")
"""Compared for shots under way only."""


def world_of(task: MechArena, slot: int) -> World:
    fields = {name: tensor[slot].numpy() for name, tensor in task.snapshot().items()}
    heights = task.heights.view(-1, maps.SIDE, maps.SIDE)[int(task.map[slot])].numpy()
    return World(fields, heights, task.options, task.max_episode_steps, int(task.age[slot]))


def compare(task: MechArena, action: scenes.Action) -> tuple[Step, list[World]]:
    """A decision by both."""
    worlds = [world_of(task, slot) for slot in range(task.num_envs)]
    each = {name: part.view(task.num_envs, 2, task.mechs, -1).numpy() for name, part in action.items()}
    coarse = [task.coarse[int(number)].numpy() for number in task.map]
    step = task.step(action)
    state = task.snapshot()
    vector = step.final_obs["vector"].view(task.num_envs, 2, task.mechs, -1).numpy()
    rows = {
        name: value.view(task.num_envs, 2, task.mechs).numpy()
        for name, value in {"reward": step.reward, **step.info}.items()
    }
    for slot, world in enumerate(worlds):
        told = {m.key: {name: _own(name, part[slot][m.key]) for name, part in each.items()} for m in world}
        with np.errstate(invalid="ignore", over="ignore"):
            outcome = world.decide(told)
        for m in world:
            np.testing.assert_array_equal(
                vector[slot][m.key], observe(world, m, coarse[slot]), f"observation of {m.key}"
            )
            assert rows["reward"][slot][m.key] == outcome.reward[m.key], "reward"
            for part, value in outcome.parts[m.key].items():
                assert rows[f"reward_{part}"][slot][m.key] == value, part
        ended = outcome.is_over or world.age >= world.limit
        assert bool(task.age[slot] == 0) == ended, "end"
        assert float(state["won"][slot]) == world.won
        assert int(state["games"][slot]) == world.games
        if not ended:
            _same_state(world, {name: tensor[slot].numpy() for name, tensor in state.items()})
    return step, worlds


def _own(name: str, part: np.ndarray) -> Any:
    return part if name in ("move", "fire", "message", "hostile_only") else int(part[0])


def _same_state(world: World, state: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(state["score"], world.score, "score")
    mine = world.fields()
    flies, is_painted, smokes = (mine[name] > 0 for name in ("shot_left", "painted", "smoke_left"))
    for name, value in mine.items():
        where = np.ones_like(value, bool)
        if name in FLYING:
            where = flies
        elif name in ("smoke_x", "smoke_y"):
            where = smokes
        elif name in ("owes_assist", "painter"):
            where = is_painted
        np.testing.assert_array_equal(state[name][where], value[where], name)


def test_square_roots_are_rounded() -> None:
    """As NumPy does it; torch's own is off by a bit at times on some processors."""
    numbers = torch.rand(10_000, generator=torch.Generator().manual_seed(0)) * 100
    assert exact.root(numbers).numpy().tolist() == np.sqrt(numbers.numpy()).tolist()


@pytest.mark.parametrize("sensing", ["partial", "full"])
@pytest.mark.parametrize("mechs", scenes.SIZES)
def test_planted_states(mechs: int, sensing: str) -> None:
    """In states in which everything happens at once, also with actions beyond their bounds."""
    task = scenes.arena(mechs, 3 if mechs < 10 else 1, sensing=sensing, limit=4, win_reward=2.0)
    generator = torch.Generator().manual_seed(mechs)
    for seed in range(4):
        task.reset(seed)
        scenes.plant(task, seed, 8.0 + 1.5 * mechs)
        for _ in range(3):
            compare(task, scenes.at_random(task, generator))


@pytest.mark.slow
@pytest.mark.parametrize("mechs", scenes.SIZES)
def test_many_planted_states(mechs: int) -> None:
    """As above, on many maps."""
    for seed in range(100, 200):
        task = scenes.arena(mechs, 2, sensing=("partial", "full")[seed % 2], limit=4, map_seed=seed)
        generator = torch.Generator().manual_seed(seed)
        task.reset(seed)
        scenes.plant(task, seed, 8.0 + 1.5 * mechs)
        for _ in range(4):
            compare(task, scenes.at_random(task, generator))


@pytest.mark.parametrize("mechs", scenes.SIZES)
def test_games_of_bots(mechs: int) -> None:
    """In the course of games: from the first decision, across the time limit, with absent mechs."""
    task = scenes.arena(mechs, 2, limit=7, team=max(1, mechs - 1))
    bot, generator = MechBot(task), torch.Generator().manual_seed(mechs)
    task.reset(mechs)
    for t in range(29):
        if t == 2:
            scenes.plant(task, mechs, 30.0)
        action = scenes.mixed(task, bot, generator, 0.1)
        if t < 2 or t % 8 == 0 or t == 27:
            compare(task, action)
        else:
            task.step(action)
    assert task.games.sum() > 0
