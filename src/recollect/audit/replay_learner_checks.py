"""Checks of the learner on replay: pace, exploration, noise, staleness, rows of actors, checkpoints."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.algos.catalog import acting, make_learner
from recollect.audit.drawn_replay import Recorded
from recollect.audit.gpu_path import without_reads
from recollect.audit.playback import Playback
from recollect.audit.replay_loss_checks import preferred, valued
from recollect.audit.replay_script import ROWS, Sizes, script
from recollect.audit.results import Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.config.replay import STORED, ReplayConfig
from recollect.errors import EnvError
from recollect.experience.rollout import Rollout
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.learning.replay_learner import ReplayLearner, add
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead

UPDATES = 8
NEVER = 10**9
"""A warm-up that does not end."""
SIGMAS = 6.0
START, END, DECAY = 0.9, 0.2, 0.5
"""Of the epsilon that is tried, whatever the config says."""


def _learner(rollouts: Recorded, policy: Policy | None = None, **settings: Any) -> ReplayLearner:
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
    learner, total = _learner(rollouts, replay_warmup=limit), 0
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
    learner = _learner(rollouts, replay_capacity=capacity, replay_warmup=capacity, gauge_every=0)
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
        learner, collected = _learner(rollouts, replay_ratio=ratio, gauge_every=0), 0
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


def exploration(rollouts: Recorded) -> str:
    """Epsilon follows its schedule, and each row of each actor explores at its own share of it."""
    _check_schedule(rollouts)
    one, algo = rollouts[0], cast(ReplayConfig, rollouts[0].setup.config.algo)
    wanted = acting(replace(algo, epsilon_end=END, epsilon=START, epsilon_ladder=3.0))
    head = one.policy.head
    if wanted.exploration is None or not isinstance(head, QHead):
        raise Skip("epsilon follows its schedule; how rows explore is the algorithm's own")
    rows = one.rollout.rows
    ladder = [END ** (3.0 * row / max(1, 2 * rows - 1)) for row in range(2 * rows)]
    policy = copy.deepcopy(one.policy)
    cast(QHead, policy.head).epsilon.fill_(1.0)
    actors = []
    for number in range(2):
        env = Playback(rollouts[-1].log, policy)
        options: dict[str, Any] = {"rollout": algo.rollout, "seed": number, **wanted.keywords()}
        actor = Actor(env, policy, index=number, actors=2, **options)
        own = ladder[number * rows :][:rows]
        assert actor.exploration is not None
        if not torch.allclose(actor.exploration.cpu(), torch.tensor(own), rtol=1e-5):
            raise Problem(
                f"the rows of actor {number} of 2 explore at {_listed(actor.exploration.tolist())} of "
                f"epsilon, and {_listed(own)} must be",
                "Likely cause: every actor has a ladder of its own, has the rows of the first one, or the "
                "ladder is upside down",
                "Fix: row i of all N explores at epsilon_end^(epsilon_ladder * i / (N - 1))",
            )
        actors.append(actor)
    actor, other = actors
    for rate in (1.0, 0.0):
        actor.exploration.fill_(rate)
        _check_acting(actor, rate, one.setup.tolerance)
    saved = actor.snapshot()
    other.restore(saved)
    if not torch.equal(other.exploration, actor.exploration):
        raise Problem(
            "exploration is not part of a saved actor",
            "Likely cause: an algorithm that changed it finds the first values after a resume",
            "Fix: store it in Actor.snapshot",
        )
    return "epsilon follows its schedule; two actors share one ladder of rows, and act by it"


def _listed(rates: list[float]) -> str:
    return ", ".join(map(tiny, rates[:4])) + (", ..." if len(rates) > 4 else "")


def _check_schedule(rollouts: Recorded) -> None:
    settings = {"epsilon": START, "epsilon_end": END, "epsilon_decay": DECAY, "replay_warmup": NEVER}
    learner = _learner(rollouts, **settings)
    used = START
    for progress in (0.0, 0.2, 0.4, 0.7, 1.0):
        named = learner.update(rollouts[0].rollout, progress, lag=1)["epsilon"]
        after = START + (END - START) * min(1.0, progress / DECAY)
        if abs(named - used) > 1e-6 or abs(float(learner.head.epsilon) - after) > 1e-6:
            raise Problem(
                f"at {progress:.0%} of a run epsilon is {float(learner.head.epsilon):.3g} and named "
                f"{named:.3g}; {after:.3g} and {used:.3g} must be",
                "Likely cause: epsilon is not set, falls below its end, or the metric is that of the next "
                "rollout",
                "Fix: after an update epsilon + (epsilon_end - epsilon) * min(1, progress / epsilon_decay)",
            )
        used = after


@torch.no_grad()
def _check_acting(actor: Actor, rate: float, tolerance: float) -> None:
    """With epsilon 1: random actions at rate 1, none at rate 0."""
    policy, head = actor.policy, cast(QHead, actor.policy.head)
    count, mean, variance = 0.0, 0.0, 0.0
    for _ in range(3):
        rollout = actor.collect()
        obs = tree.index(rollout.obs, slice(rollout.steps))
        q = policy.unroll(obs, rollout.state_at(0), rollout.first[:-1])[0]
        valid, action = rollout.valid, cast(Tensor, rollout.action)
        best = preferred(head, q)
        differs = (action.reshape(*valid.shape, -1) != best).any(-1) & valid
        if rate == 0:  # a near tie may be decided otherwise when it is computed again
            differs &= (
                valued(head, q, best) - valued(head, q, action) > tolerance * q[q.isfinite()].abs().max()
            )
        count += float(differs.sum())
        choices = torch.stack([part.isfinite().sum(-1) for part in q.split(head.nvec, -1)]).prod(0)
        share = (rate * (1 - 1 / choices.double()))[valid]
        mean, variance = mean + float(share.sum()), variance + float((share * (1 - share)).sum())
    allowed = SIGMAS * variance**0.5
    if not abs(count - mean) <= allowed:
        raise Problem(
            f"{count:.0f} actions are not greedy where epsilon is 1 and all rows explore at {rate:g}; "
            f"{mean:.0f} +- {allowed:.0f} must be",
            "Likely cause: the actor does not pass the rows' exploration to the head, or a copy of that at "
            "the start",
            "Fix: give Actor.exploration to each step, as it is then",
        )


def noise_drawn(rollouts: Recorded) -> str:
    """Noise of weights is drawn anew for every rollout, and for both networks in every optimiser step."""
    head = rollouts[0].policy.head
    if not (isinstance(head, QHead) and head.config.noisy):
        raise Skip("the head has no noise")
    learner = _learner(rollouts)
    algorithm = learner.algorithm
    seen: dict[str, list[float]] = {"acting": [], "learning": [], "target": []}

    def noise(policy: Policy) -> float:
        return sum(float(buffer.sum()) for name, buffer in policy.named_buffers() if "noise" in name)

    def loss(policy: Policy, target: Policy, *given: Any) -> Any:
        seen["learning"].append(noise(policy))
        seen["target"].append(noise(target))
        return algorithm.loss(policy, target, *given)

    learner.algorithm = cast(Any, SimpleNamespace(acting=algorithm.acting, loss=loss))
    for one in islice(cycle(rollouts), UPDATES):
        learner.update(one.rollout, lag=1)
        seen["acting"].append(noise(learner.policy))
    for name, drawn in seen.items():
        others = [x for other, found in seen.items() if other != name for x in found]
        if len(set(drawn)) < len(drawn) or set(drawn) & set(others):
            raise Problem(
                f"the noise of {name} is drawn {len(set(drawn))} times in {len(drawn)} rollouts or steps, or "
                "is that of another network",
                "Likely cause: noise is drawn once, or the target network keeps its own",
                "Fix: draw it after every update, and for both networks in every optimiser step",
            )
    return ", ".join(f"{len(drawn)} times for {name}" for name, drawn in seen.items())


def staleness(rollouts: Recorded) -> str:
    """The staleness of stored states is measured where an episode has two of them."""
    one, algo = rollouts[0], cast(ReplayConfig, rollouts[0].setup.config.algo)
    if algo.states != STORED or not one.policy.has_memory:
        raise Skip("no states are stored")
    if not all(bool(recorded.rollout.valid.all()) for recorded in rollouts):
        raise Skip("some steps are fillers, or those of dead agents")
    learner, found = _learner(rollouts, gauge_every=1, replay_warmup=0), []
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


def final_observations(rollouts: Recorded) -> str:
    """On the path of a GPU the final observations of time limits are those of the env, none is lost."""
    one, algo = rollouts[-1], cast(ReplayConfig, rollouts[0].setup.config.algo)
    policy, log, rows = copy.deepcopy(one.policy), one.log, one.rollout.rows
    log = replace(log, truncated=log.truncated | (log.valid & ~log.terminated))  # at every step
    options: dict[str, Any] = {"rollout": algo.rollout, "seed": 0, **acting(algo).keywords()}
    options |= {"keeps_finals": True, "needs_values": False}
    with without_reads():
        finals = Actor(Playback(log, policy, truncation_gap=1), policy, **options).collect().finals
        time, row = log.cut.nonzero(as_tuple=True)
        if not len(time):
            raise Skip("no step was valid")
        found = torch.zeros(0) if finals is None else finals.time * rows + finals.row
        if finals is None or not torch.equal(found.sort().values, time * rows + row):
            raise Problem(
                f"{len(found)} final observations are kept of {len(time)} steps that were truncated, or of "
                "other steps",
                "Likely cause: a second time limit of a row takes the place of the first",
                "Fix: give each time limit of a row its own place",
            )
        for ours, theirs in zip(tree.leaves(finals.obs), tree.leaves(log.final_obs)):
            if not torch.equal(ours.nan_to_num(), theirs[finals.time, finals.row].nan_to_num()):
                raise Problem(
                    "a final observation is not that of the env",
                    "Likely cause: it is that after the reset, or of another time limit",
                    "Fix: copy it before the next step of the env",
                )
        if int(log.cut.sum(0).max()) > 1:
            try:
                Actor(Playback(log, policy, truncation_gap=NEVER), policy, **options).collect()
            except EnvError:
                return f"{len(time)} are kept; one that has no place ends the run"
            raise Problem(
                "a final observation that has no place is lost, and nothing says so",
                "Likely cause: the env declares a truncation_gap that is too large, and nothing checks it",
                "Fix: raise, as targets would have another observation's value",
            )
    return f"{len(time)} are kept"


def replay_resumed(rollouts: Recorded) -> str:
    """A saved and loaded learner continues as the one that went on: target network, owed steps, replay."""
    algo = cast(ReplayConfig, rollouts[0].setup.config.algo)
    each = max(1, rollouts[-1].rollout.valid_steps)
    settings = {
        "save_replay": True,
        "replay_ratio": 1.7 * algo.batch * algo.chunk / each,
        "gauge_every": 0,
    }
    ours = _learner(rollouts, **settings)
    for number, one in enumerate(rollouts):
        ours.update(one.rollout, 0.1 * number / len(rollouts), lag=1)
    if not ours.gradient_steps:
        raise Skip("too few steps were recorded for an optimiser step (the env is slow)")
    tensors = {name: leaf.clone() for name, leaf in learner_tensors(ours).items()}
    other = _learner(rollouts, copy.deepcopy(ours.policy), **settings)
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
