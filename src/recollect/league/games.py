"""The games of a league: a line for each, written where the env steps, and the proof that they are in order.

A line has ``slot`` (its number in the run), ``game`` (its number in the slot), ``roster``, ``member`` (the
opponent that was drawn), ``side`` and ``outcome`` of the *agent*, ``steps``, and ``swaps``: how often another
member acted in the slot than the one before, within this game. It is counted where players act, not where
they are drawn.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from recollect.acting.versus_games import Results
from recollect.base import files
from recollect.envs.versus import OUTCOMES
from recollect.errors import RecollectError

FOLDER = "games"


@dataclass(frozen=True, slots=True)
class Game:
    """A finished game."""

    slot: int
    game: int
    roster: int
    member: str
    side: str
    outcome: str
    steps: int
    swaps: int = 0

    def __post_init__(self) -> None:
        """Validate."""
        numbers = (self.slot, self.game, self.roster, self.steps, self.swaps)
        if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
            raise TypeError("a number is no count")
        if not isinstance(self.member, str) or not isinstance(self.side, str):
            raise TypeError("a name is no text")
        if self.outcome not in OUTCOMES:
            raise ValueError(f"outcome {files.short(self.outcome)!r}")


class GameLog:
    """The games of the env slots of one cast: a file that only this cast writes."""

    def __init__(self, folder: Path, first_slot: int):
        self.file = folder / FOLDER / f"{first_slot:06d}.jsonl"
        files.refuse_links([self.file.parent, self.file])
        with files.writing(f"{self.file.parent} could not be made"):
            self.file.parent.mkdir(parents=True, exist_ok=True)

    def add(self, games: Iterable[Game]) -> None:
        """Append them."""
        text = "".join(json.dumps(asdict(game)) + "\n" for game in games)
        with files.writing(f"{self.file} could not be written"):
            files.append_whole(self.file, text)

    def read(self) -> list[Game]:
        """All of them."""
        return list(_games(self.file))

    def keep(self, wanted: Callable[[Game], bool]) -> None:
        """Remove the games that are not ``wanted``, which a resumed run plays again."""
        games = self.read()
        kept = [game for game in games if wanted(game)]
        if len(kept) < len(games):
            files.write_atomically(self.file, "".join(json.dumps(asdict(game)) + "\n" for game in kept))


def read_games(folder: Path) -> Iterator[Game]:
    """All games of a league, slot after slot."""
    for file in _logs(folder):
        files.refuse_links([file])
        yield from _games(file)


def prune(folder: Path, rosters: int) -> None:
    """Remove the games of rosters from number ``rosters`` on: they belong to training that is repeated."""
    for file in _logs(folder):
        GameLog(folder, int(file.stem)).keep(lambda game: game.roster < rosters)


def count(games: Iterable[Game], since: int = 0) -> dict[str, Results]:
    """The results against each member, of games from roster ``since`` on."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(OUTCOMES, 0))
    for game in games:
        if game.roster >= since:
            found[game.member][game.outcome] += 1
    return {member: Results(**results) for member, results in found.items()}


class Tally:
    """The counts of a league that is played: reads what is new since the last time."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._seen: dict[Path, tuple[int, int, Counter[tuple[int, str, str]]]] = {}
        """Of each file: its inode, the bytes that are read, and the games by roster, member and outcome."""

    def counts(self, since: int) -> dict[str, Results]:
        """``count`` of all games from roster ``since`` on. Later calls have a later roster."""
        total: Counter[tuple[str, str]] = Counter()
        for file in _logs(self._folder):
            inode = file.stat().st_ino  # another one: games were removed, and a new file is in its place
            known, start, games = self._seen.get(file, (inode, 0, Counter()))
            if known != inode:
                start, games = 0, Counter()
            for key in [key for key in games if key[0] < since]:
                del games[key]
            with files.opened(file) as handle:
                handle.seek(start)
                lines = handle.read().splitlines(keepends=True)
            for line in lines:
                if line.endswith(b"\n"):
                    game = _game(line, file)
                    games[game.roster, game.member, game.outcome] += game.roster >= since
                    start += len(line)
            self._seen[file] = (inode, start, games)
            for (_, member, outcome), number in games.items():
                total[member, outcome] += number
        members = dict.fromkeys(member for member, _ in total)
        return {name: Results(**{outcome: total[name, outcome] for outcome in OUTCOMES}) for name in members}


def faults(games: Iterable[Game], drawn: Callable[[Game], str | None]) -> list[str]:
    """What is wrong with the games of a league; empty if every game had one opponent, the one drawn for it.

    ``drawn``: the member that the draw gives for a game; None if the roster does not allow to repeat it.
    """
    found, last = [], defaultdict[int, int](lambda: -1)
    for game in games:
        where = f"slot {game.slot}, game {game.game}"
        if game.swaps:
            found.append(f"{where}: the opponent {game.member} was replaced within the game")
        if game.game <= last[game.slot]:
            found.append(f"{where}: it comes after game {last[game.slot]}")
        if game.steps < 1:
            found.append(f"{where}: it has no step")
        expected = drawn(game)
        if expected is not None and expected != game.member:
            found.append(f"{where}: booked to {game.member}, and {expected} was drawn")
        last[game.slot] = game.game
    return found


def _logs(folder: Path) -> list[Path]:
    return sorted(file for file in (folder / FOLDER).glob("*.jsonl") if file.stem.isdecimal())


def _games(file: Path) -> Iterator[Game]:
    for row in files.read_lines(file):
        yield _game(row, file)


def _game(row: Any, file: Path) -> Game:
    """The game of a line, or of the object in it."""
    try:
        return Game(**(json.loads(row) if isinstance(row, bytes) else row))
    except (TypeError, ValueError, RecursionError) as error:
        raise RecollectError(f"{file} is damaged ({files.short(error)}): remove that line") from None
