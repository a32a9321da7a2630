"""``record_games``: games of a policy in the mech arena as replays, with the norm of each mech's memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.acting.evaluate import evaluating
from recollect.base import row_threads, tree
from recollect.base.types import State
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import Groups
from recollect.envs.versus import find_versus
from recollect.errors import ConfigError
from recollect.policy.policies import Network, Policies
from recollect.policy.policy import Policy
from recollect.tasks.mech.arena import MechArena
from recollect.tasks.mech.recording import Recorder
from recollect.tasks.mech.replays import Replay


def find_arena(env: Any) -> MechArena | None:
    """The mech arena that ``env`` is, or that is inside of its wrappers."""
    while env is not None and not isinstance(env, MechArena):
        env = getattr(env, "env", None)
    return env


def side_of(env: Any) -> str | None:
    """The side that the rows of ``env`` have in slot 0, where a player has the other; None: both."""
    versus = find_versus(env)
    return None if versus is None else versus.sides[0]


@torch.no_grad()  # as in ``record_env``
@row_threads.intra_op_threads(1)
def record_games(
    network: Network,
    env: BatchedEnv | Groups,
    *,
    games: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    names: tuple[str, str] = ("policy", "policy"),
    cancelled: Callable[[], bool] = lambda: False,
) -> list[Replay]:
    """Play games in slot 0 of ``env``, the only one, which is or wraps a mech arena.

    The rows of ``env`` are those of both sides, or of one side whose opponents a wrapper plays. ``names``: of
    those who play blue and red. ``cancelled``: asked before each decision; the games until then are returned.
    """
    if isinstance(network, Policies):
        raise ConfigError(
            f"games are recorded of one policy, and this agent has one for each of the groups "
            f"{', '.join(network.agents)}: train it with policies='shared'"
        )
    arena = find_arena(env)
    if arena is None:
        raise ConfigError("a replay is of the mech arena, and this env is another one: leave --replay out")
    assert not isinstance(env, Groups)
    if games < 1:
        raise ConfigError(f"games = {games}: it must be at least 1")
    network.check_spaces(env.observation_space, env.action_space, acts_only=True)
    policy = network if network.observation_space == env.observation_space else network.actor_only()
    generator = torch.Generator(env.device).manual_seed(seed)
    found: list[Replay] = []
    shown: list[dict[str, np.ndarray]] = []
    with evaluating(network), Recorder(arena, names) as recorder:
        obs = env.reset(seed)
        first = torch.ones(env.agents, dtype=torch.bool, device=env.device)
        state = policy.initial_state(env.agents)
        while len(found) < games and not cancelled():
            lives = arena.alive.flatten().clone()
            numbers = {"memory": _norms(policy, state, first)}
            acted, state = policy.act(obs, state, first, generator, deterministic)
            if "value" in acted.record:
                numbers["value"] = acted.record["value"]
            shown.append({name: _of_rows(env, lives, values) for name, values in numbers.items()})
            step = env.step(policy.to_env(acted.action))
            obs, first = step.obs, step.first
            if len(recorder.replays) > len(found):
                columns = {name: np.stack([each[name] for each in shown]) for name in shown[0]}
                found.append(replace(recorder.replays[-1], extras=columns))
                shown.clear()
    return found


def _norms(policy: Policy, state: State, first: Tensor) -> Tensor:
    """[B]: the Euclidean norm of the memory that each row starts its step with."""
    leaves = tree.leaves(policy.core.reset(policy.actor_state(state), first))
    if not leaves:
        return first.float() * torch.nan
    return torch.cat([leaf.flatten(1).float() for leaf in leaves], 1).norm(dim=1)


def _of_rows(env: BatchedEnv, lives: Tensor, values: Tensor) -> np.ndarray:
    """[R] for all mechs: the ``values`` of the rows of ``env``; NaN for the dead and for a player's."""
    own = values.flatten().float()
    if len(own) < len(lives):
        none, is_red = torch.full_like(own, torch.nan), side_of(env) == MechArena.sides[1]
        own = torch.cat([none, own] if is_red else [own, none])
    return torch.where(lives, own, torch.nan).cpu().numpy().astype(np.float32)
