"""Recollect's own policies and algorithms as a ``Trainer``, for the checks that need no more than that."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import NotOffered, Passed, Skip
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Outputs, Trainer
from recollect.audit.trainer_reset_checks import (
    resets_in_acting,
    resets_in_learning,
    row_independence,
    rows_reset,
)
from recollect.audit.trainer_returns_checks import advantage_statistics, both_ends
from recollect.audit.trainer_state_checks import initial_state, step_is_unroll, weights_unchanged
from recollect.audit.tried import STEPS, Tried
from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.config.algo_shared import LearnerConfig
from recollect.config.impala import ImpalaConfig
from recollect.learning.actor_critic import normalise
from recollect.learning.refresh_rollout import recorded

Check = Callable[[Tried], str | Passed]
LENGTH = STEPS
"""The length of the sequences that are tried."""


def trainer_of(one: RecordedRollout) -> Trainer:
    """The policy and the algorithm of a recorded rollout, with observations of its env."""
    policy = one.policy
    valid = one.log.valid
    seen = tree.map(lambda leaf: leaf[:-1][valid], one.log.obs)  # [N, ...]
    count = int(valid.sum())

    def observations(steps: int, rows: int, generator: torch.Generator) -> Tree:
        at = torch.randint(count, (steps, rows), generator=generator).to(valid.device)
        return tree.index(seen, at)

    def numbers(outputs: Sequence[object], action: Tree) -> Outputs:
        made = policy.head.record(outputs, action)
        return {name: made[name] for name in one.fields}

    def act(obs: Tree, state: State, first: Tensor) -> tuple[Outputs, State]:
        *outputs, after = policy.step(obs, state, first.to(valid.device))
        # The greedy action changes with the observation, and no random number is drawn.
        action = policy.head.choose(outputs, None, True)
        return {"action": action, **numbers(outputs, action)}, after

    def evaluate(obs: Tree, state: State, first: Tensor, action: Tree | None) -> tuple[Outputs, State]:
        *outputs, after = policy.unroll(obs, state, first.to(valid.device))
        return numbers(outputs, action), after

    config = one.setup.config.algo
    is_rollout = isinstance(config, LearnerConfig)
    normalises = is_rollout and getattr(config, "normalise_advantages", False)
    return Trainer(
        one.setup.name,
        observations=observations,
        initial_state=policy.initial_state,
        act=act,
        evaluate=evaluate,
        advantages=partial(_advantages, one) if hasattr(one.made.algorithm, "advantages") else None,
        gamma=config.gamma,
        gae_lambda=config.gae_lambda if is_rollout else 1.0,
        normalise=(lambda advantage, valid: normalise(advantage, valid)) if normalises else None,
        parameters=policy.state_dict,
        tolerance=one.setup.tolerance,
    )


def _advantages(one: RecordedRollout, script: TracedRollout) -> tuple[Tensor, Tensor]:
    """The algorithm's own advantages and returns of a script, in a rollout that has its numbers."""
    advantages = vars(one.learner.algorithm)["advantages"]
    T, B, device = script.steps, script.rows, one.rollout.reward.device

    def moved(leaf: Tensor | None) -> Tensor:
        assert leaf is not None
        return leaf.to(device)

    record = {
        name: torch.zeros(T, B, *field.shape, dtype=field.dtype, device=device)
        for name, field in one.policy.head.record_spec.items()
    }
    rollout = replace(
        one.rollout,
        reward=moved(script.reward),
        terminated=moved(script.terminated),
        truncated=moved(script.truncated),
        first=torch.cat([moved(script.first), moved(script.ended[-1:])]),
        valid=moved(script.is_valid),
        record=record | {"value": moved(script.value)},
        final_value=moved(script.final_value),
        bootstrap=moved(script.bootstrap),
    )
    plain = replace(one.algo, reward_scale=1.0, reward_clip=None)
    if isinstance(plain, ImpalaConfig):  # with clips of 1 and equal policies V-trace is GAE
        plain = replace(plain, rho_clip=1.0, c_clip=1.0)
    advantage, returns = advantages(rollout, recorded(rollout), plain)
    return advantage.cpu(), returns.cpu()


def _of_own(check: Check) -> Callable[[Sequence[RecordedRollout]], str | Passed]:
    """A check of a ``Trainer`` as a check of recorded rollouts."""

    def look(rollouts: Sequence[RecordedRollout]) -> str | Passed:
        one = rollouts[-1]
        if not one.log.valid.any():
            raise Skip("no step was valid")
        if check in MEMORY and not one.policy.has_memory:
            raise Skip("the core has no memory")
        policy = copy.deepcopy(one.policy) if check is weights_unchanged else one.policy
        try:
            return check(Tried(trainer_of(replace(one, policy=policy)), None, LENGTH))
        except NotOffered as missing:
            raise Skip(f"the algorithm has no such part: {missing.found}") from None

    look.__name__, look.__doc__ = check.__name__, check.__doc__
    return look


MEMORY = (resets_in_acting, resets_in_learning, rows_reset, step_is_unroll, initial_state)
STATE = tuple(
    _of_own(check)
    for check in (step_is_unroll, initial_state, resets_in_acting, resets_in_learning, rows_reset)
)
"""Of every algorithm."""
ROWS = (_of_own(row_independence),)
FROZEN = (_of_own(weights_unchanged),)
RETURNS = (_of_own(both_ends), _of_own(advantage_statistics))
"""Of algorithms that learn from rollouts."""
