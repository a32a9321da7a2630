"""Our Adam is torch's, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recollect.base import devices
from recollect.learning.optimiser import Adam

SHAPES = ((17, 3), (64,), (), (1, 40))
MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def parameters(dtype: torch.dtype) -> list[nn.Parameter]:
    """The same weights in every call."""
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def groups(params: list[nn.Parameter]) -> list[dict[str, Any]]:
    """Two groups of different learning rates."""
    return [
        {"params": params[:3], "lr": 1e-2, "base_lr": 1e-2, "rate": 1e-2},
        {"params": params[3:], "lr": 3e-2, "base_lr": 3e-2, "rate": 3e-2},
    ]


def set_gradients(step: int, *copies: list[nn.Parameter]) -> None:
    """The same random gradients for all copies; none for the second parameter in every third step."""
    generator = torch.Generator().manual_seed(step)
    for number, same in enumerate(zip(*copies)):
        gradient = torch.randn(same[0].shape, generator=generator) * 10.0 ** (step % 4 - 2)
        for parameter in same:
            is_missing = number == 1 and step % 3 == 0
            parameter.grad = None if is_missing else gradient.to(parameter.dtype, copy=True)


def torchs_adam(params: list[nn.Parameter]) -> torch.optim.Adam:
    return torch.optim.Adam(groups(params), betas=(0.9, 0.999), eps=1e-5, fused=True)


def assert_same(ours: Adam, own: list[nn.Parameter], theirs: torch.optim.Adam, other: list[nn.Parameter]):
    for one, two in zip(own, other):
        assert torch.equal(one, two), "weights"
        for name in MOMENTS:
            mine, wanted = ours.state[one][name], theirs.state[two][name]
            assert mine.dtype == wanted.dtype
            assert torch.equal(mine, wanted), name


def every_step_is_torchs(dtype: torch.dtype = torch.float32) -> None:
    """50 steps, with changing learning rates, a parameter that often has no gradient, and tiny gradients."""
    own, other = parameters(dtype), parameters(dtype)
    ours, theirs = Adam(groups(own), own), torchs_adam(other)
    for step in range(1, 51):
        set_gradients(step, own, other)
        ours.set_rates(1 / step)
        for group, base in zip(theirs.param_groups, (1e-2, 3e-2)):
            group["lr"] = base * (1 / step)
        ours.step()
        theirs.step()
        assert_same(ours, own, theirs, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_step_is_torchs(dtype: torch.dtype):
    """Weights and moments have the bits of ``torch.optim.Adam(fused=True)``."""
    every_step_is_torchs(dtype)


def skipped_and_divided_steps_are_torchs() -> None:
    """With torch's ``grad_scale`` and ``found_inf``."""
    own, other = parameters(torch.float32), parameters(torch.float32)
    ours, theirs = Adam(groups(own), own), torchs_adam(other)
    for step in range(1, 13):
        set_gradients(step, own, other)
        skip, norm = torch.tensor(float(step % 4 == 0)), ours.norm()
        before = [parameter.detach().clone() for parameter in own]
        ours.clipped_step(norm, 0.5, skip=skip)
        theirs.grad_scale, theirs.found_inf = ((norm + 1e-6) / 0.5).clamp(min=1), skip
        theirs.step()
        assert_same(ours, own, theirs, other)
        assert all(map(torch.equal, before, own)) == bool(skip)


def test_skipped_and_divided_steps_are_torchs():
    """A flag on the device skips a step, its count included, and the kernel clips."""
    skipped_and_divided_steps_are_torchs()


def test_parameters_of_two_dtypes():
    """A network may hold weights of two dtypes; the kernel takes one at a time."""
    own = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3, dtype=torch.float64))]
    other = [nn.Parameter(parameter.detach().clone()) for parameter in own]
    ours = Adam([{"params": own, "lr": 0.1, "base_lr": 0.1, "rate": 0.1}], own)
    theirs = torch.optim.Adam(other, lr=0.1, eps=1e-5, fused=True)
    for parameter in (*own, *other):
        parameter.grad = torch.full_like(parameter, 0.5)
    ours.step()
    theirs.step()
    assert_same(ours, own, theirs, other)


@pytest.mark.parametrize("limit", [0.1, 1e6])
def test_clipping_is_torchs(limit: float):
    """S001-12: the gradient after clipping is that of ``clip_grad_norm_``, up to rounding."""
    own, other = parameters(torch.float32), parameters(torch.float32)
    set_gradients(1, own, other)
    ours = Adam(groups(own), own)
    norm = ours.norm()
    ours.clipped_step(norm, limit)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(other, limit))
    for one, two in zip(own, other):
        torch.testing.assert_close(one.grad, two.grad)


def test_rates_are_tensors_for_graphs(monkeypatch: pytest.MonkeyPatch):
    """A captured step reads the learning rate from the same tensor after every change."""
    monkeypatch.setattr(devices, "synchronises", lambda _: True)
    own, other = parameters(torch.float32), parameters(torch.float32)
    ours, theirs = Adam(groups(own), own), torchs_adam(other)
    rates: list[Tensor] = [group["lr"] for group in ours.param_groups]
    ours.set_rates(0.5)
    assert [rate.item() for rate in rates] == pytest.approx([5e-3, 1.5e-2])
    assert all(group["lr"] is rate for group, rate in zip(ours.param_groups, rates))
    for group, base in zip(theirs.param_groups, (1e-2, 3e-2)):
        group["lr"] = torch.tensor(base * 0.5)
    set_gradients(1, own, other)
    ours.step()
    theirs.step()
    for one, two in zip(own, other):
        torch.testing.assert_close(one, two)
