"""``recollect cores [NAME]``: the kinds of memory, and the size of each."""

from __future__ import annotations

import argparse
import json
import re
from importlib import import_module
from typing import Any

from recollect.base import output
from recollect.base.numbers import byte_count
from recollect.cli import catalogue
from recollect.cli.catalogue import Lines
from recollect.config.core_specs import PRESETS, core_config, known, name_of, widened
from recollect.config.cores import CoreConfig
from recollect.config.fields import fields_of
from recollect.errors import ConfigError


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "List the cores, which carry an agent's memory from step to step, with the number of their\n"
        "weights and the bytes of state per row (one agent in one env).\n"
        "With NAME: its equations, its settings, and the parts of its state."
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
    parser.add_argument("--json", action="store_true", help="the figures for programs")


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
        print(json.dumps(sizes, indent=2), file=output.results())
    elif args.name is None:
        catalogue.show(_table(sizes, args.input_size))
    else:
        catalogue.show(_story(args.name, configs[args.name], sizes[args.name], args.input_size))
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


def _table(sizes: dict[str, Any], input_size: int) -> Lines:
    yield f"{'core':<12}{'weights':>10}{'state':>11}   what it is", "dim"
    for name, size in sizes.items():
        head = f"{name:<12}{size['weights']:>10,}{byte_count(size['state_bytes']):>11}   "
        yield from catalogue.row(head, _what(name))
    yield "", None
    yield f"state: bytes that one row carries from step to step. Sizes are for {input_size} features.", None
    yield "recollect cores NAME tells more; train with --core NAME, settings as --core.hidden 256.", None


def _what(name: str) -> str:
    """The first sentence about the core; for a preset, its settings."""
    if name not in PRESETS:
        text = " ".join(_docstring(core_config(name)).split("\n\n")[0].split())
        return re.split(r"(?<!al)\. ", text)[0].rstrip(".")  # not at "et al. "
    config = PRESETS[name]
    own = {f.name: f.default for f in fields_of(config) if f.default != getattr(type(config)(), f.name)}
    words = ", ".join(f"{field} {' and '.join(map(str, value))}" for field, value in own.items())
    return f"A preset: {name_of(config)} with {words}"


def _docstring(config: CoreConfig) -> str:
    return catalogue.docstring(import_module(config.code.partition(":")[0]))


def _story(name: str, config: Any, size: dict[str, Any], input_size: int) -> Lines:
    yield name, "bold"
    yield from ((line, None) for line in _docstring(config).split("\n"))
    yield from catalogue.title("Settings")
    yield from catalogue.settings("core", fields_of(config))
    yield from catalogue.title(f"Size, for {input_size} features")
    yield f"  {size['weights']:,} weights; {size['output_size']} output features", None
    yield f"  {byte_count(size['state_bytes'])} of state per row" + (":" if size["state"] else ""), None
    for leaf, (shape, dtype) in size["state"].items():
        yield f"    {leaf:<16}{dtype} {shape}", None
    yield from catalogue.title("Train with it")
    yield f"  recollect train delayed-cue --core {name}", None
    yield f'  python: rc.train("delayed-cue", core="{name}")', None
