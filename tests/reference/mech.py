"""One game of the mech arena, mech by mech and shot by shot, from its rules, in float32 numbers.

Every formula is evaluated in the order in which the rules state it, so that results can be compared exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from recollect.tasks.mech import rules
from recollect.tasks.mech.rules import CLASSES, roster
from tests.reference import mech_senses, mech_weapons
from tests.reference.mech_parts import F, Hit, Key, Mech, Order, Outcome, norm, unit

Numbers = dict[str, np.ndarray]
NOT_OF_MECHS = ("map", "radius", "score", "win_weight", "won", "games", "root", "episode", "age", "key")


class World:
    """A game, from the fields of one slot of the task."""

    def __init__(self, fields: Numbers, heights: np.ndarray, options: Any, limit: int, age: int):
        """``heights`` [100, 100] by y, then x; ``limit`` in decisions; ``age``: decisions made."""
        self.heights, self.options, self.limit, self.age = heights, options, limit, age
        count = fields["hp"].shape[1]
        self.count, self.radius, self.score = count, fields["radius"][()], fields["score"].copy()
        self.won, self.games = float(fields["won"]), int(fields["games"])
        self.win_weight = fields["win_weight"][()]
        names = [name for name in fields if name not in NOT_OF_MECHS]
        self.names = names
        kinds = roster(count)
        self.sides = [
            [
                Mech(
                    side=side,
                    number=i,
                    kind=CLASSES[kinds[i]],
                    **{name: np.array(fields[name][side, i])[()] for name in names},
                )
                for i in range(count)
            ]
            for side in (0, 1)
        ]

    def __iter__(self) -> Iterator[Mech]:
        return (mech for side in self.sides for mech in side)

    def enemies(self, mech: Mech) -> list[Mech]:
        return self.sides[1 - mech.side]

    def fields(self) -> Numbers:
        """The fields of mechs as the task has them."""
        return {
            name: np.array([[getattr(m, name) for m in side] for side in self.sides]) for name in self.names
        }

    def ground(self, x: F, y: F) -> F:
        """The height of the cell at (x, y). Cells are mirrored about the centre, as are points on edges."""

        def along(at: F) -> int:
            cells = min(int(abs(at)), 49)
            return 49 - cells if at < 0 else 50 + cells

        return self.heights[along(y), along(x)]

    # A decision ----------------------------------------------------------------------------------

    def decide(self, actions: dict[Key, dict[str, Any]]) -> Outcome:
        """Play a decision; ``actions`` by (side, number)."""
        self.age += 1
        lived = {m.key: m.lives for m in self}
        orders = {m.key: self._order(m, actions[m.key]) for m in self}
        done = {key: dict.fromkeys(("damage", "kill", "assist"), 0.0) for key in lived}
        for mech in self:
            mech.fired = np.zeros(5, bool)
        for _ in range(rules.SUBSTEPS):
            active = {m.key: m for m in self if m.is_active}
            self._move(orders, active)
            hits = mech_weapons.fire(self, orders, list(active.values()))
            hits += [hit for m in self for k in range(3) for hit in mech_weapons.fly(self, m, k)]
            self._apply(hits, done)
            for mech in self:
                self._recover(mech, orders[mech.key])
        mech_senses.update(self)
        return self._judge(lived, done)

    def _order(self, mech: Mech, action: dict[str, Any]) -> Order:
        forward, strafe, jump, turn = (unit(value) for value in action["move"])
        choice, contact = int(action["target"]), -1
        if choice < rules.CONTACTS and self.options.target_selection:
            contact = int(mech.contact[choice])
        aim = contact - self.count if contact >= self.count else mech_senses.nearest(self, mech)
        mech.ewar = int(action["ewar"]) if mech.is_scout and self.options.ewar else rules.OFF
        if self.options.contact_sort:
            mech.sort, mech.hostile_only = int(action["sort"]), bool(action["hostile_only"][0] > 0)
        if self.options.comms:
            mech.message = np.array([unit(w) if mech.is_active else 0.0 for w in action["message"]], F)
        return Order(forward, strafe, jump, turn, [bool(f > 0) for f in action["fire"]], aim)

    # Movement ------------------------------------------------------------------------------------

    def _move(self, orders: dict[Key, Order], active: dict[Key, Mech]) -> None:
        mechs = list(self)
        wants = {}
        for m in mechs:
            order = orders[m.key]
            acts = m.key in active
            self._turn(m, order.turn if acts else F(0))
            wants[m.key] = self._slide(m, order) if acts else (m.x, m.y)
        places = {m.key: (m.x, m.y) if self._is_blocked(m, mechs, wants) else wants[m.key] for m in mechs}
        for m in mechs:
            x, y = places[m.key]
            m.vx, m.vy = (x - m.x) * F(rules.RATE), (y - m.y) * F(rules.RATE)
            acts = m.key in active
            self._fall(m, x, y, orders[m.key].jump if acts else F(0))
            m.x, m.y = x, y

    def _turn(self, m: Mech, turn: F) -> None:
        """By the rational rotation whose half angle has the tangent turn * rate * DT / 2."""
        half = turn * (F(m.kind.turn) * F(rules.DT / 2))
        square = half * half
        cosine, sine = (1 - square) / (1 + square), (half + half) / (1 + square)
        hx, hy = m.hx * cosine - m.hy * sine, m.hx * sine + m.hy * cosine
        length = norm(hx, hy)
        m.hx, m.hy = hx / length, hy / length

    def _slide(self, m: Mech, order: Order) -> tuple[F, F]:
        """Where it gets if nobody is in its way."""
        speed = F(m.kind.speed) if m.legs > 0 else F(m.kind.speed) * F(rules.LEGLESS)
        ahead = order.forward * F(rules.BACKWARD) if order.forward < 0 else order.forward
        aside = order.strafe * F(rules.BACKWARD)
        step = speed / max(norm(ahead, aside), F(1)) * F(rules.DT)
        ahead, aside = ahead * step, aside * step
        border = F(rules.BORDER)
        x = min(max(m.x + (m.hx * ahead - m.hy * aside), -border), border)
        y = min(max(m.y + (m.hy * ahead + m.hx * aside), -border), border)
        top = m.z + F(rules.STEP_UP)
        if self.ground(x, y) <= top:
            return x, y
        if self.ground(x, m.y) <= top:
            return x, m.y
        if self.ground(m.x, y) <= top:
            return m.x, y
        return m.x, m.y

    def _is_blocked(self, m: Mech, mechs: list[Mech], wants: dict[Key, tuple[F, F]]) -> bool:
        """Another mech, where it is or where it wants to be, is too near and nearer than before."""

        def square(a: tuple[F, F], b: tuple[F, F]) -> F:
            dx, dy = a[0] - b[0], a[1] - b[1]
            return dx * dx + dy * dy

        want = wants[m.key]
        for other in mechs:
            if other is m or not other.lives or not abs(m.z - other.z) < F(rules.HEIGHT):
                continue
            place = (other.x, other.y)
            nearest = min(square(want, place), square(want, wants[other.key]))
            if nearest < square((m.x, m.y), place) and nearest < F((2 * rules.RADIUS) ** 2):
                return True
        return False

    def _fall(self, m: Mech, x: F, y: F, jump: F) -> None:
        here, there = self.ground(m.x, m.y), self.ground(x, y)
        may = m.kind.jet > 0 and m.z < here + F(rules.CEILING)
        push = max(jump, F(0)) if may else F(0)
        m.heat = m.heat + push * F(rules.JET_HEAT * rules.DT)
        m.vz = m.vz + (push * F(m.kind.jet) - F(rules.GRAVITY)) * F(rules.DT)
        z = m.z + m.vz * F(rules.DT)
        walks = m.z <= here and push == 0 and m.z - there <= F(rules.STEP_UP)
        if walks or z <= there:
            z, m.vz = there, F(0)
        m.z = z

    # What hits do --------------------------------------------------------------------------------

    def _apply(self, hits: list[Hit], done: dict[Key, dict[str, float]]) -> None:
        for m in self:
            mine = [hit for hit in hits if hit.on is m]
            if not mine:
                continue
            lived, taken = m.lives, sum(hit.damage for hit in mine)
            m.hp = max(m.hp - F(taken), F(0))
            m.legs = max(m.legs - F(taken * rules.LEG_SHARE), F(0))
            m.stability = max(m.stability - F(sum(hit.stability for hit in mine)), F(0))
            m.heat = m.heat + F(sum(hit.heat for hit in mine))
            if any(hit.suppresses for hit in mine):
                m.suppressed = F(rules.SUPPRESSED)
            by: dict[int, float] = {}
            for hit in mine:
                by[hit.by.number] = by.get(hit.by.number, 0.0) + hit.damage
                hit.by.dealt[m.number] += F(hit.damage)
                done[hit.by.key]["damage"] += hit.damage
            other = 1 - m.side
            if lived and not m.lives:
                done[other, min(by, key=lambda i: (-by[i], i))]["kill"] += 1
            by_others = any(hit.missile and hit.by.number != m.painter for hit in mine)
            if by_others and m.owes_assist and m.painted > 0:
                done[other, int(m.painter)]["assist"] += 1
                m.owes_assist = False
            painters = [hit.by.number for hit in mine if hit.paints]
            if painters:
                if m.painted <= 0:
                    m.painter, m.owes_assist = min(painters), True
                m.painted = F(rules.PAINTED)

    def _recover(self, m: Mech, order: Order) -> None:
        def down(clock: F) -> F:
            left = clock - F(rules.DT)
            return F(0) if left < F(rules.DT / 2) else left

        loss, cost = F(m.kind.heat_loss), F(0)
        if m.is_active:
            loss = loss * 2 if order.fire[rules.VENT] else loss
            cost = F(rules.EWAR_HEAT[m.ewar])
        m.heat = max(m.heat + (cost - loss) * F(rules.DT), F(0))
        rate = F(rules.REGAIN)
        rate *= F(0.5) if m.vx != 0 or m.vy != 0 else F(1)
        rate *= F(1) if m.legs > 0 else F(0.5)
        rate *= F(rules.SUPPRESSION) if m.suppressed > 0 else F(1)
        if m.down > 0:
            m.down = down(m.down)
            if m.down <= 0:
                m.stability = F(rules.RISEN)
        elif m.stability <= 0:
            m.down = F(rules.FALL_SECONDS)
            m.stability = F(0)
        else:
            m.stability = min(m.stability + rate * F(rules.DT), F(rules.STABILITY))
        m.suppressed = down(m.suppressed)
        m.painted = down(m.painted)
        m.cooldown = np.array([down(clock) for clock in m.cooldown])
        m.smoke_left = np.array([down(clock) for clock in m.smoke_left])

    # The zone, the end and the reward --------------------------------------------------------------

    def is_within(self, m: Mech) -> bool:
        """It, or its wreck, lies in the zone."""
        return bool(m.x * m.x + m.y * m.y <= self.radius * self.radius)

    def is_inside(self, m: Mech) -> bool:
        return m.lives and self.is_within(m)

    def ticks(self) -> tuple[list[F], bool]:
        """The tick of each side, and whether the zone is contested."""
        tons = [sum(m.kind.tons for m in side if self.is_inside(m)) for side in self.sides]
        if tons[0] > 0 and tons[1] > 0:
            margins = [F(tons[s] - tons[1 - s]) / F(sum(tons)) for s in (0, 1)]
            return [min(max(margin + F(rules.CONTESTED), F(0)), F(1)) for margin in margins], True
        return [F(tons[0] > 0), F(tons[1] > 0)], False

    def far(self, m: Mech) -> F:
        """Metres to the zone."""
        return max(norm(m.x, m.y) - self.radius, F(0))

    def _judge(self, lived: dict[Key, bool], done: dict) -> Outcome:
        ticks, contested = self.ticks()
        self.score = self.score + np.array(ticks) * F(rules.DECISION)
        lives = [any(m.lives for m in side) for side in self.sides]
        is_over = bool((self.score >= F(self.limit * rules.DECISION / 2)).any()) or not all(lives)
        result = 0
        if is_over or self.age >= self.limit:
            for blue, red in (lives, self.score, [sum(m.hp for m in side) for side in self.sides]):
                if blue != red:
                    result = 1 if blue > red else -1
                    break
            self.won, self.games = result, self.games + 1
        weights, outcome = self.options, Outcome(is_over=is_over)
        for m in self:
            key = m.key
            inside = self.is_inside(m)
            potential = F(0)
            if m.lives:
                mates = sum(self.is_inside(other) for other in self.sides[m.side] if other is not m)
                potential = self.far(m) * F(-1 / rules.HALF) * F(0.5**mates)
            potential = F(0) if is_over else potential
            approach = F(weights.shaping_gamma) * potential - m.potential
            m.potential = potential
            disputed = F(0.5 if contested and self.is_within(m) else 1)
            fights = F(weights.zone_combat) if contested and inside else F(1)
            parts = {
                "zone": F(inside) * ticks[m.side] * F(weights.zone_reward * rules.DECISION),
                "approach": approach * F(weights.approach_reward),
                "damage": F(done[key]["damage"]) * F(weights.damage_reward) * fights,
                "kill": F(done[key]["kill"]) * F(weights.kill_reward) * fights,
                "assist": F(done[key]["assist"]) * F(weights.assist_reward) * fights,
                "death": F(lived[key] and not m.lives) * F(weights.death_reward) * disputed,
                "win": F(result if m.side == 0 else -result) * F(self.win_weight),
            }
            outcome.parts[key] = {name: part * F(lived[key]) for name, part in parts.items()}
            outcome.reward[key] = sum(outcome.parts[key].values(), F(0))
        return outcome
