"""The command line: ``recollect COMMAND ...``, one module per command.

The module of a command has ``configure(parser)`` and ``run(args, flags)``. With ``TAKES_CONFIG``, flags that
the parser does not have are settings of the run, passed to ``run``; with ``SETTINGS_IN_HELP``, the help lists
them all, except those in ``REFUSED``. Modules here import torch only in ``run``: ``--help`` is quick.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO

from recollect.base import interrupts, json_output, tracebacks, warnings_once
from recollect.errors import (
    AlignmentError,
    ChildError,
    DivergedError,
    EnvError,
    LostError,
    RecollectError,
    StorageError,
    nearest,
)

COMMANDS = {
    "train": "train an agent",
    "resume": "resume a run that was stopped or killed",
    "eval": "evaluate a run or a saved agent",
    "play": "watch an agent play, with its memory beside it",
    "report": "write a run, or a comparison of several, as one HTML file",
    "league": "the members and games of a run against its own past selves",
    "sweep": "train every combination of some settings, with several seeds",
    "export": "export an agent as ONNX or as a torch program",
    "audit": "find out why a recurrent agent does not learn: check env, memory, loop, gradients",
    "verify": "another name of audit, for an env",
    "tasks": "the built-in memory tasks, and the rules of each",
    "cores": "the kinds of memory, their weights and the size of their state",
    "doctor": "versions, hardware, known problems and a quick speed figure of this machine",
}
"""The commands with a description, the most used first."""
FAILURES = (AlignmentError, ChildError, DivergedError, EnvError, LostError, StorageError)
"""Errors of a right call, which failed later; others are errors of the call."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 for a failure, 2 for a wrong call."""
    argv = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(argv)
    except KeyboardInterrupt as interrupt:
        # 128 + the signal, as a shell would report it; a run was saved before it raised.
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
    name, *rest = argv
    if name not in COMMANDS:
        near = nearest(name, COMMANDS)
        tell(f"error: there is no command {name!r}{near}; recollect --help lists them", sys.stderr)
        return 2
    try:
        return _run(name, rest)
    except Exception as error:
        frames = tracebacks.user_frames(error)
        if not frames and not isinstance(error, RecollectError):
            raise  # a bug of Recollect: Python prints the whole traceback
        _show_error(error, frames)
        is_users = not isinstance(error, RecollectError)
        return 1 if is_users or isinstance(error, FAILURES) else 2


def _show_error(error: Exception, frames: str) -> None:
    """Print the frames of the user's code, if it raised the error, and the message."""
    if frames:
        print(frames, file=sys.stderr)
    tell(f"error: {tracebacks.one_line(error) if frames else error}", sys.stderr)
    for note in getattr(error, "__notes__", []):
        if "\n" not in note:  # the traceback of another process is in the file
            tell(note, sys.stderr)
    if (file := tracebacks.kept_in(error)) is not None:
        tell(f"the whole traceback is in {file}", sys.stderr)


def _run(name: str, words: list[str]) -> int:
    command = import_module(f"recollect.cli.{name}")
    own = words  # without --import, which commands without settings do not have
    if any(word.startswith(("--import", "--config")) for word in words):
        from recollect.config.flags import import_named

        own = import_named(words)
    parser = argparse.ArgumentParser(
        prog=f"recollect {name}", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.configure(parser)
    if parser.description is not None:  # examples keep their lines, prose fits the terminal
        width = min(shutil.get_terminal_size().columns, 100)
        parser.description = textwrap.fill(parser.description, width, break_on_hyphens=False)
    rest, flags = own, []
    if getattr(command, "TAKES_CONFIG", False):
        from recollect.config.flags import split_argv

        if getattr(command, "SETTINGS_IN_HELP", False):
            from recollect.cli.help import print_help

            if print_help(parser, words, refused=getattr(command, "REFUSED", ())):
                return 0
        rest, flags = split_argv(words, parser._option_string_actions)
    try:
        args = parser.parse_args(rest)
    except SystemExit as stop:  # argparse has printed the reason
        return int(stop.code or 0)
    args.command = ["recollect", name, *words]
    with contextlib.suppress(Exception):  # if torch is broken, the command reports it
        import_module("torch")
    interrupts.raise_again()
    is_for_programs = getattr(args, "json", False) in (True, "-") or getattr(args, "display", None) == "json"
    with json_output.for_programs() if is_for_programs else contextlib.nullcontext(), warnings_once.once():
        return command.run(args, flags)


def tell(text: str, file: TextIO) -> None:
    """Print for people: wrapped between words on a terminal, and not wrapped elsewhere."""
    if file.isatty():
        width = shutil.get_terminal_size().columns
        wrapper = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
        text = "\n".join(wrapper.fill(line) for line in text.split("\n"))
    print(text, file=file, flush=True)


def print_json(value: Any, indent: int | None = None) -> None:
    """Print for programs."""
    print(json.dumps(value, indent=indent), file=json_output.results(), flush=True)


def _print_help() -> None:
    from recollect.cli.help_page import Page

    page = Page.readable()
    page.line("Recollect", " trains agents that remember, and proves that the memory is right.", "bold")
    page.line("\n  recollect train delayed-cue                  a built-in memory task")
    page.line("  recollect train CartPole-v1 --core gru       any Gymnasium env")
    page.line("  recollect train my_module:MyEnv --steps 1m   your own\n")
    for name, description in COMMANDS.items():
        page.row(f"  {name}", description, column=12, style="bold")
    page.line("\nMore about a command: recollect COMMAND --help")
