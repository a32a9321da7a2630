"""Leagues on the small two-sided env, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from recollect.acting.versus_games import OUTCOMES
from recollect.config.core_choice import core_config
from recollect.config.league import LeagueConfig
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.envs.versus import Versus
from recollect.league.cast import Cast
from recollect.league.games import Game
from recollect.league.matchmaking import Roster
from recollect.league.pool import Pool, signature
from recollect.policy.policy import Policy
from recollect.tasks import random
from tests.support.two_sides import CUES, MEMBERS, TwoSides

SLOTS = 6


def network(seed: int | None = None, gain: float = 0.01) -> Policy:
    """A small recurrent policy for the env; with a large ``gain`` its actions are all but certain."""
    env, parts = TwoSides(1), {"encoder": EncoderConfig(hidden=(8,)), "head": HeadConfig(gain=gain)}
    config = PolicyConfig(core=core_config("gru"), **parts)
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            torch.manual_seed(seed)
        return config.build(env.observation_space, env.action_space)


def pool(folder: Path, snapshots: int = 3, gain: float = 0.01) -> Pool:
    """A league with the env's scripted players and this many snapshots."""
    env, made = TwoSides(1), Pool(folder)
    made.create(signature(env, {}), env.opponents)
    for number in range(snapshots):
        made.add(network(number, gain).state_dict(), 100 * number)
    return made


def roster(names: Sequence[str], number: int = 0) -> dict[str, Any]:
    """All of them equally often."""
    shares = (1 / len(names),) * len(names)
    return {"number": number, "steps": number, "members": tuple(names), "shares": shares, "latest": "s0"}


def versus(
    folder: Path, names: Sequence[str], slots: int = SLOTS, first_slot: int = 0, **config: Any
) -> Versus:
    """The env against a cast of ``names``, which logs its games."""
    env = TwoSides(slots)
    made = partial(network, 0)
    cast = Cast(env, LeagueConfig(**config), folder, make=made, seed=3, first_slot=first_slot)
    if names:
        cast.adjust(league=roster(names))
    return Versus(env, cast, first_slot)


def actions(steps: int, slots: int = SLOTS, seed: int = 4) -> torch.Tensor:
    """The learner's actions [steps, rows]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(CUES, (steps, slots * MEMBERS), generator=generator)


def results(env: Versus, own: torch.Tensor) -> list[tuple[int, str]]:
    """Play; the slot and the result of every game that ends, as ``Step.info`` has them."""
    found, games = [], env.games.clone()
    for action in own:
        info = env.step(action).info
        for slot in (env.games > games).nonzero().flatten().tolist():
            found.append((slot, next(name for name in OUTCOMES if info[name][slot] == 1)))
        games = env.games.clone()
    return found


def redrawn(game: Game, roster: Roster, seed: int) -> str:
    """The member that the draw gives for a game, by a computation of its own."""
    key = random.row_keys(seed ^ 0x4C454147, torch.tensor([game.slot]))
    chance = float(random.uniform(random.bits(random.episode_keys(key, torch.tensor([game.game])), 0)))
    for name, share in zip(roster.members, roster.shares, strict=True):
        chance -= share
        if chance < 0:
            return name
    return roster.members[-1]
