"""Recall duel: golden games by hand, beside its slow truth, both sides alike, and best play."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import recollect as rc
from recollect.envs.contract import TwoSided
from recollect.envs.versus import Versus
from recollect.errors import ConfigError
from recollect.tasks import make_task
from recollect.tasks.recall_duel import RecallBot, RecallDuel
from tests.reference.recall_duel import Game, best
from tests.support.reads import unread
from tests.support.task_worlds import random_actions


def duel(num_envs: int = 1, cues: int = 3, delay: int = 1, cue: tuple[int, ...] | None = None) -> RecallDuel:
    task = make_task("recall-duel", num_envs, cues=cues, delay=delay)
    assert isinstance(task, RecallDuel)
    task.reset(0)
    if cue is not None:
        task.restore(task.snapshot() | {"cue": torch.tensor([cue] * num_envs)})
    return task


def act(name: int, bid: int) -> int:
    return 4 * name + bid


# By hand ---------------------------------------------------------------------------------------------------

SHOW = [
    [0, 1, 0, 1, 0, 0, 0, 1, 1, 0],
    [0, 0, 1, 0, 1, 0, 0, 1, 1, 0],
    [1, 0, 0, 0, 0, 1, 0, 1, 1, 0],
    [0, 0, 0, 0, 0, 0, 0, 1, 1, 0],
]
"""Cues 1, 2, 0, then a blank: the cue, its number, playing, own chips, the other's, the lead."""


def play(task: RecallDuel, *actions: tuple[int, int]) -> list[tuple[list[list[float]], list[float], bool]]:
    """Of each step: what both see then, the rewards, and whether the game is over."""
    found = []
    for pair in actions:
        step = task.step(torch.tensor(pair))
        assert not step.truncated.any()
        seen = [[round(x, 4) for x in row] for row in step.final_obs.tolist()]
        found.append((seen, [round(x, 4) for x in step.reward.tolist()], bool(step.terminated.all())))
    return found


def test_a_golden_game() -> None:
    """Every observation, reward and end of a game, written from the rules."""
    task = duel(cue=(1, 2, 0))
    assert task.restore(task.snapshot()).tolist() == [SHOW[0], SHOW[0]]
    start = play(task, (0, 11), (4, 5), (3, 3))  # names and bids have no effect yet
    assert start == [([SHOW[t]] * 2, [0, 0], False) for t in (1, 2, 3)]
    assert play(task, (7, 7)) == [([[0, 0, 0, 1, 0, 0, 1, 1, 1, 0]] * 2, [0, 0], False)]
    # Round 0: both name 1, 3 chips against 1.
    assert play(task, (act(1, 3), act(1, 1))) == [
        (
            [[0, 0, 0, 0, 1, 0, 1, 0.4, 0.8, 0.3333], [0, 0, 0, 0, 1, 0, 1, 0.8, 0.4, -0.3333]],
            [0.3333, -0.3333],
            False,
        )
    ]
    # Round 1: north names 0 instead of 2. Its bid of 3 is cut to the 2 that are left, and they are gone.
    assert play(task, (act(0, 3), act(2, 0))) == [
        ([[0, 0, 0, 0, 0, 1, 1, 0, 0.8, 0], [0, 0, 0, 0, 0, 1, 1, 0.8, 0, 0]], [-0.3333, 0.3333], False)
    ]
    # Round 2: both name 0, none against 3. South has won two rounds to one.
    assert play(task, (act(0, 1), act(0, 3))) == [
        (
            [[0, 0, 0, 0, 0, 0, 0, 0, 0.2, -0.3333], [0, 0, 0, 0, 0, 0, 0, 0.2, 0, 0.3333]],
            [-0.3333, 0.3333],
            True,
        )
    ]
    assert (task.won.tolist(), task.games.tolist()) == ([-1.0], [1])


@pytest.mark.parametrize(
    ("north", "south", "winner"),
    [
        ((1, 3), (1, 2), 1),
        ((1, 0), (1, 2), -1),
        ((1, 2), (1, 2), 0),
        ((1, 0), (0, 3), 1),
        ((2, 3), (1, 0), -1),
        ((0, 3), (2, 1), 0),
    ],
)
def test_who_wins_a_round(north: tuple[int, int], south: tuple[int, int], winner: int) -> None:
    """The one who names the cue, 1; of two the higher bid; of none nobody. Both pay."""
    task = duel(delay=0, cue=(1, 1, 1))
    play(task, (0, 0), (0, 0), (0, 0))
    ((_, rewards, _),) = play(task, (act(*north), act(*south)))
    assert rewards == [round(winner / 3, 4), round(-winner / 3, 4)]
    assert task.chips.tolist() == [[5 - north[1], 5 - south[1]]]


def games_of(north: tuple[int, ...], south: tuple[int, ...]) -> int:
    """The result of a game between players who name all cues and bid so."""
    task = duel(delay=0, cue=(0, 1, 2))
    play(task, (0, 0), (0, 0), (0, 0))
    play(task, *((act(i, a), act(i, b)) for i, (a, b) in enumerate(zip(north, south))))
    return int(task.won)


def test_bids_beat_each_other_in_a_circle() -> None:
    """What the rules say of 2, 2, 1; 1, 1, 3; and 3, 0, 2: no strategy is the best against all."""
    circle = [(2, 2, 1), (1, 1, 3), (3, 0, 2)]
    for one, other in zip(circle, circle[1:] + circle[:1]):
        assert games_of(one, other) == 1
        assert games_of(other, one) == -1
        assert games_of(one, one) == 0


# Beside the reference --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cues", "delay"), [(2, 0), (3, 1), (5, 4)])
def test_every_step_is_that_of_the_reference(cues: int, delay: int) -> None:
    """Random players, who often name the cue: observations, rewards, ends, results and counts of games."""
    task = duel(12, cues, delay)
    obs = task.reset(5)
    games = [Game(cue, cues, delay) for cue in task.cue.tolist()]
    generator = torch.Generator().manual_seed(1)
    results, finished = [0] * 12, [0] * 12
    for action in random_actions(task, 3 * task.max_episode_steps):
        knows = torch.rand(24, generator=generator) < 0.6
        cue = task.next_round()[2].repeat_interleave(2)
        action = torch.where(knows, cue * 4 + action % 4, action)
        assert torch.equal(obs, torch.tensor([game.observe(i) for game in games for i in (0, 1)]))
        step = task.step(action)
        rewards = [game.play(pair) for game, pair in zip(games, action.view(-1, 2).tolist())]
        assert torch.equal(step.reward, torch.tensor(rewards).flatten())
        last = torch.tensor([game.observe(i) for game in games for i in (0, 1)])
        assert torch.equal(step.final_obs, last)
        assert step.terminated.view(-1, 2).tolist() == [[game.is_over] * 2 for game in games]
        for i, game in enumerate(games):
            if game.is_over:
                results[i], finished[i] = game.result, finished[i] + 1
                games[i] = Game(task.cue[i].tolist(), cues, delay)
        assert (task.won.tolist(), task.games.tolist()) == (results, finished)
        obs = step.obs
    assert finished == [3] * 12
    task.reset(6)
    assert (task.won.tolist(), task.games.tolist()) == ([0] * 12, [0] * 12)


def test_swapping_sides_mirrors_the_game() -> None:
    """The same cues, actions swapped: observations swapped, results the other way, bit for bit."""
    one, two = duel(16), duel(16)

    def swapped(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (16, 2)).flip(1).flatten(0, 1)

    assert torch.equal(one.reset(3), swapped(two.reset(3)))
    for action in random_actions(one, 22):
        a, b = one.step(action), two.step(swapped(action))
        assert torch.equal(a.obs, swapped(b.obs))
        assert torch.equal(a.reward, swapped(b.reward))
        assert torch.equal(a.reward, -swapped(a.reward)), "no points but those of the other"
        assert torch.equal(one.won, -two.won)
    assert one.won.unique().tolist() == [-1, 0, 1]


def test_cues_are_uniform_and_the_same_for_both() -> None:
    task = duel(4000, cues=4)
    counts = torch.stack([(task.cue == cue).sum(0) for cue in range(4)])
    assert counts.sub(1000).abs().max() < 5 * (4000 * 0.25 * 0.75) ** 0.5
    pairs = task.cue[:, 0] * 4 + task.cue[:, 1]
    assert pairs.bincount(minlength=16).sub(250).abs().max() < 5 * 250**0.5


def test_sizes_and_options() -> None:
    for size, cues, delay in (("easy", 3, 4), ("medium", 4, 50), ("hard", 8, 200)):
        task = make_task("recall-duel", 1, size=size)
        assert (task.max_episode_steps, task.horizon) == (delay + 6, delay + 3)
        assert task.observation_space.shape == (cues + 7,)
        assert task.action_space.n == 4 * cues  # pyright: ignore[reportAttributeAccessIssue]
        assert task.agent_names == ("north", "south")
    with pytest.raises(ConfigError, match=r"recall-duel: cues is 1; .* from 2"):
        make_task("recall-duel", 1, cues=1)


def test_words() -> None:
    task = duel(cue=(1, 2, 0))
    words = [task.describe_row(task.restore(task.snapshot()))]
    for action in ([0, 0], [0, 0], [0, 0], [0, 0], [act(1, 3), act(1, 1)], [act(0, 1), act(2, 0)]):
        words.append(task.describe_row(task.step(torch.tensor(action)).final_obs))
    assert words == [
        *("cue 1 of round 0", "cue 2 of round 1", "cue 0 of round 2", "blank"),
        *("round 0: 5 chips against 5, level", "round 1: 2 chips against 4, 1 ahead"),
        "round 2: 1 chips against 4, level",
    ]


# Players ---------------------------------------------------------------------------------------------------


def results(bids: tuple[int, ...], knows: bool = True, games: int = 2000, **bot: object) -> dict[str, float]:
    """Of a player who names every cue, or always 0, and bids so by round, against the bot: the return, and
    shares of games won, drawn and lost."""
    task = make_task("recall-duel", games, delay=0)
    assert isinstance(task, RecallDuel)
    env = Versus(task, task.opponent("bot", **bot))
    env.reset(1)
    total = torch.zeros(games)
    for _ in range(task.max_episode_steps):
        _, number, cue = task.next_round()
        total += env.step(cue * knows * 4 + torch.tensor(bids)[number]).reward
    return {"return": float(total.mean())} | {k: float(v.mean()) for k, v in env.outcomes().items()}


def test_the_best_returns_are_those_of_the_rules() -> None:
    """By a search through all bids: 1/3 and all games with memory; (4 / cues - 3) / 3 without."""
    for cues in (2, 3, 4, 8):
        assert best(cues, memory=True) == pytest.approx((1 / 3, 1.0))
        assert best(cues, memory=False) == pytest.approx(((4 / cues - 3) / 3, 1 / cues**2))


def test_the_best_bids_get_what_the_rules_say() -> None:
    """Against the bot that recalls everything, in its own env."""
    knowing, blind = results((3, 0, 2)), results((3, 0, 2), knows=False)
    assert (knowing["return"], knowing["win"]) == pytest.approx((1 / 3, 1.0))
    assert blind["return"] == pytest.approx(-5 / 9, abs=0.04)
    assert blind["win"] == pytest.approx(1 / 9, abs=0.03)
    assert results((2, 2, 1))["draw"] == 1.0


def test_the_bot_recalls_as_often_as_it_is_told() -> None:
    """Without memory it guesses, one of three; it is beaten when it forgets, whatever it bids."""
    for memory in (0.0, 0.5, 1.0):
        right = memory + (1 - memory) / 3
        found = results((0, 0, 0), memory=memory)
        assert found["return"] == pytest.approx((1 - right) - right, abs=0.03)
    for side in (0, 1):
        task = duel(3000)
        bot = RecallBot(task, memory=0.25)
        rows = torch.arange(3000) * 2 + side
        for _ in range(4):
            task.step(torch.zeros(6000, dtype=torch.int64))
        named = bot.act(rows, torch.zeros(0), torch.zeros(0)) // 4
        assert (named == task.cue[:, 0]).float().mean() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("bids", ["even", "random"])
def test_the_bids_of_the_bot(bids: str) -> None:
    """Even: 2, 2, 1. Random: each as often that it has chips for, the rest in the last round."""
    task = duel(3000, delay=0)
    bot, every = task.opponent("bot", bids=bids), torch.arange(6000)
    made = []
    for _ in range(6):
        action = bot.act(every, torch.zeros(0), torch.zeros(0))
        made.append(action % 4)
        task.step(action)
    first, second, third = made[3:]
    if bids == "even":
        assert [each.unique().tolist() for each in (first, second, third)] == [[2], [2], [1]]
        return
    assert first.bincount(minlength=4).sub(1500).abs().max() < 5 * 1500**0.5
    after = second[first == 3]
    assert after.bincount(minlength=3).sub(len(after) / 3).abs().max() < 5 * len(after) ** 0.5
    assert torch.equal(third, (5 - first - second).clamp(max=3))
    assert not torch.equal(first[::2], first[1::2]), "each side draws its own"


@pytest.mark.parametrize("bids", ["even", "random"])
def test_games_against_the_bot_are_those_of_their_slots(bids: str) -> None:
    """On the path of a GPU nothing is read, and slots 3 to 5 alone play as they do among six."""

    def against(num_envs: int, first_slot: int) -> Versus:
        task = duel(num_envs)
        task.first_slot = first_slot
        return Versus(task, task.opponent("bot", memory=0.5, bids=bids), first_slot)

    whole, part = against(6, 0), against(3, 3)
    assert torch.equal(whole.reset(4)[3:], part.reset(4))
    for action in random_actions(whole.env, 24, rows=6):
        with unread():
            step = whole.step(action)
        alone = part.step(action[3:])
        assert torch.equal(step.obs[3:], alone.obs)
        assert torch.equal(step.reward[3:], alone.reward)
    assert torch.equal(whole.games, torch.full((6,), 3))


def test_the_contract_of_two_sides() -> None:
    """It is a TwoSided env; its player takes options and refuses wrong ones by name."""
    task = duel()
    assert isinstance(task, TwoSided)
    with pytest.raises(ConfigError, match="no player 'bott'"):
        task.opponent("bott")
    with pytest.raises(ConfigError, match=r"memory is 1\.5"):
        task.opponent("bot", memory=1.5)
    with pytest.raises(ConfigError, match="bids is 'odd'"):
        task.opponent("bot", bids="odd")


# Learning --------------------------------------------------------------------------------------------------


def trained(steps: int, games: int, **settings: Any) -> float:
    """The share of games that an agent wins against the bot that it has learned from, which recalls all."""
    with rc.train("recall-duel", steps=steps, vs="bot", progress=False, threads=1, **settings) as agent:
        return agent.against("bot", games).total.share("win")


def test_an_agent_with_memory_learns_to_beat_the_bot() -> None:
    """With two cues and no blanks; without memory nobody wins more than a quarter."""
    assert best(2, memory=False)[1] == 0.25
    assert trained(36_000, 200, env_kwargs={"cues": 2, "delay": 0}) > 0.6


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_only_an_agent_with_memory_beats_the_bot(seed: int) -> None:
    """At the size easy, by the preset."""
    assert trained(150_000, 400, seed=seed) > 0.9
    assert trained(150_000, 400, seed=seed, core="none") < 0.2
