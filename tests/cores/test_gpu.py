"""Every core on a GPU against itself on the CPU, and its steps there against its unroll."""

from __future__ import annotations

import copy

import pytest
import torch

from recollect.base import tree
from recollect.cores import CORES, make_core
from recollect.kernels import cudnn
from tests.support.core_cases import CASES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
every_case = pytest.mark.parametrize("name", list(CASES))
every_core = pytest.mark.parametrize("name", list(CORES))
ON_CUDNN = [name for name in CASES if name.split("-")[0] in ("lstm", "gru")]

DOUBLE = {"atol": 1e-10, "rtol": 1e-10}
SINGLE = {"atol": 1e-5, "rtol": 1e-5}
"""Of values in float32: sums in another order, and other ways to compute exp and tanh."""
SINGLE_GRADIENT = {"atol": 1e-4, "rtol": 1e-3}
"""Of gradients in float32, which are sums over all steps and rows."""


@pytest.fixture(autouse=True)
def full_precision(monkeypatch):
    """TF32, which cuDNN's backward pass uses unless told otherwise, has ten bits and its own tolerance."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", False)


def draw(name, dtype, chance):
    """A core of ``CASES`` with weights of which none is zero, and x, state, first for it, on the CPU."""
    torch.manual_seed(0)
    core = make_core(CASES[name], 3).to(dtype)
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.5)

    def leaf_like(leaf):
        if leaf.is_floating_point():
            return torch.randn(4, *leaf.shape[1:], dtype=dtype)
        return torch.randint(0, 4, (4, *leaf.shape[1:]), dtype=leaf.dtype)

    state = tree.map(leaf_like, core.initial_state(1))
    return core, torch.randn(9, 4, 3, dtype=dtype), state, torch.rand(9, 4) < chance


def results(core, x, state, first, device):
    """y and the end state, then all gradients, computed on ``device``, as two lists of CPU tensors."""
    core = copy.deepcopy(core).to(device).eval()
    x = x.to(device).requires_grad_()
    state = tree.map(lambda leaf: leaf.to(device).requires_grad_(leaf.is_floating_point()), state)
    y, end = core.unroll(x, state, first.to(device))
    assert y.device.type == device
    assert all(leaf.device.type == device for leaf in tree.leaves(end))
    floats = [leaf for leaf in tree.leaves(end) if leaf.is_floating_point()]
    loss = y.square().sum() + sum(leaf.sin().sum() for leaf in floats)
    inputs = [x, *(leaf for leaf in tree.leaves(state) if leaf.requires_grad), *core.parameters()]
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    values = [y, *tree.leaves(end)]
    return [t.detach().cpu() for t in values], [t.cpu() for t in gradients]


def assert_alike(given, values, gradients):
    gpu, cpu = results(*given, "cuda"), results(*given, "cpu")
    for got, want, tolerance in zip(gpu, cpu, (values, gradients)):
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, **tolerance)


@pytest.mark.parametrize("chance", [0.0, 0.2, 1.0])
@every_case
def test_gpu_equals_cpu(name, chance):
    """S002-14, S002-23: in float64, in eval mode too, values and gradients."""
    assert_alike(draw(name, torch.float64, chance), DOUBLE, DOUBLE)


@every_case
def test_gpu_equals_cpu_in_single_precision(name):
    """S002-14: in float32, to the tolerances above."""
    assert_alike(draw(name, torch.float32, 0.2), SINGLE, SINGLE_GRADIENT)


@pytest.mark.parametrize("chance", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("name", ON_CUDNN)
def test_our_own_kernels_on_a_gpu(name, chance, monkeypatch):
    """S002-14, S002-23: what cuDNN does not take is computed by the kernels of the CPU."""
    monkeypatch.setattr(cudnn, "suits", lambda x: False)
    assert_alike(draw(name, torch.float64, chance), DOUBLE, DOUBLE)


@every_core
def test_gpu_steps_equal_unroll(name):
    """S002-23: in float32 the learner reproduces the actor on the GPU, without TF32."""
    torch.manual_seed(0)
    core = make_core(name, 16).cuda()
    x, first = torch.randn(40, 8, 16, device="cuda"), torch.rand(40, 8, device="cuda") < 0.1
    state = core.initial_state(8)
    with torch.no_grad():
        y, _ = core.unroll(x, state, first)
        for t in range(40):
            out, state = core.step(x[t], state, first[t])
            torch.testing.assert_close(y[t], out, **SINGLE)
