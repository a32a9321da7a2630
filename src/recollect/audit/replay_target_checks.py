"""Checks of what replayed sequences are learned towards: n-step targets, errors, priorities."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import Tensor

from recollect.algos import r2d2
from recollect.algos.catalog import make_learner
from recollect.audit.drawn_replay import COUNT, Drawn, Recorded
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.replay_checks import POISON, SENTINEL
from recollect.audit.results import Passed, Problem, Skip
from recollect.base.formatting import tiny
from recollect.config.replay import ReplayConfig
from recollect.experience.returns import n_step
from recollect.learning.replay_algorithm import Windows, windows
from recollect.learning.replay_learner import ReplayLearner, add
from recollect.learning.value_functions import double_q, mixed_priority
from recollect.policy.q_heads import QHead

TARGET_TOLERANCE, ERROR_TOLERANCE = 1e-5, 1e-3


def targets(rollouts: Recorded) -> Passed:
    """n-step targets equal their sum, written out step by step: cut at ends, bootstrapped at time limits."""
    drawn = rollouts.drawn
    batch, algo = drawn.batch(), drawn.algo
    generator = torch.Generator().manual_seed(4)
    value = torch.randn(batch.reward.shape, generator=generator).to(batch.reward.device) + 3
    expected = _n_step(batch, value.double(), batch.terminated, algo)
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


def errors(rollouts: Recorded) -> Passed:
    """The errors of R2D2 equal their formula, from both networks' values of each sequence."""
    drawn = rollouts.drawn
    learner, policy = drawn.learner, drawn.one.policy
    if learner.algorithm is not r2d2:
        raise Skip("the errors of this algorithm are drawn at random, or not known")
    head = cast(QHead, policy.head)
    target = copy.deepcopy(policy)
    generator = torch.Generator().manual_seed(6)
    with torch.no_grad():  # other weights, so that the networks cannot be mixed up
        for weight in target.parameters():
            weight += 0.2 * torch.randn(weight.shape, generator=generator).to(weight.device)
    largest = 0.0
    for limits, rescaled in product((True, False), (True, False)):
        algo = replace(cast(Any, drawn.algo), bootstrap_time_limits=limits, rescale=rescaled, double=True)
        weight = torch.ones_like(drawn.sample.reward[0])
        batch = windows(policy, target, drawn.sample, algo, weight=weight)
        rng = torch.Generator(batch.reward.device).manual_seed(0)
        with torch.no_grad():
            found = learner.algorithm.loss(policy, target, batch, algo, rng).error
            q, older = (
                network.unroll(batch.obs, state, batch.first)[0]
                for network, state in ((policy, batch.state), (target, batch.target_state))
            )
        chosen = head.of(q, batch.action).double()
        best = double_q(head, online=q, target=older).double()
        if rescaled:  # h^-1 in the paper's form
            size = best.abs()
            best = best.sign() * ((((1 + 4e-3 * (size + 1.001)).sqrt() - 1) / 2e-3) ** 2 - 1)
        # Whether an episode ends at a limit is known from the log, not from the batch.
        cut = cast(Tensor, drawn.of_log("truncated"))[drawn.algo.burn_in_steps :]
        over = cast(Tensor, drawn.of_log("terminated"))[drawn.algo.burn_in_steps :]
        over = (over if limits else over | cut) & batch.is_step
        goal = _n_step(batch, best, over, algo)
        goal = goal.sign() * ((goal.abs() + 1).sqrt() - 1) + 1e-3 * goal if rescaled else goal
        gap = (found.double().cpu() - (goal - chosen[: len(goal)].cpu()).abs()).abs()
        unit = goal.abs().max().clamp(min=1)
        largest = max(largest, float((gap / unit).masked_fill(~batch.learned.cpu(), 0).max()))
        if not largest <= ERROR_TOLERANCE:
            raise Problem(
                f"the errors of a minibatch differ from their formula by {largest:.1e} (tolerance "
                f"{ERROR_TOLERANCE:.0e}), with bootstrap_time_limits={limits}, rescale={rescaled}",
                "Likely cause: a time limit counts as a termination or the other way round, the wrong "
                "network chooses or values the next action, or targets are rescaled at the wrong place",
                "Fix: see the equations of recollect.algos.r2d2",
                measured=largest,
                tolerance=ERROR_TOLERANCE,
            )
    return Passed(f"the errors of {COUNT} sequences equal their formula", largest, ERROR_TOLERANCE)


def _n_step(batch: Windows, value: Tensor, over: Tensor, algo: ReplayConfig) -> Tensor:
    """[L, M] float64: n-step targets, step by step."""
    reward, is_over, is_step = (x.tolist() for x in (batch.reward.double(), over, batch.is_step))
    values = value.tolist()
    expected = torch.zeros(len(batch.weight), batch.reward.shape[1], dtype=torch.float64)
    for j, column in product(range(len(expected)), range(expected.shape[1])):
        total, m, ended = 0.0, 0, not is_step[j][column]
        while m < algo.n_step and not ended and is_step[j + m][column]:
            total += algo.gamma**m * reward[j + m][column]
            ended = is_over[j + m][column]
            m += 1
        expected[j, column] = total if ended else total + algo.gamma**m * values[j + m][column]
    return expected


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
    plain = [
        algo.priority_eta * float(own.max()) + (1 - algo.priority_eta) * float(own.mean())
        for own in (error[:, i][batch.learned[:, i]] for i in range(COUNT))
        if len(own)
    ]
    has = batch.learned.any(0)
    gap = float((base[has].double().cpu() - torch.tensor(plain, dtype=torch.float64)).abs().max())
    if not gap <= TARGET_TOLERANCE * max(1.0, *plain):
        raise Problem(
            f"priorities differ from eta max + (1 - eta) mean by {gap:.1e}",
            "Likely cause: the mean is divided by all positions",
            "Fix: divide by the number of learned steps",
            measured=gap,
            tolerance=TARGET_TOLERANCE,
        )
    _check_owners(one, rollouts)
    return f"{int(has.sum())} priorities of {COUNT} sequences are those of their own learned steps"


def _check_owners(one: RecordedRollout, rollouts: Recorded) -> None:
    """After an optimiser step the replay holds the priorities of the sequences that were drawn."""
    policy = copy.deepcopy(one.policy)
    learner = cast(ReplayLearner, make_learner(policy, one.setup.config.algo, rows=one.rollout.rows, seed=1))
    for recorded in rollouts:
        add(learner.replay, recorded.rollout)
    seen: dict[str, Any] = {}
    replay, algorithm, algo = learner.replay, learner.algorithm, learner.config
    sample, update = replay.sample, replay.update

    def watched_sample(*args: Any, **kwargs: Any) -> Any:
        found = sample(*args, **kwargs)
        seen["entries"] = found.entries.clone()
        return found

    def watched_update(entries: Tensor, priority: Tensor) -> None:
        seen["updated"], seen["priority"] = entries.clone(), priority.clone()
        update(entries, priority)

    def watched_loss(*args: Any, **kwargs: Any) -> Any:
        found = algorithm.loss(*args, **kwargs)
        seen["error"], seen["learned"] = found.error.clone(), args[2].learned.clone()
        return found

    learner.algorithm = cast(Any, SimpleNamespace(acting=algorithm.acting, loss=watched_loss))
    replay.sample, replay.update = watched_sample, watched_update  # pyright: ignore[reportAttributeAccessIssue]
    learner.step()
    expected = mixed_priority(error=seen["error"], is_step=seen["learned"], eta=algo.priority_eta)
    if "updated" not in seen:
        raise Problem("an optimiser step sets no priority", "Fix: call Replay.update after each step")
    if not torch.equal(seen["updated"], seen["entries"]) or not torch.equal(seen["priority"], expected):
        raise Problem(
            "the priorities of an optimiser step go to other sequences than its errors came from",
            "Likely cause: sequences and errors are in another order, or padding counts",
            "Fix: update the entries of the sample with the errors of the same columns",
        )
