"""An opponent on one side of a two-sided env: whose rows the learner gets, and what the player is told."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch

from recollect.base.types import Step
from recollect.envs.checks import check_batched_env
from recollect.envs.contract import Adjustable, Capturable, Resumable, TwoSided
from recollect.envs.groups import agent_names
from recollect.envs.versus import Versus, against, find_versus
from recollect.envs.workers import WorkerEnv
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, EnvError
from tests.support.reads import unread
from tests.support.two_sides import AGENTS, CUES, MEMBERS, Echo, Fixed, TwoSides

SLOTS, STEPS = 5, 40
PARTS = ("obs", "first", "reward", "terminated", "truncated", "final_obs", "valid")


def actions(steps: int = STEPS, slots: int = SLOTS) -> torch.Tensor:
    """The learner's actions [steps, rows]."""
    generator = torch.Generator().manual_seed(4)
    return torch.randint(CUES, (steps, slots * MEMBERS), generator=generator)


def echo(slots: int = SLOTS, first_slot: int = 0, **options: Any) -> Versus:
    env = TwoSides(slots)
    return Versus(env, env.opponent("echo", **options), first_slot)


def halves(slots: int, first_slot: int) -> tuple[list[int], list[int]]:
    """The rows of the learner and of the player: the first side in slots with an even number."""
    mine, theirs = [], []
    for slot in range(slots):
        sides = [[slot * AGENTS + side * MEMBERS + i for i in range(MEMBERS)] for side in (0, 1)]
        learner = (slot + first_slot) % 2
        mine += sides[learner]
        theirs += sides[1 - learner]
    return mine, theirs


def by_hand(first_slot: int, seed: int = 3) -> list[dict[str, Any]]:
    """The env itself, stepped with both sides' actions; the cues are remembered row by row."""
    env = TwoSides(SLOTS)
    mine, theirs = halves(SLOTS, first_slot)
    obs, first = env.reset(seed), [True] * SLOTS * AGENTS
    cues: dict[int, int] = {}
    found = [{"obs": obs[mine]}]
    for own in actions():
        joint = torch.zeros(SLOTS * AGENTS, dtype=torch.int64)
        joint[mine] = own
        for row in theirs:
            if first[row]:
                cues[row] = int(obs[row, :CUES].argmax())
            joint[row] = cues[row]
        step = env.step(joint)
        obs, first = step.obs, step.first.tolist()
        values = {name: getattr(step, name)[mine].clone() for name in PARTS}
        result = [w if row % AGENTS < MEMBERS else -w for w, row in zip(env.won.tolist(), mine[::MEMBERS])]
        known = env.games > 0
        for name, outcome in {"win": 1, "draw": 0, "loss": -1}.items():
            ended_so = torch.tensor([float(r == outcome) for r in result])
            values[name] = torch.where(known, ended_so, math.nan)
        found.append(values | {"points": step.info["points"][mine].clone()})
    return found


def parts_of(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name).clone() for name in PARTS} | {
        k: v.clone() for k, v in step.info.items()
    }


def by_versus(first_slot: int, seed: int = 3) -> list[dict[str, Any]]:
    env = echo(first_slot=first_slot)
    return [{"obs": env.reset(seed)}, *(parts_of(env.step(own)) for own in actions())]


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    return torch.equal(one.nan_to_num(9.0), two.nan_to_num(9.0))


@pytest.mark.parametrize("first_slot", [0, 3])
def test_rows_are_those_of_the_env_played_by_hand(first_slot: int) -> None:
    """The opponent's memory restarts at its own slot's reset, and only there."""
    made, expected = by_versus(first_slot), by_hand(first_slot)
    ends = torch.zeros(SLOTS * MEMBERS)
    for t, (one, other) in enumerate(zip(made, expected, strict=True)):
        for name, value in other.items():
            if name == "final_obs":  # undefined elsewhere
                over = other["terminated"] | other["truncated"]
                assert same(one[name][over], value[over]), (t, name)
            else:
                assert same(one[name], value), (t, name)
        if t:
            ends += one["terminated"]
    assert ends.min() > 2
    assert len(set(ends.tolist())) > 1, "games are of different length"
    assert not all(bool(one["valid"].all()) for one in made[1:]), "some die before the end"


def test_no_row_of_the_player_reaches_the_learner() -> None:
    """The observations carry the numbers of their rows."""
    env = LastActionReward(echo())
    mine = torch.tensor(halves(SLOTS, 0)[0]).float()
    assert torch.equal(env.reset(0)["obs"][:, -1], mine)
    for own in actions():
        step = env.step(own)
        assert torch.equal(step.obs["obs"][:, -1], mine)
        assert torch.equal(step.final_obs["obs"][:, -1], mine)


def test_the_player_gets_rows_observations_and_starts() -> None:
    class Spy(Echo):
        def act(self, rows, obs, first):
            seen.append((rows.tolist(), obs[:, -1].tolist(), obs[:, -2].tolist(), first.tolist()))
            return super().act(rows, obs, first)

    seen: list[Any] = []
    inner = TwoSides(SLOTS)
    env = Versus(inner, Spy(inner))
    env.reset(0)
    for own in actions():
        ages = inner.age.repeat_interleave(MEMBERS).tolist()
        env.step(own)
        rows, numbers, shown_ages, first = seen[-1]
        assert rows == numbers == halves(SLOTS, 0)[1]
        assert shown_ages == ages, "the observation is the present one"
        assert first == [age == 0 for age in ages], "the memory restarts with the game of its slot"


def test_protocols() -> None:
    env = echo()
    assert isinstance(TwoSides(1), TwoSided)
    assert not isinstance(env, TwoSided)
    assert isinstance(env, Resumable)
    assert isinstance(env, Capturable)
    assert env.truncation_gap is None
    assert isinstance(env, Adjustable)
    assert set(env.adjustable) == {"team", "error"}
    assert env.agents == MEMBERS
    assert env.num_envs == SLOTS
    assert agent_names(LastActionReward(env)) == ("agent_0", "agent_1")
    assert env.sides == ("north", "south", "north", "south", "north")
    assert find_versus(LastActionReward(env)) is env
    assert find_versus(TwoSides(1)) is None
    check_batched_env(echo(4), steps=60)


def test_names_without_the_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TwoSides, "agent_names", ("north_heavy_0", "north", "south_heavy_0", "south"))
    assert echo().agent_names == ("heavy_0", "agent_1")


def test_on_end_reaches_the_task() -> None:
    env, ends = echo(), []
    env.on_end = lambda: ends.append(1)
    env.reset(0)
    for own in actions(8):
        env.step(own)
    assert ends
    assert env.on_end is env.env.on_end


def resumed(make: Any) -> None:
    """Continue from a snapshot in the middle of games, with a player that remembers."""
    first, second = make(), make()
    first.reset(3)
    for own in actions()[:10]:
        first.step(own)
    saved = first.snapshot()
    obs = second.restore({name: tensor.clone() for name, tensor in saved.items()})
    for own in actions()[10:]:
        one, two = parts_of(first.step(own)), parts_of(second.step(own))
        assert all(same(one[name], two[name]) for name in one if name != "final_obs")
    assert obs.shape == (SLOTS * MEMBERS, CUES + 2)


def test_snapshot() -> None:
    resumed(partial(echo, error=0.5))


def slots(first_slot: int, count: int) -> Versus:
    """Slots of an env in a worker."""
    env = TwoSides(count)
    env.first_slot = first_slot
    return Versus(env, env.opponent("echo", error=0.5), first_slot)


def test_steps_without_host_reads() -> None:
    env = echo()
    env.reset(3)
    expected = [parts_of(env.step(own)) for own in actions(12)]
    env.reset(3)
    for own, other in zip(actions(12), expected, strict=True):
        with unread():
            step = env.step(own)
        assert all(same(value, other[name]) for name, value in parts_of(step).items() if name != "final_obs")


def test_workers_equal_one_process() -> None:
    """Also where a worker's first slot has an odd number, and from a snapshot."""
    made = WorkerEnv(slots, SLOTS, workers=2)
    try:
        alone = slots(0, SLOTS)
        assert torch.equal(made.reset(3), alone.reset(3))
        saved: dict[str, torch.Tensor] = {}
        for t, own in enumerate(actions()):
            if t == 20:
                saved = {name: tensor.clone() for name, tensor in made.snapshot().items()}
            one, two = parts_of(made.step(own)), parts_of(alone.step(own))
            assert all(same(one[name], two[name]) for name in one if name != "final_obs"), t
        assert saved.keys() == alone.snapshot().keys()
        alone.restore(saved)
        made.restore(saved)
        for own in actions()[20:]:
            assert torch.equal(made.step(own).obs, alone.step(own).obs)
    finally:
        made.close()


def test_outcomes_of_players_that_are_told_the_result() -> None:
    for result, name in ((1, "loss"), (-1, "win"), (0, "draw")):
        env = TwoSides(4)
        versus = Versus(env, Fixed(env, result))
        versus.reset(0)
        step = versus.step(actions(1, 4)[0])
        assert all(step.info[key].isnan().all() for key in ("win", "draw", "loss")), "no game is over"
        for own in actions(8, 4):
            step = versus.step(own)
        assert {key: step.info[key].tolist() for key in ("win", "draw", "loss")} == {
            key: [float(key == name)] * 4 for key in ("win", "draw", "loss")
        }


def test_against() -> None:
    env = TwoSides(2)
    assert against(env, None, {}) is env
    assert against(env, "self", {}) is env
    made = against(env, "echo", {"error": 0.25})
    assert isinstance(made, Versus)
    assert made.player.error == 0.25
    assert against(made, "echo", {}) is made
    for vs, options, words in (
        ("ecko", {}, ("ecko", "echo", "fixed", "self")),
        ("echo", {"eror": 1}, ("vs_kwargs", "eror")),
    ):
        with pytest.raises(ConfigError) as raised:
            against(env, vs, options)
        assert all(word in str(raised.value) for word in words)
    with pytest.raises(ConfigError, match="two-sided"):
        against(made.env.opponent("echo"), "self", {})


def test_actions_that_do_not_fit() -> None:
    env = echo()
    with pytest.raises(EnvError, match="reset"):
        env.step(actions()[0])
    env.reset(0)
    with pytest.raises(EnvError, match=f"{SLOTS * MEMBERS} rows"):
        env.step(torch.zeros(SLOTS * AGENTS, dtype=torch.int64))
    env.player = Fixed(env.env)
    env.player.act = lambda rows, obs, first: torch.zeros(3, dtype=torch.int64)
    with pytest.raises(EnvError, match="Fixed"):
        env.step(actions()[0])
