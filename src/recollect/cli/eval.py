"""``recollect eval RUN``: evaluate a run or a saved agent."""

from __future__ import annotations

import argparse
import sys

from recollect.cli import print_json, tell
from recollect.cli.shared import add_episodes, load_agent
from recollect.errors import ConfigError

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Play whole episodes with frozen weights and fixed seeds, and print the mean return with its "
        "95% bootstrap interval, of greedy actions and of sampled ones. --task.OPTION changes the env, "
        "such as --task.horizon 200."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect eval runs/t-maze-20261115-101500 --episodes 500\n"
        "  recollect eval runs/cue --task.horizon 200   a longer wait than in training\n"
        "  recollect eval runs/cue --checkpoint last --json\n"
        "  recollect eval runs/cue --eval-mode sampled   actions drawn as in training\n"
    )
    add_episodes(parser, episodes=100, seed=1_000_003)
    parser.add_argument(
        "--eval-mode", metavar="MODE", help="greedy, sampled or both; default: that of the training"
    )
    parser.add_argument("--sample", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="all results as JSON")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Evaluate and print."""
    if args.sample:
        raise ConfigError("--sample is called --eval-mode sampled here")
    agent, options = load_agent(args, flags)
    kwargs = agent.config.env_kwargs | options
    result = agent.evaluate(args.episodes, seed=args.seed, eval_mode=args.eval_mode, env_kwargs=kwargs)
    if args.json:
        about = {"run": args.run, "env": agent.env_name, "env_kwargs": kwargs, "steps": agent.steps}
        print_json(about | result.to_json())
    else:
        tell(f"{agent.env_name} after {agent.steps:,} steps of training: {result}", sys.stdout)
        if result.difference is not None:
            tell(f"note: {result.difference}", sys.stderr)
    return 0
