"""A trainer under audit: random inputs, calls of its abilities, and the comparison of its numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.audit.results import NotOffered, Problem
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Outputs, Trainer
from recollect.base import tree
from recollect.base.types import State, Tree

STEPS, ROWS = 13, 4
SEED = 7
NOT_COMPARED = ("action",)
"""Outputs that may differ although all is well: they are drawn, or follow from what is compared."""


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """All global random generators seeded, and restored afterwards."""
    kept_random, kept_numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(kept_random)
            np.random.set_state(kept_numpy)


@dataclass(frozen=True, slots=True)
class Acted:
    """T steps of the acting path."""

    outputs: dict[str, Tensor]
    """[T, B, ...]: those that are compared."""
    action: Tree | None
    """[T, B, ...]"""
    states: State
    """[T + 1, B, ...]: that before each step, and the last."""


class Tried:
    """A trainer, random inputs for it, and what several checks need of its answers."""

    def __init__(self, trainer: Trainer, make: Callable[[], Trainer] | None, steps: int = STEPS) -> None:
        self.trainer, self.make = trainer, make
        self.steps, self.rows = max(steps, 6), ROWS

    def offered(self, *names: str) -> None:
        """Raise NotOffered for an ability that is missing."""
        missing = [name for name in names if getattr(self.trainer, name) is None]
        if missing:
            raise NotOffered(f"the trainer offers no `{'`, no `'.join(missing)}`")

    def knows_resets(self) -> None:
        """Raise NotOffered unless the trainer resets by itself."""
        if not self.trainer.resets:
            raise NotOffered("the trainer's functions know no resets")

    @cached_property
    def obs(self) -> Tree:
        """[T, B, ...]"""
        return self.trainer.random_obs(self.steps, self.rows, SEED)

    @cached_property
    def other_obs(self) -> Tree:
        """[T, B, ...]: other observations."""
        return self.trainer.random_obs(self.steps, self.rows, SEED + 1)

    @cached_property
    def first(self) -> Tensor:
        """[T, B] bool: different resets in each row, also two in a row; none in the last row."""
        first = torch.zeros(self.steps, self.rows, dtype=torch.bool)
        if not self.trainer.resets:
            return first
        first[0] = True
        T = self.steps
        first[T // 2, 0] = first[2, 1] = first[T - 2, 1] = first[T // 3, 2] = first[T // 3 + 1, 2] = True
        return first

    def initial(self) -> State:
        """[B, ...]"""
        self.offered("initial_state")
        assert self.trainer.initial_state is not None
        return tree.map(lambda leaf: leaf.detach().clone(), self.trainer.initial_state(self.rows))

    def act(
        self, obs: Tree, state: State, first: Tensor, seed: int = SEED
    ) -> tuple[dict[str, Tensor], State]:
        """One step: outputs with the action, and the state; nothing is shared with the arguments."""
        self.offered("act")
        assert self.trainer.act is not None
        with seeded(seed), torch.no_grad():
            given = tree.clone(obs), tree.clone(state), first.clone()
            outputs, after = self.trainer.act(*given)
        self._check("act", outputs, (len(first),), after)
        return dict(outputs), tree.map(lambda leaf: leaf.detach().clone(), after)

    def play(self, obs: Tree, first: Tensor, state: State | None = None) -> Acted:
        """All steps of obs [T, B, ...], from the initial state."""
        state = self.initial() if state is None else state
        states, outputs = [state], []
        for t in range(len(first)):
            found, state = self.act(tree.index(obs, t), state, first[t], SEED + t)
            states.append(state)
            outputs.append(found)
        actions = [one.get("action") for one in outputs]
        return Acted(
            compared(tree.stack([{k: v for k, v in one.items() if k != "action"} for one in outputs])),
            None if actions[0] is None else tree.stack(actions),
            tree.stack(states),
        )

    @cached_property
    def acted(self) -> Acted:
        """The steps of ``obs``."""
        return self.play(self.obs, self.first)

    def evaluate(
        self,
        obs: Tree,
        state: State,
        first: Tensor,
        action: Tree | None,
        *,
        grad: bool = False,
        seed: int = SEED,
    ) -> tuple[dict[str, Tensor], State | None]:
        """The learner's outputs [T, B, ...], and the state after."""
        self.offered("evaluate")
        assert self.trainer.evaluate is not None
        with seeded(seed), torch.set_grad_enabled(grad):
            copied = obs if grad else tree.clone(obs)
            outputs, after = self.trainer.evaluate(copied, tree.clone(state), first.clone(), action)
        self._check("evaluate", outputs, tuple(first.shape), after)
        found = compared(dict(outputs))
        if not found:
            raise Problem(
                "`evaluate` returns no numbers",
                "Fix: return log_prob, value or other outputs of every step",
            )
        return found, after

    def learned(
        self, obs: Tree, first: Tensor, state: State | None = None, seed: int = SEED
    ) -> dict[str, Tensor]:
        """The learner's outputs of obs [T, B, ...], with the actions that were acted on ``self.obs``."""
        state = self.initial() if state is None else state
        action = None if self.trainer.act is None else self.acted.action
        return self.evaluate(obs, state, first, action, seed=seed)[0]

    def _check(self, ability: str, outputs: Any, lead: tuple[int, ...], state: State | None) -> None:
        if not isinstance(outputs, Mapping):
            raise Problem(
                f"`{ability}` returned a {type(outputs).__name__} as outputs",
                "Fix: return ({name: tensor}, state)",
            )
        for name, value in outputs.items():
            for path, leaf in tree.named_leaves(value, name):
                if tuple(leaf.shape[: len(lead)]) != lead:
                    raise Problem(
                        f"`{ability}` returned {path} of shape {tuple(leaf.shape)}, which must begin with "
                        f"{lead}",
                        "Fix: reshape it in the wrapper: time first, then rows",
                    )
        for path, leaf in tree.named_leaves(state, "state") if state is not None else ():
            if leaf.shape[:1] != (lead[-1],):
                raise Problem(
                    f"`{ability}` returned {path} of shape {tuple(leaf.shape)} for {lead[-1]} rows",
                    "Fix: put the rows first in every leaf of the state (transpose torch's [layers, B, H])",
                )

    @cached_property
    def recorded(self) -> TracedRollout:
        """The recorded rollout."""
        assert self.trainer.record is not None
        with seeded(SEED):
            return self.trainer.record()

    def recorded_finding(self) -> str:
        """Record a rollout, so that an error of the trainer shows."""
        return f"{self.recorded.steps} steps x {self.recorded.rows} rows: {', '.join(self.recorded.parts)}"


def compared(outputs: Outputs) -> dict[str, Tensor]:
    """The outputs that are compared."""
    return {
        name: leaf.detach() if not leaf.requires_grad else leaf
        for name, leaf in outputs.items()
        if name not in NOT_COMPARED and isinstance(leaf, Tensor) and leaf.is_floating_point()
    }


def without_draws(outputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Without the log-probability, which is that of a drawn action. Raises NotOffered if nothing is left."""
    found = {name: x for name, x in outputs.items() if name != "log_prob"}
    if not found:
        raise NotOffered("`act` returns the log-probability of a drawn action alone: add value or logits")
    return found


def gaps(a: Mapping[str, Tensor], b: Mapping[str, Tensor], lead: int = 2) -> Tensor:
    """[T, B] (or [B] with lead 1): the largest difference of the outputs that both have, in units."""
    shared = [name for name in a if name in b]
    if not shared:
        raise Problem(
            f"`act` returns {', '.join(a) or 'nothing'}, `evaluate` {', '.join(b) or 'nothing'}: no output "
            "of the same name",
            "Fix: return log_prob and value from both",
        )
    found = []
    for name in shared:
        x, y = a[name].detach().double(), b[name].detach().double()
        gap = (x - y).abs()
        gap = torch.where(gap.isnan() & ~(x.isnan() & y.isnan()), torch.inf, gap.nan_to_num())
        unit = y.nan_to_num(posinf=0, neginf=0).abs().max().clamp(min=1)
        found.append(gap.reshape(*gap.shape[:lead], -1).amax(-1) / unit)
    return torch.stack(found).amax(0).cpu()


def worst_of(gap: Tensor) -> tuple[float, int, int]:
    """The largest of gap [T, B], with its t and row."""
    t, row = divmod(int(gap.argmax()), gap.shape[-1])
    return float(gap.max()), t, row
