"""The foraging world: beside its slow truth, by hand, and what memory is worth in it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.errors import ConfigError
from recollect.tasks import Task, make_task
from recollect.tasks.forage import DOWN, LEFT, RIGHT, UP
from tests.reference.draws import Stream
from tests.reference.forage import Forager, World, at_random, round_trip
from tests.support.task_worlds import returns_of

WORLDS = [
    {"size": "easy"},
    {"size": "hard"},
    {"side": 6, "kinds": 2, "view": 1},
    {"side": 7, "kinds": 9, "view": 2},
    {"side": 10, "kinds": 3, "view": 5},
]


def tokens_of(obs: Tensor) -> list[set[tuple[int, ...]]]:
    """The tokens of every row; none stands there twice."""
    rows = [[tuple(token) for token in row if token[0] != 255] for row in obs.tolist()]
    assert all(len(set(row)) == len(row) for row in rows)
    return [set(row) for row in rows]


@pytest.mark.parametrize("options", WORLDS, ids=str)
def test_every_step_is_that_of_the_reference(options: dict) -> None:
    """S002-21: what is seen and earned in three episodes of random actions, resets and the last sight too."""
    rows, limit, seed = 12, 60, 3
    task = make_task("forage", rows, limit=limit, **options)
    generator = torch.Generator().manual_seed(0)
    obs, earned = task.reset(seed), 0.0
    for episode in range(3):
        shape = task.side, task.kinds, task.view  # pyright: ignore[reportAttributeAccessIssue]
        worlds = [World(Stream(seed, row, episode), *shape) for row in range(rows)]
        for t in range(limit):
            assert tokens_of(obs) == [world.tokens() for world in worlds]
            action = torch.randint(0, 4, (rows,), generator=generator)
            step = task.step(action)
            rewards = [world.step(a) for world, a in zip(worlds, action.tolist())]
            assert step.reward.tolist() == rewards
            assert tokens_of(step.final_obs) == [world.tokens() for world in worlds]
            assert step.truncated.tolist() == [t == limit - 1] * rows
            assert not step.terminated.any()
            earned += sum(rewards)
            obs = step.obs
    assert earned > 10


def placed(agent: tuple[int, int], bush: tuple[int, int], errand: int = 0) -> Task:
    """One world of 9 x 9 with one bush, the agent and it in cells (column, row)."""
    task = make_task("forage", 1)
    task.reset(0)
    cell, goal = (17 * row + column for column, row in (agent, bush))
    fields = {"cell": torch.tensor([cell]), "errand": torch.tensor([errand])}
    task.restore(task.snapshot() | fields | {"goals": torch.tensor([[goal, 17 * 4 + 4]])})
    return task


def play(task: Task, *actions: int) -> list[float]:
    return [float(task.step(torch.tensor([action])).reward) for action in actions]


def words(task: Task) -> str:
    return task.describe(task.restore(task.snapshot())[0].numpy())


def test_a_trip_by_hand() -> None:
    """From a corner to the bush, which is in reach from beside it, then home and out again."""
    task = placed((0, 0), (3, 1))
    assert words(task) == "###\n#@.\n#..\nnest 4 right 4 down, wants a"
    assert play(task, UP, LEFT, RIGHT) == [0.0, 0.0, 0.0]
    assert words(task) == "###\n.@.\n...\nnest 3 right 4 down, wants a"
    assert play(task, RIGHT) == [1.0]
    assert words(task) == "###\n.@.\n..a\nnest 2 right 4 down, carries food"
    assert play(task, DOWN, RIGHT, DOWN, DOWN, DOWN) == [0.0] * 5
    assert words(task) == "...\n.@n\n...\nnest 1 right 0 down, carries food"
    assert play(task, RIGHT) == [1.0]
    assert words(task) == "...\n.N.\n...\nnest 0 right 0 down, wants a"
    assert play(task, UP, UP) == [0.0, 1.0], "(3, 1) is next to (4, 2), also diagonally"


def test_what_is_not_wanted_gives_nothing() -> None:
    """Neither the bush while carrying, nor the nest with empty hands."""
    task = placed((3, 2), (3, 1), errand=1)
    assert play(task, UP, UP) == [0.0, 0.0]
    assert words(task) == "###\n.@.\n.a.\nnest 1 right 4 down, carries food"
    assert play(placed((4, 3), (0, 0)), DOWN, DOWN) == [0.0, 0.0]


def test_the_tokens_are_in_their_space() -> None:
    """Bytes within what the Box says, padding (255, 0, 0), at most 48 tokens at the sizes."""
    for size, side, kinds, limit in (("easy", 9, 1, 100), ("medium", 11, 2, 100), ("hard", 11, 4, 200)):
        task = make_task("forage", 32, size=size)
        space = task.observation_space
        high = space.high  # pyright: ignore[reportAttributeAccessIssue]
        assert (space.dtype, space.shape) == (np.uint8, (7 + kinds, 3))
        assert high.tolist() == [[255, 2 + 2 * kinds, 1]] * (7 + kinds)
        assert (task.max_episode_steps, task.horizon) == (limit, kinds * 2 * (side - 1))
        obs = task.reset(0)
        assert all(space.contains(row) for row in obs.numpy())
        padding = obs[obs[..., 0] == 255]
        assert len(padding) > 0
        assert padding[:, 1:].eq(0).all()


def test_food_is_neither_made_nor_lost() -> None:
    """Taking and putting down take turns: with every row, from the first taking on."""
    task = make_task("forage", 64, size="medium", limit=400)
    task.reset(1)
    goals = task.snapshot()["goals"]
    laden = task.snapshot()["errand"] == 2
    assert not laden.any()
    for _ in range(399):
        before = laden
        step = task.step(torch.randint(0, 4, (64,), generator=torch.Generator().manual_seed(_)))
        laden = task.snapshot()["errand"] == 2
        assert torch.equal(before ^ laden, step.reward == 1.0)
    assert torch.equal(goals, task.snapshot()["goals"])


def test_where_things_are_is_uniform() -> None:
    """Bushes over the 9^2 - 41 distant cells, two of them never in one; the agent over all."""
    task = make_task("forage", 40_000, side=9, kinds=2)
    task.reset(0)
    fields = task.snapshot()
    goals, cell = fields["goals"], fields["cell"]
    assert (goals[:, 0] != goals[:, 1]).all()
    assert (goals[:, 2] == 4 * 17 + 4).all()
    for place, count in ((goals[:, 0], 40), (goals[:, 1], 40), (cell, 81)):
        counts = place.bincount()
        counts = counts[counts > 0]
        mean = 40_000 / count
        assert len(counts) == count
        assert counts.min() > mean - 5 * mean**0.5
        assert counts.max() < mean + 5 * mean**0.5
    assert fields["errand"].bincount().min() > 19_500


def test_options_without_room_are_refused() -> None:
    with pytest.raises(ConfigError, match="view is 6"):
        make_task("forage", 1, view=6)
    with pytest.raises(ConfigError, match="up to 11"):
        make_task("forage", 1, side=12)
    with pytest.raises(ConfigError, match="there is room for 0: raise side"):
        make_task("forage", 1, side=5)
    with pytest.raises(ConfigError, match="there is room for 9"):
        make_task("forage", 1, side=9, kinds=10)
    with pytest.raises(ConfigError, match="limit is 0"):
        make_task("forage", 1, limit=0)


# What memory is worth -------------------------------------------------------------------------------------


def mean_return(task: Task, agents: list[Callable]) -> float:
    """Of one episode of each agent; it sees tokens only."""

    def choose(obs: Tensor, first: Tensor) -> Tensor:
        given = zip(agents, obs.tolist(), first.tolist())
        return torch.tensor([act(tokens, start) for act, tokens, start in given])

    return float(returns_of(task, choose).mean())


@pytest.mark.parametrize(
    ("size", "with_memory", "without", "random"),
    [("easy", 23.4, 11.5, 0.9), ("medium", 15.9, 6.7, 0.6), ("hard", 33.8, 13.8, 1.0)],
)
def test_memory_pays(size: str, with_memory: float, without: float, random: float) -> None:
    """Twice of what a round trip earns that sees every cell, which needs none; at random there is little."""
    task = make_task("forage", 128, size=size)
    shape = task.side, task.kinds, task.view  # pyright: ignore[reportAttributeAccessIssue]
    returns = [
        mean_return(task, [Forager(*shape, remembers=True).act for _ in range(128)]),
        mean_return(task, [Forager(*shape, remembers=False).act for _ in range(128)]),
        mean_return(task, [at_random(row) for row in range(128)]),
    ]
    assert returns == pytest.approx([with_memory, without, random], rel=0.15, abs=0.3)
    assert returns[0] > 1.7 * returns[1]
    assert returns[0] > 4 * returns[2]


@pytest.mark.parametrize(("side", "view"), [(9, 1), (11, 1), (11, 2)])
def test_the_round_trip_sees_every_cell(side: int, view: int) -> None:
    """So that no policy without memory is kept from any bush."""
    after = round_trip(side, view)
    place, seen, visited = (view, view), set(), set()
    while place not in visited:
        visited.add(place)
        around = range(-view, view + 1)
        seen |= {(place[0] + x, place[1] + y) for x in around for y in around}
        following = after[place]
        assert abs(following[0] - place[0]) + abs(following[1] - place[1]) == 1
        place = following
    assert place == (view, view)
    assert {(x, y) for x in range(side) for y in range(side)} <= seen
