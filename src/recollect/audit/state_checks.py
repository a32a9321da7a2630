"""Storage and retrieval of state: acting, storing, learning and resuming use the same one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from recollect.algos.catalog import acting as acting_of
from recollect.audit.recorded_rollouts import EnvLog, RecordedRollout, positions, step_and_row, worst
from recollect.audit.results import Doubt, Problem, Skip
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.types import State, Tree
from recollect.experience.chunks import Chunks
from recollect.learning.sequences import burn_in

SHORT = 10
"""Steps of a sequence that starts from a broken state."""
Gaps = dict[str, Tensor]
"""[T, B] each: the largest deviations of the fields of the record, in their units."""


def _gaps(one: RecordedRollout, made: Mapping[str, Tensor], record: Mapping[str, Tensor]) -> Gaps:
    gaps = {name: (made[name] - record[name]).abs() / one.unit(name) for name in one.fields}
    return {name: gap if gap.dim() == 2 else gap.flatten(2).amax(2) for name, gap in gaps.items()}


def _largest(gaps: Gaps, valid: Tensor) -> dict[str, float]:
    return {name: worst(gap, valid)[0] for name, gap in gaps.items()}


def _said(largest: Sequence[dict[str, float]]) -> str:
    """The largest deviation of each field in words."""
    return ", ".join(f"{name} to {tiny(max(one[name] for one in largest))}" for name in largest[0])


def _first_off(gaps: Gaps, valid: Tensor, tolerance: float) -> tuple[int, int] | None:
    """(t, row) of the first step that is not within the tolerance: later ones follow from it."""
    off = torch.stack([~(gap <= tolerance) & valid for gap in gaps.values()]).any(0)
    return tuple(off.nonzero()[0].tolist()) if off.any() else None


def acting(rollouts: Sequence[RecordedRollout]) -> str:
    """The record equals a replay, step by step, with explicit resets."""
    largest, starts, steps = [], 0, 0
    for one in rollouts:
        log, replay, tolerance = one.log, one.replay, one.setup.tolerance
        gaps = _gaps(one, replay.record, one.rollout.record)
        largest.append(_largest(gaps, log.valid))
        if (at := _first_off(gaps, log.valid, tolerance)) is not None:
            raise Problem(
                f"recorded and replayed differ: {_said(largest[-1:])} (tolerance {tolerance:.0e}), first at "
                f"step {at[0]}, row {at[1]}",
                _cause_in_acting(*at, log),
                "Fix: pass on the state that act returned, and let `first` alone reset it",
            )
        starts += int((log.first[:-1] & log.valid).sum())
        steps += int(log.valid.sum())
    resets = starts - rollouts[0].rollout.rows
    found = f"{steps} steps acted with their own memory, {resets} of them after a reset; {_said(largest)}"
    if resets <= 0:
        raise Doubt(
            found,
            "No episode ended, so that a reset was never tried. If episodes never end, give the env "
            "a time limit (gymnasium.wrappers.TimeLimit): without ends there are no returns to measure",
        )
    return found


def _cause_in_acting(t: int, row: int, log: EnvLog) -> str:
    if log.first[t, row]:
        return (
            f"Likely cause: the memory is not reset at an episode's first step (step {t} of row {row} "
            "opens one), or not to the initial state"
        )
    if t > 0 and log.first[t - 1, row]:
        return "Likely cause: the memory is reset one step late, or reset twice"
    return (
        "Likely cause: the live state was changed in mid-episode (zeroed, reset at a rollout or chunk "
        "boundary, swapped with another row), or the policy is not deterministic (dropout, batch statistics)"
    )


def stored_states(rollouts: Sequence[RecordedRollout]) -> str:
    """The stored states are copies of the input states of their steps; the live state carries over."""
    largest, count = 0.0, 0
    for one in rollouts:
        if not one.policy.has_memory:
            raise Skip("the core has no memory")
        rollout, log, states, tolerance = one.rollout, one.log, one.replay.states, one.setup.tolerance
        needed = acting_of(one.setup.config.algo).state_steps
        if rollout.state_steps != needed:
            raise Problem(
                f"states are stored at steps {rollout.state_steps}, the learner needs them at {needed}",
                "Likely cause: actor and learner disagree about the chunk length or the burn-in",
            )
        for step in rollout.state_steps:
            gap, row = state_gap(rollout.state_at(step), tree.index(states, step), log.valid[step])
            if not gap <= tolerance:
                raise Problem(
                    f"the state stored for step {step}, row {row}, is {gap:.1e} off the live one "
                    f"(tolerance {tolerance:.0e})",
                    _cause_in_storage(one, step),
                    "Fix: copy the state that goes into act at that step, before `first` applies",
                )
            largest, count = max(largest, gap), count + int(log.valid[step].sum())
        gap, row = state_gap(one.live, tree.index(states, -1), log.inside)
        if not gap <= tolerance:
            raise Problem(
                f"after the rollout the live state of row {row} is {gap:.1e} off the last step's",
                "Likely cause: the state does not carry over to the next rollout",
                "Fix: keep the state that the last act returned",
            )
        if one.has_graph:
            raise Problem(
                "stored or live states carry a graph of autograd",
                "Likely cause: acting outside of torch.no_grad, so that memory use grows with every step",
                "Fix: act under torch.no_grad, or detach the state",
            )
        if one.is_shared:
            raise Problem(
                "the live and the stored states share memory",
                "Likely cause: a view or the tensor itself is stored in place of a copy",
                "Fix: copy into the rollout's own buffer",
            )
    return f"{count} stored states equal the live ones to {tiny(largest)}, and are copies"


def _cause_in_storage(one: RecordedRollout, step: int) -> str:
    stored, states, valid = one.rollout.state_at(step), one.replay.states, one.log.valid[step]
    late = "next step: stored too late, after the step has changed it"
    for other, neighbour in ((step + 1, late), (step - 1, "previous step: stored too early")):
        is_there = 0 <= other <= one.rollout.steps
        if is_there and state_gap(stored, tree.index(states, other), valid)[0] <= one.setup.tolerance:
            return f"Likely cause: it is the state of the {neighbour}"
    if all(not leaf.any() for leaf in tree.leaves(stored)):
        return "Likely cause: zeros; it was never stored, or was reset in mid-episode"
    return "Likely cause: the state of another row or step, or one that was changed after it was stored"


def state_gap(a: State, b: State, rows: Tensor) -> tuple[float, int]:
    """The largest difference over ``rows`` [B], in units of the leaf's size if above 1, and its row."""
    largest, at = 0.0, 0
    for x, y in zip(tree.leaves(a), tree.leaves(b)):
        x, y = (leaf.detach().float().reshape(len(leaf), -1) for leaf in (x, y))  # [B, ...] -> [B, N]
        # NaN equals NaN: the row of a dead agent is not defined, and is reset before it is used.
        gap = torch.where(_same(x, y), 0.0, (x - y).abs())
        unit = y[rows].nan_to_num().abs().max().clamp(min=1) if rows.any() else 1.0
        gap = (gap.nan_to_num(nan=torch.inf).amax(1) / unit).masked_fill(~rows, 0)
        if float(gap.max()) > largest:
            largest, at = float(gap.max()), int(gap.argmax())
    return largest, at


def _same(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise equality; NaN equals NaN."""
    return (a == b) | ((a != a) & (b != b))


def equal(a: Tree, b: Tree) -> bool:
    """Whether all leaves are equal; NaN equals NaN."""
    return all(bool(_same(x, y).all()) for x, y in zip(tree.leaves(a), tree.leaves(b)))


@torch.no_grad()
def learner(rollouts: Sequence[RecordedRollout]) -> str:
    """Master test M: the learner's unroll of the chunks reproduces the recorded outputs."""
    largest, forgotten, count, carried = [], 0.0, 0, 0
    tolerance = rollouts[0].setup.tolerance
    for one in rollouts:
        rollout = one.rollout
        batch = one.learner.sequences(rollout, {"position": positions(rollout)}).whole()
        batch = burn_in(one.policy, batch)
        gaps = _unrolled_gaps(one, batch, batch.state)
        largest.append(_largest(gaps, batch.valid))
        if (at := _first_off(gaps, batch.valid, tolerance)) is not None:
            t, row = step_and_row(int(batch.data["position"][at]), rollout.rows)
            raise Problem(
                f"recorded and recomputed differ: {_said(largest[-1:])} (tolerance "
                f"{tolerance:.0e}); step {at[0]} of a chunk is the first, step {t} of row {row}",
                _cause_in_learner(one, batch, *at),
                "Fix: unroll each chunk from the stored input state of its first step, with `first` at "
                "every step",
            )
        count += batch.count
        carried += int((~batch.first[0]).sum())
        if one.policy.has_memory:
            zeroed = _unrolled_gaps(one, batch, tree.map(torch.zeros_like, batch.state))
            forgotten = max(forgotten, *_largest(zeroed, batch.valid).values())
    found = f"{count} chunks recomputed: {_said(largest)} (tolerance {tolerance:.0e})"
    if forgotten == 0:
        return found
    if carried == 0:
        return f"{found}; every chunk starts with an episode, so that none needs a stored state"
    found += f"; a forgotten state would show as {tiny(forgotten)}"
    if forgotten < 10 * tolerance:
        raise Doubt(
            found,
            "The outputs hardly depend on the memory, so that a wrong one might not show. Lower "
            "`tolerance`, or look for observations that are constant or huge",
        )
    return found


def _unrolled_gaps(one: RecordedRollout, batch: Chunks, state: State) -> Gaps:
    """The deviations [L, N] of chunks that are unrolled from ``state``."""
    *outputs, _ = one.policy.unroll(batch.obs, state, batch.first)
    return _gaps(one, one.policy.head.record(outputs, batch.action), batch.data)


def _cause_in_learner(one: RecordedRollout, batch: Chunks, step: int, chunk: int) -> str:
    if not equal(*(_unrolled_gaps(one, batch, batch.state) for _ in range(2))):
        return "Likely cause: two calls of the network differ: dropout, or noise, is on while learning"
    if batch.first[: step + 1, chunk].any():
        return (
            "Likely cause: a reset inside the chunk is missed, or applied at another step than while acting"
        )
    if step == 0:
        return "Likely cause: the chunk does not start from the state that its first action was chosen in"
    return (
        "Likely cause: the chunk's first steps agree and later ones do not: the core's unroll differs from "
        "repeated single steps"
    )


def values_at_ends(rollouts: Sequence[RecordedRollout]) -> str:
    """V(final observation, state after the step) at truncations, and V at the rollout's end."""
    largest, cut, inside = 0.0, 0, 0
    for one in rollouts:
        rollout, log, replay, tolerance = one.rollout, one.log, one.replay, one.setup.tolerance
        final_value, last = one.values_at_ends(rollout)
        final_again, last_again = one.values_at_ends(replay)
        unit = one.unit("value")
        final = (final_value - final_again).abs() / unit
        gap, t, row = worst(final, log.cut)
        if not gap <= tolerance:
            raise Problem(
                f"the value at the time limit of step {t}, row {row}, is {gap:.1e} off (tolerance "
                f"{tolerance:.0e})",
                "Likely cause: it is the value of the observation after the reset, or of a memory that "
                "was reset already",
                "Fix: compute the value of the final observation with the state after the step, before the "
                "reset",
            )
        bootstrap = (last - last_again).abs() / unit
        gap_last, _, row = worst(bootstrap[None], log.inside[None])
        if not gap_last <= tolerance:
            raise Problem(
                f"the bootstrap of row {row} at the rollout's end is {gap_last:.1e} off (tolerance "
                f"{tolerance:.0e})",
                "Likely cause: zero, or the value of another step or state",
                "Fix: compute the value of obs[T] with the state after step T - 1",
            )
        largest = max(largest, gap, gap_last)
        cut, inside = cut + int(log.cut.sum()), inside + int(log.inside.sum())
    limits = f"{cut} time limits" if cut else "no time limit occurred"
    return f"{limits}, {inside} rows open at a rollout's end: values to {tiny(largest)}"


@torch.no_grad()
def broken_states(rollouts: Sequence[RecordedRollout]) -> str:
    """A reset also stops NaN, which the state of a dead agent's row may hold."""
    one = rollouts[-1]
    policy = one.policy
    if not policy.has_memory:
        raise Skip("the core has no memory")
    T, reset = min(len(one.log.reward), SHORT), min(len(one.log.reward), SHORT) // 2
    seen = tree.index(one.log.obs, slice(T))
    # Observations of dead agents may be NaN themselves.
    obs = tree.map(lambda leaf: leaf.nan_to_num() if leaf.is_floating_point() else leaf, seen)
    first = torch.zeros_like(one.log.first[:T])
    first[reset] = True
    fresh = policy.initial_state(first.shape[1])
    broken = tree.map(lambda x: torch.full_like(x, torch.nan) if x.is_floating_point() else x, fresh)
    whole = policy.unroll(obs, broken, first)[-2][reset:]
    stepped = policy.step(tree.index(obs, reset), broken, first[reset])[-2]
    right = policy.unroll(tree.index(obs, slice(reset, T)), fresh, first[reset:])[-2]
    for found, wanted, where in ((whole, right, "inside a sequence"), (stepped, right[0], "while acting")):
        # Values of actions that a mask forbids are infinite.
        gaps = torch.where(_same(found, wanted), 0.0, (found - wanted).abs()).nan_to_num(nan=torch.inf)
        gap = float(gaps.max() / wanted.nan_to_num(posinf=0, neginf=0).abs().max().clamp(min=1))
        if not gap <= one.setup.tolerance:
            raise Problem(
                f"a reset {where} does not stop NaN of the state before it",
                "Likely cause: the reset multiplies by 0 in place of selecting, and 0 times NaN is NaN",
                "Fix: select the initial state, as torch.where does",
                measured=gap,
                tolerance=one.setup.tolerance,
            )
    return "a reset stops NaN, inside a sequence and while acting"
