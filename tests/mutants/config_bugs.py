"""Settings that are not honoured, and keys that nobody reads."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from recollect.config.train import TrainConfig
from recollect.experience import chunks
from recollect.learning.captured_update import CapturedUpdate
from recollect.learning.learner import Learner
from recollect.runtimes.remote_collector import RemoteCollector
from tests.config import test_honoured
from tests.mutants.mutant import Mutant
from tests.support import config_cases

epochs = functools.partial(test_honoured.test_every_epoch_runs, "ppo")
on_a_gpu = functools.partial(test_honoured.test_every_epoch_runs, "gpu")


def everything() -> None:
    with pytest.MonkeyPatch.context() as patched:
        test_honoured.test_every_epoch_learns_from_everything(patched)


def _refused(where: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_honoured.test_unknown_keys_are_refused(where, Path(folder))


def runs_ahead() -> None:
    assert config_cases.largest_lag(mode="async") == 1


LOOP = "for epoch in range(config.epochs):"

COUNTED = "assert made == {UPDATES * EPOCHS * MINIBATCHES}"

IGNORED = [
    Mutant(
        "the last epoch does not run",
        epochs,
        ((Learner, "_epochs", LOOP, LOOP.replace("config.epochs", "config.epochs - 1")),),
        COUNTED,
    ),
    Mutant(
        "an update on a GPU ends after its first epoch",
        on_a_gpu,
        ((CapturedUpdate, "epoch", "return True", "return False"),),
        COUNTED,
    ),
    Mutant(
        "a minibatch of every epoch is left out",
        epochs,
        ((chunks, "minibatches", "shares(order, parts, sizes)", "shares(order, parts, sizes)[1:]"),),
        COUNTED,
    ),
    Mutant(
        "every epoch learns from one minibatch again and again",
        everything,
        (
            (
                chunks,
                "minibatches",
                "yield from shares(order, parts, sizes)",
                "yield from [shares(order, parts, sizes)[0]] * parts",
            ),
        ),
        "assert all(sorted(one) == list(range(int(sequences))) for one in passes)",
    ),
    Mutant(
        "an unknown setting is ignored",
        functools.partial(_refused, "setting"),
        (
            (
                TrainConfig,
                "override",
                "if home is None:",
                "if home is None:\n            continue\n        if False:",
            ),
        ),
        "it was accepted",
    ),
    Mutant(
        "mode is ignored",
        runs_ahead,
        ((RemoteCollector, "__init__", "self._lag = config.lag_limit", "self._lag = 0"),),
        'assert config_cases.largest_lag(mode="async") == 1',
    ),
]
