"""The parts of a league apart: members on disk, chances, counts of games, tiles, and a short training."""

from __future__ import annotations

import copy
import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from recollect.acting.versus_games import Results
from recollect.agent import Agent
from recollect.api import resume
from recollect.audit.league_checks import TOLERANCE, perturbed
from recollect.audit.opponent_checks import SEED, versus_of
from recollect.audit.results import Problem, Skip
from recollect.audit.setup import Setup
from recollect.audit.trace_checks import state_gap
from recollect.base import tree
from recollect.config.league import LEAGUE, LeagueConfig
from recollect.envs.factory import is_made
from recollect.league.check import check_league
from recollect.league.games import Game, GameLog, Tally, count
from recollect.league.matchmaking import HARDNESS, Rosters, choose
from recollect.league.pool import Member, Pool, signature
from recollect.league.tiles import Tiles
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy

ROWS, CAPACITY = 16, 4
"""Rows of the tiles, and members that they have room for."""
UPDATES = 4
"""Of a short training."""
ELDER = "elder"
"""A member from elsewhere."""


def league_parts(env: Any, network: Network) -> str:
    """Members, chances, counts and tiles against plain lists and networks apart."""
    env, live = versus_of(env).env, next(iter(by_group(network).values()))
    with TemporaryDirectory() as folder:
        _check_pool(Path(folder) / "pool", env, live)
        _check_counts(Path(folder) / "counts")
    _check_chances()
    _check_tiles(env, live)
    return f"members, chances and counts are those of plain lists; {CAPACITY} networks in tiles those apart"


def _check_pool(folder: Path, env: Any, live: Policy) -> None:
    pool = Pool(folder)
    pool.create(signature(env, {}), env.opponents)
    weights = live.state_dict()
    for steps in (0, 10, 20):
        pool.add(weights, steps)
    pool.add_other(ELDER, weights, 20, "elsewhere")
    pool.set_state("s1", "retired")
    pool.rewind(10)
    playing = [member.name for member in Pool(folder).playing]
    right = [*env.opponents, "s0", ELDER]
    if playing != right:
        raise Problem(
            f"the members of a league are {playing}, and should be {right}: one is retired, and one of later "
            "training was removed",
            "Fix: retired members do not play, and a resume removes the snapshots of later steps alone",
        )


def _check_counts(folder: Path) -> None:
    """The counts of a log that grows, is cut and has half of a line."""
    log, tally, lines = GameLog(folder, 0), Tally(folder), []
    games = [Game(0, i, i // 4, f"s{i % 3}", "x", ("win", "draw", "loss")[i % 2], 3) for i in range(12)]

    def compare(known: list[Game], since: int) -> None:
        found, right = tally.counts(since), count(known, since)
        if {name: one for name, one in found.items() if one.games} != right:
            raise Problem(
                f"the counts of {len(known)} games against opponents are {found}, and should be {right}",
                "Likely cause: a line that is being written counts, or games that were removed",
                "Fix: count whole lines, and start from 0 when another file is in its place",
            )

    log.add(games[:6])
    compare(games[:6], 0)
    lines = [json.dumps(asdict(game)).encode() + b"\n" for game in games[6:9]]
    for part in (lines[0] + lines[1][:20], lines[1][20:] + lines[2]):
        with log.file.open("ab") as file:
            file.write(part)
        compare(games[: 9 if part.endswith(lines[2]) else 7], 0)
    log.keep(lambda game: game.game < 5)
    compare(games[:5], 1)
    log.add(games[9:])
    compare(games[:5] + games[9:], 1)


def _check_chances() -> None:
    """Of each kind of matchmaking, by its formula."""
    members = [
        Member("bot"),
        *(Member(f"s{i}", steps=i) for i in range(3)),
        Member(ELDER, origin="elsewhere"),
    ]
    counts = {"bot": Results(win=8, draw=1, loss=1), "s0": Results(win=2, loss=8), "s2": Results(win=1)}
    for kind in ("pfsp", "uniform", "latest"):
        config, weights = LeagueConfig(matchmaking=kind), {}
        for one in members:
            games = counts.get(one.name, Results())
            won = (games.win + games.draw / 2 + 0.5) / (games.win + games.draw + games.loss + 1)
            weights[one.name] = (1 - won) ** HARDNESS if kind == "pfsp" else float(kind != "latest")
        weights["s2"] = weights["s2"] or 1.0
        total, to_self = sum(weights.values()), config.self_play
        right = {name: (1 - to_self) * weight / total for name, weight in weights.items() if weight}
        right["s2"] += to_self
        roster = choose(members, counts, config, number=3, steps=7, seed=SEED)
        found = dict(zip(roster.members, roster.shares))
        if found.keys() != right.keys() or not all(math.isclose(found[name], right[name]) for name in right):
            raise Problem(
                f"{kind}: the chances of opponents are {found}, and should be {right}",
                "Likely cause: results are taken for those of the opponent, or a member from elsewhere for a "
                "snapshot of the agent",
                "Fix: prefer the members that win against the agent; the newest snapshot of the run has "
                "self_play besides",
            )


@torch.no_grad()
def _check_tiles(env: Any, live: Policy) -> None:
    """Rows of several members, evenly and not, against each member's network alone."""
    members = [perturbed(live, number) for number in range(CAPACITY + 2)]
    template = copy.deepcopy(members[0])
    tiles, generator = Tiles(template, CAPACITY, ROWS), torch.Generator(live.device)
    rows = torch.arange(ROWS, device=live.device)
    memory = live.actor_only().initial_state(ROWS)
    everyone = list(range(CAPACITY))
    for step, places in enumerate([everyone, everyone, [0, 5], [5, 4, 1, 2]]):
        tiles.load({place: members[place] for place in places})
        obs = env.reset(SEED + step)
        obs = tree.index(obs, rows % (env.num_envs * env.agents))
        of_row = torch.tensor(places, device=rows.device)[(rows - ROWS + len(places)).clamp(min=0)]
        of_row[ROWS // 2] = CAPACITY + 7  # a member that is not loaded
        first = rows % 5 == step
        before = tree.clone(memory)
        _, after, by = tiles.act(of_row, obs, memory, first, generator)
        for row, place in enumerate(of_row.tolist()):
            at = slice(row, row + 1)
            one, state, start = (tree.index(part, at) for part in (obs, before, first))
            right, is_known = state, place in places
            if is_known:
                *_, right = members[place].step(one, state, start)
            gap = float(state_gap(tree.index(after, at), right).max())
            if not gap <= TOLERANCE or (is_known and int(by[row]) != place):
                raise Problem(
                    f"with several networks in tiles the memory of a row of member {place} is {gap:.1e} off "
                    "that of its network alone",
                    "Likely cause: weights of another member, of the roster before or of noise, or rows "
                    "that are left out",
                    "Fix: copy weights into the tiles, and have room for every division of the rows",
                    measured=gap,
                    tolerance=TOLERANCE,
                )
        memory = after
    if not all(map(torch.equal, template.parameters(), members[0].parameters())):
        raise Problem("tiles change the weights of the live network", "Fix: give them a copy of it")


def league_training(setup: Setup, rows: int) -> str:
    """Snapshots have the weights of their step, also in a folder with leftovers and after a resume."""
    if is_made(setup.env):
        raise Skip("the env is an instance, and cannot be made a second time")
    every = setup.config.algo.rollout * rows
    options = {**(setup.config.vs_kwargs or {}), "promote_every": every, "refresh_every": every, "gate": None}
    config = replace(setup.config, vs_kwargs=options, steps=UPDATES * every)
    config = replace(config, checkpoint_every=every, keep_checkpoints=UPDATES)
    with TemporaryDirectory() as folder:
        first, second = Path(folder) / "first", Path(folder) / "second"
        _train(setup, replace(config, run=str(first), steps=every))
        second.mkdir()
        shutil.copytree(first / LEAGUE, second / LEAGUE)
        weights = _train(setup, replace(config, run=str(second), seed=config.seed + 1))
        snapshots = _check_snapshots(second, weights)
        pool = Pool(second / LEAGUE)
        pool.add_other(ELDER, next(iter(weights.values())), 10**9, "elsewhere")
        with resume(second, env=setup.env, checkpoint=sorted(weights)[2], progress=False):
            pass
        again = _check_snapshots(second, weights)
    if again != snapshots:
        raise Problem(
            f"after a resume the league has snapshots of steps {again}, and without it {snapshots}",
            "Likely cause: snapshots of training that is repeated stay, or a member from elsewhere counts as "
            "one of the agent",
            "Fix: remove the snapshots after the checkpoint, and make those of the run on its own steps",
        )
    return f"{len(snapshots)} snapshots have the weights of their step; {len(again)} after a resume"


def _train(setup: Setup, config: Any) -> dict[int, dict[str, Tensor]]:
    """The weights by env steps."""
    found: dict[int, dict[str, Tensor]] = {}
    with Agent.create(setup.env, config, setup.policy) as agent:

        def keep(training: Any, metrics: dict[str, float]) -> None:
            found[training.steps] = tree.clone(agent.network.state_dict())

        found[0] = tree.clone(agent.network.state_dict())
        agent.train(progress=False, callbacks=[keep])
    return found


def _check_snapshots(run: Path, weights: dict[int, dict[str, Tensor]]) -> list[int]:
    pool = Pool(run / LEAGUE)
    own = [member for member in pool.members if member.is_own]
    for member in own:
        right = weights[member.steps]
        found = pool.load(member.name, right)
        if not all(torch.equal(found[name], leaf.cpu()) for name, leaf in right.items()):
            raise Problem(
                f"the snapshot {member.name} has other weights than the agent after {member.steps} steps",
                "Likely cause: it is frozen before or after its step, or is left over from another run",
                "Fix: copy the weights when they are learned; a new run has a new league",
            )
    steps = {member.name: member.steps for member in own}
    faults = check_league(run).faults + [
        f"an opponent from step {roster.steps} on is {name}, the agent after {steps[name]} steps"
        for roster in Rosters(pool.folder).read()
        for name in roster.members
        if steps.get(name, 0) > roster.steps
    ]
    if faults:
        raise Problem(
            faults[0],
            "Fix: draw opponents by seed, slot and game from the members of that step; a resume "
            "removes later ones",
        )
    return [member.steps for member in own]
