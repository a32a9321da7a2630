"""Training against a league: snapshots, opponents and the games, in every runtime and over a resume."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.envs.versus import find_versus
from recollect.errors import ConfigError, RecollectError
from recollect.league.check import check_league
from recollect.league.games import count, read_games
from recollect.league.matchmaking import Rosters
from recollect.league.pool import Pool
from recollect.league.results import played
from tests.support import resumed
from tests.support.doomed import without
from tests.support.process_runs import common_rows
from tests.support.two_sides import MEMBERS, TwoSides

OPTIONS: dict[str, Any] = {"promote_every": 96, "refresh_every": 48, "opponents": 3}
SMALL: dict[str, Any] = resumed.SMALL | {
    "num_envs": 6,
    "core": rc.GRUConfig(hidden=8),
    "vs": "league",
    "vs_kwargs": OPTIONS,
}


class Alone(TwoSides):
    """An env without scripted players."""

    opponents = ()


class Weights(rc.Callback):
    """The weights by env steps."""

    def __init__(self) -> None:
        self.of: dict[int, dict[str, torch.Tensor]] = {}

    def on_start(self, training: Any) -> None:
        self.on_iteration(training, {})

    def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
        self.of[training.steps] = resumed.weights(training.agent)


def folders(run: Path) -> dict[str, str]:
    """All texts of a league."""
    return {
        str(file.relative_to(run)): file.read_text() for file in sorted((run / "league").rglob("*.json*"))
    }


def test_snapshots_are_those_of_their_step(tmp_path: Path) -> None:
    """S001-4: frozen, also while the training goes on."""
    seen = Weights()
    with rc.train(TwoSides, steps=400, run=str(tmp_path / "run"), callbacks=[seen], **SMALL) as agent:
        pool = Pool(tmp_path / "run" / "league")
        snapshots = [member for member in pool.members if member.is_snapshot]
        assert [one.steps // 96 for one in snapshots] == sorted({step // 96 for step in seen.of})
        assert len(snapshots) >= 4
        for member in snapshots:
            found = pool.load(member.name, agent.policy.state_dict())
            assert all(torch.equal(found[name], t) for name, t in seen.of[member.steps].items())
        assert agent._trainer is not None
        assert agent._trainer.collector.rows == 6 * MEMBERS
        assert isinstance(agent.history.last["info/win"], float)
    assert check_league(tmp_path / "run").faults == []
    assert len({game.member for game in read_games(tmp_path / "run" / "league")}) > 3


@pytest.mark.parametrize("extra", [{}, {"actors": 2, "runtime": "processes"}], ids=["inline", "processes"])
def test_resume(tmp_path: Path, extra: dict[str, Any]) -> None:
    """S001-4, S001-21: weights, metrics, members, rosters and games, bit for bit."""
    settings = SMALL | extra
    whole, halves = resumed.twice(tmp_path, TwoSides, settings, at=200)
    with whole, halves:
        resumed.assert_equal(resumed.weights(whole), resumed.weights(halves))
    one, two = (
        [without(row, "seconds") for row in common_rows(tmp_path / name)] for name in ("whole", "halves")
    )
    assert one == two
    assert folders(tmp_path / "whole") == folders(tmp_path / "halves")
    assert check_league(tmp_path / "halves").faults == []


def test_an_earlier_checkpoint(tmp_path: Path) -> None:
    """Members and games of the training after it are removed, and made again."""
    run = tmp_path / "run"
    rc.train(TwoSides, steps=480, run=str(run), **SMALL).close()
    before = folders(run)
    weights = (run / "league" / "members" / "s3.safetensors").read_bytes()
    steps = sorted(int(path.name) for path in (run / "checkpoints").iterdir() if path.name.isdecimal())
    with rc.resume(run, env=TwoSides, checkpoint=steps[2], progress=False):
        pass
    assert folders(run) == before
    assert (run / "league" / "members" / "s3.safetensors").read_bytes() == weights


def test_processes_equal_inline(tmp_path: Path) -> None:
    """S001-21: in lockstep, bit for bit, with the same games."""
    settings = SMALL | {"actors": 2}
    for runtime in ("inline", "processes"):
        rc.train(TwoSides, steps=300, run=str(tmp_path / runtime), runtime=runtime, **settings).close()
    assert folders(tmp_path / "inline") == folders(tmp_path / "processes")
    assert len(list((tmp_path / "inline" / "league" / "games").iterdir())) == 2


def test_async(tmp_path: Path) -> None:
    settings = SMALL | {"actors": 2, "runtime": "processes", "mode": "async"}
    rc.train(TwoSides, steps=700, run=str(tmp_path / "run"), **settings).close()
    assert check_league(tmp_path / "run").faults == []
    assert {game.roster for game in read_games(tmp_path / "run" / "league")} > {0}


def test_a_league_of_one(tmp_path: Path) -> None:
    """Without scripted players: the first snapshot is the opponent, then also later ones."""
    rc.train(Alone, steps=300, run=str(tmp_path / "run"), **SMALL).close()
    rosters = Rosters(tmp_path / "run" / "league").read()
    assert rosters[0].members == ("s0",)
    assert check_league(tmp_path / "run").faults == []
    assert {game.member for game in read_games(tmp_path / "run" / "league")} > {"s0"}


@pytest.mark.parametrize(("gate", "state"), [(1.0, "retired"), (1e-9, "member")])
def test_a_gate(tmp_path: Path, gate: float, state: str) -> None:
    """Every later snapshot plays the newest member; a retired one is no opponent."""
    settings = SMALL | {"vs_kwargs": OPTIONS | {"gate": gate, "gate_games": 4}}
    rc.train(TwoSides, steps=300, run=str(tmp_path / "run"), **settings).close()
    pool = Pool(tmp_path / "run" / "league")
    assert {member.state for member in pool.members[3:]} == {state}
    assert pool.members[2].state == "member"
    members = {name for one in Rosters(pool.folder).read() for name in one.members}
    assert ("s1" in members) == (state == "member")


def test_a_run_that_ends_within_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The candidate is judged when the run is resumed, and the league is that of an uninterrupted run."""
    settings = SMALL | {"vs_kwargs": OPTIONS | {"gate": 1e-9, "gate_games": 4}}
    whole, run = tmp_path / "whole", tmp_path / "run"
    rc.train(TwoSides, steps=500, run=str(whole), **settings).close()
    against, calls = rc.Agent.against, []

    def fails(self: Any, *arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise RuntimeError("in the games of the second gate")
        return against(self, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(rc.Agent, "against", fails)
        with pytest.raises(RuntimeError, match="second gate"):
            rc.train(TwoSides, steps=500, run=str(run), **settings)
    assert "candidate" in {member.state for member in Pool(run / "league").members}
    rc.resume(run, env=TwoSides, progress=False).close()
    assert "candidate" not in {member.state for member in Pool(run / "league").members}, "it is judged"
    assert folders(run) == folders(whole)


def test_a_damaged_snapshot_does_not_stop_the_training(tmp_path: Path) -> None:
    told: list[str] = []

    class Damage(rc.Callback):
        def on_iteration(self, training: Any, metrics: dict[str, float]) -> None:
            (tmp_path / "run" / "league" / "members" / "s0.safetensors").write_bytes(b"damaged")

        def on_warning(self, training: Any, text: str) -> None:
            told.append(text)

    with pytest.warns(UserWarning, match="s0 does not play"):
        rc.train(Alone, steps=600, run=str(tmp_path / "run"), callbacks=[Damage()], **SMALL).close()
    assert any("s0" in text for text in told)
    assert "s0" not in Rosters(tmp_path / "run" / "league").read()[-1].members


def test_evaluations_play_the_permanent_members(tmp_path: Path) -> None:
    settings = SMALL | {"eval_every": 100, "eval_episodes": 4}
    with rc.train(TwoSides, steps=200, run=str(tmp_path / "run"), **settings) as agent:
        games = list(read_games(tmp_path / "run" / "league"))
        agent.evaluate(4)
        assert list(read_games(tmp_path / "run" / "league")) == games
    again = rc.load(tmp_path / "run", env=TwoSides)
    versus = find_versus(again.make_env(2))
    assert versus is not None
    assert versus.player.folder == tmp_path / "run" / "league"
    assert again.against("s1", 6, eval_mode="greedy").opponent == "s1"
    assert again.against("echo", 6, eval_mode="greedy").opponent == "echo"
    assert again.against(games=6, eval_mode="greedy").total.games == 6
    with pytest.raises(ConfigError, match="s77"):
        again.against("s77", 6)


def test_a_league_of_another_env(tmp_path: Path) -> None:
    """Nothing is lost: neither run nor league change."""
    run = tmp_path / "run"
    rc.train(TwoSides, steps=100, run=str(run), **SMALL).close()
    file = run / "league" / "league.json"
    index = json.loads(file.read_text())
    index["signature"]["sides"] = ["east", "west"]
    file.write_text(json.dumps(index))
    before = folders(run)
    with pytest.raises(ConfigError, match=r"another env.*sides"):
        rc.resume(run, env=TwoSides, steps=100, progress=False)
    assert folders(run) == before


def test_no_member_can_be_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    rc.train(Alone, steps=100, run=str(run), **SMALL).close()
    for file in (run / "league" / "members").iterdir():
        file.unlink()
    with pytest.raises(RecollectError, match="take another copy"), pytest.warns(UserWarning, match="s0"):
        rc.resume(run, env=Alone, steps=300, progress=False)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "--run"),
        ({"run": "run", "env_workers": 2}, "env_workers"),
        ({"run": "run", "last_action_reward": True}, "last_action_reward"),
        ({"run": "run", "vs_kwargs": {"promote": 5}}, "promote_every"),
        ({"run": "run", "vs_kwargs": {"member": "s1"}}, "member"),
        ({"run": "run", "vs_kwargs": {"folder": "elsewhere"}}, "folder"),
    ],
)
def test_errors_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=words):
        rc.train(TwoSides, steps=72, **SMALL | settings)


def test_an_env_object(tmp_path: Path) -> None:
    with rc.train(TwoSides(6), steps=200, run=str(tmp_path / "run"), **SMALL):
        assert check_league(tmp_path / "run").games > 10
        gated = SMALL | {"vs_kwargs": OPTIONS | {"gate": 0.5}}
        with pytest.raises(ConfigError, match="gate"):
            rc.train(TwoSides(6), steps=200, run=str(tmp_path / "gated"), **gated)


def test_stages_of_a_curriculum_beside_a_roster(tmp_path: Path) -> None:
    """The settings of the env change, and the opponents stay those of the league."""
    settings = SMALL | {"curriculum": {0: {"team": 1}, 150: {"team": 2}}}
    with rc.train(TwoSides, steps=300, run=str(tmp_path / "run"), **settings) as agent:
        assert agent._trainer is not None
        versus = find_versus(agent._trainer.collector.envs[0])
        assert versus is not None
        assert int(versus.env._team) == 2
        rosters = Rosters(tmp_path / "run" / "league").read()
        assert versus.player._roster == rosters[-2], "the last one is for a rollout that does not come"
    assert check_league(tmp_path / "run").faults == []


def test_what_a_run_left_that_ended_at_once_is_replaced(tmp_path: Path) -> None:
    """Its first snapshot was of another seed."""
    run = tmp_path / "run"
    rc.train(TwoSides, steps=300, run=str(run), **SMALL).close()
    for name in ("checkpoints", "episodes", "logs"):
        shutil.rmtree(run / name, ignore_errors=True)
    for file in run.iterdir():
        if file.is_file() and file.name != "glossary.json":
            file.unlink()
    seen = Weights()
    with rc.train(TwoSides, steps=100, run=str(run), seed=5, callbacks=[seen], **SMALL) as agent:
        found = Pool(run / "league").load("s0", agent.policy.state_dict())
        assert all(torch.equal(found[name], t) for name, t in seen.of[0].items()), "of this run"
    assert check_league(run).faults == []
    assert [member.name for member in Pool(run / "league").members] == ["echo", "fixed", "s0", "s1"]


@pytest.mark.parametrize("number", [2, 6])
def test_the_games_of_a_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """As many as asked for, the same number on each side, against the newest member."""
    played: list[Any] = []
    against = rc.Agent.against

    def noted(self: Any, *arguments: Any, **options: Any) -> Any:
        played.append((options["vs_kwargs"]["member"], against(self, *arguments, **options)))
        return played[-1][1]

    monkeypatch.setattr(rc.Agent, "against", noted)
    settings = SMALL | {"vs_kwargs": OPTIONS | {"gate": 1e-9, "gate_games": number}}
    rc.train(TwoSides, steps=250, run=str(tmp_path / "run"), **settings).close()
    assert [member for member, _ in played] == [f"s{i}" for i in range(len(played))]
    assert {side.games for _, games in played for side in games.sides.values()} == {number // 2}


def test_a_policy_factory(tmp_path: Path) -> None:
    settings = without(SMALL, "core", "encoder")
    with pytest.raises(ConfigError, match="factory"):
        rc.train(TwoSides, run=str(tmp_path / "run"), policy=Tiny, **settings)


class Tiny(rc.Policy):
    """A network of the user's own."""


def test_results_for_ratings(tmp_path: Path) -> None:
    """S001-4: each game once, with the agent on its side under the name of its newest snapshot."""
    run = tmp_path / "run"
    rc.train(TwoSides, steps=300, run=str(run), **SMALL).close()
    pool, counts = Pool(run / "league"), count(read_games(run / "league"))
    found = list(played(pool))
    assert len(found) == sum(one.games for one in counts.values())
    won = Counter()
    for first, second, result in found:
        if "echo" in (first, second):
            won[result if second == "echo" else -result] += 1
    echo = counts["echo"]
    assert won == Counter({1: echo.win, 0: echo.draw, -1: echo.loss})
    others = {name for pair in found for name in pair[:2]} - {"echo", "fixed"}
    assert others <= {name for member in pool.members for name in (member.name, f"{member.name}+")}


def test_an_env_with_one_side() -> None:
    with pytest.raises(ConfigError, match="two-sided"):
        rc.train("delayed-cue", run="run", **SMALL)


def test_verify() -> None:
    assert rc.verify(TwoSides, vs="league", num_envs=4, rollout=12, chunk=4).ok
