"""Samples of a replay: windows of one episode each."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from recollect.base.types import State, Tree


@dataclass(slots=True)
class Sample:
    """M windows of W = burn_in + length + n_step positions.

    Except ``absent`` and the tensors [M], all are buffers of the replay: they stay as they are during the
    next call of ``sample``, and the call after that overwrites them.
    """

    obs: Tree
    """[W, M, ...]; zeros where ``absent``, like ``action`` and ``reward``."""
    first: Tensor
    """[W, M] bool: the slot opens the window's episode."""
    action: Tree
    """[W, M, ...]"""
    reward: Tensor
    """[W, M]"""
    terminated: Tensor
    """[W, M] bool"""
    absent: Tensor
    """[W, M] bool: the slot does not belong to the window's episode. Final observations do."""
    is_step: Tensor
    """[W, M] bool: the slot is a step, not a final observation."""
    state: State | None
    """[M, ...]: raw input state of position 0. Of windows at an episode's start it has no meaning: there
    ``first`` resets it. None if states are not stored."""
    entries: Tensor
    """[M] int64: identify the windows, for ``Replay.update``."""
    probability: Tensor
    """[M] float64: of each window to be drawn."""
    age: Tensor
    """[M] int64: slots written to the window's row since its first learned step."""

    @property
    def exists(self) -> Tensor:
        """[W, M] bool: where a slot is not ``absent``."""
        return ~self.absent
