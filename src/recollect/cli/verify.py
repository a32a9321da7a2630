"""``recollect verify ENV``: check memory, buffer, loop and gradients with this env and config."""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from recollect.cli import print_json
from recollect.cli.shared import add_env, parse_run

if TYPE_CHECKING:
    from recollect.audit.results import Check

TAKES_CONFIG = True

STYLES = {"ok": "green", "warning": "yellow", "FAILED": "bold red", "skipped": "dim"}


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments beside the settings of the run, which are flags too."""
    parser.description = (
        "Check your own env and settings for the classic bugs of recurrent training, with the real actor, "
        "learner and training loop: the env's contract, buffer size, storage and retrieval of state, a short "
        "training, and gradient flow. It takes seconds, writes nothing, and accepts the settings of "
        "recollect train."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect verify CartPole-v1\n"
        "  recollect verify my_module:MyEnv --core gru --rollout 256 --chunk 64\n"
        "  recollect verify delayed-cue --task.horizon 100 --json\n"
        "  recollect verify my_module:Team --policies independent    each group of agents\n"
        "exit code: 0 if nothing failed, 1 if a check failed, 2 for a wrong call"
    )
    add_env(parser)
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Verify, print each check when it ends, and the result."""
    import recollect

    env, parsed = parse_run(args, flags)
    if args.json:
        result = recollect.verify(env, parsed.config, policy=parsed.policy)
        checks = [asdict(check) | {"advice": list(check.advice)} for check in result.checks]
        print_json({"env": result.env, "ok": result.ok, "notes": list(result.notes), "checks": checks})
        return 0 if result.ok else 1
    console = Console(highlight=False, soft_wrap=True)
    for note in parsed.notes:
        console.print(f"note: {note}", markup=False)
    screen = _Screen(console)
    with console.status(f"verifying {env}"):
        result = recollect.verify(env, parsed.config, policy=parsed.policy, watch=screen.show)
    if result.notes:
        small = f"Settings reduced to save time: {', '.join(result.notes)}."
        console.print(textwrap.fill(small, console.width), style="dim", markup=False)
    console.print(result.summary, style="bold green" if result.ok else "bold red", markup=False)
    return 0 if result.ok else 1


class _Screen:
    """Prints checks, with a title above each part."""

    def __init__(self, console: Console):
        self._console = console
        self._part = ""

    def show(self, check: Check) -> None:
        """Print one check."""
        from recollect.audit.results import PARTS

        if check.part != self._part:
            self._part = check.part
            self._console.print(PARTS[check.part], style="bold", markup=False)
        first, *others = check.lines(self._console.width)
        line = Text(first)
        word = first.split()[0]
        line.stylize(STYLES[word], first.index(word), first.index(word) + len(word))
        self._console.print(line)
        for other in others:
            self._console.print(other, markup=False)
