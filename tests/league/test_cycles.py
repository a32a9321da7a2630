"""Cycles: found where there are any, beside a search through all of them, and not in noise."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.league.cycles import beats, find_cycles, reachable

NAMES = tuple("abcdef")


def won_by(edges: list[tuple[int, int]], n: int = len(NAMES), wins: int = 90, losses: int = 10) -> np.ndarray:
    """[n, n]: for each edge the first has won most games against the second."""
    won = np.zeros((n, n), int)
    for i, j in edges:
        won[i, j], won[j, i] = wins, losses
    return won


def in_cycle(edges: set[tuple[int, int]], i: int, j: int) -> int:
    """The length of the shortest cycle through the edge (i, j), by trying all; 0: there is none."""
    for size in range(2, len(NAMES)):
        others = [k for k in range(len(NAMES)) if k not in (i, j)]
        for way in permutations(others, size - 1):
            path = [i, j, *way, i]
            if all(edge in edges for edge in pairwise(path)):
                return size + 1
    return 0


@given(st.lists(st.sampled_from([(i, j) for i in range(6) for j in range(i)]), unique=True), st.data())
def test_every_edge_of_a_cycle_is_in_one_that_is_found(pairs, data) -> None:
    edges = {pair if data.draw(st.booleans()) else pair[::-1] for pair in pairs}
    found = find_cycles(NAMES, won_by([*edges]))
    ways = [[NAMES.index(name) for name in cycle.players] for cycle in found]
    shortest: dict[tuple[int, int], int] = {}
    for way in ways:
        for edge in zip(way, [*way[1:], way[0]]):
            assert edge in edges, "each beats the next"
            shortest[edge] = min(shortest.get(edge, 99), len(way))
    assert shortest == {edge: size for edge in edges if (size := in_cycle(edges, *edge))}
    assert len({frozenset(way) for way in map(tuple, ways)}) <= len(ways) == len({tuple(w) for w in ways})
    assert [len(way) for way in ways] == sorted(map(len, ways)), "the shortest first"


def test_a_pair_must_be_clear_of_even() -> None:
    """60 of 100 is not clear when six players have 15 pairs, 75 is; and more pairs ask for more."""
    edges = [(0, 1), (1, 2), (2, 0)]
    assert find_cycles(NAMES[:3], won_by(edges, 3, 75, 25))
    assert not find_cycles(NAMES[:3], won_by(edges, 3, 60, 40))
    won = won_by(edges, 6, 62, 38)
    assert beats(won).sum() == 3
    won[3:, :3], won[:3, 3:] = 50, 50
    assert beats(won).sum() == 0


@pytest.mark.parametrize("seed", range(5))
def test_equal_players_have_no_cycles(seed: int) -> None:
    """Forty equal players, 780 pairs: single 95% intervals would show about 40 false wins."""
    upper = np.triu(np.random.default_rng(seed).binomial(100, 0.5, (40, 40)), 1)
    won = upper + np.triu(100 - upper, 1).T
    assert find_cycles(tuple(map(str, range(40))), won) == []


def test_the_clearest_of_the_shortest_comes_first() -> None:
    won = won_by([(0, 1), (1, 2), (2, 0)], wins=80, losses=20) + won_by([(3, 4), (4, 5), (5, 3)])
    found = find_cycles(NAMES, won)
    assert [cycle.players for cycle in found] == [("d", "e", "f"), ("a", "b", "c")]
    assert found[0].shares == (0.9, 0.9, 0.9)


def test_reachable_by_a_long_way() -> None:
    line = np.eye(9, k=1, dtype=bool)
    assert np.array_equal(reachable(line), np.triu(np.ones((9, 9), bool)))
