"""Mechs move as their class can, and not through obstacles or each other."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from recollect.tasks.mech import MechArena, arena, rules
from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.rules import BORDER, CLASSES, DT, HEIGHT, RADIUS, STEP_UP
from tests.tasks.mech import scenes
from tests.tasks.mech.scenes import HEAVY, LIGHT, MEDIUM, SCOUT


def gaps(task: MechArena) -> Tensor:
    """[E, 2N, 2N]: squared distances from above, of mechs that live; far for others."""
    x, y, lives = (values.flatten(1) for values in (task.x, task.y, task.alive))
    dx, dy = x.unsqueeze(2) - x.unsqueeze(1), y.unsqueeze(2) - y.unsqueeze(1)
    pairs = lives.unsqueeze(2) & lives.unsqueeze(1) & task.are_two
    return torch.where(pairs, dx * dx + dy * dy, 1e6)


@pytest.mark.parametrize("seed", [0, 1])
def test_no_step_is_longer_than_the_class_can(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In each simulation step, in crowds that also jump: speed by class, legs and direction; no mech is in an
    obstacle or outside; two on the ground are never nearer than two radii, or than they were."""
    check_steps(seed, 50, monkeypatch)


def check_steps(seed: int, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "SUBSTEPS", 1)
    task = scenes.arena(5, 8, limit=60)
    task.reset(seed)
    scenes.plant(task, seed, 14.0)
    bot, generator = MechBot(task), torch.Generator().manual_seed(seed)
    action, jumped = {}, 0
    for t in range(steps):
        if t % 5 == 0:
            action = scenes.mixed(task, bot, generator, 0.6)
        x, y, z, legs, square = (v.clone() for v in (task.x, task.y, task.z, task.legs, gaps(task)))
        may = (task.hp > 0) & (task.heat <= task.tables.heat_cap) & (task.down <= 0)
        stood = z <= task.ground(x, y)
        hx, hy = task.hx.clone(), task.hy.clone()
        task.step(action)
        playing = (task.age > 0).view(-1, 1, 1).expand_as(x)
        speed = task.tables.speed * torch.where(legs > 0, 1.0, rules.LEGLESS) * may
        far = ((task.x - x) ** 2 + (task.y - y) ** 2).sqrt()
        assert (far <= speed * DT * 1.0001 + 4e-6)[playing].all(), "too far"
        turned = (hx * task.hx + hy * task.hy).clamp(-1, 1).acos()
        assert (turned <= task.tables.turn * may * DT + 1e-3)[playing].all(), "turned too far"
        assert torch.allclose(task.hx**2 + task.hy**2, torch.ones_like(x), atol=1e-6)
        assert (task.x.abs() <= BORDER).all()
        assert (task.y.abs() <= BORDER).all()
        ground = task.ground(task.x, task.y)
        assert (task.z >= ground).all(), "inside an obstacle"
        assert (ground - z <= STEP_UP)[playing & (far > 0)].all(), "walked up an obstacle"
        assert torch.equal(task.vx[playing], ((task.x - x) * rules.RATE)[playing])
        stands = (stood & (task.z <= ground) & task.alive).flatten(1)
        level = (z.flatten(1).unsqueeze(2) - z.flatten(1).unsqueeze(1)).abs() < HEIGHT
        both = stands.unsqueeze(2) & stands.unsqueeze(1) & level & playing.flatten(1).unsqueeze(2)
        least = square.clamp(max=(2 * RADIUS) ** 2)
        assert (gaps(task) >= least - 1e-4)[both].all(), "too near"
        jumped += int((task.z > ground + 1).sum())
    assert jumped > 20


SPEEDS = {
    (1.0, 0.0): 1.0,
    (-1.0, 0.0): 0.5,
    (0.0, 1.0): 0.5,
    (0.0, -1.0): 0.5,
    (1.0, 1.0): 1.0,
    (-1.0, 1.0): math.sqrt(0.5),
    (0.5, 0.0): 0.5,
}


@pytest.mark.parametrize("number", [HEAVY, MEDIUM, LIGHT, SCOUT])
def test_speed_by_class_and_direction(number: int) -> None:
    """Full speed ahead, half of it backward and sideways; 0.4 of it without legs; turns at its rate."""
    kind = CLASSES[rules.roster(5)[number]]
    task = scenes.stage()
    for legs, factor in ((1.0, 1.0), (0.0, 0.4)):
        for (ahead, aside), share in SPEEDS.items():
            scenes.put(task, 0, number, 0.0, 20.0, 0.6, 0.8)
            task.legs[0, 0, number] = legs
            scenes.act(task, {(0, number): {"move": [ahead, aside, 0, 0]}})
            dx, dy = float(task.x[0, 0, number]), float(task.y[0, 0, number]) - 20
            assert math.hypot(dx, dy) == pytest.approx(kind.speed * factor * share * 0.25, rel=1e-4)
            forward, left = 0.6 * dx + 0.8 * dy, 0.6 * dy - 0.8 * dx
            norm = math.hypot(ahead * (0.5 if ahead < 0 else 1), aside * 0.5)
            expected = math.atan2(aside * 0.5 / norm, ahead * (0.5 if ahead < 0 else 1) / norm)
            assert math.cos(math.atan2(left, forward) - expected) == pytest.approx(1.0, abs=1e-6)
    task = scenes.stage((0, number, 0.0, 20.0, 1.0, 0.0))
    scenes.act(task, {(0, number): {"move": [0, 0, 0, 1.0]}})
    angle = math.atan2(float(task.hy[0, 0, number]), float(task.hx[0, 0, number]))
    assert angle == pytest.approx(kind.turn * 0.25, rel=2e-3), "to the left"


def test_jets() -> None:
    """They push up against gravity, heat, and end at their ceiling; heavies and mediums have none."""
    numbers = (HEAVY, MEDIUM, LIGHT, SCOUT)
    task = scenes.stage(*((0, number, 0.0, 20.0 + 4 * number, 1.0, 0.0) for number in numbers))
    up = {(0, number): {"move": [0, 0, 1.0, 0]} for number in numbers}
    scenes.act(task, up)
    for number in numbers:
        kind, rises = CLASSES[rules.roster(5)[number]], number in (LIGHT, SCOUT)
        push = (kind.jet - 9.81) * 0.05
        expected = sum(push * k * 0.05 for k in range(1, 6)) if rises else 0.0
        assert float(task.z[0, 0, number]) == pytest.approx(expected, rel=1e-4)
        heat = (20 - kind.heat_loss) * 0.25 if rises else 0.0
        assert float(task.heat[0, 0, number]) == pytest.approx(heat, rel=1e-4)
    highest = torch.zeros(5)
    for t in range(30):
        scenes.act(task, up if t < 9 else None)
        highest = highest.maximum(task.z[0, 0])
    assert ((highest > 1) == torch.tensor([False, False, False, True, True])).all()
    assert (highest < 15).all()
    assert not task.z.any()
    assert not task.vz.any()


def test_obstacles_stop_and_slide() -> None:
    """Against a wall it stops, at an angle it slides along it; it climbs steps of one metre."""
    for height, stops in ((1.0, False), (1.25, True), (5.0, True)):
        task = scenes.stage((0, SCOUT, 0.5, 20.5, 1.0, 0.0))
        for y in (19.5, 20.5, 21.5):
            scenes.wall(task, 2.5, y, height)
        for _ in range(4):
            scenes.act(task, {(0, SCOUT): {"move": [1.0, 0, 0, 0]}})
        assert (float(task.x[0, 0, SCOUT]) < 2.0) == stops
        if stops:
            assert float(task.vx[0, 0, SCOUT]) == 0.0
            task.hx[0, 0, SCOUT], task.hy[0, 0, SCOUT] = 0.6, -0.8
            y = float(task.y[0, 0, SCOUT])
            scenes.act(task, {(0, SCOUT): {"move": [1.0, 0, 0, 0]}})
            assert float(task.y[0, 0, SCOUT]) == pytest.approx(y - 0.8 * 7 * 0.25, rel=1e-5), "slides"
            assert float(task.x[0, 0, SCOUT]) < 2.0
    for _ in range(3):
        scenes.act(task, {(0, SCOUT): {"move": [0, 0, 1.0, 0]}})
    task.z[0, 0, SCOUT] = 4.5
    task.y[0, 0, SCOUT] = 20.5
    scenes.act(task, {(0, SCOUT): {"move": [0.6, 0.0, 1.0, 0]}})
    assert 2.0 < float(task.x[0, 0, SCOUT]) < 3.0
    assert float(task.z[0, 0, SCOUT]) >= 5.0, "on top"


def test_mechs_stop_each_other() -> None:
    """Head on they keep two radii; away from each other they may always go, also if they overlap."""
    task = scenes.stage((0, MEDIUM, -2.0, 20.0, 1.0, 0.0), (1, MEDIUM, 2.0, 20.0, -1.0, 0.0))
    both = {(side, MEDIUM): {"move": [1.0, 0, 0, 0]} for side in (0, 1)}
    for _ in range(6):
        scenes.act(task, both)
    gap = float(task.x[0, 1, MEDIUM] - task.x[0, 0, MEDIUM])
    assert 2 * RADIUS - 1e-5 <= gap < 2 * RADIUS + 2 * 5.5 * DT
    task.x[0, 1, MEDIUM] = task.x[0, 0, MEDIUM] + 0.5
    away = {(side, MEDIUM): {"move": [-1.0, 0, 0, 0]} for side in (0, 1)}
    scenes.act(task, both)
    assert float(task.x[0, 1, MEDIUM] - task.x[0, 0, MEDIUM]) == 0.5
    scenes.act(task, away)
    assert float(task.x[0, 1, MEDIUM] - task.x[0, 0, MEDIUM]) > 1.5
    task = scenes.stage((0, SCOUT, 0.0, 20.0, 1.0, 0.0), (1, MEDIUM, 2.0, 20.0, 1.0, 0.0))
    task.z[0, 0, SCOUT] = 4.0
    for _ in range(2):
        scenes.act(task, {(0, SCOUT): {"move": [1.0, 0, 1.0, 0]}})
    assert float(task.x[0, 0, SCOUT]) > 3.0, "over it"
