"""A recorded rollout: what ``recollect audit --trace`` reads, and what a trainer hands to the auditor.

Everything is time-major: T steps of B rows, where a row is one stream of experience. Only ``first``,
``terminated`` and ``truncated`` are required. A check that needs a missing part says "not checked".
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.errors import ConfigError

PADDING = -1
"""The number of a position of a chunk that holds no step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRollout:
    """T consecutive steps of B rows, as a trainer recorded and used them."""

    first: Tensor
    """[T, B] bool: the observation of this step opens an episode, so that the memory is reset before it."""
    terminated: Tensor
    """[T, B] bool: the action of this step ended the episode by the rules of the env."""
    truncated: Tensor
    """[T, B] bool: the action of this step ended the episode by a limit."""
    valid: Tensor | None = None
    """[T, B] bool: false for rows that are no experience (fillers of an autoreset, dead agents, padding)."""
    obs: Tree | None = None
    """[T, B, ...]: the observation that the action was chosen on."""
    action: Tree | None = None
    """[T, B, ...]"""
    reward: Tensor | None = None
    """[T, B], as the trainer's estimator gets it, before anything is added for a time limit."""
    log_prob: Tensor | None = None
    """[T, B]: log-probability of the action, recorded while acting."""
    value: Tensor | None = None
    """[T, B]: V(obs[t], memory), recorded while acting."""
    final_value: Tensor | None = None
    """[T, B]: V(the last observation of the episode, the memory after step t), where ``truncated``."""
    bootstrap: Tensor | None = None
    """[B]: V(the observation after the last step), for rows inside an episode."""
    state: State | None = None
    """[T + 1, B, ...] in each leaf: the memory that goes into each step, and the one after the last step."""
    learner_log_prob: Tensor | None = None
    """[T, B]: what the learner computes for ``log_prob`` before its first optimiser step."""
    learner_value: Tensor | None = None
    """[T, B]: what the learner computes for ``value`` before its first optimiser step."""
    advantage: Tensor | None = None
    """[T, B], before any normalisation."""
    returns: Tensor | None = None
    """[T, B]: targets of the critic."""
    chunk_index: Tensor | None = None
    """[L, N] integer: for each position of each sequence that the learner unrolls, t * B + row of its step;
    -1 for padding."""
    chunk_state: State | None = None
    """[N, ...] in each leaf: the memory that the learner unrolls each sequence from."""
    chunk_first: Tensor | None = None
    """[L, N] bool: the resets that the learner applies inside its sequences."""
    gamma: float | None = None
    """Discount of ``advantage``."""
    gae_lambda: float | None = None
    """Lambda of ``advantage``; 1 for V-trace on the policy that acted, and for discounted returns."""

    @property
    def steps(self) -> int:
        """T."""
        return self.first.shape[0]

    @property
    def rows(self) -> int:
        """B."""
        return self.first.shape[1]

    @property
    def is_valid(self) -> Tensor:
        """[T, B] bool: ``valid``, or all steps."""
        return torch.ones_like(self.first) if self.valid is None else self.valid

    @property
    def ended(self) -> Tensor:
        """[T, B] bool: an episode ended here."""
        return (self.terminated | self.truncated) & self.is_valid

    def __post_init__(self) -> None:
        if self.first.dim() != 2:
            raise ConfigError(
                f"trace: first has shape {tuple(self.first.shape)}, not [T, B] (time first, then rows)"
            )
        T, B = self.first.shape
        for name, lead in _LEADS.items():
            value = getattr(self, name)
            if value is None:
                continue
            sizes = tuple({"T": T, "T+1": T + 1, "B": B}.get(size) for size in lead)
            for path, leaf in tree.named_leaves(value, name):
                found = tuple(leaf.shape[: len(sizes)])
                wrong = len(found) < len(sizes) or any(
                    size is not None and size != got for size, got in zip(sizes, found)
                )
                if wrong:
                    raise ConfigError(
                        f"trace: {path} has shape {tuple(leaf.shape)}, which must begin with "
                        f"[{', '.join(lead)}]; T is {T} and B is {B}, from first. Is it transposed?"
                    )
            if name in FLAGS and value.dtype != torch.bool:
                raise ConfigError(f"trace: {name} is {value.dtype}, not bool: convert it with `!= 0`")
        self._check_chunks(T * B)

    def _check_chunks(self, count: int) -> None:
        index = self.chunk_index
        if index is None:
            for name in ("chunk_state", "chunk_first"):
                if getattr(self, name) is not None:
                    raise ConfigError(f"trace: {name} is given without chunk_index")
            return
        if index.is_floating_point() or int(index.min()) < PADDING or int(index.max()) >= count:
            raise ConfigError(
                f"trace: chunk_index must hold integers from -1 (padding) to T * B - 1 = {count - 1}: "
                "t * B + row of each step"
            )
        for leaf in tree.leaves(self.chunk_state) if self.chunk_state is not None else ():
            if len(leaf) != index.shape[1]:
                raise ConfigError(
                    f"trace: chunk_state has {len(leaf)} entries for {index.shape[1]} columns of chunk_index"
                )

    def but(self, **changes: Any) -> TracedRollout:
        """A copy with some parts replaced."""
        return replace(self, **changes)

    @property
    def parts(self) -> list[str]:
        """The names of the parts that are given."""
        return [one.name for one in fields(self) if getattr(self, one.name) is not None]


FLAGS = ("first", "terminated", "truncated", "valid", "chunk_first")
"""The parts that are booleans."""
TIMED = (
    *("first", "terminated", "truncated", "valid", "obs", "action", "reward", "log_prob", "value"),
    *("final_value", "learner_log_prob", "learner_value", "advantage", "returns"),
)
"""The parts with T entries."""
_LEADS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(TIMED, ("T", "B")),
    "state": ("T+1", "B"),
    "bootstrap": ("B",),
    "chunk_index": ("L", "N"),
    "chunk_first": ("L", "N"),
    "chunk_state": ("N",),
}
"""The first dimensions of each part; L and N are free."""
