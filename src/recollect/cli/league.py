"""``recollect league show|check|match|add|prune RUN``: the league of a run."""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base.formatting import ABSENT, plural
from recollect.cli import print_json, tell
from recollect.cli.help_page import Page

if TYPE_CHECKING:
    from recollect.league.check import Checked
    from recollect.league.ratings import Ratings
    from recollect.league.summary import Summary

ACTIONS = {
    "show": "the members, their ratings, the agent's results against them, and cycles",
    "check": "repeat the draw of every game from its log; report games whose opponent changed",
    "match": "games between two members, half of them on each side, kept for the ratings",
    "add": "add another run's agent, a saved agent or a snapshot of another league as a member",
    "prune": "retire the members that the agent beats most surely",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "The league of a run that was trained against one: the env's scripted players and frozen snapshots "
        "of the agent, s0, s1 and so on. recollect league ACTION --help has the options of each."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect train mech --vs league --run runs/mech\n"
        "  recollect league show runs/mech\n"
        "  recollect league check runs/mech --json\n"
        "  recollect league match runs/mech s12 bot --games 400\n"
        "  recollect league add runs/mech runs/other --name other\n"
        "  recollect league prune runs/mech --keep 20 --dry-run"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    made = {name: _action(actions, name) for name in ACTIONS}
    made["match"].add_argument("one", metavar="A", help="a member, such as s3 or bot")
    made["match"].add_argument("other", metavar="B", help="another one")
    made["match"].add_argument("--games", type=int, default=200, help="to play (default: %(default)s)")
    made["add"].add_argument(
        "source", metavar="SOURCE", help="a run, a saved agent, or LEAGUE/members/NAME.safetensors"
    )
    made["add"].add_argument("--name", help="of the member (default: after its folder)")
    made["add"].add_argument("--checkpoint", help="of SOURCE: best, last, or its env steps (default: best)")
    for name in ("match", "add"):
        made[name].add_argument("--env", help="the env again, if it is your own code: module:Env")
        made[name].add_argument("--trust", action="store_true", help="import the code that the runs name")
    made["match"].add_argument("--device", help="cpu or cuda; default: that of the training")
    keep = made["prune"].add_argument("--keep", type=int, required=True, metavar="N")
    keep.help = "snapshots that stay; the newest and the anchor always do"
    made["prune"].add_argument("--dry-run", action="store_true", help="show what would be retired")


def _action(actions: Any, name: str) -> argparse.ArgumentParser:
    words = ACTIONS[name]
    made = actions.add_parser(
        name,
        help=words,
        description=f"{words[0].upper()}{words[1:]}.",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("run", metavar="RUN", help="the folder of a run")
    made.add_argument("--json", action="store_true", help="as JSON")
    return made


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Do one of them; exit code 1 if a check finds something wrong."""
    return _RUN[args.action](args, Path(args.run).expanduser())


# Show ------------------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace, folder: Path) -> int:
    from recollect.league.check import open_league
    from recollect.league.summary import summarise

    found = summarise(open_league(folder))
    print_json(found.to_json(), indent=2) if args.json else _print_members(Page.readable(), found)
    return 0


def _print_members(page: Page, found: Summary) -> None:
    from recollect.league.ratings import MOST_CYCLES

    ratings = found.ratings
    head = ("member", "state", "steps", "share", "won", "drawn", "lost", "Elo", "interval")
    page.line(_row(head), style="dim")
    rows = found.to_json()["members"]
    for row in rows:
        steps = row["kind"] if row["steps"] is None else f"{row['steps']:,}"
        results = [f"{row[name]:,}" for name in ("win", "draw", "loss")]
        cells = (row["name"], row["state"], steps, f"{row['share']:.0%}", *results, *_elo(row["rated"]))
        page.line(_row(cells))
    page.line(
        "\nshare: of the present games. won, drawn, lost: by the agent, in all games of the training. Elo: "
        "ratings with their 95% intervals, by all games of the training and of matches, with "
        f"{ratings.anchor} = 0; {ABSENT}: no games link the member to it, see recollect league match."
    )
    if any(math.isfinite(row.value) and not row.is_bounded for row in ratings.rows):
        page.line("*: won or lost all games against the rest; how far away it is, is a guess.")
    for row in rows:
        if row["origin"]:
            page.line(f"{row['name']} was added from {row['origin']}.")
    if not ratings.cycles:
        page.line("No cycles: no members beat each other in a circle, as far as the games show.")
        return
    page.line(f"\n{plural(len(ratings.cycles), 'cycle')}, which ratings cannot describe:")
    for cycle in ratings.cycles[:MOST_CYCLES]:
        page.line(f"  {cycle}")
    if (more := len(ratings.cycles) - MOST_CYCLES) > 0:
        page.line(f"  and {more:,} more (--json)")
    page.line("s3+: the agent in training, from s3 to the next snapshot.")


def _elo(row: Mapping[str, Any]) -> tuple[str, str]:
    """A rating and its interval."""
    if row["rating"] is None:
        return ABSENT, ABSENT
    low, high = row["interval"]
    if low == high:  # the anchor
        return "0", ABSENT
    return f"{row['rating']:+.0f}", f"{low:+.0f} to {high:+.0f}{'' if row['bounded'] else ' *'}"


def _row(cells: tuple[str, ...]) -> str:
    name, state, *numbers, interval = cells
    return f"{name:<14}{state:<11}" + "".join(f"{cell:>10}" for cell in numbers) + f"  {interval}"


# Check -----------------------------------------------------------------------------------------------------


def _check(args: argparse.Namespace, folder: Path) -> int:
    from recollect.league.check import check_league

    checked = check_league(folder)
    print_json(asdict(checked), indent=2) if args.json else _print_check(Page.readable(), checked)
    return 1 if checked.faults or checked.broken else 0


def _print_check(page: Page, checked: Checked) -> None:
    for text in (*checked.broken, *checked.faults):
        page.line(text, style="red")
    page.line(
        f"{checked.games:,} games, the draws of {checked.redrawn:,} repeated: {len(checked.faults)} at fault"
        f"; {checked.members} members, {len(checked.broken)} damaged"
    )


# Match -----------------------------------------------------------------------------------------------------


def _match(args: argparse.Namespace, folder: Path) -> int:
    from recollect.api import load
    from recollect.league.check import open_league
    from recollect.league.summary import summarise
    from recollect.training.opponents import match

    pool = open_league(folder)
    agent = load(folder, env=args.env, device=args.device, trust=args.trust)
    games = match(agent, args.one, args.other, args.games)
    ratings = summarise(pool).ratings
    if args.json:
        rated = {name: asdict(ratings[name]) for name in (args.one, args.other)}
        print_json({"run": args.run, "player": args.one, **games.to_json(), "ratings": rated})
        return 0
    print(f"{args.one} against {args.other}: {games.total.games:,} games, sampled actions\n{games.table()}")
    for name in (args.one, args.other):
        if name != ratings.anchor:
            print(_rated(ratings, name))
    return 0


def _rated(ratings: Ratings, name: str) -> str:
    row = ratings[name]
    if not math.isfinite(row.value):
        return f"{name}: no games link it to {ratings.anchor}, so it has no rating"
    return f"{name}: Elo {row.value:+.0f} ({row.low:+.0f} to {row.high:+.0f}), {ratings.anchor} = 0"


# Add and prune ---------------------------------------------------------------------------------------------


def _add(args: argparse.Namespace, folder: Path) -> int:
    from recollect.api import load
    from recollect.config.league import LEAGUE
    from recollect.errors import ConfigError
    from recollect.league.check import open_league
    from recollect.league.pool import Pool
    from recollect.training.opponents import add_member
    from recollect.training.run_folder import Run

    open_league(folder)
    agent = load(folder, env=args.env, device="cpu", trust=args.trust)
    source = Path(args.source).expanduser()
    is_snapshot = source.suffix == ".safetensors"
    if is_snapshot and (source.parent.name != "members" or source.parents[1].name != LEAGUE):
        raise ConfigError(f"{source} is no snapshot of a league: name RUN/league/members/NAME.safetensors")
    if is_snapshot and args.checkpoint:
        raise ConfigError("--checkpoint is for a run, and a snapshot is one: leave it out")
    home = source.resolve().parents[2] if is_snapshot else source.resolve()
    other = load(home, env=args.env, device="cpu", checkpoint=args.checkpoint, trust=args.trust)
    weights, steps, origin = other.policy.state_dict(), other.steps, home.name
    if is_snapshot:
        members = Pool(home / LEAGUE)
        weights, steps = members.load(source.stem, weights), members[source.stem].steps
        origin = f"{home.name}/{source.stem}"
    name = args.name or re.sub(r"[^A-Za-z0-9_.-]+", "-", origin)[:50]
    with Run(folder).writing():
        made = add_member(agent, other, weights, name, steps, f"{origin} (step {steps:,})")
    if args.json:
        print_json({"run": args.run, **asdict(made)})
        return 0
    text = (
        f"{made.name} is a member of the league of {args.run}: {made.origin}. It plays from the next choice "
        f"of opponents on, when the run is resumed; for a rating: recollect league match {args.run} "
        f"{made.name} NAME"
    )
    tell(text, sys.stdout)
    return 0


def _prune(args: argparse.Namespace, folder: Path) -> int:
    from recollect.league.check import open_league
    from recollect.league.prune import prune
    from recollect.training.run_folder import Run

    with nullcontext() if args.dry_run else Run(folder).writing():
        pool = open_league(folder)
        gone = prune(pool, args.keep, dry_run=args.dry_run)
    left = [one.name for one in pool.playing if one.name not in {each.name for each in gone}]
    if args.json:
        rows = [asdict(one) for one in gone]
        print_json({"run": args.run, "dry_run": args.dry_run, "retired": rows, "members": left})
        return 0
    page, verb = Page.readable(), "would be retired" if args.dry_run else "retired"
    for one in gone:
        won = f"the agent won at least {one.score:.0%} of {plural(one.games, 'game')}"
        page.line(f"{one.name:<14}{verb}: {won if one.games else 'no games'}")
    page.line(f"{plural(len(gone), 'member')} {verb}, {len(left)} left: {', '.join(left)}")
    if gone and not args.dry_run:
        page.line("Their files stay: games in progress end with them, and league match can play them.")
    return 0


_RUN = {"show": _show, "check": _check, "match": _match, "add": _add, "prune": _prune}
