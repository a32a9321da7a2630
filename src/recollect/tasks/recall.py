"""Associative recall: see pairs of a key and a value, then name the value of each key."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.config.tasks import AssociativeRecallOptions
from recollect.tasks import random
from recollect.tasks.base import Task

VALUES = 8


class AssociativeRecall(Task):
    """An episode has ``2 * pairs`` steps. There are ``2 * pairs`` keys and 8 values.

    * t = 0 .. pairs - 1: the pairs, one per step, key and value together. The keys of an episode are a
      random half of all keys, in random order; the values are drawn uniformly and independently, so that
      keys may share one.
    * The next ``pairs`` steps: the queries. Each of the episode's keys is shown once, without its value, in
      random order. The action should name its value, for a reward of 1 / pairs; a wrong answer gives 0. The
      last answer terminates the episode.

    Actions before the queries have no effect and no reward. Answers are not observed.

    Observation, Box [2 * pairs + 9] of 0 and 1: the key one-hot, the value one-hot (zero in a query), the
    query flag; all zero after the last answer. Action, Discrete(8).

    The best return is 1 with memory, and 1/8 without, by guessing.
    """

    Options = AssociativeRecallOptions

    max_return = 1.0
    memoryless_return = 1.0 / VALUES

    sheet: Tensor
    """[B, 2 * pairs + 1]: the observation at each age, as a row of the table of observations."""
    answer: Tensor
    """[B, 2 * pairs]: the right answer in each step; before the queries VALUES, which no action equals."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        (self.pairs,) = AssociativeRecallOptions(**options).numbers()
        self.keys = 2 * self.pairs
        observed = Box(0.0, 1.0, (self.keys + VALUES + 1,), np.float32)
        super().__init__(num_envs, device, observed, Discrete(VALUES), 2 * self.pairs)
        self.horizon = 2 * self.pairs - 1  # from the first pair to the last query
        self._lanes = torch.arange(self.keys + 2 * self.pairs, device=self.device)
        self._share = random.constant(1.0 / self.pairs)
        self._sights = _sights(self.keys).to(self.device)
        self._nothing = torch.full((num_envs, 1), len(self._sights) - 1, device=self.device)
        self._no_answer = torch.full((num_envs, self.pairs), VALUES, device=self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        draws = random.bits(key.unsqueeze(1), self._lanes)
        of_keys, of_values, of_queries = draws.split((self.keys, self.pairs, self.pairs), 1)
        # Sorting independent random words gives a random order. Equal words, with a chance of 1 in 10^17,
        # would make it depend on the device's sort.
        names = of_keys.argsort(1)[:, : self.pairs]
        values = random.integers(of_values, VALUES)
        order = of_queries.argsort(1)
        pairs = names * VALUES + values
        queries = names.gather(1, order) + self.keys * VALUES
        return {
            "sheet": torch.cat((pairs, queries, self._nothing), 1),
            "answer": torch.cat((self._no_answer, values.gather(1, order)), 1),
        }

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        due = self.answer.gather(1, (self.age - random.ONE).unsqueeze(1)).squeeze(1)
        return (action == due).float().mul_(self._share), self.age == self._limit

    def _observe(self) -> Tensor:
        seen = self.sheet.gather(1, self.age.unsqueeze(1)).squeeze(1)
        return self._sights.index_select(0, seen)

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """Such as ``key 3: value 5``, ``key 3?`` or ``blank``."""
        if not obs.any():
            return "blank"
        key = f"key {int(obs[: -VALUES - 1].argmax())}"
        return f"{key}?" if obs[-1] else f"{key}: value {int(obs[-VALUES - 1 : -1].argmax())}"


def _sights(keys: int) -> Tensor:
    """[keys * VALUES + keys + 1, keys + VALUES + 1]: every pair, every query, nothing."""
    pairs = torch.zeros(keys, VALUES, keys + VALUES + 1)
    pairs[:, :, :keys] = torch.eye(keys).unsqueeze(1)
    pairs[:, :, keys:-1] = torch.eye(VALUES)
    queries = torch.zeros(keys, keys + VALUES + 1)
    queries[:, :keys] = torch.eye(keys)
    queries[:, -1] = 1.0
    return torch.cat((pairs.flatten(0, 1), queries, torch.zeros(1, keys + VALUES + 1)))
