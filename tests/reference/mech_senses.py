"""What mechs of the arena see, hear and observe, pair by pair, for the slow truth in ``mech.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recollect.tasks.mech import rules
from recollect.tasks.mech.rules import CONTACTS, PACK
from tests.reference.mech_parts import F, Mech, norm

if TYPE_CHECKING:
    from tests.reference.mech import World

SAMPLES = [F(k / 16) for k in range(-15, 16, 2)]
"""Points of a line of sight, from -1 to 1."""


def update(world: World) -> None:
    """Renew what all mechs see, and their contacts."""
    for m in world:
        enemies = world.enemies(m)
        m.square = np.array([square(m, enemy) for enemy in enemies])
        m.clear = np.array([is_clear(world, m, enemy) for enemy in enemies])
        m.range = sensor_range(world, m)
    for m in world:
        reach = m.range * m.range
        if world.options.sensing == "full":
            sees = [m.senses and enemy.lives for enemy in world.enemies(m)]
        else:
            sees = [
                m.senses and bool(m.clear[enemy.number]) and bool(m.square[enemy.number] <= reach)
                for enemy in world.enemies(m)
            ]
        m.sees = np.array(sees)
    for m in world:
        m.contact = np.array(contacts(world, m))


def square(m: Mech, other: Mech) -> F:
    dx, dy, dz = other.x - m.x, other.y - m.y, other.z - m.z
    return dx * dx + dy * dy + dz * dz


def is_clear(world: World, m: Mech, enemy: Mech) -> bool:
    """Two living mechs, at most 21 m apart, with no ground and no smoke between their middles."""
    if not (m.lives and enemy.lives and square(m, enemy) <= F((rules.MOST * rules.SEEN) ** 2)):
        return False
    one, other = (m, enemy) if m.side == 0 else (enemy, m)
    ends = [(getattr(one, axis), getattr(other, axis)) for axis in "xyz"]
    hx, hy, hz = ((b - a) * F(0.5) for a, b in ends)
    x, y, z = ((b + a) * F(0.5) for a, b in ends)
    for at in SAMPLES:
        if not world.ground(x + at * hx, y + at * hy) < z + at * hz + F(rules.HEIGHT / 2):
            return False
    length = max(hx * hx + hy * hy, F(1e-12))
    for thrower in world:
        for k in range(rules.CLOUDS):
            if 0 < thrower.smoke_left[k] <= F(rules.SMOKE_LASTS):
                dx, dy = thrower.smoke_x[k] - x, thrower.smoke_y[k] - y
                along = min(max((dx * hx + dy * hy) / length, F(-1)), F(1))
                dx, dy = dx - along * hx, dy - along * hy
                if dx * dx + dy * dy <= F(rules.SMOKE_RADIUS**2):
                    return False
    return True


def sensor_range(world: World, m: Mech) -> F:
    reach = F(rules.EWAR_RADIUS**2)

    def works(other: Mech, mode: int) -> bool:
        return other.is_active and other.ewar == mode and bool(square(m, other) <= reach)

    jam = any(works(enemy, rules.ECM) for enemy in world.enemies(m))
    eccm = any(works(mate, rules.ECCM) for mate in world.sides[m.side])
    share = F(1) - F(rules.JAMMED) * F(jam) + F(rules.CLEARED) * F(eccm)
    return F(rules.SEEN) * min(max(share, F(rules.LEAST)), F(rules.MOST))


def known(world: World, m: Mech) -> list[Mech]:
    """Living enemies that it sees or that its side has painted."""
    enemies = [enemy for enemy in world.enemies(m) if enemy.lives]
    return [enemy for enemy in enemies if m.sees[enemy.number] or (m.senses and enemy.painted > 0)]


def nearest(world: World, m: Mech) -> int:
    """The nearest known enemy; -1: none."""
    return min(((m.square[e.number], e.number) for e in known(world, m)), default=(0, -1))[1]


def contacts(world: World, m: Mech) -> list[int]:
    """Three friends, an enemy and an empty slot; or five enemies. Each kind in its order."""

    def order(other: Mech) -> tuple[F, int]:
        values = (square(m, other), other.hp, -F(other.kind.tons))
        return values[int(m.sort) if world.options.contact_sort else 0], other.number

    friends = [mate for mate in world.sides[m.side] if mate is not m and mate.lives and m.senses]
    mates = [mate.number for mate in sorted(friends, key=order)]
    enemies = [world.count + enemy.number for enemy in sorted(known(world, m), key=order)]
    found = [*enemies, *[-1] * CONTACTS][:CONTACTS]
    if not m.hostile_only:
        found = [*[*mates, -1, -1, -1][:3], found[0], -1]
    return found


def sound(world: World, m: Mech) -> list[F]:
    """The loudest enemy ahead, to the left, behind, to the right."""
    loudest = [F(0)] * 4
    for enemy in world.enemies(m):
        if enemy.lives:
            near = max(1 - np.sqrt(m.square[enemy.number]) * F(1 / rules.HEARD), F(0))
            loud = norm(enemy.vx, enemy.vy) * F(enemy.kind.noise) * near
            dx, dy = enemy.x - m.x, enemy.y - m.y
            ahead, left = dx * m.hx + dy * m.hy, dy * m.hx - dx * m.hy
            is_along = abs(ahead) >= abs(left)
            way = (0 if ahead >= 0 else 2) if is_along else (1 if left >= 0 else 3)
            loudest[way] = max(loudest[way], loud)
    return loudest


# Observations ----------------------------------------------------------------------------------------------


def observe(world: World, m: Mech, coarse: np.ndarray) -> np.ndarray:
    """The vector that a mech observes; ``coarse`` [64]: the coarse map."""
    size = 44 + 5 * 16 + 49 + 64 + 4 * 8
    if not m.lives:
        return np.zeros(size, F)
    parts = [own(world, m), *(contact(world, m, number) for number in m.contact)]
    parts += [local(world, m), list(coarse), messages(world, m)]
    return np.array([number for part in parts for number in part], F)


def in_frame(m: Mech, x: F, y: F) -> tuple[F, F]:
    """A vector ahead and to the left."""
    return x * m.hx + y * m.hy, y * m.hx - x * m.hy


def own(world: World, m: Mech) -> list[F]:
    kind, per_speed, per_half = m.kind, F(1 / 7), F(1 / rules.HALF)
    facing = F(1 if m.side == 0 else -1)
    ticks, contested = world.ticks()
    names = ("scout", "light", "medium", "heavy")
    cooldowns = []
    for name, clock in zip(kind.mounts, m.cooldown):
        whole = rules.WEAPONS[name].cooldown if name else 0
        cooldowns.append(clock / F(max(whole, 1)))
    share = F(2 / (world.limit * rules.DECISION))
    ahead, left = in_frame(m, m.vx, m.vy)
    return [
        m.hp / F(kind.hp),
        m.legs / F(kind.leg_hp),
        m.heat / F(kind.heat_cap),
        m.stability * F(1 / rules.STABILITY),
        m.down * F(1 / rules.FALL_SECONDS),
        F(not m.senses),
        m.suppressed * F(1 / rules.SUPPRESSED),
        m.painted * F(1 / rules.PAINTED),
        ahead * per_speed,
        left * per_speed,
        m.vz * per_speed,
        (m.z - world.ground(m.x, m.y)) * per_speed,
        *cooldowns,
        *(F(kind.name == name) for name in names),
        F(m.ewar == rules.ECM),
        F(m.ewar == rules.ECCM),
        m.range * F(1 / (rules.MOST * rules.SEEN)),
        *(loud * F(0.1) for loud in sound(world, m)),
        -(m.x * m.hx + m.y * m.hy) * per_half,
        (m.x * m.hy - m.y * m.hx) * per_half,
        world.far(m) * per_half,
        world.radius * F(0.1),
        F(world.is_inside(m)),
        F(contested),
        ticks[m.side],
        ticks[1 - m.side],
        world.score[m.side] * share,
        world.score[1 - m.side] * share,
        1 - F(world.age) * F(1 / world.limit),
        F(sum(mate.lives for mate in world.sides[m.side])) * F(1 / world.count),
        m.x * facing * per_half,
        m.y * facing * per_half,
        m.hx * facing,
        m.hy * facing,
    ]


def contact(world: World, m: Mech, number: int) -> list[F]:
    if number < 0:
        return [F(0)] * 16
    is_enemy = number >= world.count
    other = world.enemies(m)[number - world.count] if is_enemy else world.sides[m.side][number]
    per_seen, per_speed = F(1 / rules.SEEN), F(1 / 7)
    dx, dy, dz = other.x - m.x, other.y - m.y, other.z - m.z
    ahead, left = in_frame(m, dx, dy)
    speeds = in_frame(m, other.vx, other.vy)
    return [
        F(1),
        F(is_enemy),
        ahead * per_seen,
        left * per_seen,
        dz * per_seen,
        norm(dx, dy, dz) * per_seen,
        *in_frame(m, other.hx, other.hy),
        *(speed * per_speed for speed in speeds),
        other.hp / F(other.kind.hp),
        F(other.kind.tons) * F(1 / 85),
        other.painted * F(1 / rules.PAINTED),
        F(not other.senses),
        F(not is_enemy or m.clear[other.number]),
        F(ahead >= abs(left)),
    ]


def local(world: World, m: Mech) -> list[F]:
    """Heights against its own at 7 x 7 points, 2 m apart, in its frame."""
    heights = []
    for ahead in range(-6, 7, 2):
        for left in range(-6, 7, 2):
            x = m.x + (m.hx * F(ahead) - m.hy * F(left))
            y = m.y + (m.hy * F(ahead) + m.hx * F(left))
            heights.append(min(max(world.ground(x, y) - m.z, F(-5)), F(5)) * F(0.2))
    return heights


def messages(world: World, m: Mech) -> list[F]:
    """What the living mates of its pack said, in the order of their numbers, without it."""
    pack = [mate for mate in world.sides[m.side] if mate.number // PACK == m.number // PACK and mate is not m]
    words = [word for mate in pack for word in (mate.message if mate.lives else [F(0)] * rules.WORDS)]
    return [*words, *[F(0)] * ((PACK - 1) * rules.WORDS - len(words))]
