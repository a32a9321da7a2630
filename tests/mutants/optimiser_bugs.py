"""Bugs of the optimiser: numbers that are not those of torch's Adam."""

from __future__ import annotations

from collections.abc import Callable

from recollect.learning.optimiser import Adam
from tests.learning import test_optimiser
from tests.mutants.mutant import Mutant


def wrong(
    name: str, old: str, new: str, by: str, *, proof: Callable[[], None] = test_optimiser.every_step_is_torchs
) -> Mutant:
    """A changed ``Adam._step``."""
    return Mutant(name, proof, ((Adam, "_step", old, new),), by)


SKIPPED = test_optimiser.skipped_and_divided_steps_are_torchs
WEIGHTS = '"weights"'

OPTIMISERS = [
    wrong(
        "the moments have no bias correction",
        "_foreach_add_(steps, 1)",
        "_foreach_add_(steps, 10**6)",
        WEIGHTS,
    ),
    wrong(
        "steps are not counted", "_foreach_add_(steps, 1)", "_foreach_add_(steps, int(not steps[0]))", WEIGHTS
    ),
    wrong("the smallest divisor is torch's default", "eps=EPS", "eps=1e-8", WEIGHTS),
    wrong("weights decay", "weight_decay=0.0", "weight_decay=1e-2", WEIGHTS),
    wrong("the two decay rates are swapped", "beta1=BETAS[0]", "beta1=BETAS[1]", "exp_avg"),
    wrong("squares are remembered as long as means", "beta2=BETAS[1]", "beta2=BETAS[0]", "exp_avg_sq"),
    wrong("gradients climb", "maximize=False", "maximize=True", WEIGHTS),
    Mutant(
        "groups share a learning rate",
        test_optimiser.every_step_is_torchs,
        ((Adam, "step", 'group["lr"]', 'self.param_groups[0]["lr"]'),),
        WEIGHTS,
    ),
    Mutant(
        "the step count of a new parameter starts at 1",
        test_optimiser.every_step_is_torchs,
        ((Adam, "_new_state", "torch.zeros((),", "torch.ones((),"),),
        WEIGHTS,
    ),
    wrong("a skipped step counts", "if skip is not None:", "if False:", "step", proof=SKIPPED),
    wrong("no step is skipped", "found_inf=skip", "found_inf=None", WEIGHTS, proof=SKIPPED),
    wrong("the kernel does not clip", "grad_scale=divisor", "grad_scale=None", WEIGHTS, proof=SKIPPED),
]
