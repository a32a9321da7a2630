"""Bugs of V-trace and of IMPALA."""

from __future__ import annotations

import functools

from recollect.algos import impala
from recollect.experience import returns
from tests.algos import test_impala
from tests.experience import test_vtrace
from tests.mutants.edits import DOUBLE_SUM, GRADIENT
from tests.mutants.mutant import Edit, Mutant

double_sum = functools.partial(
    test_vtrace.test_equals_the_double_sum.hypothesis.inner_test, 20, 3, 1, 0.3, 0.9, 0.5, 1.0, 0.3
)
"""Also for GAE's flags: the next value is made in one place for both."""
gradient = functools.partial(test_impala.test_the_gradient_is_the_papers, "gru", {}, None)


def vtrace(old: str, new: str) -> Edit:
    return (returns, "vtrace", old, new)


VTRACE = [
    Mutant(
        "rho is not truncated", double_sum, (vtrace("ratio.clamp(max=rho_clip), ", "ratio, "),), by=DOUBLE_SUM
    ),
    Mutant(
        "c is truncated at rho's clip", double_sum, (vtrace("max=c_clip", "max=rho_clip"),), by=DOUBLE_SUM
    ),
    Mutant(
        "the trace of V-trace runs over a time limit",
        double_sum,
        (vtrace("(gamma * c).masked_fill(ended, 0)", "(gamma * c).masked_fill(terminated, 0)"),),
        by=DOUBLE_SUM,
        known="most V-trace code: one flag for both ends",
    ),
    Mutant(
        "the advantage looks into the next episode",
        double_sum,
        (vtrace("[:1])]).masked_fill(ended, 0)", "[:1])])"),),
        by=DOUBLE_SUM,
    ),
    Mutant(
        "the advantage is not weighted",
        double_sum,
        (vtrace("delta + rho * (gamma", "delta + (gamma"),),
        by=DOUBLE_SUM,
    ),
    Mutant(
        "V-trace over recorded values",
        gradient,
        ((impala, "advantages", 'value=outputs.record["value"]', 'value=rollout.record["value"]'),),
        by=GRADIENT,
    ),
    Mutant(
        "V-trace with an old bootstrap",
        gradient,
        ((impala, "advantages", "bootstrap=outputs.bootstrap", "bootstrap=rollout.bootstrap"),),
        by=GRADIENT,
    ),
    Mutant(
        "V-trace with old final values",
        gradient,
        ((impala, "advantages", "final_value=outputs.final_value", "final_value=rollout.final_value"),),
        by=GRADIENT,
    ),
    Mutant(
        "chunks of a rollout that lags start from old states",
        gradient,
        ((impala, "targets", "replace(rollout, states=made.states)", "rollout"),),
        by=GRADIENT,
    ),
    Mutant(
        "the ratio is upside down",
        gradient,
        (
            (
                impala,
                "advantages",
                'outputs.record["log_prob"] - rollout.record["log_prob"]',
                'rollout.record["log_prob"] - outputs.record["log_prob"]',
            ),
        ),
        by=GRADIENT,
    ),
    Mutant(
        "the ratio of the clip is to the policy that acted",
        functools.partial(test_impala.test_the_gradient_is_the_papers, "gru", {}, 0.2),
        ((impala, "loss", "log_prob - data[START]", 'log_prob - data["log_prob"]'),),
        by=GRADIENT,
    ),
    Mutant(
        "advantages are scaled twice",
        test_impala.test_advantages_are_in_units_of_the_returns,
        ((impala, "targets", "advantage / policy", "advantage / policy.value_scale / policy"),),
        by="assert_close(valid.std(correction=0).double(), spread.double()",
    ),
]
