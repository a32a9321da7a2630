"""The tasks on a GPU: the same streams as on the CPU, and capture in a CUDA graph."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.tasks import random
from tests.support.recorded import recorded
from tests.support.task_worlds import NAMES, copied, random_actions, record, same, small

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
    here, there = small(name, 16), small(name, 16, "cuda")
    assert same(here.reset(4), tree.to(there.reset(4), "cpu")) or not exact
    actions = random_actions(here, STEPS)
    for action in actions:
        a, b = copied(here.step(action)), tree.to(copied(there.step(tree.to(action, "cuda"))), "cpu")
        for part, value in a.items():
            tolerance = 0.0 if exact or value.dtype == torch.bool else 1e-4 if part == "reward" else 1e-5
            torch.testing.assert_close(value, b[part], rtol=0.0, atol=tolerance)
        if not exact:
            there.restore(here.snapshot())  # compare step by step: differences grow over time


@pytest.mark.parametrize("name", NAMES)
def test_a_step_can_be_captured_in_a_cuda_graph(name: str) -> None:
    eager, captured = (small(name, 16, "cuda") for _ in range(2))
    actions = [tree.to(action, "cuda") for action in random_actions(eager, STEPS)]
    eager.reset(2)
    expected = record(eager, actions)

    captured.reset(0)
    action = tree.clone(actions[0])
    graph, step = recorded(lambda: captured.step(action), calls=3)
    captured.reset(2)
    for given, want in zip(actions, expected):
        tree.copy_(action, given)
        graph.replay()
        assert same(copied(step), want)
