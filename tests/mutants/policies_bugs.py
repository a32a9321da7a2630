"""Planted bugs in the training of several groups, each with a policy of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path

from recollect.acting.group_actor import GroupActor
from recollect.agent import Agent
from recollect.training import group_metrics
from recollect.training.trainer import Trainer
from tests.audit import test_verify_groups
from tests.mutants.mutant import Mutant
from tests.runtimes import test_learner_group
from tests.training import test_groups


def resumed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_groups.test_a_run_resumes_bit_for_bit(Path(folder))


def killed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        test_learner_group.killed_in_the_second_group(Path(folder))


def verified() -> None:
    test_verify_groups.test_two_healthy_groups_pass()


POLICIES = [
    Mutant(
        "only the first group is checked against the weights that acted",
        test_groups.late_check,
        ((Trainer, "_check_late", "by_group(oldest).items()", "list(by_group(oldest).items())[:1]"),),
        by="DID NOT RAISE",
    ),
    Mutant(
        "a group keeps its update after a learner of another group was killed",
        killed,
        ((Trainer, "_learn_all_or_none", "for name in found:", "for name in ():"),),
        by="same_state(a, b)",
    ),
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
    Mutant(
        "evaluations have an env without the groups of the training",
        test_groups.test_evaluations_on_the_way,
        ((Agent, "make_env", "if has_groups(found, config) or self.groups:", "if False:"),),
        by="which has no groups of agents",
    ),
    Mutant(
        "the memory of one group is lost at the start of a rollout",
        verified,
        (
            (
                GroupActor,
                "collecting",
                "running = {",
                "last = list(self.actors.values())[-1]\n"
                "    last.state = last.policy.initial_state(last.rows)\n"
                "    running = {",
            ),
        ),
        by="group small: recorded and replayed differ",
    ),
    Mutant(
        "one group learns with a copy of its policy",
        verified,
        (
            (
                Trainer,
                "__init__",
                "make_learner(one, config.algo",
                "make_learner(copy.deepcopy(one) if name != next(iter(groups)) else one, config.algo",
            ),
        ),
        by="group small: after 3 updates no weight has",
    ),
]
