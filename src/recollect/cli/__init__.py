"""The command line: ``recollect COMMAND ...``, one module a command.

The module of a command has ``configure(parser)`` and ``run(args, flags)``. With ``TAKES_CONFIG``, flags that
the parser does not have are settings of the run, and ``run`` gets them; with ``SETTINGS_IN_HELP``, its help
lists them all, except those in ``REFUSED``. Modules here import torch only in ``run``: ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, TextIO

from recollect.base import interrupts, output

COMMANDS = {
    "train": "train an agent",
    "resume": "resume a run that was stopped or killed",
    "eval": "evaluate a run or a saved agent",
    "play": "watch an agent play, with its memory beside it",
    "report": "write a run, or a comparison of several, as one HTML file",
    "sweep": "train every combination of some settings, with several seeds",
    "export": "export an agent as ONNX or as a torch program",
    "verify": "check env, buffer, memory, training loop and gradients, in seconds",
    "tasks": "the built-in memory tasks, and the rules of each",
    "cores": "the kinds of memory, their weights and the size of their state",
    "doctor": "versions, hardware, known problems and a quick speed figure of this machine",
}
"""The commands and what they do, the most used first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 if something was found wrong, 2 for a wrong call."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(argv)
    except KeyboardInterrupt as interrupt:
        # 128 + the signal, as a shell would report it; the run was saved, if it is the run's own.
        return 128 + getattr(interrupt, "signal", 2)
    except BrokenPipeError:  # | head
        sys.stderr.close()
        return 1


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        if len(argv) > 1:
            return _dispatch([argv[1], "--help"])
        _print_help()
        return 0 if argv else 2
    if argv[0] in ("-V", "--version", "version"):
        from recollect import __version__

        print(f"recollect {__version__}")
        return 0
    name, rest = argv[0], argv[1:]
    if name not in COMMANDS:
        from recollect.errors import nearest

        tell(
            f"error: there is no command {name!r}{nearest(name, COMMANDS)}; recollect --help lists them",
            sys.stderr,
        )
        return 2
    return _run(name, rest)


def _run(name: str, rest: list[str]) -> int:
    command = import_module(f"recollect.cli.{name}")
    parser = argparse.ArgumentParser(
        prog=f"recollect {name}", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.configure(parser)
    if parser.description is not None:  # examples keep their lines, prose fits the terminal
        width = min(shutil.get_terminal_size().columns, 100)
        parser.description = textwrap.fill(" ".join(parser.description.split()), width)
    return _guarded(lambda: _call(command, parser, rest))


def _call(command: Any, parser: argparse.ArgumentParser, rest: list[str]) -> int:
    flags: list[str] = []
    words = list(rest)
    if getattr(command, "TAKES_CONFIG", False):
        from recollect.config.flags import split_argv

        if getattr(command, "SETTINGS_IN_HELP", False):
            from recollect.cli.help import wants_help

            if (asked := wants_help(rest)) is not None:
                return _print_settings(command, parser, *asked)
        rest, flags = split_argv(rest, parser._option_string_actions)
    try:
        args = parser.parse_args(rest)
    except SystemExit as stop:  # argparse has said why
        return int(stop.code or 0)
    args.command = [*parser.prog.split(), *words]
    with contextlib.suppress(Exception):  # if torch is broken, the command says so
        import_module("torch")
    interrupts.raise_again()
    is_for_programs = getattr(args, "json", False) or getattr(args, "display", None) == "json"
    with output.for_programs() if is_for_programs else contextlib.nullcontext():
        return command.run(args, flags)


def _print_settings(
    command: Any, parser: argparse.ArgumentParser, topics: list[str], chosen: list[str]
) -> int:
    """The help of a command whose flags are all the settings of a run."""
    from rich.console import Console

    from recollect.cli.help import own_options, render_help

    render_help(
        Console(),
        topics,
        own_options(parser),
        command=parser.prog,
        opening=None if parser.description is None else f"{parser.description}\n\n{parser.epilog}",
        chosen=chosen,
        refused=getattr(command, "REFUSED", ()),
    )
    return 0


def _guarded(call: Callable[[], int]) -> int:
    """Print an error of Recollect in one line, without a traceback."""
    from recollect.errors import AlignmentError, DivergedError, EnvError, RecollectError, StorageError

    try:
        return call()
    except RecollectError as error:
        tell(f"error: {error}", sys.stderr)
        # 1: the call was right, and something went wrong on the way.
        return 1 if isinstance(error, AlignmentError | DivergedError | EnvError | StorageError) else 2


def tell(text: str, file: TextIO) -> None:
    """Print for people: on a terminal no line breaks inside of a word, elsewhere none at all is added."""
    if file.isatty():
        width = shutil.get_terminal_size().columns
        lines = [
            textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
            for line in text.split("\n")
        ]
        text = "\n".join(lines)
    print(text, file=file, flush=True)


def _print_help() -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print("[bold]Recollect[/] trains agents that remember, and proves that the memory is right.\n")
    console.print("  recollect train delayed-cue                  a built-in memory task")
    console.print("  recollect train CartPole-v1 --core gru       any Gymnasium env")
    console.print("  recollect train my_module:MyEnv --steps 1m   your own\n")
    table = Table(box=None, show_header=False, padding=(0, 2))
    for name, words in COMMANDS.items():
        table.add_row(f"[bold]{name}[/]", words)
    console.print(table)
    console.print("\nrecollect COMMAND --help says more.")
