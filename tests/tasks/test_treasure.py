"""Treasure hunt: beside its slow truth, by hand, by statistics, and what simple agents get."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.base.types import Step
from recollect.errors import ConfigError
from recollect.tasks import make_task
from recollect.tasks.treasure import DOWN, LEFT, RIGHT, UP, TreasureHunt
from tests.reference.draws import Stream
from tests.reference.treasure import World, onehot, walker
from tests.support.task_worlds import Choice, returns_of

WORLDS = [
    {"side": 21, "agents": 2, "view": 2, "items": 3, "spawn": 0.005},
    {"side": 6, "agents": 5, "view": 2, "items": 1, "spawn": 0.1, "order": "random"},
    {"side": 5, "agents": 3, "view": 1, "items": 2, "spawn": 0.3},
    {"side": 7, "agents": 1, "view": 3, "items": 3, "spawn": 1.0},
    {"side": 4, "agents": 4, "view": 4, "items": 3, "spawn": 0.5, "order": "random"},
]


def hunt(num_envs: int = 1, **options) -> TreasureHunt:
    task = make_task("treasure-hunt", num_envs, **options)
    assert isinstance(task, TreasureHunt)
    return task


@pytest.mark.parametrize("options", WORLDS, ids=str)
def test_every_step_is_that_of_the_reference(options: dict) -> None:
    """S003-25, S002-21: what is seen and earned in two episodes of random actions, ends and resets too."""
    slots, length, seed = 4, 25, 3
    task = hunt(slots, length=length, **options)
    generator = torch.Generator().manual_seed(0)
    obs, earned = task.reset(seed), 0.0
    for episode in range(2):
        worlds = [
            World(Stream(seed, slot, episode), **({"order": "index"} | options)) for slot in range(slots)
        ]

        def sights(worlds: list[World] = worlds) -> list[list[float]]:
            return [onehot(world.seen(i)) for world in worlds for i in range(task.agents)]

        for t in range(length):
            assert obs.tolist() == sights()
            action = torch.randint(0, 4, (slots * task.agents,), generator=generator)
            step = task.step(action)
            each = action.view(slots, -1).tolist()
            rewards = [reward for world, a in zip(worlds, each) for reward in world.step(a)]
            assert step.reward.tolist() == rewards
            assert step.final_obs.tolist() == sights()
            assert step.truncated.tolist() == [t == length - 1] * len(rewards)
            assert not step.terminated.any()
            earned += sum(map(abs, rewards))
            obs = step.obs
    assert earned > 10


# By hand -------------------------------------------------------------------------------------------------

KINDS = ".gbf#a"


def placed(*rows: str, **options) -> TreasureHunt:
    """A grid with these rows inside of its walls; agents are numbers. Items practically never appear."""
    count = sum(letter.isdigit() for row in rows for letter in row)
    task = hunt(side=len(rows) + 2, agents=count, **({"spawn": 1e-6, "view": 1} | options))
    task.reset(0)
    snapshot = task.snapshot()
    text = "".join(rows)
    kinds = [KINDS.index("a" if letter.isdigit() else letter) for letter in text]
    places = task._places
    snapshot["board"][0, places] = torch.tensor(kinds, dtype=torch.uint8)
    snapshot["cells"][0] = places[[text.index(str(i)) for i in range(count)]]
    task.restore(snapshot)
    return task


def play(task: TreasureHunt, *actions: int) -> list[float]:
    """One turn; the rewards of the agents."""
    return task.step(torch.tensor(actions)).reward.tolist()


def grid(task: TreasureHunt) -> list[str]:
    """The rows inside of the walls, with the number of each agent."""
    letters = [KINDS[kind] for kind in task.board[0, task._places].tolist()]
    for number, cell in enumerate(task.cells[0].tolist()):
        at = task._places.tolist().index(cell)
        assert letters[at] == "a"
        letters[at] = str(number)
    assert "a" not in letters
    side = task.side - 2
    return ["".join(letters[row * side : (row + 1) * side]) for row in range(side)]


def test_items_are_collected_by_stepping_on_them() -> None:
    """S003-25: gem 10, bone -10, food 5, nothing 0; an agent leaves an empty cell."""
    task = placed("0gb", "..f", "...")
    assert play(task, RIGHT) == [10.0]
    assert grid(task) == [".0b", "..f", "..."]
    assert play(task, RIGHT) == [-10.0]
    assert play(task, DOWN) == [5.0]
    assert grid(task) == ["...", "..0", "..."]
    assert play(task, UP) == [0.0]
    assert play(task, LEFT) == [0.0]
    assert grid(task) == [".0.", "...", "..."]


def test_walls_block_and_cost() -> None:
    """S003-25: -1 for a step against each wall, and the agent stays."""
    for action, rows in (
        (UP, ["0..", "...", "..."]),
        (LEFT, ["...", "0..", "..."]),
        (DOWN, ["...", "...", ".0."]),
        (RIGHT, ["...", "...", "..0"]),
    ):
        task = placed(*rows)
        assert play(task, action) == [-1.0]
        assert grid(task) == rows


def test_agents_block_and_cost_nothing() -> None:
    """S003-25: a step against another agent gives 0; two that change places both stay."""
    task = placed("01.", "...", "...")
    assert play(task, RIGHT, LEFT) == [0.0, 0.0]
    assert grid(task) == ["01.", "...", "..."]


def test_moves_are_made_in_the_order_of_the_agents() -> None:
    """S003-25: agent 1 follows into the cell that agent 0 leaves; agent 0 cannot follow agent 1."""
    task = placed("10.", "...", "...")
    assert play(task, RIGHT, RIGHT) == [0.0, 0.0]
    assert grid(task) == [".10", "...", "..."]
    task = placed("01.", "...", "...")
    assert play(task, RIGHT, RIGHT) == [0.0, 0.0]
    assert grid(task) == ["0.1", "...", "..."]


def test_agent_0_comes_first_to_what_both_want() -> None:
    """S003-25: agent 1 then runs into agent 0; from the other side it is the same."""
    task = placed("0g1", "...", "...")
    assert play(task, RIGHT, LEFT) == [10.0, 0.0]
    assert grid(task) == [".01", "...", "..."]
    task = placed("1g0", "...", "...")
    assert play(task, LEFT, RIGHT) == [10.0, 0.0]
    assert grid(task) == ["10.", "...", "..."]


def test_in_random_order_everybody_comes_first_as_often() -> None:
    """S003-25: each of three agents around a gem gets it in a third of 3,000 grids; the order has a new
    draw in every turn."""
    one = placed(".0.", "1g2", "...", order="random").snapshot()
    task = hunt(3000, side=5, agents=3, view=1, spawn=1e-6, order="random")
    task.reset(0)
    start = {name: one[name].expand(3000, -1) for name in ("board", "cells")}
    winners = []
    for _ in range(2):
        task.restore(task.snapshot() | start)
        reward = task.step(torch.tensor([DOWN, RIGHT, LEFT]).repeat(3000)).reward.view(-1, 3)
        assert torch.equal(reward.sum(1), torch.full((3000,), 10.0))
        winners.append(reward.argmax(1))
        counts = winners[-1].bincount()
        assert counts.min() > 1000 - 5 * (3000 * 2 / 9) ** 0.5
    assert abs(int((winners[0] == winners[1]).sum()) - 1000) < 5 * (3000 * 2 / 9) ** 0.5


def cell(kind: str) -> list[float]:
    return {
        ".": [0, 0, 0, 0, 0, 0],
        "#": [0, 1, 0, 0, 0, 0],
        "g": [0, 0, 1, 0, 0, 0],
        "b": [0, 0, 0, 1, 0, 0],
        "f": [0, 0, 0, 0, 1, 0],
        "a": [0, 0, 0, 0, 0, 1],
    }[kind]


def test_what_is_seen_by_hand() -> None:
    """S003-25: the window row by row, six numbers a cell; outside are walls; the agent itself is in the
    middle, other agents are like it."""
    task = placed("0g.", "b1f", "...")
    first, second = task.restore(task.snapshot()).tolist()
    assert first == [float(x) for kind in "####ag#ba" for x in cell(kind)]
    assert second == [float(x) for kind in "ag.baf..." for x in cell(kind)]
    far = placed("0g.", "b1f", "...", view=2)
    assert far.restore(far.snapshot())[0].tolist() == [
        float(x) for kind in "############ag.##baf##..." for x in cell(kind)
    ]


def test_colours() -> None:
    """S003-25: three numbers a cell, the same for each kind, different for two kinds, from 0 to 1."""
    task = placed("0g.", "b1f", "...", obs="rgb", view=2)
    seen = task.restore(task.snapshot())[0].view(25, 3)
    assert task.observation_space.shape == (75,)
    text = "############ag.##baf##..."
    colours = {kind: {tuple(row) for row, k in zip(seen.tolist(), text) if k == kind} for kind in KINDS}
    assert all(len(found) == 1 for found in colours.values())
    assert len(set.union(*colours.values())) == 6
    assert task.observation_space.contains(seen.flatten().numpy())


def test_a_turn_moves_then_spawns_then_observes() -> None:
    """S003-25: with p = 1 every empty cell is a gem after the first turn, also the one that was left; the
    observation of that turn shows them, and its reward is for the cell as it was before."""
    task = placed("0..", "...", "...", spawn=1.0, items=1)
    step = task.step(torch.tensor([RIGHT]))
    assert step.reward.tolist() == [0.0]
    assert grid(task) == ["g0g", "ggg", "ggg"]
    assert step.obs[0].tolist() == [float(x) for kind in "###gagggg" for x in cell(kind)]
    assert play(task, LEFT) == [10.0]
    assert grid(task) == ["0gg", "ggg", "ggg"]


def test_items_stay() -> None:
    """S003-25: only empty cells turn into something, with p = 1 too."""
    task = placed("0bf", "...", "...", spawn=1.0, items=1)
    assert play(task, UP) == [-1.0]
    assert grid(task) == ["0bf", "ggg", "ggg"]


def test_an_episode_is_cut_by_time() -> None:
    """S003-25: all agents are truncated after ``length`` turns, nobody is ever terminated."""
    for size, length, agents in (("large", 100, 2), ("small", 50, 5)):
        task = hunt(3, size=size)
        assert (task.max_episode_steps, task.agents, task.truncation_gap) == (length, agents, length)
        task.reset(0)
        ends = []
        for t in range(2 * length):
            step = task.step(torch.zeros(3 * agents, dtype=torch.int64))
            assert not step.terminated.any()
            assert step.truncated.all() == step.truncated.any()
            if step.truncated.any():
                ends.append(t)
                assert set(task.board.unique().tolist()) == {0, 4, 5}, "no items at the start"
        assert ends == [length - 1, 2 * length - 1]


def test_the_sizes() -> None:
    """S003-25: 21 x 21 with 2 agents, 10 x 10 with 5; 150 numbers one-hot, 75 as colours."""
    large, small, rgb = hunt(), hunt(size="small"), hunt(obs="rgb")
    assert (large.side, large.items, large.spawn) == (21, 3, 0.005)
    assert (small.side, small.items, small.spawn) == (10, 1, 0.02)
    assert large.observation_space.shape == small.observation_space.shape == (150,)
    assert rgb.observation_space.shape == (75,)
    assert (large._ground == 0).sum() == 19 * 19
    assert (small._ground == 0).sum() == 8 * 8


# Chance --------------------------------------------------------------------------------------------------


def test_agents_start_anywhere_but_not_together() -> None:
    """S003-25: each agent uniformly over the cells, every pair as often."""
    task = hunt(20_000, side=5, agents=2)
    task.reset(0)
    places = {cell: i for i, cell in enumerate(task._places.tolist())}
    first, second = ([places[cell] for cell in column.tolist()] for column in task.cells.unbind(1))
    pairs = torch.zeros(9, 9)
    pairs.index_put_((torch.tensor(first), torch.tensor(second)), torch.tensor(1.0), accumulate=True)
    assert pairs.diagonal().sum() == 0
    others = pairs[~torch.eye(9, dtype=torch.bool)]
    assert chi_square(others, 20_000 / 72) < 72 + 5 * (2 * 72) ** 0.5


def chi_square(counts: Tensor, expected: float) -> float:
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(("size", "rate", "kinds"), [("large", 0.005, 3), ("small", 0.02, 1)])
def test_items_appear_at_their_rate(size: str, rate: float, kinds: int) -> None:
    """S003-25: in each cell alike, each kind alike, independently of other cells and other turns."""
    slots, turns = 2000, 6
    task = hunt(slots, size=size)
    task.reset(1)
    places, before = task._places, None
    by_cell, by_kind, together, again = torch.zeros(len(places)), torch.zeros(3), [], []
    for _ in range(turns):
        empty = task._ground.expand(slots, -1)
        task.board.copy_(empty)  # no agents and no items in the way
        task.cells.fill_(int(places[0]))
        task.step(torch.zeros(slots * task.agents, dtype=torch.int64))
        board = task.board.index_select(1, places[1:])
        item = (board >= 1) & (board <= 3)
        by_cell[1:] += item.sum(0)
        by_kind += torch.stack([(board == kind).sum() for kind in (1, 2, 3)])
        together.append(item.sum(1).float())
        if before is not None:
            again.append((item & before).sum())
        before = item
    cells = len(places) - 1
    mean = slots * turns * rate
    assert chi_square(by_cell[1:], mean) < cells + 5 * (2 * cells) ** 0.5
    assert (by_kind > 0).sum() == kinds
    assert chi_square(by_kind[:kinds], mean * cells / kinds) < 25
    count = torch.cat(together)
    variance = cells * rate * (1 - rate)
    assert abs(float(count.mean()) - cells * rate) < 5 * (variance / len(count)) ** 0.5
    assert abs(float(count.var()) / variance - 1) < 5 * (2.5 / len(count)) ** 0.5
    repeats = slots * (turns - 1) * cells * rate**2
    assert abs(float(sum(again)) - repeats) < 5 * repeats**0.5


# What simple agents get ----------------------------------------------------------------------------------


def team_returns(choose: Choice, num_envs: int, **options) -> Tensor:
    """[E]: the return of an episode of each slot, summed over its agents."""
    return returns_of(hunt(num_envs, **options), choose).view(num_envs, -1).sum(1)


@pytest.mark.parametrize(
    ("options", "random", "walking"),
    [
        ({}, 20, 342),
        ({"size": "small"}, 248, 515),
        ({"size": "small", "agents": 1}, 79, 269),
    ],
    ids=["large", "small", "alone"],
)
def test_what_simple_agents_get(options: dict, random: float, walking: float) -> None:
    """S003-25: the returns that the rules were published with (random 24 +- 10, 258 +- 10 and 75, a
    memoryless walker 340 +- 15, 533 +- 18 and 276), as far as 20 episodes determine them."""
    generator = torch.Generator().manual_seed(0)
    for choose, stated in (
        (lambda obs, first: torch.randint(0, 4, (len(obs),), generator=generator), random),
        (lambda obs, first: walker(obs, generator), walking),
    ):
        returns = team_returns(choose, 256, **options)
        error = float(returns.std()) / len(returns) ** 0.5
        assert abs(float(returns.mean()) - stated) < 4 * error
        assert 1 < error < 6


def test_metrics_show_each_agent_and_the_team() -> None:
    """S003-25: over an episode the means are the returns; agent 0 is ahead where the grid is crowded."""
    task = hunt(64, side=6, agents=3, items=1, spawn=0.02, length=40)
    obs, generator = task.reset(0), torch.Generator().manual_seed(0)
    total, infos = torch.zeros(64 * 3), []
    for _ in range(40):
        step: Step = task.step(walker(obs, generator))
        obs, total = step.obs, total + step.reward
        infos.append({name: float(value.mean()) for name, value in step.info.items()})
        assert all(value.shape == (192,) for value in step.info.values())
    means = {name: np.mean([info[name] for info in infos]) for name in infos[0]}
    each = total.view(64, 3).mean(0).tolist()
    assert [*means] == ["agent_0_return", "agent_1_return", "agent_2_return", "team_return"]
    np.testing.assert_allclose(list(means.values()), [*each, sum(each)], rtol=1e-5)
    assert each[0] > each[2]


# Shown and refused ---------------------------------------------------------------------------------------


def test_in_words() -> None:
    task = placed("0g.", "b1f", "...", view=2)
    shown = [task.describe(obs.numpy()) for obs in task.restore(task.snapshot())]
    assert shown[0] == (
        "gem 1 right, bone 1 down, agent 1 right 1 down, food 2 right 1 down, wall 1 up, wall 1 left"
    )
    assert shown[1].startswith("gem 1 up, bone 1 left, food 1 right, agent 1 left 1 up")
    colours = placed("0g.", "b1f", "...", view=2, obs="rgb")
    assert [colours.describe(obs.numpy()) for obs in colours.restore(colours.snapshot())] == shown
    alone = placed("...", ".0.", "...")
    assert alone.describe(alone.restore(alone.snapshot())[0].numpy()) == "nothing"


def test_the_picture() -> None:
    """Every cell has its colour in its middle, walls around; agent 0 has a dot, its view another ground."""
    task = placed("0g..", "b1f.", "....", "....")
    image = task.picture()
    assert (image.shape, image.dtype) == ((48, 48, 3), np.uint8)
    pixels = image.reshape(6, 8, 6, 8, 3)
    middle, beside, corner = pixels[:, 4, :, 4], pixels[:, 4, :, 5], pixels[:, 0, :, 0]
    wall, gem, agent = middle[0, 0], middle[1, 2], middle[2, 2]
    assert (middle[[0, -1]] == wall).all()
    assert (middle[:, [0, -1]] == wall).all()
    assert len({tuple(colour) for colour in (wall, gem, agent, middle[2, 1], middle[2, 3])}) == 5
    assert tuple(beside[1, 1]) == tuple(beside[2, 2]) == tuple(agent)
    assert tuple(middle[1, 1]) == tuple(corner[2, 2]) != tuple(agent), "a dot in the colour of its view"
    assert tuple(corner[2, 2]) != tuple(corner[3, 3]) == tuple(middle[4, 4]) == (255, 255, 255)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"side": 4, "agents": 5}, "has room for 4.*raise side"),
        ({"side": 102}, "side is 102; it must be a whole number from 3 to 101"),
        ({"agents": 65}, "agents is 65"),
        ({"view": 11}, "view is 11"),
        ({"items": 4}, "items is 4; it must be a whole number from 1 to 3"),
        ({"spawn": 1.5}, "spawn is 1.5; it must be a number from 1e-06 to 1.0"),
        ({"spawn": 0}, "spawn is 0"),
        ({"length": 0}, "length is 0"),
        ({"obs": "pixels"}, "obs is 'pixels'; choose one of onehot, rgb"),
        ({"order": "age"}, "order is 'age'; choose one of index, random"),
        ({"size": "easy"}, "no size 'easy': choose one of large, small"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        hunt(**options)
