"""Bugs of small kernels for the CPU."""

from __future__ import annotations

from recollect.kernels.cpu import linear_tanh
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
]
