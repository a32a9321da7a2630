"""The scan against a plain loop with plain autograd, both ways through it."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.kernels import linear_scan as module
from recollect.kernels.linear_scan import scan

torch.set_num_threads(1)

ways = pytest.mark.parametrize("in_blocks", [False, True], ids=["steps", "blocks"])
kinds = pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=["real", "complex"])


@pytest.fixture(autouse=True)
def way(request, monkeypatch):
    """The way that the test is about, whatever suits this machine."""
    chosen = request.node.callspec.params["in_blocks"]
    monkeypatch.setattr(module, "suits_blocks", lambda b: chosen)


def loop(a, b, h0, first, initial=None):
    """The definition."""
    h, out = h0, []
    initial = torch.zeros_like(h0[:1]) if initial is None else initial
    for t in range(b.shape[0]):
        mask = first[t].view(-1, *(1,) * (b.dim() - 2))
        h = (a[t] if a.dim() == b.dim() else a) * torch.where(mask, initial, h) + b[t]
        out.append(h)
    return torch.stack(out)


def draw(T, B, dtype, varies, learned, seed, width=(3,), chance=0.3):
    """a, b, h0 and perhaps initial, which want gradients; first."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, *width, dtype=dtype, generator=generator).requires_grad_()

    a = normal(T, B) if varies else normal()
    initial = normal(1) if learned else None
    return a, normal(T, B), normal(B), torch.rand(T, B, generator=generator) < chance, initial


def gradients(h, inputs):
    """Of a fixed random functional of h, by every input that wants one."""
    weight = torch.randn(h.shape, dtype=h.dtype, generator=torch.Generator().manual_seed(1))
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    return torch.autograd.grad(h, wanted, weight, allow_unused=True, materialize_grads=True)


def total(h):
    """A real number that depends on all of h."""
    return (torch.view_as_real(h) if h.is_complex() else h).sum()


@ways
@kinds
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("varies", [False, True])
@settings(derandomize=True)
@given(
    T=st.integers(1, 30),
    B=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    chance=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_equals_the_loop(in_blocks, dtype, varies, learned, T, B, seed, chance):
    """S002-23: values and gradients, for every pattern of resets."""
    inputs = draw(T, B, dtype, varies, learned, seed, chance=chance)
    ours, truth = scan(*inputs), loop(*inputs)
    torch.testing.assert_close(ours, truth, atol=1e-10, rtol=1e-10)
    for got, want in zip(gradients(ours, inputs), gradients(truth, inputs), strict=True):
        torch.testing.assert_close(got, want, atol=1e-9, rtol=1e-9)


@ways
@kinds
def test_more_than_one_dimension(in_blocks, dtype):
    """A state may be a matrix a row."""
    for varies in (False, True):
        inputs = draw(10, 2, dtype, varies, True, 3, width=(2, 3))
        ours, truth = scan(*inputs), loop(*inputs)
        torch.testing.assert_close(ours, truth, atol=1e-12, rtol=1e-12)
        for got, want in zip(gradients(ours, inputs), gradients(truth, inputs), strict=True):
            torch.testing.assert_close(got, want, atol=1e-11, rtol=1e-11)


@ways
@kinds
def test_finite_differences(in_blocks, dtype):
    """So that no mistake can hide in two analytic gradients."""
    for varies in (False, True):
        a, b, h0, first, initial = draw(6, 2, dtype, varies, True, 5)
        assert torch.autograd.gradcheck(
            lambda a, b, h0, initial, first=first: scan(a, b, h0, first, initial), (a, b, h0, initial)
        )


@ways
@kinds
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("wall", [0, 1, 4, 5, 8])
def test_nothing_passes_a_wall(in_blocks, dtype, bad, wall):
    """S004-3: NaN and infinity before a reset reach no value and no gradient behind it, exactly."""
    T = 9
    clean = draw(T, 3, dtype, True, False, 7, chance=0)
    first = clean[3]
    first[wall, 1] = True
    a, b, h0 = (t.detach().clone() for t in clean[:3])
    h0[1] = bad
    a[:wall, 1], b[:wall, 1] = bad, bad
    a, b, h0 = (t.requires_grad_() for t in (a, b, h0))
    h, want = scan(a, b, h0, first), scan(*clean)
    assert torch.equal(h[wall:, 1], want[wall:, 1])
    assert torch.equal(h[:, [0, 2]], want[:, [0, 2]])
    assert not h[:wall, 1].isfinite().any()

    da, db, dh0 = torch.autograd.grad(total(h[wall:, 1]), (a, b, h0))
    want_da, want_db, _ = torch.autograd.grad(total(want[wall:, 1]), clean[:3])
    assert torch.equal(da[wall:], want_da[wall:])
    assert torch.equal(db[wall:], want_db[wall:])
    for gradient in (da[:wall, [0, 2]], db[:wall, [0, 2]], dh0[[0, 2]]):
        assert not gradient.any()
    if wall == 0:
        assert not dh0.any()


@ways
def test_a_constant_factor_ignores_what_a_reset_threw_away(in_blocks):
    """S004-3: its gradient is a sum over all steps and rows, a NaN state before step 0 among them."""
    a, b, h0, first, _ = draw(6, 3, torch.float64, False, False, 2, chance=0)
    first[0, 1] = True
    poisoned = h0.detach().index_fill(0, torch.tensor([1]), float("nan"))
    (got,) = torch.autograd.grad(scan(a, b, poisoned, first).sum(), a)
    (want,) = torch.autograd.grad(scan(a, b, h0, first).sum(), a)
    assert torch.equal(got, want)


@ways
@pytest.mark.parametrize("decay", [1e-3, 0.3, 0.999])
def test_precision_of_long_sequences(in_blocks, decay):
    """S002-23: products of factors underflow, results do not: float32 stays at its own rounding."""
    generator = torch.Generator().manual_seed(0)
    a = decay * torch.rand(1000, 2, 4, generator=generator, dtype=torch.float64)
    b = torch.randn(1000, 2, 4, generator=generator, dtype=torch.float64)
    h0, first = torch.randn(2, 4, dtype=torch.float64), torch.zeros(1000, 2, dtype=torch.bool)
    single = [t.float().requires_grad_() for t in (a, b, h0)]
    double = [t.detach().double().requires_grad_() for t in single]
    h, want = scan(*single, first), scan(*double, first)
    torch.testing.assert_close(h.double(), want, atol=1e-5, rtol=1e-5)
    for got, exact in zip(gradients(h, single), gradients(want, double), strict=True):
        assert got.isfinite().all()
        assert exact.isfinite().all()


@ways
def test_without_gradients(in_blocks):
    """Nothing is kept under no_grad, nor where nobody wants a gradient; inputs stay as they are."""
    inputs = draw(7, 2, torch.float64, True, True, 9)
    copies = [t.detach().clone() for t in inputs]
    with torch.no_grad():
        h = scan(*inputs)
    assert not h.requires_grad
    assert not scan(*copies).requires_grad
    torch.testing.assert_close(h, scan(*inputs), atol=0, rtol=0)
    for t, copy in zip(inputs, copies, strict=True):
        assert torch.equal(t, copy)


@ways
def test_gradient_only_of_what_wants_one(in_blocks):
    """Each alone gives what it gives among the others."""
    inputs = draw(7, 2, torch.float64, True, True, 11)
    everything = gradients(scan(*inputs), inputs)
    tensors = [0, 1, 2, 4]
    for place, want in zip(tensors, everything, strict=True):
        alone = [t.detach() for t in inputs]
        alone[place].requires_grad_()
        (got,) = gradients(scan(*alone), alone)
        torch.testing.assert_close(got, want, atol=1e-14, rtol=1e-14)
