"""``recollect league show|check RUN``: the members of a league, and the proof that its games are in order."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.cli import print_json
from recollect.cli.help_page import Page

if TYPE_CHECKING:
    from recollect.league.check import Checked


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "show: the members of the league of a run, and how the agent did against each of them in training. "
        "check: repeat the draw of every game from its log, and report games whose opponent changed or that "
        "were booked to another member, and snapshots that are damaged."
    )
    parser.epilog = "examples:\n  recollect league show runs/mech\n  recollect league check runs/mech --json"
    parser.add_argument("action", choices=["show", "check"], metavar="show|check")
    parser.add_argument("run", metavar="RUN", help="the folder of a run")
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Print the members, or check the games; exit code 1 if something is wrong."""
    from recollect.league.check import check_league

    folder = Path(args.run).expanduser()
    if args.action == "show":
        rows = members(folder)
        print_json(rows, indent=2) if args.json else _print_members(Page.readable(), rows)
        return 0
    checked = check_league(folder)
    print_json(asdict(checked), indent=2) if args.json else _print_check(Page.readable(), checked)
    return 1 if checked.faults or checked.broken else 0


def members(folder: Path) -> list[dict[str, Any]]:
    """Every member with the results of the agent against it, and its share of the present games."""
    from recollect.acting.versus_games import Results
    from recollect.league.check import open_league
    from recollect.league.games import count, read_games
    from recollect.league.matchmaking import Rosters

    pool, rosters = open_league(folder), Rosters(folder / "league").read()
    counts = count(read_games(pool.folder))
    shares = dict(zip(rosters[-1].members, rosters[-1].shares)) if rosters else {}
    return [
        {
            "name": one.name,
            "kind": "snapshot" if one.is_snapshot else "scripted",
            "state": one.state,
            "steps": one.steps if one.is_snapshot else None,
            "share": shares.get(one.name, 0.0),
            **asdict(counts.get(one.name, Results())),
        }
        for one in pool.members
    ]


def _print_members(page: Page, rows: list[dict[str, Any]]) -> None:
    columns = ("member", "state", "steps", "share now", "won", "drawn", "lost")
    page.line(_row(columns), style="dim")
    for row in rows:
        steps = "scripted" if row["steps"] is None else f"{row['steps']:,}"
        page.line(_row((row["name"], row["state"], steps, f"{row['share']:.0%}", *map(str, _results(row)))))
    page.line("\nwon, drawn, lost: by the agent, in all games of the training.")


def _row(cells: tuple[str, ...]) -> str:
    return f"{cells[0]:<14}{cells[1]:<11}" + "".join(f"{cell:>12}" for cell in cells[2:])


def _results(row: Mapping[str, Any]) -> tuple[int, int, int]:
    return row["win"], row["draw"], row["loss"]


def _print_check(page: Page, checked: Checked) -> None:
    for text in (*checked.broken, *checked.faults):
        page.line(text, style="red")
    page.line(
        f"{checked.games:,} games, the draws of {checked.redrawn:,} repeated: {len(checked.faults)} at fault"
        f"; {checked.members} members, {len(checked.broken)} damaged"
    )
