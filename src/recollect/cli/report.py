"""``recollect report RUN ...``: a run, or several beside each other, as one HTML file."""

from __future__ import annotations

import argparse
import webbrowser

from rich.console import Console

from recollect.cli.shared import add_trust
from recollect.config.flags import parse_repeated
from recollect.errors import ConfigError

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Write an HTML file that needs no server and no network: learning curves, gauges with their "
        "healthy ranges, the memory step by step in recorded episodes, the reach of the memory, speed, "
        "events, config. Several runs are compared: runs that differ only in the seed form a group, "
        "shown as an interquartile mean with its 95% bootstrap interval."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect report runs/cue                       runs/cue/report.html\n"
        "  recollect report runs/cue --no-play --open      recorded data only; open it\n"
        "  recollect report runs/cue-* --out cue.html      a comparison\n"
        "  recollect report runs/ant --task.frame_skip 5   options of another env\n"
        "  recollect report runs/mine --env my:Env         play new episodes\n"
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="the folder of a run")
    parser.add_argument("--out", metavar="FILE", help="default: report.html in RUN; for several runs, here")
    parser.add_argument("--no-play", action="store_true", help="play no episodes with the best checkpoint")
    parser.add_argument("--env", help="play new episodes with this env, such as your own code: module:Env")
    parser.add_argument("--open", action="store_true", help="open it in the browser")
    add_trust(parser)


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Write the report, and print its path."""
    from recollect.reports import write_report

    named = {"env": args.env, "trust": args.trust, **parse_repeated(flags, env=args.env)}
    if (flags or args.env or args.trust) and (args.no_play or len(args.runs) > 1):
        raise ConfigError(
            "--env, --task.NAME, --trust and names of code are for a single run that plays: leave them out"
        )
    with Console(stderr=True).status("writing the report"):
        path = write_report(args.runs, args.out, play=not args.no_play, **named)
    print(path)
    if args.open:
        webbrowser.open(path.resolve().as_uri())
    return 0
