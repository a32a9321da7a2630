"""Games between members of a league, members from elsewhere, and other agents as opponents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.acting.policy_player import PolicyPlayer
from recollect.acting.versus_games import play_games, wilson
from recollect.envs.versus import Versus
from recollect.errors import ConfigError, RecollectError
from recollect.league import pool as pools
from recollect.league.check import check_league
from recollect.league.games import read_games
from recollect.league.matches import SEED, MatchLog
from recollect.league.matchmaking import Rosters
from recollect.league.pool import Pool
from recollect.league.prune import prune
from recollect.league.summary import summarise
from recollect.policy.policy import Policy
from recollect.training.opponents import add_member, match
from tests.support.two_sides import MEMBERS, TwoSides
from tests.training.test_league import OPTIONS, SMALL


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("league") / "run"
    rc.train(TwoSides, steps=300, run=str(folder), **SMALL).close()
    return folder


@pytest.fixture
def agent(run: Path) -> rc.Agent:
    (run / "league" / "matches.jsonl").unlink(missing_ok=True)
    return rc.load(run, env=TwoSides)


def test_a_match_has_as_many_games_on_each_side(agent: rc.Agent, run: Path) -> None:
    """S001-4: the player "fixed" wins all its games, whichever side it has; the log has each game once."""
    found = match(agent, "fixed", "s1", 10)
    assert {side: (one.win, one.games) for side, one in found.sides.items()} == {
        "north": (5, 5),
        "south": (5, 5),
    }
    lost = match(agent, "s1", "fixed", 6).total
    assert (lost.loss, lost.games) == (6, 6)
    rows = [(m.first, m.second, m.counts) for m in MatchLog(Pool(run / "league")).read()]
    assert rows == [
        ("fixed", "s1", (5, 0, 0)),
        ("s1", "fixed", (0, 0, 5)),
        ("s1", "fixed", (0, 0, 3)),
        ("fixed", "s1", (3, 0, 0)),
    ]


def test_a_match_of_two_snapshots_is_that_of_their_weights(agent: rc.Agent, run: Path) -> None:
    """Beside two policies that are loaded by hand."""
    pool = Pool(run / "league")
    found = match(agent, "s2", "s0", 20)
    policies = []
    for name in ("s2", "s0"):
        policies.append(rc.load(run, env=TwoSides).policy)
        policies[-1].load_state_dict(pool.load(name, policies[-1].state_dict()))
    env = TwoSides(16)
    versus = Versus(env, PolicyPlayer(policies[1].eval(), "cpu", SEED + 1))
    by_hand = play_games(policies[0], versus, opponent="s0", games=20, seed=SEED, deterministic=False)
    assert found.to_json() == by_hand.to_json()
    again = match(agent, "s2", "s0", 20)
    assert again.returns.tolist() != found.returns.tolist(), "other games"
    assert [m.seed for m in MatchLog(pool).read()] == [SEED, SEED, SEED + 1, SEED + 1]


def test_two_scripted_players(agent: rc.Agent) -> None:
    assert match(agent, "fixed", "echo", 4).total.win == 4


@pytest.mark.parametrize(
    ("names", "games", "words"),
    [
        (("s1", "s1"), 10, "both are s1"),
        (("s1", "s77"), 10, "s77"),
        (("nobody", "s1"), 10, "nobody"),
        (("s1", "echo"), 1, "at least 2"),
    ],
)
def test_errors_of_matches(
    agent: rc.Agent, run: Path, names: tuple[str, str], games: int, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        match(agent, *names, games)
    assert not (run / "league" / "matches.jsonl").exists(), "nothing is kept"


def test_a_damaged_snapshot_is_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rc.train(TwoSides, steps=200, run=str(run), **SMALL).close()
    (run / "league" / "members" / "s1.safetensors").write_bytes(b"damaged")
    agent = rc.load(run, env=TwoSides)
    with pytest.raises(RecollectError, match=r"s1\.safetensors"):
        match(agent, "s1", "echo", 4)
    assert match(agent, "s0", "echo", 4).total.games == 4, "the others play"


def test_a_run_without_a_league() -> None:
    agent = rc.train(TwoSides, steps=48, **SMALL | {"vs": "echo", "vs_kwargs": {}})
    with agent, pytest.raises(ConfigError, match="--vs league"):
        match(agent, "echo", "fixed", 4)


def test_an_agent_as_the_opponent(agent: rc.Agent) -> None:
    """S001-5: it acts in the same mode, with its own memory, the same in each call; neither changes."""
    weights = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    with rc.train(
        TwoSides, steps=200, core="none", **{k: v for k, v in SMALL.items() if "vs" not in k and k != "core"}
    ) as other:
        one, two = (agent.against(other, 12, eval_mode="both").to_json() for _ in range(2))
        assert one == two
        assert one["games"] == 12
        assert one["returns"] != one["sampled"]["returns"]
        mine, theirs = (
            agent.against(other, 40, eval_mode="greedy"),
            other.against(agent, 40, eval_mode="greedy"),
        )
        assert mine.total.games == theirs.total.games == 40
        with pytest.raises(ConfigError, match="vs_kwargs"):
            agent.against(other, 4, vs_kwargs={"error": 0.5})
    assert all(torch.equal(weights[name], t) for name, t in agent.policy.state_dict().items())


def test_both_act_in_the_same_mode(agent: rc.Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy actions against sampled ones would compare two things at once."""
    modes: list[bool] = []
    act = PolicyPlayer.act

    def noted(self: PolicyPlayer, *arguments: Any) -> Any:
        modes.append(self.deterministic)
        return act(self, *arguments)

    monkeypatch.setattr(PolicyPlayer, "act", noted)
    for mode, expected in (("greedy", True), ("sampled", False)):
        modes.clear()
        agent.against(agent, 4, eval_mode=mode)
        assert set(modes) == {expected}, "the mode of both"


def test_names_of_opponents(agent: rc.Agent) -> None:
    """A member or a scripted player; anything else is named, with the members that there are."""
    assert agent.against("s1", 4, eval_mode="greedy").opponent == "s1"
    with pytest.raises(ConfigError, match=r"did you mean 'echo'.*echo, fixed, s0"):
        agent.against("ecko", 4)


# Members from elsewhere ------------------------------------------------------------------------------------


def add(run: Path, other: rc.Agent) -> Any:
    """Trained for long, elsewhere."""
    mine, weights = rc.load(run, env=TwoSides), other.policy.state_dict()
    return add_member(mine, other, weights, "rival", 10**6, "elsewhere")


def test_a_member_from_elsewhere_plays(tmp_path: Path) -> None:
    """S001-4: from the next roster on; it plays with its own weights, and the log stays in order."""
    run = tmp_path / "run"
    settings = SMALL | {"vs_kwargs": OPTIONS | {"opponents": 20, "matchmaking": "uniform"}}
    rc.train(TwoSides, steps=200, run=str(run), **settings).close()
    with rc.train(TwoSides, steps=100, run=str(tmp_path / "other"), seed=9, **SMALL) as other:
        assert add(run, other).name == "rival"
        expected = {name: tensor.clone() for name, tensor in other.policy.state_dict().items()}
    with rc.resume(run, env=TwoSides, steps=1000, progress=False) as agent:
        found = Pool(run / "league").load("rival", agent.policy.state_dict())
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())
    rosters = Rosters(run / "league").read()
    assert any("rival" in roster.members for roster in rosters)
    assert any(game.member == "rival" for game in read_games(run / "league"))
    assert all(roster.latest != "rival" for roster in rosters), "it is no past self"
    assert check_league(run).faults == []
    later = [one for one in Pool(run / "league").members if one.is_own and one.steps > 300]
    assert len(later) >= 6, "snapshots are made as before"
    assert match(agent, "rival", "fixed", 4).total.loss == 4
    assert agent.against("rival", 4, eval_mode="greedy").opponent == "rival"


def test_it_must_fit(tmp_path: Path) -> None:
    """Another env, other options, another network: named, and the league is as before."""
    run = tmp_path / "run"
    rc.train(TwoSides, steps=100, run=str(run), **SMALL).close()
    before = Pool(run / "league").members
    plain = SMALL | {"vs": "echo", "vs_kwargs": {}}
    duel: dict[str, Any] = {"num_envs": 4, "rollout": 12, "chunk": 4, "vs": "bot", "progress": False}
    for env, settings, words in (
        (TwoSides, plain | {"env_kwargs": {"team": 1}}, r"another env.*env_kwargs"),
        (TwoSides, plain | {"core": rc.GRUConfig(hidden=9)}, r"another network.*hidden=9"),
        ("recall-duel", duel, "another env"),
    ):
        other = rc.train(env, steps=48, **settings)
        with other, pytest.raises(ConfigError, match=words):
            add(run, other)
    assert Pool(run / "league").members == before


def test_retired_members_do_not_play_again(tmp_path: Path) -> None:
    """After ``prune``, the rosters of a resumed training have the members that were kept."""
    run = tmp_path / "run"
    rc.train(TwoSides, steps=400, run=str(run), **SMALL).close()
    pool = Pool(run / "league")
    gone = {one.name for one in prune(pool, 2)}
    assert len(gone) >= 2
    last = Rosters(pool.folder).read()[-1].number
    rc.resume(run, env=TwoSides, steps=200, progress=False).close()
    later = [roster for roster in Rosters(pool.folder).read() if roster.number > last]
    assert later
    assert not gone & {name for roster in later for name in roster.members}
    assert check_league(run).faults == []
    counts = Counter(game.member for game in read_games(pool.folder))
    assert counts["fixed"] > 0


# Large leagues ---------------------------------------------------------------------------------------------


def test_a_hundred_snapshots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resume loads the weights of the opponents of its rosters and of games in progress, and no others."""
    run = tmp_path / "run"
    settings = SMALL | {
        "vs_kwargs": OPTIONS | {"opponents": 4, "refresh_every": 10_000, "promote_every": 10_000}
    }
    with rc.train(TwoSides, steps=100, run=str(run), **settings) as agent:
        pool = Pool(run / "league")
        for _ in range(100):
            pool.add(agent.policy.state_dict(), 0)
    loaded: list[str] = []
    hashed: list[str] = []
    load, sha = pools.load_file, pools._sha256
    monkeypatch.setattr(pools, "load_file", lambda file: loaded.append(file.name) or load(file))
    monkeypatch.setattr(pools, "_sha256", lambda file: hashed.append(file.name) or sha(file))
    rc.resume(run, env=TwoSides, steps=10_100, progress=False, eval_every=0).close()
    rosters = Rosters(run / "league").read()[-2:]
    assert len(Pool(run / "league").members) == 104
    needed = {name for roster in Rosters(run / "league").read() for name in roster.members}
    assert rosters[-1].steps > 100
    assert len(needed) <= 2 * 4 + 2
    assert {name.removesuffix(".safetensors") for name in loaded} <= needed
    assert len(loaded) <= len(needed)
    assert len(hashed) <= 3 * len(needed)


def test_policies_of_players_are_copies(agent: rc.Agent) -> None:
    """The agent that plays, and its league's template, keep their device, mode and weights."""
    assert isinstance(agent.policy, Policy)
    was = agent.policy.training
    match(agent, "s0", "s1", 4)
    assert agent.policy.training is was
    assert agent.policy.initial_state(MEMBERS) is not None


def test_a_league_teaches_the_second_game(tmp_path: Path) -> None:
    """In seconds: the newest snapshot beats those of the first half, and ratings rise with the training."""
    run = tmp_path / "run"
    league = {"promote_every": 6000, "refresh_every": 2000}
    easy: dict[str, Any] = {"env_kwargs": {"cues": 2, "delay": 0}, "threads": 1, "progress": False}
    rc.train("recall-duel", vs="league", vs_kwargs=league, steps=24_000, run=str(run), **easy).close()
    agent = rc.load(run)
    for name in ("s0", "s1"):
        total = match(agent, "s4", name, 200).total
        assert wilson(total.win + total.draw / 2, total.games)[0] > 0.5, name
    ratings = summarise(Pool(run / "league")).ratings
    values = [ratings[f"s{i}"].value for i in range(5)]
    assert values[0] < values[2] < values[4]
    assert check_league(run).faults == []
