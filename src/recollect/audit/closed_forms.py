"""Advantages by their definition, one row and step at a time in float64, and the known wrong ways.

A trainer whose numbers equal those of a wrong way has that bug: this names the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from recollect.audit.results import NotOffered, Passed, Problem
from recollect.audit.trace import TracedRollout
from recollect.base.formatting import tiny
from recollect.errors import ConfigError


class Numbers(NamedTuple):
    """What the recursion reads at one step of one row."""

    reward: float
    value: float
    following: float
    """The value of the next step of the rollout, or the bootstrap after the last."""
    final: float
    """The value of the last observation of a truncated episode."""
    terminated: bool
    truncated: bool
    first: bool


Way = Callable[[Numbers], tuple[float, bool]]
"""-> (the value of the future, whether the trace continues in the next step)."""


def right(at: Numbers) -> tuple[float, bool]:
    """0 at a termination, the final value at a truncation; the trace ends at both."""
    if at.terminated:
        return 0.0, False
    return (at.final, False) if at.truncated else (at.following, True)


def _leaks(at: Numbers) -> tuple[float, bool]:
    return right(at)[0], True


def _following(at: Numbers) -> tuple[float, bool]:
    return (0.0, False) if at.terminated else (at.following, not at.truncated)


def _as_running(at: Numbers) -> tuple[float, bool]:
    return (0.0, False) if at.terminated else (at.following, True)


def _as_terminated(at: Numbers) -> tuple[float, bool]:
    return (0.0, False) if at.terminated or at.truncated else (at.following, True)


def _own_value(at: Numbers) -> tuple[float, bool]:
    return (at.value, False) if at.truncated and not at.terminated else right(at)


def _own_value_leaks(at: Numbers) -> tuple[float, bool]:
    return _own_value(at)[0], not at.terminated


def _truncated_wins(at: Numbers) -> tuple[float, bool]:
    return (at.final, False) if at.truncated else right(at)


def _termination_runs(at: Numbers) -> tuple[float, bool]:
    return (at.final, False) if at.truncated else (at.following, not at.terminated)


def _nothing_ends(at: Numbers) -> tuple[float, bool]:
    return at.following, True


def _first_ends(at: Numbers) -> tuple[float, bool]:
    return (0.0, False) if at.first else (at.following, True)


WRONG: dict[str, Way] = {
    "a time limit counts as a termination: no value is bootstrapped there": _as_terminated,
    "the value of the step's own observation is bootstrapped at time limits, not that of the final one": (
        _own_value
    ),
    "the value of the step's own observation is bootstrapped at time limits, and the trace runs over "
    "their ends": _own_value_leaks,
    "the value of the next episode's first observation is bootstrapped at time limits": _following,
    "time limits are ignored: bootstrap and trace run on into the next episode": _as_running,
    "the trace runs on into the next episode": _leaks,
    "a step that is terminated and truncated is bootstrapped": _truncated_wins,
    "a termination is bootstrapped": _termination_runs,
    "ends of episodes are ignored": _nothing_ends,
    "the flag of the step's own start is read in place of its end: one step off": _first_ends,
}


def advantages(script: TracedRollout, way: Way = right, bootstrap: Tensor | None = None) -> Tensor:
    """[T, B] float64: GAE of a trace, with what happens at ends given by ``way``.

    ``bootstrap``: in place of that of the trace.
    """
    if script.reward is None or script.value is None or script.gamma is None or script.gae_lambda is None:
        raise ConfigError("a closed form needs reward, value, gamma and gae_lambda")
    T, B = script.steps, script.rows
    zeros = torch.zeros(T, B)
    reward, value = script.reward.double().tolist(), script.value.double().tolist()
    final = (zeros if script.final_value is None else script.final_value).double().tolist()
    last = script.bootstrap if bootstrap is None else bootstrap
    end = (zeros[0] if last is None else last).double().tolist()
    terminated, truncated, first, valid = (
        x.tolist() for x in (script.terminated, script.truncated, script.first, script.is_valid)
    )
    decay = script.gamma * script.gae_lambda
    advantage = torch.zeros(T, B, dtype=torch.float64)
    for b in range(B):
        after, following = 0.0, end[b]
        for t in reversed(range(T)):
            if not valid[t][b]:
                after = 0.0
                continue
            v = value[t][b]
            at = Numbers(
                reward[t][b], v, following, final[t][b], terminated[t][b], truncated[t][b], first[t][b]
            )
            future, continues = way(at)
            after = at.reward + script.gamma * future - v + (decay * after if continues else 0.0)
            advantage[t, b], following = after, v
    return advantage


def compare(
    found: Tensor,
    script: TracedRollout,
    tolerance: float,
    returns: Tensor | None = None,
    what: str = "advantages",
) -> Passed:
    """Advantages [T, B] against the closed form; raises a Problem with the way that explains a difference."""
    if found.shape != script.first.shape:
        raise Problem(f"{what} have shape {tuple(found.shape)}, not [T, B] = {tuple(script.first.shape)}")
    expected, valid = advantages(script), script.is_valid
    gap, t, row = _gap(found, expected, valid)
    if not gap <= tolerance:
        raise Problem(
            f"{what} differ from the closed form by {gap:.1e} of their scale (tolerance {tolerance:.0e}), "
            f"most at step {t}, row {row}",
            f"Likely cause: {_explain(found, script, tolerance)}",
            "Fix: delta = r + gamma * (0 if terminated, V(final observation) if truncated, else V of the "
            "next step) - V, and end the trace at both",
            measured=gap,
            tolerance=tolerance,
        )
    if returns is not None and script.value is not None:
        gap_returns, t, row = _gap(returns, expected + script.value.double(), valid)
        if not gap_returns <= tolerance:
            raise Problem(
                f"returns differ from advantage + value by {gap_returns:.1e} (step {t}, row {row})",
                "Likely cause: they are made from normalised advantages, or from the values of other steps",
                "Fix: returns = advantages (before normalisation) + value",
                measured=gap_returns,
                tolerance=tolerance,
            )
        gap = max(gap, gap_returns)
    return Passed(f"{what} equal the closed form to {tiny(gap)}", gap, tolerance)


def _explain(found: Tensor, script: TracedRollout, tolerance: float) -> str:
    valid = script.is_valid
    for cause, way in WRONG.items():
        if _gap(found, advantages(script, way), valid)[0] <= tolerance:
            return cause
    for cause, bootstrap in _other_bootstraps(script):
        if _gap(found, advantages(script, right, bootstrap), valid)[0] <= tolerance:
            return cause
    without = _gap(found, advantages(script), valid & ~_before_end(script))[0]
    if without <= tolerance:
        return "something at the rollout's end; rows that end inside are right"
    return "gamma or lambda differ from those given, values belong to another step or row, or a mix of bugs"


def _other_bootstraps(script: TracedRollout) -> Sequence[tuple[str, Tensor]]:
    assert script.value is not None
    zero = torch.zeros(script.rows)
    found = [
        ("nothing is bootstrapped at the rollout's end", zero),
        ("the value of the last step is bootstrapped at the rollout's end", script.value[-1]),
    ]
    if script.bootstrap is not None and script.rows > 1:
        found.append(("the bootstrap values of the rows are permuted", script.bootstrap.roll(1)))
        found.append(("the bootstrap values of the rows are permuted", script.bootstrap.flip(0)))
    return found


def _before_end(script: TracedRollout) -> Tensor:
    """[T, B] bool: steps of episodes that are open after the last step."""
    ends_later = script.ended.flip(0).long().cumsum(0).flip(0) > 0
    return ~ends_later


def _gap(found: Tensor, expected: Tensor, valid: Tensor) -> tuple[float, int, int]:
    gap = (found.detach().cpu().double() - expected).abs() / expected[valid].abs().max().clamp(min=1)
    gap = torch.where(gap.isnan(), torch.inf, gap).masked_fill(~valid, 0)
    t, row = divmod(int(gap.argmax()), gap.shape[1])
    return float(gap[t, row]), t, row


def check_complete(script: TracedRollout) -> None:
    """Raise NotOffered unless a trace has what a closed form of its advantages needs."""
    needed = ["reward", "value", "gamma", "gae_lambda"]
    valid = script.is_valid
    if bool((script.truncated & ~script.terminated & valid).any()):
        needed.append("final_value")
    if bool((valid[-1] & ~script.ended[-1]).any()):
        needed.append("bootstrap")
    missing = [name for name in needed if getattr(script, name) is None]
    if missing:
        raise NotOffered(f"the trace has no {', '.join(missing)}")
