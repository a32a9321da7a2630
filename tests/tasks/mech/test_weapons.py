"""Weapons by hand: ranges, arcs, damage, heat, cooldowns, shots, splash, falls, paint and smoke."""

from __future__ import annotations

import math

import pytest
import torch

from recollect.tasks.mech import MechArena, arena, sensing
from recollect.tasks.mech.rules import CLASSES, WEAPONS, roster
from tests.tasks.mech import scenes
from tests.tasks.mech.scenes import HEAVY, LIGHT, MEDIUM, SCOUT, SECOND

MOUNTED = {
    "laser": (MEDIUM, 0, 0),
    "flamer": (LIGHT, 0, 0),
    "missile": (HEAVY, 1, 1),
    "gauss": (HEAVY, 2, 2),
    "autocannon": (MEDIUM, 2, 2),
    "paint": (SCOUT, 0, 0),
    "smoke": (SCOUT, 4, 3),
}
"""Of each weapon: a mech that has it, its mount and trigger."""


def duel(
    name: str, distance: float, angle: float = 0.0, facing: tuple[float, float] = (-1.0, 0.0)
) -> MechArena:
    """Blue has the weapon; a red medium stands ``angle`` degrees to its left. Both know each other."""
    number, mount, _ = MOUNTED[name]
    x, y = distance * math.cos(math.radians(angle)), distance * math.sin(math.radians(angle))
    task = scenes.stage(
        (0, number, -distance / 2, 20.0, 1.0, 0.0),
        (1, SECOND, x - distance / 2, 20.0 + y, *facing),
        sensing="full",
    )
    task.cooldown[0, 0, number] = 60.0
    task.cooldown[0, 0, number, mount] = 0.0
    if name == "missile" and distance > 12:
        task.painted[0, 1, SECOND] = 60.0
        task.owes_assist[0, 1, SECOND] = False
    return task


def shoot(task: MechArena, name: str, decisions: int = 1, **more: object) -> bool:
    """Whether it fired in the first decision; then ``decisions`` - 1 more pass."""
    number, mount, trigger = MOUNTED[name]
    scenes.act(task, {(0, number): {"fire": [trigger], **more}})
    fired = bool(task.fired[0, 0, number, mount])
    for _ in range(decisions - 1):
        scenes.act(task)
    return fired


@pytest.mark.parametrize("name", ["laser", "flamer", "missile", "gauss", "autocannon", "paint"])
def test_range_arc_and_cooldown(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fires just within its range and arc, not beyond; heats; waits for its cooldown to the step."""
    monkeypatch.setattr(arena, "SUBSTEPS", 1)
    weapon, (number, mount, _) = WEAPONS[name], MOUNTED[name]
    assert shoot(duel(name, weapon.range - 0.01), name)
    assert not shoot(duel(name, weapon.range + 0.02), name)
    near, half = weapon.range / 2, weapon.arc / 2
    for angle in (half - 0.5, 0.5 - half):
        assert shoot(duel(name, near, angle), name)
    for angle in (half + 0.5, -half - 0.5):
        assert not shoot(duel(name, near, angle), name)
    task, kind = duel(name, near), CLASSES[roster(5)[number]]
    task.heat[0, 0, number] = kind.heat_cap / 2
    assert shoot(task, name)
    expected = kind.heat_cap / 2 + weapon.heat - kind.heat_loss * 0.05
    assert float(task.heat[0, 0, number]) == pytest.approx(expected, rel=1e-5)
    assert float(task.cooldown[0, 0, number, mount]) == pytest.approx(weapon.cooldown - 0.05, abs=1e-6)
    task = duel(name, near)
    task.cooldown[0, 0, number, mount] = 0.1
    assert [shoot(task, name) for _ in range(3)] == [False, False, True]


def test_a_missile_needs_sight_or_paint() -> None:
    """12 m if it is in sight, 50 m if it is painted, also behind a wall."""
    assert shoot(duel("missile", 11.9), "missile")
    task = duel("missile", 12.1)
    task.painted.zero_()
    assert not shoot(task, "missile")
    for painted in (False, True):
        task = duel("missile", 9.0)
        for y in range(15, 26):
            scenes.wall(task, 0.5, y + 0.5)
        task.painted[0, 1, SECOND] = 5.0 * painted
        sensing.update(task)
        assert not task.clear[0, 0, HEAVY, SECOND]
        assert shoot(task, "missile") == painted


FACING = {"front": (-1.0, 0.0), "back": (1.0, 0.0), "46": (0.6947, 0.7193), "44": (0.7193, 0.6947)}


@pytest.mark.parametrize(
    ("name", "damage", "stability"),
    [("laser", 14, 0), ("flamer", 4, 0), ("missile", 40, 15), ("gauss", 50, 60), ("autocannon", 8, 5)],
)
def test_damage(name: str, damage: float, stability: float) -> None:
    """What a hit takes, a quarter of it from the legs as well; 1.5 times within 45 degrees of the back."""
    for facing, factor in (("front", 1.0), ("back", 1.5), ("46", 1.0), ("44", 1.5)):
        task = duel(name, 3.0, facing=FACING[facing])
        number, mount, _ = MOUNTED[name]
        task.cooldown[0, 0, number, mount] = 0.15  # one shot, in the fourth step
        assert shoot(task, name, 2)
        taken = 150 - float(task.hp[0, 1, SECOND])
        assert taken == damage * factor, facing
        assert float(task.legs[0, 1, SECOND]) == 75 - taken / 4
        assert float(task.dealt[0, 0, number, SECOND]) == taken
        lost = 100 - float(task.stability[0, 1, SECOND])
        assert stability - 5 < lost <= stability
        assert (lost > 0) == (stability > 0)


def test_heat_of_hits() -> None:
    """A laser heats its target by 6, a flamer by 15."""
    for name, heat in (("laser", 6), ("flamer", 15)):
        task = duel(name, 3.0)
        task.heat[0, 1, SECOND] = 50.0
        number, mount, trigger = MOUNTED[name]
        task.cooldown[0, 0, number, mount] = 0.2
        scenes.act(task, {(0, number): {"fire": [trigger]}})
        assert float(task.heat[0, 1, SECOND]) == pytest.approx(50 + heat - 11 * 0.25, rel=1e-5)


def test_splash() -> None:
    """Others within its radius take half, and no stability; the target takes no splash, friends none."""
    for name, radius in (("missile", 2.5), ("gauss", 1.5)):
        for near in (True, False):
            side = (radius - 0.2) if near else (radius + 0.2)
            task, weapon = duel(name, 6.0), WEAPONS[name]
            # The shot ends 1 m before its target, at most.
            scenes.put(task, 1, MEDIUM, 3.0, 20.0 + side, -1.0, 0.0)
            scenes.put(task, 0, SECOND, 3.0, 20.0 - side, 1.0, 0.0)
            sensing.update(task)
            shoot(task, name, 4)
            assert 150 - float(task.hp[0, 1, SECOND]) == weapon.damage
            assert 150 - float(task.hp[0, 1, MEDIUM]) == weapon.damage / 2 * near
            assert float(task.stability[0, 1, MEDIUM]) == 100.0
            assert float(task.hp[0, 0, SECOND]) == 150.0


def test_a_shot_hits_the_first_in_its_way() -> None:
    """Also a fast one that passes both in one step; shells are lost in walls, missiles fly above them."""
    task = duel("gauss", 8.0)
    shoot(task, "gauss")
    assert float(task.hp[0, 1, SECOND]) == 100.0
    task = duel("gauss", 8.0)
    scenes.put(task, 1, MEDIUM, 0.0, 20.5, -1.0, 0.0)
    task.contact[0, 0, HEAVY, 3] = 5 + SECOND
    shoot(task, "gauss", 3, target=3)
    assert float(task.hp[0, 1, SECOND]) == 150.0
    assert float(task.hp[0, 1, MEDIUM]) == 100.0
    for name, arrives in (("gauss", False), ("missile", True)):
        task = duel(name, 9.0)
        for y in range(15, 26):
            scenes.wall(task, 0.5, y + 0.5)
            scenes.wall(task, 1.5, y + 0.5)
        shoot(task, name, 6)  # the last observation was before the wall
        assert (float(task.hp[0, 1, SECOND]) < 150) == arrives


def test_a_missile_follows_its_target() -> None:
    """A slug is aimed ahead of a moving target; a missile follows one that turns away."""
    task = duel("missile", 9.0, facing=(0.0, 1.0))
    fired = shoot(task, "missile")
    for _ in range(8):
        scenes.act(task, {(1, SECOND): {"move": [1.0, 0, 0, 0]}})
    assert fired
    assert float(task.hp[0, 1, SECOND]) in (110.0, 90.0)
    task = duel("gauss", 16.0, facing=(0.0, 1.0))
    for k in range(6):
        scenes.act(task, {(1, SECOND): {"move": [1.0, 0, 0, 0]}, (0, HEAVY): {"fire": [2] if k == 1 else []}})
    assert float(task.hp[0, 1, SECOND]) == 100.0


def test_falls() -> None:
    """At stability 0 a mech lies for 3 seconds, 60 steps, in which it cannot act, then it has 50."""
    task = duel("gauss", 3.0)
    task.stability[0, 1, SECOND] = 55.0
    shoot(task, "gauss")
    at, lay = (0, 1, SECOND), 0
    while task.down[at] > 0:
        x = float(task.x[at])
        scenes.act(task, {(1, SECOND): {"move": [1.0, 0, 0, 0], "fire": [0, 2]}})
        lay += 1
        if task.down[at] > 0:
            assert float(task.x[at]) == x
            assert not task.fired[at].any()
            assert float(task.stability[at]) == 0.0
    assert lay == 12
    assert 50.0 <= float(task.stability[at]) <= 52.5


@pytest.mark.parametrize(
    ("moves", "legs", "suppressed", "rate"),
    [
        (False, 1.0, 0.0, 10.0),
        (True, 1.0, 0.0, 5.0),
        (False, 0.0, 0.0, 5.0),
        (True, 0.0, 0.0, 2.5),
        (False, 1.0, 1.2, 2.5),
        (True, 0.0, 1.2, 0.625),
    ],
)
def test_stability_is_regained(moves: bool, legs: float, suppressed: float, rate: float) -> None:
    """10 per second; half while moving, half without legs; a quarter while suppressed."""
    task = scenes.stage((0, MEDIUM, 0.0, 20.0, 1.0, 0.0))
    at = (0, 0, MEDIUM)
    task.stability[at], task.legs[at], task.suppressed[at] = 40.0, legs, suppressed
    scenes.act(task, {(0, MEDIUM): {"move": [float(moves), 0, 0, 0]}})
    assert float(task.stability[at]) == pytest.approx(40 + rate / 4, rel=1e-5)


def test_suppression_lasts() -> None:
    """1.2 seconds from the last hit of an autocannon."""
    task = duel("autocannon", 3.0)
    task.cooldown[0, 0, MEDIUM, 2] = 0.2
    shoot(task, "autocannon", 2)
    assert float(task.suppressed[0, 1, SECOND]) > 0.9
    for _ in range(5):
        scenes.act(task)
    assert float(task.suppressed[0, 1, SECOND]) == 0.0


def test_heat_shuts_down() -> None:
    """Above its cap, not at it, a mech does nothing and senses nothing until it is cool; vents lose twice."""
    for heat, acts in ((100.0, True), (100.01, False)):
        task = scenes.stage((0, MEDIUM, 0.0, 20.0, 1.0, 0.0), (1, SECOND, 6.0, 20.0, 1.0, 0.0))
        at = (0, 0, MEDIUM)
        task.heat[at] = heat
        sensing.update(task)
        assert bool(task.sees[at].any()) == acts
        task.cooldown[at] = 0.0
        scenes.act(task, {(0, MEDIUM): {"move": [1.0, 0, 0, 0], "message": torch.ones(8)}})
        assert bool(task.message[at].any()) == acts
    for fire, loss in (([], 11.0), ([4], 22.0)):
        task = scenes.stage((0, MEDIUM, 0.0, 20.0, 1.0, 0.0))
        task.heat[0, 0, MEDIUM] = 80.0
        scenes.act(task, {(0, MEDIUM): {"fire": fire}})
        assert float(task.heat[0, 0, MEDIUM]) == pytest.approx(80 - loss / 4, rel=1e-6)
    task.heat[0, 0, MEDIUM] = 105.0
    scenes.act(task, {(0, MEDIUM): {"fire": [4, 0, 2], "move": [1.0, 1.0, 1.0, 1.0]}})
    assert float(task.heat[0, 0, MEDIUM]) == pytest.approx(105 - 11 / 4), "it cannot vent"
    assert float(task.x[0, 0, MEDIUM]) == 0.0
    assert float(task.hx[0, 0, MEDIUM]) == 1.0
    assert float(task.z[0, 0, MEDIUM]) == 0.0


def assists(*told: dict) -> list[float]:
    """Rewards for assists to the scout, decision by decision."""
    task = scenes.stage(
        (0, HEAVY, 0.0, 20.0, 1.0, 0.0),
        (0, SCOUT, 2.0, 24.0, 0.6, -0.8),
        (1, SECOND, 6.0, 20.0, -1.0, 0.0),
    )
    found = []
    for orders in told:
        task.hp[0, 1, SECOND], task.heat[0], task.cooldown[0, 0, HEAVY] = 150.0, 0.0, 0.0
        task.stability[0] = 100.0
        step = scenes.act(task, orders)
        found.append(float(step.info["reward_assist"][SCOUT]))
        assert float(step.info["reward_assist"].sum()) == found[-1]
    return found


def test_assists_once_per_paint() -> None:
    """A missile of a teammate on a painted target pays the painter; a second, or paint on paint, does not."""
    paint, missile = {(0, SCOUT): {"fire": [0]}}, {(0, HEAVY): {"fire": [1]}}
    both = paint | missile
    assert sum(assists(paint, *[missile] * 7)) == 5.0
    assert sum(assists(*[both] * 16)) == 5.0, "painting again does not pay again"
    assert sum(assists(*[missile] * 6)) == 0.0
    later = assists(paint, *[missile] * 7, *[{}] * 14, paint, *[missile] * 7)
    assert sum(later) == 10.0, "new paint pays again"


def test_paint_lasts() -> None:
    """5 seconds from the last hit: 100 steps."""
    task = duel("paint", 6.0)
    task.cooldown[0, 0, SCOUT, 0] = 0.2
    shoot(task, "paint")
    left = 0
    while task.painted[0, 1, SECOND] > 0:
        left += 1
        scenes.act(task)
    assert left == 20
    assert torch.equal(task.painter[0, 1, SECOND], torch.tensor(SCOUT))


def test_smoke() -> None:
    """A shell flies at 15 m/s to the target, or 10 m ahead; then a cloud blocks sight for 10 seconds."""
    task = duel("smoke", 12.0)
    assert shoot(task, "smoke")
    assert [float(task.smoke_x[0, 0, SCOUT, 0]), float(task.smoke_y[0, 0, SCOUT, 0])] == [6.0, 20.0]
    blind = [not bool(task.clear[0, 0, SCOUT, SECOND])]
    while task.smoke_left[0, 0, SCOUT, 0] > 0:
        scenes.act(task)
        blind.append(not bool(task.clear[0, 0, SCOUT, SECOND]))
    assert blind == [False] * 3 + [True] * 40 + [False], "12 m take 0.8 s"
    task = scenes.stage((0, SCOUT, 0.0, 20.0, 0.6, 0.8))
    assert shoot(task, "smoke")
    assert float(task.smoke_x[0, 0, SCOUT, 0]) == pytest.approx(6.0)
    assert float(task.smoke_y[0, 0, SCOUT, 0]) == pytest.approx(28.0)


def test_kills_and_deaths() -> None:
    """The kill is of the one that dealt most in that step; of equals, of the first."""
    task = scenes.stage(
        (0, MEDIUM, 0.0, 20.0, 1.0, 0.0), (0, SECOND, 0.0, 23.0, 1.0, 0.0), (1, SECOND, 6.0, 21.5, -1.0, 0.0)
    )
    task.hp[0, 1, SECOND] = 28.0
    sensing.update(task)
    step = scenes.act(task, {(0, MEDIUM): {"fire": [0]}, (0, SECOND): {"fire": [0]}})
    assert step.info["reward_kill"].tolist() == [0, 10, 0, 0, 0, 0, 0, 0, 0, 0]
    assert step.info["reward_death"].tolist() == [0, 0, 0, 0, 0, 0, 0, -1, 0, 0]
