"""Replay: a ring of steps per row, from which sequences of one episode are drawn.

Each row has a ring of ``capacity`` slots. ``replay_stream`` says which steps and final observations take
slots; position p of the stream is in slot ``p % capacity``. A *window* has W = burn_in + length + n_step
positions around its first learned step: the prefix, the steps that are learned, and those that only serve
their targets. A window is *sampleable* while its prefix and the stored state of its first position are in
memory, and either all its slots are written or its episode has ended. Windows near an episode's start need no
stored state: their first learned step is K steps after it, or a multiple of L below that. So every step is
learned by some window. Positions that the window's episode does not have read as zeros.

Priorities are held in a sum tree with one entry for each slot; the weight of windows that are not sampleable
is 0.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from recollect.base import devices, tree
from recollect.base.types import State, Tree
from recollect.errors import ConfigError, RecollectError
from recollect.experience.replay_checks import (
    FORMAT,
    SETTINGS,
    check_consistent,
    check_rollout,
    check_saved,
    check_settings,
)
from recollect.experience.replay_record import UNWRITTEN, Buffers, Fields, whole
from recollect.experience.replay_sample import Sample
from recollect.experience.replay_stream import Placement, place
from recollect.experience.rollout import Rollout
from recollect.experience.sum_tree import SumTree

TENSORS = (
    *("obs", "action", "record", "ready", "largest", "head", "open_start", "seen"),
    *("state", "state_position", "state_head", "state_slot"),
)
"""The tensors of a replay beside the weights of its tree."""


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
        if stores_states and state is None:
            raise ConfigError("stores_states=True, but state is None: pass the core's state of one row")
        self.rows, self.capacity, self.stride = rows, capacity, stride
        self.burn_in, self.length, self.n_step = burn_in, length, n_step
        self.stores_states, self.priority_exponent = stores_states, priority_exponent
        check_settings(self)
        self.device = device = torch.device(device)
        slots = rows * capacity
        self._spare, self._zero = slots, slots + 1
        """Slots that take what is not stored, and that read as zeros."""
        self.obs, self.action = (tree.empty(like, (slots + 2,), device) for like in (obs, action))
        self.record = torch.zeros(slots + 2, 2, dtype=torch.int64, device=device)
        """What is small, 16 bytes of each slot, so that one gather reads it."""
        self.fields, self._records = Fields.of(self.record), whole(self.record)
        self.fields.word.fill_(UNWRITTEN)
        self.start_shift = (2 * capacity).bit_length()
        """The bits of a word below the start of the episode: more than two laps of positions."""
        self.ready = torch.zeros(slots + 1, dtype=torch.bool, device=device)
        """Whether the window that starts in a slot is sampleable."""
        self.tree = SumTree(slots + 1, device)
        self.largest = torch.ones((), dtype=torch.float64, device=device)
        """The largest weight so far, which new windows get."""
        self.head = torch.zeros(rows, dtype=torch.int64, device=device)
        self.open_start = torch.full((rows,), -1, device=device)
        self.seen = torch.zeros(rows, dtype=torch.int64, device=device)
        """Steps that each row ever had."""
        # States: a ring of their own for each row, numbered like positions.
        self.state_capacity = capacity // stride + 2 if stores_states else 0
        states = rows * self.state_capacity
        self.state: State = tree.empty(state, (states + 2,), device) if stores_states else ()
        self.state_position = torch.full((states + 2,), -1, device=device)
        """Position of the step whose state it is."""
        self.state_head = torch.zeros(rows, dtype=torch.int64, device=device)
        self._no_state = states + 1
        """Index of a state of zeros; the one before it takes what is not stored."""
        self.state_slot = torch.full(
            (slots + 2 if stores_states else 0,), self._no_state, dtype=torch.int32, device=device
        )
        """Index of the state of a slot's step."""
        self._offsets = torch.arange(self.window, device=device).unsqueeze(1)
        self.row_ids = torch.arange(rows, device=device)
        self._buffers: list[Buffers] = []
        self._count = 0
        self._windows: int | None = None
        self._may_be_empty = True

    @property
    def window(self) -> int:
        """W, the positions of a window."""
        return self.burn_in + self.length + self.n_step

    @property
    def windows(self) -> int:
        """The number of sampleable windows. A host read, once after each ``add``."""
        if self._windows is None:
            self._windows = int(self.ready.count_nonzero())
        return self._windows

    @property
    def steps(self) -> int:
        """The number of steps in memory. A host read."""
        return int(self.fields.is_step.count_nonzero())

    @property
    def is_full(self) -> bool:
        """Whether every row overwrites its oldest steps. A host read."""
        return bool((self.head >= self.capacity).all())

    @property
    def bytes(self) -> int:
        """Memory of the replay, without the buffers of ``sample``."""
        return sum(tree.size_bytes(part) for part in self._tensors().values())

    def sample_bytes(self, count: int) -> int:
        """Memory of the buffers that samples of ``count`` windows take."""
        frame = sum(leaf[:1].nbytes for leaf in tree.leaves((self.obs, self.action)))
        state = sum(leaf[:1].nbytes for leaf in tree.leaves(self.state))
        return 2 * count * (self.window * (frame + self.record[0].nbytes) + state)

    # -- writing ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(self, rollout: Rollout, row: int = 0) -> None:
        """Append a rollout to the rows from ``row`` on."""
        check_rollout(self, rollout, row)
        rollout = rollout.to(self.device)
        here = slice(row, row + rollout.rows)
        head, rows, valid = self.head[here].clone(), self.row_ids[here], rollout.valid
        first = rollout.first[:-1]
        placed = place(
            valid=valid,
            first=first,
            terminated=rollout.terminated,
            truncated=rollout.truncated,
            head=head,
            open_start=self.open_start[here],
        )
        self._check_finals(rollout, placed.has_final)
        count = self.seen[here] + valid.long().cumsum(0) - 1
        slots = self._slots(rows, placed.position, placed.head, valid)
        flat = slots.flatten()

        def put(leaf: Tensor, new: Tensor) -> None:
            leaf.index_copy_(0, flat, new.flatten(0, 1))

        tree.map(lambda leaf, new: put(leaf, new[:-1]), self.obs, rollout.obs)
        tree.map(put, self.action, rollout.action)
        fields = self.fields
        put(fields.reward, rollout.reward)
        put(fields.word, self._word(placed.start, placed.position))
        put(fields.first, first)
        put(fields.terminated, rollout.terminated)
        put(fields.is_step, valid)
        put(fields.is_marked, count % self.stride == 0)
        lost = self._add_states(rollout, rows, placed, put) if self.stores_states else None
        finals = self._add_finals(rollout, rows, placed)
        # The last slot of an abandoned episode: its observation is known, the outcome of its action is not.
        before = self._slots(rows, placed.position - 1, placed.head, placed.was_abandoned).flatten()
        self._clear(before)

        self.head[here], self.open_start[here] = placed.head, placed.open_start
        self.seen[here] += valid.sum(0)
        self._refresh(rows, head, placed.head, rollout.steps + finals, lost)
        self._may_be_empty, self._windows = True, None

    def _word(self, start: Tensor, position: Tensor) -> Tensor:
        """The words of slots whose episodes begin at ``start``.

        In an episode they grow by 1 from slot to slot. What overwrote a slot, or is not yet overwritten, has
        another word than expected there, even in the same episode: its position differs by the capacity.
        """
        return (start << self.start_shift) + position

    def start(self, word: Tensor, position: Tensor) -> Tensor:
        """The first position of the episodes, from the words of the slots at ``position``."""
        return (word - position) >> self.start_shift

    def _slots(self, rows: Tensor, position: Tensor, head: Tensor, where: Tensor) -> Tensor:
        """Storage indices of positions [N, B]; the spare slot if not ``where`` or no longer in memory."""
        kept = where & (position >= head - self.capacity) & (position >= 0)
        return torch.where(kept, rows * self.capacity + position % self.capacity, self._spare)

    def _clear(self, slots: Tensor) -> None:
        """Make final slots of them: no step, no action, no reward."""
        tree.map(lambda leaf: leaf.index_fill_(0, slots, 0), self.action)
        self.fields.reward.index_fill_(0, slots, 0)
        self.fields.is_step.index_fill_(0, slots, False)
        if self.stores_states:
            self.state_slot.index_fill_(0, slots, self._no_state)

    def _check_finals(self, rollout: Rollout, has_final: Tensor) -> None:
        missing, finals = has_final.clone(), rollout.finals
        if finals is not None:
            missing[finals.time, finals.row] = False
        if missing.any():
            t, b = missing.nonzero()[0].tolist()
            raise RecollectError(
                f"replay: step {t} of row {b} was truncated, and the rollout does not have its final "
                "observation: the actor must keep them (Acting.keeps_finals=True)"
            )

    def _add_finals(self, rollout: Rollout, rows: Tensor, placed: Placement) -> int:
        """Write the final observations. Returns how many slots at most they take in one row."""
        finals = rollout.finals
        if finals is None:
            return 0
        time, row = finals.time, finals.row
        position = placed.position[time, row] + 1
        slots = self._slots(rows[row], position, placed.head[row], placed.has_final[time, row])
        tree.map(lambda leaf, new: leaf.index_copy_(0, slots, new), self.obs, finals.obs)
        self.record.index_fill_(0, slots, 0)
        self.fields.word.index_copy_(0, slots, self._word(placed.start[time, row], position))
        self._clear(slots)
        return min(len(time), rollout.steps)

    def _add_states(
        self, rollout: Rollout, rows: Tensor, placed: Placement, put: Callable[[Tensor, Tensor], None]
    ) -> Tensor:
        """Store the states of valid steps. Returns the positions [S, B] of those that they overwrite."""
        at = torch.tensor(rollout.state_steps, dtype=torch.int64, device=self.device)
        here = rollout.valid[at]
        old = self.state_head[rows]
        number = old + here.long().cumsum(0) - 1
        new = old + here.sum(0)
        kept = here & (number >= new - self.state_capacity)
        spare = self._no_state - 1
        index = torch.where(kept, rows * self.state_capacity + number % self.state_capacity, spare)
        lost = self.state_position[index].masked_fill(~kept, -1)
        flat = index.flatten()
        tree.map(lambda leaf, s: leaf.index_copy_(0, flat, s.flatten(0, 1)), self.state, rollout.states)
        self.state_position.index_copy_(0, flat, placed.position[at].flatten())
        self.state_position[spare] = -1
        stored = torch.full_like(placed.position, self._no_state, dtype=torch.int32)
        stored[at] = index.int()
        put(self.state_slot, stored)
        self.state_head[rows] = new
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
        was_ready = self.ready[slots] & (position < old)
        weight = torch.where(was_ready, self.tree.levels[0][slots], self.largest).masked_fill(~ready, 0)
        # By rows, so that entries side by side are side by side here.
        index = slots.t().flatten()
        self.ready[index] = ready.t().flatten()
        self.tree.set(index, weight.t().flatten())

    def sampleable(self, rows: Tensor, position: Tensor, slots: Tensor) -> Tensor:
        """[N, B] bool: whether the windows can be drawn whose first learned steps are at ``position``."""
        K, head, capacity = self.burn_in, self.head[rows], self.capacity
        fields = self.fields
        start, first = self.start(fields.word[slots], position), fields.first[slots]
        begin = torch.maximum(start, position - K)
        since = position - start
        whole = position - K >= start
        # A prefix that begins with the episode needs no state.
        near = since <= K
        opened = near & fields.first[self._slots(rows, start, head, near)]
        if self.stores_states:
            state = self.state_slot[self._slots(rows, position - K, head, whole)]
            can_start = whole & (self.state_position[state] == position - K)
            # Without these windows, steps before the first stored state + K might never be learned.
            can_start |= opened & ((since == K) | (since % self.length == 0))
        else:
            can_start = fields.is_marked[slots] & (whole | opened)
        can_start |= first
        complete = (position + self.length + self.n_step <= head) | (start != self.open_start[rows])
        return fields.is_step[slots] & can_start & (begin >= head - capacity) & complete

    # -- reading ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator | None = None) -> Sample:
        """Draw ``count`` windows with replacement, so there may be more than are stored.

        Raises if no window can be drawn. On a GPU this is read after each ``add`` only: if later all
        priorities are set to 0, no slot of the sample exists.
        """
        return self.read(self._draw(count, generator))

    @torch.no_grad()
    def neighbours(
        self, count: int, distance: int, generator: torch.Generator | None = None
    ) -> tuple[Sample, Sample, Tensor]:
        """Draw windows, and the windows ``distance`` < L + n steps later in the same episodes.

        The last result, [M] bool: whether a window has such a neighbour; else it is its own.
        """
        slots = self._draw(count, generator)
        one, row = self.read(slots), slots // self.capacity
        later = row * self.capacity + (slots + distance - row * self.capacity) % self.capacity
        has = one.is_step[self.burn_in + distance] & self.ready[later]
        return one, self.read(torch.where(has, later, slots)), has

    def _draw(self, count: int, generator: torch.Generator | None) -> Tensor:
        """[count] slots where windows start, each with the probability of its weight."""
        if self._may_be_empty:
            self._check_not_empty()
        return self.tree.draw(count, generator)

    def read(self, slots: Tensor) -> Sample:
        """The windows whose first learned steps are in the storage ``slots`` [M]."""
        K, capacity, count = self.burn_in, self.capacity, len(slots)
        row = slots // capacity
        head = self.head.index_select(0, row)
        age = capacity - (slots - head) % capacity
        position = head - age
        weight = self.tree.levels[0].index_select(0, slots)
        begin = row * capacity
        around = ((slots - K) % capacity).add_(begin) + self._offsets
        around.add_(around >= begin + capacity, alpha=-capacity)
        obs, action, state, record, fields = self._output(count)
        torch.index_select(self._records, 0, around.view(-1), out=record)
        # The same in all slots of an episode that are still, or already, in memory: see ``_word``.
        episode = fields.word - self._offsets
        own = episode[K]
        if devices.synchronises(own):
            # Without host reads a window of weight 0 is drawn if there is no other. No word is -UNWRITTEN.
            own = own.masked_fill(weight <= 0, -UNWRITTEN)
        absent = episode != own
        fields.rest.masked_fill_(absent, 0)
        index = around.masked_fill_(absent, self._zero).view(-1)

        def gather(leaf: Tensor, out: Tensor) -> None:
            torch.index_select(leaf, 0, index, out=out.flatten(0, 1))

        tree.map(gather, self.obs, obs)
        tree.map(gather, self.action, action)
        if self.stores_states:
            of_state = self.state_slot.index_select(0, index[:count])
            tree.map(lambda leaf, out: torch.index_select(leaf, 0, of_state, out=out), self.state, state)
        return Sample(
            obs=obs,
            first=fields.first,
            action=action,
            reward=fields.reward,
            terminated=fields.terminated,
            absent=absent,
            is_step=fields.is_step,
            state=state,
            entries=torch.add(row, position, alpha=self.rows),
            probability=weight / self.tree.total,
            age=age,
        )

    def _output(self, count: int) -> Buffers:
        """The buffers of this call: two take turns."""
        if self._count != count:
            lead = (self.window, count)
            self._count, self._buffers = count, []
            for _ in range(2):
                obs, action = tree.empty(self.obs, lead), tree.empty(self.action, lead)
                state = tree.empty(self.state, (count,)) if self.stores_states else None
                record = self.record.new_zeros(*lead, 2)
                self._buffers.append(Buffers(obs, action, state, whole(record), Fields.of(record)))
        self._buffers.reverse()
        return self._buffers[0]

    def _check_not_empty(self) -> None:
        if not self.tree.total > 0:
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
        effect. A negative or infinite priority or NaN raises; on a GPU, where this would be a host read, the
        window keeps its priority.
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
        slots = self._slots(row, position, self.head[row], ~bad)
        slots = torch.where(self.ready[slots], slots, self._spare)
        weight = (priority**self.priority_exponent).masked_fill(slots == self._spare, 0)
        self.largest = torch.maximum(self.largest, weight.max())
        self.tree.set(slots, weight)
        self._may_be_empty = not devices.synchronises(weight)  # all priorities may be 0 now

    # -- checkpoints ------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """All tensors by name, not copied. A replay that loads them continues bit for bit."""
        settings = [float(getattr(self, name)) for name in SETTINGS]
        return {
            **dict(tree.named_leaves(self._tensors())),
            "format": torch.tensor(FORMAT, device=self.device),
            "settings": torch.tensor(settings, dtype=torch.float64, device=self.device),
        }

    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Continue from the ``state_dict`` of a replay with equal settings, or raise and change nothing."""
        check_saved(self, saved)
        other = copy.copy(self)
        other.tree = copy.copy(self.tree)
        own = self._tensors()
        for name, part in tree.from_named(own, {k: v.to(self.device) for k, v in saved.items()}).items():
            if name == "weights":
                other.tree.levels = list(part)
            else:
                setattr(other, name, part)
        other.fields = Fields.of(other.record)
        check_consistent(other)
        tree.copy_(own, other._tensors())
        self._may_be_empty, self._windows = True, None

    def _tensors(self) -> dict[str, Tree]:
        return {name: getattr(self, name) for name in TENSORS} | {"weights": tuple(self.tree.levels)}


def replay_bytes(**settings: Any) -> int:
    """Memory that ``Replay(**settings)`` would take, without the buffers of ``sample``."""
    on_meta: dict[str, Any] = {**settings, "device": "meta"}
    return Replay(**on_meta).bytes
