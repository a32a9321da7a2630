"""The Triton kernels of the mech arena, in Triton's interpreter, beside the program in torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from recollect.base import triton_support
from recollect.tasks.mech.bot import MechBot
from tests.tasks.mech import scenes


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def check_kernels(
    mechs: int,
    sensing: str,
    starts: tuple[int, ...] = (0, 1),
    steps: int = 3,
    slots: int = 3,
    *,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, kernels = (scenes.arena(mechs, slots, limit=3, sensing=sensing) for _ in range(2))
    plain.reset(0)
    for start in starts:
        generator = torch.Generator().manual_seed(mechs)
        scenes.plant(plain, start, 12.0 + 4 * mechs**0.5)
        kernels.restore(plain.snapshot())
        bot = MechBot(plain)
        for _ in range(steps):
            action = scenes.mixed(plain, bot, generator)
            found = [dict[str, Tensor](), dict[str, Tensor]()]
            for task, is_fused in ((plain, False), (kernels, True)):
                monkeypatch.setattr(triton_support, "_is_forced", is_fused)
                reward = task.step(action).reward.clone()
                found[is_fused] = task.snapshot() | {"reward": reward}
            same(*found)


@pytest.mark.usefixtures("fused_on_cpu")
@pytest.mark.parametrize(
    ("mechs", "sensing"),
    [(1, "partial"), (10, "partial"), (3, "full")],
)
def test_kernels_play_the_same_game(mechs: int, sensing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, from states of every kind. On a GPU, test_gpu.py has the other sizes and longer games."""
    check_kernels(mechs, sensing, monkeypatch=monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("fused_on_cpu")
@pytest.mark.parametrize("mechs", scenes.SIZES)
def test_kernels_play_longer_games(mechs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With resets in between."""
    check_kernels(mechs, "partial", (0, 1, 2), 5, monkeypatch=monkeypatch)


def test_kernels_compile_without_a_gpu() -> None:
    """For an H100 or H200: the interpreter takes more than the compiler does."""
    pytest.importorskip("triton.backends.nvidia")
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(Path(__file__).with_name("compiled.py"))]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
