"""A layer with tanh by oneDNN's product with an activation."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from recollect.kernels.cpu import linear_tanh
from recollect.policy.layers import Dense

needs_kernel = pytest.mark.skipif(not linear_tanh._has_kernel(), reason="this build of torch has no oneDNN")
UNITS = 64
ROWS = linear_tanh.MANY // UNITS


def draw(inputs: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """x [T, B, inputs], weight, bias: some activations are almost 1, some almost 0."""
    noise = torch.Generator().manual_seed(inputs)
    shapes = ((8, ROWS // 8, inputs), (UNITS, inputs), (UNITS,))
    x, weight, bias = (torch.randn(shape, generator=noise).requires_grad_() for shape in shapes)
    with torch.no_grad():
        x[0] *= 5
        weight[0] *= 1e-6
        bias[0] = 0
    return x, weight, bias


def outputs_and_gradients_are_those_of_two_operations() -> None:
    """Against float64, to a few roundings of float32; the gradients of weights are sums over all rows."""
    for inputs in (2, 30):
        given = draw(inputs)
        assert linear_tanh.suits(given[0], given[1])
        y = linear_tanh.linear_tanh(*given)
        wide = [tensor.detach().double().requires_grad_() for tensor in given]
        want = torch.tanh(F.linear(*wide))
        torch.testing.assert_close(y.double(), want, rtol=0, atol=1e-5)
        torch.testing.assert_close(y[..., 0].double(), want[..., 0], rtol=1e-4, atol=1e-10)  # tiny ones
        along = torch.cos(torch.arange(y.numel())).view_as(y)
        found = torch.autograd.grad(y, given, along)
        for grad, exact in zip(found, torch.autograd.grad(want, wide, along.double()), strict=True):
            torch.testing.assert_close(grad.double(), exact, rtol=1e-4, atol=2e-5)


@needs_kernel
def test_outputs_and_gradients_are_those_of_two_operations():
    outputs_and_gradients_are_those_of_two_operations()


@needs_kernel
def test_an_input_without_a_gradient_gets_none():
    x, weight, bias = draw(2)
    linear_tanh.linear_tanh(x.detach(), weight, bias).sum().backward()
    assert x.grad is None
    assert weight.grad is not None


@needs_kernel
@pytest.mark.parametrize("exact", [True, False])
def test_a_layer_chooses_it_where_gradients_of_many_rows_are_recorded(exact, monkeypatch):
    """Few rows, as in acting, and anything but float32 take torch's operations."""
    layer, calls = Dense(2, UNITS, "tanh", exact=exact), []
    kernel = linear_tanh.linear_tanh
    monkeypatch.setattr(linear_tanh, "linear_tanh", lambda *given: calls.append(1) or kernel(*given))
    x = torch.randn(ROWS, 2)
    assert_same = torch.testing.assert_close
    y = layer(x)
    assert len(calls) == 1
    with torch.no_grad():
        assert_same(layer(x), y.detach())
    assert_same(layer(x[:4]), y[:4])
    assert layer.double()(x.double()).dtype is torch.float64
    assert len(calls) == 1
