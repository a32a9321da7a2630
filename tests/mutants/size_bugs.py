"""Memory that is not what was said, or more than it has to be."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from recollect.acting import actor
from recollect.base import system_limits
from recollect.config import algo_shared
from recollect.experience import rollout
from recollect.training import memory_check, memory_estimate
from tests.acting import test_actor
from tests.mutants.edits import collect
from tests.mutants.mutant import Edit, Mutant
from tests.training import test_memory_check, test_memory_use

known = functools.partial(test_memory_use.test_memory_use_is_known_before, "image", "discrete", "lstm")


def known_on_a_gpu() -> None:
    with pytest.MonkeyPatch.context() as patched:
        test_memory_use.test_memory_use_is_known_on_the_path_of_a_gpu("position-cartpole", "lstm", patched)


def update() -> None:
    with pytest.MonkeyPatch.context() as patched:
        test_memory_check.test_the_update_is_part_of_the_estimate(patched)


def container() -> None:
    with tempfile.TemporaryDirectory() as name:
        test_memory_check.test_the_limit_of_a_container_counts(Path(name))


def groups() -> None:
    test_memory_check.test_the_replays_of_all_groups_count()


def processes() -> None:
    test_memory_check.test_learner_processes_count(True)


def size(old: str, new: str) -> Edit:
    return (rollout, "rollout_size", old, new)


def off(name: str, proof: Callable[[], None], edits: tuple[Edit, ...]) -> Mutant:
    """The estimate and what is allocated are more than 5% apart."""
    return Mutant(name, proof, edits, "assert size.total == pytest.approx(measured, rel=0.05)")


SIZES = [
    off(
        "the estimate forgets the stored states",
        known,
        (size("live + kept + stored * memory", "live + kept"),),
    ),
    off(
        "the estimate counts a state for every step",
        known,
        (size("live + kept + stored", "live + kept + steps"),),
    ),
    off(
        "the estimate takes observations for floats",
        known,
        (size("policy.observation_space, 1))", "policy.observation_space, 1)) * 4"),),
    ),
    off(
        "the estimate forgets what truncated rows keep",
        known_on_a_gpu,
        (size("kept = slots", "kept = 0 * slots"),),
    ),
    off(
        "states are stored in half precision",
        known,
        (
            (
                actor,
                "allocate",
                "tree.empty(policy.initial_state(1),",
                "tree.empty(tree.map(lambda leaf: leaf.half(), policy.initial_state(1)),",
            ),
        ),
    ),
    off(
        "pictures are stored as floats",
        known,
        (
            (
                actor,
                "allocate",
                "spaces.zeros(policy.observation_space, 1, device)",
                "tree.map(lambda leaf: leaf.float(), spaces.zeros(policy.observation_space, 1, device))",
            ),
        ),
    ),
    Mutant(
        "a state is stored for every step",
        test_memory_use.test_only_chunk_starts_are_stored,
        ((algo_shared, "state_steps", "range(0, rollout, chunk)", "range(0, rollout)"),),
        "assert agent.config.algo.state_steps == (0, 8, 16, 24)",
    ),
    Mutant(
        "actions are kept until the rollout ends",
        test_actor.test_actions_are_not_kept_until_the_rollout_ends,
        (collect("len(acted_steps) == STACKED or t", "t"),),
        "assert max(alive) <= STACKED + 1",
    ),
    Mutant(
        "the estimate of the activations forgets accumulate",
        update,
        ((memory_estimate, "estimate", "(algo.minibatches * algo.accumulate)", "algo.minibatches"),),
        'assert {name.split("=")[0] for name in remedies} ==',
    ),
    Mutant(
        "a run that does not fit is warned, one that is tight refused",
        update,
        ((memory_check, "check_memory", "found.new <= FULL * have", "found.new > FULL * have"),),
        "with pytest.raises(ConfigError) as refused:",
    ),
    Mutant(
        "the replay of one group stands for all",
        groups,
        ((memory_check, "_check_replay", "replay = sum(sizes.values())", "replay = max(sizes.values())"),),
        "assert all(found), text",
    ),
    Mutant(
        "the memory of one group only is checked",
        groups,
        (
            (
                memory_check,
                "check_memory",
                "    have, algo =",
                "    learners = dict([*learners.items()][:1])\n    have, algo =",
            ),
        ),
        "assert all(found), text",
    ),
    Mutant(
        "learner processes take no memory",
        processes,
        ((memory_estimate, "learner_process_bytes", "PROCESS_BYTES + WORKING_BYTES + ", ""),),
        "assert added - least",
    ),
    Mutant(
        "a saved replay is not copied from its learner process",
        processes,
        ((memory_estimate, "learner_process_bytes", "and algo.save_replay", "and False"),),
        "assert added - least",
    ),
    Mutant(
        "the capacity that is advised leaves out all but the replay",
        groups,
        ((memory_check, "_check_replay", "(TIGHT * have - need) / (copies * replay) + 1", "have / need"),),
        'assert checked(1.2, **IQN | {"replay_capacity": fits}) == ""',
    ),
    Mutant(
        "the updates of groups are taken to be one after the other",
        test_memory_check.test_the_updates_of_all_groups_count,
        ((memory_estimate, "estimate", "found if config.learns_at_once else ", ""),),
        "assert found[2] - working ==",
    ),
    Mutant(
        "the limit of a container is ignored",
        container,
        ((system_limits, "free_memory", "(limits.available, group)", "(limits.available,)"),),
        "assert free_memory(places) == 1_000_000_000 - 1000 * 4096",
    ),
]
