"""Bugs of sessions and of evaluation."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

from recollect.acting import evaluate
from recollect.acting.session import Session
from recollect.agent import Agent
from recollect.base import row_threads
from recollect.training import recorded_episodes
from recollect.training.run_folder import Run
from recollect.training.run_loop import Training
from tests.acting import test_evaluate, test_serving_threads, test_session
from tests.mutants.mutant import Edit, Mutant
from tests.reports import test_own_envs
from tests.support.helpers import TensorWorld, make_policy
from tests.training import test_eval_mode

conversation = functools.partial(test_session.test_any_conversation_is_that_of_each_env_alone, "lstm")
policy = functools.partial(make_policy, TensorWorld(4), test_session.CORES["lstm"])


def round_trip() -> None:
    test_session.test_memory_round_trip(policy())


def refused() -> None:
    test_session.test_a_refused_memory_changes_nothing(policy())


def act(old: str, new: str) -> Edit:
    return (Session, "act", old, new)


def set_memory(old: str, new: str) -> Edit:
    return (Session, "set_memory", old, new)


def reset(new: str) -> Edit:
    return (Session, "reset", "self._first[self._rows(rows)] = True", new)


def pending(name: str, edit: Edit) -> Mutant:
    """The resets that are pending are others."""
    return Mutant(name, conversation, (edit,), 'assert memory["first"].tolist() == self.first')


def remembered(name: str, edit: Edit) -> Mutant:
    """What envs remember is another thing."""
    return Mutant(name, conversation, (edit,), "compare: torch.testing.assert_close(got, want")


BEGUN = "self._first[which] = False"
PUT = "self._state = tree.put(self._state, which, state)"
STATE = 'self._state = tree.to(tree.clone(given["state"]), self._device)'
FIRST = 'self._first = given["first"].to(self._device, copy=True)'
RNG = 'self._generator.set_state(given["rng"].cpu())'
INITIAL = "self.policy.initial_state(self.num_envs)"
SPECS = "tree.spec(own, lead=0), tree.spec(given, lead=0)"
OTHERS, SAME = "(other.act(o) for o in obs[3:])", "not shared"

SESSIONS = [
    pending("acting for some drops the resets of others", act(BEGUN, "self._first[:] = False")),
    pending("a reset stays pending after its step", act(BEGUN, "pass")),
    pending("a reset is one of all envs", reset("self._first[:] = True")),
    pending(
        "a reset forgets the one before",
        reset("which = self._rows(rows)\n    self._first[:] = False\n    self._first[which] = True"),
    ),
    pending("set_memory has no pending resets", set_memory(FIRST, "self._first[:] = False")),
    pending("set_memory keeps its own pending resets", set_memory(FIRST, "pass")),
    remembered(
        "a slice takes the resets of the first rows",
        act("first = self._first[which]", "first = self._first[: len(which)]"),
    ),
    remembered(
        "a slice is sorted on its way in", act("(self._state, which)\n", "(self._state, which.sort()[0])\n")
    ),
    remembered("a slice is sorted on its way out", act(PUT, PUT.replace("which", "which.sort()[0]"))),
    remembered("acting for some forgets the others", act(PUT, PUT.replace("(self._state", f"({INITIAL}"))),
    remembered(
        "a mask names the envs that go on",
        (Session, "_rows", "given = given.nonzero()[0]", "given = (~given).nonzero()[0]"),
    ),
    remembered(
        "reset_memory keeps what was remembered",
        (Session, "reset_memory", "self._state = tree.put", "tree.put"),
    ),
    remembered(
        "reset_memory forgets for all",
        (Session, "reset_memory", "tree.put(self._state, which", f"tree.put({INITIAL}, which"),
    ),
    remembered("set_memory keeps its own state", set_memory(STATE, "pass")),
    Mutant("set_memory keeps its own RNG", round_trip, (set_memory(RNG, "pass"),), OTHERS),
    Mutant(
        "get_memory hands out the live resets",
        round_trip,
        ((Session, "get_memory", "self._first.clone()", "self._first"),),
        OTHERS,
    ),
    Mutant(
        "set_memory takes over the resets that it was given",
        round_trip,
        (set_memory(FIRST, 'self._first = given["first"]'),),
        SAME,
    ),
    Mutant(
        "set_memory looks at the states alone",
        refused,
        (set_memory(SPECS, SPECS.replace("own", 'own["state"]').replace("given", 'given["state"]')),),
        "DID NOT RAISE StateError",
    ),
    Mutant(
        "set_memory stops half-way",
        refused,
        (set_memory("given = {", 'self._first = memory["first"]\n    given = {'),),
        "assert torch.equal(leaf, dict(tree.named_leaves(before))[name]), name",
    ),
    Mutant(
        "sessions act with all threads",
        functools.partial(test_serving_threads.test_few_rows_are_served_with_one_thread, "act", 1, 1),
        (act("row_threads.acting_threads(given)", "row_threads.acting_threads(10**6)"),),
        "assert seen == [expected]",
    ),
    Mutant(
        "the number of threads is not restored",
        functools.partial(test_serving_threads.test_few_rows_are_served_with_one_thread, "predict", 1, 1),
        ((row_threads, "intra_op_threads", "torch.set_num_threads(before)", "pass"),),
        "assert torch.get_num_threads() == 3",
    ),
    Mutant(
        "threads that serve at once leave a default of one",
        test_serving_threads.test_threads_that_serve_at_once_leave_the_default,
        ((row_threads, "intra_op_threads", "if before == count", "if before == 0"),),
        "assert in_new_thread(torch.get_num_threads) == 3",
    ),
]


def recorded() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        test_own_envs.test_the_episodes_are_those_of_the_best_checkpoint(Path(folder), patch)


def resumed() -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        test_eval_mode.test_a_resume_may_change_the_mode(Path(folder), patch)


untouched = test_evaluate.test_training_is_not_touched
run = functools.partial(test_evaluate.test_a_run_with_evaluations_is_the_run_without, "inline")
repeated = functools.partial(test_evaluate.test_same_seed_same_episodes, False)
by_hand = functools.partial(test_evaluate.test_every_episode_begins_without_a_memory, "lstm", True)
shares = functools.partial(test_evaluate.test_every_row_plays_its_share, "next_step")
modes = test_evaluate.test_eval_mode_while_it_plays
ACT = "self._obs, self._state, self._first, self._generator, deterministic"
OWN = "env = self.agent.make_env(min(self.config.eval_episodes, 16))"
PLAYED, REPEATED = "assert played == sorted(", "assert np.array_equal(runs[0].returns, runs[1].returns)"
EVERYTHING, SHARED = "tree.leaves(everything())", "assert sorted(result.returns) == "
MODES, BIT_FOR_BIT = "assert set(modes) == {(False, False)}", "assert differing(without, evaluated) == []"


def play(method: str, old: str, new: str) -> Edit:
    return (evaluate._Player, method, old, new)


def mode(old: str, new: str) -> Edit:
    return (evaluate, "evaluating", old, new)


EVALUATIONS = [
    Mutant(
        "an evaluation keeps the memory over episodes",
        by_hand,
        (play("take", "step.obs, step.first", "step.obs, self._first & False"),),
        PLAYED,
    ),
    Mutant(
        "an evaluation forgets after every step",
        by_hand,
        (play("take", "step.obs, step.first", "step.obs, torch.ones_like(step.first)"),),
        PLAYED,
    ),
    Mutant(
        "a greedy evaluation samples",
        by_hand,
        (play("action", ACT, ACT.replace("deter", "False and deter")),),
        PLAYED,
    ),
    Mutant(
        "whichever episode ends first counts",
        shares,
        (
            play("take", "self.played[row] < self._quota[row]", "len(self.returns) < self._quota.sum()"),
            play("is_done", "(self.played >= self._quota).all()", "len(self.returns) == self._quota.sum()"),
        ),
        SHARED,
    ),
    Mutant(
        "fillers count as steps of an episode",
        shares,
        (play("take", "_length += valid", "_length += 1"),),
        "fillers are not counted",
    ),
    Mutant(
        "an evaluation begins wherever the env is",
        repeated,
        (play("__init__", "env.reset(seed)", "env.reset(seed + getattr(env, 'steps', 0))"),),
        REPEATED,
    ),
    Mutant(
        "actions of an evaluation are drawn without a seed",
        repeated,
        (
            play(
                "__init__",
                "torch.Generator(env.device).manual_seed(sampling_seed)",
                "torch.Generator(env.device)\n    self._generator.seed()",
            ),
        ),
        REPEATED,
    ),
    Mutant(
        "actions of an evaluation come from torch's own stream",
        untouched,
        (play("action", ACT, ACT.replace("self._generator", "None")),),
        EVERYTHING,
    ),
    Mutant(
        "an evaluation moves the observation statistics",
        untouched,
        (
            play(
                "take",
                "valid = step",
                "self.policy.obs_norm.update(self._obs[None], step.valid[None])\n    valid = step",
            ),
        ),
        EVERYTHING,
    ),
    Mutant(
        "an evaluation leaves the policy in eval mode",
        untouched,
        (mode("policy.train(was_training)", "pass"),),
        "assert policy.training",
    ),
    Mutant("an evaluation is played in train mode", modes, (mode("policy.eval()", "pass"),), MODES),
    Mutant(
        "an evaluation keeps graphs",
        modes,
        ((evaluate, "evaluate", "@torch.no_grad()", "@torch.enable_grad()"),),
        MODES,
    ),
    Mutant(
        "evaluations are played in the env of the training",
        run,
        ((Training, "_evaluating", OWN, "env = self._trainer.collector.envs[0]"),),
        BIT_FOR_BIT,
    ),
    Mutant(
        "an evaluation begins new episodes of the training",
        run,
        ((Agent, "evaluate", '_at_least_one("episodes", episodes)', "self._trainer.restart_episodes()"),),
        BIT_FOR_BIT,
    ),
    Mutant(
        "a greedy evaluation is compared with a sampled one",
        resumed,
        ((Run, "is_better", "mode_of(best) != mode or", ""),),
        'assert (best["steps"], best["mode"], best["mean"])',
    ),
    Mutant(
        "the report shows episodes of the weights at the end, not of the best",
        recorded,
        ((recorded_episodes, "record_episodes", "if int(checkpoint.name) != agent.steps:", "if False:"),),
        "np.testing.assert_allclose(trace.value, want.value",
    ),
    Mutant(
        "both evaluations are greedy",
        test_eval_mode.test_both_are_what_each_is_alone,
        ((evaluate, "in_mode", "play(deterministic=False)", "play(deterministic=True)"),),
        "assert (both.mode, both.sampled.mode",
    ),
    Mutant(
        "a run with evaluations draws from torch's own stream",
        run,
        ((Training, "_evaluating", OWN, f"{OWN}\n    import torch; torch.rand(1)"),),
        BIT_FOR_BIT,
    ),
]
