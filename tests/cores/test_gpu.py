"""The cores on a GPU, where cuDNN runs the packed segments, against themselves on the CPU."""

from __future__ import annotations

import copy

import pytest
import torch

from recollect import tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.cores.kernels import cudnn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
CONFIGS = [
    LSTMConfig(hidden=6),
    LSTMConfig(hidden=6, layers=2, learned_initial_state=True),
    GRUConfig(hidden=6),
    GRUConfig(hidden=6, layers=2, learned_initial_state=True),
]


def results(core, x, state, first, device):
    """y, the end state and all gradients, computed on ``device``, as CPU tensors."""
    core = copy.deepcopy(core).to(device).eval()
    x = x.to(device).requires_grad_()
    state = tree.map(lambda leaf: leaf.to(device).requires_grad_(), state)
    y, end = core.unroll(x, state, first.to(device))
    loss = y.square().sum() + sum(leaf.sin().sum() for leaf in tree.leaves(end))
    inputs = [x, *tree.leaves(state), *core.parameters()]
    gradients = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    return [t.detach().cpu() for t in (y, *tree.leaves(end), *gradients)]


@pytest.mark.parametrize("with_cudnn", [True, False])
@pytest.mark.parametrize("chance", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("config", CONFIGS)
def test_gpu_equals_cpu(config, chance, with_cudnn, monkeypatch):
    """S002-23: in float64, by cuDNN and by our own kernel, in eval mode too."""
    if not with_cudnn:
        monkeypatch.setattr(cudnn, "suits", lambda x: False)
    torch.manual_seed(0)
    core = config.build(3).double()
    x, first = torch.randn(9, 4, 3, dtype=torch.float64), torch.rand(9, 4) < chance
    state = tree.map(torch.randn_like, tree.clone(core.initial_state(4)))
    for a, b in zip(results(core, x, state, first, "cuda"), results(core, x, state, first, "cpu")):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("config", CONFIGS)
def test_gpu_steps_equal_unroll(config):
    """S002-23: in float32 the learner reproduces the actor on the GPU, without TF32."""
    torch.manual_seed(0)
    core = config.build(16).cuda()
    x, first = torch.randn(40, 8, 16, device="cuda"), torch.rand(40, 8, device="cuda") < 0.1
    state = core.initial_state(8)
    with torch.no_grad():
        y, _ = core.unroll(x, state, first)
        for t in range(40):
            out, state = core.step(x[t], state, first[t])
            torch.testing.assert_close(y[t], out, atol=2e-6, rtol=0)
