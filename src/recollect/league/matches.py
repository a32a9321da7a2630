"""Games between members of a league outside of the training: ``matches.jsonl``.

A line has the players of the first and of the second side, with the checksums of their weights, the wins,
draws and losses of the first, and the seed. So the games of a snapshot that a resumed run has replaced do not
count for the new one of that name.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from recollect.acting.versus_games import Results
from recollect.base import files
from recollect.errors import RecollectError
from recollect.league.payoff import Counts
from recollect.league.pool import Pool

SEED = 2_000_003
"""Of the first match of a pair; the next one has the next."""


@dataclass(frozen=True, slots=True)
class Match:
    """Games of a pair with these sides."""

    first: str
    second: str
    weights: tuple[str, str]
    wins: int
    draws: int
    losses: int
    seed: int

    def __post_init__(self) -> None:
        """Validate."""
        if not all(isinstance(text, str) for text in (self.first, self.second, *self.weights)):
            raise TypeError("a name is no text")
        numbers = (self.wins, self.draws, self.losses, self.seed)
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise TypeError("a number is no count")
        if len(self.weights) != 2:
            raise ValueError("weights has not two checksums")

    @property
    def counts(self) -> Counts:
        """Of the first player."""
        return Counts(self.wins, self.draws, self.losses)


class MatchLog:
    """The matches of a league. Several processes may write."""

    def __init__(self, pool: Pool):
        self._pool, self.file = pool, pool.folder / "matches.jsonl"
        files.refuse_links([self.file])

    def read(self) -> list[Match]:
        """Those of the present members."""
        weights = {member.name: member.sha256 for member in self._pool.members}
        return [
            one
            for one in map(self._match, files.read_lines(self.file))
            if one.weights == (weights.get(one.first), weights.get(one.second))
        ]

    def next_seed(self, one: str, other: str) -> int:
        """A seed that no match of the two had: the same games twice would count as evidence twice."""
        played = [match.seed for match in self.read() if {match.first, match.second} == {one, other}]
        return max(played, default=SEED - 1) + 1

    def add(self, one: str, other: str, sides: dict[str, Results], seed: int) -> None:
        """Append the games of ``one`` against ``other``, by the side of ``one``, the first side first."""
        first, second = sides.values()
        shas = self._pool[one].sha256, self._pool[other].sha256
        rows = [
            Match(one, other, shas, first.win, first.draw, first.loss, seed),
            Match(other, one, (shas[1], shas[0]), second.loss, second.draw, second.win, seed),
        ]
        text = "".join(json.dumps(asdict(row)) + "\n" for row in rows)
        with (
            files.locked(self.file, f"{self.file} is being written by another process: try again"),
            files.writing(f"{self.file} could not be written"),
        ):
            if seed != self.next_seed(one, other):
                raise RecollectError(f"another process played {one} against {other} meanwhile: try again")
            files.append_whole(self.file, text)

    def _match(self, row: dict[str, Any]) -> Match:
        try:
            values: dict[str, Any] = row | {"weights": tuple(row["weights"])}
            return Match(**values)
        except (KeyError, TypeError, ValueError) as error:
            raise RecollectError(f"{self.file} is damaged ({files.short(error)}): remove that line") from None
