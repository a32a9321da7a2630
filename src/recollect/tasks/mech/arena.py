"""The mech arena: the task, its state, and the order of events in a decision.

Tensors of mechs are [E, 2, N]: slots, sides (blue, red), mechs of a side. Those of pairs are [E, 2, N, N]:
mech i of a side against mech j of the *other* side, so that both sides are treated alike and swapping them
mirrors the game exactly. Rows are slot * 2N + side * N + mech.

Only operations that are rounded as IEEE 754 says are used (+, -, *, /, ``exact.root``, comparisons), and
sums over mechs are of numbers that add without rounding: results do not depend on the batch, the order or the
device.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.config.tasks import MechOptions
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.base import Task
from recollect.tasks.mech import (
    actions,
    body,
    columns,
    damage,
    fused,
    maps,
    movement,
    observe,
    picture,
    projectiles,
    rewards,
    sensing,
    start,
    weapons,
    words,
    zone,
)
from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.rules import (
    CLASSES,
    DECISION,
    SAMPLES,
    SHOTS,
    SUBSTEPS,
    TRIGGER_NAMES,
    roster,
)
from recollect.tasks.mech.tables import Tables


class MechArena(Task):
    """Two teams of ``mechs`` mechs, blue and red, fight for a zone in the middle of a map of 100 x 100 m.

    A mech is a heavy, a medium, a light or a scout, with weapons and sensors of its own. Teams consist of
    packs of five: heavy, two mediums, light, scout; in a duel both mechs are mediums. They start in
    opposite corners of a map with hills and obstacles, drawn for each game from a pool of ``maps``; seen
    from the other corner it is the same map. The radius of the zone is 3.75 to 11.25 m. docs/worlds/mech.md
    has all rules and numbers.

    A step is a decision, of a quarter of a second; the simulation makes five steps in it:

    * Mechs turn, walk and jump. The legs take a quarter of all damage as well; without them a mech limps.
    * Weapons are fired by triggers, at the chosen contact if it is an enemy, else at the nearest known
      enemy, if it is in range, in the arc and in sight. Missiles also find what a teammate has painted.
    * Firing and jumping heat a mech; too hot, it shuts down until it has cooled. Hits shake it until it
      falls.
    * A mech sees enemies within 14 m, unless the ground or smoke is between them. Scouts jam the sensors of
      enemies and clear those of friends. Noise is felt farther away, as four directions.

    A team scores while its mechs are in the zone; if both teams are, by the margin in tons. The game
    terminates when a team has held the zone for half of the ``limit``, or has no mech left; else it is
    truncated after ``limit`` seconds. A mech that is destroyed is out of the game: its rows are invalid
    until the next one.

    The reward of a mech is the sum of parts, whose weights are options: being in the zone, coming nearer to
    it, damage, kills, painting for others, being destroyed, and (by default 0) winning.

    Action, Dict of parts: ``move`` Box(4): ahead, left, jump, turn left; ``fire`` MultiBinary(5): the
    triggers primary, secondary, tertiary, smoke, and venting of heat; ``target`` Discrete(6): a contact, or
    none; ``ewar`` Discrete(3): off, ECM, ECCM; ``sort`` Discrete(3): contacts by distance, hit points or
    weight; ``hostile_only`` MultiBinary(1): all contacts are enemies; ``message`` Box(8): heard by the pack
    in the next step. With ``spaces`` = "flat" it is one Box [30]: choices are the largest numbers, switches
    are on above 0.

    Observation, Dict: ``vector``, 269 numbers in the mech's own frame (its state, five contacts, the
    heights around it, a coarse map, the messages of its pack), and ``action_mask`` for ``target`` and
    ``ewar``. With ``spaces`` = "flat" it is the vector alone.

    The agents are blue_0, blue_1, ..., red_0, ...; by ``team`` fewer take part. The best returns are not
    known.

    Metrics: the parts of the reward (``info/reward_zone``, ``info/reward_kill``, ...), how often mechs pull
    each trigger, fire, jump and use ECM or ECCM (``info/rate_fires``, ...), ``info/inside``: the share of
    mechs in the zone, and ``info/enemies_seen``: enemies that a mech sees; all are means per mech and step.
    """

    Options = MechOptions
    has_time_limit = True
    sides = ("blue", "red")
    opponents = ("bot",)
    adjustable = ("team", "win_reward")

    # Of the episode ------------------------------------------------------------------------------
    map: Tensor
    """[E] int64: number of the map in the pool."""
    radius: Tensor
    """[E]: radius of the zone, which is around the centre."""
    score: Tensor
    """[E, 2]: zone score of each side."""
    win_weight: Tensor
    """[E]: the reward of a win in this game."""

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
    """[E, 2, N] int64: the enemy whose paint it is; painting again while it lasts changes nothing."""
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
    clear: Tensor
    """[E, 2, N, N] bool: nothing is between two enemies who are near each other."""
    square: Tensor
    """[E, 2, N, N]: squared distance of enemies, at the last observation."""
    range: Tensor
    """[E, 2, N]: sensor range."""
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
    fired: Tensor
    """[E, 2, N, MOUNTS] bool: has fired in the last decision."""
    dealt: Tensor
    """[E, 2, N, N]: damage of mech i to enemy j in this game."""
    won: Tensor
    """[E]: result of the slot's last game: 1 blue, -1 red, 0 draw or none yet. Survives resets."""
    games: Tensor
    """[E] int64: games that the slot has finished. Survives resets."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.options = chosen = MechOptions(**options)
        self.mechs, limit, pool = chosen.numbers()
        for option in ("sensing", "spaces"):
            chosen.choice(option)
        self.agents = 2 * self.mechs
        kind = chosen.spaces
        super().__init__(num_envs, device, observe.space(kind), actions.space(kind), round(limit / DECISION))
        self.horizon = round(10 / DECISION)  # seconds in which an enemy out of sight matters
        self._make_tables(pool)

    def _make_tables(self, pool: int) -> None:
        n, on = self.mechs, self.device
        self.tables = Tables(n, on)
        self.numbers = columns.table(self.tables)
        heights = maps.make(pool, self.options.map_seed)
        self.coarse = maps.coarse(heights).to(on)
        self.heights = heights.flatten().to(on)
        self.enemies = torch.arange(n, device=on)
        self.enemies_eye = torch.eye(n, dtype=torch.bool, device=on)
        self.are_two = ~torch.eye(2 * n, dtype=torch.bool, device=on)
        self.every_pair = torch.arange(self.num_envs * n * n, device=on)
        self.every_shot = torch.arange(2 * self.num_envs * n * SHOTS, device=on)
        half = SAMPLES // 2
        self.samples = (2 * torch.arange(-half, half, device=on) + 1).float() / SAMPLES
        self.around = observe.around(on)
        self.facing = torch.tensor([1.0, -1.0], device=on).view(2, 1)
        self._team, self._win = torch.tensor(n, device=on), torch.tensor(0.0, device=on)
        self.adjust()
        self.formation = start.formation(n, on)

    @property
    def agent_names(self) -> tuple[str, ...]:
        """Such as blue_0: the side, and the number of the mech."""
        return tuple(f"{side}_{i}" for side in self.sides for i in range(self.mechs))

    @property
    def team(self) -> int:
        """Mechs of a side in games that start now."""
        return int(self._team)

    @property
    def alive(self) -> Tensor:
        """[E, 2, N] bool: takes part and is not destroyed."""
        return self.hp > 0

    @property
    def takes_part(self) -> Tensor:
        """[N] bool: the mechs of a side that take part in games that start now."""
        return self.enemies < self._team

    def adjust(self, team: int | None = None, win_reward: float | None = None) -> None:
        """The number of mechs of a side that take part, and the reward of a win, from the next games on."""
        team = self.options.team if team is None else team
        team = self.mechs if team is None else team
        if not isinstance(team, int) or not 1 <= team <= self.mechs:
            raise ConfigError(
                f"{self.name}: team is {team!r}; it must be a whole number from 1 to mechs, {self.mechs}"
            )
        win = self.options.win_reward if win_reward is None else win_reward
        if not isinstance(win, int | float) or not math.isfinite(win):
            raise ConfigError(f"{self.name}: win_reward is {win!r}; it must be a finite number")
        self._team.fill_(team)
        self._win.fill_(float(win))

    def opponent(self, name: str, **options: Any) -> MechBot:
        """The scripted player ``name``."""
        if name not in self.opponents:
            raise ConfigError(f"{self.name} has no player {name!r}: it has {', '.join(self.opponents)}")
        return MechBot(self, **options)

    def theirs(self, values: Tensor) -> Tensor:
        """Values [E, 2, ...] of the other side."""
        return values.flip(1)

    def own_square(self) -> Tensor:
        """[E, 2, N, N]: squared distances of mechs of a side."""
        dx, dy, dz = (own.unsqueeze(2) - own.unsqueeze(3) for own in (self.x, self.y, self.z))
        return dx * dx + dy * dy + dz * dz

    def ground(self, x: Tensor, y: Tensor) -> Tensor:
        """The height of the ground at points [E, 2, k]."""
        at = maps.cell(x, y).add_(self.map.mul(maps.SIDE**2).view(-1, 1, 1))
        return self.heights.index_select(0, at.flatten()).view(x.shape)

    def ground_of(self, slot: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The height of the ground at points [P, k] in the slots [P, 1]."""
        at = maps.cell(x, y).add_(self.map.mul(maps.SIDE**2)[slot])
        return self.heights.index_select(0, at.flatten()).view(x.shape)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        if self.options.game_seed is not None:
            key = random.row_keys(self.options.game_seed, torch.zeros_like(self._slots))
        none = torch.zeros_like(self._slots)
        return {
            **self._outliving(won=none.float(), games=none),
            **start.places(self, key),
            **start.clean(self),
            "win_weight": self._win.expand(self.num_envs),
        }

    def _advance(self, action: Any) -> tuple[Tensor, Tensor]:
        lived = self.alive
        orders = actions.decode(self, action)
        tally = damage.Tally.of(self)
        self.fired.zero_()
        if fused.suits(self):
            fused.decide(self, orders, tally)
        else:
            self._simulate(orders, tally)
        sensing.update(self)
        held = zone.hold(self)
        self.score.add_(held.tick * DECISION)
        is_over = zone.is_over(self)
        ends = is_over | (self.age >= self._limit)
        result = zone.winner(self) * ends
        self.won.copy_(torch.where(ends, result, self.won))
        self.games.add_(ends)
        self.parts = rewards.of(self, tally, held, lived, result, is_over)
        total = torch.zeros_like(self.x)
        for part in self.parts.values():
            total += part
        self._report(orders, held, total)
        return total.flatten(), is_over

    def _simulate(self, orders: actions.Orders, tally: damage.Tally) -> None:
        """The simulation steps of a decision."""
        for _ in range(SUBSTEPS):
            active = body.active(self)
            movement.move(self, orders, active)
            hits = weapons.fire(self, orders, active)
            projectiles.fly(self, hits)
            damage.apply(self, hits, tally)
            body.recover(self, orders)

    def _renew(self, slots: Tensor) -> None:
        super()._renew(slots)
        sensing.update(self)  # contacts of the first observation; in other slots nothing changes

    def _living(self) -> Tensor:
        return self.alive.flatten()

    def _observe(self) -> Any:
        return observe.of(self)

    def picture(self) -> np.ndarray:
        """Slot 0 from above."""
        return picture.draw(self)

    @staticmethod
    def describe(obs: Any) -> str:
        """Class, health and heat, the way to the zone, and the contacts."""
        return words.describe(obs)

    def _report(self, orders: actions.Orders, held: zone.Hold, total: Tensor) -> None:
        """Keep what is logged of this step."""
        rates = dict(zip(TRIGGER_NAMES, orders.triggers.unbind(3)))
        rates |= {
            "fires": self.fired.any(3),
            "jumps": orders.jump > 0,
            "ecm": self.ewar == 1,
            "eccm": self.ewar == 2,
        }
        self._metrics = {f"rate_{name}": rate for name, rate in rates.items()}
        self._metrics |= {f"reward_{name}": part for name, part in self.parts.items()}
        self._metrics |= {"inside": held.inside, "enemies_seen": self.sees.sum(3)}
        for number in sorted(set(roster(self.mechs))):
            # Of the others it has no value, which is NaN.
            is_one = self.tables.number == number
            self._metrics[f"reward_of_{CLASSES[number].name}"] = torch.where(is_one, total, math.nan)

    def _info(self, reward: Tensor) -> dict[str, Tensor]:
        return {name: value.flatten().float() for name, value in self._metrics.items()}
