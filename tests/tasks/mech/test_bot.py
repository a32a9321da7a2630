"""The scripted player. That it plays by fair means is in test_hidden.py, that both sides are alike in
test_mirror.py."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.base.types import Step
from recollect.tasks.mech import MechArena
from recollect.tasks.mech.bot import HOT, MechBot
from tests.tasks.mech import scenes
from tests.tasks.mech.scenes import MEDIUM, SECOND


def _played(task: MechArena, bot: MechBot) -> dict[str, Tensor]:
    """The bot's actions of all rows, after which the task steps."""
    action = bot.play()
    task.step(action)
    return {name: part.clone() for name, part in action.items()}


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


def test_it_gets_on() -> None:
    """Behind an obstacle or in a crowd it takes a detour: hardly a mech stands still for 6 s on its way."""
    task = scenes.arena(5, 12, maps=16)
    task.reset(0)
    bot, places, waits, ways = MechBot(task), [], 0, 0
    for t in range(160):
        places.append((task.x.clone(), task.y.clone(), task.games.clone()))
        if t >= 24:
            x, y, games = places[t - 24]
            outside = task.x.square() + task.y.square() > (task.radius.view(-1, 1, 1) + 1) ** 2
            on_its_way = task.alive & outside & (task.games == games).view(-1, 1, 1)
            ways += int(on_its_way.sum())
            waits += int((on_its_way & ((task.x - x).square() + (task.y - y).square() < 1.5**2)).sum())
        task.step(bot.play())
    assert ways > 2000
    assert waits < 0.02 * ways


def test_what_it_remembers_is_in_its_snapshot() -> None:
    """Continued from a snapshot, in the middle of detours, it plays on as it would have."""
    task = scenes.arena(5, 4)
    task.reset(0)
    bot = MechBot(task, 0.5)
    for _ in range(70):
        task.step(bot.play())
    saved, own = task.snapshot(), bot.snapshot()
    assert (own["waited"] != 0).any()
    assert own["way"].any()
    first = [_played(task, bot) for _ in range(12)]
    task.restore(saved)
    other = MechBot(task, 0.5)
    other.restore(own)
    for before in first:
        after = _played(task, other)
        assert all(torch.equal(before[name], after[name]) for name in before)
