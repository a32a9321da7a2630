"""``recollect cores [NAME]``: the kinds of memory, and what each one weighs."""

from __future__ import annotations

import argparse
import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from recollect.base import output

HELP = "the kinds of memory, their weights and the size of their state"

WIDTH = 80
"""Longer lines are not worth more than they cost to read."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "List the cores: what carries an agent's memory from step to step, how many weights each\n"
        "has and how many bytes it remembers for a row (one agent in one env).\n"
        "With NAME: what it computes, its settings, and the parts of its state."
    )
    parser.epilog = (
        "examples:\n  recollect cores\n  recollect cores mamba\n  recollect cores --hidden 256 --json"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="a core, such as mamba, or a preset of one")
    parser.add_argument(
        "--hidden", type=int, metavar="N", help="width of every core that has one (default: 128)"
    )
    parser.add_argument(
        "--input-size", type=int, default=64, metavar="N", help="features that come in (default: 64)"
    )
    parser.add_argument("--json", action="store_true", help="the figures for programs")


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Print the table, or one core."""
    from rich.console import Console

    from recollect.cores.make import core_config, known, widened
    from recollect.errors import ConfigError

    for name in ("hidden", "input_size"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: it must be at least 1")
    names = list(known) if args.name is None else [args.name]
    configs = {name: widened(core_config(name), args.hidden) for name in names}
    sizes = {name: measure(config, args.input_size) for name, config in configs.items()}
    if args.json:
        print(json.dumps(sizes, indent=2), file=output.results())
        return 0
    console = Console(highlight=False, soft_wrap=True)
    width = min(console.width, WIDTH)
    if args.name is None:
        lines = _table(sizes, args.input_size, width)
    else:
        lines = _story(args.name, configs[args.name], sizes[args.name], args.input_size, width)
    for line, style in lines:
        console.print(line, style=style, markup=False)
    return 0


def measure(config: Any, input_size: int) -> dict[str, Any]:
    """Weights, bytes of state for a row, output size, and the leaves of the state, of a core."""
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


def headline(config: Any) -> str:
    """What the core's module says that it is: the first sentence."""
    text = " ".join((inspect.getmodule(config).__doc__ or "").split("\n\n")[0].split())  # pyright: ignore
    return re.split(r"(?<!al)\. ", text)[0].rstrip(".")  # not at "et al. "


def _table(sizes: dict[str, Any], input_size: int, width: int) -> Iterator[tuple[str, str | None]]:
    from recollect.cores.make import core_config

    yield f"{'core':<12}{'weights':>10}{'state':>11}   what it is", "dim"
    for name, size in sizes.items():
        head = f"{name:<12}{size['weights']:>10,}{_bytes(size['state_bytes']):>11}   "
        words = textwrap.wrap(_what(name, core_config(name)), max(width - len(head), 24))
        yield head + words[0], None
        for word in words[1:]:
            yield " " * len(head) + word, None
    yield "", None
    yield f"state: what one row carries from step to step. Sizes are for {input_size} features.", None
    yield "recollect cores NAME tells more; train with --core NAME, settings as --core.hidden 256.", None


def _what(name: str, config: Any) -> str:
    from recollect.cores import PRESETS

    if name in PRESETS:
        return f"A preset: {_short(config)}"
    return headline(config)


def _short(config: Any) -> str:
    """The config without the fields that are as by default."""
    import dataclasses

    plain = type(config)()
    own = [f.name for f in dataclasses.fields(config) if getattr(config, f.name) != getattr(plain, f.name)]
    kind = type(config).__name__.removesuffix("Config").lower()
    return f"{kind} with " + ", ".join(
        f"{name} {' and '.join(map(str, getattr(config, name)))}" for name in own
    )


def _story(
    name: str, config: Any, size: dict[str, Any], input_size: int, width: int
) -> Iterator[tuple[str, str | None]]:
    from recollect.config import field_docs

    yield name, "bold"
    story = inspect.cleandoc(inspect.getmodule(config).__doc__ or "")  # pyright: ignore
    yield from ((line, None) for line in story.replace("``", "'").split("\n"))
    yield "", None
    yield "Settings", "bold"
    fields = field_docs.cores()[name].fields
    for field in fields:
        flag = f"--core.{field.name.replace('_', '-')}"
        yield f"  {flag} {_written(getattr(config, field.name))}", None
        for line in textwrap.wrap(field.doc, width - 6):
            yield f"      {line}", "dim"
    if not fields:
        yield "  none", None
    yield "", None
    yield f"Size, for {input_size} features", "bold"
    yield f"  {size['weights']:,} weights; {size['output_size']} features come out", None
    yield f"  {_bytes(size['state_bytes'])} of state for a row" + (":" if size["state"] else ""), None
    for leaf, (shape, dtype) in size["state"].items():
        yield f"    {leaf:<16}{dtype} {shape}", None
    yield "", None
    yield "Train with it", "bold"
    yield f"  recollect train delayed-cue --core {name}", None
    yield f'  python: rc.train("delayed-cue", core="{name}")', None


def _written(value: Any) -> str:
    """A value as a flag takes it."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


def _bytes(count: int) -> str:
    return f"{count:,} B" if count < 10_000 else f"{count / 1024:,.1f} KiB"
