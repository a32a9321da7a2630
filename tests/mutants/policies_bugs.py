"""Planted bugs in the training of several groups, each with a policy of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from recollect.acting.group_actor import GroupActor
from recollect.training import group_metrics
from recollect.training.trainer import Trainer
from tests.mutants.mutant import Mutant
from tests.training import test_groups


def resumed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_groups.test_a_run_resumes_bit_for_bit(Path(folder))


POLICIES = [
    Mutant(
        "all groups draw the same random numbers",
        test_groups.test_groups_act_by_streams_of_their_own,
        ((GroupActor, "__init__", "sampling_seed=stream(seed, number)", "sampling_seed=seed"),),
        by="assert len(set(seeds)) == 2",
    ),
    Mutant(
        "the deviation of one group is averaged away by another",
        test_groups.test_metrics_of_all_groups,
        ((group_metrics, "_of_all", 'name.startswith("deviation") or ', ""),),
        by="assert {name: found[name] for name in one} == {",
    ),
    Mutant(
        "a resumed group starts a new optimiser",
        resumed,
        ((Trainer, "restore", 'prefix = f"{group}/" if group', 'prefix = f"{group}:" if group'),),
        by="assert all(torch.equal(tensor, theirs[name])",
    ),
]
