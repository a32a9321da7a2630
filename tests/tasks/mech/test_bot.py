"""The scripted player. That it plays by fair means is in test_hidden.py, that both sides are alike in
test_mirror.py."""

from __future__ import annotations

import torch

from recollect.base.types import Step
from recollect.tasks.mech.bot import HOT, MechBot
from tests.tasks.mech import scenes
from tests.tasks.mech.scenes import MEDIUM, SECOND


def test_lethality() -> None:
    """At 0 its weapons never fire, at 1 always when an enemy is known and it is cool; between, as often."""
    task = scenes.arena(5, 16)
    task.reset(0)
    scenes.plant(task, 0, 20.0)
    rates = {}
    for lethality in (0.0, 0.4, 1.0):
        bot, fires = MechBot(task, lethality), 0
        for age in range(12):
            task.age.fill_(age)
            action = bot.play()
            fires = fires + action["fire"][:, :3].float()
        rates[lethality] = fires.view(16, 2, 5, 3) / 12
    engaged = (task.contact >= 5).any(3) | (task.sees & task.theirs(task.alive).unsqueeze(2)).any(3)
    can = (
        engaged & task.alive & (task.heat < HOT * task.tables.heat_cap) & (task.heat <= task.tables.heat_cap)
    )
    assert can.sum() > 20
    assert not rates[0.0].any()
    assert (rates[1.0][can] == 1).all()
    assert abs(float(rates[0.4][can].mean()) - 0.4) < 0.1


def test_it_fights_and_takes_the_zone() -> None:
    """It shoots an enemy that it sees, turning to it; alone, it walks to the zone and stays there."""
    task = scenes.stage((0, MEDIUM, 0.0, 20.0, 0.0, 1.0), (1, SECOND, 6.0, 20.0, 0.0, 1.0))
    bot = MechBot(task)
    for _ in range(12):
        step = task.step(bot.play())
        assert isinstance(step, Step)
    assert task.hp[0, 0, MEDIUM] < 150
    assert task.hp[0, 1, SECOND] < 150
    task = scenes.stage((0, MEDIUM, 0.0, 12.0, 0.0, 1.0))
    for _ in range(20):
        task.step(MechBot(task).play())
    assert task.score[0, 0] > 0.25
    assert task.score[0, 1] == 0


def test_rows_and_flat_forms() -> None:
    """``act`` gives the asked rows of what ``play`` gives."""
    task = scenes.arena(3, 2)
    obs = task.reset(0)
    bot, rows = MechBot(task), torch.tensor([7, 1])
    action = bot.act(rows, obs, torch.ones(2, dtype=torch.bool))
    for name, part in bot.play().items():
        assert torch.equal(action[name], part[rows])
