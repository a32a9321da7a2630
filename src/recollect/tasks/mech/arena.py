"""The mech arena: the task, its state, and the order of events in a decision.

Tensors of mechs are [E, 2, N]: slots, sides (blue, red), mechs of a side. Those of pairs are [E, 2, N, N]:
mech i of a side against mech j of the *other* side, so that both sides are treated alike and swapping them
mirrors the game exactly. Rows are slot * 2N + side * N + mech.

Only operations that IEEE 754 rounds correctly are used (+, -, *, /, sqrt, comparisons), and sums over mechs
are of numbers that add without rounding: results do not depend on the batch, the order or the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.config.tasks import MechOptions
from recollect.tasks.base import Task
from recollect.tasks.mech import actions, body, damage, maps, movement, observe, projectiles, rewards
from recollect.tasks.mech import sensing, weapons, zone
from recollect.tasks.mech.rules import DECISION, SUBSTEPS


class MechArena(Task):
    """(written last)"""

    Options = MechOptions
    has_time_limit = True

    # Of the episode ------------------------------------------------------------------------------
    present: Tensor
    """[E, 2, N] bool: takes part in this game."""
    map: Tensor
    """[E] int64: number of the map in the pool."""
    radius: Tensor
    """[E]: radius of the zone, which is around the centre."""
    score: Tensor
    """[E, 2]: zone score of each side."""

    # Where mechs are -----------------------------------------------------------------------------
    x: Tensor
    y: Tensor
    z: Tensor
    """[E, 2, N]: metres from the centre; z: of the feet, above the lowest level of all maps."""
    hx: Tensor
    hy: Tensor
    """[E, 2, N]: heading, a unit vector."""
    vx: Tensor
    vy: Tensor
    vz: Tensor
    """[E, 2, N]: velocity over the last simulation step, m/s."""

    # How they are --------------------------------------------------------------------------------
    hp: Tensor
    """[E, 2, N]: hit points; at 0 the mech is destroyed."""
    legs: Tensor
    heat: Tensor
    stability: Tensor
    down: Tensor
    """[E, 2, N]: seconds until it rises from a fall; 0: it stands."""
    suppressed: Tensor
    """[E, 2, N]: seconds of suppression left."""
    cooldown: Tensor
    """[E, 2, N, MOUNTS]: seconds until a mount can fire again."""
    painted: Tensor
    """[E, 2, N]: seconds that it stays painted; 0: it is not."""
    painter: Tensor
    """[E, 2, N] int64: the enemy that painted it last."""
    owes_assist: Tensor
    """[E, 2, N] bool: its present paint has not yet earned an assist."""

    # What they chose, in force until the next decision -------------------------------------------
    ewar: Tensor
    """[E, 2, N] int64: OFF, ECM, ECCM."""
    sort: Tensor
    """[E, 2, N] int64: order of contacts: nearest, weakest, heaviest first."""
    hostile_only: Tensor
    """[E, 2, N] bool: all contact slots are for enemies."""
    message: Tensor
    """[E, 2, N, WORDS]: said in the last decision, heard with this observation."""

    # What they see -------------------------------------------------------------------------------
    sees: Tensor
    """[E, 2, N, N] bool: sight of enemies, at the last observation."""
    contact: Tensor
    """[E, 2, N, CONTACTS] int64: the mech in each contact slot: 0..N-1 own, N..2N-1 enemies, -1 none."""

    # Shots and smoke -----------------------------------------------------------------------------
    shot_x: Tensor
    shot_y: Tensor
    shot_z: Tensor
    shot_vx: Tensor
    shot_vy: Tensor
    shot_vz: Tensor
    """[E, 2, N, SHOTS]: of each mech."""
    shot_left: Tensor
    """[E, 2, N, SHOTS]: seconds that it may still fly; 0: there is none."""
    shot_target: Tensor
    """[E, 2, N, SHOTS] int64: the enemy that a missile follows; -1: none."""
    smoke_x: Tensor
    smoke_y: Tensor
    smoke_left: Tensor
    """[E, 2, N, CLOUDS]: seconds until a cloud is gone; above SMOKE_LASTS it is still a shell; 0: none."""

    # Bookkeeping ---------------------------------------------------------------------------------
    potential: Tensor
    """[E, 2, N]: of the reward for approach, at the last decision."""
    dealt: Tensor
    """[E, 2, N, N]: damage of mech i to enemy j in this game."""
    won: Tensor
    """[E]: result of the slot's last game: 1 blue, -1 red, 0 draw or none yet. Survives resets."""
    games: Tensor
    """[E] int64: games that the slot has finished. Survives resets."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.options = chosen = MechOptions(**options)
        self.mechs, limit, pool = chosen.numbers()
        self.agents = 2 * self.mechs
        observed, acted = observe.space(self), actions.space(chosen)
        super().__init__(num_envs, device, observed, acted, round(limit / DECISION))
        ...

    def _advance(self, action: Any) -> tuple[Tensor, Tensor]:
        alive = self.alive
        orders = actions.decode(self, action)  # also sets ewar, sort, hostile_only, message
        tally = damage.Tally.of(self)  # what this decision does: damage, kills, assists
        for _ in range(SUBSTEPS):
            active = body.active(self)  # alive, standing, not shut down
            movement.move(self, orders, active)
            hits = weapons.fire(self, orders, active)
            projectiles.fly(self, hits)
            damage.apply(self, hits, tally)
            body.recover(self, orders)
        sensing.update(self)  # sees, painted that ran out, contact
        ticks = zone.tick(self)
        reward = rewards.of(self, tally, ticks, alive)
        return reward.flatten(), zone.is_over(self, reward)
