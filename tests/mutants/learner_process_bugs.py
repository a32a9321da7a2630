"""Planted bugs in learner processes."""

from __future__ import annotations

import functools
import signal
import tempfile
from pathlib import Path

import pytest

from recollect.learning.replay_learner import ReplayLearner
from recollect.runtimes.process import learner_process, learner_process_server
from recollect.runtimes.process.learner_process import LearnerProcess
from recollect.runtimes.process.learner_process_server import LearnerServer
from recollect.runtimes.process.weights import WeightBoard
from recollect.training.trainer import Trainer
from tests.mutants.mutant import Mutant
from tests.mutants.planted import ChildMutant
from tests.runtimes import test_learner_processes as tests
from tests.support import doomed

ppo, hunt = functools.partial(tests.same_run, "ppo"), functools.partial(tests.same_run, "iqn")
ratio = tests.test_free_running_learners_keep_the_replay_ratio
in_threads = tests.test_rows_in_threads_give_the_same_bits
killed = tests.test_after_a_kill_the_agent_closes_and_does_not_learn_on


def resumed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        tests.test_a_run_resumes_bit_for_bit_with_and_without_processes("iqn", Path(folder))


def beating() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(doomed, "TIMEOUT", 15.0)
        tests.test_the_heart_beats_during_an_update(Path(folder))


def stopped() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        tests.test_a_learner_that_fails_in_mid_update(signal.SIGSTOP, Path(folder), patch)


silent = tests.test_a_learner_is_given_up_after_the_limit_of_actors
PAST = (
    "(vars(self).setdefault('past', []).append(Rollout.read(tree.clone(self._slot), header))\n"
    "            or self.past[-2:][0])"
)
LOAD = "policy.load_state_dict(self._weights)"
SOME = "policy.load_state_dict(dict(list(self._weights.items())[::2]), strict=False)"

WAIT = "connection.wait(list(waiting))"

LEARNER_PROCESSES = [
    ChildMutant(
        "a learner process learns from the rollout before",
        ppo,
        ((LearnerServer, "update", "Rollout.read(self._slot, header)", PAST),),
        "differing(wanted, state(there)) == []",
    ),
    ChildMutant(
        "a learner process gets no final observations",
        hunt,
        ((learner_process_server.Rollout, "read", "if finals else None", "if False else None"),),
        "does not have its final observation",
    ),
    Mutant(
        "every other tensor of the new weights is copied back",
        ppo,
        ((LearnerProcess, "_take_weights", LOAD, SOME),),
        "differing(wanted, state(there)) == []",
    ),
    Mutant(
        "the weights of one group only are copied back",
        hunt,
        (
            (
                LearnerProcess,
                "_take_weights",
                f"self.learner.{LOAD}",
                f"self.name.endswith('agent_1') or self.learner.{LOAD}",
            ),
        ),
        "update 1: the learner recomputed",
    ),
    ChildMutant(
        "the replay ratio counts twice",
        ratio,
        ((ReplayLearner, "_learn", "+= config.replay_ratio", "+= 2 * config.replay_ratio"),),
        "assert done == int(owed)",
    ),
    Mutant(
        "each group reports the metrics of the other",
        hunt,
        (
            (
                learner_process,
                "update_at_once",
                "{name: found[name] for name in parts}",
                "dict(zip(parts, [found[name] for name in parts][::-1]))",
            ),
        ),
        "assert rows(there) == metrics",
    ),
    Mutant(
        "a checkpoint has the optimisers of the trainer's process",
        ppo,
        ((Trainer, "_learner_tensors", "if self._processes:", "if False:"),),
        "assert one.keys() == two.keys()",
    ),
    Mutant(
        "the first rollout after a resume explores as at the start",
        resumed,
        ((LearnerProcess, "_loaded", "self._take_weights(self.learner.updates)", "pass"),),
        "differing(wanted, state(resumed)) == []",
    ),
    Mutant(
        "weights that the user has changed are ignored",
        tests.test_weights_that_the_user_has_changed,
        ((Trainer, "begin", "process.follow()", "pass"),),
        "assert differing(*found) == []",
    ),
    Mutant(
        "each learner process uses all threads",
        in_threads,
        (
            (
                LearnerProcess,
                "__init__",
                "row_threads.share(learner_threads(config), list(rows.values()))",
                "learner_threads(config)",
            ),
        ),
        "differing(wanted, state(there)) == []",
    ),
    Mutant(
        "a stopped learner process is waited for without limit",
        stopped,
        ((learner_process, "update_at_once", "connection.wait(list(waiting), POLL_SECONDS)", WAIT),),
        "it has not ended within",
    ),
    Mutant(
        "a long update counts as silence",
        silent,
        ((LearnerProcess, "check_heartbeats", "0.0 if heartbeats > self._heartbeats else ", ""),),
        "gave no sign of life",
    ),
    Mutant(
        "a learner process that starts has no more time than one that runs",
        silent,
        ((LearnerProcess, "check_heartbeats", "is_started=heartbeats > 0", "is_started=True"),),
        "assert patience(config, learner, 0) == at_start",
    ),
    ChildMutant(
        "a learner process beats only between updates",
        beating,
        ((WeightBoard, "keep_beating", "while True:", "for _ in range(1):"),),
        "it has not happened",
    ),
    Mutant(
        "a killed learner process is replaced by one with a new optimiser",
        killed,
        ((LearnerProcess, "_lose", "self._is_lost = True", "pass"),),
        "DID NOT RAISE",
    ),
]
