"""Bugs of the Triton kernels of the mech arena."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tests.mutants.mutant import Mutant
from tests.support import interpreted
from tests.tasks.mech.test_fused import check_kernels


def a_decision() -> None:
    """Of one slot with ten mechs a side."""
    with pytest.MonkeyPatch.context() as patch:
        interpreted.on_cpu(patch)
        check_kernels(10, "partial", starts=(0, 3), steps=1, slots=1, monkeypatch=patch)


def bug(name: str, kernel: str, function: str, old: str, new: str) -> Mutant:
    from recollect.tasks.mech import fused_decision, fused_parts, fused_sensing

    modules = {"decision": fused_decision, "parts": fused_parts, "sensing": fused_sensing}
    return Mutant(name, a_decision, ((modules[kernel], function, old, new),), by="assert torch.equal(value")


BUGS = (
    ("one simulation step too few", "decision", "decide", "in range(SUBSTEPS)", "in range(SUBSTEPS - 1)"),
    ("those who are down turn", "decision", "decide", "turn * active.to(tl.float32)", "turn"),
    ("mechs walk through each other", "decision", "decide", "tl.where(stays, x, to_x)", "to_x"),
    (
        "launches take the places of shots",
        "decision",
        "decide",
        "+ p) > 0) & (left <= 0)",
        "+ p) > 0)",
    ),
    ("a salvo in place of a missile", "decision", "decide", "(((free_mounts >> mount) & 1) == 0) & ", ""),
    (
        "hits of lasers from behind count as any",
        "decision",
        "decide",
        "* tl.where(behind, REAR_FACTOR, 1.0)",
        "",
    ),
    ("shots hit friends", "decision", "decide", "can = enemy & alive[None, :]", "can = alive[None, :]"),
    (
        "splash reaches the one that is hit",
        "decision",
        "decide",
        "points[:, None], taken",
        "2 * taken, taken",
    ),
    ("kills are not counted", "decision", "decide", "& died[None, :]).to", "& ~alive[None, :]).to"),
    ("heat is lost before it is gained", "decision", "decide", "heat = heat + tl.sum(heated, 0)", "pass"),
    ("backward is as fast as ahead", "decision", "_walk", "forward * BACKWARD", "forward"),
    (
        "the ground of another column",
        "parts",
        "ground",
        "along(y) * SIDE + along(x)",
        "along(x) * SIDE + along(y)",
    ),
    ("smoke does not hide", "sensing", "_clear", "if (left > 0) & (left <= SMOKE_LASTS):", "if left < 0:"),
    ("smoke hides as a shell", "sensing", "_clear", "(left > 0) & (left <= SMOKE_LASTS)", "left > 0"),
    ("jammers of friends jam", "sensing", "sense", "jammed = anywhere(enemy &", "jammed = anywhere(friend &"),
    (
        "contacts are not sorted",
        "sensing",
        "sense",
        "sort == 0, square,",
        "sort == 0, square * 0.0,",
    ),
    ("a mech is its own contact", "sensing", "sense", "& (lane[:, None] != lane[None, :])", ""),
)
MECH_KERNELS = (
    [bug(*one) for one in BUGS] if find_spec("triton") is not None and not torch.cuda.is_available() else []
)
