"""POPGym's card tasks: repeat first and repeat previous.

Dealing from a shuffled deck is drawing without replacement, and only suits are observed: the state of a deck
is the number of cards left in each suit. A card costs O(4), without a shuffle.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from recollect.config.tasks import RepeatFirstOptions, RepeatPreviousOptions
from recollect.errors import ConfigError
from recollect.tasks import random
from recollect.tasks.base import Task

SUITS = 4
CARDS = 52
SYMBOLS = "♠♦♣♥"
"""In POPGym's order of the suits."""


class RepeatFirst(Task):
    """POPGym's RepeatFirst, by the same rules, on ``decks`` decks of 52 cards, shuffled together.

    A card is dealt before every action, and its suit is observed: Discrete(4). The action, Discrete(4),
    names the suit of the episode's first card, also in the first step. A right answer gives +1/n, a wrong one
    -1/n, with n = 52 * decks - 1 steps. The episode terminates when the deck is empty: the last card is
    observed in ``final_obs`` only.

    The best return with memory is 1. Without memory it is best to name the current suit, which is right in
    the first step and then a little less often than one time in four.
    """

    Options = RepeatFirstOptions

    max_return = 1.0

    borders: Tensor
    card: Tensor
    opening: Tensor

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        (self.decks,) = RepeatFirstOptions(**options).numbers()
        cards = CARDS * self.decks
        super().__init__(num_envs, device, Discrete(SUITS), Discrete(SUITS), cards - 1)
        self.horizon = cards - 2
        same_suit = (cards / SUITS - 1) / (cards - 1)
        self.memoryless_return = 2 * (1 + (cards - 2) * same_suit) / (cards - 1) - 1
        self._cards = random.constant(cards)
        self._full_deck = _full_deck(self.decks, num_envs, self.device)
        self._scores = _scores(cards - 1, self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        borders = self._full_deck.clone()
        card = _deal_(borders, random.bits(key, 0), self._cards)
        return {"borders": borders, "card": card, "opening": card}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        reward = torch.where(action == self.opening, *self._scores)
        self.card.copy_(_deal_(self.borders, random.bits(self.key, self.age), self._cards - self.age))
        return reward, self.age == self._limit

    def _observe(self) -> Tensor:
        return self.card.clone()

    @staticmethod
    def describe(obs: np.ndarray) -> str:
        """The suit as a symbol."""
        return SYMBOLS[int(obs)]


class RepeatPrevious(Task):
    """POPGym's RepeatPrevious, by the same rules, on ``decks`` decks of 52 cards, shuffled together.

    A card is dealt before every action, and its suit is observed: Discrete(4). The action, Discrete(4),
    names the suit of the k-th last card. The current card counts: k = 4 is three steps back, k = 1 the
    current card. A right answer gives +1/n, a wrong one -1/n, with n = 52 * decks - k; the first k - 1
    actions of an episode, before there are k cards, give 0. The episode terminates when the deck is empty,
    after 52 * decks - 1 steps: the last card is observed in ``final_obs`` only.

    The best return with memory is 1. Without memory it is best to name another suit than the current one,
    because more of its cards are left.
    """

    Options = RepeatPreviousOptions

    max_return = 1.0

    borders: Tensor
    card: Tensor
    history: Tensor
    """[B, k]: the last k cards; card number i is at i modulo k."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu", **options: Any) -> None:
        self.decks, self.k = RepeatPreviousOptions(**options).numbers()
        cards = CARDS * self.decks
        if self.k >= cards:
            raise ConfigError(f"{self.name}: k is {self.k}, but {self.decks} decks have {cards} cards")
        super().__init__(num_envs, device, Discrete(SUITS), Discrete(SUITS), cards - 1)
        self.horizon = self.k - 1
        self.memoryless_return = 1.0 if self.k == 1 else 2 * (cards / SUITS) / (cards - 1) - 1
        self._cards = random.constant(cards)
        self._k = random.constant(self.k)
        self._full_deck = _full_deck(self.decks, num_envs, self.device)
        self._scores = _scores(cards - self.k, self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        borders = self._full_deck.clone()
        card = _deal_(borders, random.bits(key, 0), self._cards)
        # The first card is at 0; the other places are written before they are read.
        return {"borders": borders, "card": card, "history": card.unsqueeze(1).expand(-1, self.k)}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        # ``age`` cards have been dealt: the next one replaces the k-th last.
        slot = (self.age % self._k).unsqueeze(1)
        asked = self.history.gather(1, slot).squeeze(1)
        reward = torch.where(action == asked, *self._scores).masked_fill_(self.age < self._k, 0.0)
        self.card.copy_(_deal_(self.borders, random.bits(self.key, self.age), self._cards - self.age))
        self.history.scatter_(1, slot, self.card.unsqueeze(1))
        return reward, self.age == self._limit

    def _observe(self) -> Tensor:
        return self.card.clone()

    describe = staticmethod(RepeatFirst.describe)


def _full_deck(num_decks: int, rows: int, device: torch.device) -> Tensor:
    """The borders [B, 3] of full decks: the number of cards with suit 1 to 3, suit 2 to 3, suit 3.

    In a deck sorted by suit, suit 3 first, a card's suit is the number of borders above its place.
    """
    per_suit = CARDS // SUITS * num_decks
    return (torch.arange(SUITS - 1, 0, -1, device=device) * per_suit).repeat(rows, 1)


def _deal_(borders: Tensor, word: Tensor, cards: Tensor) -> Tensor:
    """Remove one of ``cards`` [B] cards from the deck ``borders`` [B, 3] by the random ``word`` [B].

    Returns its suit [B] int64.
    """
    above = random.integers(word, cards).unsqueeze(1) < borders
    borders.add_(above, alpha=-1)
    return above.sum(1)


def _scores(answers: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rewards of a right and a wrong answer in an episode with ``answers`` answers."""
    return torch.tensor(1.0 / answers, device=device), torch.tensor(-1.0 / answers, device=device)
