"""``recollect resume RUN``: continue a run."""

from __future__ import annotations

import argparse

from recollect.cli.train import Say, add_display, finish

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Go on from the last checkpoint: bit for bit on built-in tasks, in new episodes on other envs.\n"
        "Of the settings those that do not change what is learned may be given: --eval-every,\n"
        "--eval-episodes, --checkpoint-every, --keep-checkpoints, --max-seconds, --threads, --sinks;\n"
        "and where it runs: --runtime, --env-workers, --env-timeout, --ray-address."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect resume runs/t-maze-20261115-101500\n"
        "  recollect resume runs/done --steps 200k          train it for longer\n"
        "  recollect resume runs/mine --env my_module:Env   an env that is your own code\n"
        "  recollect resume runs/ant --task.frame_skip 5    options of a foreign env\n"
        "  recollect resume runs/mine --runtime processes   actors in processes now\n"
    )
    parser.add_argument("run", help="the run's folder")
    parser.add_argument("--steps", help="train for so many more env steps; schedules restart")
    parser.add_argument("--checkpoint", default="last", help="last, best, or its env steps (default: last)")
    parser.add_argument("--env", help="the env, if it is your own code: module:Env")
    parser.add_argument("--device", help="cpu or cuda; default: where it was trained")
    parser.add_argument("--no-report", action="store_true", help="write no report.html at the end")
    parser.add_argument("--no-eval", action="store_true", help="no evaluation at the end")
    add_display(parser)


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Resume, evaluate, report."""
    from recollect.api import resume
    from recollect.config.flags import parse_settings

    given = parse_settings(flags)
    steps = None if args.steps is None else parse_settings(["--steps", args.steps])["steps"]
    agent = resume(
        args.run,
        steps=steps,
        checkpoint=args.checkpoint,
        env=args.env,
        device=args.device,
        progress=args.display,
        **given,
    )
    with agent:
        finish(agent, Say(args.display), evaluate=not args.no_eval, report=not args.no_report)
    return 0
