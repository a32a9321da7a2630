"""``recollect verify ENV``: ``recollect audit ENV``; its ``--json`` prints."""

from __future__ import annotations

import argparse

from recollect.cli import audit
from recollect.cli.shared import add_env

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments beside the settings of the run, which are flags too."""
    parser.description = (
        "Another name of recollect audit ENV: check your own env and settings for the classic bugs of "
        "recurrent training. It takes seconds, writes nothing, and accepts the settings of recollect train."
    )
    parser.epilog = "exit code: 0 if nothing failed, 1 if a check failed, 2 for a wrong call"
    add_env(parser)
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Audit, print each check when it ends, and the result."""
    args.json = audit.STDOUT if args.json else None
    args.trace = args.html = None
    args.trust = False
    return audit.run(args, flags)
