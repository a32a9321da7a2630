"""Bugs of the choice behind ``parallel="auto"``."""

from __future__ import annotations

from recollect import agent
from recollect.training import parallel_choice
from recollect.training.trainer import Trainer
from tests.mutants.mutant import Mutant
from tests.training import test_parallel_choice

CHOICES = [
    Mutant(
        "operations are chosen for any gain",
        test_parallel_choice.operations_win_on_free_cores_only,
        ((parallel_choice, "decided", "GAIN * limit", "limit"),),
        "too small a gain",
    ),
    Mutant(
        "operations are chosen though a core is busy",
        test_parallel_choice.operations_win_on_free_cores_only,
        ((parallel_choice, "decided", "and max(operations) <= limit", ""),),
        "another program uses a core",
    ),
    Mutant(
        "the choice does not reach the trainer",
        test_parallel_choice.used_threads,
        (
            (
                agent.Agent,
                "create",
                "Trainer(collector, network, config)",
                "Trainer(collector, network, config.override(parallel='rows'))",
            ),
        ),
        "two intra-op threads",
    ),
    Mutant(
        "the trainer takes every choice for rows",
        test_parallel_choice.used_threads,
        ((Trainer, "iterate", 'self.config.parallel == "operations"', "False"),),
        "two intra-op threads",
    ),
]
