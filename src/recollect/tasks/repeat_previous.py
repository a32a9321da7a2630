"""Repeat previous (POPGym): say at every step the suit of the card k - 1 steps back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor

from recollect.config.tasks import RepeatPreviousOptions
from recollect.errors import ConfigError
from recollect.tasks import deck, random
from recollect.tasks.base import Task


class RepeatPrevious(Task):
    """POPGym's RepeatPrevious to the letter, on ``decks`` decks of 52 cards, shuffled together.

    A card is dealt before every action, and its suit is seen: Discrete(4). The action, Discrete(4),
    names the suit of the k-th last card. The current card counts: k = 4 is three steps back, k = 1 the
    card just seen. Right gives +1/n, wrong -1/n, with n = 52 * decks - k; the first k - 1 actions of
    an episode, before there are k cards, give 0. The episode terminates when the deck is empty, after
    52 * decks - 1 steps: the last card is seen in ``final_obs`` only.

    With memory 1 is reached. A policy without memory does best to name a suit that it does not see,
    of which more cards are left.
    """

    Options = RepeatPreviousOptions
    describe = staticmethod(deck.describe)

    borders: Tensor
    card: Tensor
    history: Tensor
    """[B, k]: the last k cards; card number i lies at i modulo k."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.decks, self.k = RepeatPreviousOptions(**options).numbers()
        cards = deck.CARDS * self.decks
        if self.k >= cards:
            raise ConfigError(f"{self.name}: k is {self.k}, but {self.decks} decks have {cards} cards")
        super().__init__(
            num_envs,
            device,
            observation_space=gym.spaces.Discrete(deck.SUITS),
            action_space=gym.spaces.Discrete(deck.SUITS),
            max_episode_steps=cards - 1,
            time_limit=False,
        )
        self.horizon = self.k - 1
        self.max_return = 1.0
        self.memoryless_return = 1.0 if self.k == 1 else 2 * (cards / deck.SUITS) / (cards - 1) - 1
        self._cards = random.constant(cards)
        self._k = random.constant(self.k)
        self._full_deck = deck.full_deck(self.decks, num_envs, self.device)
        self._scores = deck.scores(cards - self.k, self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        borders = self._full_deck.clone()
        card = deck.deal_(borders, random.integers(random.bits(key, 0), self._cards))
        # The first card belongs at 0; the other places are written before they are read.
        return {"borders": borders, "card": card, "history": card.unsqueeze(1).expand(-1, self.k)}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        # ``age`` cards have been seen: the next one takes the place of the k-th last.
        slot = (self.age % self._k).unsqueeze(1)
        asked = self.history.gather(1, slot).squeeze(1)
        reward = torch.where(action == asked, *self._scores).masked_fill_(self.age < self._k, 0.0)
        place = random.integers(random.bits(self.key, self.age), self._cards - self.age)
        self.card.copy_(deck.deal_(self.borders, place))
        self.history.scatter_(1, slot, self.card.unsqueeze(1))
        return reward, self.age == self._limit

    def _observe(self) -> Tensor:
        return self.card.clone()
