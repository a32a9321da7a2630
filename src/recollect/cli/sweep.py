"""``recollect sweep ENV``: every combination of some settings, with several seeds."""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from recollect.base import json_output
from recollect.base.formatting import number, plural
from recollect.base.import_code import is_importing
from recollect.cli import print_json
from recollect.cli.shared import add_display
from recollect.cli.train import Say
from recollect.config.flags import whole_words
from recollect.config.own_code import INPUTS
from recollect.errors import ConfigError, Interrupted, RecollectError

if TYPE_CHECKING:
    from recollect.sweep import Sweep

TAKES_CONFIG = SETTINGS_IN_HELP = True
REFUSED = ("run",)
"""Every run of a sweep has a folder of its own, under --out."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments beside the settings of the runs, which are flags too."""
    parser.description = (
        "Every flag of recollect train may list values: --core lstm,gru. Every combination is trained with "
        "every seed, each run in its own process and folder, and all are compared at the end. The same "
        "command again resumes runs that were stopped, killed or failed. Semicolons separate the values of "
        "a setting that is a list itself: --encoder.hidden '64,64;128'."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect sweep delayed-cue --core lstm,gru --gamma 0.9,0.99 --seeds 5\n"
        "  recollect sweep delayed-cue,t-maze --core lstm,none      several envs\n"
        "  recollect sweep t-maze --task.length 10,50 --dry-run     check and show\n"
        "  recollect sweep --resume runs/sweep-t-maze-1f2e3d        resume\n"
        "  recollect sweep my:Env --resume runs/mine                own code, named again\n"
    )
    parser.add_argument("env", nargs="?", help="as in recollect train; several are separated by commas")
    parser.add_argument("--seeds", type=int, help="number of seeds, from --seed on (default: 1)")
    parser.add_argument("--jobs", type=int, help="runs at a time (default: half the cores; on a GPU 1)")
    parser.add_argument("--out", help="folder of the sweep (default: under runs/, by env and settings)")
    parser.add_argument("--resume", help="resume the sweep in this folder")
    parser.add_argument("--trust", action="store_true", help="with --resume: trust the code it names")
    parser.add_argument("--dry-run", action="store_true", help="check all settings, print the commands, stop")
    parser.add_argument("--no-report", action="store_true", help="write no report.html at the end")
    add_display(parser)


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Plan, run, and print the results."""
    from recollect.sweep import Sweep

    if args.trust and args.resume is None:
        raise ConfigError("--trust is for --resume: a new sweep has only settings that you name")
    sweep = _opened(args, flags) if args.resume is not None else None
    sweep = sweep or Sweep.plan(args.env, flags, seeds=args.seeds, out=args.out)
    say = Say(args.display)
    parsed = sweep.check()
    for note in dict.fromkeys(note for found in parsed.values() for note in found.notes):
        say(f"note: {note}")
    if args.dry_run:
        _show_commands(sweep, args.jobs)
        return 0
    say(_opening(sweep, args.jobs))
    try:
        is_whole = sweep.run(args.jobs, progress="quiet" if args.display == "json" else args.display)
    except Interrupted as interrupt:
        _show_failures(sweep)
        say(str(interrupt))
        raise
    _show_results(sweep, args.display)
    _show_failures(sweep)
    if not args.no_report and (report := sweep.report()) is not None:
        say(f"report: {report}")
    return 0 if is_whole else 1


def _opened(args: argparse.Namespace, flags: list[str]) -> Sweep:
    from recollect.sweep import Sweep
    from recollect.sweep.plan import take

    env, flags = take(flags, "--env")
    if args.env is not None and env is not None:
        raise ConfigError(f"the env is {args.env}, and --env says {env}: keep one of them")
    given = whole_words(flags)
    others = [word for word in given if not _is_repeated(word)]
    _refuse_changes([*others, *(f"--{name}" for name in ("seeds", "out") if getattr(args, name) is not None)])
    sweep = Sweep.open(args.resume, env=args.env if env is None else env, named=given, trust=args.trust)
    asked = sweep.asked() if given else []
    _refuse_changes([word for word in given if word not in asked])
    return sweep


def _is_repeated(word: str) -> bool:
    """Whether a flag may name a setting of the sweep again: options of the env, connections, own code."""
    name, _, value = word.partition("=")
    name, dot, _ = name.lstrip("-").replace("-", "_").partition(".")
    return name in ("task", "import", "imports", "ray_address", "sinks") or (
        name in INPUTS and bool(dot or is_importing(value))
    )


def _refuse_changes(words: list[str]) -> None:
    if words:
        flag = words[0].partition("=")[0]
        raise ConfigError(
            f"--resume continues a sweep as it was planned, and {flag} would change it: leave it out, "
            "or start another sweep without --resume"
        )


def _show_commands(sweep: Sweep, jobs: int | None) -> None:
    """Print the commands of the runs, ready to be copied."""
    for member in sweep.to_do(jobs)[0]:
        try:
            _, *words = member.command() or []
        except RecollectError as error:
            print(f"would fail: {member.name}: {error}", file=sys.stderr)
            continue
        command = shlex.join(["recollect", *words[2:]] if words[:2] == ["-m", "recollect"] else words)
        print(command, file=json_output.results())
    print(f"{_opening(sweep, jobs)}; nothing was started", file=sys.stderr)


def _opening(sweep: Sweep, jobs: int | None) -> str:
    members, jobs = sweep.to_do(jobs)
    sizes = f"{plural(len(sweep.variants), 'variant')} x {plural(len(sweep.seeds), 'seed')}"
    left = f"{len(members)} to do, {jobs} at a time" if members else "all finished"
    return f"{sizes} = {plural(len(sweep.members), 'run')} ({left}) in {sweep.path}"


def _show_results(sweep: Sweep, display: str) -> None:
    """Print one line per variant, the best in bold; as JSON for programs."""
    results = sweep.results()
    if display == "json":
        for result in results:
            print_json(result.to_json())
    if display in ("json", "quiet"):
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("variant", overflow="fold")
    modes = {result.mode for result in results if result.iqm is not None}
    actions = ["actions"] if len(modes) > 1 else []
    for name in ("seeds", *actions, "return", "95% interval"):
        table.add_column(name, justify="right", no_wrap=True)
    best = max((result.iqm for result in results if result.iqm is not None), default=None)
    for result in results:
        known = sum(score is not None for score in result.scores.values())
        interval = "" if result.low is None else f"{number(result.low)} to {number(result.high)}"
        style = "bold" if best is not None and result.iqm == best and len(results) > 1 else ""
        seeds = f"{known}" if known == len(result.scores) else f"{known} of {len(result.scores)}"
        shown = [result.mode for _ in actions]
        table.add_row(result.label, seeds, *shown, number(result.iqm), interval, style=style)
    console = Console(highlight=False, markup=False)
    console.print(table)
    whose = f" with {modes.pop()} actions" if len(modes) == 1 else ""
    console.print(f"return: the interquartile mean over seeds of the final evaluation's mean return{whose}")


def _show_failures(sweep: Sweep) -> None:
    for member, text in sweep.failures:
        lines = [f"failed: {member.name}", *text.splitlines(), f"its log: {member.log}"]
        print("\n    ".join(lines), file=sys.stderr)
