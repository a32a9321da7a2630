"""Checks of a ``TracedRollout``: flags, sequences, states, ratios, bootstraps and advantages."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from recollect.audit import closed_forms
from recollect.audit.results import Check, Doubt, NotOffered, Passed, Problem, Verification, checked
from recollect.audit.trace import TracedRollout
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.types import State

TOLERANCE = 1e-4


def audit_trace(trace: TracedRollout, *, name: str = "trace", tolerance: float = TOLERANCE) -> Verification:
    """Check a recorded rollout.

    Args:
        trace: the rollout.
        name: shown in the report.
        tolerance: largest allowed deviation of numbers of size 1.
    """
    return Verification(name, checks_of(trace, tolerance))


def checks_of(trace: TracedRollout, tolerance: float = TOLERANCE) -> list[Check]:
    """The results of all checks."""
    return [
        checked(part, check.__name__.replace("_", " "), lambda check=check: check(trace, tolerance))
        for part, found in CHECKS.items()
        for check in found
    ]


def need(trace: TracedRollout, *names: str) -> list[Tensor]:
    """The named parts; raises NotOffered for those that are missing."""
    missing = [name for name in names if getattr(trace, name) is None]
    if missing:
        raise NotOffered(f"the trace has no {', '.join(missing)}")
    return [getattr(trace, name) for name in names]


def finite(trace: TracedRollout, tolerance: float) -> str:
    """No number of a valid step is NaN or infinite."""
    valid = trace.is_valid
    count = 0
    for name in ("obs", "action", "reward", "log_prob", "value", "advantage", "returns", "learner_log_prob"):
        if getattr(trace, name) is None:
            continue
        for path, leaf in tree.named_leaves(getattr(trace, name), name):
            bad = ~torch.isfinite(leaf.double()).reshape(*valid.shape, -1).all(-1) & valid
            count += 1
            if bad.any():
                t, row = bad.nonzero()[0].tolist()
                raise Problem(
                    f"{path} is NaN or infinite in {int(bad.sum())} valid steps, first at step {t}, "
                    f"row {row}",
                    "Likely cause: a division by a spread of zero, or entries that were never written",
                    "Fix: find the first step above, and mark rows that are no experience as not valid",
                )
    return f"{count} parts of {int(valid.sum())} valid steps are finite"


def flags(trace: TracedRollout, tolerance: float) -> str:
    """``first`` is true at the step after an end, and nowhere else inside the rollout."""
    valid, ended, first = trace.is_valid, trace.ended, trace.first
    expected = torch.zeros_like(first)
    opens = ~valid[0]  # after a filler at the start anything may come
    unknown = opens.clone()
    for t in range(1, trace.steps):
        opens = (ended[t - 1]) | (opens & ~valid[t - 1])
        unknown = unknown & ~valid[t - 1]
        expected[t] = torch.where(unknown, first[t], opens)
    compared = valid.clone()
    compared[0] = False
    wrong = (first != expected) & compared
    if wrong.any():
        t, row = wrong.nonzero()[0].tolist()
        cause = "flags are missing, or belong to another row"
        for shift, name in ((1, "late"), (-1, "early")):
            moved = expected.roll(shift, 0)
            inner = compared.clone()
            inner[:2] = inner[-2:] = False
            if expected[1:].any() and not ((first != moved) & inner).any():
                cause = f"first is one step {name}"
        if not first[1:].any():
            cause = "the end of an episode never resets anything: first is false after the first step"
        raise Problem(
            f"first is wrong at {int(wrong.sum())} of {int(compared.sum())} steps, first at step {t}, "
            f"row {row}",
            f"Likely cause: {cause}",
            "Fix: first[t + 1] = terminated[t] | truncated[t] of the same row",
            measured=float(wrong.sum()),
            tolerance=0.0,
        )
    return f"{int(expected.sum())} episodes begin inside the rollout, each after an end"


def contiguity(trace: TracedRollout, tolerance: float) -> str:
    """Each sequence holds consecutive steps of one row; all valid steps are in one."""
    (index,) = need(trace, "chunk_index")
    B, is_step = trace.rows, index >= 0
    both = is_step[1:] & is_step[:-1]
    jump = index[1:] - index[:-1]
    first = torch.where(is_step, trace.first.flatten()[index.clamp(min=0)], False)
    own = trace.chunk_first
    resets = (first if own is None else own & is_step)[1:]
    off = both & (jump != B)
    if off.any():
        at, column = off.nonzero()[0].tolist()
        (t, row), (t_next, row_next) = (divmod(int(index[at + i, column]), B) for i in (0, 1))
        steps = set(jump[both].tolist())
        if steps == {1} and B > 1:
            cause = "[T, B] is reshaped to sequences without a transpose: rows follow each other"
        elif len(steps) == 1:
            cause = f"the steps are strided: every sequence skips {next(iter(steps)) / B - 1:g} steps"
        elif (jump[both] % B == 0).all() and (jump[both] > 0).all() and (resets | ~off).all():
            return f"{index.shape[1]} sequences, some with steps left out at resets"
        elif (jump[off] % B != 0).any() and off.sum() < both.sum() / 2:
            cause = "pieces of several rows or episodes are joined without a reset"
            if (resets | ~off).all():
                return f"{index.shape[1]} sequences of joined segments, each joint with a reset"
        else:
            cause = "steps are shuffled inside a sequence"
        raise Problem(
            f"step {t} of row {row} is followed by step {t_next} of row {row_next} (position {at} of "
            f"sequence {column}), and {int(off.sum())} of {int(both.sum())} steps do not follow the previous",
            f"Likely cause: {cause}",
            "Fix: sequences hold consecutive steps of one row; shuffle whole sequences only",
            measured=float(off.sum()),
            tolerance=0.0,
        )
    if own is not None:
        missed = (first != own) & is_step
        missed[0] = False
        if missed.any():
            at, column = missed.nonzero()[0].tolist()
            t, row = divmod(int(index[at, column]), B)
            raise Problem(
                f"the learner's resets differ from those of the rollout at {int(missed.sum())} steps, first "
                f"at step {t} of row {row}",
                "Likely cause: episodes are joined in a sequence without a reset, or the flags are shifted",
                "Fix: give the learner the same flags that acting had",
                measured=float(missed.sum()),
                tolerance=0.0,
            )
    used = torch.zeros(trace.steps * B, dtype=torch.long)
    used.index_add_(0, index[is_step], torch.ones_like(index[is_step]))
    lost = (used == 0) & trace.is_valid.flatten()
    invalid = (used > 0) & ~trace.is_valid.flatten()
    if lost.any():
        t, row = divmod(int(lost.nonzero()[0]), B)
        raise Problem(
            f"{int(lost.sum())} of {int(trace.is_valid.sum())} valid steps are in no sequence, first step "
            f"{t} of row {row}",
            "Likely cause: the remainder that the length of a sequence does not divide is dropped",
            "Fix: pad the last sequence, and mark the padding",
            measured=float(lost.sum()),
            tolerance=0.0,
        )
    more = f", {int(invalid.sum())} invalid steps among them" if invalid.any() else ""
    return f"{index.shape[1]} sequences hold every valid step, in order{more}"


def chunk_states(trace: TracedRollout, tolerance: float) -> Passed:
    """Each sequence starts from the memory that went into its first step."""
    need(trace, "chunk_index", "chunk_state", "state")
    index = cast(Tensor, trace.chunk_index)
    B, start = trace.rows, cast(Tensor, trace.chunk_index)[0]
    is_used = start >= 0
    start = start.clamp(min=0)
    t, row = start // B, start % B

    def live(step: Tensor, of: Tensor) -> State:
        return tree.map(lambda leaf: leaf[step.clamp(0, trace.steps), of], trace.state)

    opens = trace.first[t, row]
    gap = state_gap(trace.chunk_state, live(t, row))
    # At an episode's first step the memory is reset, so that anything may be stored.
    zeros = state_gap(trace.chunk_state, tree.map(torch.zeros_like, trace.chunk_state))
    gap = gap.masked_fill(~is_used | opens, 0)
    worst = float(gap.max()) if len(gap) else 0.0
    if not worst <= tolerance:
        column = int(gap.argmax())
        wrong = gap > tolerance
        raise Problem(
            f"{int(wrong.sum())} of {len(gap)} sequences start from another memory than their first step was "
            f"acted with, off by up to {worst:.1e} (tolerance {tolerance:.0e}), such as that of step "
            f"{int(t[column])}, row {int(row[column])}",
            f"Likely cause: {_cause_of_state(trace, wrong, zeros, t, row, live, tolerance)}",
            "Fix: store the memory that goes into the network at that step, before the step",
            measured=worst,
            tolerance=tolerance,
        )
    count = int((is_used & ~opens).sum())
    if not count:
        raise Doubt(
            f"all {index.shape[1]} sequences start with an episode",
            "A wrong stored memory would not show: record a rollout with longer episodes",
        )
    return Passed(f"{count} sequences that start inside an episode start from its memory", worst, tolerance)


def _cause_of_state(
    trace: TracedRollout,
    wrong: Tensor,
    zeros: Tensor,
    t: Tensor,
    row: Tensor,
    live: Callable[[Tensor, Tensor], State],
    tolerance: float,
) -> str:
    right = live(t, row)  # parts of the memory that are right say nothing about the cause
    off = [
        bool((state_gap(one, other)[wrong] > tolerance).any())
        for one, other in zip(tree.leaves(trace.chunk_state), tree.leaves(right))
    ]

    def parts(state: State) -> State:
        return tuple(leaf for leaf, is_off in zip(tree.leaves(state), off) if is_off)

    def equals(step: Tensor, of: Tensor, among: Tensor = wrong) -> bool:
        return bool((state_gap(parts(trace.chunk_state), parts(live(step, of)))[among] <= tolerance).all())

    if (zeros[wrong] <= tolerance).all():
        return "zeros in place of the memory"
    inside = wrong & ~trace.ended[t, row]  # after an end the next memory is a reset one
    if inside.any() and equals(t + 1, row, inside):
        return "the memory after the step: it is stored one step late"
    if equals(t - 1, row):
        return "the memory of the step before: it is stored one step early"
    for shift in range(1, trace.rows):
        if equals(t, (row + shift) % trace.rows):
            return f"the memory of another row (row b has that of row b + {shift})"
    if equals(torch.zeros_like(t), row):
        return "the memory of the rollout's first step is used for every sequence"
    previous = (t - (t[wrong].min() if wrong.any() else 1)).clamp(min=0)
    if equals(previous, row):
        return "the memory of the sequence before: off by one sequence"
    return "a stale memory: of other weights, or changed after it was stored"


def state_gap(a: State, b: State) -> Tensor:
    """[N]: the largest difference of each row of two states [N, ...], in units of b's size if above 1."""
    gaps = []
    for x, y in zip(tree.leaves(a), tree.leaves(b), strict=True):
        x, y = (leaf.detach().double().reshape(len(leaf), -1) for leaf in (x, y))
        gaps.append((x - y).abs().amax(1) / y.abs().max().clamp(min=1))
    return torch.stack(gaps).amax(0).nan_to_num(nan=torch.inf).cpu()


def memory_advances(trace: TracedRollout, tolerance: float) -> str:
    """The memory changes from step to step, and its rows differ."""
    (state,) = need(trace, "state")
    inside = trace.is_valid & ~trace.ended
    moves = torch.zeros_like(inside)
    for leaf in tree.leaves(state):
        flat = leaf.double().reshape(*leaf.shape[:2], -1)
        moves |= (flat[1:] != flat[:-1]).any(-1)
    if inside.any() and not moves[inside].any():
        raise Problem(
            "the memory never changes inside an episode",
            "Likely cause: the state that the network returns is thrown away",
            "Fix: pass the returned state to the next step",
        )
    stuck = inside & ~moves
    if stuck.float().mean() > 0.5:
        raise Doubt(f"the memory does not change in {int(stuck.sum())} of {int(inside.sum())} steps")
    return f"the memory changes in {int((inside & moves).sum())} of {int(inside.sum())} steps inside episodes"


def ratios(trace: TracedRollout, tolerance: float) -> Passed:
    """Before the first optimiser step the learner reproduces the recorded log-probabilities: ratios are 1."""
    old, new = need(trace, "log_prob", "learner_log_prob")
    gap = (new.double() - old.double()).exp() - 1
    gap = torch.where(gap.isnan(), torch.inf, gap.abs()).masked_fill(~trace.is_valid, 0)
    return _reproduced(trace, gap, "the ratio exp(learner - recorded) is off 1", "ratios are 1", tolerance)


def values(trace: TracedRollout, tolerance: float) -> Passed:
    """Before the first optimiser step the learner reproduces the recorded values."""
    old, new = need(trace, "value", "learner_value")
    unit = old.double()[trace.is_valid].abs().max().clamp(min=1)
    gap = (new.double() - old.double()).abs() / unit
    gap = torch.where(gap.isnan(), torch.inf, gap).masked_fill(~trace.is_valid, 0)
    return _reproduced(trace, gap, "recomputed values are off", "values are reproduced", tolerance)


def _reproduced(trace: TracedRollout, gap: Tensor, wrong: str, fine: str, tolerance: float) -> Passed:
    largest = float(gap.max())
    if largest <= tolerance:
        return Passed(f"{fine} to {tiny(largest)}", largest, tolerance)
    off = gap > tolerance
    t, row = off.nonzero()[0].tolist()
    raise Problem(
        f"{wrong} by up to {largest:.1e} (tolerance {tolerance:.0e}) in {int(off.sum())} of "
        f"{int(trace.is_valid.sum())} steps, first at step {t}, row {row}",
        f"Likely cause: {_cause_of_ratio(trace, off)}",
        "Fix: unroll each sequence from the memory that its first step was acted with, with the same resets, "
        "and evaluate the recorded actions",
        measured=largest,
        tolerance=tolerance,
    )


def _cause_of_ratio(trace: TracedRollout, off: Tensor) -> str:
    first, valid = trace.first, trace.is_valid
    # [T, B]: steps since the row's last reset within the rollout; a large number before the first reset.
    since = torch.full(first.shape, trace.steps)
    for t in range(trace.steps):
        since[t] = torch.where(first[t], 0, since[t - 1] + 1 if t else trace.steps)
    seen = since < trace.steps
    if not (off & seen).any():
        return "episodes that began before the rollout: the memory at its first step is lost, or stale"
    if not (off & (since == 0)).any() and not (off & ~seen).any():
        return (
            "only steps after a reset inside the rollout: the learner's reset is missed, or is one step late"
        )
    if trace.chunk_index is not None and trace.chunk_index.shape[1] > 1:
        begin = trace.chunk_index[0]
        begin = begin[begin >= 0]
        at_start = torch.zeros(first.numel(), dtype=torch.bool)
        at_start[begin] = True
        inside = at_start.view_as(first) & ~first
        if inside.any() and bool(off[inside & valid].all()) and not (off & (since == 0)).any():
            return "sequences that begin inside an episode do not start from its memory"
    if off[valid].all():
        return "every step: other actions (resampled), other weights, dropout, or rows in another order"
    return "the network differs between acting and learning: resets, memory at the start, or dropout"


def bootstraps(trace: TracedRollout, tolerance: float) -> str:
    """The values at time limits and at the rollout's end are those of the right observation."""
    (value,) = need(trace, "value")
    cut = trace.truncated & ~trace.terminated & trace.is_valid
    said = []
    if cut.any():
        (final,) = need(trace, "final_value")
        of = final[cut]
        followers = torch.cat([value[1:], (value[-1] if trace.bootstrap is None else trace.bootstrap)[None]])
        for cause, other in (
            ("0: the limit counts as a termination", torch.zeros_like(of)),
            ("that of the step's own observation, not of the final one", value[cut]),
            ("that of the next episode's first observation", followers[cut]),
        ):
            if (of - other).abs().max() <= 1e-7 * other.abs().max().clamp(min=1):
                raise Problem(
                    f"the value at each of {int(cut.sum())} time limits equals {cause}",
                    f"Likely cause: the value that is bootstrapped at time limits is {cause}",
                    "Fix: evaluate the final observation with the memory after the step, before any reset",
                )
        said.append(f"{int(cut.sum())} time limits")
    inside = trace.is_valid[-1] & ~trace.ended[-1]
    if inside.any():
        (bootstrap,) = need(trace, "bootstrap")
        if not bootstrap[inside].any():
            raise Problem(
                f"nothing is bootstrapped at the rollout's end in {int(inside.sum())} rows inside an episode",
                "Likely cause: the rollout's end counts as an end of the episode",
                "Fix: bootstrap with V(observation after the last step, memory after it)",
            )
        if torch.equal(bootstrap[inside], value[-1][inside]):
            raise Problem(
                "the bootstrap at the rollout's end is the value of the last step",
                "Likely cause: the value of the observation before the last action is used",
                "Fix: bootstrap with V(observation after the last step, memory after it)",
            )
        said.append(f"{int(inside.sum())} rows open at the end")
    return f"no known wrong value at {' and '.join(said) or 'any end'}"


def advantages(trace: TracedRollout, tolerance: float) -> Passed:
    """Advantages equal the closed form of the trace."""
    (advantage,) = need(trace, "advantage")
    closed_forms.check_complete(trace)
    return closed_forms.compare(advantage, trace, tolerance, trace.returns)


CHECKS: dict[str, tuple[Callable[[TracedRollout, float], str | Passed], ...]] = {
    "buffer": (finite, flags, contiguity),
    "state": (memory_advances, chunk_states, ratios, values),
    "returns": (bootstraps, advantages),
}
"""The checks by part. The name of a check is that of its function, with blanks."""
