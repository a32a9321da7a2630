"""``recollect eval RUN``: evaluate a run or a saved agent."""

from __future__ import annotations

import argparse
import sys

from recollect.cli import print_json, tell
from recollect.cli.shared import add_episodes, load_agent

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Play whole episodes with frozen weights and fixed seeds, and print the mean return with its "
        "95% bootstrap interval. --task.OPTION changes the env, such as --task.horizon 200."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect eval runs/t-maze-20261115-101500 --episodes 500\n"
        "  recollect eval runs/cue --task.horizon 200   a longer wait than in training\n"
        "  recollect eval runs/cue --checkpoint last --json\n"
    )
    add_episodes(parser, episodes=100, seed=1_000_003)
    parser.add_argument("--json", action="store_true", help="all results as JSON")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Evaluate and print."""
    agent, options = load_agent(args, flags)
    kwargs = agent.config.env_kwargs | options
    result = agent.evaluate(args.episodes, seed=args.seed, deterministic=not args.sample, env_kwargs=kwargs)
    if args.json:
        about = {"run": args.run, "env": agent.env_name, "env_kwargs": kwargs, "steps": agent.steps}
        print_json(about | result.to_json())
    else:
        tell(f"{agent.env_name} after {agent.steps:,} steps of training: {result}", sys.stdout)
    return 0
