"""Bugs of kernels for the CPU, and of traced acting steps."""

from __future__ import annotations

from recollect.acting.traced_act import TracedAct
from recollect.kernels.cpu import linear_tanh
from tests.acting import test_traced_act
from tests.kernels import test_linear_tanh
from tests.mutants.mutant import Mutant

TANH = test_linear_tanh.outputs_and_gradients_are_those_of_two_operations
FAILS = "torch.testing.assert_close(grad.double()"

CPU_KERNELS = [
    Mutant(
        "the gradient of a layer ignores its tanh",
        TANH,
        ((linear_tanh, "_backward", "torch.ops.aten.tanh_backward(grad, y)", "grad"),),
        FAILS,
    ),
    Mutant(
        "the gradient of a bias is a mean",
        TANH,
        ((linear_tanh, "_backward", "before.sum(0)", "before.mean(0)"),),
        FAILS,
    ),
    Mutant(
        "a layer with tanh has no bias",
        TANH,
        ((linear_tanh, "_forward", "weight, bias,", "weight, None,"),),
        "torch.testing.assert_close(y.double()",
    ),
    Mutant(
        "traced steps do not reset",
        test_traced_act.lstm_rollouts_are_the_same,
        ((TracedAct, "_run", "state, first)", "state, torch.zeros_like(first))"),),
        "assert all(torch.equal(a, b) for a, b in pairs), name",
    ),
    Mutant(
        "traced steps never normalise",
        test_traced_act.lstm_rollouts_are_the_same,
        ((TracedAct, "_traced", " or has_statistics != self._has_statistics", ""),),
        "assert traced(fast)._is_proved",
    ),
    Mutant(
        "the proof of a traced step draws random numbers",
        test_traced_act.a_graph_that_cannot_run_ends_tracing,
        ((TracedAct, "__call__", "self._generator.set_state(end)", "pass"),),
        "assert all(torch.equal(a, b) for a, b in pairs), name",
    ),
    Mutant(
        "traced steps are not compared",
        test_traced_act.a_step_that_differs_ends_tracing,
        ((TracedAct, "__call__", "all(map(torch.equal, found, want))", "True"),),
        "assert traced(actor)._has_failed",
    ),
    Mutant(
        "traced steps are compared once",
        test_traced_act.replaced_weights_are_seen,
        ((TracedAct, "begin", "self._is_proved = False", "pass"),),
        "assert all(torch.equal(a, b) for a, b in pairs), name",
    ),
    Mutant(
        "traced steps skip hooks",
        test_traced_act.hooks_are_called,
        ((TracedAct, "__call__", " and not _has_hooks(self._policy)", ""),),
        "assert len(calls) >= 12",
    ),
]
