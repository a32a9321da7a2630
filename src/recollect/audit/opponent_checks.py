"""Opponents: they have the other side's rows, stay in their game, and have their own weights and memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.audit.results import Problem, Skip
from recollect.audit.setup import Setup
from recollect.audit.state_checks import equal
from recollect.base import tree
from recollect.envs import checks
from recollect.envs.contract import BetweenRollouts, Resumable
from recollect.envs.versus import OUTCOMES, Versus

STEPS = 60
MEMBERS = 3
SEED = 13
RESUMES, AGAIN = 4, 8
"""Snapshots, and steps after each."""
PARTS = ("obs", "first", "reward", "terminated", "truncated", "final_obs", "valid")
"""Of a step, all but its info."""
TOLERANCE = 1e-4


def versus_of(env: Any) -> Versus:
    """The env with its player, below other wrappers."""
    while not isinstance(env, Versus):
        env = getattr(env, "env", None)
        if env is None:
            raise Skip("no opponent plays")
    return env


def sides(setup: Setup, env: Any) -> str:
    """Learner and opponent see and move the rows of their own side, at the same step."""
    versus = versus_of(env)
    inner, rng = versus.env, np.random.default_rng(SEED)
    with seen(inner, "step") as steps, seen(versus.player, "act") as acts:
        shown = versus.reset(SEED)
        last: tuple[Any, Tensor] | None = None
        mine = versus.rows
        for _ in range(STEPS):
            action = checks.random_action(versus, shown, rng)
            step = versus.step(action)
            (rows, _, first), answer = acts[-1]
            _check_moves(rows, action, answer, steps[-1][0][0])
            if last is not None:
                _check_shown(rows, acts[-1][0][1], first, *last)
            mine = _others(rows, len(steps[-1][1]["first"]))
            for name in PARTS:
                if not equal(getattr(step, name), tree.index(steps[-1][1][name], mine)):
                    raise Problem(
                        f"the learner sees {name} of other rows than those of its side",
                        "Fix: give it the rows that its actions move",
                    )
            _check_results(versus, step.info, signs(versus, mine))
            last = steps[-1][1]["obs"], steps[-1][1]["first"]
            shown = step.obs
        own = signs(versus, mine)
        if versus.num_envs > 1 and not (own.min() < own.max()):
            raise Problem(
                f"the learner has the same side in all {versus.num_envs} slots",
                "Fix: give it the other side in every second slot",
            )
        resumes = ""
        if isinstance(versus, Resumable):
            for _ in range(RESUMES):
                shown = check_resume(versus, shown, rng, acts)
            resumes = "; resumed in the middle of games, too"
    return f"{STEPS} steps: learner and opponent see and move the rows of their own side{resumes}"


def signs(versus: Versus, mine: Tensor) -> Tensor:
    """[E]: 1 where the learner has the first half of a slot's rows, else -1."""
    size = 2 * versus.agents
    return torch.where(mine[:: versus.agents] % size < versus.agents, 1, -1)


def _check_results(versus: Versus, info: dict[str, Tensor], sides: Tensor) -> None:
    """The results of finished games are those of the learner's side; there are none before."""
    won, is_over = versus.env.won * sides, versus.env.games > 0
    for name, outcome in OUTCOMES.items():
        right = torch.where(is_over, (won == outcome).float(), torch.nan)
        if not equal(info[name], right):
            raise Problem(
                f"{name} of the learner is {info[name].tolist()}, and its games say {right.tolist()}",
                "Likely cause: results are those of the first side, or of games that are not played yet",
                "Fix: turn the result round where the learner has the second side",
            )


def check_resume(versus: Any, obs: Any, rng: np.random.Generator, acts: list[tuple[Any, Any]]) -> Any:
    """From a snapshot where a game starts, the same actions lead to the same steps and answers.

    Returns the observation after them.
    """
    for _ in range(STEPS):
        step = versus.step(checks.random_action(versus, obs, rng))
        obs = step.obs
        if step.first.any() and not step.first.all():
            break
    if isinstance(versus.player, BetweenRollouts):  # its random numbers may be those of a rollout
        versus.between_rollouts(AGAIN)
    kept = tree.clone(versus.snapshot())
    actions, found = [checks.random_action(versus, obs, rng) for _ in range(AGAIN)], []
    for number in range(2):
        if number:
            versus.restore(kept)
        earlier = len(acts)
        shown = [tree.clone(versus.step(action).obs) for action in actions]
        found.append((shown, acts[earlier:]))
        for action in actions:  # something else happens before the snapshot is restored
            obs = tree.clone(versus.step(action).obs)
    (obs_before, acts_before), (obs_again, acts_again) = found
    same = all(map(equal, obs_before, obs_again))
    same &= all(equal(a[0], b[0]) and equal(a[1], b[1]) for a, b in zip(acts_before, acts_again))
    if not same:
        raise Problem(
            "after a resume the opponent acts otherwise, or is told of other starts of games",
            "Likely cause: its memory or the flags of games that have just started are not restored",
            "Fix: save them with the env",
        )
    return obs


def _check_moves(rows: Tensor, own: Any, theirs: Any, sent: Any) -> None:
    mine = _others(rows, len(tree.leaves(sent)[0]))
    if equal(tree.index(sent, mine), own) and equal(tree.index(sent, rows), theirs):
        return
    raise Problem(
        "the env got the actions of learner and opponent in each other's rows, or changed",
        "Likely cause: the actions of the sides are joined in another order than the rows are split",
        "Fix: join them by the inverse of the split",
    )


def _check_shown(rows: Tensor, obs: Any, first: Tensor, whole: Any, starts: Tensor) -> None:
    if not equal(obs, tree.index(whole, rows)):
        raise Problem(
            "the opponent acts on another observation than that of its rows at this step",
            "Likely cause: the observation of an earlier step, of the final step, or of the learner's rows",
            "Fix: keep the opponent's part of each step's observation",
        )
    if not torch.equal(first, starts[rows]):
        raise Problem(
            "the opponent is not told which of its rows start a game",
            "Likely cause: its `first` is another step's, so that its memory is kept or lost",
            "Fix: pass first of its own rows",
        )


def _others(rows: Tensor, count: int) -> Tensor:
    mask = torch.ones(count, dtype=torch.bool, device=rows.device)
    mask[rows] = False
    return mask.nonzero().flatten()


@contextmanager
def seen(owner: Any, name: str) -> Iterator[list[tuple[Any, Any]]]:
    """Copies of the arguments and results of a method, while the context lasts."""
    calls: list[tuple[Any, Any]] = []
    method = getattr(owner, name)

    def watched(*args: Any) -> Any:
        kept = tree.clone(tuple(args))
        result = method(*args)
        found = {part: getattr(result, part) for part in (*PARTS, "info")} if name == "step" else result
        calls.append((kept, tree.clone(found)))
        return result

    setattr(owner, name, watched)
    try:
        yield calls
    finally:
        delattr(owner, name)
