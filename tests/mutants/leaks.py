"""Leaks: what an update or a rollout leaves behind."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from recollect.acting.truncation import ImmediateFinalValues
from recollect.learning.learner import Learner
from recollect.training import metrics
from recollect.training.trainer import Trainer
from tests.mutants.mutant import Edit, Mutant
from tests.training import test_memory

resident = functools.partial(test_memory.test_memory_is_flat, "none")
OWN = "update.begin("
ITERATED = "self._joined = whole if len(rollouts) > 1 else None"


def flat() -> None:
    before, after = test_memory.learned(test_memory.CORES["lstm"], 5, 5)
    test_memory.assert_no_more_tensors(before, after)


def flat_run() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_memory.test_a_run_is_flat(Path(folder))


def keeps(what: str) -> Edit:
    """The learner never lets go of something that it has in an update."""
    return (Learner, "_update", OWN, f"self.__dict__.setdefault('kept', []).append({what}); {OWN}")


TENSORS = "more tensors live"
LEAKS = [
    Mutant("the targets of every rollout are kept", flat, (keeps("data"),), TENSORS),
    Mutant(
        "a number of every update is kept with its graph",
        flat,
        (keeps("[p.sum() for p in self._parameters[:1]]"),),
        TENSORS,
    ),
    Mutant(
        "final observations of all rollouts are kept",
        flat,
        ((ImmediateFinalValues, "begin", "self._found = []", "pass"),),
        TENSORS,
    ),
    Mutant(
        "a buffer of every update is kept",
        resident,
        (keeps("bytearray(20_000)"),),
        "MiB more resident",
    ),
    Mutant(
        "the metrics of all updates are kept",
        flat_run,
        ((metrics.History, "add", "len(self.rows) > self._limit", "False"),),
        "more objects live",
    ),
    Mutant(
        "the rewards of every rollout are kept",
        flat_run,
        ((Trainer, "iterate", ITERATED, f"{ITERATED}; self._past[updates] = tree.clone(whole.reward)"),),
        TENSORS,
    ),
]
