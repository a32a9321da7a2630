"""Games of an agent against an opponent by name, and of two members of its league."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from recollect.acting.evaluate import in_mode
from recollect.acting.policy_player import PolicyPlayer
from recollect.acting.versus_games import MOST_SLOTS, Games, play_games, play_match, slots_for
from recollect.config.curriculum import settings_at
from recollect.config.league import LEAGUE
from recollect.config.tasks import task_name
from recollect.config.train import EvalMode
from recollect.envs.contract import Adjustable, Player
from recollect.envs.env_names import display_name
from recollect.envs.versus import SELF, find_versus, two_sides_of
from recollect.errors import ConfigError, nearest
from recollect.league.matches import MatchLog
from recollect.league.pool import Member, Pool, signature
from recollect.policy.policy import Policy
from recollect.runtimes.actor_envs import adjust, changed, league_folder, open_env
from recollect.runtimes.env_probe import check_spaces

MOST_ON_DEVICE = 1024
"""Env slots of a match on a GPU, which steps many at the price of a few."""


def against(
    agent: Any,
    vs: Any,
    games: int,
    *,
    seed: int,
    eval_mode: EvalMode | None,
    env_kwargs: dict[str, Any] | None,
    vs_kwargs: dict[str, Any] | None,
    cancelled: Callable[[], bool] | None,
) -> Games:
    """See ``Agent.against``."""
    config, settings, make = agent.config, settings_at(agent.config.curriculum), None
    if not agent.can_make_env:
        raise ConfigError("against needs a second instance of the env: load the agent with env=..., its name")
    if isinstance(vs, str | None):
        opponent = str(config.vs if vs is None else vs)
        if config.vs == LEAGUE and _is_snapshot(opponent, agent):
            vs, vs_kwargs = LEAGUE, config.vs_kwargs | (vs_kwargs or {}) | {"member": opponent}
    else:
        if vs_kwargs:
            raise ConfigError(f"vs_kwargs = {vs_kwargs} are for a player by name: leave them out")
        check_same_env(agent.env, vs.env, str(vs))
        make, opponent, vs = partial(_player, copy.deepcopy(vs.policy), seed + 1), str(vs), SELF
    given = {*(vs_kwargs or {}), *changed(env_kwargs or {}, config)}
    vs = config.vs if vs is None else vs
    own = {} if vs != config.vs else config.vs_kwargs
    config = replace(
        config,
        vs=vs,
        vs_kwargs=own if vs_kwargs is None else vs_kwargs,
        curriculum={},
        eval_mode=config.eval_mode if eval_mode is None else eval_mode,
    )
    with closing(open_env(agent.env, config, slots_for(games), env_kwargs, player=make)) as env:
        check_spaces(agent.network, env, acts_only=True)
        # Another player's settings may differ from those of the training's.
        known = set(env.adjustable) - given if isinstance(env, Adjustable) else ()
        adjust(env, {name: value for name, value in settings.items() if name in known})

        def play(*, deterministic: bool) -> Games:
            versus = find_versus(env)
            if versus is not None and isinstance(versus.player, PolicyPlayer):
                versus.player.deterministic = deterministic
            how: dict[str, Any] = {"opponent": opponent, "games": games, "seed": seed, "cancelled": cancelled}
            return play_games(agent.policy, env, **how, deterministic=deterministic)

        return in_mode(play, config.eval_mode)


def match(agent: Any, one: str, other: str, games: int) -> Games:
    """Play games of two members of the league of ``agent``, half of them on each side, and log them.

    The results are those of ``one``. Both sample their actions, as in the games of the training.
    """
    if one == other:
        raise ConfigError(f"a match is between two different members, and both are {one}")
    if games < 2:
        raise ConfigError(f"games = {games}: a match has at least 2, one on each side")
    pool = Pool(_folder(agent))
    log = MatchLog(pool)
    for name in (one, other):
        pool[name]  # raises if the league has no such member
    seed = log.next_seed(one, other)
    config = replace(agent.config, vs=SELF, vs_kwargs={})
    make = partial(_member, agent, pool, other, seed + 1)
    slots = slots_for(games, MOST_SLOTS if config.device == "cpu" else MOST_ON_DEVICE)
    with closing(open_env(agent.env, config, slots, player=make)) as env:
        versus = find_versus(env)
        assert versus is not None
        player = _member(agent, pool, one, seed, versus.env)
        found = play_match(versus, player, opponent=other, games=games, seed=seed)
    log.add(one, other, found.sides, seed)
    return found


def add_member(
    agent: Any, other: Any, weights: Mapping[str, Tensor], name: str, steps: int, origin: str
) -> Member:
    """Add weights of the agent ``other``, trained for ``steps`` env steps, to the league of ``agent``."""
    pool = Pool(_folder(agent))
    check_same_env(agent.env, other.env, origin)
    with closing(other.make_env(1)) as env:
        if different := pool.difference(signature(two_sides_of(env), other.config.env_kwargs)):
            raise ConfigError(f"{origin} is of another env than this league: {different}")
    ours, theirs = (one.policy.config for one in (agent, other))
    names = [f.name for f in fields(ours) if getattr(ours, f.name) != getattr(theirs, f.name)]
    if other.policy.made_by is not None or names:
        named = "; ".join(f"{n} is {getattr(ours, n)!r} here and {getattr(theirs, n)!r} there" for n in names)
        raise ConfigError(
            f"{origin} has another network than this league, whose members share one: "
            f"{named or 'it was made by a policy factory'}. As an opponent in an evaluation it may have any: "
            f"recollect eval RUN --vs PATH"
        )
    return pool.add_other(name, weights, steps, origin)


def check_same_env(ours: Any, theirs: Any, what: str) -> None:
    """Raise unless both are the same env, as far as both have names."""
    if isinstance(ours, str) and isinstance(theirs, str):
        one, other = (task_name(env) or env for env in (ours, theirs))
        if one != other:
            raise ConfigError(
                f"{what} was trained in {display_name(theirs)}, and this agent in {display_name(ours)}: "
                "they cannot play each other"
            )


def _folder(agent: Any) -> Path:
    """The folder of the agent's league."""
    folder = league_folder(agent.config) if agent.config.vs == LEAGUE else None
    if folder is None:
        raise ConfigError(
            "this agent has no league: train one with vs='league' (--vs league), in a run folder"
        )
    return folder


def _is_snapshot(name: str, agent: Any) -> bool:
    """Whether the opponent is a member with weights of the agent's league."""
    members = {one.name: one for one in Pool(_folder(agent)).members}
    if name in members:
        return members[name].is_snapshot
    if name not in (SELF, LEAGUE):
        raise ConfigError(
            f"vs = {name!r}{nearest(name, members)}: this league has no such member; it has "
            f"{', '.join([*members][:20])}{' ...' if len(members) > 20 else ''}"
        )
    return False


def _member(agent: Any, pool: Pool, name: str, seed: int, env: Any) -> Player:
    """A member of the league as a player of ``env``."""
    if name in env.opponents:
        return env.opponent(name)
    policy = copy.deepcopy(agent.policy)
    policy.load_state_dict(pool.load(name, policy.state_dict()))
    return _player(policy, seed, env)


def _player(policy: Policy, seed: int, env: Any) -> PolicyPlayer:
    """A policy, of which nothing else is in use, as a player of ``env``."""
    policy = policy.eval().to(env.device)
    policy.check_spaces(env.observation_space, env.action_space, acts_only=True)
    return PolicyPlayer(policy, env.device, seed)
