"""``recollect resume RUN``: continue a run."""

from __future__ import annotations

import argparse

from recollect.cli.shared import add_display, add_ending, add_trust, trusted
from recollect.cli.train import Say, finish
from recollect.config.flags import parse_settings

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Resume from the last checkpoint: bit for bit on built-in tasks, in new episodes on other envs. "
        "Only settings that do not affect learning may be changed: --eval-every, --eval-episodes, "
        "--checkpoint-every, --keep-checkpoints, --max-seconds, --threads, --sinks; and those of the "
        "runtime: --runtime, --env-workers, --env-timeout, --ray-address. Limits count from here: --steps "
        "and --max-seconds."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect resume runs/t-maze-20261115-101500\n"
        "  recollect resume runs/done --steps 200k          train it for longer\n"
        "  recollect resume runs/long --max-seconds 3600    for another hour\n"
        "  recollect resume runs/mine --env my_module:Env   an env that is your own code\n"
        "  recollect resume runs/ant --task.frame_skip 5    options of another env\n"
        "  recollect resume runs/mine --runtime processes   actors in processes now\n"
    )
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--steps", help="train for this many more env steps; schedules restart")
    parser.add_argument("--checkpoint", default="last", help="last, best, or its env steps (default: last)")
    parser.add_argument("--env", help="the env, if it is your own code: module:Env")
    parser.add_argument("--device", help="cpu or cuda; default: that of the training")
    add_trust(parser)
    add_ending(parser)
    add_display(parser)


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Resume, evaluate, report."""
    from recollect.api import resume

    given = parse_settings(flags)
    if args.steps is not None:
        given |= parse_settings(["--steps", args.steps])
    where = {"checkpoint": args.checkpoint, "env": args.env, "device": args.device, "trust": args.trust}
    say = Say(args.display)
    with resume(args.run, **where, progress=args.display, **given) as agent:
        if args.trust:
            say(trusted(args.run))
        finish(agent, say, evaluate=not args.no_eval, report=not args.no_report)
    return 0
