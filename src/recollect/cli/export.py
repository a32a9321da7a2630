"""``recollect export RUN``: write a file that acts without Recollect."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console

from recollect.cli import tell
from recollect.cli.shared import add_trust, trusted
from recollect.config.flags import parse_repeated

TAKES_CONFIG = True


def configure(parser: argparse.ArgumentParser) -> None:
    """The arguments."""
    parser.description = (
        "Write one acting step to a file. Its inputs are the observation, the state of the memory, and "
        "first; its outputs are the action, the value and the next state. It includes normalisation, resets "
        "and the scaling of actions; FILE.json beside it describes its use. Before the file is moved to its "
        "place, it is loaded and compared with the agent, step by step."
    )
    parser.epilog = (
        "examples:\n"
        "  recollect export runs/cue                  agent.onnx, for onnxruntime\n"
        "  recollect export runs/cue --format torch   agent.pt2, for torch.export.load\n"
        "  recollect export runs/cue --checkpoint last --out robot/brain.onnx\n"
        "  recollect export runs/pair                 agent/GROUP.onnx for each group\n"
        "  recollect export runs/pair --group hearer  agent/hearer.onnx only\n"
    )
    parser.add_argument("run", help="folder of the run, or of a saved agent")
    parser.add_argument(
        "--format", choices=("onnx", "torch"), default="onnx", help="format of the file (default: onnx)"
    )
    parser.add_argument(
        "--out",
        metavar="FILE",
        help="the file (default: agent.onnx or agent.pt2 in RUN); of several groups of agents the folder",
    )
    parser.add_argument(
        "--group", help="of several groups of agents, the one to export (default: a file for each)"
    )
    parser.add_argument("--checkpoint", help="of a run: best, last, or its env steps (default: best)")
    parser.add_argument(
        "--sample", action="store_true", help="the file samples actions, in place of the likeliest"
    )
    parser.add_argument("--no-check", action="store_true", help="do not compare the file with the agent")
    add_trust(parser)


def run(args: argparse.Namespace, flags: list[str]) -> int:
    """Export, and print the path."""
    from recollect import load
    from recollect.export.files import SUFFIXES, export_agent

    agent = load(args.run, checkpoint=args.checkpoint, **parse_repeated(flags), trust=args.trust)
    if args.trust:
        tell(trusted(args.run), sys.stderr)
    out, suffix = Path(args.run) / "agent", SUFFIXES[args.format]
    if args.group is not None:
        out = out / f"{args.group}{suffix}"
    elif not agent.groups:
        out = out.with_suffix(suffix)
    out = Path(args.out) if args.out else out
    console = Console(highlight=False)
    with console.status("exporting"):
        how = {"group": args.group, "deterministic": not args.sample, "check": not args.no_check}
        export_agent(agent, out, args.format, **how)
    checked = "not checked" if args.no_check else "checked against the agent, step by step"
    for file in [out / f"{name}{suffix}" for name in agent.groups] if out.is_dir() else [out]:
        console.print(
            f"{file} and {file.name}.json: the agent after {agent.steps:,} steps of training, {checked}",
            soft_wrap=True,
            markup=False,
        )
    return 0
