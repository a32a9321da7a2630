"""Weapons of the mech arena, shot by shot, for the slow truth in ``mech.py``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recollect.tasks.mech import rules
from recollect.tasks.mech.rules import WEAPONS, Weapon
from tests.reference.mech_parts import F, Hit, Key, Mech, Order, norm

if TYPE_CHECKING:
    from tests.reference.mech import World

SHOT_WEAPONS = {"heavy": ("missile", "missile", "gauss"), "medium": ("autocannon",) * 3}
"""The weapon of each shot that a mech can have under way."""
MIDDLE = F(rules.HEIGHT / 2)


def fire(world: World, orders: dict[Key, Order], active: list[Mech]) -> list[Hit]:
    """All mechs fire at once; the hits of weapons without flight."""
    hits: list[Hit] = []
    for m in active:
        order = orders[m.key]
        target = world.enemies(m)[order.aim] if order.aim >= 0 else None
        if target is not None and not target.lives:
            target = None
        heat = 0.0
        for mount, name in enumerate(m.kind.mounts):
            if not name or not order.fire[rules.TRIGGERS[mount]] or m.cooldown[mount] > 0:
                continue
            weapon = WEAPONS[name]
            if name == "smoke":
                _smoke(m, target)
            elif target is None or not _can_hit(m, target, weapon):
                continue
            elif weapon.speed > 0:
                if not _launch(m, target, weapon):
                    continue
            else:
                along = target.x - m.x, target.y - m.y
                damage = weapon.damage * _factor(target, *along)
                hits.append(Hit(m, target, damage, heat=weapon.target_heat, paints=name == "paint"))
            heat += weapon.heat
            m.cooldown[mount] = weapon.cooldown
            m.fired[mount] = True
        m.heat = m.heat + F(heat)
    return hits


def _can_hit(m: Mech, target: Mech, weapon: Weapon) -> bool:
    dx, dy, dz = target.x - m.x, target.y - m.y, target.z - m.z
    flat = norm(dx, dy)
    distance = norm(flat, dz)
    if distance > F(weapon.range) or dx * m.hx + dy * m.hy < F(weapon.cos_half_arc) * flat:
        return False
    is_clear = bool(m.clear[target.number])
    if weapon.name == "missile":
        return bool(target.painted > 0 or (is_clear and distance <= F(rules.MISSILE_IN_SIGHT)))
    return is_clear


def _factor(target: Mech, x: F, y: F) -> float:
    """Of damage that comes along (x, y): more from within 45 degrees of the back."""
    is_behind = x * target.hx + y * target.hy >= F(rules.REAR) * norm(x, y)
    return rules.REAR_FACTOR if is_behind else 1.0


def _launch(m: Mech, target: Mech, weapon: Weapon) -> bool:
    """Into the first free place for this weapon, aimed ahead of the target; False: there is none."""
    kinds = SHOT_WEAPONS[m.kind.name]
    free = [k for k, name in enumerate(kinds) if name == weapon.name and m.shot_left[k] <= 0]
    if not free:
        return False
    k, speed = free[0], F(weapon.speed)
    way = [target.x - m.x, target.y - m.y, target.z - m.z]
    if weapon.name != "missile":
        lead = norm(norm(way[0], way[1]), way[2]) * (F(1) / speed)
        way = [d + v * lead for d, v in zip(way, (target.vx, target.vy, target.vz))]
    rate = speed / max(norm(*way), F(1e-6))
    m.shot_x[k], m.shot_y[k], m.shot_z[k] = m.x, m.y, m.z + MIDDLE
    m.shot_vx[k], m.shot_vy[k], m.shot_vz[k] = (d * rate for d in way)
    m.shot_left[k] = F(weapon.range) / speed
    m.shot_target[k] = target.number
    return True


def _smoke(m: Mech, target: Mech | None) -> None:
    """A shell to the target, or as far towards it as it flies, or some way ahead."""
    smoke = WEAPONS["smoke"]
    k = int(np.argmin(m.smoke_left))
    if target is None:
        far = F(rules.SMOKE_AHEAD)
        m.smoke_x[k], m.smoke_y[k] = m.x + m.hx * far, m.y + m.hy * far
    else:
        dx, dy = target.x - m.x, target.y - m.y
        flat = norm(dx, dy)
        share = min(F(1) / max(flat, F(1e-6)) * F(smoke.range), F(1))
        m.smoke_x[k], m.smoke_y[k] = m.x + dx * share, m.y + dy * share
        far = min(flat, F(smoke.range))
    m.smoke_left[k] = F(rules.SMOKE_LASTS) + far * F(1 / smoke.speed)


def fly(world: World, m: Mech, k: int) -> list[Hit]:
    """One step of a shot; the enemy that it hits, and those in its splash."""
    if m.shot_left[k] <= 0:
        return []
    weapon = WEAPONS[SHOT_WEAPONS[m.kind.name][k]]
    homes = weapon.name == "missile"
    place = [m.shot_x[k], m.shot_y[k], m.shot_z[k]]
    way = [m.shot_vx[k], m.shot_vy[k], m.shot_vz[k]]
    target = world.enemies(m)[m.shot_target[k]]
    if homes and target.lives:
        to = [target.x - place[0], target.y - place[1], (target.z + MIDDLE) - place[2]]
        length = max(norm(*to), F(1e-6))
        way = [d / length * F(weapon.speed) for d in to]
        m.shot_vx[k], m.shot_vy[k], m.shot_vz[k] = way
    half = [v * F(rules.DT / 2) for v in way]
    middle = [p + h for p, h in zip(place, half)]
    end = [p + h for p, h in zip(middle, half)]
    m.shot_x[k], m.shot_y[k], m.shot_z[k] = end

    def away(enemy: Mech) -> list[F]:
        return [b - mid for b, mid in zip((enemy.x, enemy.y, enemy.z + MIDDLE), middle)]

    def off(enemy: Mech, along: F) -> F:
        """Squared distance of an enemy from a point of the path, from -1, the start, to 1, the end."""
        dx, dy, dz = (a - along * h for a, h in zip(away(enemy), half))
        return dx * dx + dy * dy + dz * dz

    size = max(half[0] * half[0] + half[1] * half[1] + half[2] * half[2], F(1e-12))
    living = [enemy for enemy in world.enemies(m) if enemy.lives]
    met: list[tuple[F, int]] = []
    for enemy in living:
        dx, dy, dz = away(enemy)
        along = min(max((dx * half[0] + dy * half[1] + dz * half[2]) / size, F(-1)), F(1))
        if off(enemy, along) <= F(rules.HIT_RADIUS**2):
            met.append((along, enemy.number))
    left = m.shot_left[k] - F(rules.DT)
    lost = not homes and any(at[2] <= world.ground(at[0], at[1]) for at in (middle, end))
    m.shot_left[k] = F(0) if met or lost or left < F(rules.DT / 2) else left
    if not met:
        return []
    impact, first = min(met)
    target = world.enemies(m)[first]
    damage = weapon.damage * _factor(target, half[0], half[1])
    hits = [Hit(m, target, damage, weapon.stability, missile=homes, suppresses=weapon.name == "autocannon")]
    reach = F(weapon.splash) * F(weapon.splash)
    for other in living if weapon.splash > 0 else ():
        if other is not target and off(other, impact) <= reach:
            hits.append(Hit(m, other, weapon.damage * rules.SPLASH_SHARE))
    return hits
