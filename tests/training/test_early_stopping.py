"""Early stopping: when it does, and what it refuses."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

import recollect as rc
from recollect.errors import ConfigError
from recollect.training.callbacks import EarlyStopping
from tests.support.doomed import SMALL, UPDATE

SETTINGS = SMALL | {"steps": 4 * UPDATE, "eval_every": 2 * UPDATE, "eval_episodes": 3}


class Stub:
    """As much of a training as EarlyStopping looks at."""

    def __init__(self, eval_every: int = 10):
        self.steps, self.stopped, self.config = 0, "", SimpleNamespace(eval_every=eval_every)

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or f"{self.steps}: {reason}"

    def show(self, callback: EarlyStopping, values: list[float | None], metric: str = "return") -> str:
        """Ten steps for each value; None: the metric has none. Returns when and why it stopped."""
        callback.on_start(self)  # pyright: ignore[reportArgumentType]
        for value in values:
            self.steps += 10
            if metric == "evaluation":
                evaluation: Any = SimpleNamespace(mean=value)
                callback.on_iteration(self, {"return": 1.0})  # pyright: ignore[reportArgumentType]
                callback.on_evaluation(self, evaluation)  # pyright: ignore[reportArgumentType]
            else:
                callback.on_iteration(self, {} if value is None else {metric: value})  # pyright: ignore
        return self.stopped


@pytest.mark.parametrize(
    ("options", "values", "stops"),
    [
        ({"patience": 20}, [1, 2, 3, 4, 5, 6], None),
        ({"patience": 20}, [3, 2, 1, 0], 30),
        ({"patience": 20}, [3, 3, 3, 3], 30),
        ({"patience": 30}, [3, 3, 3, 3], 40),
        ({"patience": 1}, [3, 3], 20),
        ({"patience": 20}, [1, 0, 2, 0, 3, 0, 4, 0], None),
        ({"patience": 20, "mode": "min"}, [4, 3, 2, 1], None),
        ({"patience": 20, "mode": "min"}, [1, 2, 3, 4], 30),
        ({"patience": 20, "min_delta": 0.5}, [1, 1.4, 1.5, 1.6, 1.7], 30),
        ({"patience": 20, "min_delta": 0.5}, [1, 1.6, 2.2, 2.8, 3.4], None),
        ({"patience": 20, "min_delta": 0.5, "mode": "min"}, [2, 1.6, 1.51, 1.6], 30),
        ({"patience": 20}, [None, None, None, None, 1, 2], None),
        ({"patience": 20}, [math.nan, 1, math.nan, 2, math.nan, 3], None),
        ({"patience": 20}, [1, math.nan, 1, 1], 30),
    ],
)
def test_early_stopping(options, values, stops):
    """Steps without improvement, in either direction, by at least min_delta; no value is no bad value."""
    stopped = Stub().show(EarlyStopping("return", **options), values)
    if stops is None:
        assert stopped == ""
    else:
        words = f"return has not improved on .* for {options['patience']} steps"
        assert stopped.startswith(f"{stops}: ")
        assert re.search(words, stopped)


def test_early_stopping_on_evaluations():
    """Only evaluations count then."""
    assert Stub().show(EarlyStopping("evaluation", patience=20), [1, 2, 3], "evaluation") == ""
    assert Stub().show(EarlyStopping("evaluation", patience=20), [3, 2, 1], "evaluation").startswith("30: ")
    with pytest.raises(ConfigError, match="needs evaluations: set eval_every"):
        rc.train(
            "delayed-cue", callbacks=[EarlyStopping("evaluation", patience=1)], **SETTINGS | {"eval_every": 0}
        )


def test_early_stopping_in_a_real_run(tmp_path):
    """What cannot improve stops after its patience; the same object serves a second run."""
    stop = EarlyStopping("learning_rate", patience=2 * UPDATE)
    for _ in range(2):
        agent = rc.train("delayed-cue", callbacks=[stop], **SETTINGS | {"steps": 10 * UPDATE})
        assert agent.steps == 3 * UPDATE
    best = EarlyStopping("evaluation", patience=UPDATE, min_delta=10.0)
    assert rc.train("delayed-cue", callbacks=[best], **SETTINGS | {"steps": 10 * UPDATE}).steps == 4 * UPDATE


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "retrun", "patience": 1}, r"no metric 'retrun' \(did you mean 'return'\?\)"),
        ({"metric": "return", "patience": 0}, "patience must be at least 1"),
        ({"metric": "return", "patience": 1, "min_delta": -1.0}, "min_delta not negative"),
        ({"metric": "return", "patience": 1, "mode": "best"}, "choose 'max' or 'min'"),
    ],
)
def test_early_stopping_refuses_what_cannot_be_meant(options, words):
    with pytest.raises(ConfigError, match=words):
        EarlyStopping(**options)
