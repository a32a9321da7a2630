"""Games against an opponent: who won them, on which side, and how many count."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting import versus_games
from recollect.acting.versus_games import Games, Results, play_games, slots_for, wilson
from recollect.cli import main
from recollect.envs.versus import Versus
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError
from tests.support.two_sides import MEMBERS, Echo, Fixed, TwoSides

SMALL: dict[str, Any] = {"num_envs": 2, "rollout": 12, "chunk": 4, "threads": 1, "progress": False}


@pytest.fixture(scope="module")
def agent() -> Iterator[rc.Agent]:
    with rc.train(TwoSides, steps=48, vs="echo", last_action_reward=True, **SMALL) as one:
        yield one


def shares(results: Results) -> dict[str, float]:
    return {name: results.share(name) for name in ("win", "draw", "loss")}


@pytest.mark.parametrize(("result", "name"), [(1, "loss"), (-1, "win"), (0, "draw")])
def test_a_player_that_always_does_the_same(agent: rc.Agent, result: int, name: str) -> None:
    """The outcome is booked to the side of the learner, in every slot."""
    games = agent.against("fixed", 30, vs_kwargs={"result": result})
    assert games.sampled is not None
    for one in (games, games.sampled):
        assert shares(one.total) == {key: float(key == name) for key in ("win", "draw", "loss")}
        assert {side: r.games for side, r in one.sides.items()} == {"north": 15, "south": 15}
    assert (games.mode, games.sampled.mode) == ("greedy", "sampled")


class NorthWins(Fixed):
    """The north side wins, whoever plays it."""

    def act(self, rows, obs, first):
        self.env.asks.fill_(1)
        return torch.zeros(len(rows), dtype=torch.int64)


def test_results_of_each_side(agent: rc.Agent) -> None:
    """S001-5: as many games on each side, whatever the number of slots."""
    for games, counts in ((1, (1, 0)), (2, (1, 1)), (5, (3, 2)), (33, (17, 16))):
        env = TwoSides(slots_for(games))
        versus = LastActionReward(Versus(env, NorthWins(env)))
        found = play_games(agent.policy, versus, opponent="x", games=games)
        assert found.sides["north"] == Results(win=counts[0])
        assert found.sides.get("south", Results()) == Results(loss=counts[1])
        assert found.total.games == games == len(found.lengths)


def by_hand(policy: Any, games: int, seed: int) -> tuple[dict[str, list[int]], list[float], dict[str, float]]:
    """(won, drawn, lost) by side, the returns, and the means of the info, slot by slot."""
    slots = slots_for(games)
    env = TwoSides(slots)
    versus = Versus(env, env.opponent("echo", error=0.6))
    wrapped = LastActionReward(versus)
    obs, state = wrapped.reset(seed), policy.initial_state(slots * MEMBERS)
    first = torch.ones(slots * MEMBERS, dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    logs: list[list[dict[str, Any]]] = [[] for _ in range(slots)]
    for _ in range(300):
        acted, state = policy.act(obs, state, first, generator, False)
        step = wrapped.step(acted.action)
        obs, first = step.obs, step.first
        for slot, log in enumerate(logs):
            rows = slice(slot * MEMBERS, (slot + 1) * MEMBERS)
            log.append(
                {
                    "reward": step.reward[rows].tolist(),
                    "valid": step.valid[rows].tolist(),
                    "age": step.info["age"][slot].item(),
                    "over": bool(step.first[rows].any()),
                    "won": float(env.won[slot]),
                }
            )
    sides: dict[str, list[int]] = {"north": [0, 0, 0], "south": [0, 0, 0]}
    returns: list[float] = []
    ages: list[float] = []
    points: list[float] = []
    for slot, log in enumerate(logs):
        side, mine = ("north", 1) if slot % 2 == 0 else ("south", -1)
        quota = (games // 2 + (games % 2 and side == "north")) / (slots / 2)
        assert quota == int(quota)
        played, begin = 0, 0
        for t, one in enumerate(log):
            if one["over"] and played < quota:
                game, begin, played = log[begin : t + 1], t + 1, played + 1
                sides[side][1 - int(one["won"] * mine)] += 1
                returns += [sum(s["reward"][i] for s in game if s["valid"][i]) for i in range(MEMBERS)]
                ages += [s["age"] for s in game]
                points += [s["reward"][i] for s in game for i in range(MEMBERS) if s["valid"][i]]
        assert played == quota
    return sides, returns, {"age": float(np.mean(ages)), "points": float(np.mean(points))}


def test_equals_counting_by_hand(agent: rc.Agent) -> None:
    """S001-5: the first games of every slot count, not those that end first."""
    agent.policy.eval()
    sides, returns, info = by_hand(agent.policy, 48, 5)
    found = agent.against("echo", 48, seed=5, eval_mode="sampled", vs_kwargs={"error": 0.6})
    assert {side: [r.win, r.draw, r.loss] for side, r in found.sides.items()} == sides
    assert min(found.total.win, found.total.draw, found.total.loss) > 0
    assert sorted(found.returns.tolist()) == sorted(returns)
    assert found.info == pytest.approx(info)


def test_the_same_seed_gives_the_same_games(agent: rc.Agent) -> None:
    """S001-5: and the training's own state is untouched."""
    weights = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    rng = torch.get_rng_state()
    one, two, other = (agent.against("echo", 10, seed=seed).to_json() for seed in (1, 1, 2))
    assert one == two
    assert one["sampled"]["returns"] != other["sampled"]["returns"]
    assert torch.equal(rng, torch.get_rng_state())
    assert all(torch.equal(weights[name], tensor) for name, tensor in agent.policy.state_dict().items())


def test_wilson() -> None:
    """Against the definition: the ends are Z standard errors of themselves away from the share."""
    for count, games in ((0, 10), (3, 10), (50, 100), (200, 200), (1, 1)):
        low, high = wilson(count, games)
        share = count / games
        assert 0 <= low <= share <= high <= 1
        assert low < share or share == 0
        assert high > share or share == 1
        for end in (low, high):
            if 0 < end < 1:
                error = (end * (1 - end) / games) ** 0.5
                assert abs(share - end) == pytest.approx(versus_games.Z * error)
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(61, 100) == pytest.approx((0.5120, 0.6998), abs=1e-4)


def test_numbers_without_a_value_are_left_out(agent: rc.Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def info(self: TwoSides, reward: torch.Tensor) -> dict[str, torch.Tensor]:
        sparse = torch.where(self.age == 2, 7.0, torch.nan)
        return {"sparse": sparse, "never": sparse * torch.nan, "rows": reward * 0 + 1}

    monkeypatch.setattr(TwoSides, "_info", info)
    assert agent.against("echo", 4).info == {"sparse": 7.0, "rows": 1.0}


def test_in_words() -> None:
    results = {"blue": Results(6, 1, 3), "red": Results(4, 0, 6)}
    games = Games("bot", results, np.array([1.0, 2.0]), np.array([4.0]), {"reward_zone": 0.25})
    text = str(games)
    for part in (
        "greedy",
        "bot",
        "Wilson",
        "50.0% (29.9 to 70.1)",
        "60.0%",
        "red",
        "reward_zone",
        "0.25",
        "1.5",
    ):
        assert part in text, part
    assert games.to_json()["win"]["count"] == 10
    assert games.to_json()["interval_of"] == "95% Wilson"


def test_bad_calls(agent: rc.Agent) -> None:
    for arguments, word in (
        ({"vs": "ecko"}, "echo"),
        ({"vs": "self"}, "no opponent"),
        ({"games": 0}, "at least 1"),
        ({"vs": "fixed", "vs_kwargs": {"x": 1}}, "vs_kwargs"),
    ):
        with pytest.raises(ConfigError, match=word):
            agent.against(**arguments)
    with pytest.raises(ConfigError, match="seed"):
        agent.against("echo", 2, seed=-1)


def test_options_given_win_over_the_curriculum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise games have the last stage; another player need not have its settings."""
    curriculum = {0: {"team": 2}, 9000: {"team": 1, "error": 0.75}}
    seen: list[tuple[int, float]] = []
    config = rc.TrainConfig(num_envs=2, vs="echo", curriculum=curriculum)

    def act(self: Echo, rows: torch.Tensor, obs: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        seen.append((int(self.env._team), self.error))
        return torch.zeros(len(rows), dtype=torch.int64)

    monkeypatch.setattr(Echo, "act", act)
    with rc.Agent.create(TwoSides, config) as agent:
        agent.against(games=2)
        agent.against(games=2, vs_kwargs={"error": 0.25})
        agent.against(games=2, env_kwargs={"team": 2})
        agent.against("fixed", games=2)
    assert list(dict.fromkeys(seen)) == [(1, 0.75), (1, 0.25), (2, 0.75)]


def test_the_command(agent: rc.Agent, tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    agent.save(tmp_path / "saved")
    words = ["eval", str(tmp_path / "saved"), "--env", f"{TwoSides.__module__}:TwoSides"]
    assert main([*words, "--vs", "fixed", "--vs.result", "-1", "--games", "6", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["vs"], found["games"], found["win"]["count"], found["mode"]) == ("fixed", 6, 6, "greedy")
    assert main([*words, "--games", "4", "--eval-mode", "sampled"]) == 0
    out = capsys.readouterr().out
    assert "sampled actions against echo" in out
    assert "north" in out
    assert main([*words, "--episodes", "4", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["returns"]) == 4
