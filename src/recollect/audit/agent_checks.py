"""Agents of PettingZoo envs as rows, against stepping each env by hand through PettingZoo's interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from recollect.acting.group_actor import make_actor
from recollect.algos.catalog import acting
from recollect.audit.opponent_checks import PARTS
from recollect.audit.results import Problem, Skip
from recollect.audit.setup import Setup
from recollect.base import tree
from recollect.base.spaces import ACTION_MASK
from recollect.base.types import Step, Tree
from recollect.envs.factory import make_grouped_env
from recollect.envs.group_views import Groups
from recollect.envs.groups import Group
from recollect.envs.pettingzoo import PREFIX, as_parallel, find_pettingzoo
from recollect.envs.pettingzoo_loop import PettingZooLoop
from recollect.envs.space_values import env_seeds
from recollect.policy.policies import Network

SLOTS, STEPS, SEED = 3, 25, 6
FLAGS = ("valid", "terminated", "truncated", "first")


@dataclass
class _Lived:
    """One step of one agent by hand."""

    obs: Any = None
    """To act on next; None: absent."""
    first: bool = False
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final_obs: Any = None
    valid: bool = False


def agents(setup: Setup) -> str:
    """Every row of every step is what its agent lives when its env is stepped by hand."""
    make = _maker(setup)
    policies = setup.config.policies or "shared"
    options = setup.config.env_kwargs
    env = make_grouped_env(setup.env, SLOTS, policies=policies, env_kwargs=options)
    try:
        if not isinstance(env, PettingZooLoop):
            raise Skip("the agents are not of a PettingZoo env")
        rng = np.random.default_rng(SEED)
        actions = [_actions(env.groups, rng) for _ in range(STEPS)]
        env.reset(SEED)
        steps = [_copied(env.step(action)) for action in actions]
    finally:
        env.close()
    for slot, seed in enumerate(env_seeds(SEED, SLOTS)):
        _check_slot(as_parallel(make(**options)), slot, seed, env.groups, actions, steps)
    later = make_grouped_env(setup.env, 1, policies=policies, first_slot=1, env_kwargs=options)
    try:
        later.reset(SEED)
        found = later.step({name: _slot(one, env.groups[name], 1) for name, one in actions[0].items()})
    finally:
        later.close()
    for name, group in env.groups.items():
        right = _slot(steps[0][name].obs, group, 1)
        if not all(map(_equal, tree.leaves(found[name].obs), tree.leaves(right))):
            raise Problem(
                "slot 1 in a process of its own has other episodes than beside slot 0",
                "Likely cause: seeds are counted from the first slot of the process",
                "Fix: derive the seed of a slot from its number in the whole env",
            )
    count = sum(len(group.agents) for group in env.groups.values())
    return f"{STEPS} steps x {SLOTS} slots of {count} agents, as by hand"


def _copied(made: dict[str, Step]) -> dict[str, Step]:
    """The parts that are compared; the env reuses its arrays."""
    return {
        name: replace(step, **{part: tree.clone(getattr(step, part)) for part in PARTS})
        for name, step in made.items()
    }


def _maker(setup: Setup) -> Callable[..., Any]:
    env = setup.env
    if isinstance(env, str) and env.startswith(PREFIX):
        return find_pettingzoo(env)
    if isinstance(env, str) or not callable(env):
        raise Skip("the agents are not of a PettingZoo env that can be made again")
    return env


def _actions(groups: Mapping[str, Group], rng: np.random.Generator) -> dict[str, Tree]:
    """Random actions [B, ...] of each group."""
    found = {}
    for name, group in groups.items():
        group.action_space.seed(int(rng.integers(2**31)))
        drawn = [group.action_space.sample() for _ in range(SLOTS * len(group.agents))]
        if not isinstance(group.action_space, spaces.Discrete | spaces.Box):
            raise Skip("actions of several parts are not compared")
        start = int(group.action_space.start) if isinstance(group.action_space, spaces.Discrete) else 0
        found[name] = torch.as_tensor(np.stack(drawn) - start)
    return found


def _slot(rows: Tree, group: Group, slot: int) -> Tree:
    size = len(group.agents)
    return tree.map(lambda leaf: leaf[slot * size : (slot + 1) * size], rows)


def _check_slot(
    env: Any,
    slot: int,
    seed: int,
    groups: Mapping[str, Group],
    actions: list[dict[str, Tree]],
    steps: list[dict[str, Step]],
) -> None:
    by_text = {str(agent): agent for agent in env.possible_agents}
    order = list(by_text)
    homes = {agent: (name, k) for name, group in groups.items() for k, agent in enumerate(group.agents)}
    for name, group in groups.items():
        if sorted(group.agents, key=order.index) != list(group.agents):
            raise Problem(f"the agents of group {name} are not in the order of possible_agents")
    env.reset(seed=seed)
    alive = list(env.agents)
    for t, (given, step) in enumerate(zip(actions, steps)):
        chosen = {}
        for agent in alive:
            name, k = homes[str(agent)]
            space = groups[name].action_space
            value = given[name][slot * len(groups[name].agents) + k].numpy()
            chosen[agent] = int(value + space.start) if isinstance(space, spaces.Discrete) else value
        try:
            obs, rewards, terminated, truncated, _ = env.step(chosen)
        except AssertionError as error:
            raise Problem(f"the env refuses the actions of step {t}: {error}") from None
        lived = {agent: _Lived() for agent in env.possible_agents}
        for agent in alive:
            one = lived[agent] = _Lived(None, False, float(rewards[agent]), valid=True)
            one.terminated, one.truncated = bool(terminated[agent]), bool(truncated[agent])
            if one.terminated or one.truncated:
                one.final_obs = obs.get(agent)
        is_over = all(lived[agent].terminated or lived[agent].truncated for agent in alive)
        born = [agent for agent in env.agents if agent not in alive]
        if is_over and not born:
            obs, _ = env.reset()
            born = list(env.agents)
        for agent in env.agents:
            lived[agent].obs, lived[agent].first = obs[agent], agent in born
        alive = list(env.agents)
        for text, (name, k) in homes.items():
            row = slot * len(groups[name].agents) + k
            _check_row(step[name], row, lived[by_text[text]], f"step {t}, slot {slot}, agent {text}")
    env.close()


def _check_row(step: Step, row: int, lived: _Lived, where: str) -> None:
    flags = {name: (bool(getattr(step, name)[row]), getattr(lived, name)) for name in FLAGS}
    wrong = [name for name, (found, right) in flags.items() if found != right]
    if abs(float(step.reward[row]) - lived.reward) > 1e-4 * max(1.0, abs(lived.reward)):
        wrong.append("reward")
    if lived.final_obs is not None and not _matches(step.final_obs, lived.final_obs, row):
        wrong.append("final_obs")
    if lived.obs is not None and not _matches(step.obs, lived.obs, row):
        wrong.append("obs")
    if lived.obs is None and isinstance(step.obs, dict) and ACTION_MASK in step.obs:
        masks = tree.leaves(step.obs[ACTION_MASK])
        wrong += [] if all(bool(leaf[row].all()) for leaf in masks) else ["the mask of an absent agent"]
    if wrong:
        raise Problem(
            f"{where}: {', '.join(wrong)} of its row differ from its env stepped by hand",
            "Likely cause: rows are in another order (agent, then slot), a dead agent's row stays valid, a "
            "slot is reset with its first agent, or `first` is missing where an agent appears",
            "Fix: row = slot * agents + agent; a row is valid while its agent lives; a slot restarts when "
            "its last agent ends",
        )


def _matches(found: Tree, right: Any, row: int) -> bool:
    """Whether row ``row`` of an observation is the env's own, in its arrays of numbers."""
    if isinstance(right, Mapping):
        return all(_matches(found[key], value, row) for key, value in right.items() if key in found)  # type: ignore[index]
    if isinstance(right, tuple):
        return all(_matches(found[i], value, row) for i, value in enumerate(right))  # type: ignore[index]
    if np.ndim(right) == 0 or not isinstance(found, torch.Tensor):
        return True  # numbers of a choice may start elsewhere
    return _equal(found[row], torch.as_tensor(np.asarray(right)))


def _equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.numel() == b.numel() and bool(
        torch.isclose(a.double().flatten(), b.double().flatten(), equal_nan=True).all()
    )


def random_numbers(setup: Setup, env: Groups, network: Network) -> str:
    """Every group draws its actions from a random stream of its own."""
    algo = setup.config.algo
    actor = make_actor(env, network, rollout=algo.rollout, seed=setup.config.seed, **acting(algo).keywords())
    states = [tuple(one.generator.get_state().tolist()) for one in actor.actors.values()]
    if len(set(states)) < len(states):
        raise Problem(
            "several groups draw the same random numbers",
            "Likely cause: the streams of all groups have one seed",
            "Fix: make the seed of a stream from the seed of the run and the number of the group",
        )
    return f"{len(states)} groups draw from streams of their own"
