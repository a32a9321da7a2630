"""The league of a run, for its report: ratings over time, payoff matrix, results against each opponent."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np

from recollect.acting.versus_games import Results, wilson
from recollect.config.league import LEAGUE
from recollect.errors import RecollectError
from recollect.league.pool import Member, Pool
from recollect.league.ratings import MOST_CYCLES
from recollect.league.results import LEARNER
from recollect.league.summary import Summary, kind, summarise
from recollect.reports.thinning import Row, rounded

MOST = 40
"""Maximum rows, and columns, of the payoff matrix."""


def gather_league(run: Path, steps: int) -> Row | None:
    """The data of the section; None: the run has no league. ``steps``: env steps of the run."""
    try:
        pool = Pool(run / LEAGUE)
        if pool.signature is None:
            return None
        found = summarise(pool)
    except RecollectError as error:
        return {"problem": f"{error}."}
    return {
        "anchor": found.ratings.anchor,
        "ratings": _ratings(found),
        "agent": _agent(found, steps),
        "added": [_rating(found, one.name) | {"name": one.name} for one in found.members if one.origin],
        "matrix": _matrix(found),
        "opponents": _opponents(found),
        "cycles": [str(cycle) for cycle in found.ratings.cycles[:MOST_CYCLES]],
        "more_cycles": max(0, len(found.ratings.cycles) - MOST_CYCLES),
        "side": _side(found),
    }


def _ratings(found: Summary) -> Row:
    """Of the snapshots, over the env steps of their training."""
    own = [one for one in found.members if one.is_own]
    rows = [_rating(found, one.name) for one in own]
    return {"names": [one.name for one in own], "steps": [one.steps for one in own], **_columns(rows)}


def _agent(found: Summary, steps: int) -> Row:
    """Of the agent in training, each in the middle of its steps."""
    own = [one for one in found.members if one.is_own]
    ends = [*(one.steps for one in own[1:]), steps]
    played = {row.player for row in found.ratings.rows}
    spans = [(one, end) for one, end in zip(own, ends) if one.name + LEARNER in played]
    rows = [_rating(found, one.name + LEARNER) for one, _ in spans]
    return {
        "names": [one.name + LEARNER for one, _ in spans],
        "steps": [(one.steps + max(one.steps, end)) / 2 for one, end in spans],
        **_columns(rows),
    }


def _rating(found: Summary, name: str) -> Row:
    row = found.ratings[name]
    numbers = {"value": row.value, "low": row.low, "high": row.high}
    return {key: rounded(value, 4) for key, value in numbers.items()} | {"bounded": row.is_bounded}


def _columns(rows: list[Row]) -> Row:
    return {name: [row[name] for row in rows] for name in ("value", "low", "high", "bounded")}


def _matrix(found: Summary) -> Row:
    """The share of points of each player of a row against the member of a column, a draw as half a win."""
    members = {one.name: one for one in found.members}
    results = {
        (a, b): Results(
            *(
                x + y
                for x, y in zip(
                    found.payoff.counts.get((a, b), (0, 0, 0)),
                    reversed(found.payoff.counts.get((b, a), (0, 0, 0))),
                )
            )
        )
        for a, b in _pairs(found)
        if b in members
    }
    results = {pair: one for pair, one in results.items() if one.games}
    rows = [name for name in found.payoff.players if any(name == a for a, _ in results)]
    columns = [name for name in members if any(name == b for _, b in results)]
    rows.sort(key=lambda name: not name.endswith(LEARNER))  # stable: first the agent in training
    shown_rows, shown = _thin(rows, members), _thin(columns, members)
    cells = []
    for (i, a), (j, b) in itertools.product(enumerate(shown_rows), enumerate(shown)):
        if one := results.get((a, b)):
            low, high = wilson(one.win + one.draw / 2, one.games)
            cells.append([i, j, one.win, one.draw, one.loss, rounded(low, 3), rounded(high, 3)])
    return {
        "rows": shown_rows,
        "columns": shown,
        "cells": cells,
        "hidden": len(rows) - len(shown_rows) + len(columns) - len(shown),
    }


def _pairs(found: Summary) -> dict[tuple[str, str], None]:
    """The pairs that have played, each in both orders."""
    return dict.fromkeys(pair for a, b in found.payoff.counts for pair in ((a, b), (b, a)))


def _thin(names: list[str], members: dict[str, Member]) -> list[str]:
    """At most ``MOST`` of them: of snapshots and stretches evenly spaced ones, and all others."""
    if len(names) <= MOST:
        return names
    others = [name for name in names if name in members and not members[name].is_own]
    own = [name for name in names if name not in others]
    kept = {own[i] for i in np.linspace(0, len(own) - 1, max(2, MOST - len(others))).round().astype(int)}
    return [name for name in names if name in kept or name in others][:MOST]


def _opponents(found: Summary) -> list[Row]:
    """The agent's results in training against each member, the most played first."""
    total = sum(one.games for one in found.played.values())
    rows = []
    for member in found.members:
        results = found.played.get(member.name, Results())
        row: dict[str, Any] = {
            "name": member.name,
            "kind": kind(member),
            "state": member.state,
            "origin": member.origin or None,
            "steps": member.steps if member.is_snapshot else None,
            "games": results.games,
            "share": rounded(results.games / total, 4) if total else None,
            "rating": _rating(found, member.name),
        }
        for outcome in ("win", "draw", "loss") if results.games else ():
            low, high = results.interval(outcome)
            row[outcome] = [rounded(x, 4) for x in (results.share(outcome), low, high)]
        rows.append(row)
    return sorted(rows, key=lambda row: -row["games"])


def _side(found: Summary) -> Row | None:
    """What the first side is worth."""
    side, ends = found.ratings.side_advantage, found.ratings.side_interval
    if side is None or ends is None or not math.isfinite(side):
        return None
    return {"value": rounded(side, 3), "low": rounded(ends[0], 3), "high": rounded(ends[1], 3)}
