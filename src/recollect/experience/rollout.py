"""Rollouts, and the chunks and minibatches that the learner cuts from them.

A rollout is T steps of B rows, time-major. A chunk is L consecutive steps of one row together with
the *input* state of its first step, stored raw, before ``first`` applies. Chunks partition the
rollout without loss: a shorter last one is padded, and the padding is invalid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import devices, spaces, tree
from recollect.base.types import State, Tree
from recollect.errors import ConfigError, RecollectError


@dataclass(slots=True)
class Finals:
    """The observations before the resets of truncated episodes, N of them, in order of time."""

    time: Tensor
    """[N] int64: the step t that was cut."""
    row: Tensor
    """[N] int64."""
    obs: Tree
    """[N, ...] what was seen after step t."""

    def to(self, device: torch.device | str) -> Finals:
        """The same on a device."""
        return Finals(self.time.to(device), self.row.to(device), tree.to(self.obs, device))


@dataclass(slots=True)
class Rollout:
    """T steps of B rows, as one actor recorded them under one version of the weights."""

    obs: Tree
    """[T + 1, B, ...]"""
    first: Tensor
    """[T + 1, B] bool"""
    action: Tree
    """[T, B, ...] as stored: see ``Policy.to_env``."""
    record: dict[str, Tensor]
    """What acting recorded beside the action, [T, B] each; the algorithm's choice."""
    reward: Tensor
    """[T, B]"""
    terminated: Tensor
    """[T, B] bool"""
    truncated: Tensor
    """[T, B] bool"""
    valid: Tensor
    """[T, B] bool"""
    final_value: Tensor
    """[T, B], where truncated"""
    bootstrap: Tensor
    """[B]"""
    state_steps: tuple[int, ...]
    """The steps, ascending from 0, whose raw input states are stored."""
    states: State
    """[S, B, ...]: the states at ``state_steps``."""
    finals: Finals | None = None
    """What was seen before the resets of truncated episodes."""
    actor: int = 0
    """Who recorded it."""
    sequence: int = 0
    """The how-manieth of that actor."""
    version: int = 0
    """The weights that acted."""

    @property
    def steps(self) -> int:
        """T."""
        return self.reward.shape[0]

    @property
    def rows(self) -> int:
        """B."""
        return self.reward.shape[1]

    def state_at(self, step: int) -> State:
        """The stored raw input state of a step, [B, ...]."""
        if step not in self.state_steps:
            raise RecollectError(
                f"the state at step {step} was not stored (stored: {self.state_steps}): the actor and the "
                "learner disagree about the chunk length or the burn-in"
            )
        slot = self.state_steps.index(step)
        return tree.index(self.states, slot)


def state_steps(rollout: int, chunk: int, burn_in: int = 0) -> tuple[int, ...]:
    """The steps at which states must be stored: chunk starts, and burn-in prefix starts before them."""
    starts = range(0, rollout, chunk)
    return tuple(sorted({*starts, *(start - burn_in for start in starts if start > 0)}))


@dataclass(frozen=True, slots=True)
class RolloutSize:
    """What acting takes in memory: the rollout, and what rows carry from one to the next."""

    total: int
    """Bytes; final observations at truncations come on top where they are listed, and are few."""
    states: int
    """Bytes of it that are stored states."""


def rollout_bytes(
    observation_space: gym.Space,
    action_space: gym.Space,
    state: State,
    *,
    rows: int,
    steps: int,
    stored: int,
    places: int = 0,
) -> RolloutSize:
    """The size of a rollout of ``steps`` x ``rows`` with ``stored`` states, before it is allocated.

    ``state`` is that of one row, such as ``policy.initial_state(1)``; ``places``: how many truncations of a
    row are kept with their observation and state (``cuts.places``).
    """
    obs = tree.size_bytes(spaces.zeros(observation_space, 1))
    action = tree.size_bytes(spaces.zeros(action_space, 1))
    memory = tree.size_bytes(state)
    floats, flags = 4 * 4, 4  # log_prob, value, reward, final_value; first, terminated, truncated, valid
    per_row = steps * (obs + action + floats + flags) + obs + 1 + 4  # and obs[T], first[T], bootstrap
    live = obs + 1 + memory
    kept = places * (obs + memory + 8 + 2)  # and time, whether there was one, and that it is no start
    return RolloutSize((per_row + live + kept + stored * memory) * rows, stored * memory * rows)


@dataclass(frozen=True, slots=True)
class Prefix:
    """The burn-in steps before chunks: K steps each. Chunks that open the rollout have none."""

    obs: Tree
    """[K, N, ...]"""
    first: Tensor
    """[K, N] bool"""
    state: State
    """[N, ...] the raw input state of the prefix's first step."""
    exists: Tensor
    """[N] bool: false for the chunks that open the rollout."""


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
    """[L, N] each: what acting recorded, advantages, returns."""
    state: State
    """[N, ...] the raw input state of each chunk's first step."""
    prefix: Prefix | None = None
    """The burn-in steps, if any."""

    @property
    def count(self) -> int:
        """N."""
        return self.valid.shape[1]

    @property
    def sizes(self) -> None:
        """What minibatches are to be balanced by: nothing, as all chunks are alike."""
        return None

    def whole(self) -> Chunks:
        """All chunks in one batch."""
        return self

    def valid_steps(self, which: Tensor) -> Tensor:
        """How many valid steps the chunks ``which`` [M] have."""
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

        prefix = (
            None
            if self.prefix is None
            else Prefix(
                columns(self.prefix.obs),
                columns(self.prefix.first),
                rows(self.prefix.state),
                rows(self.prefix.exists),
            )
        )
        return Chunks(
            columns(self.obs),
            columns(self.first),
            columns(self.action),
            columns(self.valid),
            {name: columns(value) for name, value in self.data.items()},
            rows(self.state),
            prefix,
        )


def make_chunks(rollout: Rollout, length: int, data: dict[str, Tensor], burn_in: int = 0) -> Chunks:
    """Cut a rollout into chunks of ``length`` steps.

    What invalid steps hold, be it NaN, is no experience: it becomes zeros here, once, because a loss
    that masks it later would still multiply it into the weight gradients. The same goes for the
    state of a chunk whose first step is invalid; such a row stays invalid until its next ``first``.

    Args:
        rollout: T steps of B rows.
        length: L. The last chunk is padded if L does not divide T.
        data: [T, B] tensors to cut along beside what acting recorded (and in place of it).
        burn_in: K, the steps of the prefix before each chunk but those that open the rollout.
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
        data={name: cut(clean(value)) for name, value in (rollout.record | data).items()},
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
    """``order`` [M], numbers of sequences, cut into ``parts``.

    Their counts are within one, or, given the ``sizes`` [N] of all sequences in steps (on the CPU), their
    steps are about alike; then none is empty, and there are fewer parts if there are fewer sequences.
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
    """[T, B, ...] -> [width, C * B, ...]: the steps from each of C beginnings on, side by side."""
    return tree.cat([tree.index(value, slice(begin, begin + width)) for begin in begins], dim=1)
