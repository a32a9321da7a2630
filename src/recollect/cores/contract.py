"""The contract of cores, the recurrent part of a policy.

A core maps inputs x [T, B, D] to outputs y [T, B, output_size] and carries a state: a tree of tensors, batch
first. The state is passed in and returned; it is never an attribute, and the caller owns it.

The law: ``unroll`` equals ``step`` repeated, in values and gradients, for every pattern of ``first``, every
T, and every split of T.

``first`` is an argument beside the input. The base class applies the reset in ``step`` and checks the state
in both methods; a subclass writes ``_step`` and ``_unroll``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recollect.base import devices, row_threads, tree
from recollect.base.types import State
from recollect.errors import ConfigError, StateError


class Core(nn.Module, ABC):
    """Base of all cores; see the module's docstring for the law."""

    starts_at_zero = False
    """Whether the initial state is constant zeros, which makes a reset cheaper."""
    reach: int | None = None
    """Number of earlier inputs that, with the present one, determine the output; None: no such bound. So a
    burn-in of ``reach`` steps from zeros rebuilds the state exactly."""
    rounding = 1.0
    """Factor on the tolerance between acting and learning, for cores that amplify rounding errors."""
    is_step_traceable = False
    """Whether ``_step`` on a CPU is the same operations for all values, so that it can be traced."""
    unrolls_in_groups = True
    """Whether ``unroll`` may split the rows into groups, one thread each (``base.row_threads``)."""

    def __init__(self, input_size: int, output_size: int):
        super().__init__()
        if not isinstance(input_size, int) or input_size < 1:
            raise ConfigError(f"input_size is {input_size!r}: a core needs at least 1 feature")
        self.input_size, self.output_size = input_size, output_size
        self._template: State | None = None  # one row of state, to check shapes against

    # For subclasses -----------------------------------------------------------------------------

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state before the first step of an episode, for ``batch`` rows; may be an expanded view.

        A learned initial state gets gradients only where ``first`` selects it.
        """

    @abstractmethod
    def _step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x [B, D] -> y [B, output_size], state. ``first`` is already applied."""

    @abstractmethod
    def _unroll(self, x: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """All steps: x [T, B, D], the raw state at step 0, first [T, B] -> y [T, B, ...], state."""

    # For callers --------------------------------------------------------------------------------

    @property
    def has_memory(self) -> bool:
        """Whether the state has any leaf."""
        return bool(tree.leaves(self.initial_state(1)))

    @property
    def state_names(self) -> tuple[str, ...]:
        """A name for every leaf of the state, in the order of ``tree.leaves``."""
        return tuple(name or "state" for name, _ in tree.named_leaves(self.initial_state(1)))

    def step(self, x: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """One step for acting: x [B, D], state, first [B] -> y [B, output_size], next state."""
        self._check(x, state, first, lead=1)
        if self.steps_by_unroll(x):
            y, state = self._unroll(x.unsqueeze(0), state, first.unsqueeze(0))
            return y.squeeze(0), state
        return self._step(x, self.reset(state, first))

    def steps_by_unroll(self, x: Tensor) -> bool:
        """Whether a step of x [B, D] runs as an unroll of length 1, where that is the fastest way."""
        return False

    def unroll(self, x: Tensor, state: State, first: Tensor) -> tuple[Tensor, State]:
        """T steps for learning: x [T, B, D], state at step 0, first [T, B] -> y [T, B, ...], state."""
        self._check(x, state, first, lead=2)
        if not self.unrolls_in_groups:
            return self._unroll(x, state, first)

        def group(x: Tensor, first: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
            y, end = self._unroll(x, tree.from_leaves(state, leaves), first)
            # In the order of ``state``: a returned dict may have another order of keys.
            return y, *tree.leaves(tree.map(lambda _, leaf: leaf, state, end))

        y, *end = row_threads.side_by_side(group, (x, first), tuple(tree.leaves(state)), self.parameters)
        return y, tree.from_leaves(state, end)

    def reset(self, state: State, first: Tensor) -> State:
        """``state`` with the initial state in the rows where ``first`` [B]."""
        # A traced step, for an export or a compilation, must not branch on values; nor must one on a GPU.
        is_traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
        if not is_traced and not devices.synchronises(first):
            rows = first.nonzero().squeeze(1)
            if len(rows) == 0:
                return state
            if self.starts_at_zero:
                return tree.map(lambda leaf: leaf.index_fill(0, rows, 0), state)
        return tree.select(first, self.initial_state(first.shape[0]), state)

    def states_at(
        self, x: Tensor, state: State, first: Tensor, times: Sequence[int]
    ) -> tuple[Tensor, list[State]]:
        """Unroll segment by segment and also return the raw input states of the steps ``times``.

        ``times`` ascends within 0..T. x [T, B, D] -> y [T, B, ...], states.
        """
        outputs, states, start = [], [], 0
        for end in [*times, x.shape[0]]:
            if end > start:
                y, state = self.unroll(x[start:end], state, first[start:end])
                outputs.append(y)
                start = end
            states.append(state)
        return torch.cat(outputs), states[:-1]

    def _check(self, x: Tensor, state: State, first: Tensor, lead: int) -> None:
        where = f"{type(self).__name__}.{'step' if lead == 1 else 'unroll'}"
        want = "[B, D]" if lead == 1 else "[T, B, D]"
        if x.dim() != lead + 1 or x.shape[-1] != self.input_size:
            raise StateError(
                f"{where}: x has shape {tuple(x.shape)}, wanted {want} with D = {self.input_size}. "
                "Time comes first, then rows: was the input transposed or flattened?"
            )
        if first.shape != x.shape[:lead]:
            raise StateError(
                f"{where}: first has shape {tuple(first.shape)}, x {tuple(x.shape)}: "
                f"first needs shape {tuple(x.shape[:lead])}, one flag for every step and row"
            )
        rows = x.shape[-2]
        if state is None:
            raise StateError(
                f"{where}: no state was given. Start with initial_state({rows}), then pass the state "
                "that the last call returned"
            )
        if self._template is None:
            self._template = tree.clone(self.initial_state(1))
        if tree.fits(state, self._template, rows):
            return
        try:
            got, want = tree.spec(state), tree.spec(self._template)
        except TypeError as error:
            raise StateError(f"{where}: {error}") from None
        if got.keys() != want.keys() or any(got[k][0] != want[k][0] for k in got):
            raise StateError(
                f"{where}: the state has leaves {_describe(got)}, this core needs {_describe(want)}: "
                "is it the state of another core or size?"
            )
        for name, leaf in tree.named_leaves(state):
            if leaf.shape[0] != rows:
                raise StateError(
                    f"{where}: state leaf '{name}' has {leaf.shape[0]} rows, the input {rows}: "
                    "was the state cut with the minibatch?"
                )
        raise StateError(f"{where}: the state has another tree structure than initial_state returns")


def _describe(spec: dict) -> str:
    return ", ".join(f"{name or 'state'} [B, {', '.join(map(str, s))}]" for name, (s, _) in spec.items())
