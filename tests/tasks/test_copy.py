"""Copy, beside its slow truth and by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recollect.errors import ConfigError
from recollect.tasks import make_task
from tests.reference.sequences import copy_script, one_hot
from tests.support.task_scripts import constant, follows
from tests.support.task_worlds import Choice, returns_of


@pytest.mark.parametrize(("length", "delay"), [(3, 10), (1, 0), (4, 0), (1, 3), (10, 2)])
def test_every_step_is_that_of_the_reference(length: int, delay: int) -> None:
    task = make_task("copy", 6, length=length, delay=delay)
    points = follows(task, lambda stream: copy_script(stream, length, delay), 1 / length)
    assert points >= 3 * 3 * length


def test_an_episode_by_hand() -> None:
    task = make_task("copy", 1, length=2, delay=1)
    task.reset(0)
    task.restore(task.snapshot() | {"sheet": torch.tensor([[6, 1, 8, 9]])})
    seen, rewards, ends = [task.restore(task.snapshot())[0].tolist()], [], []
    for action in (6, 6, 6, 6, 1):
        step = task.step(torch.tensor([action]))
        seen.append(step.final_obs[0].tolist())
        rewards.append(float(step.reward))
        ends.append(bool(step.terminated))
    blank, flag = one_hot(9), one_hot(9, 8)
    assert seen == [one_hot(9, 6), one_hot(9, 1), blank, flag, flag, blank]
    assert rewards == [0.0, 0.0, 0.0, 0.5, 0.5]
    assert ends == [False] * 4 + [True]


def test_sizes() -> None:
    for size, length, delay in (("easy", 3, 10), ("medium", 5, 50), ("hard", 10, 100)):
        task = make_task("copy", 1, size=size)
        assert (task.max_episode_steps, task.horizon) == (2 * length + delay, length + delay)
    with pytest.raises(ConfigError, match="length is 0"):
        make_task("copy", 1, length=0)
    with pytest.raises(ConfigError, match="delay is -1"):
        make_task("copy", 1, delay=-1)


def copying(length: int) -> Choice:
    """Reads, then writes in the same order."""
    read: list[Tensor] = []
    written = [0]

    def choose(obs: Tensor, first: Tensor) -> Tensor:
        if len(read) < length:
            read.append(obs[:, :8].argmax(1))
        if obs[0, 8] == 0:
            return torch.zeros(len(obs), dtype=torch.int64)
        written[0] += 1
        return read[written[0] - 1]

    return choose


@pytest.mark.parametrize(("size", "length"), [("easy", 3), ("medium", 5), ("hard", 10)])
def test_memory_reaches_the_maximum(size: str, length: int) -> None:
    task = make_task("copy", 8, size=size)
    torch.testing.assert_close(returns_of(task, copying(length)), torch.ones(8))


def test_without_memory_an_eighth() -> None:
    """All steps under the flag look the same, and every symbol is as likely as any other in each of them."""
    task = make_task("copy", 8192)
    for action in (0, 7):
        returns = returns_of(task, constant(action), seed=action)
        assert task.memoryless_return == 1 / 8
        assert abs(float(returns.mean()) - 1 / 8) < 4.5 * float(returns.std()) / 8192**0.5


def test_symbols_are_independent() -> None:
    """Every pair of symbols is as likely as any other at the first two places."""
    task = make_task("copy", 64_000, length=2)
    task.reset(0)
    symbols = task.snapshot()["sheet"]
    counts = (symbols[:, 0] * 8 + symbols[:, 1]).bincount(minlength=64)
    assert len(counts) == 64
    assert counts.min() > 1000 - 5 * 1000**0.5
    assert counts.max() < 1000 + 5 * 1000**0.5


def test_in_words() -> None:
    task = make_task("copy", 1, length=1, delay=1)
    sight = task.reset(0)[0].numpy()
    assert task.describe(sight) == f"symbol {sight.argmax()}"
    words = [task.describe(task.step(torch.tensor([0])).final_obs[0].numpy()) for _ in range(3)]
    assert words == ["blank", "output", "blank"]
