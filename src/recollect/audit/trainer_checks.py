"""``audit_trainer``: all checks of a ``Trainer``, through its abilities alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recollect.audit import trace_checks
from recollect.audit.results import Check, Passed, Verification, checked
from recollect.audit.trainer import Trainer
from recollect.audit.trainer_reset_checks import (
    resets_in_acting,
    resets_in_learning,
    row_independence,
    rows_reset,
)
from recollect.audit.trainer_returns_checks import (
    advantage_statistics,
    advantages_apart,
    both_ends,
    rollout_end,
    termination,
    truncation,
)
from recollect.audit.trainer_state_checks import (
    acting_is_training,
    chunk_start,
    initial_state,
    recorded_states,
    step_is_unroll,
    weights_unchanged,
)
from recollect.audit.trainer_update_checks import gradient_reach, padding_in_update
from recollect.audit.tried import SEED, STEPS, Tried, seeded


def audit_trainer(trainer: Trainer | Callable[[], Trainer], *, steps: int = STEPS) -> Verification:
    """Check a trainer, by what it offers.

    Args:
        trainer: its abilities, or a function that returns the same ones, freshly made, every time. Checks
            that train need the function.
        steps: the length of the sequences that are tried.

    Example:
        >>> audit_trainer(Trainer("nothing")).ok
        True
    """
    with seeded(SEED):
        first = trainer() if callable(trainer) else trainer
    return Verification(first.name, checks_of(first, trainer if callable(trainer) else None, steps))


def assert_honest(trainer: Trainer | Callable[[], Trainer], *, steps: int = STEPS) -> Verification:
    """Raise an AssertionError with the report if a check fails, or if none could run.

    Also a fixture of the pytest plugin that comes with Recollect.
    """
    result = audit_trainer(trainer, steps=steps)
    assert result.ok, f"\n{result}"
    assert any(check.status in ("ok", "warning") for check in result.checks), (
        f"{result.env} offers nothing that could be checked\n{result}"
    )
    return result


def checks_of(trainer: Trainer, make: Callable[[], Trainer] | None = None, steps: int = STEPS) -> list[Check]:
    """The results of all checks."""
    tried = Tried(trainer, make, steps)
    found: list[Check] = []
    for part, checks in CHECKS.items():
        for check in checks:
            name = check.__name__.replace("_", " ")
            found.append(checked(part, name, lambda check=check: check(tried)))
    if trainer.record is None:
        missing = "the trainer offers no `record`"
        for part, of_trace in trace_checks.CHECKS.items():
            found += [
                Check(part, f"recorded {check.__name__.replace('_', ' ')}", "not checked", missing)
                for check in of_trace
            ]
        return found
    recorded = checked("buffer", "record", tried.recorded_finding)
    if not recorded.ok:
        return [*found, recorded]
    for check in trace_checks.checks_of(tried.recorded, trainer.tolerance):
        found.append(_renamed(check, f"recorded {check.name}"))
    return [*found, checked("state", "recorded states", lambda: recorded_states(tried))]


def _renamed(check: Check, name: str) -> Check:
    return replace(check, name=name)


CHECKS: dict[str, tuple[Callable[[Tried], str | Passed], ...]] = {
    "state": (
        acting_is_training,
        chunk_start,
        step_is_unroll,
        initial_state,
        resets_in_acting,
        resets_in_learning,
        rows_reset,
        row_independence,
        weights_unchanged,
    ),
    "returns": (
        rollout_end,
        termination,
        truncation,
        both_ends,
        advantages_apart,
        advantage_statistics,
    ),
    "training": (padding_in_update,),
    "gradient": (gradient_reach,),
}
"""The checks by part. The name of a check is that of its function, with blanks."""
