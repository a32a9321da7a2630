"""CartPole and Pendulum, step by step beside Gymnasium's own envs from the same states."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from recollect.tasks import make_task
from tests.support.task_worlds import random_actions


def test_every_cartpole_step_equals_gymnasium() -> None:
    rows = 24
    task = make_task("position-cartpole", rows)
    task.reset(0)
    original = gym.make("CartPole-v1").unwrapped
    original.reset()
    ended = 0
    for action in random_actions(task, 150):
        before = task.snapshot()
        step = task.step(action)
        for row in range(rows):
            (x, theta), (x_speed, theta_speed) = before["place"][row], before["speed"][row]
            original.state = np.array([x, x_speed, theta, theta_speed], np.float64)  # pyright: ignore
            original.steps_beyond_terminated = None  # pyright: ignore
            theirs, reward, terminated, _, _ = original.step(int(action[row]))
            assert step.final_obs[row].numpy() == pytest.approx(theirs[[0, 2]], abs=1e-6)
            assert float(step.reward[row]) == reward == 1.0
            assert bool(step.terminated[row]) == terminated
            if not terminated:
                assert task.speed[row].numpy() == pytest.approx(theirs[[1, 3]], abs=1e-5)
            ended += terminated
    assert ended > 50


@pytest.mark.parametrize(
    ("place", "speed", "terminated"),
    [
        ([2.3995, 0.0], [0.02, 0.0], False),
        ([2.3995, 0.0], [0.04, 0.0], True),
        ([-2.3995, 0.0], [-0.04, 0.0], True),
        ([0.0, 0.2094], [0.0, 0.0], False),
        ([0.0, 0.2094], [0.0, 0.01], True),
        ([0.0, -0.2094], [0.0, -0.01], True),
    ],
)
def test_cartpole_thresholds(place: list[float], speed: list[float], terminated: bool) -> None:
    task = make_task("position-cartpole", 1)
    task.reset(0)
    task.restore(task.snapshot() | {"place": torch.tensor([place]), "speed": torch.tensor([speed])})
    step = task.step(torch.tensor([1]))
    assert bool(step.terminated) is terminated
    assert not step.truncated


def test_cartpole_start_and_time_limit() -> None:
    """S000-1: step 500 truncates; who falls in it terminates instead."""
    task = make_task("position-cartpole", 4096)
    task.reset(1)
    start = torch.cat((task.place, task.speed), 1)
    assert float(start.abs().max()) <= 0.05
    assert (start.min(0).values < -0.0495).all()
    assert (start.max(0).values > 0.0495).all()
    assert (torch.corrcoef(start.T) - torch.eye(4)).abs().max() < 0.08
    task = make_task("position-cartpole", 2)
    task.reset(0)
    falling = torch.tensor([[0.0, 0.0], [0.0, 0.3]])
    task.restore(task.snapshot() | {"age": torch.tensor([498, 499]), "place": falling * 0})
    step = task.step(torch.tensor([0, 0]))
    assert step.truncated.tolist() == [False, True]
    assert step.terminated.tolist() == [False, False]
    task.restore(task.snapshot() | {"age": torch.tensor([499, 499]), "place": falling})
    step = task.step(torch.tensor([0, 0]))
    assert step.truncated.tolist() == [True, False]
    assert step.terminated.tolist() == [False, True]


def test_every_pendulum_step_equals_gymnasium() -> None:
    rows = 8
    task = make_task("position-pendulum", rows)
    assert task.action_space == gym.make("Pendulum-v1").action_space
    task.reset(0)
    original = gym.make("Pendulum-v1").unwrapped
    original.reset()
    actions = torch.stack(random_actions(task, 200))  # some beyond the limits: they are clipped
    assert float(actions.abs().max()) > 2
    for t, action in enumerate(actions):
        before = task.snapshot()
        step = task.step(action)
        for row in range(rows):
            state = [float(before["theta"][row]), float(before["speed"][row])]
            original.state = np.array(state)  # pyright: ignore
            theirs, reward, terminated, _, _ = original.step(action[row].numpy())
            assert step.final_obs[row].numpy() == pytest.approx(theirs[:2], abs=5e-6)
            assert float(step.reward[row]) == pytest.approx(float(reward), abs=5e-5)
            assert not terminated
            if t < 199:
                assert float(task.speed[row]) == pytest.approx(theirs[2], abs=5e-6)
        assert not step.terminated.any()
        assert step.truncated.tolist() == [t == 199] * rows


def test_pendulum_start_and_limits() -> None:
    task = make_task("position-pendulum", 4096)
    task.reset(0)
    for value, limit in ((task.theta, np.pi), (task.speed, 1.0)):
        assert float(value.abs().max()) <= limit
        assert float(value.min()) < -0.99 * limit
        assert float(value.max()) > 0.99 * limit
    task = make_task("position-pendulum", 1)
    task.reset(0)
    state = {"theta": torch.tensor([3.0]), "speed": torch.tensor([7.99])}
    task.restore(task.snapshot() | state)
    step = task.step(torch.tensor([[50.0]]))  # as 2
    assert float(step.reward) == pytest.approx(-(9 + 0.1 * 7.99**2 + 0.004), abs=1e-5)
    assert float(task.speed) == 8.0
