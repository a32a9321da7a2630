"""``recollect audit``: find out why a recurrent agent does not learn, in seconds."""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from recollect.cli import print_json
from recollect.cli.shared import add_env, parse_run
from recollect.config.flags import parse_repeated, whole_words
from recollect.errors import ConfigError

if TYPE_CHECKING:
    from recollect.audit.results import Check, Verification

TAKES_CONFIG = True

STYLES = {"ok": "green", "warning": "yellow", "FAILED": "bold red", "skipped": "dim", "not": "dim"}
STDOUT = "-"


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments beside the settings of the run, which are flags too."""
    parser.description = (
        "Check state, resets, sequences, returns, distributions and gradients of a recurrent trainer: each "
        "check with its verdict, the measured number against its tolerance, the likely cause and the fix. "
        "ENV: a training of your env with your settings, by the real actor, learner and loop. RUN: the same "
        "with the weights of a run. --policy module:factory without an ENV: somebody else's trainer, as a "
        "recollect.audit.Trainer, or a torch module. --trace FILE: a recorded rollout, from any program. It "
        "takes seconds and writes nothing but the files that you name."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect audit CartPole-v1\n"
        "  recollect audit my_module:MyEnv --core gru --rollout 256 --chunk 64\n"
        "  recollect audit my_module:Team --policies independent    each group of agents\n"
        "  recollect audit runs/first --html audit.html\n"
        "  recollect audit --policy my_adapter:trainer --json audit.json\n"
        "  recollect audit --trace rollout.npz\n"
        "exit code: 0 if nothing failed, 1 if a check failed, 2 for a wrong call"
    )
    add_env(parser)
    parser.add_argument("--trace", metavar="FILE", help="check a recorded rollout (.npz or .jsonl)")
    parser.add_argument("--json", metavar="FILE", help="write the result as JSON; - for stdout")
    parser.add_argument("--html", metavar="FILE", help="write the result as an HTML page")
    parser.add_argument("--trust", action="store_true", help="of a RUN: import the code that it names")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Audit, print each check when it ends, and the result."""
    is_quiet = args.json == STDOUT
    console = Console(highlight=False, soft_wrap=True, quiet=is_quiet)
    screen = _Screen(console)
    result = _audited(args, flags, screen)
    if result.notes:
        small = f"Settings reduced to save time: {', '.join(result.notes)}."
        console.print(textwrap.fill(small, console.width), style="dim", markup=False)
    if is_quiet:
        print_json(result.to_json())
    elif args.json:
        _write(args.json, json.dumps(result.to_json(), indent=1) + "\n")
    if args.html:
        from recollect.reports.audit_page import render

        _write(args.html, render(result))
    console.print(result.summary, style="bold green" if result.ok else "bold red", markup=False)
    return 0 if result.ok else 1


def _write(file: str, text: str) -> None:
    from recollect.base.files import write_atomically

    write_atomically(Path(file).expanduser(), text)


def _audited(args: argparse.Namespace, flags: list[str], screen: _Screen) -> Verification:
    """The result of what is named: a trace, a trainer, a run, or an env with settings."""
    if args.trace is not None:
        if args.env is not None or flags:
            raise ConfigError("--trace FILE is checked alone: leave out the env and its settings")
        from recollect.audit.trace_checks import audit_trace
        from recollect.audit.trace_files import load_trace

        return screen.shown(audit_trace(load_trace(args.trace), name=args.trace))
    if args.env is None and (policy := _lone_policy(flags)) is not None:
        from recollect.audit.named_trainers import named_trainer
        from recollect.audit.trainer_checks import audit_trainer

        with screen.console.status(f"auditing {policy}"):
            result = audit_trainer(named_trainer(policy))
        return screen.shown(result)
    if args.env is not None and Path(args.env).is_dir():
        import recollect
        from recollect.audit.run import audit_run

        agent = recollect.load(args.env, trust=args.trust, **parse_repeated(flags))
        with screen.console.status(f"auditing {args.env}"):
            return audit_run(agent, watch=screen.show)
    if args.trust:
        raise ConfigError("--trust belongs to a RUN: name its folder")
    import recollect

    env, parsed = parse_run(args, flags)
    for note in parsed.notes:
        screen.console.print(f"note: {note}", markup=False)
    with screen.console.status(f"auditing {env}"):
        return recollect.verify(env, parsed.config, policy=parsed.policy, watch=screen.show)


def _lone_policy(flags: list[str]) -> str | None:
    """The value of --policy, if it is the only flag and names code."""
    words = whole_words(flags)
    if not any(word.startswith("--policy=") for word in words):
        return None
    if len(words) > 1:
        raise ConfigError(
            "which env? with settings of a training, --policy is the policy of an ENV: name the env, or "
            f"leave the settings out to audit a trainer: {' '.join(words)}"
        )
    return words[0].partition("=")[2]


class _Screen:
    """Prints checks, with a title above each part."""

    def __init__(self, console: Console):
        self.console = console
        self._part = ""

    def shown(self, result: Verification) -> Verification:
        """Print all checks in the order of parts."""
        from recollect.audit.results import PARTS

        for part in PARTS:
            for check in result.checks:
                if check.part == part:
                    self.show(check)
        return result

    def show(self, check: Check) -> None:
        """Print one check."""
        from recollect.audit.results import PARTS

        if check.part != self._part:
            self._part = check.part
            self.console.print(PARTS[check.part], style="bold", markup=False)
        first, *others = check.lines(self.console.width)
        line = Text(first)
        word = first.split()[0]
        line.stylize(STYLES[word], first.index(word), first.index(word) + len(word))
        self.console.print(line)
        for other in others:
            self.console.print(other, markup=False)
