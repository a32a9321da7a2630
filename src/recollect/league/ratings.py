"""Ratings of the players of a league, fitted to the whole payoff.

Players are frozen, so the order of their games means nothing: ratings are the maximum likelihood of all
games at once (``davidson.py``), not updated game by game as Elo's are.

Intervals are bootstrapped: the games of each pair are resampled, as many as the pair played on these sides,
from its own games and ``MODEL_GAMES`` of the fitted model. From its own alone, a pair that played once would
have the same result in every sample: with two games of each pair on each side, 79% of the 95% intervals
covered the truth, and 93% like this. The percentiles are corrected for the bias of the estimate (Efron 1987,
BC): strengths that few games tell apart are overestimated, those of samples once more.

Why Davidson's model and not a draw as half a win for each: it estimates how likely draws are, so that
expected results have wins, draws and losses, and a draw is not taken for two coin flips.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

from recollect.base.formatting import ABSENT, plural
from recollect.errors import ConfigError, nearest
from recollect.league.cycles import Cycle, find_cycles, reachable
from recollect.league.davidson import ELO, Fit, fit, probabilities
from recollect.league.payoff import Payoff

Z = NormalDist().inv_cdf(0.975)
"""Standard deviations of a normal distribution on each side of its middle 95%."""
MODEL_GAMES = 10
"""Games of the fitted model that are mixed with those of each pair, as what the bootstrap draws from."""
MOST_CYCLES = 10
"""Cycles in the text form; the JSON form has all."""
_CHUNK = 2**17
"""Numbers of a matrix of resampled payoffs at a time, so that a few matrices fit into a cache."""


@dataclass(frozen=True, slots=True)
class Rating:
    """A player's strength in Elo points. NaN: no games link the player to the anchor."""

    player: str
    value: float
    low: float
    high: float
    """The 95% interval of ``value``, which is the difference to the anchor."""
    games: int
    share: float
    """Of its games that it won, with half of its draws; NaN without games."""
    is_bounded: bool
    """Whether the games bound it on both sides. Otherwise the player, or a group of players, has won or lost
    all games against the rest; the prior decides how far away they are, and the interval is too narrow."""


@dataclass(frozen=True, slots=True)
class Ratings:
    """The ratings of all players, the strongest first."""

    anchor: str
    """The player at 0."""
    rows: tuple[Rating, ...]
    side_advantage: float | None
    """Elo points that the first side is worth; None: no pair has played on both sides, so it is not known."""
    side_interval: tuple[float, float] | None
    draw_share: float
    """Of games between equal players on equal sides."""
    components: tuple[tuple[str, ...], ...]
    """Groups of players without games between them. Ratings compare only players of one group."""
    cycles: tuple[Cycle, ...]
    """See ``find_cycles``."""

    def __getitem__(self, player: str) -> Rating:
        """The rating of one player."""
        for row in self.rows:
            if row.player == player:
                return row
        known = [row.player for row in self.rows]
        raise ConfigError(f"ratings: there is no player {player!r}{nearest(player, known)}")

    def expected(self, first: str, second: str, *, sides: bool = True) -> tuple[float, float, float]:
        """Probabilities that ``first`` wins, draws, loses against ``second``; NaN if no games link them.

        ``first`` has the first side; with ``sides=False`` neither side is better.
        """
        advantage = (self.side_advantage or 0.0) if sides else 0.0
        theta = (self[first].value - self[second].value + advantage) / ELO
        share = self.draw_share
        delta = math.log(2 * share / (1 - share))
        win, draw, loss = probabilities(np.array(theta), np.array(delta))
        return float(win), float(draw), float(loss)

    def to_json(self) -> dict[str, Any]:
        """The JSON form; None stands for NaN."""
        rows = [
            {
                "player": row.player,
                "rating": _known(row.value),
                "interval": [_known(row.low), _known(row.high)],
                "games": row.games,
                "share": _known(row.share),
                "bounded": row.is_bounded,
            }
            for row in self.rows
        ]
        return {
            "anchor": self.anchor,
            "unit": "Elo",
            "interval_of": "95% bootstrap",
            "ratings": rows,
            "side_advantage": self.side_advantage,
            "side_interval": None if self.side_interval is None else list(self.side_interval),
            "draw_share": self.draw_share,
            "components": [list(each) for each in self.components],
            "cycles": [cycle.to_json() for cycle in self.cycles],
        }

    def __str__(self) -> str:
        table = [("", "Elo", "95% interval", "score", "games")]
        for row in self.rows:
            is_known = math.isfinite(row.value)
            table.append(
                (
                    row.player,
                    (f"{row.value:+.0f}" if row.value else "0") if is_known else ABSENT,
                    f"{row.low:+.0f} to {row.high:+.0f}" if is_known else ABSENT,
                    f"{row.share:.1%}" if row.games else ABSENT,
                    f"{row.games:,}" + (" *" if is_known and not row.is_bounded else ""),
                )
            )
        widths = [max(map(len, column)) for column in zip(*table)]
        lines = [f"Elo ratings, {self.anchor} = 0 (95% bootstrap intervals):"]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in table]
        if any(math.isfinite(row.value) and not row.is_bounded for row in self.rows):
            lines.append("* won or lost all games against the rest: a prior decides how far away it is")
        if self.side_advantage is not None and self.side_interval is not None:
            low, high = self.side_interval
            lines.append(
                f"the first side is worth {self.side_advantage:+.0f} ({low:+.0f} to {high:+.0f}) Elo"
            )
        if len(self.components) > 1:
            groups = "; ".join(", ".join(each) for each in self.components)
            lines.append(f"no games link these groups, so ratings cannot compare them: {groups}")
        if self.cycles:
            lines.append(f"{plural(len(self.cycles), 'cycle')}, which ratings cannot describe:")
            lines += [f"  {cycle}" for cycle in self.cycles[:MOST_CYCLES]]
            more = len(self.cycles) - MOST_CYCLES
            lines += [f"  and {more:,} more"] if more > 0 else []
        return "\n".join(lines)


def rate(payoff: Payoff, anchor: str, *, samples: int = 500, seed: int = 0) -> Ratings:
    """Rate the players of ``payoff``, with ``anchor`` at 0.

    ``samples``: of the bootstrap, drawn with ``seed``. The order of players and games changes nothing.
    """
    if anchor not in payoff.players:
        raise ConfigError(
            f"ratings: the anchor {anchor!r} is no player{nearest(anchor, payoff.players)}: "
            f"the players are {', '.join(payoff.players)}"
        )
    if samples < 2:
        raise ConfigError(f"ratings: samples is {samples}; intervals need at least 2, better 500")
    names = tuple(sorted(payoff.players))  # so that draws of the bootstrap belong to names
    games = payoff.matrices(names)
    played = games.sum(0)
    off = played - np.diag(np.diag(played))
    has_side = bool((played.diagonal() > 0).any() or ((off > 0) & (off.T > 0)).any())
    best = fit(games[None].astype(float), has_side)
    drawn = _bootstrap(games, best, has_side, samples, seed)

    # [n] and [samples, n]: differences to the anchor.
    at = names.index(anchor)
    value = (best.ratings[0] - best.ratings[0, at]) * ELO
    low, high = _interval((drawn.ratings - drawn.ratings[:, at : at + 1]) * ELO, value)
    side = [float(end[0]) for end in _interval(drawn.side[:, None] * ELO, best.side * ELO)]

    won = games[0] + games[2].T
    draws = games[1] + games[1].T
    np.fill_diagonal(won, 0)
    np.fill_diagonal(draws, 0)
    total = won + won.T + draws
    linked = reachable(total > 0)
    held = reachable(won + draws > 0)  # i has won or drawn: there is a bound from below for i - j
    rows = []
    for i, name in enumerate(names):
        count, points = int(total[i].sum()), float((won[i] + draws[i] / 2).sum())
        middle, least, most = (float(each[i]) if linked[i, at] else math.nan for each in (value, low, high))
        share = points / count if count else math.nan
        is_bounded = bool(held[i, at] and held[at, i])
        rows.append(Rating(name, middle, least, most, count, share, is_bounded))
    weight = float(np.exp(best.delta[0]))
    return Ratings(
        anchor=anchor,
        rows=tuple(sorted(rows, key=lambda row: (-_finite(row.value), row.player))),
        side_advantage=float(best.side[0] * ELO) if has_side else None,
        side_interval=(side[0], side[1]) if has_side else None,
        draw_share=weight / (weight + 2),
        components=_components(names, linked),
        cycles=tuple(find_cycles(names, won)),
    )


def _bootstrap(games: np.ndarray, best: Fit, has_side: bool, samples: int, seed: int) -> Fit:
    """Fits to payoffs in which the games of each ordered pair are drawn again."""
    generator = np.random.default_rng(seed)
    total = games.sum(0)
    theta = best.ratings[0, :, None] - best.ratings[0] + best.side[0]
    mixed = games + MODEL_GAMES * probabilities(theta, best.delta[0])
    shares = np.moveaxis(mixed / (total + MODEL_GAMES), 0, -1)  # [3, n, n] -> [n, n, 3]
    shares[..., 2] = (1 - shares[..., 0] - shares[..., 1]).clip(0.0)  # rounded, so that all add up to 1
    size = max(1, _CHUNK // total.size)
    fits = []
    for start in range(0, samples, size):
        count = min(size, samples - start)
        drawn = generator.multinomial(total, shares, size=(count, *total.shape))  # [S, n, n, 3]
        fits.append(fit(np.moveaxis(drawn, -1, 1).astype(float), has_side, best.stacked[0]))
    parts = zip(*((one.ratings, one.side, one.delta) for one in fits))
    return Fit(*(np.concatenate(part) for part in parts))


def _interval(drawn: np.ndarray, value: np.ndarray) -> np.ndarray:
    """[2, n]: the ends of the intervals of the estimates ``value`` [n], from those of samples [S, n]."""
    below = ((drawn < value).mean(0) + (drawn <= value).mean(0)) / 2
    normal, least = NormalDist(), 1 / len(drawn)
    ends = []
    for column, share in zip(drawn.T, below.clip(least, 1 - least)):
        shift = 2 * normal.inv_cdf(share)
        ends.append(np.quantile(column, [normal.cdf(shift - Z), normal.cdf(shift + Z)]))
    return np.array(ends).T


def _components(names: tuple[str, ...], linked: np.ndarray) -> tuple[tuple[str, ...], ...]:
    """The groups of linked players, the largest first."""
    groups = {tuple(name for name, is_in in zip(names, row) if is_in) for row in linked}
    return tuple(sorted(groups, key=lambda group: (-len(group), group)))


def _known(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _finite(value: float) -> float:
    return value if math.isfinite(value) else -math.inf
