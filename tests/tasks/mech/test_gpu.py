"""The mech arena on a GPU: the same decisions as on the CPU, and capture in a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.tasks.mech.bot import MechBot
from tests.support.recorded import recorded
from tests.tasks.mech import scenes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("mechs", scenes.SIZES)
def test_decisions_are_those_of_the_cpu(mechs: int) -> None:
    """Bit for bit, over the course of games with resets: state, observations, rewards, and the bot."""
    here, there = scenes.arena(mechs, 8, limit=8), scenes.arena(mechs, 8, device="cuda", limit=8)
    assert torch.equal(here.reset(1)["vector"], there.reset(1)["vector"].cpu())
    generator, bots = torch.Generator().manual_seed(0), (MechBot(here), MechBot(there))
    for t in range(40):
        if t == 2:
            scenes.plant(here, 1, 20.0)
            there.restore({name: value.cuda() for name, value in here.snapshot().items()})
        scripted, other = (bot.play() for bot in bots)
        for name, part in scripted.items():
            assert torch.equal(part, other[name].cpu()), name
        action = scripted if t % 3 else scenes.at_random(here, generator)
        a, b = here.step(action), there.step(tree.map(lambda leaf: leaf.cuda(), action))
        for name, value in here.snapshot().items():
            assert torch.equal(value, there.snapshot()[name].cpu()), name
        for one, two in zip(tree.leaves((a.obs, a.final_obs)), tree.leaves((b.obs, b.final_obs))):
            assert torch.equal(one, two.cpu())
        for name in ("first", "reward", "terminated", "truncated", "valid"):
            assert torch.equal(getattr(a, name), getattr(b, name).cpu()), name


def test_a_captured_step_is_an_eager_one() -> None:
    """The step, and the bot's choice before it, in one CUDA graph."""
    eager, captured = (scenes.arena(5, 16, device="cuda", limit=8) for _ in range(2))
    bots = MechBot(eager), MechBot(captured)
    captured.reset(0)
    graph, step = recorded(lambda: captured.step(bots[1].play()), calls=3)
    eager.reset(2)
    captured.reset(2)
    for t in range(40):
        if t == 2:
            for task in (eager, captured):
                state = scenes.arena(5, 16, limit=8)
                state.reset(2)
                scenes.plant(state, 1, 20.0)
                task.restore({name: value.cuda() for name, value in state.snapshot().items()})
        expected = eager.step(bots[0].play())
        graph.replay()
        for one, two in zip(tree.leaves(expected.obs), tree.leaves(step.obs)):
            assert torch.equal(one, two)
        for name in ("first", "reward", "terminated", "truncated", "valid"):
            assert torch.equal(getattr(expected, name), getattr(step, name)), name
