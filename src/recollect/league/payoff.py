"""The results of all games between the players of a league, by who played the first side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from recollect.errors import ConfigError

MOST_GAMES = 10**9
"""The most games of a pair: sums stay exact in float64."""
_PAIR = ("first", "second", "wins", "draws", "losses")


class Counts(NamedTuple):
    """Games of a pair by their result for the first player."""

    wins: int = 0
    draws: int = 0
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Payoff:
    """Counts of games for each ordered pair (player of the first side, player of the second side)."""

    players: tuple[str, ...]
    """Their names. The order has no meaning."""
    counts: Mapping[tuple[str, str], Counts] = field(default_factory=dict)
    """Of the pairs that have played. A player may have played itself."""

    def __post_init__(self) -> None:
        names = tuple(self.players)
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"payoff: players is {names!r}; it must be a list of names, at least one")
        known, counts = set[str](), {}
        for name in names:
            if name in known:
                raise ConfigError(f"payoff: the name {name!r} is there twice: give each player its own")
            known.add(name)
        for pair, given in self.counts.items():
            for name in pair:
                if name not in known:
                    raise ConfigError(f"payoff: {name!r} has games but is not in players: add it there")
            counts[pair] = _checked(pair, given)
        object.__setattr__(self, "players", names)
        object.__setattr__(self, "counts", MappingProxyType(counts))

    @classmethod
    def of_games(cls, players: Iterable[str], games: Iterable[tuple[str, str, int]]) -> Payoff:
        """From single games: (first, second, result), the result as in ``TwoSided.won``: 1, 0, -1."""
        counts: dict[tuple[str, str], list[int]] = {}
        for first, second, result in games:
            if result not in (1, 0, -1):
                raise ConfigError(f"payoff: a game of {first!r} has the result {result!r}: use 1, 0 or -1")
            counts.setdefault((first, second), [0, 0, 0])[1 - int(result)] += 1
        return cls(tuple(players), {pair: Counts(*each) for pair, each in counts.items()})

    @classmethod
    def from_json(cls, data: Any) -> Payoff:
        """From ``to_json``'s form."""
        if not isinstance(data, dict) or data.keys() != {"players", "pairs"}:
            raise ConfigError('payoff: expected an object with "players" and "pairs", as to_json() writes it')
        players, pairs = data["players"], data["pairs"]
        if not isinstance(players, list) or not isinstance(pairs, list):
            raise ConfigError("payoff: players and pairs must be lists: is the file damaged?")
        counts: dict[tuple[str, str], Counts] = {}
        for number, each in enumerate(pairs):
            if not isinstance(each, dict) or each.keys() != set(_PAIR):
                raise ConfigError(f"payoff: pair {number} must be an object with {', '.join(_PAIR)}")
            pair = each["first"], each["second"]
            if not all(isinstance(name, str) for name in pair):
                raise ConfigError(f"payoff: pair {number} has the players {pair!r}: use their names")
            if pair in counts:
                raise ConfigError(f"payoff: {_named(pair)} are there twice: add up their games")
            counts[pair] = _checked(pair, tuple(each[name] for name in _PAIR[2:]))
        return cls(tuple(players), counts)

    def to_json(self) -> dict[str, Any]:
        """The JSON form."""
        pairs = [dict(zip(_PAIR, (*pair, *each))) for pair, each in self.counts.items()]
        return {"players": list(self.players), "pairs": pairs}

    def matrices(self, order: tuple[str, ...]) -> np.ndarray:
        """[3, n, n] int64: wins, draws, losses of the player of the row, who played the first side."""
        index = {name: i for i, name in enumerate(order)}
        found = np.zeros((3, len(order), len(order)), np.int64)
        for (first, second), each in self.counts.items():
            found[:, index[first], index[second]] = each
        return found


def _named(pair: tuple[str, str]) -> str:
    return f"the games of {pair[0]!r} (first side) against {pair[1]!r}"


def _checked(pair: tuple[str, str], given: Iterable[Any]) -> Counts:
    """The counts of a pair, validated."""
    each = tuple(given)
    whole = all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in each)
    if len(each) != 3 or not whole or min(each) < 0 or sum(each) > MOST_GAMES:
        raise ConfigError(
            f"payoff: {_named(pair)} are counted as {each!r}; wins, draws and losses must be three whole "
            f"numbers from 0, together at most {MOST_GAMES}"
        )
    return Counts(*map(int, each))
