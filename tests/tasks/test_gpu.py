"""The tasks on a GPU: the same streams as on the CPU, and capture in a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from recollect.tasks import make_task, random
from tests.support.recorded import recorded
from tests.support.task_worlds import NAMES, SMALL, random_actions, record, small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 120


def test_random_numbers_are_exactly_those_of_the_cpu() -> None:
    rows = torch.arange(100_000)
    words = random.bits(random.episode_keys(random.row_keys(9, rows), rows % 7), rows % 501)
    there = rows.cuda()
    others = random.bits(random.episode_keys(random.row_keys(9, there), there % 7), there % 501)
    assert torch.equal(words, others.cpu())
    assert torch.equal(random.uniform(words), random.uniform(others).cpu())
    assert torch.equal(random.integers(words, 832), random.integers(others, 832).cpu())


@pytest.mark.parametrize("name", NAMES)
def test_the_stream_is_that_of_the_cpu(name: str) -> None:
    """S003-26: exactly for the discrete tasks; sin and cos differ between devices in the last bits."""
    exact = not name.startswith("position-")
    here, there = small(name, 16), make_task(name, 16, "cuda", **SMALL[name])
    assert torch.equal(here.reset(4), there.reset(4).cpu()) or not exact
    actions = random_actions(here, STEPS)
    for action in actions:
        a, b = here.step(action), there.step(action.cuda())
        tolerance = {"rtol": 0.0, "atol": 0.0 if exact else 1e-5}
        assert torch.equal(a.first, b.first.cpu())
        assert torch.equal(a.terminated, b.terminated.cpu())
        assert torch.equal(a.truncated, b.truncated.cpu())
        torch.testing.assert_close(a.obs, b.obs.cpu(), **tolerance)
        torch.testing.assert_close(a.final_obs, b.final_obs.cpu(), **tolerance)
        torch.testing.assert_close(a.reward, b.reward.cpu(), rtol=0.0, atol=0.0 if exact else 1e-4)
        if not exact:
            there.restore(here.snapshot())  # compare step by step: differences grow over time


@pytest.mark.parametrize("name", NAMES)
def test_a_step_can_be_captured_in_a_cuda_graph(name: str) -> None:
    eager, captured = (make_task(name, 16, "cuda", **SMALL[name]) for _ in range(2))
    actions = random_actions(eager, STEPS).cuda()
    eager.reset(2)
    expected = record(eager, actions)

    captured.reset(0)
    action = actions[0].clone()
    graph, step = recorded(lambda: captured.step(action), calls=3)
    captured.reset(2)
    for given, (obs, first, reward, terminated, truncated, final_obs) in zip(actions, expected):
        action.copy_(given)
        graph.replay()
        assert torch.equal(step.obs, obs)
        assert torch.equal(step.first, first)
        assert torch.equal(step.reward, reward)
        assert torch.equal(step.terminated, terminated)
        assert torch.equal(step.truncated, truncated)
        assert torch.equal(step.final_obs, final_obs)
