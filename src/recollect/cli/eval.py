"""``recollect eval RUN``: evaluate a run or a saved agent."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from recollect.cli import print_json, tell
from recollect.cli.shared import add_episodes, load_agent
from recollect.config.flags import parse_settings, whole_words
from recollect.errors import ConfigError

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Play whole episodes with frozen weights and fixed seeds, and print the mean return with its "
        "95% bootstrap interval, of greedy actions and of sampled ones. --task.OPTION changes the env, "
        "such as --task.horizon 200. With --vs or --games: play games of a two-sided env, half of them on "
        "each side, and print how many are won, with the 95% Wilson interval, and the means of the numbers "
        "that the env reports; --vs.OPTION is an option of the player."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect eval runs/t-maze-20261115-101500 --episodes 500\n"
        "  recollect eval runs/cue --task.horizon 200   a longer wait than in training\n"
        "  recollect eval runs/cue --checkpoint last --json\n"
        "  recollect eval runs/cue --eval-mode sampled   actions drawn as in training\n"
        "  recollect eval runs/mech --vs bot --games 400\n"
        "  recollect eval runs/mech --vs runs/other   another agent, in the same mode\n"
    )
    add_episodes(parser, episodes=100, seed=1_000_003)
    parser.add_argument(
        "--eval-mode", metavar="MODE", help="greedy, sampled or both; default: that of the training"
    )
    parser.add_argument(
        "--vs",
        metavar="NAME",
        help="the opponent: a scripted player, a member of the run's league such as s3, or the folder of "
        "another run; default: that of the training",
    )
    parser.add_argument("--games", type=int, help="to play against it (default: 200)")
    parser.add_argument("--sample", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="all results as JSON")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Evaluate and print."""
    if args.sample:
        raise ConfigError("--sample is called --eval-mode sampled here")
    words = whole_words(flags)
    own = [word for word in words if word.startswith("--vs.")]
    agent, options = load_agent(args, [word for word in words if word not in own])
    kwargs = agent.config.env_kwargs | options
    about = {"run": args.run, "env": agent.env_name, "env_kwargs": kwargs, "steps": agent.steps}
    if args.vs is not None or args.games is not None or own:
        chosen = parse_settings(own).get("vs_kwargs")
        how = {"seed": args.seed, "eval_mode": args.eval_mode, "env_kwargs": kwargs, "vs_kwargs": chosen}
        opponent = _opponent(args, words)
        games = agent.against(opponent, 200 if args.games is None else args.games, **how)
        if not isinstance(opponent, str | None):  # an agent's words are long
            sampled = games.sampled and replace(games.sampled, opponent=args.vs)
            games = replace(games, opponent=args.vs, sampled=sampled)
        if args.json:
            print_json(about | games.to_json())
        else:
            tell(f"{agent.env_name} after {agent.steps:,} steps of training\n{games}", sys.stdout)
        return 0
    result = agent.evaluate(args.episodes, seed=args.seed, eval_mode=args.eval_mode, env_kwargs=kwargs)
    if args.json:
        print_json(about | result.to_json())
    else:
        tell(f"{agent.env_name} after {agent.steps:,} steps of training: {result}", sys.stdout)
        if result.difference is not None:
            tell(f"note: {result.difference}", sys.stderr)
    return 0


def _opponent(args: argparse.Namespace, flags: list[str]) -> Any:
    """The name of the opponent, or the agent of its folder."""
    from recollect.training.run_folder import Run

    if args.vs is None or not (os.sep in args.vs or Run.is_run(Path(args.vs))):
        return args.vs
    theirs = argparse.Namespace(**{**vars(args), "run": args.vs, "checkpoint": None})
    return load_agent(theirs, [word for word in flags if not word.startswith(("--vs.", "--task."))])[0]
