"""Checks of the env: its contract, its resets, and the findings of Gymnasium's own checker."""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from gymnasium.utils.env_checker import check_env
from torch import Tensor

from recollect.audit.results import Doubt, Problem, Skip
from recollect.base import tree
from recollect.base.formatting import plural
from recollect.base.spaces import ACTION_MASK
from recollect.base.types import Tree
from recollect.envs import checks
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import Groups, joint, views_of
from recollect.envs.wrappers import LastActionReward
from recollect.errors import EnvError

SECONDS = 1.5
"""Approximate seconds for each check of an env."""
STEPS = 200
"""Steps of each row in a check; fewer if the env is slow."""
SEED = 11


@dataclass(frozen=True, slots=True)
class RandomWalk:
    """The result of some steps with random actions."""

    seconds: float
    """Of one step of all rows."""
    lengths: list[list[int]]
    """The lengths of the finished episodes of each row."""


def random_walk(env: BatchedEnv | Groups) -> RandomWalk:
    """Step a new env, before its first reset by anything else, with random actions."""
    rng = np.random.default_rng(SEED)
    views, world, rows = views_of(env), joint(env), env.num_envs * env.agents
    lengths: list[list[int]] = [[] for _ in range(rows)]
    age = [0] * rows
    obs = world.reset(SEED)
    started = time.perf_counter()
    steps = 0
    while steps < STEPS and (steps < 10 or time.perf_counter() - started < SECONDS):
        made = world.step({name: checks.random_action(view, obs[name], rng) for name, view in views.items()})
        obs, steps = {name: step.obs for name, step in made.items()}, steps + 1
        valid, ended = (
            torch.cat([step.valid for step in made.values()]),
            torch.cat([(step.terminated | step.truncated) & step.valid for step in made.values()]),
        )
        for row, (is_valid, has_ended) in enumerate(zip(valid.tolist(), ended.tolist())):
            age[row] += is_valid
            if has_ended:
                lengths[row].append(age[row])
                age[row] = 0
    return RandomWalk((time.perf_counter() - started) / steps, lengths)


def contract(env: BatchedEnv | Groups, walk: RandomWalk) -> str:
    """The rules of the env's interface, with random actions; an env that ignores its seed is a warning."""
    _check_lengths(walk.lengths)
    steps = max(10, min(STEPS, int(SECONDS / max(walk.seconds, 1e-6))))
    try:
        if isinstance(env, Groups):
            seen = checks.check_grouped_env(env, steps=steps, seed=SEED)
        else:
            seen = {"": checks.check_batched_env(env, steps=steps, seed=SEED)}
    except EnvError as error:
        if not str(error).endswith(checks.UNSEEDED):
            raise
        _check_reset(env)
        raise Doubt(
            "not repeatable: the same seed and actions give another episode",
            str(error),
            "Training works, but neither a run nor an evaluation can be reproduced",
        ) from None
    walked = f"{steps} steps x {env.num_envs * env.agents} rows"
    terminated, truncated, invalid = (
        sum(getattr(one, name) for one in seen.values()) for name in ("terminated", "truncated", "invalid")
    )
    if terminated + truncated == 0:
        return f"{walked}, in which no episode ended; repeatable"
    fillers = f", {invalid} fillers" if invalid else ""
    return f"{walked}: {terminated} terminated, {truncated} truncated{fillers}; repeatable"


def gymnasium_checker(make: Callable[[], gym.Env | None], *, is_users: bool) -> str:
    """The findings of Gymnasium's own checker for one env, as a warning."""
    env = make()
    if env is None:
        raise Skip("not made of single gymnasium.Envs")
    parts = getattr(env.observation_space, "spaces", {})
    try:
        if isinstance(parts, dict) and ACTION_MASK in parts:
            raise Skip("its random actions would not respect the action mask")
        found = _gymnasium_findings(env)
    finally:
        if not is_users:
            env.close()
    if found:
        raise Doubt(f"gymnasium.utils.env_checker has {plural(len(found), 'finding')}", *found[:5])
    return "gymnasium.utils.env_checker finds nothing"


def _gymnasium_findings(env: gym.Env) -> list[str]:
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            check_env(env, skip_render_check=True, skip_close_check=True)
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    texts = [re.sub(r"\x1b\[[0-9;]*m", "", str(warning.message)) for warning in caught]
    found += [text.removeprefix("WARN: ") for text in texts if not any(noise in text for noise in _NOISE)]
    return [" ".join(text.split()) for text in dict.fromkeys(found)]


_NOISE = ("different from the unwrapped version", "infinity", "symmetric and normalized")
"""Findings without relevance here: wrappers, bounds that are unknown or not -1 to 1."""


def _check_lengths(lengths: list[list[int]]) -> None:
    """Find an env whose reset keeps its step counter: after one episode, every step ends one."""
    long = [row for row in lengths if len(row) >= 5]
    if long and all(row[0] > 1 and set(row[1:]) == {1} for row in long):
        raise Problem(
            f"after the first episode ({long[0][0]} steps) every episode ends after 1 step",
            "Likely cause: reset() keeps a step counter or other state of the old episode",
            "Fix: set everything that an episode changes in reset()",
        )


def _check_reset(env: BatchedEnv | Groups) -> None:
    """Find an env whose reset does nothing: it returns the observation from before the reset."""
    views = {
        name: view.env if isinstance(view, LastActionReward) else view for name, view in views_of(env).items()
    }
    world = Groups(views, env.members) if isinstance(env, Groups) else joint(views[""])
    rng = np.random.default_rng(SEED)
    start = obs = tree.clone(world.reset(SEED))
    rows = torch.zeros(0, dtype=torch.bool)
    for count in range(60):
        made = world.step({name: checks.random_action(view, obs[name], rng) for name, view in views.items()})
        obs = tree.clone({name: step.obs for name, step in made.items()})
        rows = torch.cat([step.valid & ~(step.terminated | step.truncated) for step in made.values()])
        if count >= 20 and rows.all():
            break
    again = world.reset(SEED)
    if rows.any() and _same_rows(again, obs)[rows].all() and not _same_rows(start, obs)[rows].any():
        raise Problem(
            "reset(seed) changes nothing: it returns the observation from before it",
            "Likely cause: reset() returns the current observation and starts no new episode",
            "Fix: set everything that an episode changes in reset(), then observe",
        )


def _same_rows(a: Mapping[str, Tree], b: Mapping[str, Tree]) -> Tensor:
    """[B] bool: rows of all groups that are equal in every leaf."""
    groups = []
    for name in a:
        equal = [x == y for x, y in zip(tree.leaves(a[name]), tree.leaves(b[name]))]
        equal = [leaf.flatten(1).all(1) if leaf.dim() > 1 else leaf for leaf in equal]
        groups.append(torch.stack(equal).all(0))
    return torch.cat(groups)
