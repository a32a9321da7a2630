"""Checks of a ``Trainer``'s resets and rows: outputs of which step and row change with which inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.audit.results import Doubt, Passed, Problem
from recollect.audit.trace_checks import state_gap
from recollect.audit.tried import Tried, compared, gaps, without_draws, worst_of
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.types import State, Tree


@dataclass(frozen=True, slots=True)
class Influence:
    """Which outputs change with the observation of which step."""

    largest: Tensor
    """[S, T, B]: [s, t, b]: by how much the output of step t in row b changes with the observation of s."""
    changed: Tensor
    """[S, T, B] bool: whether that is more than rounding."""
    felt: Tensor
    """[S, T, B] bool: whether it changes at all."""


def _influence(tried: Tried, path: str, first: Tensor, steps: list[int]) -> Influence:
    """Perturb the observation of each of ``steps`` in all rows."""

    def outputs(obs: Tree) -> dict[str, Tensor]:
        return tried.play(obs, first).outputs if path == "act" else tried.learned(obs, first)

    base = outputs(tried.obs)
    if path == "act":  # the log-probability of a drawn action does not compare
        base = without_draws(base)
    found = []
    for s in steps:
        obs = tree.map(
            lambda a, b, s=s: torch.cat([a[:s], b[s : s + 1], a[s + 1 :]]), tried.obs, tried.other_obs
        )
        found.append(gaps(outputs(obs), base))
    largest = torch.stack(found)
    return Influence(largest, largest > 0.1 * tried.trainer.tolerance, largest > 0)


def _perturbed(tried: Tried, path: str) -> tuple[Influence, list[int], Tensor]:
    """Influence of some steps, [S, T, B], the steps, and [S, T, B]: whether s and t are of one episode."""
    tried.offered(path, "initial_state")
    T = tried.steps
    first = tried.first
    steps = (
        list(range(T)) if T <= 16 else sorted({0, 1, 2, 3, T // 3, T // 2 - 1, T // 2, T - 3, T - 2, T - 1})
    )
    influence = _influence(tried, path, first, steps)
    episode = first.long().cumsum(0)
    together = torch.stack([episode == episode[s] for s in steps])
    return influence, steps, together


def resets_in_acting(tried: Tried) -> str | Passed:
    """Acting: nothing of an episode reaches the next, and the memory is kept inside an episode."""
    return _resets(tried, "act")


def resets_in_learning(tried: Tried) -> str | Passed:
    """Learning: nothing of an episode reaches the next, and the memory is kept inside an episode."""
    return _resets(tried, "evaluate")


def _resets(tried: Tried, path: str) -> str | Passed:
    influence, steps, together = _perturbed(tried, path)
    word = "acting" if path == "act" else "learning"
    changed, T = influence.changed, tried.steps
    s_of = torch.tensor(steps).view(-1, 1, 1)
    t_of = torch.arange(T).view(1, -1, 1)
    tolerance = tried.trainer.tolerance
    if (changed & (t_of < s_of)).any():
        s, t, row = (changed & (t_of < s_of)).nonzero()[0].tolist()
        raise Problem(
            f"{word}: the output of step {t}, row {row}, changes with the observation of step {steps[s]}",
            "Likely cause: the network reads later steps of a sequence, which do not exist while acting "
            "(bidirectional, attention without a mask, statistics over time)",
            "Fix: mask later steps",
            measured=float(influence.largest[s, t, row]),
            tolerance=tolerance * 0.1,
        )
    leaks = changed & ~together & (t_of > s_of)
    if leaks.any():
        s, t, row = leaks.nonzero()[0].tolist()
        at_first = tried.first.unsqueeze(0).expand_as(leaks)
        ends_here = torch.stack([tried.first[s + 1] if s + 1 < T else tried.first[0] & False for s in steps])
        cause = "the memory is not reset where an episode begins"
        if not (leaks & ~at_first).any():
            cause = "the memory is reset one step late: after the episode's first step"
        elif not (leaks.any(1) & ~ends_here).any():
            cause = "the memory is reset one step early: the last step of an episode reaches the next"
        raise Problem(
            f"{word}: the output of step {t}, row {row}, changes with step {steps[s]} of an earlier episode, "
            f"by {float(influence.largest[leaks].max()):.1e}",
            f"Likely cause: {cause}",
            "Fix: select the initial state where `first`, before the step",
            measured=float(influence.largest[leaks].max()),
            tolerance=tolerance * 0.1,
        )
    own = torch.stack([influence.felt[i, s] for i, s in enumerate(steps)])
    if not own.any():
        raise Doubt(f"{word}: no output changes with the observation of its own step")
    back = torch.stack([influence.felt[i, s + 1] for i, s in enumerate(steps) if s + 1 < T])
    inside = torch.stack([together[i, s + 1] for i, s in enumerate(steps) if s + 1 < T])
    at = torch.tensor([s for s in steps if s + 1 < T])
    if not (back & inside).any():
        raise Problem(
            f"{word}: no output depends on the step before it",
            "Likely cause: the memory that the network returns is not used, or every step resets it",
            "Fix: pass the returned state to the next step",
            measured=0.0,
            tolerance=tolerance * 0.1,
        )
    # Only where the observation did change something; and a reset also hides it from all later steps.
    lost = inside & ~back & own[: len(at)]
    if tried.trainer.resets:
        # The last step of an episode has a reset behind it: an early reset hits exactly those.
        ends = torch.stack([tried.first[s + 2] if s + 2 < T else torch.zeros(tried.rows).bool() for s in at])
        if (lost & ends).any() and not (back & inside & ends).any():
            raise Problem(
                f"{word}: the last step of an episode does not depend on the step before it, all others do",
                "Likely cause: the memory is reset one step early, by the flag of the next step",
                "Fix: reset before the first step of the next episode",
                measured=float((lost & ends).sum()),
                tolerance=0.0,
            )
        later = torch.stack([(influence.felt[i] & together[i])[s + 1 :].any(0) for i, s in enumerate(at)])
        lone = _extra_reset(lost & ~later & (at < T - 2).unsqueeze(1), at)
        if lone:
            raise Problem(
                f"{word}: {lone}",
                "Likely cause: the memory is reset in rows whose episode continues: rows are reset by a "
                "number in place of a mask, or one end resets every row",
                "Fix: reset by a mask [B] of rows",
                measured=float(lost.sum()),
                tolerance=0.0,
            )
        count = int((~together & (t_of > s_of)).sum())
        return f"{word}: 0 influence over {count} pairs of steps of two episodes; memory kept inside episodes"
    return f"{word}: no later step has influence; the memory is kept from step to step"


def _extra_reset(lost: Tensor, at: Tensor) -> str:
    """In words: a step inside an episode that no row, or one row of several, remembers."""
    if not lost.any() or lost.float().mean() > 0.5:
        return ""
    index, row = lost.nonzero()[0].tolist()
    return f"step {int(at[index]) + 1} of row {row} does not depend on the step before it, which has no reset"


def rows_reset(tried: Tried) -> Passed:
    """A mask of resets resets those rows and no others."""
    tried.offered("act", "initial_state")
    tried.knows_resets()
    tolerance = tried.trainer.tolerance
    state = tree.index(tried.acted.states, tried.steps // 2)
    obs, rows = tree.index(tried.obs, 0), tried.rows
    none, every = (torch.full((rows,), value) for value in (False, True))

    def of(given: State, first: Tensor) -> Tree:
        """What a step gives: its outputs and its memory, [B, ...] in each leaf."""
        outputs, after = tried.act(obs, given, first)
        return {"outputs": without_draws(compared(outputs)), "state": after}

    kept, reset, fresh = of(state, none), of(state, every), of(tried.initial(), none)
    gap = float(state_gap(reset, fresh).max())
    if not gap <= tolerance:
        is_kept = float(state_gap(reset, kept).max()) <= tolerance
        cause = "is not reset at all, or after the step" if is_kept else "is reset to something else"
        if float(state_gap(reset, fresh).min()) <= tolerance:
            cause = "is reset in some rows only: by a number in place of a mask"
        raise Problem(
            f"a step with `first` and a step from the initial state differ by {gap:.1e} (tolerance "
            f"{tolerance:.0e})",
            f"Likely cause: the memory {cause}",
            "Fix: select the initial state where `first`, before the step",
            measured=gap,
            tolerance=tolerance,
        )
    if float(state_gap(kept, reset).min()) <= 1e-7:
        raise Doubt("a reset changes nothing: the memory has no influence here")
    largest = gap
    for number in range(1, 2**rows - 1):
        mask = torch.tensor([bool(number >> b & 1) for b in range(rows)])
        which = mask.to(tree.leaves(state)[0].device)
        of_rows = state_gap(of(state, mask), tree.select(which, reset, kept))
        largest = max(largest, float(of_rows.max()))
        if not largest <= tolerance:
            row = int(of_rows.argmax())
            word = "was not reset" if mask[row] else "was reset, too"
            raise Problem(
                f"with resets in rows {mask.nonzero().flatten().tolist()} row {row} {word} (off by "
                f"{largest:.1e})",
                "Likely cause: rows are reset by a number in place of a mask, or one end resets every row",
                "Fix: reset by a mask [B] of rows",
                measured=largest,
                tolerance=tolerance,
            )
    return Passed(f"{2**rows - 2} masks of resets, each resets its rows alone", largest, tolerance)


def row_independence(tried: Tried) -> Passed:
    """The outputs of a row depend on its own inputs alone, and move with it if rows are permuted."""
    tried.offered("initial_state")
    if tried.trainer.act is None and tried.trainer.evaluate is None:
        tried.offered("act")
    tolerance, largest, B = tried.trainer.tolerance, 0.0, tried.rows
    order = torch.tensor([1, 0, *range(2, B)])  # commutes with no other order of all rows
    for path in ("act", "evaluate"):
        if getattr(tried.trainer, path) is None:
            continue
        word = "acting" if path == "act" else "learning"

        def outputs(obs: Tree, first: Tensor, rows: Tensor, path: str = path) -> dict[str, Tensor]:
            state = tree.index(tried.initial(), rows)
            if path == "act":
                return without_draws(tried.play(obs, first, state).outputs)
            action = None if tried.trainer.act is None else tried.acted.action
            action = None if action is None else tree.map(lambda leaf: leaf[:, rows], action)
            return tried.evaluate(obs, state, first, action)[0]

        every = torch.arange(B)
        base = outputs(tried.obs, tried.first, every)
        moved = outputs(tree.map(lambda leaf: leaf[:, order], tried.obs), tried.first[:, order], order)
        expected = {name: x[:, order] for name, x in base.items()}
        gap, t, row = worst_of(gaps(moved, expected))
        if not gap <= tolerance:
            names = [name for name in base if float(gaps({name: moved[name]}, expected).max()) > tolerance]
            raise Problem(
                f"{word}: with rows permuted, {', '.join(names)} of row {row} differ by {gap:.1e} (tolerance "
                f"{tolerance:.0e}), most at step {t}",
                "Likely cause: outputs are read by another order of rows than inputs (a reshape without a "
                "transpose, sorting by length), or rows are mixed (batch statistics)",
                "Fix: keep [T, B] together through every reshape",
                measured=gap,
                tolerance=tolerance,
            )
        largest = max(largest, gap)
        for b in (0, B - 1):
            obs = tree.map(
                lambda x, y, b=b: torch.cat([y[:, :b], x[:, b : b + 1], y[:, b + 1 :]], 1),
                tried.obs,
                tried.other_obs,
            )
            gap, t, _ = worst_of(
                gaps(
                    {name: x[:, b : b + 1] for name, x in outputs(obs, tried.first, every).items()},
                    {name: x[:, b : b + 1] for name, x in base.items()},
                )
            )
            if not gap <= tolerance:
                raise Problem(
                    f"{word}: the outputs of row {b} change with other rows by {gap:.1e} (tolerance "
                    f"{tolerance:.0e}), most at step {t}",
                    "Likely cause: rows are mixed: batch statistics, attention over rows, or a reshape "
                    "without a transpose",
                    "Fix: process each row separately",
                    measured=gap,
                    tolerance=tolerance,
                )
            largest = max(largest, gap)
    return Passed(f"rows depend on themselves alone, to {tiny(largest)}", largest, tolerance)
