"""``recollect train ENV``: train an agent, in a run folder of its own."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base import json_output, tracebacks
from recollect.cli import print_json, tell
from recollect.cli.shared import add_display, add_ending, add_env, parse_run

if TYPE_CHECKING:
    from recollect.agent import Agent
    from recollect.training.run_folder import Run

TAKES_CONFIG = SETTINGS_IN_HELP = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments beside the settings of the run, which are flags too."""
    add_env(parser)
    add_ending(parser)
    parser.add_argument("--print-config", action="store_true", help="print the resolved config and stop")
    add_display(parser)


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Resolve the settings, train, evaluate, report."""
    from recollect.api import new_agent
    from recollect.display import showing_notices
    from recollect.training.trusted_runs import TrustsOwnRun

    env, parsed = parse_run(args, flags)
    if args.print_config:
        from recollect.config.toml_yaml import config_text

        made_by = None if parsed.policy is None else parsed.policy.name
        print(config_text(parsed.config, env, made_by=made_by), end="", file=json_output.results())
        return 0
    say = Say(args.display)
    for note in parsed.notes:
        say(f"note: {note}")
    with showing_notices(args.display):
        agent = new_agent(env, parsed.config, parsed.policy, given=parsed.given, preset=parsed.preset)
    with agent:
        if agent.config.run is None:
            agent.config = replace(agent.config, run=str(new_folder(env)))
        given = "  ".join(f"{name}={value!r}" for name, value in parsed.given.items())
        say(f"env {env}" + (f"\nset: {given}" if given else ""))
        agent.train(progress=args.display, command=args.command, callbacks=TrustsOwnRun())
        finish(agent, say, evaluate=not args.no_eval, report=not args.no_report)
    return 0


class Say:
    """Prints messages: lines on stderr for people, events on stdout for programs, nothing if quiet."""

    def __init__(self, display: str):
        self._display = display

    def __call__(self, text: str, **event: Any) -> None:
        """Print ``text``, or ``event`` for programs."""
        if self._display == "json" and event:
            print_json(event)
        elif self._display not in ("quiet", "json") and text:
            tell(text, sys.stderr)


def finish(agent: Agent, say: Say, *, evaluate: bool, report: bool) -> None:
    """Evaluate once more and write the report."""
    run = agent.run
    assert run is not None
    with tracebacks.keeping(run.path):
        _finish(agent, run, say, evaluate=evaluate, report=report)


def _finish(agent: Agent, run: Run, say: Say, *, evaluate: bool, report: bool) -> None:
    try:
        done = run.evaluations()
        if evaluate and agent.can_make_env and not (done and done[-1]["steps"] == agent.steps):
            result = agent.evaluate(agent.config.eval_episodes)
            run.add_evaluation(agent.steps, result)
            note = "" if result.difference is None else f"\nnote: {result.difference}"
            say(f"evaluation: {result}{note}", event="evaluation", steps=agent.steps, **result.to_json())
        if report:
            from recollect.reports import write_report
            from recollect.training.recorded_episodes import record_episodes

            if (failure := record_episodes(agent, run)) is not None:  # of a best that is new
                say(f"note: {failure}")
            path = write_report([run], env_kwargs=agent.config.env_kwargs)
            say(f"report: {path}", event="report", path=str(path))
    except KeyboardInterrupt:
        say(f"the training is saved; for the report: recollect report {run.path}")
        raise


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
