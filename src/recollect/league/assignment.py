"""Which member plays in each env slot, drawn at the start of its game; and the games that are over.

Only ``taken`` reads on the host, so that a CUDA graph can contain all else; tensors stay at their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from recollect.league.matchmaking import Roster, luck, slot_keys

NOBODY = -1
ATTEMPTS = 2
"""The draw of an opponent, and a second one if the first is a member that cannot be loaded."""
KEPT = ("member", "acted", "game", "finished", "steps", "swaps", "roster_of", "logged", "is_void")
"""The tensors [E] of a snapshot."""


@dataclass(frozen=True, slots=True)
class Over:
    """A game that is over."""

    slot: int
    """Of this env, from 0."""
    game: int
    roster: int
    member: int
    steps: int
    swaps: int
    won: int
    """As ``env.won``."""
    second: int
    """1 if the opponent had the second side."""


class Assignment:
    """See the module's docstring."""

    def __init__(self, seed: int, first_slot: int, slots: int, device: torch.device):
        """``first_slot``: the number of the first of ``slots`` slots in the run."""
        self._slots = torch.arange(slots, device=device)
        self._keys = slot_keys(seed, self._slots + first_slot)
        none = torch.zeros_like(self._slots)
        self.member = none + NOBODY
        """[E] the place in the pool of each slot's opponent, also below."""
        self.acted = none + NOBODY
        """[E] the opponent that acted last."""
        self.game = none - 1
        """[E] the number of each slot's game."""
        self.finished = none.clone()
        """[E] ``env.games`` at the start of the game."""
        self.steps, self.swaps, self.roster_of, self.logged = (none.clone() for _ in range(4))
        self.is_void = none > 0
        """[E] the game has lost its opponent and does not count."""
        self.second = none > 0
        """[E] whether the opponent has the second side."""
        self._number = torch.zeros((), dtype=torch.int64, device=device)
        self._allocate(0)
        self._over = torch.zeros(slots + 1, len(fields(Over)), dtype=torch.int64, device=device)
        """[N + 1, fields] games that are over; the last row takes those that are not."""
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def _allocate(self, members: int) -> None:
        """Tables of a roster, [attempts, members], empty."""
        self._ends = torch.full((ATTEMPTS, members), 2.0, device=self._slots.device)
        self._places = torch.full((ATTEMPTS, members + 1), NOBODY, device=self._slots.device)

    @property
    def key(self) -> tuple[int, ...]:
        """It changes if tensors are allocated again; their sizes only grow."""
        return len(self._over), self._ends.shape[1]

    def room(self, steps: int) -> None:
        """Allocate memory for all games that can end in ``steps`` steps."""
        most = steps * len(self._slots) + 1
        if most > len(self._over):
            self._over = self._over.new_zeros(most, self._over.shape[1])

    def set_roster(self, roster: Roster, lost: set[str], places: Mapping[str, int]) -> None:
        """Draw from ``roster``, and again without the members ``lost`` where one of them is drawn."""
        if len(roster.members) > self._ends.shape[1]:
            self._allocate(len(roster.members))
        self._number.fill_(roster.number)
        self._ends.fill_(2.0)
        self._places.fill_(NOBODY)
        for attempt, one in enumerate((roster, roster.without(lost))):
            assert one is not None
            found = [NOBODY if name in lost else places[name] for name in one.members]
            self._ends[attempt, : len(found)] = torch.tensor(one.ends(), device=self._ends.device)
            self._places[attempt, : len(found)] = torch.tensor(found, device=self._places.device)

    def drawn(self) -> Tensor:
        """[E] the opponent that the roster gives for the present game of each slot."""
        picks = []
        for attempt in range(ATTEMPTS):
            chance = luck(self._keys, self.game, attempt)
            picks.append(self._places[attempt][(chance.unsqueeze(1) >= self._ends[attempt]).sum(1)])
        return torch.where(picks[0] == NOBODY, picks[1], picks[0])

    def forget(self) -> None:
        """All games are given up."""
        self.member.fill_(NOBODY)
        self._count.zero_()

    def begin(self, fresh: Tensor, games: Tensor, won: Tensor) -> None:
        """End the games of the slots ``fresh`` [E] and begin the next. ``games``, ``won``: of the env."""
        self._book(fresh & (games == self.finished + 1) & ~self.is_void & (self.member != NOBODY), won)
        self.game += fresh
        for tensor, value in (
            (self.member, self.drawn()),
            (self.finished, games),
            (self.roster_of, self._number),
        ):
            torch.where(fresh, value, tensor, out=tensor)
        for tensor in (self.steps, self.swaps, self.is_void):
            tensor.masked_fill_(fresh, 0)

    def acts(self, member: Tensor, fresh: Tensor) -> None:
        """Count the slots in which another ``member`` [E] acts than before, within a game."""
        self.swaps += (member != self.acted) & ~fresh
        self.acted.copy_(member)

    def _book(self, is_over: Tensor, won: Tensor) -> None:
        """Add the games that ended in the slots ``is_over`` [E], each with the member that played it."""
        last = len(self._over) - 1
        place = (self._count + is_over.cumsum(0) - 1).clamp(max=last)
        columns = (
            self._slots,
            self.game,
            self.roster_of,
            self.member,
            self.steps,
            self.swaps,
            won.sign(),
            self.second,
        )
        rows = torch.stack([column.long() for column in columns], 1)
        self._over.index_copy_(0, torch.where(is_over, place, last), rows)
        self._count += is_over.sum()

    def taken(self) -> tuple[list[Over], int]:
        """The games that are over since the last call, and the number of those that were lost: there was no
        room for them. A host read."""
        count, most = int(self._count), len(self._over) - 1
        found = [Over(*row) for row in self._over[: min(count, most)].tolist()]
        self._count.zero_()
        return found, max(0, count - most)
