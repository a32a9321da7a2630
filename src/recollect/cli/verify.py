"""``recollect verify ENV``: do memory, buffer, loop and gradients work, with this env and config?"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from recollect.base import output

if TYPE_CHECKING:
    from rich.console import Console

    from recollect.audit.results import Check, Verification

TAKES_CONFIG = True

STYLES = {"ok": "green", "warning": "yellow", "FAILED": "bold red", "skipped": "dim"}


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments beside the settings of the run, which are flags too."""
    parser.description = (
        "Look for the classic bugs of recurrent training on your own env and settings,\n"
        "with the real actor, learner and training loop: the env's contract, buffer\n"
        "size, storage and retrieval of state, a short training, and gradient flow.\n"
        "Takes seconds, writes nothing, and takes the settings of recollect train."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect verify CartPole-v1\n"
        "  recollect verify my_module:MyEnv --core gru --rollout 256 --chunk 64\n"
        "  recollect verify delayed-cue --task.horizon 100 --json\n"
        "exit code: 0 if nothing failed, 1 if a check failed, 2 for a wrong call"
    )
    parser.add_argument("env", nargs="?", help="a task (recollect tasks), a Gymnasium id, or module:Env")
    parser.add_argument("--no-preset", action="store_true", help="plain defaults, also for a built-in task")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Verify, show each check as it is finished, and say how it went."""
    from rich.console import Console

    import recollect
    from recollect.errors import ConfigError
    from recollect.training.parse_config import parse_config

    parsed = parse_config(flags, env=args.env, presets=not args.no_preset)
    if parsed.env is None:
        raise ConfigError(
            "which env? recollect verify ENV, or env: in the --config file; see recollect tasks"
        )
    if args.json:
        result = recollect.verify(parsed.env, parsed.config)
        print(json.dumps(_plain(result)), file=output.results())
        return 0 if result.ok else 1
    console = Console(highlight=False, soft_wrap=True)
    for note in parsed.notes:
        console.print(f"note: {note}", markup=False)
    screen = _Screen(console)
    with console.status(f"verifying {parsed.env}"):
        result = recollect.verify(parsed.env, parsed.config, watch=screen.show)
    _conclude(console, result)
    return 0 if result.ok else 1


class _Screen:
    """Prints checks as they come, with a title above each part."""

    def __init__(self, console: Console):
        self._console = console
        self._part = ""

    def show(self, check: Check) -> None:
        """Print one."""
        from rich.text import Text

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


def _conclude(console: Console, result: Verification) -> None:
    import textwrap

    if result.notes:
        small = f"Made smaller for this, to take seconds: {', '.join(result.notes)}."
        console.print(textwrap.fill(small, console.width), style="dim", markup=False)
    console.print(result.summary, style="bold green" if result.ok else "bold red", markup=False)


def _plain(result: Verification) -> dict[str, object]:
    checks = [asdict(check) | {"advice": list(check.advice)} for check in result.checks]
    return {"env": result.env, "ok": result.ok, "notes": list(result.notes), "checks": checks}
