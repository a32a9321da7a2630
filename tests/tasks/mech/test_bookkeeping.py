"""Heat, stability, clocks, paint and smoke over long games: always within their bounds."""

from __future__ import annotations

import torch

from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.rules import FALL_SECONDS, PAINTED, SMOKE_LASTS, SUPPRESSED, WEAPONS
from tests.tasks.mech import scenes

CLOCKS = {
    "down": FALL_SECONDS,
    "suppressed": SUPPRESSED,
    "painted": PAINTED,
    "smoke_left": SMOKE_LASTS + WEAPONS["smoke"].range / WEAPONS["smoke"].speed,
}


def test_over_games() -> None:
    """Clocks count down to 0 and start only from their full values; nobody acts who cannot; what is counted
    never grows by itself; only mounted weapons fire, and ready again after their cooldown."""
    task = scenes.arena(5, 8, limit=12)
    task.reset(0)
    bot, generator = MechBot(task), torch.Generator().manual_seed(5)
    fell = suppressed = 0
    for t in range(52):
        if t % 24 == 2:
            scenes.plant(task, t, 16.0)
        before = task.snapshot()
        step = task.step(scenes.mixed(task, bot, generator))
        after, plays = task.snapshot(), task.age > 0
        for leaf in (*after.values(), step.obs["vector"], step.reward):
            assert leaf.isfinite().all()
        before, after = ({k: v[plays] for k, v in s.items()} for s in (before, after))
        for name, whole in CLOCKS.items():
            assert (after[name] >= 0).all()
            assert (after[name] <= whole - 0.04 * (name != "down")).all(), name
            grew = after[name] > before[name]
            assert (after[name][grew] >= min(whole, SMOKE_LASTS) - 0.26).all(), name
            least = (before[name] - 0.25).clamp(min=0)
            assert (after[name] >= least - 1e-5).all(), f"{name} counts down too fast"
            restarts = after[name] > least + 1e-5
            assert (after[name][restarts] >= min(whole, SMOKE_LASTS) - 0.26).all(), f"{name} does not run"
        fired, cooldown = after["fired"], task.tables.cooldown.expand_as(after["cooldown"])
        ready = after["cooldown"] > before["cooldown"]
        assert fired[ready].all()
        assert not (fired & ~task.tables.exists).any()
        assert not (fired & (before["cooldown"] > 0.26)).any()
        assert (after["cooldown"] <= cooldown - 0.04).logical_or(after["cooldown"] == 0).all()
        can = (before["hp"] > 0) & (before["down"] <= 0.26)
        assert not fired[~can].any(), "it lay on the ground"
        lies = (before["down"] > 0.26) | (before["hp"] <= 0)
        assert torch.equal(after["x"][lies], before["x"][lies])
        assert not after["message"][(before["down"] > 0) | (before["hp"] <= 0)].any()
        assert (after["heat"] >= 0).all()
        assert ((after["stability"] >= 0) & (after["stability"] <= 100)).all()
        assert (after["stability"] <= before["stability"] + 2.6).logical_or(before["down"] > 0).all()
        for name in ("hp", "legs"):
            assert (after[name] >= 0).all()
            assert (after[name] <= before[name]).all()
            assert torch.equal(after[name] * 8, (after[name] * 8).round()), "sums without rounding"
        assert (after["score"] >= before["score"]).all()
        assert (after["dealt"] >= before["dealt"]).all()
        fell += int((after["down"] > before["down"]).sum())
        suppressed += int((after["suppressed"] > before["suppressed"]).sum())
    assert fell > 5
    assert suppressed > 5
    assert task.games.min() >= 1
