"""Buffer size: a rollout holds every step of every row, rows stay apart, chunks lose nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recollect.audit.recorded_rollouts import RecordedRollout, positions, step_and_row, worst
from recollect.audit.results import Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.types import Tree
from recollect.experience.chunks import Chunks, minibatches
from recollect.experience.rollout import Rollout
from recollect.learning.refresh_rollout import Outputs, recorded

POISON = 12345.0
"""Stands where GAE must not read."""
SENTINEL = 1000.0
"""Added to one row, whose advantages alone may change."""


def size(rollouts: Sequence[RecordedRollout]) -> str:
    """A rollout has T x B entries, each equal to the input or output of the env."""
    T, rows, fillers = rollouts[0].setup.config.algo.rollout, rollouts[0].log.reward.shape[1], 0
    for one in rollouts:
        rollout, log = one.rollout, one.log
        if (rollout.steps, rollout.rows) != (T, rows) or len(log.reward) != T:
            raise Problem(
                f"a rollout of {rollout.steps} steps x {rollout.rows} rows after {len(log.reward)} env "
                f"steps of {rows} rows; the config says {T} x {rows} = {T * rows} entries",
                "Likely cause: the buffer counts env steps over all rows, or steps of one row only",
                "Fix: a rollout of vectorised envs holds rollout x num_envs steps",
            )
        for name, ours, theirs, mask in _pairs(one):
            for path, wrong, leaf, expected in _mismatches(name, ours, theirs, mask):
                t, row = wrong.nonzero()[0].tolist()
                raise Problem(
                    f"{path}: {int(wrong.sum())} of {mask.numel()} entries differ from those of the env, "
                    f"first at step {t}, row {row}",
                    _cause_of_mismatch(leaf, expected, mask),
                    "Fix: write row b of step t into [t, b], and copy: the env may reuse its tensors",
                )
        fillers += int((~log.valid).sum())
    return (
        f"{T} steps x {rows} rows = {T * rows} entries in each of {len(rollouts)} rollouts; all valid"
        f"{f' but {fillers} fillers' if fillers else ''}, all equal to those of the env"
    )


def _pairs(one: RecordedRollout) -> list[tuple[str, Tree, Tree, Tensor]]:
    """(name, recorded, expected, mask of the defined entries) of every part of a rollout."""
    rollout, log = one.rollout, one.log
    always, everywhere = torch.ones_like(log.first), torch.ones_like(log.valid)
    # The observations between an end and its reset, and those of dead agents, are not defined.
    seen = torch.cat([log.valid, (log.first[-1] | log.inside).unsqueeze(0)])
    actions = [one.policy.to_env(tree.index(rollout.action, t)) for t in range(rollout.steps)]
    return [
        ("obs", rollout.obs, log.obs, seen),
        ("first", rollout.first, log.first, always),
        ("action", tree.stack(actions), log.action, everywhere),
        *(
            (name, getattr(rollout, name), getattr(log, name), everywhere)
            for name in ("reward", "terminated", "truncated", "valid")
        ),
    ]


def _mismatches(
    name: str, ours: Tree, theirs: Tree, mask: Tensor
) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
    """(path, mask of wrong entries, leaf, expected leaf) for each leaf [T, B, ...] that differs."""
    expected = dict(tree.named_leaves(theirs, name))
    for path, leaf in tree.named_leaves(ours, name):
        wrong = _differ(leaf, expected[path]) & mask
        if wrong.any():
            yield path, wrong, leaf, expected[path]


def _cause_of_mismatch(ours: Tensor, theirs: Tensor, mask: Tensor) -> str:
    """The likely cause: swapped rows, or the values of another step."""
    rows = ours.shape[1]
    for shift in range(1, rows):
        if not (_differ(ours, theirs.roll(shift, 1)) & mask).any():
            return f"Likely cause: rows are swapped; row b holds the values of row b - {shift}"
    if rows > 1 and not (_differ(ours, theirs.flip(1)) & mask).any():
        return "Likely cause: rows are swapped; they are in reverse order"
    for shift, neighbour in ((1, "previous"), (-1, "next")):
        inner = mask.clone()
        inner[0 if shift == 1 else -1] = False
        if not (_differ(ours, theirs.roll(shift, 0)) & inner).any():
            return f"Likely cause: step t holds the values of the {neighbour} step"
    return "Likely cause: some entries are never written, or overwritten later (a tensor that is reused)"


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """[T, B] bool: entries of [T, B, ...] that differ by more than rounding; NaN equals NaN."""
    is_float = a.is_floating_point()
    differ = ~torch.isclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True) if is_float else a != b
    return differ.flatten(2).any(2) if differ.dim() > 2 else differ


def rows_apart(rollouts: Sequence[RecordedRollout]) -> str:
    """Advantages equal a plain recursion, and those of a row depend on no other row."""
    largest, sentinels = 0.0, 0
    for one in rollouts:
        rollout, estimate = one.rollout, _estimator(one)
        outputs, (final_value, bootstrap) = recorded(rollout), one.values_at_ends(rollout)
        poisoned = replace(
            outputs,
            final_value=final_value.masked_fill(~one.log.cut, POISON),
            bootstrap=bootstrap.masked_fill(~one.log.inside, POISON),
        )
        expected = _plain_gae(one)
        gap = (estimate(rollout, poisoned) - expected).abs() / expected.abs().max().clamp(min=1)
        gap, t, row = worst(gap, rollout.valid)
        largest = max(largest, gap)
        if not gap <= 1e-4:
            raise Problem(
                f"advantages differ from GAE step by step by {gap:.1e} of their scale (step {t}, row {row})",
                "Likely cause: the trace continues over an end, a time limit is treated as a termination, "
                "or a row uses the values of another row",
                "Fix: see recollect.experience.returns.gae; cut the trace at terminated | truncated, "
                "bootstrap at truncated",
            )
        for row in sorted({0, rollout.rows // 2, rollout.rows - 1}):
            _check_sentinel(one, estimate, row)
            sentinels += 1
    return f"GAE equals the plain recursion to {tiny(largest)}; {sentinels} sentinels stayed in their rows"


Estimate = Callable[[Rollout, Outputs], Tensor]


def _estimator(one: RecordedRollout) -> Estimate:
    """The algorithm's own advantages [T, B]."""
    advantages = getattr(one.learner.algorithm, "advantages", None)
    if advantages is None:
        raise Skip("the algorithm has no function `advantages`")
    return lambda rollout, outputs: advantages(rollout, outputs, one.algo)[0]


def _check_sentinel(one: RecordedRollout, estimate: Estimate, row: int) -> None:
    """A sentinel in the rewards and values of ``row`` changes the advantages of that row alone."""
    rollout, outputs = one.rollout, recorded(one.rollout)
    final_value, bootstrap = one.values_at_ends(rollout)
    sentinel = torch.zeros_like(bootstrap)
    sentinel[row] = SENTINEL
    disturbed = replace(
        outputs,
        record=outputs.record | {"value": outputs.record["value"] + 0.5 * sentinel},
        final_value=final_value + 2 * sentinel,
        bootstrap=bootstrap + 3 * sentinel,
    )
    after = estimate(replace(rollout, reward=rollout.reward + sentinel), disturbed)
    differs = (after != estimate(rollout, outputs)).any(0)
    others = [r for r in range(rollout.rows) if differs[r] and r != row]
    if others:
        raise Problem(
            f"a sentinel in row {row} changed the advantages of {len(others)} other rows (row {others[0]})",
            "Likely cause: GAE continues from the end of one row into the next, as over a flat buffer",
            "Fix: compute it along time, [T, B], for each row separately",
        )
    if rollout.valid[:, row].any() and not differs[row]:
        raise Problem(
            f"a sentinel in the rewards and values of row {row} does not change its advantages",
            "Likely cause: the advantages belong to another row, or are not computed for all rows",
        )


def _plain_gae(one: RecordedRollout) -> Tensor:
    """[T, B]: GAE in float64 by its definition, one row and step at a time. Equals V-trace without lag."""
    rollout, log, config = one.rollout, one.log, one.algo
    scaled = log.reward.double() * config.reward_scale
    if config.reward_clip is not None:
        scaled = scaled.clamp(-config.reward_clip, config.reward_clip)
    value, final, last = (
        x.double().tolist() for x in (rollout.record["value"], *one.values_at_ends(rollout))
    )
    reward, terminated, cut, valid = (x.tolist() for x in (scaled, log.terminated, log.truncated, log.valid))
    rho, c = (min(1.0, getattr(config, name, 1.0)) for name in ("rho_clip", "c_clip"))
    advantage = torch.zeros(rollout.steps, rollout.rows, dtype=torch.float64)
    for b in range(rollout.rows):
        following = 0.0
        for t in reversed(range(rollout.steps)):
            if not valid[t][b]:
                following = 0.0
                continue
            future = value[t + 1][b] if t + 1 < rollout.steps else last[b]
            future = 0.0 if terminated[t][b] else final[t][b] if cut[t][b] else future
            delta = rho * (reward[t][b] + config.gamma * future - value[t][b])
            inside = 0.0 if terminated[t][b] or cut[t][b] else 1.0
            later = config.gamma * config.gae_lambda * inside * following
            advantage[t, b] = delta + rho * later
            following = delta + c * later
    return advantage.to(rollout.reward.device, torch.float32)


def chunks(rollouts: Sequence[RecordedRollout]) -> str:
    """The chunks hold each valid step of a rollout once, in order; minibatches hold each chunk once."""
    found = ""
    for one in rollouts:
        rollout, log = one.rollout, one.log
        batch = one.learner.sequences(rollout, {"position": positions(rollout)}).whole()
        position = batch.data["position"]
        used, expected = position[batch.valid], positions(rollout)[log.valid]
        if not torch.equal(used.sort().values, expected):
            found = f"{len(used)} valid steps in chunks, {len(expected)} in the rollout"
            if lost := sorted(set(expected.tolist()) - set(used.tolist())):
                t, row = step_and_row(lost[0], rollout.rows)
                found = f"{len(lost)} of {len(expected)} steps are in no chunk, first step {t} of row {row}"
            raise Problem(
                found,
                "Likely cause: the remainder of a rollout that the chunk length does not divide is dropped, "
                "or padding counts as experience",
                "Fix: pad the last chunk and mark the padding invalid",
            )
        _check_order(batch, rollout.rows, is_packed=one.algo.batching == "episodes")
        at = (position - 1).clamp(min=0)
        for name, ours, theirs in (
            ("obs", batch.obs, tree.index(log.obs, slice(rollout.steps))),
            ("first", batch.first, log.first[:-1]),
            ("action", batch.action, rollout.action),
            *((name, batch.data[name], found) for name, found in rollout.record.items()),
        ):
            flat = tree.index(tree.map(lambda leaf: leaf.flatten(0, 1), theirs), at)  # [T, B] -> [L, N]
            for path, wrong, _, _ in _mismatches(name, ours, flat, batch.valid):
                raise Problem(
                    f"{path} of {int(wrong.sum())} steps in the chunks is not that of the rollout",
                    "Likely cause: parts of the rollout are split or transposed in different ways",
                    "Fix: split all parts by the same function",
                )
        parts = _check_minibatches(batch.count, one)
        found = (
            f"{batch.count} chunks of {len(position)} steps hold each of {len(expected)} valid steps once, "
            f"in order; {parts} minibatches hold each chunk once"
        )
    return found


def _check_order(batch: Chunks, rows: int, *, is_packed: bool) -> None:
    """Each step follows its predecessor. ``is_packed``: a ``first`` may begin another segment."""
    position = batch.data["position"]
    is_pair = batch.valid[1:] & batch.valid[:-1] & ~(batch.first[1:] & is_packed)
    jumps = (position[1:] - position[:-1] != rows) & is_pair
    if jumps.any():
        step, chunk = jumps.nonzero()[0].tolist()
        (t, row), (t_next, row_next) = (step_and_row(int(position[step + i, chunk]), rows) for i in (0, 1))
        raise Problem(
            f"in chunk {chunk} step {t} of row {row} is followed by step {t_next} of row {row_next}",
            "Likely cause: [T, B] is reshaped to chunks without a transpose, so that rows and steps mix",
            "Fix: view [C, L, B], transpose to [L, C, B], then flatten the last two",
        )


def _check_minibatches(count: int, one: RecordedRollout) -> int:
    generator = torch.Generator(one.rollout.reward.device).manual_seed(0)
    parts = list(minibatches(count, one.algo.minibatches, generator))
    order = torch.cat(parts).sort().values
    if not torch.equal(order, torch.arange(count, device=order.device)):
        raise Problem(
            f"the {len(parts)} minibatches hold {len(order.unique())} of {count} chunks",
            "Likely cause: the remainder that the number of minibatches does not divide is dropped",
            "Fix: split into parts whose sizes differ by at most one",
        )
    return len(parts)
