"""Associative recall, beside its slow truth and by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recollect.errors import ConfigError
from recollect.tasks import make_task
from tests.reference.sequences import one_hot, recall_script
from tests.support.task_scripts import constant, follows
from tests.support.task_worlds import Choice, returns_of

NAME = "associative-recall"


@pytest.mark.parametrize("pairs", [1, 3, 5, 10])
def test_every_step_is_that_of_the_reference(pairs: int) -> None:
    task = make_task(NAME, 6, pairs=pairs)
    points = follows(task, lambda stream: recall_script(stream, pairs), 1 / pairs)
    assert points >= 3 * 3 * pairs


def test_an_episode_by_hand() -> None:
    """Keys 3 and 0 of 4 with values 7 and 2; key 0 is asked for first."""
    task = make_task(NAME, 1, pairs=2)
    task.reset(0)
    sheet = torch.tensor([[3 * 8 + 7, 0 * 8 + 2, 32 + 0, 32 + 3, 36]])
    answer = torch.tensor([[8, 8, 2, 7]])
    task.restore(task.snapshot() | {"sheet": sheet, "answer": answer})
    seen, words, rewards = [task.restore(task.snapshot())[0].tolist()], [], []
    for action in (7, 2, 2, 2):
        words.append(task.describe(task.restore(task.snapshot())[0].numpy()))
        step = task.step(torch.tensor([action]))
        seen.append(step.final_obs[0].tolist())
        rewards.append(float(step.reward))
    assert seen == [
        one_hot(13, 3, 4 + 7),
        one_hot(13, 0, 4 + 2),
        one_hot(13, 0, 12),
        one_hot(13, 3, 12),
        one_hot(13),
    ]
    assert words == ["key 3: value 7", "key 0: value 2", "key 0?", "key 3?"]
    assert task.describe(step.final_obs[0].numpy()) == "blank"
    assert rewards == [0.0, 0.0, 0.5, 0.0]
    assert bool(step.terminated)


def test_sizes() -> None:
    for size, pairs in (("easy", 3), ("medium", 5), ("hard", 10)):
        task = make_task(NAME, 1, size=size)
        assert (task.max_episode_steps, task.horizon) == (2 * pairs, 2 * pairs - 1)
        assert task.observation_space.shape == (2 * pairs + 9,)
    with pytest.raises(ConfigError, match="pairs is 0"):
        make_task(NAME, 1, pairs=0)


def recalling() -> Choice:
    """Keeps a table from keys to values."""
    table: list[Tensor] = []

    def choose(obs: Tensor, first: Tensor) -> Tensor:
        key, value, query = obs[:, :-9], obs[:, -9:-1], obs[:, -1]
        shown = key.unsqueeze(2) * value.unsqueeze(1) * (1 - query).view(-1, 1, 1)
        table[:] = [table[0] + shown if table else shown]
        return (table[0] * key.unsqueeze(2)).sum(1).argmax(1)

    return choose


@pytest.mark.parametrize("size", ["easy", "medium", "hard"])
def test_memory_reaches_the_maximum(size: str) -> None:
    task = make_task(NAME, 32, size=size)
    torch.testing.assert_close(returns_of(task, recalling()), torch.ones(32))


def test_without_memory_an_eighth() -> None:
    """What a key was shown with does not depend on the key, nor on when it is asked for."""
    task = make_task(NAME, 8192)
    for choose in (constant(3), lambda obs, first: obs[:, :6].argmax(1)):
        returns = returns_of(task, choose)
        assert task.memoryless_return == 1 / 8
        assert abs(float(returns.mean()) - 1 / 8) < 4.5 * float(returns.std()) / 8192**0.5


def test_keys_differ_and_every_order_is_possible() -> None:
    """Two pairs: 4 x 3 choices of keys, two orders of the queries, all equally likely."""
    task = make_task(NAME, 24_000, pairs=2)
    task.reset(0)
    first, second, third, fourth, _ = task.snapshot()["sheet"].unbind(1)
    first, second, third, fourth = first // 8, second // 8, third - 32, fourth - 32
    assert (first != second).all()
    assert ((third == first) & (fourth == second) | (third == second) & (fourth == first)).all()
    counts = ((first * 4 + second) * 2 + (third == first)).bincount()
    counts = counts[counts > 0]
    assert len(counts) == 24
    assert counts.min() > 1000 - 5 * 1000**0.5
    assert counts.max() < 1000 + 5 * 1000**0.5
