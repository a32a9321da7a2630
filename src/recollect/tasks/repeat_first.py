"""Repeat first (POPGym): say at every step the suit of the first card."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from recollect.config.tasks import RepeatFirstOptions
from recollect.tasks import deck, random
from recollect.tasks.base import Task


class RepeatFirst(Task):
    """POPGym's RepeatFirst to the letter, on ``decks`` decks of 52 cards, shuffled together.

    A card is dealt before every action, and its suit is seen: Discrete(4). The action, Discrete(4),
    names the suit of the episode's first card, also while that is the card just seen. Right gives
    +1/n, wrong -1/n, with n = 52 * decks - 1 steps. The episode terminates when the deck is empty:
    the last card is seen in ``final_obs`` only.

    With memory 1 is reached. A policy without memory does best to name the suit it sees, which is
    right once and then a little less often than one time in four.
    """

    Options = RepeatFirstOptions
    describe = staticmethod(deck.describe)

    borders: Tensor
    card: Tensor
    opening: Tensor

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        (self.decks,) = RepeatFirstOptions(**options).numbers()
        cards = deck.CARDS * self.decks
        super().__init__(
            num_envs,
            device,
            observation_space=gym.spaces.Discrete(deck.SUITS),
            action_space=gym.spaces.Discrete(deck.SUITS),
            max_episode_steps=cards - 1,
            time_limit=False,
        )
        self.horizon = cards - 2
        self.max_return = 1.0
        same_suit = (cards / deck.SUITS - 1) / (cards - 1)
        self.memoryless_return = 2 * (1 + (cards - 2) * same_suit) / (cards - 1) - 1
        self._cards = random.constant(cards)
        self._full_deck = deck.full_deck(self.decks, num_envs, self.device)
        self._scores = deck.scores(cards - 1, self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        borders = self._full_deck.clone()
        card = deck.deal_(borders, random.integers(random.bits(key, 0), self._cards))
        return {"borders": borders, "card": card, "opening": card}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        reward = torch.where(action == self.opening, *self._scores)
        place = random.integers(random.bits(self.key, self.age), self._cards - self.age)
        self.card.copy_(deck.deal_(self.borders, place))
        return reward, self.age == self._limit

    def _observe(self) -> Tensor:
        return self.card.clone()
