"""``recollect train ENV``: train an agent, in a run folder of its own."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base import output
from recollect.cli import tell

if TYPE_CHECKING:
    from recollect.agent import Agent
    from recollect.training.parse_config import Parsed
    from recollect.training.run_folder import Run

TAKES_CONFIG = SETTINGS_IN_HELP = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments beside the settings of the run, which are flags too."""
    parser.add_argument("env", nargs="?", help="a task (recollect tasks), a Gymnasium id, or module:Env")
    parser.add_argument("--no-preset", action="store_true", help="plain defaults, also for a built-in task")
    parser.add_argument("--no-report", action="store_true", help="write no report.html at the end")
    parser.add_argument("--no-eval", action="store_true", help="no evaluation at the end")
    parser.add_argument("--print-config", action="store_true", help="print the resolved config and stop")
    add_display(parser)


def add_display(parser: argparse.ArgumentParser) -> None:
    """How progress is shown; for every command that trains."""
    shown = parser.add_mutually_exclusive_group()
    for mode, words in {
        "quiet": "show nothing but errors",
        "json": "one JSON object a line on stdout, for programs",
        "plain": "plain lines, also in a terminal",
    }.items():
        shown.add_argument(f"--{mode}", dest="display", action="store_const", const=mode, help=words)
    parser.set_defaults(display="auto")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Resolve the settings, train, evaluate, report."""
    from recollect.api import new_agent
    from recollect.errors import ConfigError
    from recollect.training.parse_config import parse_config

    parsed = parse_config(flags, env=args.env, presets=not args.no_preset)
    if parsed.env is None:
        raise ConfigError("which env? recollect train ENV, or env: in the --config file; see recollect tasks")
    if args.print_config:
        from recollect.config.toml_yaml import config_text

        print(config_text(parsed.config, parsed.env), end="", file=output.results())
        return 0
    say = Say(args.display)
    for note in parsed.notes:
        say(f"note: {note}")
    with new_agent(parsed.env, parsed.config, given=parsed.given, preset=parsed.preset) as agent:
        if agent.config.run is None:
            agent.config = replace(agent.config, run=str(new_folder(parsed.env)))
        say(_resolved(parsed))
        agent.train(progress=args.display, command=args.command)
        finish(agent, say, evaluate=not args.no_eval, report=not args.no_report)
    return 0


class Say:
    """Lines for people on stderr, beside the display; for programs events on stdout; where quiet, nothing."""

    def __init__(self, display: str):
        self._display = display

    def __call__(self, text: str, **event: Any) -> None:
        """One or more lines; ``event``: what a program should know of it."""
        if self._display == "json" and event:
            print(json.dumps(event), flush=True, file=output.results())
        elif self._display not in ("quiet", "json") and text:
            tell(text, sys.stderr)


def finish(agent: Agent, say: Say, *, evaluate: bool, report: bool) -> None:
    """Evaluate once more and write the report."""
    assert agent.run is not None
    try:
        _finish(agent, agent.run, say, evaluate, report)
    except KeyboardInterrupt:
        say(f"the training is saved, the rest was not finished: recollect report {agent.run.path}")
        raise


def _finish(agent: Agent, run: Run, say: Say, evaluate: bool, report: bool) -> None:
    done = run.evaluations()
    if evaluate and agent.can_make_env and not (done and done[-1]["steps"] == agent.steps):
        result = agent.evaluate(agent.config.eval_episodes)
        run.add_evaluation(agent.steps, result)
        say(f"evaluation: {result}", event="evaluation", steps=agent.steps, **result.to_json())
    if report:
        from recollect.reports import write_report

        path = write_report([run], env_kwargs=agent.config.env_kwargs)
        say(f"report: {path}", event="report", path=str(path))


def new_folder(env: str) -> Path:
    """A new, empty folder under runs/."""
    from recollect.base.files import writing

    name = Path(env.replace(":", "-")).name.removesuffix("-v0").lower().replace(".py", "")
    stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, count = Path("runs") / stem, 1
    with writing("runs could not be made"):
        Path("runs").mkdir(exist_ok=True)
        while True:
            try:
                folder.mkdir()  # taken at once: another seed may be starting in the same second
                return folder
            except FileExistsError:
                count += 1
                folder = Path("runs") / f"{stem}-{count}"


def _resolved(parsed: Parsed) -> str:
    """The settings that the user gave. The display shows those of a preset; the others are defaults."""

    def words(settings: dict[str, Any]) -> str:
        return "  ".join(f"{name}={value!r}" for name, value in settings.items())

    lines = [f"env {parsed.env}"]
    if parsed.given:
        lines.append(f"set: {words(parsed.given)}")
    return "\n".join(lines)
