"""``recollect doctor``: the hardware, software and known problems of this machine."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from recollect.base.formatting import digits
from recollect.cli import print_json

if TYPE_CHECKING:
    from recollect.doctor import Diagnosis
    from recollect.doctor.records import Cpu, Memory, Speed

LABEL = 11
"""Width of the first column."""
Row = tuple[str, str, str]
"""Label, text and style."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Examine this machine: versions, cores, memory, GPUs, optional packages, known problems; and train a "
        "tiny agent for about 3 seconds to measure the speed. With --env, measure the runtimes with that env "
        "and print the fastest."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect doctor\n"
        "  recollect doctor --env CartPole-v1  the fastest runtime, in half a minute\n"
        "  recollect doctor --quick            measure nothing\n"
        "  recollect doctor --json             for a bug report, or for programs\n"
        "exit code: 0 if training works here, 1 if a requirement is missing or broken,\n"
        "2 for a wrong call"
    )
    parser.add_argument("--json", action="store_true", help="all results as one JSON object")
    measured = parser.add_mutually_exclusive_group()
    measured.add_argument("--quick", action="store_true", help="do not measure")
    measured.add_argument("--env", help="measure with this env: a task, a Gymnasium id, or module:Env")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Examine the machine, and print the results."""
    from recollect.doctor import examine

    console = Console(highlight=False)
    time = "" if args.quick else "; about 6 seconds" if args.env is None else "; about half a minute"
    with nullcontext() if args.json else console.status("examining this machine" + time):
        found = examine(quick=args.quick, env=args.env)
    if args.json:
        print_json(found.to_json(), indent=2)
        return 1 if found.faults else 0
    grid = Table.grid(padding=(0, 1))
    grid.add_column(width=LABEL, style="bold")
    grid.add_column(overflow="fold")
    for label, text, style in _lines(found):
        grid.add_row(label, Text(text, style))
    console.print(grid)
    return 1 if found.faults else 0


def _lines(found: Diagnosis) -> Iterator[Row]:
    software = found.software
    commit = f", commit {software.commit}" if software.commit else ""
    yield "Recollect", f"{software.recollect or 'unknown version'}{commit}", ""
    cuda = f"CUDA {software.cuda}" if software.cuda else "CPU build"
    torch = f"torch {software.torch} ({cuda})" if software.torch else "no torch"
    yield "Python", f"{software.python}, {torch}, Gymnasium {software.gymnasium}, NumPy {software.numpy}", ""
    yield "system", software.system, ""
    yield "CPU", _cpu(found.cpu), ""
    yield "memory", _memory(found.memory), ""
    yield "open files", "no limit" if found.files is None else f"{found.files:,} per process", ""
    for folder in found.folders:
        state = "" if folder.is_writable else ", cannot be written to"
        yield "disk", f"{folder.path}: {_size(folder.free)} free{state}", ""
    if not found.gpus:
        yield "GPU", "none that torch can use", ""
    for gpu in found.gpus:
        bf16 = "bf16" if gpu.bf16 else "no bf16"
        free = f", {_size(gpu.free)} free" if gpu.free is not None else ""
        yield "GPU", f"{gpu.name}, {_size(gpu.memory)}{free}, capability {gpu.capability}, {bf16}", ""
    if found.driver:
        yield "", f"NVIDIA driver {found.driver}", ""
    terminal = found.terminal
    kind = "a terminal" if terminal.is_terminal else "no terminal (a pipe or a file)"
    letters = "Unicode" if terminal.unicode else "no Unicode"
    colours = f"{terminal.colours} colours" if terminal.colours else "no colours"
    yield "output", f"{kind}, {terminal.width} columns, {colours}, {letters}", ""
    yield from _extras(found)
    if (speed := found.speed) is not None:
        yield "speed", f"{_rate(speed)} ({speed.updates} updates): {_shares(speed)}", ""
    for label, speed in zip(["tried"] + [""] * len(found.tried), found.tried):
        yield label, f"{_rate(speed, 8)}, {speed.flags or f'one process: {_shares(speed)} of the time'}", ""
    choice = found.choice
    best = f"--device {choice.device}, {choice.threads} threads, runtime {choice.runtime}"
    yield "best here", f"{best}; {choice.flags}" if choice.flags else best, ""
    for case in choice.cases:
        yield "", f"{case.when}: {case.flags}", ""
        yield "", f"  {case.why}", "dim"
    for fault in found.faults:
        yield "broken", fault, "red"
    for trap in found.traps:
        yield "trap", trap, "yellow"
    if not found.faults and not found.traps:
        yield "traps", "none found", "green"


def _extras(found: Diagnosis) -> Iterator[Row]:
    installed = []
    for extra in found.extras:
        if extra.is_installed:
            versions = list(extra.packages.values())
            installed.append(f"{extra.name} {versions[0]}" if len(versions) == 1 else extra.name)
    yield "extras", f"installed: {', '.join(installed) or 'none'}", ""
    for extra in found.extras:
        if not extra.is_installed:
            missing = [package for package, version in extra.packages.items() if version is None]
            part = f" (lacks {', '.join(missing)})" if len(missing) < len(extra.packages) else ""
            yield "", f"{extra.name}, for {extra.purpose}{part}: {extra.command}", "dim"


def _cpu(cpu: Cpu) -> str:
    quota = "" if cpu.quota is None else f", a quota of {cpu.quota:g}"
    usable = "all usable" if cpu.usable == cpu.cores else f"{cpu.usable} usable"
    parts = {"MKL": cpu.mkl, "oneDNN": cpu.onednn}
    libraries = [name if there else f"no {name}" for name, there in parts.items() if there is not None]
    words = [
        cpu.name or "unknown",
        f"{cpu.cores} cores, {usable}{quota}",
        f"torch: {cpu.threads} threads, {cpu.capability}" if cpu.threads else "",
        ", ".join(libraries),
        f"bf16 {cpu.bf16}" if cpu.bf16 else "",
        f"load {cpu.load:.1f}" if cpu.load is not None else "",
    ]
    return "; ".join(filter(None, words))


def _memory(memory: Memory) -> str:
    limit = "" if memory.limit is None else f", the container's limit {_size(memory.limit)}"
    shared = "no /dev/shm"
    if memory.shared is not None:
        shared = f"/dev/shm {_size(memory.shared_free)} of {_size(memory.shared)} free"
    return f"{_size(memory.available)} of {_size(memory.total)} free{limit}; {shared}"


def _rate(speed: Speed, width: int = 0) -> str:
    return f"{speed.steps_per_second:>{width},.0f} steps/s training {speed.task}"


def _shares(speed: Speed) -> str:
    return f"env {speed.env:.0%}, acting {speed.act:.0%}, learning {speed.learn:.0%}"


def _size(count: int | None) -> str:
    return "?" if count is None else f"{digits(count / 2**30)} GiB"
