"""Bugs of what mechs do: move, fire, hit, see, hear."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from recollect.tasks.mech import (
    actions,
    body,
    damage,
    movement,
    observe,
    projectiles,
    sensing,
    weapons,
)
from tests.mutants.mutant import Edit, Mutant
from tests.tasks.mech import (
    test_batches,
    test_movement,
    test_sensing,
    test_weapons,
)

Proof = Callable[[], None]


def patched(test: Callable[..., None], *given: object) -> Proof:
    """A test that needs a monkeypatch."""

    def proof() -> None:
        with pytest.MonkeyPatch.context() as patch:
            test(*given, monkeypatch=patch)

    return proof


def bug(name: str, proof: Proof, by: str, *edits: Edit) -> Mutant:
    return Mutant(name, proof, edits, by=by)


laser = functools.partial(test_weapons.test_damage, "laser", 14, 0)
slug = functools.partial(test_weapons.test_damage, "gauss", 50, 60)
firing = patched(test_weapons.test_range_arc_and_cooldown, "laser")
walking = functools.partial(test_movement.test_speed_by_class_and_direction, 1)
crowd = patched(test_movement.check_steps, 0, 30)
plain_range = functools.partial(test_sensing.test_sensor_range, False, False, 14.0)
jammed_range = functools.partial(test_sensing.test_sensor_range, True, False, 3.5)
regain = functools.partial(test_weapons.test_stability_is_regained, True, 1.0, 0.0, 5.0)
suppressed = functools.partial(test_weapons.test_stability_is_regained, False, 1.0, 1.2, 2.5)

MECHS = [
    bug(
        "mechs shoot their own side",
        laser,
        "assert taken == damage * factor",
        (damage, "apply", "(there(each.sum(2)) for each", "(each.sum(2) for each"),
    ),
    bug(
        "the front counts as the rear",
        laser,
        "assert taken == damage * factor",
        (
            weapons,
            "fire",
            "dx * of_target(arena.hx) + dy * of_target(arena.hy) >=",
            "-dx * of_target(arena.hx) - dy * of_target(arena.hy) >=",
        ),
    ),
    bug(
        "shots from the front count as from the rear",
        slug,
        "assert taken == damage * factor",
        (projectiles, "_flies_with", ">= REAR * flat", "<= -REAR * flat"),
    ),
    bug(
        "legs take all of the damage",
        laser,
        "legs[0, 1, SECOND]",
        (damage, "apply", "taken * LEG_SHARE", "taken"),
    ),
    bug(
        "a weapon that fired is ready again",
        firing,
        "weapon.cooldown - 0.05",
        (weapons, "fire", "torch.where(fires, tables.cooldown, arena.cooldown)", "arena.cooldown"),
    ),
    bug(
        "a mech at its heat cap shuts down",
        test_weapons.test_heat_shuts_down,
        "sees[at].any()) == acts",
        (body, "senses", "<=", "<"),
    ),
    bug(
        "a mech that is shut down can vent",
        test_weapons.test_heat_shuts_down,
        "it cannot vent",
        (body, "recover", "(orders.vent & awake)", "orders.vent"),
    ),
    bug(
        "electronic warfare costs no heat",
        test_sensing.test_only_scouts_have_electronic_warfare,
        "(heat - 13) / 4",
        (body, "recover", "costs * awake", "0 * costs"),
    ),
    bug(
        "a direct hit splashes its target as well",
        test_weapons.test_splash,
        "150 - float(task.hp[0, 1, SECOND]) == weapon.damage",
        (projectiles, "_hits", "& can & ~direct", "& can"),
    ),
    bug(
        "assists are farmed by painting again",
        test_weapons.test_assists_once_per_paint,
        "painting again does not pay again",
        (damage, "_paint", "fresh = painted & (arena.painted <= 0)", "fresh = painted"),
    ),
    bug(
        "an assist is paid for every missile",
        test_weapons.test_assists_once_per_paint,
        "sum(assists(paint, *[missile] * 7)) == 5.0",
        (damage, "_assists", "arena.owes_assist & ~arena.theirs(pays)", "arena.owes_assist"),
    ),
    bug(
        "every enemy that hit at the end has the kill",
        test_weapons.test_kills_and_deaths,
        'info["reward_kill"].tolist()',
        (damage, "apply", "died & most & (most.cumsum(2) == 1)", "died & most"),
    ),
    bug(
        "sight through walls",
        test_sensing.test_walls_and_smoke_block_sight,
        "assert not task.clear[0].any()",
        (sensing, "_over_ground", ".all(1)", ".any(1)"),
    ),
    bug(
        "smoke blocks sight while it is a shell",
        test_sensing.test_walls_and_smoke_block_sight,
        "SECOND]) == sees",
        (sensing, "_past_smoke", " & (arena.smoke_left <= SMOKE_LASTS)", ""),
    ),
    bug(
        "sight in one direction only",
        test_sensing.test_contacts_over_games,
        "sight is mutual",
        (sensing, "_clear", "found.transpose(1, 2)", "found"),
    ),
    bug(
        "wrecks block the way",
        test_batches.test_a_dead_mech_blocks_nobody,
        "task.x[0, 0, scenes.MEDIUM] > 1.0",
        (movement, "_too_near", "meets &= alive.unsqueeze(1)", "meets &= (alive | True).unsqueeze(1)"),
    ),
    bug(
        "the dead see",
        functools.partial(test_sensing.test_the_dead_and_the_shut_down_see_nothing, 0),
        "it sees",
        (body, "senses", "arena.alive & ", ""),
        (sensing, "update", "both = alive.unsqueeze(3) &", "both = (alive | True).unsqueeze(3) &"),
    ),
    bug(
        "the dead are seen",
        functools.partial(test_sensing.test_the_dead_and_the_shut_down_see_nothing, 1),
        "is seen",
        (sensing, "update", "& there(alive).unsqueeze(2)", "& there(alive | True).unsqueeze(2)"),
    ),
    bug(
        "messages are heard for ever",
        test_sensing.test_messages_reach_the_pack_one_decision_late,
        "said once",
        (actions, "decode", "arena.message.copy_(", "arena.message.add_("),
    ),
    bug(
        "messages reach the other side",
        test_sensing.test_messages_reach_the_pack_one_decision_late,
        "slots[place] == words.tolist()",
        (observe, "_messages", "heard = said[:, :,", "heard = said.flip(1)[:, :,"),
    ),
    bug(
        "the dead speak",
        test_sensing.test_messages_reach_the_pack_one_decision_late,
        "the dead are silent",
        (observe, "_messages", " * arena.alive.unsqueeze(3)", ""),
    ),
    bug(
        "of equal contacts the last comes first",
        test_sensing.test_of_equal_contacts_the_first_comes_first,
        "task.contact[0, 0, MEDIUM]",
        (sensing, "_first", "keys(values, numbers)", "keys(values, 255 - numbers)"),
        (sensing, "_first", "least & 255", "255 - (least & 255)"),
    ),
    bug(
        "the weakest by the hit points of the own side",
        test_sensing.test_contacts_over_games,
        "ranked",
        (sensing, "_contacts", "arena.square, there(arena.hp)", "arena.square, arena.hp"),
    ),
    bug(
        "sensors reach 21 m without ECCM",
        plain_range,
        "pytest.approx(reach)",
        (sensing, "_range", "CLEARED * cleared", "CLEARED * ~jammed"),
    ),
    bug(
        "ECM jams its own side",
        jammed_range,
        "pytest.approx(reach)",
        (sensing, "_range", "arena.theirs(works & (arena.ewar == ECM))", "works & (arena.ewar == ECM)"),
    ),
    bug(
        "wrecks are heard",
        test_sensing.test_sound,
        "== [0.0] * 4",
        (sensing, "sound", "* arena.tables.noise * arena.alive", "* arena.tables.noise"),
    ),
    bug(
        "full speed backward",
        walking,
        "math.hypot(dx, dy)",
        (movement, "move", "orders.forward * BACKWARD", "orders.forward"),
    ),
    bug(
        "faster along the diagonal",
        walking,
        "math.hypot(dx, dy)",
        (movement, "move", ".clamp(min=1.0) * DT", ".clamp(min=1.0, max=1.0) * DT"),
    ),
    bug(
        "legs do not matter",
        walking,
        "math.hypot(dx, dy)",
        (movement, "move", "can * LEGLESS", "can"),
    ),
    bug(
        "mechs that lie on the ground walk",
        crowd,
        "too far",
        (body, "active", " & (arena.down <= 0)", ""),
    ),
    bug(
        "mechs walk up walls",
        test_movement.test_obstacles_stop_and_slide,
        "== stops",
        (movement, "_slide", "arena.z + STEP_UP", "arena.z + 9.0"),
    ),
    bug(
        "two mechs may want the same place",
        test_movement.test_mechs_stop_each_other,
        "2 * RADIUS - 1e-5 <= gap",
        (movement, "_too_near", "torch.minimum(to_old, _squared(then, then))", "to_old"),
    ),
    bug(
        "jets have no ceiling",
        test_movement.test_jets,
        "highest < 15",
        (movement, "_rise_and_fall", "low = arena.z < here + CEILING", "low = here < here + CEILING"),
    ),
    bug(
        "a mech rises with no stability",
        test_weapons.test_falls,
        "float(task.x[at]) == x",
        (body, "recover", "torch.where(rises, RISEN, stability)", "stability"),
    ),
    bug(
        "moving does not cost stability",
        regain,
        "rate / 4",
        (body, "recover", "torch.where(moves, 0.5, 1.0)", "1.0"),
    ),
    bug(
        "suppression does not suppress",
        suppressed,
        "rate / 4",
        (body, "recover", "rate * SUPPRESSION", "rate"),
    ),
    bug(
        "missiles fly straight on",
        test_weapons.test_a_missile_follows_its_target,
        "in (110.0, 90.0)",
        (projectiles, "fly", "torch.where(follows, w / length * speed, v)", "v"),
    ),
    bug(
        "slugs are aimed at where the target was",
        test_weapons.test_a_missile_follows_its_target,
        "== 100.0",
        (weapons, "_launch", "d.unsqueeze(3) + v * lead", "d.unsqueeze(3) + 0 * v * lead"),
    ),
    bug(
        "shells fly through walls",
        test_weapons.test_a_shot_hits_the_first_in_its_way,
        "< 150) == arrives",
        (projectiles, "fly", "(lost & ~homes)", "(lost & homes)"),
    ),
]
