"""The scripted player: goes to the zone with its pack, turns to the nearest enemy, fires, vents, smokes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import Tree
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.mech import actions, exact, sensing, zone
from recollect.tasks.mech.rules import ECCM, ECM, HEAVY, LIGHT, MEDIUM, SCOUT, STEP_UP, WORDS

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena

PREFERRED = {SCOUT: 8.0, LIGHT: 4.0, MEDIUM: 7.0, HEAVY: 10.0}
"""Metres to the enemy that a class fights at."""
HOT, WARM = 0.75, 0.4
"""Shares of the heat cap: it stops firing, it vents."""
WEAK = 0.4
"""Share of hit points below which it throws smoke."""
SMOKES = 0.05
"""Probability, in each decision, that it throws smoke when it is weak."""
ALONE = 12.0
"""Metres by which it may be nearer to the zone than its side is on average."""
PATIENCE, DETOUR = 8, 10
"""Decisions without getting nearer to its place after which it takes a detour; decisions of a detour."""
WAYS = 16
"""Directions in which it looks for a free way."""
PROBES = (1.0, 2.0, 3.0)
"""Metres at which it tests a direction."""
_SALT = 0x6D656368


class MechBot:
    """Plays rows of a mech arena by what their mechs know, with ``knows`` "all" by all enemies."""

    adjustable = ("lethality",)

    def __init__(self, arena: MechArena, lethality: float = 1.0, knows: str = "fair"):
        """``lethality``: its probability, in each decision, to fire when it could."""
        if knows not in ("fair", "all"):
            raise ConfigError(f"bot: knows is {knows!r}; choose fair or all")
        self.arena, self.knows_all = arena, knows == "all"
        on = arena.device
        self._made = lethality
        self._next = torch.tensor(0.0, device=on)
        self.adjust()
        self.lethality = self._next.repeat(arena.num_envs, 1, 1)
        """[E, 1, 1]: of the game that each slot plays."""
        self._nearest = torch.zeros(arena.num_envs, 2, arena.mechs, device=on)
        """[E, 2, N]: the smallest distance to its place since it last got on."""
        self._waited = torch.zeros_like(self._nearest)
        """[E, 2, N]: decisions since then; below 0: those that its detour still takes."""
        self._way = torch.zeros_like(self._nearest, dtype=torch.int64)
        """[E, 2, N]: the direction of the detour."""
        self._preferred = torch.tensor([PREFERRED[k] for k in sorted(PREFERRED)], device=on)[
            arena.tables.number
        ]
        self._lanes = torch.arange(2 * arena.mechs, device=on)
        angle = torch.arange(WAYS).double() * (2 * torch.pi / WAYS)
        # Rounded, so that opposite ways are exactly opposite.
        self._way_x, self._way_y = (
            way.round(decimals=12).float().to(on) for way in (angle.cos(), angle.sin())
        )
        place = torch.arange(arena.mechs).double() * (2 * torch.pi / arena.mechs)
        wide = float(arena.mechs > 1)
        self._place_x, self._place_y = (
            (place.cos() * wide).float().to(on),
            (place.sin() * wide).float().to(on),
        )
        self._probes = torch.tensor(PROBES, device=on)

    def adjust(self, lethality: float | None = None) -> None:
        """Another lethality, from the next game of each slot on."""
        lethality = self._made if lethality is None else lethality
        if not isinstance(lethality, int | float) or not 0 <= lethality <= 1:
            raise ConfigError(f"bot: lethality is {lethality!r}; it must be a number from 0 to 1")
        self._next.fill_(float(lethality))

    def snapshot(self) -> dict[str, Tensor]:
        """What it remembers: the lethality of the games in progress, and how its mechs get on."""
        return {name: tensor.clone() for name, tensor in self._memory().items()}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Remember what was remembered at ``snapshot``."""
        for name, tensor in self._memory().items():
            tensor.copy_(snapshot[name])

    def _memory(self) -> dict[str, Tensor]:
        progress = {"nearest": self._nearest, "waited": self._waited, "way": self._way}
        return {"lethality": self.lethality, **progress}

    def act(self, rows: Tensor, obs: Tree, first: Tensor) -> Tree:
        """The actions of ``rows`` [R] of the arena in its present state."""
        starts = torch.zeros_like(self.lethality).flatten()
        starts.index_add_(0, rows // self.arena.agents, first.float())
        self.lethality.copy_(torch.where(starts.view(-1, 1, 1) > 0, self._next, self.lethality))
        action = self.play()
        return tree.map(lambda leaf: leaf.index_select(0, rows), action)

    def play(self) -> Tree:
        """The actions of all rows."""
        arena = self.arena
        there = arena.theirs
        shape = arena.x.shape
        key = random.ahead(arena.key ^ _SALT, arena.age * (2 * arena.mechs)).unsqueeze(1)
        chance = random.uniform(random.bits(key, self._lanes)).view(shape)

        enemies = sensing.known(arena) & there(arena.alive).unsqueeze(2)
        if self.knows_all:
            enemies = (there(arena.alive).unsqueeze(2) & arena.alive.unsqueeze(3)) | enemies
        target = sensing.nearest_of(arena, enemies)
        engaged = target >= 0
        dx, dy = (there(own).gather(2, target.clamp(min=0)) - own for own in (arena.x, arena.y))
        distance = exact.length(dx, dy).clamp(min=1e-6)

        goal_x, goal_y, hurry, far = self._towards_zone()
        # In a fight: nearer if too far, away if too near, around the enemy else.
        near = (distance / self._preferred - 1).clamp(-1.0, 1.0)
        around = torch.where(chance < 0.5, 1.0, -1.0) * (1 - near.abs())
        fight_x = (dx * near - dy * around) / distance
        fight_y = (dy * near + dx * around) / distance
        inside = zone.hold(arena).inside
        fights = engaged & (inside | (distance < 2 * self._preferred))
        want_x = torch.where(fights, fight_x + 0.5 * goal_x * hurry, goal_x * hurry)
        want_y = torch.where(fights, fight_y + 0.5 * goal_y * hurry, goal_y * hurry)
        want_x, want_y = self._free_way(*self._detour(want_x, want_y, far, engaged | (hurry == 0), chance))

        face_x = torch.where(engaged, dx / distance, want_x)
        face_y = torch.where(engaged, dy / distance, want_y)
        hx, hy = arena.hx, arena.hy
        ahead, left = face_x * hx + face_y * hy, face_y * hx - face_x * hy
        still = (face_x == 0) & (face_y == 0)
        turn = torch.where(ahead > 0, left * 4, left.sign() + (left == 0)).clamp(-1.0, 1.0)
        turn = torch.where(still, 0.0, turn)
        stuck = (
            (want_x * want_x + want_y * want_y > 0.04)
            & (arena.vx == 0)
            & (arena.vy == 0)
            & (arena.age > 1).view(-1, 1, 1)
        )
        move = torch.stack(
            [
                want_x * hx + want_y * hy,
                (want_y * hx - want_x * hy) * 2,
                (stuck & (chance < 0.7)).float(),
                turn,
            ],
            3,
        )
        heat = arena.heat / arena.tables.heat_cap
        fires = (chance < self.lethality) & (heat < HOT) & engaged
        smokes = engaged & (arena.hp < WEAK * arena.tables.hp) & (chance < SMOKES)
        triggers = torch.stack([fires, fires, fires, smokes, heat > WARM], 3)
        ewar = torch.where(engaged & (chance < 0.5), ECM, ECCM)
        return self._action(move.clamp(-1.0, 1.0), triggers, ewar)

    def _detour(
        self, x: Tensor, y: Tensor, far: Tensor, is_fine: Tensor, chance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The direction (x, y), or that of a detour, if others or obstacles have been in its way for long."""
        is_new = (self.arena.age == 0).view(-1, 1, 1)
        gets_on = is_new | is_fine | (far < self._nearest - 0.5)
        waited = torch.where(gets_on & (is_new | (self._waited >= 0)), 0.0, self._waited + 1)
        starts = waited >= PATIENCE
        self._nearest.copy_(torch.where(gets_on | starts, far, self._nearest))
        self._way.copy_(torch.where(starts, (chance * WAYS).long(), self._way))
        self._waited.copy_(torch.where(starts, -float(DETOUR), waited))
        goes = self._waited < 0
        way_x, way_y = (way[self._way] * self.arena.facing for way in (self._way_x, self._way_y))
        return torch.where(goes, way_x, x), torch.where(goes, way_y, y)

    def _towards_zone(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The direction of its place in the zone, how fast to go (slowly if far ahead), its distance."""
        arena = self.arena
        # Each has its own place in the zone, on a circle.
        spread = arena.radius.view(-1, 1, 1) * (0.5 * arena.facing)
        dx, dy = self._place_x * spread - arena.x, self._place_y * spread - arena.y
        distance = exact.length(dx, dy).clamp(min=1e-6)
        mates = arena.alive.sum(2, keepdim=True).clamp(min=1)
        mean = (distance * arena.alive).sum(2, keepdim=True) / mates
        alone = mean - distance > ALONE
        hurry = torch.where(distance > 1.5, torch.where(alone, 0.3, 1.0), 0.0)
        return dx / distance, dy / distance, hurry, distance

    def _free_way(self, want_x: Tensor, want_y: Tensor) -> tuple[Tensor, Tensor]:
        """The direction nearest to the wanted one in which the ground is no obstacle, as fast as wanted."""
        arena = self.arena
        speed = exact.length(want_x, want_y)
        probe_x = (self._way_x.unsqueeze(1) * self._probes).flatten()
        probe_y = (self._way_y.unsqueeze(1) * self._probes).flatten()
        x, y = arena.x.unsqueeze(3) + probe_x, arena.y.unsqueeze(3) + probe_y
        ground = arena.ground(x.flatten(2), y.flatten(2)).view(*x.shape[:3], WAYS, len(PROBES))
        here = arena.ground(arena.x, arena.y).unsqueeze(3)
        # From point to point no step is too high.
        before = torch.cat([here.unsqueeze(4).expand(*ground.shape[:4], 1), ground[..., :-1]], 4)
        free = (ground - before <= STEP_UP).all(4)
        along = want_x.unsqueeze(3) * self._way_x + want_y.unsqueeze(3) * self._way_y
        best = torch.where(free | ~free.any(3, keepdim=True), along, -10.0).argmax(3)
        chosen_x, chosen_y = self._way_x[best] * speed, self._way_y[best] * speed
        return chosen_x, chosen_y

    def _action(self, move: Tensor, triggers: Tensor, ewar: Tensor) -> Tree:
        arena = self.arena
        flat = {
            name: value.flatten(0, 2) for name, value in (("move", move), ("fire", triggers), ("ewar", ewar))
        }
        rows = len(flat["ewar"])
        whole = flat["ewar"].new_zeros(rows)
        action = {
            "move": flat["move"],
            "fire": flat["fire"].to(torch.int8),
            "target": whole + actions.NO_TARGET,
            "ewar": flat["ewar"],
            "sort": whole,
            "hostile_only": torch.ones(rows, 1, dtype=torch.int8, device=arena.device),
            "message": flat["move"].new_zeros(rows, WORDS),
        }
        return actions.flattened(action) if arena.options.spaces == "flat" else action
