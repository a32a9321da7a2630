"""A league on the path of a GPU, on the CPU: the same games, nothing read, and graphs that stay right."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base import devices, tree
from recollect.config.league import LeagueConfig
from recollect.envs.contract import Capturable
from recollect.envs.versus import Versus
from recollect.league.cast import Cast
from recollect.league.check import check_league
from recollect.league.games import faults, read_games
from recollect.league.matchmaking import Roster
from recollect.runtimes import inline_collector
from tests.support import resumed
from tests.support.leagues import SLOTS, actions, network, pool, redrawn, results, roster, versus
from tests.support.reads import unread
from tests.support.tape import TapeGraphs
from tests.support.two_sides import Echo, TwoSides
from tests.training.test_league import SMALL, folders

NAMES = ("echo", "s0", "s1", "s2")
CERTAIN = 1e6
"""A gain with which an action has no chance beside the likeliest, so that it does not depend on the draw."""


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a GPU, reads allowed."""
    monkeypatch.setattr(devices, "synchronises", lambda where: True)


def played(folder: Path, steps: int, is_static: bool) -> tuple[Versus, list[Any]]:
    """Games against members, under two rosters; with reads forbidden in steps of the path of a GPU."""
    pool(folder, gain=CERTAIN)
    env = versus(folder, NAMES[:3])
    found = []
    with pytest.MonkeyPatch.context() as patch:
        if is_static:
            patch.setattr(devices, "synchronises", lambda where: True)
        env.reset(0)
        for number, own in enumerate(actions(steps).split(10)):
            if number:
                env.player.adjust(league=roster(NAMES[number % 2 : 3 + number % 2], number))
            if is_static:
                env.player.between_rollouts(len(own))
            for action in own:
                if is_static and env.player._has_acted:
                    with unread():
                        step = env.step(action)
                else:  # the first step makes what is then used
                    step = env.step(action)
                parts = (step.obs, step.reward, step.first, env.env.points, env.env.won)
                found.append([tensor.clone() for tensor in parts])
        if is_static:
            env.player.between_rollouts(1)
    return env, found


def test_the_path_of_a_gpu_plays_the_same_games(tmp_path: Path) -> None:
    """S001-4: the same opponents, observations, memories and log; and steps without host reads."""
    one, expected = played(tmp_path / "one", 70, is_static=False)
    two, found = played(tmp_path / "two", 70, is_static=True)
    for a, b in zip(expected, found, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True)), "the same games"
    games = sorted(read_games(tmp_path / "one"), key=lambda game: (game.slot, game.game))
    assert games == sorted(read_games(tmp_path / "two"), key=lambda game: (game.slot, game.game)), (
        "the same log"
    )
    assert set(Counter(game.member for game in games)) == set(NAMES)
    assert len({game.roster for game in games}) > 5
    first, second = one.player.snapshot(), two.player.snapshot()
    member = first["member"][torch.arange(len(first["memory"])) // 4]
    mine = torch.zeros(len(member), dtype=torch.bool).index_fill_(0, one._theirs, True) & (member > 1)
    for name, tensor in first.items():
        if name.startswith("memory"):
            torch.testing.assert_close(tensor[mine], second[name][mine], msg="the same memories")
        elif not name.startswith("scripted"):
            assert torch.equal(tensor, second[name]), name


def make_actor(folder: Path, graphs: TapeGraphs | None = None, **config: Any) -> Actor:
    env = versus(folder, (), **config)
    env.player.adjust(league=roster(("echo", "s0", "s1")))
    return Actor(env, network(9), rollout=7, state_steps=(0,), seed=3, graphs=graphs, keeps_finals=False)


SCHEDULE = {4: ("echo", "s2", "s1"), 6: ("echo", "s0"), 9: ("s3", "s4", "s5"), 14: ("s0", "s5")}
"""Other rosters, by rollout."""


def rollouts(actor: Actor, count: int, start: int = 0) -> list[Any]:
    """Rollouts, with the rosters of the schedule."""
    found = []
    for number in range(start, start + count):
        if number in SCHEDULE:
            actor.env.player.adjust(league=roster(SCHEDULE[number], number))
        rollout = actor.collect()
        parts = {"obs": rollout.obs, "reward": rollout.reward, "first": rollout.first}
        found.append(tree.clone(parts) | actor.env.snapshot())
    return found


def assert_equal(one: list[Any], two: list[Any], text: str) -> None:
    for number, (a, b) in enumerate(zip(one, two, strict=True)):
        for name, leaf in a.items():
            assert torch.equal(leaf, b[name]), f"{text}: {name} of rollout {number}"


@pytest.mark.parametrize("opponents", [2, 8])
def test_graphs_are_the_eager_steps(tmp_path: Path, waiting: None, opponents: int) -> None:
    """S001-4: bit for bit, over other rosters in the middle of games; with room for few members, captured
    again when more play at a time."""
    for name in ("one", "two"):
        pool(tmp_path / name, 6)
    graphs = TapeGraphs(torch.device("cpu"))
    taped = make_actor(tmp_path / "one", graphs, opponents=opponents)
    eager = make_actor(tmp_path / "two", opponents=opponents)
    assert_equal(rollouts(taped, 20), rollouts(eager, 20), "captured")
    assert taped._buffers[0].play_all.is_graph
    games = list(read_games(tmp_path / "one"))
    assert games == list(read_games(tmp_path / "two"))
    assert set(Counter(game.member for game in games)) == {"echo", *(f"s{i}" for i in range(6))}
    rosters = {0: ("echo", "s0", "s1")} | SCHEDULE

    def drawn(game: Any) -> str:
        return redrawn(game, Roster(**roster(rosters[game.roster])), 3)

    assert faults(games, drawn) == []
    assert len(graphs.tapes) == (1 if opponents == 8 else 2), "captured again for more members"
    assert not graphs.tapes[-1].dead()


@pytest.mark.parametrize("opponents", [2, 8])
def test_a_resume_of_captured_acting(tmp_path: Path, waiting: None, opponents: int) -> None:
    """S001-4, S001-21: games, memories and random numbers, bit for bit, from the end of a rollout; also if
    more members have played at a time than play now."""
    pool(tmp_path, 6)
    whole = make_actor(tmp_path, TapeGraphs(torch.device("cpu")), opponents=opponents)
    rollouts(whole, 5)
    assert opponents == 8 or whole.env.player._tiles.capacity > len(whole.env.player._needed())
    shot = {name: tensor.clone() for name, tensor in (whole.snapshot() or {}).items()}
    logged = list(read_games(tmp_path))
    expected = rollouts(whole, 8, start=5)
    games = list(read_games(tmp_path))
    again = make_actor(tmp_path, TapeGraphs(torch.device("cpu")), opponents=opponents)
    again.restore(shot)
    again.env.player.adjust(league=roster(SCHEDULE[4], 4))
    assert list(read_games(tmp_path)) == logged, "later games are removed"
    assert_equal(rollouts(again, 8, start=5), expected, "resumed")
    assert list(read_games(tmp_path)) == games


def test_actions_differ_between_steps_and_rollouts(tmp_path: Path, waiting: None) -> None:
    """The random numbers of a graph are new ones in every step and in every replay."""
    pool(tmp_path, 1)
    env = versus(tmp_path, ("s0",))
    seen: list[list[int]] = []
    act = env.player.act
    env.player.act = lambda *given: seen.append((found := act(*given)).tolist()) or found
    env.reset(0)
    for own in actions(40).split(4):
        env.player.between_rollouts(4)
        results(env, own)
    assert len({tuple(one) for one in seen}) > 30
    first = seen[:]
    seen.clear()
    env.reset(0)  # of a training: its games are other ones
    env.player.between_rollouts(40)
    results(env, actions(40))
    assert first != seen


def test_more_games_than_were_expected(tmp_path: Path, waiting: None) -> None:
    """There is a warning, and those that had room are right; an evaluation logs none anyway."""
    pool(tmp_path)
    env = versus(tmp_path, NAMES)
    env.reset(0)
    env.player.between_rollouts(2)
    results(env, actions(40))
    with pytest.warns(UserWarning, match="games are not in the log"):
        env.player.between_rollouts(2)
    one = Roster(**roster(NAMES))
    games = list(read_games(tmp_path))
    assert len(games) == 2 * SLOTS
    assert faults(games, lambda game: redrawn(game, one, 3)) == []
    evaluated = versus(tmp_path / "other", ())
    evaluated.reset(0)
    results(evaluated, actions(40))
    evaluated.player.between_rollouts(1)
    assert list(read_games(tmp_path / "other")) == []


def test_trainings(tmp_path: Path, waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """S001-4: captured, with snapshots; each game is logged before the next opponents are chosen."""
    monkeypatch.setattr(inline_collector, "Graphs", TapeGraphs)
    logged: dict[int, int] = {}

    class Counting(rc.Callback):
        def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
            env = training._trainer.collector.envs[0]
            assert env.player._slots.taken() == ([], 0), "logged before the callbacks"
            logged[training.steps] = len(list(read_games(training.run.path / "league")))

    settings: dict[str, Any] = SMALL | {"run": str(tmp_path / "run"), "callbacks": [Counting()]}
    with rc.train(TwoSides, steps=1800, **settings) as agent:
        assert agent._trainer is not None
        (actor,) = agent._trainer.collector.actors
        assert actor._buffers[0].play_all.is_graph
    assert check_league(tmp_path / "run").faults == []
    assert len(set(logged.values())) == len(logged) > 8


def test_a_scripted_player_that_reads(tmp_path: Path, waiting: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """S001-4: acting is not captured then, and all games are logged."""
    monkeypatch.setattr(Echo, "is_capturable", False, raising=False)
    pool(tmp_path)
    actor = make_actor(tmp_path)
    for _ in range(3):
        actor.collect()
    actor.env.player.between_rollouts(1)
    assert not isinstance(actor.env, Capturable)
    assert len(list(read_games(tmp_path))) == int((actor.env.player._slots.game).sum())


def test_a_lost_opponent_of_a_new_process(tmp_path: Path, waiting: None) -> None:
    """S001-4: a restored game goes on with another member, before the env has made a step."""
    pool(tmp_path)
    before = make_actor(tmp_path)
    before.collect()
    shot = before.snapshot() or {}
    (tmp_path / "members" / "s1.safetensors").unlink()
    again = make_actor(tmp_path)
    with pytest.warns(UserWarning, match="s1"):
        again.restore(shot)
    played_on = again.env.player._slots.member.tolist()
    assert 3 in before.env.player._slots.member.tolist()
    assert 3 not in played_on
    again.collect()


def test_a_training_resumes(tmp_path: Path, waiting: None) -> None:
    """S001-4, S001-21: bit for bit, with the same members, rosters and games."""
    whole, halves = resumed.twice(tmp_path, TwoSides, SMALL, at=200)
    with whole, halves:
        resumed.assert_equal(resumed.weights(whole), resumed.weights(halves))
    assert folders(tmp_path / "whole") == folders(tmp_path / "halves")
    assert check_league(tmp_path / "halves").faults == []


def test_scripted_players_only(tmp_path: Path, waiting: None) -> None:
    """A league without snapshots has no network."""
    env = TwoSides(SLOTS)
    cast = Cast(env, LeagueConfig(), tmp_path, make=partial(network, 0), seed=3)
    pool(tmp_path, 0)
    cast.adjust(league=roster(("echo",)))
    one = Versus(env, cast)
    one.reset(0)
    cast.between_rollouts(30)
    results(one, actions(30))
    cast.between_rollouts(30)
    assert {game.member for game in read_games(tmp_path)} == {"echo"}
    assert cast._tiles is None
