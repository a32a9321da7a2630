"""How rows explore: epsilon, the share of each row, noise of weights; and final observations of an actor."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import cycle, islice
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.algos.catalog import acting
from recollect.audit.drawn_replay import Recorded
from recollect.audit.gpu_path import without_reads
from recollect.audit.playback import Playback
from recollect.audit.replay_learner_checks import NEVER, UPDATES, learner_of
from recollect.audit.replay_loss_checks import preferred, valued
from recollect.audit.results import Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.config.replay import ReplayConfig
from recollect.errors import EnvError
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead

SIGMAS = 6.0
START, END, DECAY = 0.9, 0.2, 0.5
"""Of the epsilon that is tried, whatever the config says."""


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
    learner = learner_of(rollouts, **settings)
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
    """New noise of weights is drawn for every rollout, and for both networks in every optimiser step."""
    head = rollouts[0].policy.head
    if not (isinstance(head, QHead) and head.config.noisy):
        raise Skip("the head has no noise")
    learner = learner_of(rollouts)
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
