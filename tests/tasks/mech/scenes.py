"""Games of the mech arena for tests: ways to play, states that were planted, single mechs by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import Step
from recollect.tasks import make_task
from recollect.tasks.mech import MechArena, actions, maps, sensing
from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.rules import CLOUDS, MOUNTS, SHOTS, WORDS

SIZES = (1, 3, 5, 10)
Action = dict[str, Tensor]


def arena(mechs: int = 5, num_envs: int = 1, **options: Any) -> MechArena:
    """An arena with a small pool of maps."""
    task = make_task("mech", num_envs, **({"mechs": mechs, "maps": 2} | options))
    assert isinstance(task, MechArena)
    return task


def idle(task: MechArena) -> Action:
    """Actions [B, ...] that do nothing."""
    rows = task.num_envs * task.agents
    return {
        "move": torch.zeros(rows, actions.MOVES),
        "fire": torch.zeros(rows, actions.TRIGGERS, dtype=torch.int8),
        "target": torch.full((rows,), actions.NO_TARGET),
        "ewar": torch.zeros(rows, dtype=torch.int64),
        "sort": torch.zeros(rows, dtype=torch.int64),
        "hostile_only": torch.zeros(rows, 1, dtype=torch.int8),
        "message": torch.zeros(rows, WORDS),
    }


def at_random(task: MechArena, generator: torch.Generator) -> Action:
    """Actions [B, ...] of every kind; triggers are mostly pulled, numbers also beyond their bounds."""
    rows = task.num_envs * task.agents

    def whole(below: int) -> Tensor:
        return torch.randint(0, below, (rows,), generator=generator)

    def flags(count: int, share: float) -> Tensor:
        return (torch.rand(rows, count, generator=generator) < share).to(torch.int8)

    move = torch.randn(rows, actions.MOVES, generator=generator)
    fire = flags(actions.TRIGGERS, 0.6)
    fire[:, -1] = flags(1, 0.3).squeeze(1)
    return {
        "move": move * flags(actions.MOVES, 0.8),
        "fire": fire,
        "target": whole(actions.TARGETS),
        "ewar": whole(actions.MODES),
        "sort": whole(actions.ORDERS),
        "hostile_only": flags(1, 0.7),
        "message": torch.randn(rows, WORDS, generator=generator),
    }


def mixed(task: MechArena, bot: MechBot, generator: torch.Generator, share: float = 0.3) -> Action:
    """Actions of the bot, a ``share`` of the rows at random."""
    wild = torch.rand(task.num_envs * task.agents, generator=generator) < share
    return tree.map(
        lambda mine, other: torch.where(wild.view(-1, *(1,) * (mine.dim() - 1)), other, mine),
        bot.play(),
        at_random(task, generator),
    )


def plant(task: MechArena, seed: int, width: float = 24.0) -> None:
    """Put all mechs into a square of this width, in every state: hot, fallen, painted, in the air, dead,
    with shots and smoke under way. At least one mech of each side lives."""
    generator = torch.Generator().manual_seed(seed)
    shape = task.x.shape

    def unit(*more: int) -> Tensor:
        return torch.rand((*shape, *more), generator=generator)

    def among(values: list[float], *more: int) -> Tensor:
        return torch.tensor(values)[torch.randint(0, len(values), (*shape, *more), generator=generator)]

    centre = torch.rand(2, task.num_envs, 1, 1, generator=generator) * 60 - 30
    task.x.copy_(centre[0] + (unit() - 0.5) * width)
    task.y.copy_(centre[1] + (unit() - 0.5) * width)
    task.z.copy_(task.ground(task.x, task.y) + among([0, 0, 0, 0, 0.5, 3, 7.9]))
    # Many look at an enemy.
    aim = torch.randint(0, task.mechs, shape, generator=generator)
    ahead, left = (task.theirs(at).gather(2, aim) - at for at in (task.x, task.y))
    angle = torch.atan2(left, ahead) + (unit() - 0.5) * among([0.5, 1, 7])
    task.hx.copy_(angle.cos())
    task.hy.copy_(angle.sin())
    for name in ("vx", "vy", "vz"):
        getattr(task, name).copy_((unit() - 0.5) * 6)
    lives = (unit() < 0.9) | (task.enemies == torch.randint(0, task.mechs, (1,), generator=generator))
    task.hp.copy_((task.tables.hp * unit() * among([0.5, 4, 8])).ceil() / 8 * lives)
    task.legs.copy_((task.tables.leg_hp * unit() * 8).ceil() / 8 * among([0, 1, 1, 1]))
    task.heat.copy_(task.tables.heat_cap * among([0, 0.3, 0.5, 0.8, 0.95, 1.05]))
    task.stability.copy_(among([1, 20, 49, 60, 99.8, 100]))
    task.down.copy_(among([0, 0, 0, 0, 0, 0.05, 0.2, 2.0]))
    task.suppressed.copy_(among([0, 0, 0.1, 1.2]))
    task.painted.copy_(among([0, 0, 0.15, 5.0]))
    task.painter.copy_(torch.randint(0, task.mechs, shape, generator=generator))
    task.owes_assist.copy_((task.painted > 0) & (unit() < 0.6))
    task.cooldown.copy_(among([0, 0, 0, 0.1, 0.6, 3.0], MOUNTS).minimum(task.tables.cooldown))
    task.ewar.copy_(task.tables.is_scout * among([0, 1, 2]).long())
    flies = among([0, 0, 0.05, 0.45], SHOTS) * task.tables.shot_exists
    task.shot_left.copy_(flies)
    target = task.theirs(task.x).gather(2, torch.randint(0, task.mechs, shape, generator=generator))
    task.shot_x.copy_(target.unsqueeze(3) + (unit(SHOTS) - 0.5) * 8)
    task.shot_y.copy_(task.y.unsqueeze(3) + (unit(SHOTS) - 0.5) * 16)
    task.shot_z.copy_(task.ground(task.shot_x.flatten(2), task.shot_y.flatten(2)).view(flies.shape) + 1.0)
    way = unit(SHOTS) * (2 * torch.pi)
    task.shot_vx.copy_(way.cos() * task.tables.shot_speed)
    task.shot_vy.copy_(way.sin() * task.tables.shot_speed)
    task.shot_vz.zero_()
    task.shot_target.copy_(torch.randint(0, task.mechs, flies.shape, generator=generator))
    task.smoke_left.copy_(among([0, 0, 0, 0, 9.0, 10.3], CLOUDS))
    task.smoke_x.copy_(task.x.unsqueeze(3) + (unit(CLOUDS) - 0.5) * 30)
    task.smoke_y.copy_(task.y.unsqueeze(3) + (unit(CLOUDS) - 0.5) * 30)
    task.score.copy_(among([0, 0.5, 0.99])[:, :, 0] * (task.max_episode_steps / 8))
    sensing.update(task)


# By hand ---------------------------------------------------------------------------------------------------

HEAVY, MEDIUM, SECOND, LIGHT, SCOUT = range(5)
"""The mechs of a pack."""


def stage(*placed: tuple[int, int, float, float, float, float], **options: Any) -> MechArena:
    """A game on flat ground of only the mechs ``placed``: (side, number, x, y, heading x, heading y).

    Beside them, one mech of each side lives far from everything, so that the game goes on: the light.
    """
    task = arena(**({"mechs": 5, "maps": 1} | options))
    task.reset(0)
    task.heights.zero_()
    task.radius.fill_(5.0)
    task.hp.zero_()
    task.z.zero_()
    for side, sign in enumerate((-1, 1)):
        put(task, side, min(LIGHT, task.mechs - 1), sign * 48.0, sign * 48.0)
    for side, number, *rest in placed:
        put(task, side, number, *rest)
    sensing.update(task)
    return task


def put(
    task: MechArena, side: int, number: int, x: float, y: float, hx: float = 1.0, hy: float = 0.0
) -> None:
    """Move a mech; it becomes whole."""
    at = (0, side, number)
    for name, value in (("x", x), ("y", y), ("hx", hx), ("hy", hy)):
        getattr(task, name)[at] = value
    task.hp[at], task.legs[at] = task.tables.hp[number], task.tables.leg_hp[number]


def act(task: MechArena, orders: dict[tuple[int, int], dict[str, Any]] | None = None) -> Step:
    """A decision in which the mechs (side, number) act as told and the others do nothing."""
    action = idle(task)
    for (side, number), told in (orders or {}).items():
        row = side * task.mechs + number
        for name, value in told.items():
            if name == "fire":
                for trigger in value:
                    action["fire"][row, trigger] = 1
            else:
                action[name][row] = torch.as_tensor(value, dtype=action[name].dtype)
    return task.step(action)


def wall(task: MechArena, x: float, y: float, height: float = 5.0) -> None:
    """Raise the cell at (x, y) on all maps."""
    at = int(maps.cell(torch.tensor(x), torch.tensor(y)))
    task.heights.view(-1, maps.SIDE**2)[:, at] = height


# Whole states ----------------------------------------------------------------------------------------------

TURNED = (
    *("x", "y", "hx", "hy", "vx", "vy", "shot_x", "shot_y", "shot_vx", "shot_vy"),
    *("smoke_x", "smoke_y", "won"),
)
"""The fields whose sign changes when the arena is turned about its centre and sides are swapped."""
WHOLE = ("map", "radius", "root", "episode", "age", "key", "won", "games", "win_weight")
"""The fields without an axis of sides."""


def mirrored(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The snapshot of the same game, turned by half a turn about the centre, with sides swapped."""
    found = {}
    for name, value in state.items():
        value = value if name in WHOLE else value.flip(1)
        found[name] = -value if name in TURNED else value
    return found


def swapped(task: MechArena, rows: Tensor) -> Tensor:
    """Values of all rows [B, ...] with the sides of each slot swapped."""
    return rows.view(-1, 2, task.mechs, *rows.shape[1:]).flip(1).reshape(rows.shape)


def parts_of(step: Step) -> dict[str, Tensor]:
    """The parts of the reward, by name."""
    found = {name: value for name, value in step.info.items() if name.startswith("reward_")}
    return {name.removeprefix("reward_"): value for name, value in found.items() if "_of_" not in name}


def squares(task: MechArena) -> Tensor:
    """[E, 2, N, N]: squared distances of enemies now."""
    deltas = (task.theirs(at).unsqueeze(2) - at.unsqueeze(3) for at in (task.x, task.y, task.z))
    dx, dy, dz = deltas
    return dx * dx + dy * dy + dz * dz
