"""Serving acts with one torch thread, and leaves torch's number of threads as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting.session import Session
from recollect.base import row_threads
from recollect.base.types import Tree
from recollect.policy.policy import Policy
from tests.support.agents import small_agent
from tests.support.helpers import TensorWorld


class Watched(Policy):
    """A policy that calls ``watch`` in the middle of every acting step."""

    watch: Callable[[], Any]

    def to_env(self, action: Tree) -> Tree:
        self.watch()
        return super().to_env(action)


def watched(watch: Callable[[], Any]) -> Watched:
    env = TensorWorld(4)
    policy = Watched(env.observation_space, env.action_space)
    policy.watch = watch
    return policy


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def in_new_thread(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout=60)


def observations(rows: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(rows, 3)).astype(np.float32)


@pytest.mark.parametrize("call", ["act", "predict"])
@pytest.mark.parametrize(
    ("rows", "expected"), [(1, 1), (row_threads.MANY_ROWS - 1, 1), (row_threads.MANY_ROWS, 3)]
)
def test_few_rows_are_served_with_one_thread(call: str, rows: int, expected: int):
    """Many small operations in several threads wait for each other on busy cores, 48 ms instead of 0.5."""
    seen: list[int] = []
    policy = watched(lambda: seen.append(torch.get_num_threads()))
    with torch_threads(3):
        if call == "act":
            Session(policy, rows).act(observations(rows))
        else:
            rc.Agent(policy, rc.TrainConfig(), None).predict(observations(rows), episode_start=True)
        assert torch.get_num_threads() == 3, "restored"
    assert seen == [expected]


def test_the_number_is_restored_after_an_error():
    def fail() -> None:
        raise RuntimeError("from the policy")

    with torch_threads(3):
        with pytest.raises(RuntimeError, match="from the policy"):
            Session(watched(fail), 1).act(observations(1))
        assert torch.get_num_threads() == 3


def test_threads_that_serve_at_once_leave_the_default():
    """A thread that is new to torch starts to serve while another one serves, and ends after it."""
    inside, both_inside, early_done = threading.Event(), threading.Event(), threading.Event()
    seen: list[int] = []

    def serve(during: Callable[[], Any]) -> None:
        Session(watched(during), 1).act(observations(1))
        seen.append(torch.get_num_threads())

    def early() -> None:
        serve(lambda: (inside.set(), both_inside.wait(60)))
        early_done.set()

    def late() -> None:
        inside.wait(60)
        serve(lambda: (both_inside.set(), early_done.wait(60)))

    with torch_threads(3):
        with ThreadPoolExecutor(2) as pool:
            for served in [pool.submit(early), pool.submit(late)]:
                served.result(timeout=60)
        assert seen[0] == 3, "the thread that knew torch before"
        assert torch.get_num_threads() == 3
        assert in_new_thread(torch.get_num_threads) == 3, "the default of threads to come"


def test_served_actions_do_not_depend_on_the_caller_s_threads():
    """Whether the caller has 1 thread or 3: the same actions and the same memory, bit for bit."""
    agent, found = small_agent(), []
    for count in (1, 3):
        with torch_threads(count):
            session = agent.session(num_envs=5)
            actions = [session.act(obs).tolist() for obs in observations(30).reshape(6, 5, 3)]
            found.append((actions, session.get_memory()["state"]))
    assert found[0][0] == found[1][0]
    torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=0)
