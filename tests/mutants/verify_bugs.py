"""Bugs that ``recollect verify`` must find, each with the check that must fail for it."""

from __future__ import annotations

from typing import Any

from recollect.algos.adam import Adam
from recollect.algos.ppo import PPO
from recollect.policy.policy import Policy
from recollect.session import Session
from tests.mutants.bugs import MUTANTS
from tests.mutants.edits import ACT, UNROLL, collect, next_value
from tests.mutants.mutant import Mutant


def planted(name: str, *edits: Any) -> Mutant:
    return Mutant(name, lambda: None, edits)


BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

FOUND_BY: list[tuple[str, Mutant]] = [
    # Buffer
    (
        "size",
        planted(
            "rows swapped in the buffer",
            collect("views.reward[t].copy_(step.reward)", "views.reward[t].copy_(step.reward.roll(1))"),
        ),
    ),
    (
        "size",
        planted(
            "one row is never written",
            collect("tree.copy_(views.obs[t], obs)\n", "tree.copy_(views.obs[t][:-1], obs[:-1])\n"),
        ),
    ),
    ("size", BY_NAME["rows permuted between observations and actions"]),
    ("size", BY_NAME["actor and learner both reset one step late"]),
    (
        "rows apart",
        planted(
            "GAE over a flat buffer",
            next_value(
                "following = torch.cat([value[1:], bootstrap.unsqueeze(0)])",
                "following = torch.cat([value.flatten()[1:], bootstrap[-1:]]).view_as(value)",
            ),
        ),
    ),
    ("rows apart", BY_NAME["truncation as termination"]),
    ("rows apart", BY_NAME["truncated wins where both are true"]),
    ("chunks", BY_NAME["the remainder of the rollout is dropped"]),
    ("chunks", BY_NAME["chunks by reshape without transpose"]),
    ("chunks", BY_NAME["padding is valid"]),
    # State
    (
        "acting",
        planted(
            "the state is zeroed in mid-episode",
            collect(ACT, f"{ACT}\n        state = tree.map(torch.zeros_like, state) if t == 10 else state"),
        ),
    ),
    (
        "acting",
        planted(
            "the state is zeroed at the rollout's start",
            collect(
                "obs, first, state = self.obs, self.first, self.state",
                "obs, first, state = self.obs, self.first, policy.initial_state(self.rows)",
            ),
        ),
    ),
    ("acting", BY_NAME["one end resets every row"]),
    ("stored states", BY_NAME["the output state is stored in place of the input state"]),
    ("stored states", BY_NAME["stored states are the live ones, not copies"]),
    ("stored states", BY_NAME["the live state keeps its graph"]),
    ("learner", BY_NAME["no reset inside chunks"]),
    ("learner", BY_NAME["the learner resets one step late"]),
    ("learner", BY_NAME["chunks start from zeros"]),
    ("learner", BY_NAME["the state of another row"]),
    ("values at ends", BY_NAME["V of the reset observation at a truncation"]),
    ("values at ends", BY_NAME["V(final) with the reset state"]),
    ("values at ends", BY_NAME["the rollout ends with a value of zero"]),
    (
        "session",
        planted(
            "a session forgets its pending resets",
            (
                Session,
                "set_memory",
                'self._first = memory["first"].to(self._device, copy=True)',
                "self._first = ~self._first",
            ),
        ),
    ),
    (
        "session",
        planted(
            "a session hands out its live memory",
            (Session, "get_memory", "tree.clone(self._state)", "self._state"),
            (
                Session,
                "act",
                "self._state = tree.put(self._state, which, state)",
                "tree.copy_(self._state, tree.put(self._state, which, state))",
            ),
        ),
    ),
    # Training
    ("updates", planted("the optimiser never steps", (Adam, "clipped_step", "self.step()", "pass"))),
    ("updates", BY_NAME["values move with their statistics"]),
    (
        "same seed",
        planted(
            "minibatches are drawn without a seed",
            (PPO, "__init__", ".manual_seed(seed)", ".manual_seed(torch.seed() % 2**40)"),
        ),
    ),
    # Gradients
    ("through time", BY_NAME["gradients do not flow through time"]),
    ("through time", BY_NAME["padding counts in the loss"]),
    (
        "parameters",
        planted(
            "the core is detached",
            (Policy, "unroll", UNROLL, f"{UNROLL}\n            y = y.detach()"),
        ),
    ),
    (
        "parameters",
        planted(
            "the encoder is detached", (Policy, "unroll", "(x, state, first)", "(x.detach(), state, first)")
        ),
    ),
    (
        "through time",
        planted(
            "the gradient of a row reaches the others",
            (
                Policy,
                "unroll",
                UNROLL,
                f"{UNROLL}\n            y = y + (y.mean(1, keepdim=True) - y.mean(1, keepdim=True).detach())",
            ),
        ),
    ),
]
