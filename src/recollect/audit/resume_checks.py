"""Trainings that are saved and resumed, or evaluated on the way, end like one left alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from recollect.agent import Agent
from recollect.audit.loop_checks import TIMES, Trained, short_training
from recollect.audit.results import Doubt, Problem, Skip
from recollect.audit.setup import Setup
from recollect.audit.state_checks import equal
from recollect.base import tree
from recollect.config.league import LEAGUE
from recollect.config.replay import ReplayConfig
from recollect.envs import checks
from recollect.envs.factory import is_made
from recollect.envs.group_views import joint, views_of
from recollect.experience.group_rollout import by_group
from recollect.training import checkpoints
from recollect.training.trainer import Trainer

OWED = 0.7
"""Of the optimiser steps per rollout, so that a fraction of one is owed at the checkpoint."""
PROGRESS = 0.5
"""Of the run, in those updates."""
STEPS, SEED = 8, 3
"""Of two instances of an env that are compared."""
LATER = 2
"""Updates after the checkpoint."""
SECONDS = 5.0
"""After which a training with evaluations is given up."""


def resumed(setup: Setup, rows: int) -> str:
    """A training continued from a checkpoint ends like the same training without a stop."""
    if is_made(setup.env):
        raise Skip("the env is an instance, and cannot be made a second time")
    if setup.config.vs == LEAGUE:
        raise Skip("the opponents of a league are in the run folder of the training")
    algo, before = setup.config.algo, 1
    if isinstance(algo, ReplayConfig):
        algo = replace(algo, save_replay=True, replay_ratio=OWED * algo.replay_ratio)
        before += -(-algo.window // algo.rollout)
    config = replace(setup.config, algo=algo, steps=(before + LATER) * algo.rollout * rows)
    config = replace(config, learner_processes=setup.where.get("learner_processes", False))
    with ExitStack() as opened:
        agent = opened.enter_context(Agent.create(setup.env, config, setup.policy))
        trainer = agent.need_trainer()
        trainer.begin(config.steps)
        _iterate(trainer, before)
        folder = Path(opened.enter_context(TemporaryDirectory())) / "agent"
        learned = trainer.learned(live=True)
        if learned.trainer is not None:
            learned.trainer.numbers["seconds"] = 0.0
        checkpoints.write(folder, agent.network, config, None, learned)
        again = opened.enter_context(Agent.create(setup.env, config, setup.policy))
        with torch.no_grad():
            for leaf in tree.leaves(dict(again.network.state_dict())):
                leaf.zero_()
        saved = checkpoints.read(folder)
        checkpoints.load_weights(again.network, saved)
        other = again.need_trainer()
        other.restore(saved.learned)
        if other.is_exact:
            expected = _iterate(trainer, LATER) | _tensors(agent, trainer)
            found = _iterate(other, LATER) | _tensors(again, other)
        else:
            expected, found = _learned_by_both((agent, trainer), (again, other))
        how = other.how_restored
    differing = [name for name, value in expected.items() if not _same(value, found.get(name))]
    if differing:
        raise Problem(
            f"{LATER} updates after a checkpoint {differing[0]} differs from that of a training without a "
            f"stop ({len(differing)} of {len(expected)} numbers and tensors)",
            "Likely cause: the checkpoint lacks part of the state, or it is not restored: moments of the "
            "optimiser, a target network, statistics, memories, episodes in progress, random streams",
            "Fix: save and restore everything that the next update reads",
        )
    count = f"{LATER} updates after a checkpoint {len(expected)} numbers and tensors are the same"
    return f"{count}; it continues {how}"


def _iterate(trainer: Trainer, count: int) -> dict[str, float | Tensor]:
    """The metrics of the last of ``count`` iterations, without times."""
    metrics: dict[str, float] = {}
    with trainer.working():
        for _ in range(count):
            metrics = trainer.iterate().metrics
    return {name: value for name, value in metrics.items() if not name.startswith(TIMES)}


def _tensors(agent: Agent, trainer: Trainer) -> dict[str, float | Tensor]:
    """Weights, statistics, and everything else that a checkpoint has."""
    learned = trainer.learned(live=True)
    live = {} if learned.trainer is None else learned.trainer.tensors
    return tree.clone({**agent.network.state_dict(), **learned.optimizer, **live})


def _learned_by_both(
    one: tuple[Agent, Trainer], other: tuple[Agent, Trainer]
) -> tuple[dict[str, float | Tensor], dict[str, float | Tensor]]:
    """The same rollouts, learned from by both: an env without snapshots would show them others."""
    found: tuple[dict[str, float | Tensor], ...] = ({}, {})
    for _ in range(LATER):
        with one[1].working():
            (rollout,) = one[1].collector.collect(one[1].learner.updates).rollouts
        for (_, trainer), numbers in zip((one, other), found):
            for group, part in by_group(rollout).items():
                copied = replace(part, **tree.clone(part.tensors()))
                metrics = trainer.learners[group].update(copied, PROGRESS)
                numbers |= {f"{group} {name}".strip(): value for name, value in metrics.items()}
    for (agent, trainer), numbers in zip((one, other), found):
        learned = trainer.learned(live=False).optimizer
        numbers |= tree.clone({**agent.network.state_dict(), **learned})
    return found[0], found[1]


def _same(a: float | Tensor, b: float | Tensor | None) -> bool:
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.shape == b.shape and equal(a, b)
    return isinstance(b, float) and (a == b or (math.isnan(a) and math.isnan(b)))


def evaluated(trained: dict[str, Trained], setup: Setup, rows: int) -> str:
    """A training with evaluations on the way ends like ``trained``, which had none."""
    if is_made(setup.env):
        raise Skip("the env is an instance, and evaluations need another one")
    if setup.config.vs == LEAGUE:
        raise Skip("evaluations against a league play against the members of its folder")
    every = setup.config.algo.rollout * rows
    more = {"eval_every": every, "eval_episodes": 2, "eval_mode": "both", "max_seconds": SECONDS}
    there = replace(setup, config=replace(setup.config, **more))
    found, is_drawn = _and_draws(lambda: short_training(there, rows))
    for name, one in trained.items():
        if len(found[name].metrics) < len(one.metrics):
            raise Skip(f"evaluations took longer than {SECONDS:g} s")
        differing = [key for key, leaf in one.after.items() if not torch.equal(leaf, found[name].after[key])]
        if differing and _are_linked(setup):
            raise Doubt(
                "steps of one instance of the env change the episodes of another",
                "Likely cause: the instances share a random stream, such as that of one space object",
                "Evaluations on the way then change what is trained on: give each instance its own",
            )
        if differing:
            raise Problem(
                f"with evaluations on the way the training ends with another {differing[0]}",
                "Likely cause: evaluations are played in the env of the training, change its statistics or "
                "live memory, or use its random streams",
                "Fix: evaluate in an env of its own, with frozen statistics and a generator of its own",
            )
    if is_drawn and not _and_draws(lambda: short_training(setup, rows))[1]:
        raise Problem(
            "with evaluations on the way torch's global random stream moves, and without them it does not",
            "Likely cause: the evaluation samples or makes its env without a generator of its own",
            "Fix: give it one",
        )
    return (
        f"{len(next(iter(found.values())).metrics)} updates with an evaluation after each: the same weights"
    )


def _are_linked(setup: Setup) -> bool:
    """Whether two instances of the env influence each other."""
    seen = []
    for is_other_stepped in (False, True):
        with closing(setup.open()) as env, closing(setup.open()) as other:
            obs, rng = joint(env).reset(SEED), np.random.default_rng(SEED)
            joint(other).reset(SEED + 1)
            for _ in range(STEPS):
                action = {n: checks.random_action(view, obs[n], rng) for n, view in views_of(env).items()}
                if is_other_stepped:
                    joint(other).step(action)
                obs = {name: tree.clone(step.obs) for name, step in joint(env).step(action).items()}
            seen.append(obs)
    return not all(equal(seen[0][name], seen[1][name]) for name in seen[0])


def _and_draws(train: Callable[[], dict[str, Trained]]) -> tuple[dict[str, Trained], bool]:
    """A training, and whether it moved torch's global random stream."""
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        return train(), not torch.equal(before, torch.get_rng_state())
