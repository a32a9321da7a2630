"""The scans in Triton against those in torch: in the interpreter at tiny sizes, on a GPU at real ones."""

from __future__ import annotations

import pytest
import torch

from recollect.base import triton_support
from recollect.cores import make_core
from recollect.kernels import linear_scan as scans
from recollect.kernels.autograd_node import node
from recollect.kernels.cpu import selective_scan
from tests.support.core_cases import CASES

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
kinds = pytest.mark.parametrize("dtype", [torch.float32, torch.complex64], ids=["real", "complex"])
WIDER = {torch.float32: torch.float64, torch.complex64: torch.complex128}
SCANS = [name for name in CASES if name.split("-")[0] in ("mingru", "minlstm", "lru", "rtu", "ffm", "mamba")]


@pytest.fixture
def fused_scan(fused_on_cpu, monkeypatch):
    """The scan by the kernel, with programs so small that there are several."""
    from recollect.kernels.triton.scan import fused_scan

    monkeypatch.setattr(fused_scan, "BLOCK", 16)
    return lambda *inputs: node(fused_scan.forward, fused_scan.backward, *inputs)[0]


@pytest.fixture
def fused_selective_scan(fused_on_cpu, monkeypatch):
    """The scan by the kernel, with programs and chunks so small that there are several."""
    from recollect.kernels.triton.scan import fused_selective_scan as fused

    monkeypatch.setattr(fused, "CHANNELS", 4)
    monkeypatch.setattr(fused, "CHUNK", 3)
    return lambda *inputs: node(fused.forward, fused.backward, *inputs)


def draw(T, B, dtype, varies, learned, width=(3,), chance=0.3, device="cpu"):
    """a, b, h0, first, initial (or None); all but first want gradients."""
    generator = torch.Generator().manual_seed(T * 10 + B)

    def normal(*shape):
        drawn = torch.randn(*shape, *width, dtype=dtype, generator=generator) * 0.7
        return drawn.to(device).requires_grad_()

    a = normal(T, B) if varies else normal()
    initial = normal(1) if learned else None
    first = (torch.rand(T, B, generator=generator) < chance).to(device)
    return a, normal(T, B), normal(B), first, initial


def wide(inputs):
    """Copies in double precision, which want the gradients that the originals want."""
    return [
        None if t is None else t if t.dtype == torch.bool
        else t.detach().to(WIDER[t.dtype]).requires_grad_(t.requires_grad)
        for t in inputs
    ]  # fmt: skip


def gradients(outputs, inputs):
    """Of a fixed functional of the outputs, by every input that wants one."""
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    weights = [torch.linspace(-1, 2, o.numel(), dtype=o.dtype, device=o.device).view_as(o) for o in outputs]
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    return torch.autograd.grad(outputs, wanted, weights, allow_unused=True, materialize_grads=True)


def assert_close(got, want, tolerance):
    """Every one to ``tolerance`` times its largest number."""
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.to(b.dtype), b, atol=tolerance * (1 + b.abs().max().item()), rtol=0)


# In the interpreter ------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(
    ("T", "B", "width", "chance"),
    [(1, 2, (3,), 0.5), (8, 3, (5,), 0.3), (5, 2, (3, 2), 0.0), (2, 1, (1,), 1.0)],
)
def test_equals_the_scan_in_torch(fused_scan, dtype, learned, varies, T, B, width, chance):
    """S002-23: values and gradients, against double precision."""
    inputs = draw(T, B, dtype, varies, learned, width, chance)
    exact = wide(inputs)
    h, want = fused_scan(*inputs), scans.scan(*exact)
    assert_close([h, *gradients(h, inputs)], [want, *gradients(want, exact)], 1e-6)
    with torch.no_grad():
        assert torch.equal(fused_scan(*inputs), h)


@kinds
@pytest.mark.parametrize(("bad", "wall"), [(float("nan"), 0), (float("inf"), 4), (float("nan"), 5)])
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.filterwarnings("ignore:invalid value")
def test_nothing_passes_a_wall(fused_scan, dtype, bad, wall, learned):
    """S004-3: NaN and infinity before a reset reach no value and no gradient behind it, exactly."""
    clean = draw(6, 3, dtype, True, learned, chance=0)
    first = clean[3]
    first[wall, 1] = True
    a, b, h0 = (t.detach().clone() for t in clean[:3])
    h0[1] = bad
    a[:wall, 1], b[:wall, 1] = bad, bad
    spoilt = (*(t.requires_grad_() for t in (a, b, h0)), first, clean[4])
    h, want = fused_scan(*spoilt), fused_scan(*clean)
    assert torch.equal(h[wall:, 1], want[wall:, 1])
    assert torch.equal(h[:, [0, 2]], want[:, [0, 2]])
    assert not h[:wall, 1].isfinite().any()
    got = gradients((h[wall:, 1], h[:, [0, 2]]), spoilt)
    expected = gradients((want[wall:, 1], want[:, [0, 2]]), clean)
    for d, e in zip(got[:2], expected[:2]):  # of a and b
        assert torch.equal(d[wall:], e[wall:])
        assert torch.equal(d[:, [0, 2]], e[:, [0, 2]])
    assert torch.equal(got[2][[0, 2]], expected[2][[0, 2]])
    if learned:
        assert torch.equal(got[3], expected[3])


def test_a_constant_factor_ignores_what_a_reset_threw_away(fused_scan):
    """S004-3: its gradient is a sum over all steps and rows, a NaN state before step 0 among them."""
    a, b, h0, first, _ = draw(6, 3, torch.float32, False, False, chance=0)
    first[0, 1] = True
    poisoned = h0.detach().index_fill(0, torch.tensor([1]), float("nan"))
    (got,) = torch.autograd.grad(fused_scan(a, b, poisoned, first, None).sum(), a)
    (want,) = torch.autograd.grad(fused_scan(a, b, h0, first, None).sum(), a)
    assert torch.equal(got, want)


def test_odd_layouts_and_single_gradients(fused_scan):
    """Transposed, expanded and conjugated views; each input alone gives what it gives among the others."""
    inputs = draw(6, 2, torch.complex64, True, True)
    h = fused_scan(*inputs)
    everything = gradients(h, inputs)
    odd = [
        inputs[0].detach().conj().resolve_conj().conj(),
        inputs[1].detach().permute(2, 1, 0).contiguous().permute(2, 1, 0),
        inputs[2].detach(),
        inputs[3].T.contiguous().T,
        inputs[4].detach(),
    ]
    assert torch.equal(fused_scan(*odd), h)
    for place, want in zip((0, 1, 2, 4), everything, strict=True):
        alone = [t.detach() for t in inputs]
        alone[place].requires_grad_()
        (got,) = gradients(fused_scan(*alone), alone)
        assert torch.equal(got, want)
    (got,) = torch.autograd.grad(fused_scan(*inputs).real.sum(), inputs[1])  # an expanded gradient
    (want,) = torch.autograd.grad(node(scans._forward, scans._backward, *inputs)[0].real.sum(), inputs[1])
    assert_close([got], [want], 1e-6)


def draw_selective(T, R, inner, N, chance=0.3, device="cpu"):
    """x, delta, z, B, C, A, D, h, first; all but first want gradients."""
    generator = torch.Generator().manual_seed(T * 10 + R)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(device).requires_grad_()

    A = -torch.rand(N, inner, generator=generator).to(device) - 0.05
    shapes = ((T, R, inner), (T, R, inner), (T, R, inner), (T, R, N), (T, R, N))
    sequences = [normal(*shape) for shape in shapes]
    first = (torch.rand(T, R, generator=generator) < chance).to(device)
    return [*sequences, A.requires_grad_(), normal(inner), normal(R, N, inner), first]


@pytest.mark.parametrize(
    ("T", "R", "inner", "N", "chance"),
    [(1, 2, 3, 2, 0.5), (7, 2, 6, 3, 0.3), (6, 1, 4, 1, 1.0), (4, 2, 9, 4, 0.0)],
)
def test_the_selective_scan_equals_that_in_torch(fused_selective_scan, T, R, inner, N, chance):
    """S002-23: values and gradients, against double precision, over several chunks and programs of a row."""
    inputs = draw_selective(T, R, inner, N, chance)
    exact = wide(inputs)
    got, want = fused_selective_scan(*inputs), selective_scan.selective_scan(*exact)
    assert_close([*got, *gradients(got, inputs)], [*want, *gradients(want, exact)], 1e-6)
    for part in (0, 1):  # one of the results unused
        assert_close(gradients(fused_selective_scan(*inputs)[part], inputs),
                     gradients(selective_scan.selective_scan(*exact)[part], exact), 1e-6)  # fmt: skip
    with torch.no_grad():
        y, h = fused_selective_scan(*inputs)
    assert torch.equal(y, got[0])
    assert torch.equal(h, got[1])


def test_nothing_passes_a_wall_of_the_selective_scan(fused_selective_scan):
    """S004-3: NaN before a reset reaches no value and no gradient behind it, nor another row."""
    clean = draw_selective(6, 3, 4, 2, chance=0)
    first = clean[-1]
    first[4, 1] = True
    spoilt = [t.detach().clone() for t in clean[:-1]]
    for sequence in spoilt[:5]:
        sequence[:4, 1] = float("nan")
    spoilt[7][1] = float("nan")
    spoilt = [*(t.requires_grad_() for t in spoilt), first]
    results = []
    for inputs in (spoilt, clean):
        y, h = fused_selective_scan(*inputs)
        dx, ddelta, dz, dB, dC, _, _, dh = gradients((y[4:], y[:, [0, 2]], h), inputs)
        sequences = [part for t in (y, dx, ddelta, dz, dB, dC) for part in (t[4:], t[:, [0, 2]])]
        results.append([*sequences, h, dh[[0, 2]]])
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


def test_small_step_sizes_are_exact(fused_selective_scan):
    """S002-23: softplus(delta) to its last bits, from e^-30 to 30."""
    delta = torch.linspace(-30, 30, 61).view(1, 1, -1)
    one = torch.ones_like(delta)
    B, D, h = torch.ones(1, 1, 1), torch.zeros(61), torch.zeros(1, 1, 61)
    first = torch.zeros(1, 1, dtype=torch.bool)
    _, h = fused_selective_scan(one, delta, one, B, B, -one[0], D, h, first)
    want = torch.nn.functional.softplus(delta.double(), threshold=50)
    torch.testing.assert_close(h.double(), want, rtol=3e-7, atol=0)


@pytest.mark.parametrize("name", SCANS)
def test_cores_take_them(fused_on_cpu, unread, name, monkeypatch):
    """S002-4: unroll equals step repeated in float32, by these kernels and without a read."""
    from recollect.kernels.triton.scan import fused_scan, fused_selective_scan

    calls = []
    for module in (fused_scan, fused_selective_scan):
        monkeypatch.setattr(module, "forward", watched(module.forward, calls))
    torch.manual_seed(0)
    core = make_core(CASES[name], 3)
    x, first = torch.randn(6, 2, 3), torch.rand(6, 2) < 0.3
    with unread(), torch.no_grad():
        y, _ = core.unroll(x, core.initial_state(2), first)
    assert calls
    state = core.initial_state(2)
    for t in range(6):
        out, state = core.step(x[t], state, first[t])
        torch.testing.assert_close(y[t], out, atol=1e-5, rtol=1e-5)


def watched(fn, calls):
    """``fn``, which leaves its name in ``calls``."""

    def run(*args, **kwargs):
        calls.append(fn.__name__)
        return fn(*args, **kwargs)

    return run


# On a GPU ----------------------------------------------------------------------------------------


@pytest.mark.gpu
@on_gpu
@kinds
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("varies", [False, True])
@pytest.mark.parametrize(("T", "B", "width"), [(64, 512, (128,)), (61, 33, (7, 3))])
def test_on_a_gpu(dtype, learned, varies, T, B, width):
    """S002-23: at real sizes against the torch path in double precision, and twice the same bits."""
    inputs = draw(T, B, dtype, varies, learned, width, 0.05, "cuda")
    if not varies:  # a factor above 1 would grow over 64 steps
        inputs = (inputs[0].detach().mul(0.4).requires_grad_(), *inputs[1:])
    assert triton_support.suits(torch.view_as_real(inputs[1]) if inputs[1].is_complex() else inputs[1])
    exact = wide(inputs)
    h, want = scans.scan(*inputs), scans.scan(*exact)
    got = gradients(h, inputs)
    assert_close([h, *got], [want, *gradients(want, exact)], 1e-5)
    for a, b in zip(gradients(scans.scan(*inputs), inputs), got, strict=True):
        assert torch.equal(a, b)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(("T", "R", "inner", "N"), [(64, 512, 128, 16), (13, 5, 70, 6), (20, 64, 256, 32)])
def test_the_selective_scan_on_a_gpu(T, R, inner, N):
    """S002-23: at real sizes against the torch path in double precision, and twice the same bits."""
    inputs = draw_selective(T, R, inner, N, 0.05, "cuda")
    assert triton_support.suits(inputs[0])
    exact = wide(inputs)
    outputs, want = selective_scan.selective_scan(*inputs), selective_scan.selective_scan(*exact)
    got = gradients(outputs, inputs)
    assert_close([*outputs, *got], [*want, *gradients(want, exact)], 1e-5)
    for a, b in zip(gradients(selective_scan.selective_scan(*inputs), inputs), got, strict=True):
        assert torch.equal(a, b)
