"""Replay on a GPU against itself on the CPU."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.experience.replay import Replay
from tests.support.replay_streams import Streams, contents, make

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def windows(replay: Replay) -> list[torch.Tensor]:
    """All windows and their weights, on the CPU."""
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    return [leaf.cpu() for leaf in (*contents(replay.read(slots)), replay.tree.weights[slots])]


@pytest.mark.parametrize("stores_states", [True, False], ids=["stored", "rebuilt"])
def test_a_replay_on_a_gpu_holds_the_same_windows(stores_states):
    """S003-26: after every rollout and every update, from rollouts on either device."""
    size = {"rows": 5, "capacity": 60, "priority_exponent": 0.7, "stores_states": stores_states}
    (cpu, _), (gpu, _) = make(**size), make(**size, device="cuda")
    streams, generator = Streams(5, 3, ends=0.1, dead=0.2), torch.Generator().manual_seed(0)
    for i in range(12):
        rollout = streams.rollout(13, (0, 4, 8))
        cpu.add(rollout)
        gpu.add(rollout.to("cuda") if i % 2 else rollout)
        for ours, theirs in zip(windows(gpu), windows(cpu), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)
        drawn = cpu.sample(16, generator)
        priority = torch.rand(16, generator=generator)
        cpu.update(drawn.entries, priority)
        gpu.update(drawn.entries.cuda(), priority.cuda())
    assert gpu.windows == cpu.windows > 0
    torch.testing.assert_close(gpu.tree.total.cpu(), cpu.tree.total, rtol=1e-12, atol=0)


def test_draws_on_a_gpu_follow_the_weights():
    """Weight 0 is never drawn; the others by chi-square, at five standard deviations."""
    replay, _ = make(rows=4, capacity=60, stores_states=False, stride=1, priority_exponent=1.0, device="cuda")
    streams = Streams(4, 3, ends=0.1)
    for _ in range(8):
        replay.add(streams.rollout(13))
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    entries = replay.read(slots).entries
    weight = torch.arange(len(entries), device="cuda", dtype=torch.float64) % 4
    replay.update(entries, weight)
    draws = 100_000
    drawn = replay.sample(draws, torch.Generator("cuda").manual_seed(0))
    counts = (drawn.entries.unsqueeze(1) == entries).long().argmax(1).bincount(minlength=len(entries))
    assert (counts[weight == 0] == 0).all()
    expected = draws * weight / weight.sum()
    likely = weight > 0
    chi_square = ((counts - expected) ** 2 / expected)[likely].sum()
    freedom = int(likely.sum()) - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_a_saved_replay_moves_between_devices():
    (cpu, _), (gpu, _) = make(rows=3), make(rows=3, device="cuda")
    streams = Streams(3, 3)
    for _ in range(4):
        cpu.add(streams.rollout(13, (0, 4, 8)))
    gpu.load_state_dict(cpu.state_dict())
    for ours, theirs in zip(tree.leaves(tuple(windows(gpu))), tree.leaves(tuple(windows(cpu))), strict=True):
        assert torch.equal(ours, theirs)
