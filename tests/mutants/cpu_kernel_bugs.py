"""Bugs of kernels for the CPU, and of traced acting steps."""

from __future__ import annotations

from recollect.acting.traced_steps import TracedSteps
from recollect.kernels.cpu import linear_tanh
from tests.acting import test_traced_steps
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
        test_traced_steps.lstm_rollouts_are_the_same,
        ((TracedSteps, "_run", "self._graph(first,", "self._graph(torch.zeros_like(first),"),),
        "assert all(torch.equal(a, b) for a, b in pairs), name",
    ),
    Mutant(
        "traced steps never normalise",
        test_traced_steps.lstm_rollouts_are_the_same,
        ((TracedSteps, "_prove", " or has_statistics != self._has_statistics", ""),),
        "assert traced._traced._is_proved",
    ),
    Mutant(
        "traced steps are not compared",
        test_traced_steps.a_step_that_differs_ends_tracing,
        ((TracedSteps, "_prove", "all(map(torch.equal, tree.leaves(found), tree.leaves(want)))", "True"),),
        "assert actor._traced._has_failed",
    ),
]
