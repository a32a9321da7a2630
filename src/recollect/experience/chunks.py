"""Chunks: the sequences that the learner unrolls, and minibatches of them.

A chunk is L consecutive steps of one row together with the *input* state of its first step, stored raw,
before ``first`` applies. Chunks partition the rollout without loss: a shorter last one is padded, and the
padding is invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Tree
from recollect.errors import ConfigError
from recollect.experience.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Prefix:
    """K burn-in steps before each chunk. The first chunk of a rollout has none."""

    obs: Tree
    """[K, N, ...]"""
    first: Tensor
    """[K, N] bool"""
    state: State
    """[N, ...] the raw input state of the prefix's first step."""
    exists: Tensor
    """[N] bool: false for the first chunk of a rollout."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """N chunks of L steps: chunk n is the c-th of row b, with n = c * B + b."""

    obs: Tree
    """[L, N, ...]"""
    first: Tensor
    """[L, N] bool"""
    action: Tree
    """[L, N, ...]"""
    valid: Tensor
    """[L, N] bool; false in padding."""
    data: dict[str, Tensor]
    """[L, N] each: the record of acting, advantages, returns."""
    state: State
    """[N, ...] the raw input state of each chunk's first step."""
    prefix: Prefix | None = None
    """The burn-in steps, if any."""
    sizes: ClassVar[None] = None
    """The sequence lengths by which minibatches are balanced: none, since all chunks have one length."""

    @property
    def count(self) -> int:
        """N."""
        return self.valid.shape[1]

    def whole(self) -> Chunks:
        """All chunks in one batch."""
        return self

    def valid_steps(self, which: Tensor) -> Tensor:
        """The number of valid steps in the chunks ``which`` [M]."""
        return self.valid.index_select(1, which).sum()

    def total(self, which: Tensor, name: str) -> Tensor:
        """The sum of ``data[name]`` over the steps of the chunks ``which`` [M]."""
        return self.data[name].index_select(1, which).sum()

    def take(self, which: Tensor) -> Chunks:
        """The chunks ``which`` [M] int64."""

        def columns(value: Tree) -> Tree:
            return tree.map(lambda leaf: leaf.index_select(1, which), value)

        def rows(value: Tree) -> Tree:
            return tree.map(lambda leaf: leaf.index_select(0, which), value)

        old, prefix = self.prefix, None
        if old is not None:
            prefix = Prefix(columns(old.obs), columns(old.first), rows(old.state), rows(old.exists))
        obs, first, action, valid, data = columns((self.obs, self.first, self.action, self.valid, self.data))
        return Chunks(obs, first, action, valid, data, rows(self.state), prefix)


def make_chunks(rollout: Rollout, length: int, data: dict[str, Tensor], burn_in: int = 0) -> Chunks:
    """Split a rollout into chunks of ``length`` steps.

    Values at invalid steps, which may be NaN, are replaced by zeros here: a loss that masks them later would
    still multiply them into the weight gradients. So is the state of a chunk whose first step is invalid; its
    row stays invalid until the next ``first``.

    Args:
        rollout: T steps of B rows.
        length: L. The last chunk is padded if L does not divide T.
        data: more [T, B] tensors to split; they replace recorded ones of the same name.
        burn_in: K, the steps of the prefix before each chunk except the first of a rollout.
    """
    T = rollout.steps
    if not 1 <= length <= T:
        raise ConfigError(f"chunk = {length}, but a rollout has {T} steps: choose 1 <= chunk <= rollout")
    starts = list(range(0, T, length))
    invalid = ~rollout.valid
    is_clean = not devices.synchronises(invalid) and not invalid.any()

    def clean(value: Tree) -> Tree:
        value = tree.map(lambda leaf: leaf[:T], value)
        return value if is_clean else tree.zero_where(invalid, value)

    def cut(value: Tree) -> Tree:
        return tree.map(lambda leaf: _cut(leaf, length), value)

    def states_at(steps: list[int]) -> State:
        stacked = tree.stack([rollout.state_at(step) for step in steps])
        if not is_clean:
            stacked = tree.zero_where(torch.stack([invalid[step] for step in steps]), stacked)
        return tree.map(lambda leaf: leaf.flatten(0, 1), stacked)  # [C, B, ...] -> [C * B, ...]

    obs = clean(rollout.obs)
    prefix = None
    if burn_in:
        begins = [max(start - burn_in, 0) for start in starts]
        chunk = torch.arange(len(starts) * rollout.rows, device=invalid.device)  # c * B + b
        prefix = Prefix(
            obs=_windows(obs, begins, burn_in),
            first=_windows(rollout.first, begins, burn_in),
            state=states_at(begins),
            exists=chunk >= rollout.rows,
        )
    return Chunks(
        obs=cut(obs),
        first=cut(rollout.first[:T]),
        action=cut(clean(rollout.action)),
        valid=cut(rollout.valid),
        data=cut(clean(rollout.record | data)),
        state=states_at(starts),
        prefix=prefix,
    )


def minibatches(
    count: int, parts: int, generator: torch.Generator, sizes: Tensor | None = None
) -> Iterator[Tensor]:
    """A random partition of ``count`` sequences into ``parts``, none dropped; see ``shares``."""
    order = torch.randperm(count, generator=generator, device=generator.device)
    yield from shares(order, parts, sizes)


def shares(order: Tensor, parts: int, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    """Split ``order`` [M], indices of sequences, into ``parts``.

    The parts have equally many sequences, within one. Given the ``sizes`` [N] of all sequences in steps (on
    the CPU), they have about equally many steps instead; then no part is empty, and there are fewer parts if
    there are fewer sequences.
    """
    if sizes is None:
        return order.tensor_split(parts)
    order = order.cpu()
    parts = min(parts, len(order))
    until = sizes[order].cumsum(0)
    cuts = [0]
    for part in range(1, parts):
        fair = int((until <= until[-1] * part / parts).sum())
        cuts.append(min(max(fair, cuts[-1] + 1), len(order) - (parts - part)))
    return order.tensor_split(cuts[1:])


def _cut(leaf: Tensor, length: int) -> Tensor:
    """[T, B, ...] -> [L, C * B, ...], zero-padded in time to C * L steps."""
    T, B = leaf.shape[:2]
    count = -(-T // length)
    if count * length != T:
        pad = leaf.new_zeros((count * length - T, *leaf.shape[1:]))
        leaf = torch.cat([leaf, pad])
    split = leaf.view(count, length, B, *leaf.shape[2:])  # [C * L, B, ...] -> [C, L, B, ...]
    return split.transpose(0, 1).reshape(length, count * B, *leaf.shape[2:])


def _windows(value: Tree, begins: list[int], width: int) -> Tree:
    """[T, B, ...] -> [width, C * B, ...]: ``width`` steps from each of C start steps, side by side."""
    return tree.cat([tree.index(value, slice(begin, begin + width)) for begin in begins], dim=1)
