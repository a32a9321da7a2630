"""``recollect eval RUN``: how good is it?"""

from __future__ import annotations

import argparse
import json
import sys

from recollect.base import output
from recollect.cli import tell

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Play whole episodes with frozen weights and fixed seeds, and give the mean return with its\n"
        "95% bootstrap interval. --task.OPTION changes the world, such as --task.horizon 200."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect eval runs/t-maze-20261115-101500 --episodes 500\n"
        "  recollect eval runs/cue --task.horizon 200   a longer wait than in training\n"
        "  recollect eval runs/cue --checkpoint last --json\n"
    )
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--episodes", type=int, default=100, help="how many (default: 100)")
    parser.add_argument("--seed", type=int, default=1_000_003, help="of the envs and of sampled actions")
    parser.add_argument("--sample", action="store_true", help="sample actions in place of the likeliest")
    parser.add_argument("--checkpoint", help="of a run: best, last, or its env steps (default: best)")
    parser.add_argument("--env", help="another env, or its own again if that is your own code: module:Env")
    parser.add_argument("--device", help="cpu or cuda; default: where it was trained")
    parser.add_argument("--json", action="store_true", help="everything as JSON")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Evaluate and print."""
    from recollect.api import load
    from recollect.config.flags import parse_task_options

    agent = load(
        args.run,
        env=args.env,
        env_kwargs=parse_task_options(flags, env=args.env),
        device=args.device,
        checkpoint=args.checkpoint,
    )
    kwargs = agent.config.env_kwargs | parse_task_options(flags, env=agent.env_name)
    result = agent.evaluate(args.episodes, seed=args.seed, deterministic=not args.sample, env_kwargs=kwargs)
    if args.json:
        about = {"run": args.run, "env": agent.env_name, "env_kwargs": kwargs, "steps": agent.steps}
        print(json.dumps(about | result.to_json()), file=output.results())
    else:
        tell(f"{agent.env_name} after {agent.steps:,} steps of training: {result}", sys.stdout)
    return 0
