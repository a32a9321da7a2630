"""The zone, its score, the end of a game and its winner, by hand."""

from __future__ import annotations

import pytest
import torch

from recollect.errors import ConfigError
from recollect.tasks.mech import MechArena, zone
from tests.tasks.mech import scenes
from tests.tasks.mech.scenes import HEAVY, LIGHT, MEDIUM, SCOUT, SECOND

OUT = 7.5
"""A place outside the zone, whose radius is 5 m here; 4.9 is inside."""


def held_by(blue: list[int], red: list[int], dead: list[int] = ()) -> MechArena:
    """A game with these mechs in the zone; ``dead`` ones of red lie in it too."""
    task = scenes.stage(
        *((0, number, -3.0, float(number), 1.0, 0.0) for number in blue),
        *((1, number, 3.0, -float(number), 1.0, 0.0) for number in (*red, *dead)),
    )
    for number in dead:
        task.hp[0, 1, number] = 0.0
    return task


@pytest.mark.parametrize(
    ("blue", "red", "dead", "ticks"),
    [
        ([], [], [], (0.0, 0.0)),
        ([SCOUT], [], [], (1.0, 0.0)),
        ([], [MEDIUM, SECOND], [], (0.0, 1.0)),
        ([MEDIUM], [SECOND], [], (0.25, 0.25)),
        ([HEAVY], [SECOND], [], (0.25 + 30 / 140, 0.25 - 30 / 140)),
        ([HEAVY, MEDIUM], [SCOUT], [], (1.0, 0.0)),
        ([MEDIUM], [], [SECOND], (1.0, 0.0)),
        ([MEDIUM], [SCOUT], [HEAVY], (0.25 + 35 / 75, 0.0)),
    ],
)
def test_ticks(blue: list[int], red: list[int], dead: list[int], ticks: tuple[float, float]) -> None:
    """1 for a side alone; contested 0.25 plus the margin in tonnage, from 0 to 1; the dead count nothing."""
    task = held_by(blue, red, dead)
    assert zone.hold(task).tick[0].tolist() == pytest.approx(ticks)
    step = scenes.act(task)
    assert task.score[0].tolist() == pytest.approx([tick / 4 for tick in ticks])
    reward = step.info["reward_zone"].view(2, 5)
    for side, inside in ((0, blue), (1, red)):
        expected = [3.0 * ticks[side] / 4 * (number in inside) for number in range(5)]
        assert reward[side].tolist() == pytest.approx(expected)


def test_the_zone_has_an_edge() -> None:
    task = held_by([], [])
    for x, y, inside in ((4.99, 0.0, True), (5.01, 0.0, False), (-3.5, 3.5, True), (3.6, -3.6, False)):
        scenes.put(task, 0, MEDIUM, x, y)
        assert bool(zone.hold(task).inside[0, 0, MEDIUM]) == inside


def finish(task: MechArena) -> tuple[str, float]:
    """How and for whom the next decision ends the game."""
    step = scenes.act(task)
    assert int(task.games) == 1
    ended = "terminated" if step.terminated.any() else "truncated"
    assert torch.equal(step.terminated | step.truncated, step.valid)
    assert not (step.terminated & step.truncated).any()
    return ended, float(task.won)


def test_end_by_score() -> None:
    """At half of the time limit in seconds, 30 of 60."""
    task = held_by([MEDIUM], [])
    task.score[0, 0] = 29.5
    scenes.act(task)
    assert int(task.games) == 0
    assert finish(task) == ("terminated", 1.0)
    assert task.age == 0


def test_end_by_elimination() -> None:
    """The side that lives wins, whatever the score; if none lives, the score decides, then nobody."""
    for side, won in ((0, -1.0), (1, 1.0)):
        task = held_by([MEDIUM], [SECOND])
        task.score[0, side] = 20.0
        task.hp[0, side] = 0.0
        assert finish(task) == ("terminated", won)
    for score, won in (((1.0, 0.0), 1.0), ((0.0, 1.0), -1.0), ((1.0, 1.0), 0.0)):
        task = held_by([], [])
        task.hp.zero_()
        task.hp[0, 0, MEDIUM] = 1e-3  # it dies in this decision, so that a row is valid
        scenes.put(task, 0, MEDIUM, 30.0, 30.0)
        task.hp.zero_()
        task.score[0] = torch.tensor(score)
        scenes.act(task)
        assert float(task.won) == won


@pytest.mark.parametrize(
    ("score", "hp", "won"),
    [
        ((2.0, 1.0), (10.0, 20.0), 1.0),
        ((1.0, 2.0), (20.0, 10.0), -1.0),
        ((2.0, 2.0), (20.0, 10.0), 1.0),
        ((2.0, 2.0), (10.0, 20.0), -1.0),
        ((2.0, 2.0), (10.0, 10.0), 0.0),
    ],
)
def test_end_by_time(score: tuple[float, float], hp: tuple[float, float], won: float) -> None:
    """Truncated after 240 decisions: by score, then by hit points, else a draw; winners are paid if asked."""
    task = scenes.stage(win_reward=4.0)
    task.age.fill_(239)
    task.score[0] = torch.tensor(score)
    for side in (0, 1):
        task.hp[0, side, LIGHT] = hp[side]
    step = scenes.act(task)
    assert step.truncated.sum() == 2
    assert not step.terminated.any()
    assert float(task.won) == won
    assert step.info["reward_win"].view(2, 5)[:, LIGHT].tolist() == [4 * won, -4 * won]
    task.score.zero_()
    scenes.act(task)
    assert float(task.won) == won, "it stays until the next game ends"


def test_the_reward_of_a_win_changes_with_the_next_game() -> None:
    """S001-21: a game pays what it was started with; the next one pays what the curriculum asks for now."""
    task = scenes.stage(win_reward=4.0)
    task.adjust(win_reward=7.0)
    for expected in (4.0, 7.0):
        task.age.fill_(239)
        task.score[0, 0] = 1.0
        paid = scenes.act(task).info["reward_win"].view(2, -1)
        assert paid[0].amax() == expected == -paid[1].amin()
    task.adjust()
    assert task.win_weight.item() == 7.0
    with pytest.raises(ConfigError, match="win_reward is inf"):
        task.adjust(win_reward=float("inf"))
