"""``Policy.act`` as a traced graph: with few rows on a CPU, Python takes more time than the arithmetic.

``torch.jit.trace`` records the operations of a whole step, from the observation to the record, and torch's
interpreter runs them without Python. They are the same operations on the same weights and the same generator,
so the bits are the same. The first step of every rollout is eager and checks this: the graph runs beside it,
and if they differ, all steps are eager from then on.
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
from recollect.policy.heads import ActionHead
from recollect.policy.policy import Acted, Policy

EAGER_ROLLOUTS = 2
"""Rollouts of an actor before it traces, which takes 0.1 s: short runs do not pay for it."""
MIN_STEPS = 8
"""Steps of a rollout: in shorter ones, the comparison takes more than the other steps save."""
WARM_UP = 3
"""Runs of a new graph, in which torch optimises it."""


def suits(policy: Policy, device: torch.device, steps: int) -> bool:
    """Whether to trace steps of rollouts of ``steps``: all parts are known, and none branches on values."""
    has_kernels = devices.synchronises(device) or triton_support.suits(torch.zeros(1))
    if steps < MIN_STEPS or has_kernels or policy.is_compiled:
        return False
    encoders, cores = zip(*((trunk.encoder, trunk.core) for trunk in policy.trunks))
    are_vectors = all(type(one) is Encoder and not one.tokens and not one.images for one in encoders)
    is_plain = type(policy) is Policy and type(policy.head) is ActionHead and policy.precision == "fp32"
    # A subclass or a replaced part may branch, although the class that it extends does not.
    are_ours = all(type(part).__module__.startswith(("recollect.", "torch.nn.")) for part in policy.modules())
    return is_plain and are_vectors and are_ours and all(core.is_step_traceable for core in cores)


class TracedAct:
    """``policy.act`` with its own generator, traced after ``EAGER_ROLLOUTS`` rollouts."""

    def __init__(self, policy: Policy, generator: torch.Generator):
        self._policy, self._generator = policy, generator
        self._rollouts = 0
        self._graph: Callable[..., Any] | None = None
        self._has_statistics = False
        self._is_proved = self._has_failed = False

    def begin(self) -> None:
        """Start a rollout: weights may have changed."""
        self._rollouts += 1
        self._is_proved = False

    def __call__(self, obs: Tree, state: State, first: Tensor) -> tuple[Acted, State]:
        """obs [B, ...], state, first [B] -> actions and the next state. Under ``torch.no_grad``."""
        if self._is_proved:
            return self._run(obs, state, first)
        before = self._generator.get_state()
        acted, after = self._policy.act(obs, state, first, self._generator)
        if self._rollouts > EAGER_ROLLOUTS and not self._has_failed and not _has_hooks(self._policy):
            end = self._generator.get_state()
            try:
                found = self._traced(obs, state, first, before)
            except Exception:  # not all that can be traced can run, and tracing is deprecated in torch
                found = None
            want = [*tree.leaves(acted), *tree.leaves(after), end]
            self._is_proved = found is not None and all(map(torch.equal, found, want))
            self._has_failed = not self._is_proved
            self._generator.set_state(end)
        return acted, after

    def _traced(self, obs: Tree, state: State, first: Tensor, generator_state: Tensor) -> list[Tensor]:
        """All results of the graph for this step, with the state of the generator after it."""
        norm = self._policy.obs_norm
        has_statistics = norm is not None and norm.has_statistics
        if self._graph is None or has_statistics != self._has_statistics:  # other operations
            self._has_statistics = has_statistics
            self._graph = _graph(self._policy, self._generator, obs, state, first)
            for _ in range(WARM_UP):
                self._run(obs, state, first)
        self._generator.set_state(generator_state)
        acted, after = self._run(obs, state, first)
        return [*tree.leaves(acted), *tree.leaves(after), self._generator.get_state()]

    def _run(self, obs: Tree, state: State, first: Tensor) -> tuple[Acted, State]:
        assert self._graph is not None
        action, record, after = self._graph(obs, state, first)
        return Acted(action, record), after


def _has_hooks(policy: Policy) -> bool:
    """Whether a module has hooks, which a graph would not call."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in policy.modules())


def _graph(
    policy: Policy, generator: torch.Generator, obs: Tree, state: State, first: Tensor
) -> Callable[[Tree, State, Tensor], Any]:
    """``policy.act`` of B rows as a graph: obs, state, first -> action, record, state."""

    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.policy = policy  # so that the graph refers to the weights and does not copy them

        def forward(self, obs: Tree, state: State, first: Tensor) -> tuple[Tree, dict[str, Tensor], State]:
            acted, after = policy.act(obs, state, first, generator)
            return acted.action, acted.record, after

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing is deprecated
        # strict=False: results may be dicts.
        graph: Any = torch.jit.trace(Step(), (obs, state, first), check_trace=False, strict=False)
    return graph.forward  # without the hooks of a module
