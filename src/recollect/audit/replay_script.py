"""Scripted rollouts with every kind of end, and plain lists of what a replay of them must hold.

Each observation is a number of its own, which is also the action, the reward and the state of its step.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from recollect.experience.replay import Replay
from recollect.experience.replay_sample import Sample
from recollect.experience.rollout import Finals, Rollout

ENDS = (0.02, 0.1, 0.3, 0.3, 0.0)
"""The probability of an end at each step, by row."""
KINDS = ((True, False), (True, True), (False, True), (False, True))
"""(terminated, truncated) of the ends, each as likely as the others."""
FILLED, RESTARTED, HALF = 2, 1, 4
"""The rows with an invalid step after each end, whose env restarts now and then, and whose agent is alive for
half of the steps."""
INSIDE = 1
"""The row that begins in the middle of an episode."""
ROWS = len(ENDS)


def script(lengths: Any, device: torch.device | str, seed: int = 0) -> Iterator[Rollout]:
    """Rollouts of so many steps, with the states of all steps. What belongs to no step is NaN or -1."""
    generator = torch.Generator().manual_seed(seed)
    count, begins = 1, [row != INSIDE for row in range(ROWS)]
    skipped = [False] * ROWS
    for T in lengths:
        number = torch.arange(count, count + (T + 1) * ROWS).view(T + 1, ROWS)
        terminated, truncated, valid = torch.zeros(3, T, ROWS, dtype=torch.bool)
        first = torch.zeros(T + 1, ROWS, dtype=torch.bool)
        chances = torch.rand(T, ROWS, generator=generator)
        kinds = torch.randint(len(KINDS), (T, ROWS), generator=generator)
        for t in range(T):
            for row in range(ROWS):
                if skipped[row] or (row == HALF and t % 4 > 1):
                    skipped[row] = False
                    continue
                valid[t, row] = True
                first[t, row], begins[row] = begins[row], False
                chance = float(chances[t, row])
                if chance < ENDS[row] or (row == HALF and t % 4 == 1 and T - t < 4):
                    terminated[t, row], truncated[t, row] = KINDS[int(kinds[t, row])]
                    begins[row], skipped[row] = True, row == FILLED
                begins[row] |= row == RESTARTED and chance > 0.9
            first[t + 1] = torch.tensor(begins) & ~torch.tensor(skipped)
        time, of_row = (truncated & ~terminated).nonzero(as_tuple=True)
        count += (T + 1) * ROWS + len(time)
        last = torch.arange(count - len(time), count)
        void = ~valid
        obs = number.float()
        obs[:-1][void] = torch.nan
        yield Rollout(
            obs=obs,
            first=first,
            action=number[:T].masked_fill(void, -1),
            record={},
            reward=number[:T].float().masked_fill(void, torch.nan),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            state_steps=tuple(range(T)),
            states=number[:T].float().masked_fill(void, torch.nan).unsqueeze(-1),
            finals=Finals(time, of_row, last.float()) if len(time) else None,
        ).to(device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The sizes of a replay."""

    capacity: int
    burn_in: int = 3
    length: int = 4
    n_step: int = 2
    stride: int = 2
    stores_states: bool = True

    def __str__(self) -> str:
        states = "stored" if self.stores_states else "rebuilt"
        return (
            f"{self.capacity} slots, burn-in {self.burn_in}, length {self.length}, n-step {self.n_step}, "
            f"stride {self.stride}, states {states}"
        )

    def make(self, device: torch.device | str, priority_exponent: float = 0.0, rows: int = ROWS) -> Replay:
        """An empty replay, by default of the script's rows."""
        like = torch.zeros(1, device=device)
        return Replay(
            rows=rows,
            capacity=self.capacity,
            burn_in=self.burn_in,
            length=self.length,
            n_step=self.n_step,
            stride=self.stride,
            obs=like,
            action=like.long(),
            state=like.unsqueeze(0) if self.stores_states else None,
            device=device,
            stores_states=self.stores_states,
            priority_exponent=priority_exponent,
        )

    def stored(self, rollout: Rollout) -> Rollout:
        """The rollout with the states that an actor stores for these sizes."""
        steps = tuple(range(0, rollout.steps, self.stride))[: rollout.steps // self.stride]
        steps = steps if self.stores_states else ()
        return replace(rollout, state_steps=steps, states=rollout.states[list(steps)])


@dataclass(frozen=True, slots=True)
class Slot:
    """A step, or the observation after a truncated one."""

    number: int
    start: int
    """Index in its row of the episode's first slot."""
    first: bool
    is_step: bool
    terminated: bool
    state: int = -1
    """The number of states that the row stored before the step's own; -1: its own is not stored."""
    age: int = -1
    """The number of steps before it in its row."""


class Lists:
    """Every slot that each row ever had, and the windows that follow from them."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.rows: list[list[Slot]] = [[] for _ in range(ROWS)]
        self.open: list[int | None] = [None] * ROWS
        """The start of the episode that each row is in."""
        self.states, self.steps = [0] * ROWS, [0] * ROWS

    def add(self, rollout: Rollout) -> None:
        """Append a rollout."""
        finals = rollout.finals
        last = {}
        if finals is not None:
            last = dict(zip(zip(finals.time.tolist(), finals.row.tolist()), finals.obs.tolist()))
        valid, first, terminated, truncated = (
            x.tolist() for x in (rollout.valid, rollout.first, rollout.terminated, rollout.truncated)
        )
        action = rollout.action.tolist()
        for row, slots in enumerate(self.rows):
            for t in range(rollout.steps):
                if not valid[t][row]:
                    continue
                if self.open[row] is None or first[t][row]:
                    if self.open[row] is not None:  # the outcome of the last action is not known
                        slots[-1] = replace(slots[-1], is_step=False)
                    self.open[row] = len(slots)
                start, has_state = self.open[row] or 0, t in rollout.state_steps
                state = self.states[row] if has_state else -1
                one = (action[t][row], start, first[t][row], True, terminated[t][row])
                slots.append(Slot(*one, state, self.steps[row]))
                self.states[row] += has_state
                self.steps[row] += 1
                if terminated[t][row] or truncated[t][row]:
                    self.open[row] = None
                    if not terminated[t][row]:
                        slots.append(Slot(int(last[t, row]), start, False, False, False))

    def windows(self) -> set[tuple[int, int]]:
        """(row, index of the first learned step) of all that can be drawn."""
        found = ((row, at) for row, slots in enumerate(self.rows) for at in range(len(slots)))
        return {one for one in found if not self.hindrance(*one)}

    def hindrance(self, row: int, at: int) -> str:
        """Why a window cannot be drawn; "": it can."""
        slots, sizes, K = self.rows[row], self.sizes, self.sizes.burn_in
        if not 0 <= at < len(slots):
            return "its step is not written yet"
        one, since = slots[at], at - slots[at].start
        if not one.is_step:
            return "its first slot is no step: a final observation, or a step whose outcome is not known"
        if max(one.start, at - K) < len(slots) - sizes.capacity:
            return "its first steps are overwritten"
        if one.start == self.open[row] and at + sizes.length + sizes.n_step > len(slots):
            return "its last steps are not written yet"
        opens = slots[one.start].first
        if since == 0 and opens:
            return ""
        if not sizes.stores_states:
            is_whole = since >= K or opens
            return "" if is_whole and one.age % sizes.stride == 0 else "its memory cannot be rebuilt"
        if opens and (since == K or (since < K and since % sizes.length == 0)):
            return ""
        kept = sizes.capacity // sizes.stride + 2
        if since < K or slots[at - K].state < max(0, self.states[row] - kept):
            return "its state is not stored, or overwritten"
        return ""

    def content(self, windows: list[tuple[int, int]]) -> dict[str, Tensor]:
        """The parts of a sample of these windows, [W, M] or [M]; NaN: any number."""
        K, sizes = self.sizes.burn_in, self.sizes
        columns: dict[str, list[Any]] = {name: [] for name in PARTS}
        for row, at in windows:
            slots, start = self.rows[row], self.rows[row][at].start
            inside = [
                slots[q] if start <= q < len(slots) and slots[q].start == start else None
                for q in range(at - K, at + sizes.length + sizes.n_step)
            ]
            for name, of in PARTS.items():
                columns[name].append([of(slot) for slot in inside])
        return {name: torch.tensor(column).t() for name, column in columns.items()} | {
            "age": torch.tensor([len(self.rows[row]) - at for row, at in windows]),
            "entries": torch.tensor([row + ROWS * at for row, at in windows]),
            "state": torch.tensor([self._state(self.rows[row], at, at - K) for row, at in windows]),
        }

    @staticmethod
    def _state(slots: list[Slot], at: int, begin: int) -> float:
        """That of a window's first position; NaN up to an episode's first step, where it has no meaning."""
        start = slots[at].start
        return float(slots[begin].number) if begin >= start + slots[start].first else torch.nan


PARTS: dict[str, Any] = {
    "absent": lambda slot: slot is None,
    "is_step": lambda slot: slot is not None and slot.is_step,
    "first": lambda slot: slot is not None and slot.first,
    "terminated": lambda slot: slot is not None and slot.terminated,
    "obs": lambda slot: float(slot.number) if slot else 0.0,
    "action": lambda slot: slot.number if slot and slot.is_step else 0,
    "reward": lambda slot: float(slot.number) if slot and slot.is_step else 0.0,
}


def drawn(replay: Replay) -> tuple[Sample | None, list[tuple[int, int]]]:
    """All windows that a replay offers, and (row, index) of each."""
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    if not len(slots):
        return None, []
    sample = replay.read(slots)
    return sample, [(int(entry) % ROWS, int(entry) // ROWS) for entry in sample.entries.tolist()]
