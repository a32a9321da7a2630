"""Checks of the learner on replay: pace, staleness, rows of actors, checkpoints."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import cycle, islice
from typing import Any, cast

import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.audit.drawn_replay import Recorded
from recollect.audit.replay_script import ROWS, Sizes, script
from recollect.audit.results import Problem, Skip
from recollect.config.replay import STORED, ReplayConfig
from recollect.experience.rollout import Rollout
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.learning.replay_learner import ReplayLearner, add
from recollect.policy.policy import Policy

UPDATES = 8
NEVER = 10**9
"""A warm-up that does not end."""


def learner_of(rollouts: Recorded, policy: Policy | None = None, **settings: Any) -> ReplayLearner:
    """A new learner with a copy of the policy, and settings that are tried whatever the config says."""
    one = rollouts[0]
    policy = copy.deepcopy(one.policy) if policy is None else policy
    config = replace(cast(ReplayConfig, one.setup.config.algo), **settings)
    return make_learner(policy, config, rows=one.rollout.rows, seed=1)


def warm_up(rollouts: Recorded) -> str:
    """Nothing is learned before ``replay_warmup`` steps were stored, and then it is."""
    _check_full(rollouts)
    stored = [int(recorded.log.valid.sum()) for recorded in rollouts]
    limit = stored[0] + 1  # reached by the second rollout
    learner, total = learner_of(rollouts, replay_warmup=limit), 0
    for number, recorded in enumerate(rollouts):
        steps_before = learner.gradient_steps
        learner.update(recorded.rollout, lag=1)
        total += stored[number]
        if total < limit and learner.gradient_steps:
            raise Problem(
                f"after {total} stored steps {learner.gradient_steps} optimiser steps were made, and "
                f"replay_warmup is {limit}",
                "Likely cause: the warm-up is not checked, or counts something else than stored steps",
                "Fix: learn once the replay has stored replay_warmup steps",
            )
        if total >= limit and learner.replay.windows and learner.gradient_steps > steps_before:
            return f"no optimiser step before {limit} stored steps; {learner.gradient_steps} after {total}"
    raise Skip("too few steps were recorded for an optimiser step (the env is slow)")


def _check_full(rollouts: Recorded) -> None:
    """A warm-up of as many steps as the replay holds ends."""
    algo, rows = cast(ReplayConfig, rollouts[0].setup.config.algo), rollouts[0].rollout.rows
    capacity = rows * (algo.window + 2 * algo.rollout + 1)
    learner = learner_of(rollouts, replay_capacity=capacity, replay_warmup=capacity, gauge_every=0)
    made, stored = _counted(learner), 0
    for one in islice(cycle(rollouts), 4 * capacity):
        learner.update(one.rollout, lag=1)
        stored += one.rollout.valid_steps
        if stored >= capacity or not stored:
            break
    if stored >= capacity and learner.replay.windows and not made:
        raise Problem(
            f"no optimiser step is made after {stored} steps, with replay_warmup = replay_capacity = "
            f"{capacity}",
            "Likely cause: the warm-up counts the steps in memory, where final observations take slots, too",
            "Fix: count the steps that were ever stored",
        )


def replay_ratio(rollouts: Recorded) -> str:
    """So many optimiser steps are made that replay_ratio steps are learned from for each step collected."""
    algo = cast(ReplayConfig, rollouts[0].setup.config.algo)
    size = algo.batch * algo.chunk
    each = max(1, sum(one.rollout.valid_steps for one in rollouts) // len(rollouts))
    said = []
    for per_update in (0.4, 2.5):
        ratio = per_update * size / each
        learner, collected = learner_of(rollouts, replay_ratio=ratio, gauge_every=0), 0
        made = _counted(learner)
        for one in islice(cycle(rollouts), UPDATES + len(rollouts)):
            learner.update(one.rollout, lag=1)
            collected += one.rollout.valid_steps if learner.replay.windows else 0
            due = ratio * collected / size
            if not due - 1 - 1e-6 < len(made) <= due + 1e-6:
                raise Problem(
                    f"with replay_ratio={ratio:.3g} {len(made)} optimiser steps of {size} steps were made "
                    f"after {collected} collected steps, and {due:.2f} were due",
                    "Likely cause: the rest that is too small for a step is dropped, or only one step is "
                    "made in each update",
                    "Fix: carry the rest over, and make steps until less than one is due",
                )
        if not collected:
            raise Skip("no sequence is complete: too few steps were recorded (the env is slow)")
        said.append(f"{len(made)} steps at {ratio:.2g}")
    return f"{', '.join(said)}: as many as replay_ratio asks for"


def _counted(learner: ReplayLearner) -> list[int]:
    """Replace the optimiser steps; the list gets an entry for each."""
    made: list[int] = []

    def step() -> dict[str, Tensor]:
        made.append(1)
        return {"grad_norm": torch.zeros(()), "replay/learned": torch.zeros(())}

    learner.step = step  # pyright: ignore[reportAttributeAccessIssue]
    return made


def staleness(rollouts: Recorded) -> str:
    """The staleness of stored states is measured where an episode has two of them."""
    one, algo = rollouts[0], cast(ReplayConfig, rollouts[0].setup.config.algo)
    if algo.states != STORED or not one.policy.has_memory:
        raise Skip("no states are stored")
    if not all(bool(recorded.rollout.valid.all()) for recorded in rollouts):
        raise Skip("some steps are fillers, or those of dead agents")
    learner, found = learner_of(rollouts, gauge_every=1, replay_warmup=0), []
    for one in islice(cycle(rollouts), UPDATES + len(rollouts)):
        metrics = learner.update(_endless(one.rollout), lag=1)
        if "replay/staleness" in metrics:
            found.append(metrics["replay/staleness"])
    if not found:
        raise Skip("too few steps were recorded for an optimiser step (the env is slow)")
    if not found[-1] >= 0:
        raise Problem(
            f"replay/staleness is {found[-1]}, with episodes without end",
            "Likely cause: it compares sequences at a distance at which no states are stored",
            "Fix: compare at the distance of two stored states of a rollout",
        )
    return f"measured {len(found)} times"


def _endless(rollout: Rollout) -> Rollout:
    """The same without ends of episodes."""
    none = torch.zeros_like(rollout.terminated)
    first = torch.zeros_like(rollout.first)
    return replace(rollout, terminated=none, truncated=none, first=first, finals=None)


def replay_rows(rollouts: Recorded) -> str:
    """Rollouts of several actors, in any order, go to the rows of their own actor."""
    device = rollouts[0].rollout.reward.device
    sizes = Sizes(capacity=20)
    joined, single = (sizes.make(device, rows=2 * ROWS) for _ in range(2))
    played = [sizes.stored(rollout) for rollout in script((6,) * 4, device)]
    for number, actors in enumerate(((1,), (1, 0), (0,))):
        given = [replace(played[number + i], actor=actor) for i, actor in enumerate(actors)]
        add(joined, Rollout.join(given))
        for rollout in given:
            single.add(rollout, row=rollout.actor * ROWS)
    differ = [
        name
        for name, leaf in joined.state_dict().items()
        if not torch.equal(leaf.nan_to_num(), single.state_dict()[name].nan_to_num())
    ]
    if differ:
        raise Problem(
            f"rollouts of actors that run ahead go to the rows of others: {', '.join(differ[:3])} differ",
            "Likely cause: rows are numbered in the order in which rollouts arrive",
            "Fix: row = actor * rows of an actor",
        )
    return f"4 rollouts of 2 actors with {ROWS} rows each, in any order, are in their own rows"


def replay_resumed(rollouts: Recorded) -> str:
    """A saved and loaded learner continues as the one that went on: target network, owed steps, replay."""
    algo = cast(ReplayConfig, rollouts[0].setup.config.algo)
    each = max(1, rollouts[-1].rollout.valid_steps)
    settings = {
        "save_replay": True,
        "replay_ratio": 1.7 * algo.batch * algo.chunk / each,
        "gauge_every": 0,
    }
    ours = learner_of(rollouts, **settings)
    for number, one in enumerate(rollouts):
        ours.update(one.rollout, 0.1 * number / len(rollouts), lag=1)
    if not ours.gradient_steps:
        raise Skip("too few steps were recorded for an optimiser step (the env is slow)")
    tensors = {name: leaf.clone() for name, leaf in learner_tensors(ours).items()}
    other = learner_of(rollouts, copy.deepcopy(ours.policy), **settings)
    with torch.no_grad():
        for parameter in other.target.parameters():
            parameter += 0.1
    learned = Learned(updates=ours.updates, optimizer=tensors)
    load_learner(other, learned)
    loaded, found = learner_tensors(other), []
    for name, leaf in tensors.items():
        if name not in loaded or not torch.equal(loaded[name].nan_to_num(), leaf.nan_to_num()):
            raise Problem(
                f"{name} of a saved learner is another number in the one that loads it",
                "Likely cause: it is saved and not loaded",
                "Fix: see ReplayLearner.load_more",
            )
    for learner in (ours, other):
        for one in rollouts[-2:]:
            learner.update(one.rollout, 0.5, lag=1)
        numbers: dict[str, Tensor] = {f"target.{k}": x for k, x in learner.target.named_parameters()}
        numbers["gradient_steps"] = torch.tensor(learner.gradient_steps)
        found.append(numbers | learner.policy.state_dict())
    differ = [
        k for k, x in found[0].items() if not torch.allclose(x.double(), found[1][k].double(), atol=1e-5)
    ]
    if differ or not other.is_complete:
        raise Problem(
            "a saved and loaded learner does not continue as the one that went on: "
            + (f"{differ[0]} differs" if differ else "it has no replay"),
            "Likely cause: target network, owed steps, random stream or replay are not saved or not loaded",
            "Fix: ReplayLearner.more_tensors and load_more name all of them",
        )
    without = {name: leaf for name, leaf in tensors.items() if "replay." not in name}
    load_learner(other, replace(learned, optimizer=without))
    if other.is_complete:
        raise Problem(
            "a learner that is loaded without its replay does not say so",
            "Fix: set is_complete to false, so that the run refills the replay",
        )
    return f"{ours.gradient_steps} optimiser steps, the last ones after saving and loading: the same weights"
