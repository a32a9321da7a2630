"""Checks of algorithms that replay old steps: sequences, padding, burn-in, gradients, the target network."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.audit.drawn_replay import COUNT, Drawn, Recorded
from recollect.audit.gradient_checks import (
    MOST_CHUNKS,
    MOST_STEPS,
    check_influence,
    check_parameters,
    influences_of,
    reached,
    with_noise,
)
from recollect.audit.results import Doubt, Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.types import Tree
from recollect.config.replay import ReplayConfig
from recollect.learning.replay_algorithm import Windows

POISON = 12345.0
"""Stands where no loss may read."""
SENTINEL = 10.0
"""Added to the rewards of one sequence, whose errors alone may change."""

ENOUGH_STEPS = 9
"""Optimiser steps after which the target network has been observed for long enough."""


def sequences(rollouts: Recorded) -> str:
    """Each drawn sequence has consecutive steps of one episode as the env gave them, and its end."""
    found = _check_sequences(rollouts, rollouts.drawn)
    if rollouts.overwritten is not None:
        _check_sequences(rollouts, rollouts.overwritten)
    return found


def _check_sequences(rollouts: Recorded, drawn: Drawn) -> str:
    sample, number, rows = drawn.sample, drawn.number, drawn.rows
    is_step = sample.is_step
    follows = number[1:] - number[:-1] == rows
    ended = cast(Tensor, drawn.of_log("terminated")) | cast(Tensor, drawn.of_log("truncated"))
    both = is_step[1:] & is_step[:-1]
    for name, wrong, cause in (
        (
            "is not followed by the next step of its row",
            both & ~follows & _all_valid(rollouts),
            "slots of two rows or episodes are mixed, or a slot was overwritten",
        ),
        (
            "ends its episode, and the sequence continues",
            both & ended[:-1],
            "a sequence crosses the end of an episode",
        ),
        (
            "is followed by nothing, but its episode continues",
            is_step[:-1] & ~ended[:-1] & ~sample.exists[1:],
            "the sequence was drawn before its last steps were written",
        ),
    ):
        if wrong.any():
            position, column = wrong.nonzero()[0].tolist()
            t, row = divmod(int(number[position, column]) - 1, rows)
            raise Problem(
                f"step {t} of row {row} {name} (position {position} of a sequence)",
                f"Likely cause: {cause}",
                "Fix: see recollect.experience.replay: a sequence is read within one episode of one row",
            )
    for name, ours in (
        ("obs", sample.obs),
        ("first", sample.first),
        ("action", sample.action),
        ("terminated", sample.terminated),
    ):
        _check_equal(name, ours, drawn.of_log(name), is_step)
    finals = _check_finals(drawn)
    algo = drawn.algo
    return (
        f"{number.shape[1]} draws of {drawn.windows} sequences of {algo.burn_in_steps} + {algo.chunk} + "
        f"{algo.n_step} steps: {int(is_step.sum())} steps in order, equal to those of the env, and {finals} "
        "final observations"
    )


def _all_valid(rollouts: Recorded) -> bool:
    """Whether no step was dropped, so that the numbers of a row's steps have no gaps."""
    return all(bool(one.log.valid.all()) for one in rollouts)


def _check_equal(name: str, ours: Tree, theirs: Tree, where: Tensor) -> None:
    for (path, leaf), expected in zip(tree.named_leaves(ours, name), tree.leaves(theirs)):
        differ = leaf != expected
        differ = (differ.flatten(2).any(2) if differ.dim() > 2 else differ) & where
        if differ.any():
            raise Problem(
                f"{path} of {int(differ.sum())} of {int(where.sum())} replayed steps is not that of the env",
                "Likely cause: the parts of a step are written to different slots, or a slot is read after "
                "it was overwritten",
                "Fix: write and read all parts by the same index",
            )


def _check_finals(drawn: Drawn) -> int:
    """The observation after a time limit follows in the sequence, and nothing follows a termination."""
    sample, is_step = drawn.sample, drawn.sample.is_step
    terminated, truncated = (cast(Tensor, drawn.of_log(name)) for name in ("terminated", "truncated"))
    cut = truncated & ~terminated & is_step
    after = sample.exists & ~is_step
    wrong = (cut[:-1] & ~after[1:]) | (is_step[:-1] & terminated[:-1] & sample.exists[1:])
    if wrong.any():
        raise Problem(
            f"{int(wrong.sum())} ends of episodes are wrong: no final observation follows a time limit, or "
            "something follows a termination",
            "Likely cause: truncated and terminated are mixed up, or final observations are not stored",
            "Fix: store the final observation after a truncated step that is not terminated",
        )
    finals = tree.map(lambda leaf: torch.cat([leaf[:1], leaf[:-1]]), drawn.of_log("final_obs"))
    at = torch.cat([torch.zeros_like(cut[:1]), cut[:-1]])
    _check_equal("the final obs", sample.obs, finals, at)
    return int(at.sum())


def rows_apart(rollouts: Recorded) -> str:
    """The errors of a sequence depend on no other sequence of the minibatch."""
    drawn = rollouts.drawn
    batch = drawn.batch()
    before, is_step = drawn.loss(batch).error, batch.learned
    columns = sorted({0, COUNT // 2, COUNT - 1})
    for column in columns:
        reward = batch.reward.clone()
        reward[:, column] += SENTINEL * batch.is_step[:, column]
        differs = ((drawn.loss(replace(batch, reward=reward)).error != before) & is_step).any(0)
        others = differs.clone()
        others[column] = False
        if others.any():
            raise Problem(
                f"a sentinel in the rewards of sequence {column} changed the errors of {int(others.sum())} "
                f"other sequences ({int(others.nonzero()[0])})",
                "Likely cause: targets continue from one sequence into the next, as over a flat buffer",
                "Fix: compute targets along time, [L, M], for each sequence separately",
            )
        if is_step[:, column].any() and not differs[column]:
            raise Problem(
                f"a sentinel in the rewards of sequence {column} does not change its errors",
                "Likely cause: the targets do not use the rewards, or belong to another sequence",
            )
    return f"{len(columns)} sentinels in the rewards stayed in their sequences"


def padding(rollouts: Recorded) -> str:
    """Positions without a step have no weight, and their numbers change no error."""
    drawn = rollouts.drawn
    sample, K, L = drawn.sample, drawn.algo.burn_in_steps, drawn.algo.chunk
    batch = drawn.batch()
    weighs = (batch.weight != 0) & ~sample.is_step[K : K + L]
    if weighs.any():
        raise Problem(
            f"{int(weighs.sum())} positions without a step weigh in the loss",
            "Likely cause: positions after the end of an episode, or the final observation, count as steps",
            "Fix: multiply the weights by is_step",
        )
    outside = ~sample.exists
    if not outside.any():
        raise Doubt(
            f"all positions of {COUNT} sequences have a step",
            "No sequence met the end of an episode, so that padding was never tried",
        )

    def poisoned(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        wide = outside.reshape(outside.shape + (1,) * (leaf.dim() - 2))
        return leaf.masked_fill(wide, POISON)

    bad = replace(sample, obs=tree.map(poisoned, sample.obs), reward=poisoned(sample.reward))
    with torch.no_grad():
        was, now = drawn.loss(batch), drawn.loss(drawn.batch(bad))
    gap = float((was.error - now.error).abs().masked_fill(~batch.learned, 0).max())
    unit = float(was.error.max().clamp(min=1))
    if not gap <= drawn.one.setup.tolerance * unit:
        raise Problem(
            f"numbers outside of the episode change errors by up to {gap:.1e}",
            "Likely cause: the burn-in does not reset at the episode's first step, or targets read past "
            "its end",
            "Fix: reset the state where `first`, and end targets at the last step",
        )
    return f"{int(outside.sum())} positions outside of episodes weigh nothing, and their numbers are not read"


@torch.no_grad()
def learner(rollouts: Recorded) -> str:
    """The learner's unroll, after its burn-in from the initial state, reproduces the recorded outputs."""
    if rollouts.overwritten is not None:
        _check_learner(rollouts.overwritten)
    return _check_learner(rollouts.drawn)


@torch.no_grad()
def _check_learner(drawn: Drawn) -> str:
    one, algo, tolerance = drawn.one, drawn.algo, drawn.one.setup.tolerance
    sample = drawn.sample
    if sample.state is not None:
        # A sequence that contains its episode's start must discard any state.
        begins = sample.first[: algo.burn_in_steps + 1].any(0)
        ones = tree.map(torch.ones_like, sample.state)
        sample = replace(sample, state=tree.select(begins, ones, sample.state))
    batch = drawn.batch(sample)

    def gaps(state: Any) -> dict[str, tuple[float, int, int]]:
        *outputs, _ = one.policy.unroll(batch.obs, state, batch.first)
        made = one.policy.head.record(outputs, batch.action)
        found = {}
        for name in one.fields:
            recorded = cast(Tensor, drawn.of_log(name))[algo.burn_in_steps :]
            gap = (made[name] - recorded).abs() / one.unit(name)
            gap = gap.flatten(2).amax(2) if gap.dim() > 2 else gap
            gap = torch.where(gap.isnan(), torch.inf, gap).masked_fill(~batch.is_step, 0)
            position, column = divmod(int(gap.argmax()), gap.shape[1])
            found[name] = (float(gap.max()), position, column)
        return found

    found = gaps(batch.state)
    said = ", ".join(f"{name} to {tiny(gap)}" for name, (gap, _, _) in found.items())
    for name, (gap, position, column) in found.items():
        if not gap <= tolerance:
            t, row = divmod(int(drawn.number[algo.burn_in_steps + position, column]) - 1, drawn.rows)
            raise Problem(
                f"recorded and recomputed differ: {said} (tolerance {tolerance:.0e}); {name} most at "
                f"position {position} after the burn-in of a sequence, step {t} of row {row}",
                "Likely cause: the sequence does not start from the state stored K steps before it, the "
                "burn-in ends at another step, or a reset is missed",
                "Fix: unroll the burn-in from the stored state, with `first` at every step",
            )
    result = f"{COUNT} sequences recomputed: {said} (tolerance {tolerance:.0e})"
    if not one.policy.has_memory:
        return result
    zeroed = max(gap for gap, _, _ in gaps(tree.map(torch.zeros_like, batch.state)).values())
    result += f"; a forgotten state would show as {tiny(zeroed)}"
    if zeroed < 10 * tolerance:
        raise Doubt(
            result,
            "The outputs hardly depend on the memory, so that a wrong one might not show. Lower "
            "`tolerance`, or look for observations that are constant or huge",
        )
    return result


def target_network(rollouts: Recorded) -> str:
    """The target network moves as often and as far as configured, and not otherwise."""
    one, algo = rollouts[0], cast(ReplayConfig, rollouts[0].setup.config.algo)
    policy = copy.deepcopy(one.policy)
    learner = make_learner(policy, algo, rows=one.rollout.rows, seed=one.setup.config.seed)
    expected = [older.clone() for older in learner.target.parameters()]
    steps, moves = 0, 0

    def compare() -> None:
        for (name, older), right in zip(learner.target.named_parameters(), expected):
            if not torch.allclose(older, right, rtol=1e-4, atol=1e-6):
                raise Problem(
                    f"after {steps} optimiser steps {name} of the target network is "
                    f"{float((older - right).abs().max()):.1e} off the weights that it must have",
                    "Likely cause: it is copied too often, never, or shares its tensors with the policy",
                    f"Fix: after each step, follow target_every = {algo.target_every}, target_rate = "
                    f"{algo.target_rate}",
                )

    def step(*given: Any) -> None:
        nonlocal steps, moves
        optimiser_step(*given)
        compare()
        steps += 1
        if algo.target_every and steps % algo.target_every:
            return
        moves += 1
        for right, weight in zip(expected, policy.parameters()):
            right.lerp_(weight.detach(), algo.target_rate or 1.0)

    optimiser_step, learner.optimizer.step = learner.optimizer.step, step
    for number in range(len(rollouts) + ENOUGH_STEPS):
        # In order, and then the last one again and again: only the weights matter here.
        learner.update(rollouts[min(number, len(rollouts) - 1)].rollout, lag=1)
        if steps >= ENOUGH_STEPS:
            break
    compare()
    if not moves:
        raise Skip("too few steps were recorded for an optimiser step (the env is slow)")
    how = f"every {algo.target_every} steps" if algo.target_every else f"by {algo.target_rate} of each step"
    return f"{steps} optimiser steps: it moved {how}, {moves} times, and not otherwise"


def parameters(rollouts: Recorded) -> str:
    """The loss of replayed sequences has a finite, nonzero gradient for every weight, none for the target."""
    drawn = rollouts.drawn
    batch = drawn.batch()
    if any(parameter.requires_grad for parameter in drawn.learner.target.parameters()):
        raise Problem(
            "the target network's weights require a gradient",
            "Fix: requires_grad_(False) for all of them",
        )

    def loss(noise: bool) -> Tensor:
        return drawn.loss(replace(batch, obs=with_noise(batch.obs)) if noise else batch).total

    return check_parameters(drawn.one.policy, loss)


def through_time(rollouts: Recorded) -> str:
    """The loss of a step depends on earlier learned steps of its sequence; not on the burn-in or others."""
    drawn = rollouts.drawn
    batch = drawn.batch()
    if any(leaf.requires_grad for leaf in tree.leaves((batch.state, batch.target_state))):
        raise Problem(
            "the state after the burn-in carries a graph: gradients would flow into the burn-in",
            "Fix: unroll the burn-in under torch.no_grad",
        )
    # The sequences with most steps; a few, as each step is differentiated alone.
    longest = batch.is_step.sum(0).argsort(descending=True, stable=True)[:MOST_CHUNKS]
    few: Windows = replace(
        batch,
        **{
            name: tree.map(lambda leaf, dim=dim: leaf.index_select(dim, longest), getattr(batch, name))
            for dim, names in ((0, ("state", "target_state")), (1, _TIMED))
            for name in names
        },
    )
    length, policy = len(few.weight), drawn.one.policy
    totals: Counter[str] = Counter()
    reach = 0
    for step in sorted({0, 1, length - 1, *range(0, length, max(1, length // (MOST_STEPS - 2)))}):
        for parity in (0, 1):
            if step >= length:
                continue
            chosen = torch.zeros_like(few.is_step)
            chosen[step, parity::2] = few.is_step[step, parity::2]
            if not chosen.any():
                continue
            only = replace(few, weight=chosen[:length].float())
            influences = influences_of(policy, lambda only=only: drawn.loss(only).total, few.first)
            counts, back = check_influence(policy, influences, few.first, step, chosen)
            totals, reach = totals + counts, max(reach, back)
    if policy.has_memory and not totals["inside"]:
        raise Skip("no sequence has two learned steps")
    if not policy.has_memory:
        return reached(totals, reach, has_memory=False)
    return (
        f"a loss reaches back {reach} learned steps, exactly 0 over {totals['other chunks']} other "
        f"sequences and over the {drawn.algo.burn_in_steps} steps of the burn-in"
    )


_TIMED = ("obs", "first", "action", "reward", "terminated", "is_step", "weight")
