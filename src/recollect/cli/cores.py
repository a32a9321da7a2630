"""``recollect cores [NAME]``: the kinds of memory, and the size of each."""

from __future__ import annotations

import argparse
import inspect
import re
from importlib import import_module
from typing import Any

from recollect.base.formatting import byte_count
from recollect.base.parts import part_of
from recollect.cli import print_json
from recollect.cli.help import core_rows
from recollect.cli.help_page import Page
from recollect.config.core_choice import PRESETS, core_config, known, name_of, widened
from recollect.config.cores import CoreConfig
from recollect.config.fields import fields_of
from recollect.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "List the cores, which carry an agent's memory from step to step, with the number of their weights "
        "and the bytes of state per row (one agent in one env). With NAME: its equations, its settings, "
        "and the parts of its state."
    )
    parser.epilog = (
        "examples:\n  recollect cores\n  recollect cores mamba\n  recollect cores --hidden 256 --json"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a core, such as mamba, or a preset of one")
    parser.add_argument(
        "--hidden", type=int, metavar="N", help="width of every core that has one (default: 128)"
    )
    parser.add_argument(
        "--input-size", type=int, default=64, metavar="N", help="input features (default: 64)"
    )
    parser.add_argument("--json", action="store_true", help="the sizes as JSON")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Print the table, or one core."""
    for name in ("hidden", "input_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: it must be at least 1")
    names = list(known) if args.name is None else [args.name]
    configs = {name: widened(core_config(name), args.hidden) for name in names}
    sizes = {name: measure(config, args.input_size) for name, config in configs.items()}
    if args.json:
        print_json(sizes, indent=2)
    elif args.name is None:
        _print_table(Page.readable(), sizes, args.input_size)
    else:
        _print_core(Page.readable(), args.name, configs[args.name], sizes[args.name], args.input_size)
    return 0


def measure(config: Any, input_size: int) -> dict[str, Any]:
    """Weights, bytes of state per row, output size, and the leaves of the state, of a core."""
    from recollect.base import tree
    from recollect.cores import make_core

    core = make_core(config, input_size)
    state = core.initial_state(1)
    return {
        "weights": sum(parameter.numel() for parameter in core.parameters()),
        "state_bytes": tree.size_bytes(state),
        "output_size": core.output_size,
        "state": {
            name or "state": [list(leaf.shape[1:]), str(leaf.dtype).removeprefix("torch.")]
            for name, leaf in tree.named_leaves(state)
        },
    }


def _print_table(page: Page, sizes: dict[str, Any], input_size: int) -> None:
    page.line(f"{'core':<12}{'weights':>10}{'state':>11}   description", style="dim")
    for name, size in sizes.items():
        head = f"{name:<12}{size['weights']:>10,}{byte_count(size['state_bytes']):>11}   "
        page.row(head, _headline(name))
    page.line(f"\nstate: bytes per row, carried from step to step. Sizes are for {input_size} features.")
    page.print("More: recollect cores NAME. Train: --core NAME, its settings such as --core.hidden 256.")


def _headline(name: str) -> str:
    """The first sentence about the core; for a preset, its settings."""
    if name not in PRESETS:
        text = " ".join(_docstring(core_config(name)).split("\n\n")[0].split())
        return re.split(r"(?<!al)\. ", text)[0].rstrip(".")  # not at "et al. "
    config = PRESETS[name]
    own = {f.name: f.default for f in fields_of(config) if f.default != getattr(type(config)(), f.name)}
    words = ", ".join(f"{field} {' and '.join(map(str, value))}" for field, value in own.items())
    return f"A preset: {name_of(config)} with {words}"


def _docstring(config: CoreConfig) -> str:
    """The docstring of a built-in core's module, or of an own core, without markup."""
    part = part_of("core", config)
    code = part.load() if part and part.is_own else import_module(config.code.partition(":")[0])
    return inspect.cleandoc(code.__doc__ or "").replace("``", "'")


def _print_core(page: Page, name: str, config: Any, size: dict[str, Any], input_size: int) -> None:
    page.line(name, style="bold")
    page.line(_docstring(config))
    page.title("\nSettings")
    page.flags(core_rows(config))
    page.title(f"\nSize, for {input_size} features")
    page.line(f"  {size['weights']:,} weights; {size['output_size']} output features")
    page.line(f"  {byte_count(size['state_bytes'])} of state per row" + (":" if size["state"] else ""))
    for leaf, (shape, dtype) in size["state"].items():
        page.line(f"    {leaf:<16}{dtype} {shape}")
    page.title("\nTrain with it")
    page.line(f"  recollect train delayed-cue --core {name}")
    page.line(f'  python: rc.train("delayed-cue", core="{name}")')
