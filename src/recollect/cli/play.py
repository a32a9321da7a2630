"""``recollect play RUN``: show episodes of an agent, as text or as a video."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from rich.console import Console

from recollect.cli.shared import add_episodes, load_agent
from recollect.errors import ConfigError

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Play whole episodes and show observations, actions, values and the memory. Built-in tasks are "
        "shown as text; of an env that draws frames (render_mode rgb_array), RUN/play.gif is written. "
        "--task.OPTION changes the env, such as --task.horizon 200."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect play runs/t-maze-20261115-101500\n"
        "  recollect play runs/cue --task.horizon 50 --out cue.gif   a video\n"
        "  recollect play runs/cartpole --out cartpole.mp4 --fps 30\n"
        "  recollect play runs/cartpole --text --checkpoint last\n"
        "  recollect play runs/listeners --agent listener_0       one of several agents\n"
        "videos need the extra 'video': pip install 'recollect[video]'"
    )
    add_episodes(parser, episodes=3, seed=0)
    parser.add_argument("--sample", action="store_true", help="sample actions in place of the likeliest")
    parser.add_argument(
        "--agent", help="of several agents, the one whose view and memory are shown (default: the first)"
    )
    parser.add_argument("--out", metavar="FILE", help="write a video: FILE.gif or FILE.mp4")
    parser.add_argument("--fps", type=float, help="steps per second of the video")
    parser.add_argument("--text", action="store_true", help="print text, also for an env that draws frames")
    parser.add_argument("--all", action="store_true", help="print every step, also repeated ones")
    parser.add_argument(
        "--max-steps", type=int, default=2000, help="stop an episode after this many steps (default: 2000)"
    )


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Play, then print or write the video."""
    from recollect.play import NoFramesError, check_path, record_film, show, write_film
    from recollect.play.words import ending, others

    if args.fps is not None and args.text and args.out is None:
        raise ConfigError("--fps is the speed of a video, and --text writes none: leave one of them out")
    if args.out is not None:
        check_path(args.out)
    agent, options = load_agent(args, flags)
    console = Console(highlight=False, markup=False)  # a package name may have brackets
    settings = {"episodes": args.episodes, "seed": args.seed, "max_steps": args.max_steps}
    settings["agents"] = [0 if args.agent is None else args.agent]
    record = partial(record_film, agent, **settings, deterministic=not args.sample, env_kwargs=options)
    try:
        film = record(frames=args.out is not None or not args.text)
    except NoFramesError as error:
        if args.out is not None:  # a video was requested
            raise
        console.print(f"{error}\n", style="dim")
        film = record(frames=False)
    if args.text or (args.out is None and film.frames is None):
        show(film.traces, console, fold=not args.all)
    out = args.out or (Path(args.run) / "play.gif" if film.frames is not None else None)
    if out is not None:
        with console.status(f"drawing {out} ..."):
            path = write_film(film, Path(out), fps=args.fps)
        for number, trace in enumerate(film.traces, 1):
            console.print("; ".join(filter(None, (f"episode {number}: {ending(trace)}", others(trace)))))
        console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
    return 0
