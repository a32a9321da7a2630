"""Arguments of several commands, and what is done with them."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.cli import tell
from recollect.config.flags import parse_repeated
from recollect.errors import ConfigError

if TYPE_CHECKING:
    from recollect.agent import Agent
    from recollect.training.parse_config import Parsed


TRUST = (
    "code of your own that a run names is imported if you trained the run here, trust\n"
    "it (--trust), or name it again: --import, --env, --wrap, --core, --encoder,\n"
    "--head, --policy\n"
)
"""The end of the help of commands that open a run."""


def add_env(parser: argparse.ArgumentParser) -> None:
    """The env and its preset, beside the settings of a run (``parse_run``)."""
    parser.add_argument("env", nargs="?", help="a task (recollect tasks), a Gymnasium id, or module:Env")
    parser.add_argument("--no-preset", action="store_true", help="plain defaults, also for a built-in task")


def parse_run(args: argparse.Namespace, flags: list[str]) -> tuple[str, Parsed]:
    """The env's name and the settings of a command line."""
    from recollect.training.parse_config import parse_config

    parsed = parse_config(flags, env=args.env, presets=not args.no_preset)
    if parsed.env is None:
        command = " ".join(args.command[:2])
        raise ConfigError(f"which env? {command} ENV, or env: in the --config file; see recollect tasks")
    return parsed.env, parsed


def add_display(parser: argparse.ArgumentParser) -> None:
    """How progress is shown; for every command that trains."""
    shown = parser.add_mutually_exclusive_group()
    for mode, words in {
        "quiet": "show nothing but errors",
        "json": "one JSON object per line on stdout, for programs",
        "plain": "plain lines, also in a terminal",
    }.items():
        shown.add_argument(f"--{mode}", dest="display", action="store_const", const=mode, help=words)
    parser.set_defaults(display="auto")


def add_ending(parser: argparse.ArgumentParser) -> None:
    """The work after a training."""
    parser.add_argument("--no-report", action="store_true", help="write no report.html at the end")
    parser.add_argument("--no-eval", action="store_true", help="no evaluation at the end")


def add_episodes(parser: argparse.ArgumentParser, *, episodes: int, seed: int) -> None:
    """A saved agent, and the episodes that it plays (``load_agent``)."""
    parser.add_argument("run", help="folder of the run, or of a saved agent")
    parser.add_argument("--episodes", type=int, default=episodes, help="to play (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=seed, help="of env and actions (default: %(default)s)")
    parser.add_argument("--checkpoint", help="of a run: best, last, or its env steps (default: best)")
    parser.add_argument("--env", help="another env; or the env again, if it is your own code: module:Env")
    parser.add_argument("--device", help="cpu or cuda; default: that of the training")
    add_trust(parser)


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Trust in the code of a run; for every command that opens one."""
    parser.add_argument(
        "--trust", action="store_true", help="import the code that the run names, from now on without --trust"
    )
    parser.epilog = f"{(parser.epilog or '').removesuffix(chr(10))}\n{TRUST}"


def trusted(run: str) -> str:
    """A line on the code of a run that is trusted from now on."""
    from recollect.training.trusted_runs import remembered

    words = shlex.join(remembered(Path(run)))
    return f"trusted in {run} on this machine from now on: {words or 'nothing, it names no code'}"


def load_agent(args: argparse.Namespace, flags: list[str]) -> tuple[Agent, dict[str, Any]]:
    """The agent, and the options of its env that ``flags`` change."""
    from recollect.api import load

    named = parse_repeated(flags, env=args.env)
    where = {"env": args.env, "device": args.device, "checkpoint": args.checkpoint}
    agent = load(args.run, **where, **named, trust=args.trust)
    if args.trust:
        tell(trusted(args.run), sys.stderr)
    return agent, parse_repeated(flags, env=agent.env_name)["env_kwargs"]
