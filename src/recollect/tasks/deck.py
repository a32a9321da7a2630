"""A shuffled deck of cards of which only the suits are observed.

Dealing from a shuffled deck is drawing without replacement, and cards of one suit are equal: the state is the
number of cards left in each suit. A card costs O(4), without a shuffle.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

SUITS = 4
CARDS = 52
SYMBOLS = "♠♦♣♥"
"""In POPGym's order of the suits."""


def full_deck(num_decks: int, rows: int, device: torch.device) -> Tensor:
    """The borders [B, 3] of full decks: the number of cards with suit 1 to 3, suit 2 to 3, suit 3.

    In a deck sorted by suit, suit 3 first, a card's suit is the number of borders above its place.
    """
    per_suit = CARDS // SUITS * num_decks
    return (torch.arange(SUITS - 1, 0, -1, device=device) * per_suit).repeat(rows, 1)


def deal_(borders: Tensor, place: Tensor) -> Tensor:
    """Remove the card at ``place`` [B] of the sorted deck ``borders`` [B, 3]. Returns its suit [B] int64."""
    above = place.unsqueeze(1) < borders
    borders.add_(above, alpha=-1)
    return above.sum(1)


def scores(answers: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Rewards of a right and a wrong answer in an episode with ``answers`` answers."""
    return torch.tensor(1.0 / answers, device=device), torch.tensor(-1.0 / answers, device=device)


def describe(obs: np.ndarray) -> str:
    """The suit as a symbol."""
    return SYMBOLS[int(obs)]
