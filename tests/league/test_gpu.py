"""A league on a GPU: the rows of the CPU, captured as eager, nothing read."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base import tree
from recollect.base.cuda_graphs import Graphs
from recollect.config.core_choice import core_config
from recollect.config.league import LeagueConfig
from recollect.config.policy import HeadConfig, PolicyConfig
from recollect.envs.versus import Versus
from recollect.league.cast import Cast
from recollect.league.check import check_league
from recollect.league.games import faults, read_games
from recollect.league.matchmaking import Roster
from recollect.league.pool import Pool, signature
from recollect.policy.policy import Policy
from recollect.tasks import make_task
from tests.support.leagues import redrawn, roster
from tests.support.recorded import silence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
WORLDS: dict[str, dict[str, Any]] = {"recall-duel": {"delay": 2}, "mech": {"size": "5v5"}}
SLOTS, SNAPSHOTS = 24, 5
NAMES = ("bot", *(f"s{i}" for i in range(SNAPSHOTS)))
SCHEDULE = {0: ("bot", "s0", "s1"), 4: ("s1", "s2"), 7: ("bot", "s0"), 9: ("s3", "s4", "s0", "bot")}
"""The rosters, by rollout."""


def network(env: Any, seed: int, gain: float = 1.0) -> Policy:
    """A policy on the CPU; with a large ``gain`` a choice does not depend on the draw."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = PolicyConfig(core=core_config("lstm"), head=HeadConfig(gain=gain), precision="fp32")
        return config.build(env.observation_space, env.action_space)


def league(world: str, folder: Path, device: str, gain: float = 1.0, **config: Any) -> Versus:
    """The env against a cast with a pool of its own."""
    env = make_task(world, SLOTS, device, **WORLDS[world])
    pool = Pool(folder)
    pool.create(signature(env, {}), env.opponents)
    for seed in range(SNAPSHOTS):
        pool.add(network(env, seed, gain).state_dict(), 0)
    cast = Cast(env, LeagueConfig(**config), folder, make=partial(network, env, 0, gain), seed=3)
    cast.adjust(league=roster(SCHEDULE[0]))
    return Versus(env, cast)


def tensors_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    for name, tensor in one.items():
        assert torch.equal(tensor.nan_to_num(9), two[name].nan_to_num(9)), name


@pytest.mark.parametrize("world", WORLDS)
def test_a_decision_is_that_of_the_cpu(tmp_path: Path, world: str) -> None:
    """S001-4: from equal states the same opponents, memories within 1e-4, and the same log of games."""
    here, there = (league(world, tmp_path / device, device) for device in ("cpu", "cuda"))
    here.reset(1)
    there.reset(1)
    generator = torch.Generator().manual_seed(0)
    like = here._action_like
    for t in range(30):
        own = tree.map(lambda leaf: torch.randint(0, 2, leaf.shape, generator=generator).to(leaf.dtype), like)
        if t:
            there.restore({name: tensor.cuda() for name, tensor in here.snapshot().items()})
            there.player.adjust(league=roster(SCHEDULE[0]))
        there.player.between_rollouts(1)
        here.step(own)
        there.step(tree.to(own, "cuda"))
        one, two = here.snapshot(), there.snapshot()
        rows = here._theirs
        snapshots = one["player:member"][rows // here.env.agents] > 0  # 0 is the bot
        for name in (name for name in one if name.startswith("player")):
            mine, its = one[name], two[name].cpu()
            if "memory" in name:
                mine, its = (part.flatten(0, 1)[rows][snapshots] for part in (mine, its))
                torch.testing.assert_close(mine, its, rtol=1e-4, atol=1e-4)
            elif "scripted" not in name and "logged" not in name:
                assert torch.equal(mine, its), name
    games = list(read_games(tmp_path / "cpu"))
    assert faults(games, lambda game: redrawn(game, Roster(**roster(SCHEDULE[0])), 3)) == []
    assert world != "recall-duel" or len(games) > 2 * SLOTS


def rollouts(actor: Actor, count: int, start: int = 0) -> list[Any]:
    """Rollouts, with the rosters of the schedule."""
    found = []
    for number in range(start, start + count):
        if number in SCHEDULE:
            actor.env.player.adjust(league=roster(SCHEDULE[number], number))
        rollout = actor.collect()
        parts = {"obs": rollout.obs, "reward": rollout.reward, "first": rollout.first}
        found.append(tree.clone(parts | {"record": rollout.record, "action": rollout.action}))
    return found


def make_actor(env: Versus, graphs: Graphs | None = None) -> Actor:
    policy = network(env, 9).cuda()
    return Actor(env, policy, rollout=8, state_steps=(0,), seed=3, graphs=graphs, keeps_finals=False)


def rollouts_equal(one: list[Any], two: list[Any]) -> None:
    for a, b in zip(one, two, strict=True):
        for (name, leaf), other in zip(tree.named_leaves(a), tree.leaves(b), strict=True):
            assert torch.equal(leaf, other), name


@pytest.mark.parametrize("opponents", [2, 8])
@pytest.mark.parametrize("world", WORLDS)
def test_captured_is_eager(tmp_path: Path, world: str, opponents: int) -> None:
    """S001-4: bit for bit, over other rosters within games, and captured again where more members play."""
    graphs = Graphs(torch.device("cuda"))
    captured = make_actor(league(world, tmp_path / "one", "cuda", opponents=opponents), graphs)
    eager = make_actor(league(world, tmp_path / "two", "cuda", opponents=opponents))
    rollouts_equal(rollouts(captured, 16), rollouts(eager, 16))
    assert captured._buffers[0].play_all.is_graph, graphs.notes
    assert not graphs.notes
    tensors_equal(captured.env.snapshot(), eager.env.snapshot())
    games = list(read_games(tmp_path / "one"))
    assert games == list(read_games(tmp_path / "two"))
    rosters = {number: Roster(**roster(names)) for number, names in SCHEDULE.items()}
    assert faults(games, lambda game: redrawn(game, rosters[game.roster], 3)) == []
    captured.close()


@pytest.mark.parametrize("world", WORLDS)
def test_a_resume(tmp_path: Path, world: str) -> None:
    """S001-4, S001-21: captured, bit for bit from the end of a rollout."""
    graphs = Graphs(torch.device("cuda"))
    whole = make_actor(league(world, tmp_path, "cuda"), graphs)
    rollouts(whole, 6)
    shot = {name: tensor.cpu() for name, tensor in (whole.snapshot() or {}).items()}
    expected = rollouts(whole, 8, start=6)
    games = list(read_games(tmp_path))
    again = make_actor(league(world, tmp_path, "cuda"), graphs)
    again.restore(shot)
    again.env.player.adjust(league=roster(SCHEDULE[4], 4))
    rollouts_equal(rollouts(again, 8, start=6), expected)
    assert list(read_games(tmp_path)) == games
    for actor in (whole, again):
        actor.close()


@pytest.mark.parametrize("world", WORLDS)
def test_steps_read_nothing(tmp_path: Path, world: str) -> None:
    """Over resets of slots, also with the bot."""
    env = league(world, tmp_path, "cuda")
    env.reset(0)
    env.player.between_rollouts(40)
    own = tree.map(torch.zeros_like, env._action_like)
    for _ in range(3):
        env.step(own)
    with silence():
        for _ in range(37):
            env.step(own)
    env.player.between_rollouts(1)


def test_a_training(tmp_path: Path) -> None:
    """S001-4: captured, snapshots join, and the log proves one opponent for each game."""
    said: list[str] = []

    class Listener(rc.Callback):
        def on_warning(self, training: Any, text: str) -> None:
            said.append(text)

    with rc.train(
        "recall-duel",
        steps=64 * 12 * 30,
        num_envs=64,
        rollout=12,
        chunk=12,
        minibatches=2,
        core="lstm",
        device="cuda",
        vs="league",
        vs_kwargs={"promote_every": 64 * 12 * 3, "refresh_every": 64 * 12 * 2, "opponents": 4},
        run=str(tmp_path / "run"),
        progress=False,
        callbacks=[Listener()],
    ) as agent:
        assert agent._trainer is not None
        (actor,) = agent._trainer.collector.actors  # pyright: ignore[reportAttributeAccessIssue]
        assert actor._buffers[0].play_all.is_graph, said
    checked = check_league(tmp_path / "run")
    assert checked.faults == []
    assert checked.redrawn > 500
    assert not said
