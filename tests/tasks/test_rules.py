"""Delayed cue and T-maze by golden traces; best play and chance of every task."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from recollect.tasks import Task, make_task
from recollect.tasks.t_maze import BACK, FORWARD, LEFT, RIGHT
from tests.support.task_worlds import Choice, returns_of


def forced(name: str, field: str, value: list[int], **options: int) -> Task:
    """A task with a chosen secret in each row."""
    task = make_task(name, len(value), **options)
    task.reset(0)
    task.restore(task.snapshot() | {field: torch.tensor(value)})
    return task


def trace(task: Task, actions: list[int]) -> list[tuple[list[float], float, bool, bool]]:
    """Row 0: what was seen after each action, reward, terminated, truncated."""
    rows = []
    for action in actions:
        step = task.step(torch.full((task.num_envs,), action))
        rows.append(
            (
                step.final_obs[0].tolist(),
                float(step.reward[0]),
                bool(step.terminated[0]),
                bool(step.truncated[0]),
            )
        )
    return rows


BLANK, QUERY = [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("answer", "reward"), [(1, 1.0), (0, 0.0), (2, 0.0)])
def test_delayed_cue_trace(answer: int, reward: float) -> None:
    task = forced("delayed-cue", "cue", [1, 2], cues=3, horizon=2)
    assert task.restore(task.snapshot()).tolist() == [[0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]]
    assert trace(task, [1, 1, 1, answer]) == [
        (BLANK, 0.0, False, False),
        (BLANK, 0.0, False, False),
        (QUERY, 0.0, False, False),
        (BLANK, reward, True, False),
    ]


def test_delayed_cue_sizes() -> None:
    for size, cues, horizon in (("easy", 2, 10), ("medium", 4, 100), ("hard", 8, 1000)):
        task = make_task("delayed-cue", 1, size=size)
        assert (task.max_episode_steps, task.horizon) == (horizon + 2, horizon)
        assert task.observation_space.shape == (cues + 1,)
        assert task.action_space.n == cues  # pyright: ignore[reportAttributeAccessIssue]
        assert task.memoryless_return == 1 / cues
    assert make_task("delayed-cue", 1, size="hard", horizon=0).max_episode_steps == 2


SIGN_LEFT, SIGN_RIGHT = [1.0, 0.0, 0.0, 0.0], [0.0, 1.0, 0.0, 0.0]
CORRIDOR, JUNCTION = [0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize(("turn", "reward"), [(LEFT, 1.0), (RIGHT, 0.0)])
def test_t_maze_best_way(turn: int, reward: float) -> None:
    task = forced("t-maze", "goal", [0, 1], length=2)
    assert task.restore(task.snapshot()).tolist() == [SIGN_LEFT, SIGN_RIGHT]
    assert trace(task, [FORWARD, FORWARD, turn]) == [
        (CORRIDOR, 0.0, False, False),
        (JUNCTION, 0.0, False, False),
        (JUNCTION, reward, True, False),
    ]


def test_t_maze_lost_steps_cost_and_the_limit_truncates() -> None:
    for wrong in (LEFT, BACK, RIGHT):  # at the start: against a wall; the sign is gone
        assert trace(forced("t-maze", "goal", [0], length=2), [wrong, FORWARD, FORWARD]) == [
            (CORRIDOR, -0.5, False, False),
            (CORRIDOR, 0.0, False, False),
            (JUNCTION, 0.0, False, True),
        ]
    assert trace(forced("t-maze", "goal", [0], length=4), [FORWARD, BACK, FORWARD, LEFT, RIGHT]) == [
        (CORRIDOR, 0.0, False, False),
        (CORRIDOR, -0.25, False, False),
        (CORRIDOR, 0.0, False, False),
        (CORRIDOR, -0.25, False, False),
        (CORRIDOR, -0.25, False, True),
    ]


@pytest.mark.parametrize(("action", "seen"), [(FORWARD, JUNCTION), (BACK, CORRIDOR)])
def test_t_maze_not_turning_at_the_junction_costs(action: int, seen: list[float]) -> None:
    task = forced("t-maze", "goal", [0], length=2)
    assert trace(task, [FORWARD, FORWARD, action])[-1] == (seen, -0.5, False, True)


def test_t_maze_sizes() -> None:
    for size, length in (("easy", 10), ("medium", 50), ("hard", 250)):
        task = make_task("t-maze", 1, size=size)
        assert (task.max_episode_steps, task.horizon) == (length + 1, length)


# Best play. Each agent remembers what the rules say, in tensors of its own.


def cue_memory() -> Choice:
    held: list[Tensor] = []

    def choose(obs: Tensor, first: Tensor) -> Tensor:
        cue = obs[:, :-1].argmax(1)
        held[:] = [torch.where(first, cue, held[0]) if held else cue]
        return held[0].clone()

    return choose


def sign_memory() -> Choice:
    held: list[Tensor] = []

    def choose(obs: Tensor, first: Tensor) -> Tensor:
        turn = torch.where(obs[:, 0] == 1, LEFT, RIGHT)
        held[:] = [torch.where(first, turn, held[0]) if held else turn]
        return torch.where(obs[:, 3] == 1, held[0], FORWARD)

    return choose


def cards_memory(back: int | None) -> Choice:
    """Names the card ``back`` steps ago, None: the first."""
    cards: list[Tensor] = []

    def choose(obs: Tensor, first: Tensor) -> Tensor:
        if first.all():
            cards.clear()
        cards.append(obs.clone())
        return cards[0 if back is None else max(len(cards) - 1 - back, 0)]

    return choose


def balance() -> Choice:
    """Feels the velocities from the last two positions."""
    last: list[Tensor] = []

    def choose(obs: Tensor, first: Tensor) -> Tensor:
        before = torch.where(first.unsqueeze(1), obs, last[0]) if last else obs
        last[:] = [obs.clone()]
        x, theta = obs.unbind(1)
        x_speed, theta_speed = ((obs - before) / 0.02).unbind(1)
        return (theta + 0.25 * theta_speed + 0.05 * x + 0.1 * x_speed > 0).long()

    return choose


@pytest.mark.parametrize("size", ["easy", "medium", "hard"])
def test_memory_reaches_the_maximum(size: str) -> None:
    for name, agent in (
        ("delayed-cue", cue_memory),
        ("t-maze", sign_memory),
        ("repeat-previous", lambda: cards_memory({"easy": 3, "medium": 31, "hard": 63}[size])),
        ("repeat-first", lambda: cards_memory(None)),
    ):
        task = make_task(name, 8, size=size)
        assert task.max_return is not None
        returns = returns_of(task, agent())
        assert torch.allclose(returns, torch.full((8,), task.max_return), atol=1e-4), name


def test_feeling_the_velocity_balances_the_pole() -> None:
    task = make_task("position-cartpole", 16)
    assert returns_of(task, balance()).tolist() == [task.max_return] * 16


@pytest.mark.parametrize(
    ("name", "options", "policy"),
    [
        ("delayed-cue", {}, lambda obs, first: torch.zeros(len(obs), dtype=torch.int64)),
        ("delayed-cue", {"cues": 5, "horizon": 1}, lambda obs, first: obs[:, :-1].argmax(1)),
        ("t-maze", {}, lambda obs, first: torch.where(obs[:, 3] == 1, LEFT, FORWARD)),
        ("repeat-previous", {}, lambda obs, first: (obs + 1) % 4),
        ("repeat-previous", {"k": 1}, lambda obs, first: obs.clone()),
        ("repeat-first", {}, lambda obs, first: obs.clone()),
    ],
)
def test_the_best_policy_without_memory_gets_what_is_stated(
    name: str, options: dict[str, int], policy: Choice
) -> None:
    task = make_task(name, 8192, **options)
    returns = returns_of(task, policy)
    error = 4.5 * float(returns.std()) / len(returns) ** 0.5 + 1e-6
    assert task.memoryless_return is not None
    assert abs(float(returns.mean()) - task.memoryless_return) < error
    assert options or task.memoryless_return < task.max_return - 0.4  # pyright: ignore[reportOptionalOperand]
