"""Cycles in a payoff: A beats B, B beats C, C beats A. One rating per player cannot describe them."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from recollect.acting.versus_games import wilson


@dataclass(frozen=True, slots=True)
class Cycle:
    """Players of whom each beats the next, and the last the first."""

    players: tuple[str, ...]
    shares: tuple[float, ...]
    """Of the decided games that each won against the next."""

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        return {"players": list(self.players), "shares": list(self.shares)}

    def __str__(self) -> str:
        links = [f"{name} ({share:.0%})" for name, share in zip(self.players, self.shares)]
        return " > ".join([*links, self.players[0]])


def reachable(step: np.ndarray) -> np.ndarray:
    """[n, n] bool: j can be reached from i by ``step`` [n, n] bool; every player from itself."""
    ways = step | np.eye(len(step), dtype=bool)
    for _ in range(len(step).bit_length()):  # each time the ways are twice as long
        ways = (ways.astype(np.float32) @ ways.astype(np.float32)) > 0
    return ways


def beats(won: np.ndarray, confidence: float = 0.95) -> np.ndarray:
    """[n, n] bool: i beats j, by ``won`` [n, n]: games that i won against j, on both sides.

    The Wilson interval of the share of decided games is above 1/2. All intervals hold together with this
    confidence (Bonferroni): of a hundred equal players, with intervals of 95% each, 250 pairs would differ.
    """
    decided = won + won.T
    pairs = np.count_nonzero(np.triu(decided, 1))
    z = NormalDist().inv_cdf(1 - (1 - confidence) / (2 * max(1, pairs)))
    found = np.zeros(won.shape, bool)
    for i, j in zip(*np.nonzero(won > won.T)):
        found[i, j] = wilson(int(won[i, j]), int(decided[i, j]), z)[0] > 0.5
    return found


def find_cycles(players: tuple[str, ...], won: np.ndarray) -> list[Cycle]:
    """For every pair of ``beats`` that is part of a cycle, a shortest one; each once.

    The shortest come first, and of these the clearest: that with the largest least share.
    """
    edges = beats(won)
    share = np.where(edges, won / np.maximum(won + won.T, 1), 0.0)
    distance = _distances(edges)
    found: dict[tuple[int, ...], Cycle] = {}
    for start, after in zip(*np.nonzero(edges & (len(players) != distance.T))):
        way = [int(start), int(after)]
        while distance[way[-1], start] > 1:
            nearer = edges[way[-1]] & (distance[:, start] == distance[way[-1], start] - 1)
            way.append(int(np.where(nearer, share[way[-1]], -1.0).argmax()))
        least = way.index(min(way))
        way = way[least:] + way[:least]
        shares = tuple(float(share[i, j]) for i, j in zip(way, [*way[1:], way[0]]))
        found[tuple(way)] = Cycle(tuple(players[i] for i in way), shares)
    return sorted(found.values(), key=lambda one: (len(one.players), -min(one.shares), one.players))


def _distances(edges: np.ndarray) -> np.ndarray:
    """[n, n]: the number of edges from i to j; n where there is no way."""
    n = len(edges)
    distance = np.full((n, n), n)
    np.fill_diagonal(distance, 0)
    reached = np.eye(n, dtype=bool)
    for length in range(1, n):
        ways = (reached.astype(np.float32) @ edges.astype(np.float32)) > 0
        new = ways & (distance == n)
        if not new.any():
            break
        distance[new] = length
        reached = new
    return distance
