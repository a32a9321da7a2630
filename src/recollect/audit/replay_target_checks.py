"""Checks of what replayed sequences are learned towards: n-step targets, errors, priorities."""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.audit.drawn_replay import COUNT, Drawn, Recorded
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.replay_checks import POISON, SENTINEL
from recollect.audit.replay_loss_checks import n_step_parts
from recollect.audit.results import Passed, Problem, Skip
from recollect.base.formatting import tiny
from recollect.config.replay import ReplayConfig
from recollect.experience.returns import n_step
from recollect.learning.replay_algorithm import Windows
from recollect.learning.replay_learner import ReplayLearner, add
from recollect.learning.value_functions import mixed_priority

TARGET_TOLERANCE = 1e-5


def targets(rollouts: Recorded) -> Passed:
    """n-step targets equal their sum, written out step by step: cut at ends, bootstrapped at time limits."""
    drawn = rollouts.drawn
    batch, algo = drawn.batch(), drawn.algo
    generator = torch.Generator().manual_seed(4)
    value = torch.randn(batch.reward.shape, generator=generator).to(batch.reward.device) + 3
    total, power, at = n_step_parts(batch, batch.terminated, algo)
    expected = total + power * value.double().cpu().gather(0, at)
    found = n_step(
        reward=batch.reward,
        value=value,
        terminated=batch.terminated,
        is_step=batch.is_step,
        gamma=algo.gamma,
        n=algo.n_step,
    )
    ends = int((batch.terminated & batch.is_step)[: len(expected)].sum())
    gap = (found.double().cpu() - expected).abs().masked_fill(~batch.learned.cpu(), 0)
    worst = float(gap.max() / expected.abs().max().clamp(min=1))
    if not worst <= TARGET_TOLERANCE:
        position, column = divmod(int(gap.argmax()), COUNT)
        raise Problem(
            f"the {algo.n_step}-step target at position {position} of sequence {column} is {worst:.1e} off "
            f"(tolerance {TARGET_TOLERANCE:.0e})",
            "Likely cause: the sum runs on over the end of an episode, a termination is bootstrapped, or a "
            "shorter sum has the discount of a whole one",
            "Fix: see recollect.experience.returns.n_step",
            measured=worst,
            tolerance=TARGET_TOLERANCE,
        )
    said = f"{int(batch.learned.sum())} targets over {ends} terminations: to {tiny(worst)}"
    _check_error(drawn, batch)
    return Passed(said, worst, TARGET_TOLERANCE)


def _check_error(drawn: Drawn, batch: Windows) -> None:
    """A reward after the end of an episode, or n steps later, does not change the error of a step."""
    with torch.no_grad():
        before = drawn.loss(batch).error
        for step in range(len(batch.weight)):
            reward = batch.reward.clone()
            reward[step] += SENTINEL
            after = drawn.loss(replace(batch, reward=reward)).error
            changed = ((after - before).abs() > 1e-6) & batch.learned
            reach = torch.zeros_like(changed)
            for back in range(min(drawn.algo.n_step, step + 1)):
                inside = batch.is_step[step - back : step + 1].all(0)
                inside &= ~batch.terminated[step - back : step].any(0)
                reach[step - back] = inside
            wrong = changed & ~reach
            if wrong.any():
                at, column = wrong.nonzero()[0].tolist()
                raise Problem(
                    f"the reward of position {step} changes the error of position {at} in sequence {column}, "
                    f"{step - at} steps before",
                    "Likely cause: the sum of rewards runs over the end of an episode, or over more than n "
                    "steps",
                    "Fix: cut the sum at ends, after n steps",
                )
            missed = reach & ~changed & batch.learned & (batch.weight > 0)
            if missed.float().sum() > 0.5 * reach.float().sum() and reach.any():
                raise Problem(
                    f"the reward of position {step} does not change the errors of the steps that it "
                    "counts for",
                    "Likely cause: targets are one step off, or do not use the rewards",
                    "Fix: target[j] = sum of gamma^i reward[j + i], from i = 0",
                )


def priorities(rollouts: Recorded) -> str:
    """The priority of a sequence is made of its own learned steps, and belongs to it."""
    one, algo = rollouts[0], cast(ReplayConfig, rollouts[0].setup.config.algo)
    if algo.priority_exponent == 0:
        raise Skip("sequences are drawn with equal probability")
    drawn = rollouts.drawn
    batch = drawn.batch()
    with torch.no_grad():
        error = drawn.loss(batch).error
    base = mixed_priority(error=error, is_step=batch.learned, eta=algo.priority_eta)
    bad = torch.where(batch.learned, error, POISON)
    if not torch.allclose(mixed_priority(error=bad, is_step=batch.learned, eta=algo.priority_eta), base):
        raise Problem(
            "numbers at positions without a step change the priority of their sequence",
            "Likely cause: padding counts in the maximum or the mean of the errors",
            "Fix: take both over learned steps",
        )
    plain = _plain(error, batch.learned, algo.priority_eta)
    has = batch.learned.any(0)
    gap = float((base.double().cpu() - plain).abs().max())
    if not gap <= TARGET_TOLERANCE * float(plain.max().clamp(min=1)):
        raise Problem(
            f"priorities differ from eta max + (1 - eta) mean by {gap:.1e}",
            "Likely cause: the mean is divided by all positions",
            "Fix: divide by the number of learned steps",
            measured=gap,
            tolerance=TARGET_TOLERANCE,
        )
    _check_owners(one, rollouts)
    return f"{int(has.sum())} priorities of {COUNT} sequences are those of their own learned steps"


def _plain(error: Tensor, learned: Tensor, eta: float) -> Tensor:
    """[M] float64: eta max + (1 - eta) mean over the learned steps of each sequence, 0 without any."""
    own = [column[kept].double().cpu() for column, kept in zip(error.t(), learned.t())]
    found = [eta * float(x.max()) + (1 - eta) * float(x.mean()) if len(x) else 0.0 for x in own]
    return torch.tensor(found, dtype=torch.float64)


def _check_owners(one: RecordedRollout, rollouts: Recorded) -> None:
    """After an optimiser step the replay holds the priorities of the sequences that were drawn."""
    algo = cast(ReplayConfig, one.setup.config.algo)
    seen = _watched_step(rollouts, algo)
    expected = _plain(seen["error"], seen["learned"], algo.priority_eta)
    if "updated" not in seen:
        raise Problem("an optimiser step sets no priority", "Fix: call Replay.update after each step")
    gap = float((seen["priority"].double().cpu() - expected).abs().max())
    if not torch.equal(seen["updated"], seen["entries"]) or not gap <= TARGET_TOLERANCE * float(
        expected.max().clamp(min=1)
    ):
        raise Problem(
            "the priorities of an optimiser step go to other sequences than its errors came from",
            "Likely cause: sequences and errors are in another order, or padding counts",
            "Fix: update the entries of the sample with the errors of the same columns",
        )


def _watched_step(rollouts: Recorded, algo: ReplayConfig) -> dict[str, Tensor]:
    """What one optimiser step draws, learns from and updates, from a replay of all rollouts."""
    one = rollouts[0]
    policy = copy.deepcopy(one.policy)
    learner = cast(ReplayLearner, make_learner(policy, algo, rows=one.rollout.rows, seed=1))
    for recorded in rollouts:
        add(learner.replay, recorded.rollout)
    if not learner.replay.windows:
        raise Skip("no sequence is complete: too few steps were recorded (the env is slow)")
    seen: dict[str, Any] = {}
    replay, algorithm = learner.replay, learner.algorithm
    sample, update = replay.sample, replay.update
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    generator = torch.Generator(replay.device).manual_seed(2)
    # Unequal priorities, so that probabilities differ.
    spread = torch.rand(len(slots), generator=generator, device=replay.device) + 0.1
    update(replay.read(slots).entries, spread)

    def watched_sample(*args: Any, **kwargs: Any) -> Any:
        found = sample(*args, **kwargs)
        seen["entries"], seen["probability"] = found.entries.clone(), found.probability.clone()
        return found

    def watched_update(entries: Tensor, priority: Tensor) -> None:
        seen["updated"], seen["priority"] = entries.clone(), priority.clone()
        update(entries, priority)

    def watched_loss(*args: Any, **kwargs: Any) -> Any:
        found = algorithm.loss(*args, **kwargs)
        seen["error"], seen["learned"] = found.error.clone(), args[2].learned.clone()
        seen["weight"] = args[2].weight.clone()
        return found

    learner.algorithm = cast(Any, SimpleNamespace(acting=algorithm.acting, loss=watched_loss))
    replay.sample, replay.update = watched_sample, watched_update  # pyright: ignore[reportAttributeAccessIssue]
    learner.step()
    return seen


def importance(rollouts: Recorded) -> Passed:
    """Losses are weighted by (smallest probability / probability) ^ importance_exponent, or not at all."""
    algo = cast(Any, rollouts[0].setup.config.algo)
    worst = 0.0
    for exponent in (0.0, 0.6):
        seen = _watched_step(rollouts, replace(algo, priority_exponent=0.7, importance_exponent=exponent))
        probability, learned = seen["probability"].double(), seen["learned"]
        expected = learned * (probability.min() / probability) ** exponent / learned.sum().clamp(min=1)
        gap = (seen["weight"].double() - expected).abs().max() / expected.max().clamp(min=1e-12)
        worst = max(worst, float(gap))
        if not worst <= TARGET_TOLERANCE:
            raise Problem(
                f"with importance_exponent={exponent} the weights of a minibatch are {worst:.1e} off "
                f"(tolerance {TARGET_TOLERANCE:.0e})",
                "Likely cause: the weight grows with the probability, goes to another sequence, or counts "
                "padding",
                "Fix: weight = (smallest probability / probability)^exponent, over the learned steps",
                measured=worst,
                tolerance=TARGET_TOLERANCE,
            )
    return Passed("losses are weighted against the probability of their sequences", worst, TARGET_TOLERANCE)
