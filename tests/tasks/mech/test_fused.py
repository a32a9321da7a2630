"""The Triton kernels of the mech arena, in Triton's interpreter, beside the program in torch."""

from __future__ import annotations

import pytest
import torch

from recollect.base import triton_support
from recollect.tasks.mech import MechArena
from recollect.tasks.mech.bot import MechBot
from tests.tasks.mech import scenes

pytestmark = pytest.mark.usefixtures("fused_on_cpu")


def same(one: MechArena, other: MechArena) -> None:
    state = other.snapshot()
    for name, value in one.snapshot().items():
        assert torch.equal(value, state[name]), name


def played(task: MechArena, action: scenes.Action, patch: pytest.MonkeyPatch, *, is_fused: bool) -> None:
    patch.setattr(triton_support, "_is_forced", is_fused)
    task.step(action)


@pytest.mark.parametrize("mechs", scenes.SIZES)
@pytest.mark.parametrize("sensing", ["partial", "full"])
def test_kernels_play_the_same_game(mechs: int, sensing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, from states of every kind, with resets in between."""
    plain, kernels = (scenes.arena(mechs, 3, limit=3, sensing=sensing) for _ in range(2))
    plain.reset(0)
    generator = torch.Generator().manual_seed(mechs)
    for start in range(3):
        scenes.plant(plain, start, 12.0 + 4 * mechs**0.5)
        kernels.restore(plain.snapshot())
        bot = MechBot(plain)
        for _ in range(5):
            action = scenes.mixed(plain, bot, generator)
            played(plain, action, monkeypatch, is_fused=False)
            played(kernels, action, monkeypatch, is_fused=True)
            same(plain, kernels)
