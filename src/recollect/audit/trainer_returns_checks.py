"""Checks of a ``Trainer``'s advantages and returns on scripted rollouts, against closed forms."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.audit import closed_forms
from recollect.audit.results import Passed, Problem
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer
from recollect.audit.tried import ROWS, SEED, STEPS, Tried, seeded


def script(trainer: Trainer, ends: str, steps: int = STEPS, rows: int = ROWS) -> TracedRollout:
    """A scripted rollout with random numbers; ``ends``: none, terminated, truncated or both."""
    generator = torch.Generator().manual_seed(SEED)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    terminated, truncated = (torch.zeros(steps, rows, dtype=torch.bool) for _ in range(2))
    at = [(steps // 2, 0), (2, 1), (steps - 3, 1), (steps - 1, 2)]
    if ends in ("terminated", "both"):
        for t, row in at:
            terminated[t, row] = True
    if ends == "truncated":
        for t, row in at:
            truncated[t, row] = True
    if ends == "both":
        truncated[4, 3] = truncated[steps // 2, 0] = truncated[5, 1] = True
    ended = terminated | truncated
    first = torch.cat([torch.ones(1, rows, dtype=torch.bool), ended[:-1]])
    return TracedRollout(
        first=first,
        terminated=terminated,
        truncated=truncated,
        reward=numbers(steps, rows),
        value=2 + numbers(steps, rows),
        final_value=(3 + numbers(steps, rows)).masked_fill(~truncated, 0),
        bootstrap=-2 + numbers(rows),
        gamma=trainer.gamma,
        gae_lambda=trainer.gae_lambda,
    )


def _scripted(tried: Tried, ends: str) -> Passed:
    tried.offered("advantages")
    assert tried.trainer.advantages is not None
    given = script(tried.trainer, ends)
    with seeded(SEED):
        advantage, returns = tried.trainer.advantages(given)
    return closed_forms.compare(advantage, given, max(tried.trainer.tolerance, 1e-5), returns)


def rollout_end(tried: Tried) -> Passed:
    """Advantages of episodes that are open at the rollout's end, against the closed form."""
    return _scripted(tried, "none")


def termination(tried: Tried) -> Passed:
    """Advantages around terminations, against the closed form."""
    return _scripted(tried, "terminated")


def truncation(tried: Tried) -> Passed:
    """Advantages around time limits, against the closed form."""
    return _scripted(tried, "truncated")


def both_ends(tried: Tried) -> Passed:
    """Advantages with all kinds of ends, also both at one step, against the closed form."""
    return _scripted(tried, "both")


def advantages_apart(tried: Tried) -> str:
    """A number in one row changes the advantages of that row alone, and none of a later episode."""
    tried.offered("advantages")
    assert tried.trainer.advantages is not None
    given = script(tried.trainer, "terminated")
    assert given.reward is not None

    def found(one: TracedRollout) -> Tensor:
        assert tried.trainer.advantages is not None
        with seeded(SEED):
            return tried.trainer.advantages(one)[0].detach().clone()

    base = found(given)
    for row in range(given.rows):
        changed = given.reward.clone()
        changed[-1, row] += 100.0
        differs = (found(given.but(reward=changed)) - base).abs() > 1e-3
        others = differs.clone()
        others[:, row] = False
        if others.any():
            t, other = others.nonzero()[0].tolist()
            raise Problem(
                f"the reward of row {row} at the last step changes the advantage of step {t}, row {other}",
                "Likely cause: the recursion runs over a flat buffer, from the end of one row into the next",
                "Fix: compute it along time, [T, B], for each row separately",
            )
        episode = given.first.long().cumsum(0)[:, row]
        earlier = differs[:, row] & (episode != episode[-1])
        if earlier.any():
            raise Problem(
                f"the reward of the last episode of row {row} changes the advantage of step "
                f"{int(earlier.nonzero()[0])}, in an earlier episode",
                "Likely cause: the trace runs on over the end of an episode",
                "Fix: end the trace at terminated | truncated",
            )
    return f"{given.rows} sentinels stayed in their rows and episodes"


def advantage_statistics(tried: Tried) -> Passed:
    """Advantages are normalised by the valid steps alone, and a single step stays finite."""
    tried.offered("normalise")
    assert tried.trainer.normalise is not None
    generator = torch.Generator().manual_seed(SEED)
    advantage = 3 + 2 * torch.randn(STEPS, ROWS, generator=generator)
    valid = torch.rand(STEPS, ROWS, generator=generator) < 0.7
    normalise = tried.trainer.normalise
    base = normalise(advantage.clone(), valid)
    poisoned = normalise(torch.where(valid, advantage, 1000.0), valid)
    gap = float((base - poisoned)[valid].abs().max())
    tolerance = tried.trainer.tolerance
    own = base[valid]
    mean, std = float(own.mean()), float(own.std(correction=0))
    if not gap <= tolerance:
        raise Problem(
            f"numbers at invalid steps change the normalised advantages of valid ones by {gap:.1e}",
            f"Likely cause: mean and spread are those of all {advantage.numel()} entries, padding included",
            "Fix: take mean and spread over valid steps",
            measured=gap,
            tolerance=tolerance,
        )
    off = max(abs(mean), abs(std - 1) - 0.5 / max(1, int(valid.sum()) - 1))
    if not off <= max(tolerance, 1e-3):
        raise Problem(
            f"normalised advantages have mean {mean:.2e} and spread {std:.3f} over the valid steps",
            "Likely cause: padding counts in the mean, the spread or the number of steps",
            "Fix: take mean and spread over valid steps",
            measured=off,
            tolerance=max(tolerance, 1e-3),
        )
    lone = torch.zeros_like(valid)
    lone[1, 1] = True
    for what, found in (
        ("of a single valid step", normalise(advantage.clone(), lone)[lone]),
        ("of equal advantages", normalise(torch.full_like(advantage, 2.0), valid)[valid]),
    ):
        if not torch.isfinite(found).all():
            raise Problem(
                f"the normalised advantage {what} is {float(found.flatten()[0])}",
                "Likely cause: the spread of one number is undefined (torch.std of one element is NaN)",
                "Fix: use correction=0 and add a small number, or do not normalise single steps",
                measured=float("inf"),
                tolerance=tolerance,
            )
    return Passed(f"mean {mean:.1e}, spread {std:.3f} over {int(valid.sum())} valid steps", gap, tolerance)
