"""Bugs of sessions and of evaluation."""

from __future__ import annotations

import functools

import pytest

from recollect.session import Session
from tests import test_session
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
