"""Bugs of mixed precision: numbers that are rounded to bfloat16 where float32 is promised."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from recollect.algos import impala, ppo
from recollect.experience import returns
from recollect.policy import precision
from recollect.policy.policy import Policy
from tests.mutants.mutant import Edit, Mutant
from tests.policy import test_precision


def _single(algo: str, own: bool) -> None:
    if precision.probe() != "ok":
        pytest.skip(f"bf16 on this CPU: {precision.probe()}")
    test_precision.test_ratios_targets_and_losses_are_float32(None, algo, own, "lstm")


of_ppo = functools.partial(_single, "ppo", False)
of_impala = functools.partial(_single, "clipped impala", False)
in_autocast = functools.partial(_single, "ppo", True)
ROUNDED = ".bfloat16().float()"


def rounded(name: str, proof: Callable[[], None], edits: tuple[Edit, ...]) -> Mutant:
    """An operation makes half precision where none should."""
    return Mutant(name, proof, edits, "assert halves.found == []")


ROUNDINGS = [
    rounded(
        "the ratio is computed in bf16",
        of_ppo,
        ((ppo, "loss", "ratio = log_ratio.exp()", f"ratio = log_ratio.exp(){ROUNDED}"),),
    ),
    rounded(
        "the ratio of IMPALA's clip is computed in bf16",
        of_impala,
        ((impala, "loss", "(log_prob - data[START])", f"(log_prob - data[START]){ROUNDED}"),),
    ),
    rounded(
        "the ratio of V-trace is computed in bf16",
        of_impala,
        ((returns, "vtrace", "log_ratio.exp()", f"log_ratio.exp(){ROUNDED}"),),
    ),
    rounded(
        "log-probs are rounded to bf16",
        of_ppo,
        ((Policy, "evaluate_actions", "dist.log_prob(action)", f"dist.log_prob(action){ROUNDED}"),),
    ),
    rounded(
        "GAE sums in bf16",
        of_ppo,
        ((returns, "_scan_backward", "delta.clone()", f"delta{ROUNDED}"),),
    ),
    rounded(
        "advantages are kept in bf16",
        of_ppo,
        ((ppo, "targets", "rollout.valid, ranks) if", "rollout.valid, ranks).bfloat16() if"),),
    ),
    rounded(
        "the loss is bf16",
        of_ppo,
        ((ppo, "loss", "return total, stats", "return total.bfloat16(), stats"),),
    ),
    rounded(
        "somebody's autocast reaches the heads",
        in_autocast,
        ((precision, "exact", "torch.autocast(x.device.type, enabled=False)", "_PLAIN"),),
    ),
]
