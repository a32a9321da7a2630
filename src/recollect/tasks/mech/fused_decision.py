"""A decision of the mech arena in one Triton kernel: five simulation steps, a slot in each program.

It follows ``movement``, ``weapons``, ``projectiles``, ``damage`` and ``body``, which tests compare it with.
What concerns mechs is kept in registers; mounts, shots and smoke are read from memory and written back in
every simulation step. With few lanes several threads have the same one, hence a barrier between reading a
number and overwriting it.
"""

# A type checker cannot follow Triton's functions: their conditions are decided at compile time.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportArgumentType=false
# pyright: reportReturnType=false, reportGeneralTypeIssues=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.tasks.mech import rules
from recollect.tasks.mech.fused_parts import (
    CLOUDS,
    COLUMNS,
    ECCM,
    ECM,
    HEIGHT,
    MOUNTS,
    SHOTS,
    SIDE,
    anywhere,
    column,
    ground,
    length,
    length3,
    of_target,
)

DT: tl.constexpr = tl.constexpr(rules.DT)
RATE: tl.constexpr = tl.constexpr(rules.RATE)
SUBSTEPS: tl.constexpr = tl.constexpr(rules.SUBSTEPS)
BORDER: tl.constexpr = tl.constexpr(rules.BORDER)
RADIUS: tl.constexpr = tl.constexpr(rules.RADIUS)
STEP_UP: tl.constexpr = tl.constexpr(rules.STEP_UP)
CEILING: tl.constexpr = tl.constexpr(rules.CEILING)
GRAVITY: tl.constexpr = tl.constexpr(rules.GRAVITY)
JET_HEAT: tl.constexpr = tl.constexpr(rules.JET_HEAT)
LEGLESS: tl.constexpr = tl.constexpr(rules.LEGLESS)
BACKWARD: tl.constexpr = tl.constexpr(rules.BACKWARD)
HIT_RADIUS: tl.constexpr = tl.constexpr(rules.HIT_RADIUS)
MISSILE_IN_SIGHT: tl.constexpr = tl.constexpr(rules.MISSILE_IN_SIGHT)
REAR: tl.constexpr = tl.constexpr(rules.REAR)
REAR_FACTOR: tl.constexpr = tl.constexpr(rules.REAR_FACTOR)
SPLASH_SHARE: tl.constexpr = tl.constexpr(rules.SPLASH_SHARE)
SMOKE_AHEAD: tl.constexpr = tl.constexpr(rules.SMOKE_AHEAD)
SMOKE_LASTS: tl.constexpr = tl.constexpr(rules.SMOKE_LASTS)
SMOKE_SLOWNESS: tl.constexpr = tl.constexpr(1 / rules.WEAPONS["smoke"].speed)
LEG_SHARE: tl.constexpr = tl.constexpr(rules.LEG_SHARE)
SUPPRESSED: tl.constexpr = tl.constexpr(rules.SUPPRESSED)
SUPPRESSION: tl.constexpr = tl.constexpr(rules.SUPPRESSION)
PAINTED: tl.constexpr = tl.constexpr(rules.PAINTED)
STABILITY: tl.constexpr = tl.constexpr(rules.STABILITY)
REGAIN: tl.constexpr = tl.constexpr(rules.REGAIN)
FALL_SECONDS: tl.constexpr = tl.constexpr(rules.FALL_SECONDS)
RISEN: tl.constexpr = tl.constexpr(rules.RISEN)
VENT: tl.constexpr = tl.constexpr(rules.VENT)
TRIGGERS: tl.constexpr = tl.constexpr(len(rules.TRIGGER_NAMES))
ECM_HEAT: tl.constexpr = tl.constexpr(rules.EWAR_HEAT[rules.ECM])
ECCM_HEAT: tl.constexpr = tl.constexpr(rules.EWAR_HEAT[rules.ECCM])
LAST: tl.constexpr = tl.constexpr(1 << 20)
"""More than any number of a lane."""


@triton.jit
def decide(
    move_at, triggers_at, target_at, map_at, heights_at, table_at, clear_at,
    x_at, y_at, z_at, hx_at, hy_at, vx_at, vy_at, vz_at, hp_at, legs_at, heat_at, stability_at, down_at,
    suppressed_at, painted_at, painter_at, owes_at, ewar_at, cooldown_at, fired_at,
    shot_x_at, shot_y_at, shot_z_at, shot_vx_at, shot_vy_at, shot_vz_at, shot_left_at, shot_target_at,
    smoke_x_at, smoke_y_at, smoke_left_at, dealt_at, damage_at, kills_at, assists_at,
    N: tl.constexpr, LANES: tl.constexpr, SMOKE_RANGE: tl.constexpr,
):  # fmt: skip
    """Pointers to the fields of all slots. ``move`` [E, 2, N, 4], the others as in ``MechArena``."""
    slot = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, LANES)
    real = lane < 2 * N
    side, number = lane // N, lane % N
    at = slot * (2 * N) + lane
    enemy = (side[:, None] != side[None, :]) & real[:, None] & real[None, :]
    table = table_at + number * COLUMNS
    heights = heights_at + tl.load(map_at + slot) * (SIDE * SIDE)

    forward = tl.load(move_at + at * 4, mask=real, other=0.0)
    strafe = tl.load(move_at + at * 4 + 1, mask=real, other=0.0)
    jump = tl.load(move_at + at * 4 + 2, mask=real, other=0.0)
    turn = tl.load(move_at + at * 4 + 3, mask=real, other=0.0)
    target = tl.load(target_at + at, mask=real, other=-1).to(tl.int32)
    vent = tl.load(triggers_at + at * TRIGGERS + VENT, mask=real, other=0) != 0
    aims = (target >= 0) & real
    aim = enemy & (number[None, :] == target[:, None]) & aims[:, None]
    is_clear = tl.load(clear_at + at * N + tl.maximum(target, 0), mask=aims, other=0) != 0

    x, y = tl.load(x_at + at, mask=real, other=0.0), tl.load(y_at + at, mask=real, other=0.0)
    z = tl.load(z_at + at, mask=real, other=0.0)
    hx, hy = tl.load(hx_at + at, mask=real, other=1.0), tl.load(hy_at + at, mask=real, other=0.0)
    vx, vy = tl.load(vx_at + at, mask=real, other=0.0), tl.load(vy_at + at, mask=real, other=0.0)
    vz = tl.load(vz_at + at, mask=real, other=0.0)
    hp = tl.load(hp_at + at, mask=real, other=0.0)
    legs = tl.load(legs_at + at, mask=real, other=0.0)
    heat = tl.load(heat_at + at, mask=real, other=0.0)
    stability = tl.load(stability_at + at, mask=real, other=0.0)
    down = tl.load(down_at + at, mask=real, other=0.0)
    suppressed = tl.load(suppressed_at + at, mask=real, other=0.0)
    painted = tl.load(painted_at + at, mask=real, other=0.0)
    painter = tl.load(painter_at + at, mask=real, other=0).to(tl.int32)
    owes = tl.load(owes_at + at, mask=real, other=0) != 0
    ewar = tl.load(ewar_at + at, mask=real, other=0)
    heat_cap = tl.load(table + column("heat_cap"))
    heat_loss = tl.load(table + column("heat_loss"))
    none = tl.zeros([LANES], tl.float32)
    done, kills, assists = none, none, none
    dealt = tl.zeros([LANES, LANES], tl.float32)

    for _ in range(SUBSTEPS):
        alive = hp > 0
        active = alive & (heat <= heat_cap) & (down <= 0)

        # Movement.
        hx, hy = _turn(hx, hy, turn * active.to(tl.float32), tl.load(table + column("turn")))
        to_x, to_y = _walk(heights, table, x, y, z, hx, hy, legs, forward, strafe, active, real)
        stays = _too_near(x, y, z, to_x, to_y, alive, lane)
        to_x, to_y = tl.where(stays, x, to_x), tl.where(stays, y, to_y)
        vx, vy = (to_x - x) * RATE, (to_y - y) * RATE
        z, vz, heat = _rise_and_fall(
            heights, table, x, y, z, vz, to_x, to_y, heat, jump * active.to(tl.float32), real
        )
        x, y = to_x, to_y

        # Firing: what hits at once, and what is launched.
        dx, dy = of_target(aim, x) - x, of_target(aim, y) - y
        dz = of_target(aim, z) - z
        flat = length(dx, dy)
        distance = length(flat, dz)
        ahead = dx * hx + dy * hy
        exists = of_target(aim, alive.to(tl.float32)) > 0
        homes = (of_target(aim, painted) > 0) | (is_clear & (distance <= MISSILE_IN_SIGHT))
        fires = tl.zeros([LANES], tl.int32)  # a bit for each mount
        for k in range(MOUNTS):
            can = (ahead >= tl.load(table + column("arc") + k) * flat) & (
                distance <= tl.load(table + column("range") + k)
            )
            is_missile = tl.load(table + column("is_missile") + k) > 0
            can = can & ((is_missile & homes) | (~is_missile & is_clear)) & exists
            can = can | (tl.load(table + column("is_smoke") + k) > 0)
            cooldown = tl.load(cooldown_at + at * MOUNTS + k, mask=real, other=1.0)
            trigger = tl.load(table + column("trigger") + k).to(tl.int32)
            pulled = tl.load(triggers_at + at * TRIGGERS + trigger, mask=real, other=0) != 0
            ready = (tl.load(table + column("exists") + k) > 0) & (cooldown <= 0) & active
            fires = fires | ((can & ready & pulled).to(tl.int32) << k)

        target_vx, target_vy, target_vz = of_target(aim, vx), of_target(aim, vy), of_target(aim, vz)
        free_mounts = tl.zeros([LANES], tl.int32)  # with a free place among the shots so far
        launches = tl.zeros([LANES], tl.int32)
        for p in range(SHOTS):
            mount = tl.load(table + column("shot_mount") + p).to(tl.int32)
            left = tl.load(shot_left_at + at * SHOTS + p, mask=real, other=0.0)
            free = (tl.load(table + column("shot_exists") + p) > 0) & (left <= 0)
            tl.debug_barrier()
            goes = free & (((free_mounts >> mount) & 1) == 0) & (((fires >> mount) & 1) == 1)
            free_mounts = free_mounts | (free.to(tl.int32) << mount)
            launches = launches | (goes.to(tl.int32) << mount)
            # Aim ahead of a moving target; a missile follows it.
            lead = distance * tl.load(table + column("shot_lead") + p)
            way_x, way_y, way_z = dx + target_vx * lead, dy + target_vy * lead, dz + target_vz * lead
            speed = tl.load(table + column("shot_speed") + p)
            speed = tl.div_rn(speed, tl.maximum(length3(way_x, way_y, way_z), 1e-6))
            place = at * SHOTS + p
            tl.store(shot_x_at + place, x, mask=goes)
            tl.store(shot_y_at + place, y, mask=goes)
            tl.store(shot_z_at + place, z + HEIGHT / 2, mask=goes)
            tl.store(shot_vx_at + place, way_x * speed, mask=goes)
            tl.store(shot_vy_at + place, way_y * speed, mask=goes)
            tl.store(shot_vz_at + place, way_z * speed, mask=goes)
            tl.store(shot_left_at + place, tl.load(table + column("shot_life") + p), mask=goes)
            tl.store(shot_target_at + place, target.to(tl.int64), mask=goes)

        spent, hit_damage, hit_heat = none, none, none
        paints, smokes = lane < 0, lane < 0
        tl.debug_barrier()
        for k in range(MOUNTS):
            is_smoke = tl.load(table + column("is_smoke") + k) > 0
            at_once = (tl.load(table + column("is_instant") + k) > 0) | is_smoke
            one = (((fires >> k) & 1) == 1) & (at_once | (((launches >> k) & 1) == 1))
            share = one.to(tl.float32)
            spent += share * tl.load(table + column("heat") + k)
            hit_damage += share * tl.load(table + column("hit_damage") + k)
            hit_heat += share * tl.load(table + column("hit_heat") + k)
            paints = paints | (one & (tl.load(table + column("is_paint") + k) > 0))
            smokes = smokes | (one & is_smoke)
            tl.store(cooldown_at + at * MOUNTS + k, tl.load(table + column("cooldown") + k), mask=one & real)
            tl.store(fired_at + at * MOUNTS + k, one, mask=one & real)
        _smoke(
            smoke_x_at, smoke_y_at, smoke_left_at, at * CLOUDS, smokes & real, exists, dx, dy, flat,
            x, y, hx, hy, SMOKE_RANGE,
        )  # fmt: skip
        heat += spent
        # From behind: the direction to the attacker is within REAR of the target's back.
        behind = dx * of_target(aim, hx) + dy * of_target(aim, hy) >= REAR * flat
        hit_damage = hit_damage * tl.where(behind, REAR_FACTOR, 1.0)
        damage = tl.where(aim, hit_damage[:, None], 0.0)
        heated = tl.where(aim, hit_heat[:, None], 0.0)
        paint = aim & paints[:, None]
        shaken = tl.zeros([LANES, LANES], tl.float32)
        missiles, suppresses = enemy & (lane < 0)[:, None], enemy & (lane < 0)[:, None]
        tl.debug_barrier()  # shots were stored

        # Flight.
        for p in range(SHOTS):
            place = at * SHOTS + p
            left = tl.load(shot_left_at + place, mask=real, other=0.0)
            flies = left > 0
            sx = tl.load(shot_x_at + place, mask=real, other=0.0)
            sy = tl.load(shot_y_at + place, mask=real, other=0.0)
            sz = tl.load(shot_z_at + place, mask=real, other=0.0)
            shot_vx = tl.load(shot_vx_at + place, mask=real, other=0.0)
            shot_vy = tl.load(shot_vy_at + place, mask=real, other=0.0)
            shot_vz = tl.load(shot_vz_at + place, mask=real, other=0.0)
            followed = tl.load(shot_target_at + place, mask=real, other=-1).to(tl.int32)
            is_missile = tl.load(table + column("shot_homes") + p) > 0
            # Missiles turn to their targets while these live.
            to = enemy & (number[None, :] == followed[:, None]) & (followed >= 0)[:, None]
            follows = is_missile & (of_target(to, alive.to(tl.float32)) > 0)
            way_x, way_y = of_target(to, x) - sx, of_target(to, y) - sy
            way_z = of_target(to, z + HEIGHT / 2) - sz
            far = tl.maximum(length3(way_x, way_y, way_z), 1e-6)
            speed = tl.load(table + column("shot_speed") + p)
            shot_vx = tl.where(follows, tl.div_rn(way_x, far) * speed, shot_vx)
            shot_vy = tl.where(follows, tl.div_rn(way_y, far) * speed, shot_vy)
            shot_vz = tl.where(follows, tl.div_rn(way_z, far) * speed, shot_vz)
            half_x, half_y, half_z = shot_vx * (DT / 2), shot_vy * (DT / 2), shot_vz * (DT / 2)
            mid_x, mid_y, mid_z = sx + half_x, sy + half_y, sz + half_z
            end_x, end_y, end_z = mid_x + half_x, mid_y + half_y, mid_z + half_z

            # Hits, from the middle of the path.
            away_x = x[None, :] - mid_x[:, None]
            away_y = y[None, :] - mid_y[:, None]
            away_z = (z + HEIGHT / 2)[None, :] - mid_z[:, None]
            path_x, path_y, path_z = half_x[:, None], half_y[:, None], half_z[:, None]
            span = tl.maximum(path_x * path_x + path_y * path_y + path_z * path_z, 1e-12)
            along = tl.div_rn(away_x * path_x + away_y * path_y + away_z * path_z, span)
            along = tl.minimum(tl.maximum(along, -1.0), 1.0)
            can = enemy & alive[None, :] & flies[:, None]
            miss = _square(away_x, away_y, away_z, path_x, path_y, path_z, along)
            meets = can & (miss <= HIT_RADIUS * HIT_RADIUS)
            order = tl.where(meets, along + 1.0, 3.0)
            nearest = meets & (order == tl.min(order, 1)[:, None])
            # Of equals, the first.
            direct = nearest & (lane[None, :] == tl.min(tl.where(nearest, lane[None, :], LAST), 1)[:, None])
            hits = anywhere(direct, 1)
            impact = tl.sum(tl.where(direct, along, 0.0), 1)[:, None]
            splash = tl.load(table + column("splash") + p)
            blast = _square(away_x, away_y, away_z, path_x, path_y, path_z, impact)
            near = blast <= (splash * splash)[:, None]
            splashed = near & can & ~direct & (hits & (splash > 0))[:, None]
            points = tl.load(table + column("shot_damage") + p)
            taken = tl.where(splashed, (points * SPLASH_SHARE)[:, None], 0.0)
            taken = tl.where(direct, points[:, None], taken)
            level = length(half_x, half_y)[:, None]
            is_rear = path_x * hx[None, :] + path_y * hy[None, :] >= REAR * level
            damage += tl.where(is_rear & direct, taken * REAR_FACTOR, taken)
            shaken += tl.where(direct, tl.load(table + column("shot_stability") + p)[:, None], 0.0)
            missiles = missiles | (direct & is_missile[:, None])
            suppresses = suppresses | (direct & (tl.load(table + column("shot_suppresses") + p) > 0)[:, None])

            lost = (mid_z <= ground(heights, mid_x, mid_y, flies)) | (
                end_z <= ground(heights, end_x, end_y, flies)
            )
            left = left - DT
            tl.debug_barrier()
            ends = hits | (lost & ~is_missile) | (left < DT / 2)
            tl.store(shot_x_at + place, end_x, mask=flies)
            tl.store(shot_y_at + place, end_y, mask=flies)
            tl.store(shot_z_at + place, end_z, mask=flies)
            tl.store(shot_vx_at + place, shot_vx, mask=flies)
            tl.store(shot_vy_at + place, shot_vy, mask=flies)
            tl.store(shot_vz_at + place, shot_vz, mask=flies)
            tl.store(shot_left_at + place, tl.where(ends, 0.0, left), mask=flies)

        # Damage. What a mech takes is the sum over the enemies that dealt it.
        taken = tl.sum(damage, 0)
        hp = tl.maximum(hp - taken, 0.0)
        legs = tl.maximum(legs - taken * LEG_SHARE, 0.0)
        stability = tl.maximum(stability - tl.sum(shaken, 0), 0.0)
        heat = heat + tl.sum(heated, 0)
        suppressed = tl.where(anywhere(suppresses, 0), SUPPRESSED, suppressed)
        dealt += damage
        done += tl.sum(damage, 1)
        # A kill is of the enemy that dealt most in this step; of equals, the first.
        died = alive & (hp <= 0)
        most = enemy & (damage == tl.max(damage, 0)[None, :])
        killer = tl.min(tl.where(most, lane[:, None], LAST), 0)
        kills += tl.sum((most & (lane[:, None] == killer[None, :]) & died[None, :]).to(tl.float32), 1)
        # A painted enemy was hit by a missile of somebody else: its painter is paid, once for this paint.
        by_painter = enemy & (number[:, None] == painter[None, :])
        pays = anywhere(missiles & ~by_painter, 0) & owes & (painted > 0)
        assists += tl.sum((by_painter & pays[None, :]).to(tl.float32), 1)
        owes = owes & ~pays
        # Paint lasts from the last hit on; it is new if the mech was not painted.
        is_hit = anywhere(paint, 0)
        fresh = is_hit & (painted <= 0)
        owes = (owes & (painted > 0)) | fresh
        first = tl.min(tl.where(paint, number[:, None], LAST), 0)
        painter = tl.where(fresh, first, painter)
        painted = tl.where(is_hit, PAINTED, painted)

        # The end of the simulation step: heat and clocks go down, mechs fall, rise, regain stability.
        awake = (hp > 0) & (heat <= heat_cap) & (down <= 0)
        loss = heat_loss * (1 + (vent & awake).to(tl.float32))
        costs = (ewar == ECM).to(tl.float32) * ECM_HEAT + (ewar == ECCM).to(tl.float32) * ECCM_HEAT
        heat = tl.maximum(heat + (costs * awake.to(tl.float32) - loss) * DT, 0.0)
        moves = (vx != 0) | (vy != 0)
        rate = tl.where(moves, 0.5, 1.0) * tl.where(legs > 0, REGAIN, REGAIN / 2)
        rate = tl.where(suppressed > 0, rate * SUPPRESSION, rate) * (down <= 0).to(tl.float32)
        falls = (stability <= 0) & (down <= 0)
        left = _count_down(down)
        rises = (down > 0) & (left <= 0)
        stability = tl.minimum(stability + rate * DT, STABILITY)
        stability = tl.where(rises, RISEN, tl.where(falls, 0.0, stability))
        down = tl.where(falls, FALL_SECONDS, left)
        suppressed, painted = _count_down(suppressed), _count_down(painted)
        tl.debug_barrier()
        for k in range(MOUNTS):
            clock = tl.load(cooldown_at + at * MOUNTS + k, mask=real, other=0.0)
            tl.debug_barrier()
            tl.store(cooldown_at + at * MOUNTS + k, _count_down(clock), mask=real)
        for k in range(CLOUDS):
            clock = tl.load(smoke_left_at + at * CLOUDS + k, mask=real, other=0.0)
            tl.debug_barrier()
            tl.store(smoke_left_at + at * CLOUDS + k, _count_down(clock), mask=real)
        tl.debug_barrier()

    tl.store(x_at + at, x, mask=real)
    tl.store(y_at + at, y, mask=real)
    tl.store(z_at + at, z, mask=real)
    tl.store(hx_at + at, hx, mask=real)
    tl.store(hy_at + at, hy, mask=real)
    tl.store(vx_at + at, vx, mask=real)
    tl.store(vy_at + at, vy, mask=real)
    tl.store(vz_at + at, vz, mask=real)
    tl.store(hp_at + at, hp, mask=real)
    tl.store(legs_at + at, legs, mask=real)
    tl.store(heat_at + at, heat, mask=real)
    tl.store(stability_at + at, stability, mask=real)
    tl.store(down_at + at, down, mask=real)
    tl.store(suppressed_at + at, suppressed, mask=real)
    tl.store(painted_at + at, painted, mask=real)
    tl.store(painter_at + at, painter.to(tl.int64), mask=real)
    tl.store(owes_at + at, owes, mask=real)
    tl.store(damage_at + at, done, mask=real)
    tl.store(kills_at + at, kills, mask=real)
    tl.store(assists_at + at, assists, mask=real)
    pair = at[:, None] * N + number[None, :]
    dealt += tl.load(dealt_at + pair, mask=enemy, other=0.0)
    tl.debug_barrier()
    tl.store(dealt_at + pair, dealt, mask=enemy)


@triton.jit
def _turn(hx, hy, turn, rate):
    """Turn by ``turn`` times the rate of the class, to the left if positive."""
    half = turn * (rate * (DT / 2))
    square = half * half
    cosine, sine = tl.div_rn(1 - square, 1 + square), tl.div_rn(half + half, 1 + square)
    to_x, to_y = hx * cosine - hy * sine, hx * sine + hy * cosine
    size = length(to_x, to_y)
    return tl.div_rn(to_x, size), tl.div_rn(to_y, size)


@triton.jit
def _walk(heights, table, x, y, z, hx, hy, legs, forward, strafe, active, real):
    """Where mechs get: where they want to, or along one axis, or nowhere."""
    can = tl.load(table + column("speed")) * active.to(tl.float32)
    speed = tl.where(legs > 0, can, can * LEGLESS)
    ahead = tl.where(forward < 0, forward * BACKWARD, forward)
    aside = strafe * BACKWARD
    speed = tl.div_rn(speed, tl.maximum(length(ahead, aside), 1.0)) * DT
    ahead, aside = ahead * speed, aside * speed
    to_x = x + (hx * ahead - hy * aside)
    to_y = y + (hy * ahead + hx * aside)
    to_x = tl.minimum(tl.maximum(to_x, -BORDER), BORDER)
    to_y = tl.minimum(tl.maximum(to_y, -BORDER), BORDER)
    highest = z + STEP_UP
    free = ground(heights, to_x, to_y, real) <= highest
    free_x = ground(heights, to_x, y, real) <= highest
    free_y = ground(heights, x, to_y, real) <= highest
    moves_x = free | free_x
    moves_y = free | (free_y & ~free_x)
    return tl.where(moves_x, to_x, x), tl.where(moves_y, to_y, y)


@triton.jit
def _too_near(x, y, z, to_x, to_y, alive, lane):
    """Whose move ends too near to where another mech is, or wants to be."""
    before = _apart(x, y, x, y)
    nearest = tl.minimum(_apart(to_x, to_y, x, y), _apart(to_x, to_y, to_x, to_y))
    meets = (tl.abs(z[:, None] - z[None, :]) < HEIGHT) & alive[None, :] & (lane[:, None] != lane[None, :])
    meets = meets & (nearest < before) & (nearest < (2 * RADIUS) * (2 * RADIUS))
    return anywhere(meets, 1)


@triton.jit
def _apart(ax, ay, bx, by):
    """Squared distances from points a to points b."""
    dx, dy = ax[:, None] - bx[None, :], ay[:, None] - by[None, :]
    return dx * dx + dy * dy


@triton.jit
def _rise_and_fall(heights, table, x, y, z, vz, to_x, to_y, heat, jump, real):
    """Jump jets, gravity, and the ground at the new place. Returns z, vz and heat."""
    here, there = ground(heights, x, y, real), ground(heights, to_x, to_y, real)
    jet = tl.load(table + column("jet"))
    push = tl.maximum(jump, 0.0) * ((z < here + CEILING) & (jet > 0)).to(tl.float32)
    vz = vz + (push * jet - GRAVITY) * DT
    to_z = z + vz * DT
    walks = (z <= here) & (push == 0) & (z - there <= STEP_UP)
    stands = walks | (to_z <= there)
    return tl.where(stands, there, to_z), tl.where(stands, 0.0, vz), heat + push * (JET_HEAT * DT)


@triton.jit
def _smoke(
    smoke_x_at, smoke_y_at, smoke_left_at, at, fires, has_target, dx, dy, flat, x, y, hx, hy,
    SMOKE_RANGE: tl.constexpr,
):  # fmt: skip
    """Shells of smoke, to where the target is, or ahead. The cloud that ends first gives way."""
    near = tl.minimum(tl.div_rn(1.0, tl.maximum(flat, 1e-6)) * SMOKE_RANGE, 1.0)
    near = tl.where(has_target, near, 0.0)
    far = tl.where(has_target, tl.minimum(flat, SMOKE_RANGE), SMOKE_AHEAD)
    to_x = x + tl.where(has_target, dx * near, hx * SMOKE_AHEAD)
    to_y = y + tl.where(has_target, dy * near, hy * SMOKE_AHEAD)
    least = tl.load(smoke_left_at + at, mask=fires, other=0.0)
    for k in range(1, CLOUDS):
        least = tl.minimum(least, tl.load(smoke_left_at + at + k, mask=fires, other=0.0))
    tl.debug_barrier()  # before the first of them is stored
    for k in range(CLOUDS):
        here = fires & (tl.load(smoke_left_at + at + k, mask=fires, other=0.0) == least)
        tl.debug_barrier()
        tl.store(smoke_x_at + at + k, to_x, mask=here)
        tl.store(smoke_y_at + at + k, to_y, mask=here)
        tl.store(smoke_left_at + at + k, SMOKE_LASTS + far * SMOKE_SLOWNESS, mask=here)
        fires = fires & ~here


@triton.jit
def _square(away_x, away_y, away_z, path_x, path_y, path_z, along):
    """Squared distances from the points ``along`` of the paths, from -1 to 1, to the mechs ``away``."""
    dx, dy, dz = away_x - along * path_x, away_y - along * path_y, away_z - along * path_z
    return dx * dx + dy * dy + dz * dz


@triton.jit
def _count_down(clock):
    """A clock in seconds after one simulation step."""
    left = clock - DT
    return tl.where(left < DT / 2, 0.0, left)
