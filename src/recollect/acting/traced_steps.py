"""Acting steps as traced graphs: with few rows on a CPU, Python takes more time than the arithmetic.

``torch.jit.trace`` records the operations of a step up to the outputs of the head's linear layer, and torch's
interpreter runs them without Python. They are the same operations on the same weights, so the bits are the
same. The first step of every rollout proves it: it runs both ways, and if they differ, all steps are eager
from then on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from recollect.base import devices, tree, triton_support
from recollect.base.types import State, Tree
from recollect.policy.encoders import Encoder
from recollect.policy.policy import Chosen, Policy

EAGER_ROLLOUTS = 2
"""Rollouts of an actor before it traces, which takes 0.1 s: short runs do not pay for it."""
WARM_UP = 3
"""Runs of a new graph, in which torch optimises it: an error would come here."""

Outputs = tuple[Tensor, Tensor, Tensor, State]
"""The inputs of head and critic [B, D], the outputs of the head's linear layer [B, n], and the state."""


def suits(policy: Policy, device: torch.device) -> bool:
    """Whether steps on this device can be traced: nothing in them depends on values that the host reads."""
    if devices.synchronises(device) or triton_support.suits(torch.zeros(1)) or not policy.records_together:
        return False
    encoders = [trunk.encoder for trunk in policy.trunks]
    are_known = all(type(one) is Encoder and not one.tokens and not one.images for one in encoders)
    cores = all(trunk.core.is_step_traceable for trunk in policy.trunks)
    is_plain = type(policy) is Policy and policy.precision == "fp32"
    return is_plain and are_known and cores and hasattr(torch.jit, "trace")


class TracedSteps:
    """``policy.choose`` with its own generator, traced after ``EAGER_ROLLOUTS`` rollouts."""

    def __init__(self, policy: Policy, generator: torch.Generator):
        self._policy, self._generator = policy, generator
        self._rollouts = 0
        self._is_proved = False
        self._has_failed = False
        self._graph: Callable[..., Any] | None = None
        self._has_statistics: bool | None = None

    def begin(self) -> None:
        """Start a rollout: weights may have changed."""
        self._rollouts += 1
        self._is_proved = False

    @torch.no_grad()
    def __call__(self, obs: Tree, state: State, first: Tensor) -> tuple[Chosen, State]:
        """obs [B, ...], state, first [B] -> actions and the next state."""
        policy = self._policy
        if self._rollouts > EAGER_ROLLOUTS and not self._has_failed:
            if not self._is_proved:
                self._prove(obs, state, first)
            if self._is_proved:
                y, of_critic, outputs, state = self._run(obs, state, first)
                return policy.chosen(y, of_critic, outputs, self._generator), state
        return policy.choose(obs, state, first, self._generator)

    def _prove(self, obs: Tree, state: State, first: Tensor) -> None:
        """Compare a step with an eager one, bit for bit."""
        norm = self._policy.obs_norm
        has_statistics = norm is not None and norm.has_statistics
        if self._graph is None or has_statistics != self._has_statistics:  # then it computes something else
            self._has_statistics = has_statistics
            try:
                self._graph = _traced(self._policy, obs, state, first)
                for _ in range(WARM_UP):
                    self._run(obs, state, first)
            except Exception:  # not all that can be traced can run, and tracing is on its way out of torch
                self._has_failed = True
                return
        want, found = self._policy.before_choice(obs, state, first), self._run(obs, state, first)
        self._is_proved = all(map(torch.equal, tree.leaves(found), tree.leaves(want)))
        self._has_failed = not self._is_proved

    def _run(self, obs: Tree, state: State, first: Tensor) -> Outputs:
        assert self._graph is not None
        y, of_critic, outputs, *carried = self._graph(first, *tree.leaves(obs), *tree.leaves(state))
        return y, of_critic, outputs, tree.from_leaves(state, carried)


def _traced(policy: Policy, obs: Tree, state: State, first: Tensor) -> Callable[..., Any]:
    """``before_choice`` from and to the leaves of observations and state."""
    seen = len(tree.leaves(obs))

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy

        def forward(self, first: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
            given = tree.from_leaves(obs, leaves[:seen]), tree.from_leaves(state, leaves[seen:])
            *outputs, after = policy.before_choice(*given, first)
            return *outputs, *tree.leaves(tree.map(lambda _, leaf: leaf, state, after))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing is deprecated
        given = (first, *tree.leaves(obs), *tree.leaves(state))
        graph: Any = torch.jit.trace(Step(), given, check_trace=False)
    return graph.forward  # without the hooks of a module
