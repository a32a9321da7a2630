"""Which members are opponents, and how often: a roster; and the draw of each game's opponent from it.

All of it is a pure function of the seed, the members, the counts of games, and the numbers of the slot and of
its game: it does not depend on the runtime, and a resume repeats it.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.acting.versus_games import Results
from recollect.base import files
from recollect.config.league import LeagueConfig
from recollect.errors import RecollectError
from recollect.league.pool import MOST_LETTERS, Member
from recollect.tasks import random

HARDNESS = 2
"""The exponent of prioritised fictitious self-play: a member's weight is (1 - p) ** 2, where p is the share
of games that the agent wins against it (Vinyals et al. 2019, AlphaStar, f_hard)."""
RECENT = 10
"""Matchmaking counts the games of so many rosters: the agent was another one before."""
_SLOT, _ROSTER = 0x4C454147, 0x524F5354


@dataclass(frozen=True, slots=True)
class Roster:
    """The opponents of a stretch of the training."""

    number: int
    """0, 1, ... in the run."""
    steps: int
    """Env steps at which it begins."""
    members: tuple[str, ...]
    shares: tuple[float, ...]
    """The share of the games that each member plays."""
    latest: str
    """The newest snapshot: the agent is that one or a later one."""

    def __post_init__(self) -> None:
        """Validate."""
        names = (*self.members, self.latest)
        if not all(isinstance(name, str) and len(name) <= MOST_LETTERS for name in names) or not self.members:
            raise TypeError("a roster without names")
        if not all(files.is_number(share) and share >= 0 for share in self.shares):
            raise TypeError("a share is no number")
        if len(self.shares) != len(self.members) or not math.isclose(sum(self.shares), 1, abs_tol=1e-6):
            raise ValueError("the shares of a roster do not add up to 1")
        if type(self.number) is not int or type(self.steps) is not int:
            raise TypeError("number and steps of a roster are counts")

    def pick(self, chance: float) -> str:
        """The member at this place of [0, 1)."""
        for name, end in zip(self.members, itertools.accumulate(self.shares)):
            if chance < end:
                return name
        return next(name for name, share in zip(self.members[::-1], self.shares[::-1]) if share > 0)

    def ends(self) -> list[float]:
        """As float32, the end of each member's part of [0, 1), such that the first end above a chance of 24
        bits is that of the member that ``pick`` gives; 2 from the last member with a share on."""
        last = max(i for i, share in enumerate(self.shares) if share > 0)
        ends = itertools.accumulate(self.shares)
        # Exact: below 2 ** -24 a chance has no bits, and 2 ** 24 such steps fit into a float32.
        return [2.0 if i >= last else math.ceil(end * 2**24) / 2**24 for i, end in enumerate(ends)]

    def without(self, names: set[str]) -> Roster | None:
        """The roster without members that cannot be loaded; None: without any."""
        kept = {n: share for n, share in zip(self.members, self.shares) if n not in names}
        total = sum(kept.values())
        if not kept:
            return None
        shares = [share / total if total else 1 / len(kept) for share in kept.values()]
        return Roster(self.number, self.steps, tuple(kept), tuple(shares), self.latest)


def slot_keys(seed: int, slots: Tensor) -> Tensor:
    """[n] the keys of the draws in the run's ``slots`` [n]."""
    return random.row_keys(seed ^ _SLOT, slots)


def luck(keys: Tensor, games: Tensor, attempt: int = 0) -> Tensor:
    """[n] the place of [0, 1) that chooses the opponent of game ``games`` [n] of slots with ``keys`` [n]."""
    return random.uniform(random.bits(random.episode_keys(keys, games), attempt))


def choose(
    members: Sequence[Member],
    counts: Mapping[str, Results],
    config: LeagueConfig,
    *,
    number: int,
    steps: int,
    seed: int,
) -> Roster:
    """The roster ``number`` of ``members``, by the games that the agent has played against them."""
    newest = next((one.name for one in reversed(members) if one.is_own), "")
    names = [one.name for one in members]
    if config.matchmaking == "latest":
        names = [newest or names[-1]]
    weights = {name: _weight(counts.get(name, Results()), config) for name in names}
    chosen = _drawn(weights, newest, config.opponents, seed, number)
    total = sum(weights[name] for name in chosen)
    shares = {name: weights[name] / total for name in chosen}
    if newest in shares:
        shares = {name: (1 - config.self_play) * share for name, share in shares.items()}
        shares[newest] += config.self_play
    return Roster(number, steps, tuple(shares), tuple(shares.values()), newest)


def _weight(counts: Results, config: LeagueConfig) -> float:
    """How often a member should be chosen; never 0."""
    if config.matchmaking != "pfsp":
        return 1.0
    won = (counts.win + 0.5 * counts.draw + 0.5) / (counts.games + 1)  # of no game: a half
    return (1 - won) ** HARDNESS


def _drawn(weights: dict[str, float], newest: str, most: int, seed: int, number: int) -> list[str]:
    """At most ``most`` names, the newest always, others by their weights, in the order of ``weights``.

    Without replacement: those with the largest u ** (1 / weight) (Efraimidis and Spirakis 2006).
    """
    if len(weights) <= most:
        return list(weights)
    keys = random.episode_keys(
        random.row_keys(seed ^ _ROSTER, torch.arange(len(weights))), torch.tensor(number)
    )
    luck = dict(zip(weights, random.uniform(random.bits(keys, 0)).tolist()))
    place = {name: math.log(max(luck[name], 2**-25)) / weight for name, weight in weights.items()}
    place[newest] = math.inf
    kept = set(sorted(weights, key=lambda name: place[name], reverse=True)[:most])
    return [name for name in weights if name in kept]


class Rosters:
    """The rosters of a run in ``rosters.jsonl``, in order."""

    def __init__(self, folder: Path):
        self.file = folder / "rosters.jsonl"
        files.refuse_links([self.file])

    def read(self) -> list[Roster]:
        """All of them."""
        return [_from_json(row, self.file) for row in files.read_lines(self.file)]

    def add(self, roster: Roster) -> None:
        """Append one."""
        with files.writing(f"{self.file} could not be written"):
            files.append_whole(self.file, json.dumps(asdict(roster)) + "\n")

    def rewind(self, steps: int) -> list[Roster]:
        """Remove those that began later than ``steps``; returns the others."""
        rosters = self.read()
        kept = [roster for roster in rosters if roster.steps <= steps]
        if len(kept) < len(rosters):
            files.write_atomically(self.file, "".join(json.dumps(asdict(one)) + "\n" for one in kept))
        return kept


def _from_json(row: dict[str, Any], file: Path) -> Roster:
    try:
        lists: dict[str, Any] = {name: tuple(row[name]) for name in ("members", "shares")}
        return Roster(**(row | lists))
    except (KeyError, TypeError, ValueError) as error:
        raise RecollectError(f"{file} is damaged ({files.short(error)}): take another copy") from None
