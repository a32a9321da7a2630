"""Bugs of advice: false alarms, and events that are called advice."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from recollect.config.train import TrainConfig
from recollect.training.advice import Advisor
from recollect.training.return_trend import ReturnTrend
from recollect.training.run_loop import Training
from tests.mutants.mutant import Edit, Mutant
from tests.training import test_advice, test_callbacks

silent = test_advice.test_no_false_alarm_about_the_reach
solved = functools.partial(silent, [-200.0, -50.0, 100.0, *[240.0] * 27], {"spread": 60.0, "length": 300.0})
memoryless = functools.partial(silent, [0.5] * 30, {"has_memory": False})
tuned = functools.partial(silent, [0.5] * 30, {"config": TrainConfig(init_from="runs/before")})
rising = functools.partial(silent, [0.02 * i for i in range(30)], {"spread": 0.4})
frames = functools.partial(silent, [0.5] * 30, {"config": test_advice.FRAMES})
ALARM = "assert told(returns, **options) == []"


def events() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        test_callbacks.test_all_events_come_in_order(Path(folder), patch)


def reach(old: str, new: str) -> Edit:
    return (Advisor, "_reach", old, new)


FLAT = "return is_little and self.now - rows[index]"
GROWTH = "self._updates <= self._settling or self._trend.is_settled"

ADVICE = [
    Mutant(
        "a solved task lacks improvement",
        solved,
        ((ReturnTrend, "is_flat", "is_little and ", ""),),
        ALARM,
    ),
    Mutant(
        "a slow rise is no improvement",
        rising,
        ((ReturnTrend, "is_flat", FLAT, "return is_little or self.now - rows[index]"),),
        ALARM,
    ),
    Mutant(
        "a policy without memory should remember longer",
        memoryless,
        (reach("self._has_memory and ", ""),),
        ALARM,
    ),
    Mutant(
        "frames should remember longer",
        frames,
        (reach("not is_rebuilt and ", ""),),
        ALARM,
    ),
    Mutant(
        "action values with small errors need a higher learning rate",
        test_advice.test_small_gradients_of_action_values_are_no_news,
        (
            (
                Advisor,
                "_gradients",
                " and not isinstance(self._config.algo, ReplayConfig)",
                "",
            ),
        ),
        'assert not any(said["q"])',
    ),
    Mutant(
        "a fine-tuned agent lacks improvement",
        tuned,
        (reach("or self._config.init_from ", ""),),
        ALARM,
    ),
    Mutant(
        "a solved task is unstable",
        test_advice.test_a_solved_task_is_not_unstable,
        ((Advisor, "_spreads", GROWTH, "self._updates <= self._settling"),),
        "assert advisor.watch(row) == [], i",
    ),
    Mutant(
        "the death of an actor is advice",
        events,
        ((Training, "_iterate", '"on_warning"', '"on_advice"'),),
        'assert told.names() == [*expected, "on_end"]',
    ),
]
