"""The opponents of a league: one for each game, drawn at the reset of its slot; its memory restarts then."""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.base import files, tree
from recollect.envs.contract import BetweenRollouts, Capturable, Resumable
from recollect.envs.versus import Versus
from recollect.errors import ConfigError, RecollectError
from recollect.league.cast import Cast
from recollect.league.games import Game, count, faults, read_games
from recollect.league.matchmaking import Roster
from recollect.league.pool import Pool
from tests.support.leagues import SLOTS, actions, network, pool, redrawn, results, roster, versus
from tests.support.two_sides import AGENTS, MEMBERS, Echo, TwoSides

NAMES = ("echo", "s0", "s1", "s2")


def faults_of(folder: Path, names: tuple[str, ...] = NAMES) -> list[str]:
    one = Roster(**roster(names))
    return faults(read_games(folder), lambda game: redrawn(game, one, 3))


def test_one_opponent_for_each_game(tmp_path: Path) -> None:
    """S001-4: by the log of the games, also over new rosters that come in the middle of games."""
    pool(tmp_path)
    env = versus(tmp_path, NAMES)
    env.reset(0)
    for number, own in enumerate(actions(60).split(7)):
        env.player.adjust(league=roster(NAMES, number))
        results(env, own)
    assert faults_of(tmp_path) == []
    played = Counter(game.member for game in read_games(tmp_path))
    assert set(played) == set(NAMES)
    assert len({game.roster for game in read_games(tmp_path)}) > 5
    assert {game.slot for game in read_games(tmp_path)} == set(range(SLOTS)), "every slot has its own draws"


def test_outcomes_are_those_of_the_env(tmp_path: Path) -> None:
    """S001-4: every game is booked to its member, side and result, for the agent."""
    pool(tmp_path)
    env = versus(tmp_path, NAMES, first_slot=3)
    seen: dict[int, list[str]] = {slot: [] for slot in range(SLOTS)}
    env.reset(0)
    for slot, outcome in results(env, actions(120)):
        seen[slot].append(outcome)
    logged: dict[int, list[Game]] = {slot: [] for slot in range(SLOTS)}
    for game in read_games(tmp_path):
        logged[game.slot - 3].append(game)
    for slot, games in logged.items():
        outcomes = [game.outcome for game in games]
        assert outcomes == seen[slot][: len(outcomes)], "booked to the agent"
        assert len(seen[slot]) - len(outcomes) <= 1, "a game is logged when the next begins"
        assert {game.side for game in games} == {env.sides[slot]}
    assert faults_of(tmp_path) == []


def test_members_that_always_win_or_lose(tmp_path: Path) -> None:
    """S001-4: each result is that of the member that played, not of the one that comes next."""

    class Known(TwoSides):
        opponents = ("strong", "weak")

        def opponent(self, name: str, **options: Any) -> Any:
            return super().opponent("fixed", result=1 if name == "strong" else -1)

    env = Known(SLOTS)
    cast = Cast(env, versus(tmp_path, ()).player.config, tmp_path, make=network, seed=3)
    cast.adjust(league=roster(Known.opponents))
    one = Versus(env, cast)
    one.reset(0)
    results(one, actions(120))
    found = count(read_games(tmp_path))
    assert found["strong"].loss == found["strong"].games > 10
    assert found["weak"].win == found["weak"].games > 10


class Spy(Cast):
    """Notes what each member is asked."""

    def _play(self, name: str, rows: Any, obs: Any, first: Any) -> Any:
        found = super()._play(name, rows, obs, first)
        self.asked.append((name, rows.tolist(), obs.clone(), first.tolist(), self.env.age.tolist()))
        return found

    asked: list[Any]


def spied(folder: Path, names: tuple[str, ...]) -> Versus:
    env = TwoSides(SLOTS)
    cast = Spy(env, versus(folder, ()).player.config, folder, make=partial(network, 0), seed=3)
    cast.asked = []
    cast.adjust(league=roster(names))
    return Versus(env, cast)


def test_memories_are_those_of_a_player_alone(tmp_path: Path) -> None:
    """S001-4: each member with its own weights, its memory from the start of the game and no other's."""
    pool(tmp_path)
    env = spied(tmp_path, ("s0", "s1", "s2"))
    env.reset(0)
    results(env, actions(40))
    policies = {f"s{i}": network(i).eval().actor_only() for i in range(3)}
    states: dict[int, Any] = {}
    batches = Counter()
    for name, rows, obs, _, ages in env.player.asked:
        policy = policies[name]
        batches[len(rows)] += 1
        for i, row in enumerate(rows):
            first = torch.tensor([ages[row // AGENTS] == 0])
            before = policy.initial_state(1) if first else states[row]
            _, states[row] = policy.act(obs[i : i + 1], before, first, torch.Generator())
    for row, state in states.items():
        mine = tree.index(env.player._memory, slice(row, row + 1))
        for one, two in zip(tree.leaves(mine), tree.leaves(state), strict=True):
            torch.testing.assert_close(one, two, msg="the memory is that of the present game")
    assert max(batches) > MEMBERS, "rows of a member are one batch"


def test_first_is_that_of_the_slot(tmp_path: Path) -> None:
    """S001-4: all rows of a slot restart with its game, also one that is absent from it."""
    pool(tmp_path)
    env = spied(tmp_path, NAMES)
    env.adjust(team=1)
    env.reset(0)
    for own in actions(30):
        ages = env.env.age.clone()
        env.player.asked.clear()
        env.step(own)
        for _, rows, _, first, _ in env.player.asked:
            assert first == [int(ages[row // AGENTS]) == 0 for row in rows], "restarts with the game"


def test_a_member_is_drawn_at_the_reset_of_its_slot(tmp_path: Path) -> None:
    """S001-4: a roster with other members reaches a slot at its next reset, and not before."""
    pool(tmp_path)
    env = versus(tmp_path, ("s0",))
    env.reset(0)
    results(env, actions(2))
    env.player.adjust(league=roster(("s1",), 1))
    changed: set[int] = set()
    for own in actions(14):
        starts = (env.env.age == 0).nonzero().flatten().tolist()
        env.step(own)
        changed |= set(starts)
        names = [env.player._names()[place] for place in env.player._slots.member.tolist()]
        assert names == ["s1" if slot in changed else "s0" for slot in range(SLOTS)], "fixed in a game"
    assert len(changed) == SLOTS


def test_draws_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    """S001-4: by slot and game; slots of several actors have the opponents that they have together."""
    for name in ("whole", "parts"):
        pool(tmp_path / name)
    whole = versus(tmp_path / "whole", NAMES, slots=6)
    parts = [versus(tmp_path / "parts", NAMES, slots=3, first_slot=start) for start in (0, 3)]
    for env in (whole, *parts):
        env.reset(0)
        results(env, actions(60, env.num_envs))
    found = [
        {(game.slot, game.game): game.member for game in read_games(tmp_path / name)}
        for name in ("whole", "parts")
    ]
    common = found[0].keys() & found[1].keys()
    assert len(common) > 40
    assert {found[0][key] for key in common} == set(NAMES)
    assert all(found[0][key] == found[1][key] for key in common)


def same(one: Any, two: Any) -> bool:
    return all(
        torch.equal(a.nan_to_num(9.0), b.nan_to_num(9.0))
        for a, b in zip(
            [one.obs, one.reward, one.first, *one.info.values()],
            [two.obs, two.reward, two.first, *two.info.values()],
            strict=True,
        )
    )


def test_a_restore_continues_bit_for_bit(tmp_path: Path) -> None:
    """S001-4: assignments, memories, random numbers and the log, in the middle of games."""
    pool(tmp_path / "one")
    env = versus(tmp_path / "one", NAMES)
    env.reset(0)
    results(env, actions(23))
    shot = env.snapshot()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    expected = [(env.step(own), env.snapshot()) for own in actions(40, seed=5)]
    again = versus(tmp_path / "two", ())
    again.reset(9)
    again.restore(shot)
    again.player.adjust(league=roster(NAMES))
    for own, (one, then) in zip(actions(40, seed=5), expected, strict=True):
        assert same(one, again.step(own))
        now = again.snapshot()
        assert [name for name, tensor in then.items() if not torch.equal(now[name], tensor)] == []
    assert list(read_games(tmp_path / "one")) == list(read_games(tmp_path / "two"))
    back = versus(tmp_path / "one", ())
    back.reset(9)
    back.restore(shot)
    back.player.adjust(league=roster(NAMES))
    results(back, actions(40, seed=5))
    assert list(read_games(tmp_path / "one")) == list(read_games(tmp_path / "two")), "later games are removed"


def test_a_new_process_counts_on(tmp_path: Path) -> None:
    """An actor that was restarted has new games with other draws."""
    pool(tmp_path)
    for _ in range(2):
        env = versus(tmp_path, NAMES)
        env.reset(0)
        results(env, actions(30))
    assert faults_of(tmp_path) == []
    assert max(game.game for game in read_games(tmp_path)) > 8


def test_a_reset_in_the_middle_of_games_books_nothing(tmp_path: Path) -> None:
    pool(tmp_path)
    env = versus(tmp_path, NAMES)
    for _ in range(3):
        env.reset(0)
        results(env, actions(2))
    assert list(read_games(tmp_path)) == []


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_member_that_cannot_be_loaded_does_not_play(tmp_path: Path, damage: str) -> None:
    made, file = pool(tmp_path), tmp_path / "members" / "s1.safetensors"
    if damage == "missing":
        file.unlink()
    else:
        file.write_bytes(b"x" * 100)
    env = versus(tmp_path, NAMES)
    env.reset(0)
    with pytest.warns(UserWarning, match=r"s1 does not play.*s1\.safetensors"):
        results(env, actions(40))
    assert set(count(read_games(tmp_path))) == {"echo", "s0", "s2"}
    assert len(made.members) == 5
    alone = versus(tmp_path, ("s1",))
    alone.reset(0)
    with pytest.warns(UserWarning, match="s1"), pytest.raises(RecollectError, match="no member"):
        results(alone, actions(1))


def test_a_restored_game_without_its_opponent_does_not_count(tmp_path: Path) -> None:
    """S001-4: another member goes on, from a memory that is new, and nothing is booked."""
    pool(tmp_path)
    env = versus(tmp_path, ("s0", "s1"))
    env.reset(0)
    results(env, actions(2))
    shot, before = env.snapshot(), env.player._slots.member.clone()
    (tmp_path / "members" / "s1.safetensors").unlink()
    again = versus(tmp_path, ())
    again.reset(0)
    with pytest.warns(UserWarning, match="s1"):
        again.restore(shot)
    again.player.adjust(league=roster(("s0",)))
    lost = set((before == 3).nonzero().flatten().tolist())
    assert lost
    assert again.player._restart.nonzero().flatten().tolist() == sorted(lost)
    results(again, actions(12))
    first_games = {game.slot for game in read_games(tmp_path) if game.game == 0}
    assert first_games == set(range(SLOTS)) - lost
    assert all(game.swaps == 0 for game in read_games(tmp_path))


def test_a_restore_with_an_older_copy_of_the_league(tmp_path: Path) -> None:
    """S001-4: games of members that are not in it do not count."""
    pool(tmp_path / "new")
    pool(tmp_path / "old", 1)
    env = versus(tmp_path / "new", ("s0", "s2"))
    env.reset(0)
    results(env, actions(2))
    lost = set((env.player._slots.member == 4).nonzero().flatten().tolist())
    assert 0 < len(lost) < SLOTS
    again = versus(tmp_path / "old", ())
    again.reset(0)
    again.restore(env.snapshot())
    again.player.adjust(league=roster(("s0",)))
    results(again, actions(12))
    assert {game.slot for game in read_games(tmp_path / "old") if game.game == 0} == set(range(SLOTS)) - lost


def test_without_a_roster_the_permanent_members_play(tmp_path: Path) -> None:
    """As in evaluations: the env's scripted players, else the first snapshot; no game is logged."""
    pool(tmp_path)
    env = versus(tmp_path, ())
    env.reset(0)
    results(env, actions(20))
    assert {env.player._names()[place] for place in env.player._slots.member.tolist()} <= {"echo", "fixed"}
    assert list(read_games(tmp_path)) == []
    env.env.opponents = ()
    env.reset(1)
    results(env, actions(1))
    assert {env.player._names()[place] for place in env.player._slots.member.tolist()} == {"s0"}
    empty = versus(tmp_path / "none", ())
    empty.env.opponents = ()
    empty.reset(0)
    with pytest.raises(ConfigError, match="empty"):
        results(empty, actions(1))


@pytest.mark.parametrize("slots", [1, 4])
def test_an_evaluation_can_be_repeated(tmp_path: Path, slots: int) -> None:
    """S001-5: a reset with the same seed gives the same opponents and games, on the same env."""
    pool(tmp_path)
    env = versus(tmp_path, (), slots=slots)
    found = []
    for _ in range(2):
        env.reset(7)
        found.append([])
        for own in actions(40, slots):
            step = env.step(own)
            names = [env.player._names()[place] for place in env.player._slots.member.tolist()]
            found[-1].append((names, step.reward.tolist(), env.env.won.tolist()))
    assert found[0] == found[1], "repeated"
    assert len({names[0] for names, _, _ in found[0]}) == 2, "games of a slot have different opponents"


def test_few_networks_are_in_memory(tmp_path: Path) -> None:
    pool(tmp_path, 12)
    env = versus(tmp_path, (), opponents=2)
    env.reset(0)
    for number in range(12):
        env.player.adjust(league=roster((f"s{number}",), number))
        results(env, actions(13))
        assert len(env.player._loaded) <= 3
    loads: list[str] = []
    load = env.player._load
    env.player._load = lambda name: loads.append(name) or load(name)
    assert {env.player._names()[place] for place in env.player._slots.member.tolist()} == {"s11"}
    env.player.adjust(league=roster(("s0", "s1"), 12))
    results(env, actions(30))
    assert sorted(loads) == ["s0", "s1"], "once each, also while other members still play"
    weights = env.player._policy("s11").state_dict()
    assert all(torch.equal(weights[k], t) for k, t in network(11).actor_only().state_dict().items())


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The games go on; those that could not be written do not count, also after a restore."""
    pool(tmp_path)
    env = versus(tmp_path, NAMES)
    env.reset(0)
    with monkeypatch.context() as patch:
        patch.setattr(files, "append_whole", full)
        with pytest.warns(UserWarning, match="not counted"):
            results(env, actions(10))
    assert list(read_games(tmp_path)) == []
    results(env, actions(20))
    written = list(read_games(tmp_path))
    assert faults_of(tmp_path) == []
    assert written
    again = versus(tmp_path, ())
    again.reset(0)
    again.restore(env.snapshot())
    again.player.adjust(league=roster(NAMES))
    assert list(read_games(tmp_path)) == written


def full(file: Path, text: str) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("seen", ["other", None])
def test_a_folder_that_is_not_shared(tmp_path: Path, seen: str | None) -> None:
    """S001-4: an actor on a node that has another folder at this path, or none, neither plays nor logs."""
    owner = pool(tmp_path / "learner").own()
    if seen is not None:
        pool(tmp_path / seen).own()
    env = versus(tmp_path / (seen or "none"), ())
    with pytest.raises(ConfigError, match=r"not the folder.*all nodes mount.*processes"):
        env.adjust(league=roster(NAMES) | {"owner": owner})
    assert not (tmp_path / (seen or "none") / "games").exists()
    versus(tmp_path / "learner", ()).adjust(league=roster(NAMES) | {"owner": owner})


def test_protocols(tmp_path: Path) -> None:
    env = versus(tmp_path, ())
    assert isinstance(env, Resumable)
    assert isinstance(env, Capturable)
    assert isinstance(env, BetweenRollouts)
    assert "league" in env.adjustable


def test_a_scripted_player_that_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cast is captured only if its scripted players may be."""
    monkeypatch.setattr(Echo, "is_capturable", False, raising=False)
    assert not isinstance(versus(tmp_path, ()), Capturable)


def test_a_network_of_another_shape(tmp_path: Path) -> None:
    made = pool(tmp_path, 1)
    small = {
        name: tensor[..., :1].clone() for name, tensor in network(0).state_dict().items() if tensor.dim()
    }
    made.add(small, 100)
    env = versus(tmp_path, ("s0", "s1"))
    env.reset(0)
    with pytest.warns(UserWarning, match="s1.*another network"):
        results(env, actions(6))
    assert isinstance(env.env.opponent("echo"), Echo)
    assert Pool(tmp_path).members[-1].name == "s1"
