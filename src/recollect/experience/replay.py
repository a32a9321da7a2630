"""Replay: a ring of steps per row, from which sequences of one episode are drawn.

Each row has a ring of ``capacity`` slots. ``replay_stream`` says which steps and final observations take
slots; position p of the stream is in slot ``p % capacity``. A *window* has W = burn_in + length + n_step
positions around its first learned step: the prefix, the steps that are learned, and those that only serve
their targets. A window is *sampleable* while its prefix and the stored state of its first position are in
memory, and either all its slots are written or its episode has ended. Positions that the window's episode
does not have read as zeros.

Priorities are held in a sum tree with one entry for each slot; the weight of windows that are not sampleable
is 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Tree
from recollect.errors import ConfigError, RecollectError
from recollect.experience.replay_stream import Placement, place
from recollect.experience.rollout import Rollout
from recollect.experience.sum_tree import SumTree

FIRST, TERMINATED, IS_STEP, MARKED = 1, 2, 4, 8
"""Flags in the low bits of a slot's word. ``MARKED``: a window may start here, if no states are stored."""
FLAG_BITS = 4
UNWRITTEN = -1 << FLAG_BITS
SETTINGS = (
    "rows",
    "capacity",
    "burn_in",
    "length",
    "n_step",
    "stride",
    "stores_states",
    "priority_exponent",
)
"""What a saved replay must have in common with the one that loads it."""


@dataclass(slots=True)
class Sample:
    """M windows of W = burn_in + length + n_step positions.

    The tensors of ``obs``, ``action`` and ``state`` are buffers of the replay: they stay as they are during
    the next call of ``sample``, and the call after that overwrites them.
    """

    obs: Tree
    """[W, M, ...]; zeros where ``exists`` is false, like ``action`` and ``reward``."""
    first: Tensor
    """[W, M] bool: the slot opens the window's episode."""
    action: Tree
    """[W, M, ...]"""
    reward: Tensor
    """[W, M]"""
    terminated: Tensor
    """[W, M] bool"""
    exists: Tensor
    """[W, M] bool: the slot belongs to the window's episode; final observations included."""
    is_step: Tensor
    """[W, M] bool: the slot is a step, not a final observation."""
    state: State | None
    """[M, ...]: raw input state of position 0; zeros for windows at an episode's start, where ``first``
    resets it. None if states are not stored."""
    entries: Tensor
    """[M] int64: identify the windows, for ``Replay.update``."""
    probability: Tensor
    """[M] float64: of each window to be drawn."""
    age: Tensor
    """[M] int64: slots written to the window's row since its first learned step."""


class Replay:
    """The experience of ``rows`` rows, on one device."""

    def __init__(
        self,
        *,
        rows: int,
        capacity: int,
        burn_in: int,
        length: int,
        n_step: int,
        stride: int,
        obs: Tree,
        action: Tree,
        state: State | None,
        device: torch.device | str,
        stores_states: bool = True,
        priority_exponent: float = 0.0,
    ):
        """Allocate everything. On the device "meta", ``bytes`` tells the size without the memory.

        Args:
            rows: streams of experience.
            capacity: slots of each row.
            burn_in: K, positions before the first learned step of a window.
            length: L, learned positions.
            n_step: n, positions after them that serve the targets.
            stride: steps between two stored states of a rollout; without stored states, between the starts
                of two windows.
            obs, action, state: of one row, [1, ...]: shapes and dtypes. ``state`` may be None if it is not
                stored.
            device: of all tensors.
            stores_states: whether rollouts bring states; otherwise ``burn_in`` steps from zeros must rebuild
                the state exactly.
            priority_exponent: weight of a window = priority ** exponent; 0: all windows alike.
        """
        _validate(rows, capacity, burn_in, length, n_step, stride, priority_exponent)
        if stores_states and state is None:
            raise ConfigError("stores_states=True, but state is None: pass the core's state of one row")
        self.rows, self.capacity, self.stride = rows, capacity, stride
        self.burn_in, self.length, self.n_step = burn_in, length, n_step
        self.stores_states, self.priority_exponent = stores_states, priority_exponent
        self.device = device = torch.device(device)
        slots = rows * capacity
        self._spare, self._zero = slots, slots + 1
        """Slots that take what is not stored, and that read as zeros."""
        self._obs, self._action = (tree.empty(like, (slots + 2,), device) for like in (obs, action))
        self._reward = torch.zeros(slots + 2, device=device)
        self._word = torch.full((slots + 2,), UNWRITTEN, device=device)
        """Position of the first slot of the episode, above the flags."""
        self._ready = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        """Whether the window that starts in a slot is sampleable."""
        self._tree = SumTree(slots + 1, device)
        self._largest = torch.ones((), dtype=torch.float64, device=device)
        """The largest weight so far, which new windows get."""
        self._head = torch.zeros(rows, dtype=torch.int64, device=device)
        self._open_start = torch.full((rows,), -1, device=device)
        self._steps = torch.zeros(rows, dtype=torch.int64, device=device)
        """Steps that each row ever had."""
        # States: a ring of their own for each row, numbered like positions.
        self.state_capacity = capacity // stride + 2 if stores_states else 0
        states = rows * self.state_capacity
        self._state = tree.empty(state, (states + 2,), device) if stores_states else None
        self._state_position = torch.full((states + 2,), -1, device=device)
        """Position of the step whose state it is."""
        self._state_head = torch.zeros(rows, dtype=torch.int64, device=device)
        self._state_number = torch.full((slots + 2 if stores_states else 0,), -1, device=device)
        """Number of the state of a slot's step; -1: not stored."""
        self._offsets = torch.arange(-burn_in, length + n_step, device=device).unsqueeze(1)
        self._row_ids = torch.arange(rows, device=device)
        self._buffers: list[tuple[Tree, Tree, State | None]] = []
        self._count = 0
        self._may_be_empty = True

    @property
    def window(self) -> int:
        """W, the positions of a window."""
        return self.burn_in + self.length + self.n_step

    @property
    def windows(self) -> int:
        """The number of sampleable windows. A host read."""
        return int(self._ready.sum())

    @property
    def steps(self) -> int:
        """The number of steps in memory. A host read."""
        return int((self._word & IS_STEP).count_nonzero())

    @property
    def is_full(self) -> bool:
        """Whether every row overwrites its oldest steps. A host read."""
        return bool((self._head >= self.capacity).all())

    @property
    def bytes(self) -> int:
        """Memory of the replay, without the buffers of ``sample``."""
        return sum(tree.size_bytes(part) for part in self._tensors().values())

    def sample_bytes(self, count: int) -> int:
        """Memory of the buffers that samples of ``count`` windows take."""
        frame = sum(leaf[:1].nbytes for leaf in tree.leaves((self._obs, self._action)))
        state = sum(leaf[:1].nbytes for leaf in tree.leaves(self._state or ()))
        return 2 * count * (self.window * frame + state)

    # -- writing ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, rollout: Rollout, row: int = 0) -> None:
        """Append a rollout to the rows from ``row`` on."""
        self._check(rollout, row)
        rollout = rollout.to(self.device)
        here = slice(row, row + rollout.rows)
        head, rows, valid = self._head[here].clone(), self._row_ids[here], rollout.valid
        first = rollout.first[:-1]
        placed = place(
            valid=valid,
            first=first,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            head=head,
            open_start=self._open_start[here],
        )
        count = self._steps[here] + valid.long().cumsum(0) - 1
        flags = first * FIRST + rollout.terminated * TERMINATED + valid * IS_STEP
        flags += (count % self.stride == 0) * MARKED
        slots = self._slots(rows, placed.position, placed.head, valid)
        flat = slots.flatten()

        def put(leaf: Tensor, new: Tensor) -> None:
            leaf.index_copy_(0, flat, new.flatten(0, 1))

        tree.map(lambda leaf, new: put(leaf, new[:-1]), self._obs, rollout.obs)
        tree.map(put, self._action, rollout.action)
        put(self._reward, rollout.reward)
        put(self._word, (placed.start << FLAG_BITS) | flags)
        lost = self._add_states(rollout, rows, placed, put) if self.stores_states else None
        fillers = self._add_finals(rollout, rows, placed)
        # The last slot of an abandoned episode: its observation is known, the outcome of its action is not.
        before = self._slots(rows, placed.position - 1, placed.head, placed.was_abandoned).flatten()
        self._clear(before, self._word[before] & ~IS_STEP)

        self._head[here], self._open_start[here] = placed.head, placed.open_start
        self._steps[here] += valid.sum(0)
        self._refresh(rows, head, placed.head, rollout.steps + fillers, lost)
        self._may_be_empty = True

    def _slots(self, rows: Tensor, position: Tensor, head: Tensor, where: Tensor) -> Tensor:
        """Storage indices of positions [N, B]; the spare slot if not ``where`` or no longer in memory."""
        kept = where & (position >= head - self.capacity) & (position >= 0)
        return torch.where(kept, rows * self.capacity + position % self.capacity, self._spare)

    def _clear(self, slots: Tensor, word: Tensor) -> None:
        """Make slots fillers: no action, no reward."""
        tree.map(lambda leaf: leaf.index_fill_(0, slots, 0), self._action)
        self._reward.index_fill_(0, slots, 0)
        self._word.index_copy_(0, slots, word)
        if self.stores_states:
            self._state_number.index_fill_(0, slots, -1)

    def _add_finals(self, rollout: Rollout, rows: Tensor, placed: Placement) -> int:
        """Write the final observations. Returns how many slots at most they take in one row."""
        finals = rollout.finals
        found = torch.zeros_like(placed.has_filler)
        if finals is not None:
            found[finals.time, finals.row] = True
        missing = placed.has_filler & ~found
        if missing.any():
            t, b = missing.nonzero()[0].tolist()
            raise RecollectError(
                f"replay: step {t} of row {b} was truncated, and the rollout does not have its final "
                "observation: the actor must keep them (Acting.keeps_finals=True)"
            )
        if finals is None:
            return 0
        time, row = finals.time, finals.row
        slots = self._slots(
            rows[row], placed.position[time, row] + 1, placed.head[row], placed.has_filler[time, row]
        )
        tree.map(lambda leaf, new: leaf.index_copy_(0, slots, new), self._obs, finals.obs)
        self._clear(slots, placed.start[time, row] << FLAG_BITS)
        return min(len(time), rollout.steps)

    def _add_states(
        self, rollout: Rollout, rows: Tensor, placed: Placement, put: Callable[[Tensor, Tensor], None]
    ) -> Tensor:
        """Store the states of valid steps. Returns the positions [S, B] of those that they overwrite."""
        at = torch.tensor(rollout.state_steps, device=self.device)
        here = rollout.valid[at]
        old = self._state_head[rows]
        number = old + here.long().cumsum(0) - 1
        new = old + here.sum(0)
        kept = here & (number >= new - self.state_capacity)
        spare = len(self._state_position) - 2
        index = torch.where(kept, rows * self.state_capacity + number % self.state_capacity, spare)
        lost = self._state_position[index].masked_fill(~kept, -1)
        flat = index.flatten()
        tree.map(lambda leaf, s: leaf.index_copy_(0, flat, s.flatten(0, 1)), self._state, rollout.states)
        self._state_position.index_copy_(0, flat, placed.position[at].flatten())
        self._state_position[spare] = -1
        numbers = torch.full_like(placed.position, -1)
        numbers[at] = number
        put(self._state_number, numbers)
        self._state_head[rows] = new
        return lost

    def _refresh(self, rows: Tensor, old: Tensor, head: Tensor, written: int, lost: Tensor | None) -> None:
        """Find out which windows have become sampleable, and which no longer are.

        They start in the slots that were written (at most ``written`` in each row), at most L + n before
        them, or at most K after them, where the prefix was overwritten; or K after the steps ``lost``, whose
        states were.
        """
        back = self.length + self.n_step
        span = min(self.capacity, back + written + self.burn_in)
        around = old - back + torch.arange(span, device=self.device).unsqueeze(1)
        position = head - 1 - (head - 1 - around) % self.capacity  # which is in that slot now
        if lost is not None:
            position = torch.cat([position, torch.where(lost >= 0, lost + self.burn_in, -1)])
        inside = (position >= 0) & (position >= head - self.capacity) & (position < head)
        slots = self._slots(rows, position, head, inside)
        ready = self.sampleable(rows, position, slots) & inside
        was_ready = self._ready[slots] & (position < old)
        weight = torch.where(was_ready, self._tree.levels[0][slots], self._largest).masked_fill(~ready, 0)
        # By rows, so that entries side by side are side by side here.
        index = slots.t().flatten()
        self._ready[index] = ready.t().flatten()
        self._tree.set(index, weight.t().flatten())

    def sampleable(self, rows: Tensor, position: Tensor, slots: Tensor) -> Tensor:
        """[N, B] bool: whether the windows can be drawn whose first learned steps are at ``position``."""
        K, head, capacity = self.burn_in, self._head[rows], self.capacity
        word = self._word[slots]
        start = word >> FLAG_BITS
        begin = torch.maximum(start, position - K)
        whole = position - K >= start
        if self.stores_states:
            number = self._state_number[self._slots(rows, position - K, head, whole)]
            can_start = whole & (number >= 0) & (number >= self._state_head[rows] - self.state_capacity)
        else:
            # A prefix shorter than K rebuilds the state only if it begins with the episode.
            opened = self._word[self._slots(rows, start, head, ~whole)] & FIRST
            can_start = (word & MARKED > 0) & (whole | (opened > 0))
        can_start |= word & FIRST > 0
        complete = (position + self.length + self.n_step <= head) | (start != self._open_start[rows])
        return (word & IS_STEP > 0) & can_start & (begin >= head - capacity) & complete

    # -- reading ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Sample:
        """Draw ``count`` windows with replacement, so there may be more than are stored."""
        if self._may_be_empty:
            self._check_not_empty()
        return self.read(self._tree.draw(count, generator))

    def read(self, slots: Tensor) -> Sample:
        """The windows whose first learned steps are in the storage ``slots`` [M]."""
        K, capacity, count = self.burn_in, self.capacity, len(slots)
        row = slots // capacity
        slot = slots - row * capacity
        head = self._head[row]
        position = head - 1 - (head - 1 - slot) % capacity
        weight = self._tree.levels[0][slots]
        at, around = position + self._offsets, slot + self._offsets
        around = around + capacity * (around < 0) - capacity * (around >= capacity)
        around += row * capacity
        word = self._word[around]
        start = word[K] >> FLAG_BITS
        exists = (word >> FLAG_BITS == start) & (at >= start) & (at < head) & (weight > 0)
        word = word.masked_fill(~exists, 0)
        index = around.masked_fill_(~exists, self._zero).flatten()
        obs, action, state = self._output(count)

        def gather(leaf: Tensor, out: Tensor) -> None:
            torch.index_select(leaf, 0, index, out=out.flatten(0, 1))

        tree.map(gather, self._obs, obs)
        tree.map(gather, self._action, action)
        if self.stores_states:
            of_state = self._state_index(row, index[:count], exists[0])
            tree.map(lambda leaf, out: torch.index_select(leaf, 0, of_state, out=out), self._state, state)
        return Sample(
            obs=obs,
            first=word & FIRST > 0,
            action=action,
            reward=self._reward[index].view(at.shape),
            terminated=word & TERMINATED > 0,
            exists=exists,
            is_step=word & IS_STEP > 0,
            state=state,
            entries=position * self.rows + row,
            probability=weight / self._tree.total,
            age=head - position,
        )

    def _state_index(self, row: Tensor, slots: Tensor, exists: Tensor) -> Tensor:
        """[M] index of the state of position 0 at ``slots``; of zeros where there is none."""
        number, oldest = self._state_number[slots], self._state_head[row] - self.state_capacity
        index = row * self.state_capacity + number % self.state_capacity
        is_stored = exists & (number >= 0) & (number >= oldest)
        return torch.where(is_stored, index, len(self._state_position) - 1)

    def _output(self, count: int) -> tuple[Tree, Tree, State | None]:
        """The buffers of this call: two take turns."""
        if self._count != count:
            lead = (self.window, count)
            self._count, self._buffers = count, []
            for _ in range(2):
                obs, action = tree.empty(self._obs, lead), tree.empty(self._action, lead)
                state = None if self._state is None else tree.empty(self._state, (count,))
                self._buffers.append((obs, action, state))
        self._buffers.reverse()
        return self._buffers[0]

    def _check_not_empty(self) -> None:
        if not self._tree.total > 0:
            raise RecollectError(
                f"replay: no window can be drawn ({self.steps} steps stored, {self.windows} windows "
                f"sampleable): a window needs {self.length + self.n_step} steps of a row from its start, or "
                "the episode's end, and a priority above 0; collect a longer warm-up before the first update"
            )
        self._may_be_empty = False

    @torch.no_grad()
    def update(self, entries: Tensor, priority: Tensor) -> None:
        """Set the priorities [M] >= 0 of windows that were drawn, ``Sample.entries``.

        Windows that were overwritten since then are ignored. With ``priority_exponent=0`` this has no
        effect.
        """
        if entries.shape != priority.shape or entries.dim() != 1:
            raise RecollectError(
                f"replay: {tuple(entries.shape)} entries and {tuple(priority.shape)} priorities, wanted one "
                "priority for each entry of a sample, [M]"
            )
        if self.priority_exponent == 0:
            return
        priority = priority.double()
        bad = ~(priority.isfinite() & (priority >= 0))
        if not devices.synchronises(bad) and bad.any():
            raise RecollectError(
                f"replay: {int(bad.sum())} priorities are negative, NaN or infinite: has the loss diverged?"
            )
        row, position = entries % self.rows, entries // self.rows
        slots = self._slots(row, position, self._head[row], ~bad)
        slots = torch.where(self._ready[slots], slots, self._spare)
        weight = (priority**self.priority_exponent).masked_fill(slots == self._spare, 0)
        self._largest = torch.maximum(self._largest, weight.max())
        self._tree.set(slots, weight)
        self._may_be_empty = not devices.synchronises(weight)  # all priorities may be 0 now

    # -- checkpoints ------------------------------------------------------------------------------------

    def _tensors(self) -> dict[str, Tree]:
        return {
            "obs": self._obs,
            "action": self._action,
            "reward": self._reward,
            "word": self._word,
            "ready": self._ready,
            "largest": self._largest,
            "head": self._head,
            "open_start": self._open_start,
            "steps": self._steps,
            "state": () if self._state is None else self._state,
            "state_position": self._state_position,
            "state_head": self._state_head,
            "state_number": self._state_number,
            "weights": tuple(self._tree.levels),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors by name, not copied: what resumes bit for bit."""
        return {**dict(tree.named_leaves(self._tensors())), "settings": self._settings()}

    def load_state_dict(self, saved: dict[str, Tensor]) -> None:
        """Continue from ``state_dict`` of a replay with the same settings."""
        own = self.state_dict()
        if saved.keys() != own.keys() or any(saved[name].shape != own[name].shape for name in own):
            raise ConfigError("the saved replay has other tensors: was it made with other settings?")
        if not torch.equal(saved["settings"].to(self.device), own["settings"]):
            raise ConfigError("the saved replay was made with other settings")
        for name, leaf in own.items():
            leaf.copy_(saved[name])
        self._may_be_empty = True

    def _settings(self) -> Tensor:
        return torch.tensor(
            [float(getattr(self, name)) for name in SETTINGS], dtype=torch.float64, device=self.device
        )

    def _check(self, rollout: Rollout, row: int) -> None:
        if row < 0 or row + rollout.rows > self.rows:
            raise RecollectError(
                f"replay: rows {row} to {row + rollout.rows - 1} of a rollout, and it has rows 0 to "
                f"{self.rows - 1}: was it made for another num_envs?"
            )
        parts = {"obs": (rollout.obs, self._obs), "action": (rollout.action, self._action)}
        if self.stores_states:
            parts["state"] = (rollout.states, self._state)
        for name, (given, own) in parts.items():
            got, wanted = tree.spec({name: given}, lead=2), tree.spec({name: own})
            if got != wanted:
                leaf = next(leaf for leaf in got | wanted if got.get(leaf) != wanted.get(leaf))
                raise RecollectError(
                    f"replay: {leaf} of the rollout has {_words(got.get(leaf))}, and the replay was made for "
                    f"{_words(wanted.get(leaf))}: the env and the replay disagree about the space"
                )
        stored = len(rollout.state_steps)
        if self.stores_states and stored * self.stride > rollout.steps:
            raise RecollectError(
                f"replay: the rollout has {stored} states in {rollout.steps} steps, and the replay has room "
                f"for one every stride={self.stride} steps: make it with stride={rollout.steps // stored}"
            )


def replay_bytes(**settings: Any) -> int:
    """Memory that ``Replay(**settings)`` would take."""
    return Replay(**settings | {"device": "meta"}).bytes


def _words(spec: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "nothing there" if spec is None else f"shape {list(spec[0])} and dtype {spec[1]}"


def _validate(
    rows: int, capacity: int, burn_in: int, length: int, n_step: int, stride: int, exponent: float
) -> None:
    least = {"rows": (rows, 1), "length": (length, 1), "n_step": (n_step, 1), "stride": (stride, 1)}
    for name, (value, low) in {**least, "burn_in": (burn_in, 0)}.items():
        if value < low:
            raise ConfigError(f"replay: {name}={value}, but it must be at least {low}")
    if not exponent >= 0:
        raise ConfigError(f"replay: priority_exponent={exponent}, but it must be at least 0")
    window = burn_in + length + n_step
    if capacity < window:
        raise ConfigError(
            f"replay: a capacity of {capacity} steps for each row is too small for one window: burn_in + "
            f"length + n_step = {window}; raise the capacity, use fewer rows or shorter windows"
        )
