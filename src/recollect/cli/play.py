"""``recollect play RUN``: show episodes of an agent, as text or as a video."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from rich.console import Console

from recollect.cli import tell
from recollect.cli.shared import add_episodes, load_agent
from recollect.errors import ConfigError

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Play whole episodes and show observations, actions, values and the memory. Built-in tasks are "
        "shown as text; of an env that draws frames (render_mode rgb_array), RUN/play.gif is written. "
        "--task.OPTION changes the env, such as --task.horizon 200. --replay FILE records a game of the mech "
        "arena; given such a file in place of the run, its viewer is written, or with --check it is played "
        "again and compared."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect play runs/t-maze-20261115-101500\n"
        "  recollect play runs/cue --task.horizon 50 --out cue.gif   a video\n"
        "  recollect play runs/cartpole --out cartpole.mp4 --fps 30\n"
        "  recollect play runs/cartpole --text --checkpoint last\n"
        "  recollect play runs/listeners --agent listener_0       one of several agents\n"
        "  recollect play runs/mech --replay game.json     record a game of mechs\n"
        "  recollect play game.json                        write its viewer, game.html\n"
        "videos need the extra 'video': pip install 'recollect[video]'"
    )
    add_episodes(parser, episodes=3, seed=0)
    parser.add_argument("--sample", action="store_true", help="sample actions in place of the likeliest")
    parser.add_argument(
        "--agent", help="of several agents, the one whose view and memory are shown (default: the first)"
    )
    parser.add_argument(
        "--out", metavar="FILE", help="write a video: FILE.gif or FILE.mp4; of a replay, its page"
    )
    parser.add_argument("--replay", metavar="FILE", help="record a game of the mech arena: FILE.json")
    parser.add_argument("--check", action="store_true", help="play a replay again: is it the same game?")
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

    if is_replay(Path(args.run)):
        return _replay(args, flags)
    if args.check:
        raise ConfigError(f"--check is for a replay, and {args.run} is no .json file: name the file")
    if args.replay is not None:
        return _record(args, flags)
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


def is_replay(path: Path) -> bool:
    """Whether a path is a replay, and no folder of a run or agent."""
    return path.suffix.lower() == ".json" and not path.is_dir()


def _replay(args: argparse.Namespace, flags: list[str]) -> int:
    """Check a replay, or write its viewer."""
    from recollect.reports.mech_viewer import check, write_viewer

    if flags or args.replay is not None:
        given = flags[0] if flags else "--replay"
        raise ConfigError(f"{given} is for a run, and {args.run} is a replay: leave it out")
    file = Path(args.run)
    if args.check:
        replay = check(file)
        tell(f"{file}: reproduced, {replay.decisions} decisions, hash {replay.sha256}", sys.stdout)
        return 0
    page = write_viewer(file, None if args.out is None else Path(args.out))
    tell(f"{page}: {page.stat().st_size / 1e6:.1f} MB, open it in a browser", sys.stdout)
    return 0


def _record(args: argparse.Namespace, flags: list[str]) -> int:
    """Record games of a trained run in the mech arena."""
    from recollect.play.mech import record_run

    file = Path(args.replay)
    if file.suffix.lower() != ".json":
        raise ConfigError(f"--replay {file}: a replay is a .json file; name it {file.stem or 'game'}.json")
    agent, options = load_agent(args, flags)
    replays = record_run(
        agent,
        name=Path(args.run).resolve().name,
        games=args.episodes,
        seed=args.seed,
        deterministic=not args.sample,
        env_kwargs=options,
    )
    for number, replay in enumerate(replays, 1):
        place = file if number == 1 else file.with_stem(f"{file.stem}-{number}")
        replay.save(place)
        won = {1: "blue won", -1: "red won", 0: "a draw"}[replay.won]
        tell(
            f"{place}: {won}, {replay.decisions} decisions; recollect play {place} writes its viewer",
            sys.stdout,
        )
    return 0
