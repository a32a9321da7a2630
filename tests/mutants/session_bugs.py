"""Bugs of sessions and of evaluation."""

from __future__ import annotations

import functools

import pytest

from recollect import evaluate
from recollect.agent import Agent
from recollect.session import Session
from recollect.training import Training
from tests import test_evaluate, test_session
from tests.helpers import TensorWorld, make_policy
from tests.mutants.mutant import Edit, Mutant

conversation = functools.partial(test_session.test_any_conversation_is_that_of_each_env_alone, "lstm")
policy = functools.partial(make_policy, TensorWorld(4), test_session.CORES["lstm"])


def round_trip() -> None:
    test_session.test_memory_round_trip(policy())


def refused() -> None:
    try:
        test_session.test_a_refused_memory_changes_nothing(policy())
    except pytest.fail.Exception as missed:  # nothing was raised
        raise AssertionError(missed) from missed


START = "self._first[which] = False"
PUT = "self._state = tree.put(self._state, which, state)"


def act(old: str, new: str) -> Edit:
    return (Session, "act", old, new)


def set_memory(old: str, new: str) -> Edit:
    return (Session, "set_memory", old, new)


SESSIONS = [
    Mutant(
        "acting for some drops the resets of others", conversation, (act(START, "self._first[:] = False"),)
    ),
    Mutant("a reset stays pending after its step", conversation, (act(START, "pass"),)),
    Mutant(
        "a slice takes the resets of the first rows",
        conversation,
        (act("self._first[which], ", "self._first[: len(which)], "),),
    ),
    Mutant(
        "a slice is sorted on its way in",
        conversation,
        (act("tree.index(self._state, which)", "tree.index(self._state, which.sort()[0])"),),
    ),
    Mutant(
        "a slice is sorted on its way out", conversation, (act(PUT, PUT.replace("which", "which.sort()[0]")),)
    ),
    Mutant(
        "acting for some forgets the others",
        conversation,
        (act(PUT, "self._state = tree.put(self.policy.initial_state(self.num_envs), which, state)"),),
    ),
    Mutant(
        "a reset is one of all envs",
        conversation,
        ((Session, "reset", "self._first[self._rows(rows)] = True", "self._first[:] = True"),),
    ),
    Mutant(
        "a reset forgets the one before",
        conversation,
        (
            (
                Session,
                "reset",
                "self._first[self._rows(rows)] = True",
                "which = self._rows(rows)\n    self._first[:] = False\n    self._first[which] = True",
            ),
        ),
    ),
    Mutant(
        "a mask names the envs that go on",
        conversation,
        ((Session, "_rows", "given = given.nonzero()[0]", "given = (~given).nonzero()[0]"),),
    ),
    Mutant(
        "reset_memory keeps what was remembered",
        conversation,
        ((Session, "reset_memory", "self._state = tree.put", "tree.put"),),
    ),
    Mutant(
        "reset_memory forgets for all",
        conversation,
        (
            (
                Session,
                "reset_memory",
                "tree.put(self._state, which, self.policy.initial_state(len(which)))",
                "self.policy.initial_state(self.num_envs)",
            ),
        ),
    ),
    Mutant(
        "set_memory has no pending resets",
        conversation,
        (set_memory('given["first"].to(self._device, copy=True)', "torch.zeros_like(self._first)"),),
    ),
    Mutant(
        "set_memory keeps its own pending resets",
        conversation,
        (set_memory('self._first = given["first"].to(self._device, copy=True)', "pass"),),
    ),
    Mutant(
        "set_memory keeps its own state",
        conversation,
        (set_memory('self._state = tree.to(tree.clone(given["state"]), self._device)', "pass"),),
    ),
    Mutant(
        "set_memory keeps its own RNG",
        round_trip,
        (set_memory('self._generator.set_state(given["rng"].cpu())', "pass"),),
    ),
    Mutant(
        "get_memory hands out the live resets",
        round_trip,
        ((Session, "get_memory", "self._first.clone()", "self._first"),),
    ),
    Mutant(
        "set_memory takes over the resets that it was given",
        round_trip,
        (set_memory('given["first"].to(self._device, copy=True)', 'given["first"]'),),
    ),
    Mutant(
        "set_memory looks at the states alone",
        refused,
        (
            set_memory(
                "tree.spec(own, lead=0), tree.spec(given, lead=0)",
                'tree.spec(own["state"], lead=0), tree.spec(given["state"], lead=0)',
            ),
        ),
    ),
    Mutant(
        "set_memory stops half-way",
        refused,
        (set_memory("given = {", 'self._first = memory["first"]\n    given = {'),),
    ),
]

untouched = test_evaluate.test_training_is_not_touched
run = functools.partial(test_evaluate.test_a_run_with_evaluations_is_the_run_without, "inline")
repeated = functools.partial(test_evaluate.test_same_seed_same_episodes, False)
by_hand = functools.partial(test_evaluate.test_every_episode_begins_without_a_memory, "lstm", True)
shares = functools.partial(test_evaluate.test_every_row_plays_its_share, "next_step")
ACT = "policy.act(obs, state, first, generator, deterministic)"
OWN = "env = self.agent.make_env(min(self.config.eval_episodes, 16))"


def play(old: str, new: str) -> Edit:
    return (evaluate, "_play", old, new)


def around(old: str, new: str) -> Edit:
    return (evaluate, "evaluate", old, new)


EVALUATIONS = [
    Mutant(
        "an evaluation keeps the memory over episodes",
        by_hand,
        (play("step.obs, step.first", "step.obs, first & False"),),
    ),
    Mutant(
        "an evaluation forgets after every step", by_hand, (play("step.obs, step.first", "step.obs, first"),)
    ),
    Mutant("a greedy evaluation samples", by_hand, (play(ACT, ACT.replace("deterministic", "False")),)),
    Mutant(
        "whichever episode ends first counts",
        shares,
        (
            play("if played[row] < quota[row]:", "if len(returns) < quota.sum():"),
            play("(played >= quota).all()", "len(returns) == quota.sum()"),
        ),
    ),
    Mutant("fillers count as steps of an episode", shares, (play("length += valid", "length += 1"),)),
    Mutant(
        "an evaluation begins wherever the env is",
        repeated,
        (play("env.reset(seed)", "env.reset(torch.initial_seed() % 1000 + env.steps)"),),
    ),
    Mutant(
        "actions of an evaluation are drawn without a seed",
        repeated,
        (
            around(".manual_seed(seed)", ""),
            around("torch.Generator(env.device)", "torch.Generator(env.device); generator.seed()"),
        ),
    ),
    Mutant(
        "actions of an evaluation come from torch's own stream",
        untouched,
        (play(ACT, ACT.replace("generator", "None")),),
    ),
    Mutant(
        "an evaluation moves the observation statistics",
        untouched,
        (play("valid = step", "policy.obs_norm.update(obs[None], step.valid[None])\n        valid = step"),),
    ),
    Mutant(
        "an evaluation leaves the policy in eval mode",
        untouched,
        (around("policy.train(was_training)", "pass"),),
    ),
    Mutant(
        "an evaluation is played in train mode",
        test_evaluate.test_eval_mode_while_it_plays,
        (around("policy.eval()", "pass"),),
    ),
    Mutant(
        "an evaluation keeps graphs",
        test_evaluate.test_eval_mode_while_it_plays,
        (around("@torch.no_grad()", "@torch.enable_grad()"),),
    ),
    Mutant(
        "evaluations are played in the env of the training",
        run,
        ((Training, "_evaluating", OWN, "env = self._trainer.crew.envs[0]"),),
    ),
    Mutant(
        "an evaluation begins new episodes of the training",
        run,
        ((Agent, "evaluate", '_at_least_one("episodes", episodes)', "self._trainer.restart_episodes()"),),
    ),
    Mutant(
        "a run with evaluations draws from torch's own stream",
        run,
        ((Training, "_evaluating", OWN, OWN + "\n    import torch; torch.rand(1)"),),
    ),
]
