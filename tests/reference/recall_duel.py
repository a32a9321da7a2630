"""Recall duel, one game at a time, from its rules."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Game:
    """A game with these three cues, of ``cues`` kinds."""

    cue: list[int]
    cues: int
    delay: int
    time: int = 0
    chips: list[int] = field(default_factory=lambda: [5, 5])
    rounds_won: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def round(self) -> int | None:
        number = self.time - 3 - self.delay
        return number if 0 <= number < 3 else None

    @property
    def is_over(self) -> bool:
        return self.time == self.delay + 6

    @property
    def result(self) -> int:
        north, south = self.rounds_won
        return (north > south) - (north < south)

    def play(self, actions: list[int]) -> list[float]:
        """The rewards of both players."""
        rewards = [0.0, 0.0]
        if self.round is not None:
            named, bids = zip(*(divmod(action, 4) for action in actions))
            bids = [min(bid, left) for bid, left in zip(bids, self.chips)]
            right = [name == self.cue[self.round] for name in named]
            self.chips = [left - bid for left, bid in zip(self.chips, bids)]
            winner = None
            if right == [True, True] and bids[0] != bids[1]:
                winner = 0 if bids[0] > bids[1] else 1
            elif right[0] != right[1]:
                winner = right.index(True)
            if winner is not None:
                self.rounds_won[winner] += 1
                rewards[winner], rewards[1 - winner] = 1 / 3, -1 / 3
        self.time += 1
        return rewards

    def observe(self, player: int) -> list[float]:
        cue, number = [0.0] * self.cues, [0.0] * 3
        if self.time < 3:
            cue[self.cue[self.time]] = number[self.time] = 1.0
        elif self.round is not None:
            number[self.round] = 1.0
        lead = self.rounds_won[player] - self.rounds_won[1 - player]
        state = [float(self.round is not None), self.chips[player] / 5, self.chips[1 - player] / 5, lead / 3]
        return cue + number + state


def best(cues: int, memory: bool, bids: tuple[int, ...] = (2, 2, 1)) -> tuple[float, float]:
    """Against a player who names all cues and bids so: the best expected return, and chance to win a game."""
    right = 1.0 if memory else 1 / cues

    def search(number: int, left: int, lead: int, wins_only: bool) -> float:
        if number == 3:
            return float(lead > 0) if wins_only else lead / 3
        values = []
        for bid in range(min(left, 3) + 1):
            gain = (bid > bids[number]) - (bid < bids[number])
            after = (search(number + 1, left - bid, lead + step, wins_only) for step in (gain, -1))
            values.append(right * next(after) + (1 - right) * next(after))
        return max(values)

    return search(0, 5, 0, False), search(0, 5, 0, True)
