"""``recollect play RUN``: watch it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from recollect.play import Film

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Play whole episodes and show what the agent sees, does, expects and remembers. Built-in tasks are\n"
        "shown as text; envs that draw frames (render_mode rgb_array) become RUN/play.gif.\n"
        "--task.OPTION changes the world, such as --task.horizon 200."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect play runs/t-maze-20261115-101500\n"
        "  recollect play runs/cue --task.horizon 50 --out cue.gif   a video of it\n"
        "  recollect play runs/cartpole --out cartpole.mp4 --fps 30\n"
        "  recollect play runs/cartpole --text --checkpoint last\n"
        "videos need the extra 'video': pip install 'recollect[video]'"
    )
    parser.add_argument("run", help="the run's folder, or that of a saved agent")
    parser.add_argument("--episodes", type=int, default=3, help="how many (default: 3)")
    parser.add_argument("--seed", type=int, default=0, help="of the env and of sampled actions (default: 0)")
    parser.add_argument("--out", metavar="FILE", help="write a video: FILE.gif or FILE.mp4")
    parser.add_argument("--fps", type=float, help="steps a second of the video")
    parser.add_argument("--sample", action="store_true", help="sample actions in place of the likeliest")
    parser.add_argument("--checkpoint", help="of a run: best, last, or its env steps (default: best)")
    parser.add_argument("--text", action="store_true", help="print text, also for an env that draws frames")
    parser.add_argument("--all", action="store_true", help="print every step: fold nothing in the text")
    parser.add_argument(
        "--max-steps", type=int, default=2000, help="stop in an episode after so many steps (default: 2000)"
    )
    parser.add_argument("--env", help="another env, or its own again if that is your own code: module:Env")
    parser.add_argument("--device", help="cpu or cuda; default: where it was trained")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Play, then print or write the video."""
    from rich.console import Console

    from recollect.api import load
    from recollect.config.flags import parse_task_options
    from recollect.errors import ConfigError
    from recollect.play import NoFramesError, check_path, record_film, show

    if args.fps is not None and args.text and args.out is None:
        raise ConfigError("--fps is the speed of a video, and --text writes none: leave one of them out")
    if args.out is not None:
        check_path(args.out)
    agent = load(
        args.run,
        env=args.env,
        env_kwargs=parse_task_options(flags, env=args.env),
        device=args.device,
        checkpoint=args.checkpoint,
    )
    console = Console(highlight=False)

    def record(frames: bool) -> Film:
        return record_film(
            agent,
            episodes=args.episodes,
            seed=args.seed,
            deterministic=not args.sample,
            max_steps=args.max_steps,
            env_kwargs=parse_task_options(flags, env=agent.env_name),
            frames=frames,
        )

    try:
        film = record(frames=args.out is not None or not args.text)
    except NoFramesError as error:
        if args.out is not None:  # pictures were asked for
            raise
        console.print(f"{error}\n", style="dim", soft_wrap=True)
        film = record(frames=False)
    if args.text or (args.out is None and film.frames is None):
        show(film.traces, console, fold=not args.all)
    out = args.out
    if out is None and film.frames is not None:
        out = Path(args.run) / "play.gif"
    if out is not None:
        _write(film, Path(out), args.fps, console)
    return 0


def _write(film: Film, out: Path, fps: float | None, console: Console) -> None:
    from recollect.play import write_film
    from recollect.play.words import ending

    with console.status(f"drawing {out} ..."):
        path = write_film(film, out, fps=fps)
    for number, trace in enumerate(film.traces, 1):
        console.print(f"episode {number}: {ending(trace)}")
    console.print(f"{path}: {path.stat().st_size / 1e6:.1f} MB", soft_wrap=True)
