"""The LSTM in Triton against the equations in float64: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from recollect.base import devices, tree
from recollect.cores import LSTMConfig
from recollect.kernels.triton import tiling
from recollect.kernels.triton.lstm import fused_lstm
from recollect.kernels.triton.tiling import Blocks
from tests.reference.cores import lstm_step
from tests.support.recorded import recorded

ROUNDINGS = ("fp32", "tf32", "bf16")
VALUES = {"fp32": 2e-6, "tf32": 1e-3, "bf16": 2e-2}
"""How far y, h and c may be from float64, as a share of the largest number: 2^-11 and 2^-9 a factor."""
GRADIENTS = {"fp32": 5e-6, "tf32": 3e-3, "bf16": 4e-2}
"""Likewise gradients, in which errors of the forward pass come back."""
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
every_rounding = pytest.mark.parametrize("products", ROUNDINGS)


@pytest.fixture(params=["ahead", "staged", "streamed"])
def kernels(request, fused_on_cpu, monkeypatch):
    """Both ways to hold the weights, whatever their size, and of those on the chip both to read ahead."""
    if request.param != "streamed":
        blocks = Blocks(16, 4, prefetch=request.param == "ahead", stages=2)
        monkeypatch.setattr(tiling, "CHOSEN", {"forward": blocks, "backward": blocks})
    else:
        monkeypatch.setattr(tiling, "RESIDENT", dict.fromkeys(ROUNDINGS, 0))
        blocks = Blocks(16, 4, units=16, depth=16)
        monkeypatch.setattr(tiling, "CHOSEN", {"forward": blocks, "backward": blocks})


def reference(x, h, c, w_ih, w_hh, b_ih, b_hh, first, initial):
    outputs = []
    h0, c0 = initial or (torch.zeros_like(h), torch.zeros_like(c))
    for t in range(x.shape[0]):
        h, c = torch.where(first[t, :, None], h0, h), torch.where(first[t, :, None], c0, c)
        h, c = lstm_step(x[t], h, c, w_ih, w_hh, b_ih, b_hh)
        outputs.append(h)
    return torch.stack(outputs), h, c


def draw(T, B, D, H, learned, chance=0.3, device="cpu"):
    """All inputs but ``first``, which is the second result."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape, scale):
        return (scale * torch.randn(*shape, generator=generator)).to(device)

    weights = [normal(4 * H, D, scale=D**-0.5), normal(4 * H, H, scale=0.6 * H**-0.5)]
    biases = [normal(4 * H, scale=0.3), normal(4 * H, scale=0.3)]
    state = [normal(B, H, scale=0.5), normal(B, H, scale=1.0)]
    initial = [normal(1, H, scale=0.5), normal(1, H, scale=1.0)] if learned else []
    first = (torch.rand(T, B, generator=generator) < chance).to(device)
    return [normal(T, B, D, scale=1.0), *state, *weights, *biases, *initial], first


def run(function, inputs, first):
    """y, h, c, then the gradients of all inputs."""
    inputs = [t.detach().requires_grad_() for t in inputs]
    outputs = function(*inputs[:7], first, tuple(inputs[7:]) or None)
    weights = [torch.sin(torch.arange(t.numel(), device=t.device)).view(t.shape).to(t.dtype) for t in outputs]
    loss = sum((t * weight).sum() for t, weight in zip(outputs, weights))
    return [*outputs, *torch.autograd.grad(loss, inputs)]


def assert_right(inputs, first, products, slack=1.0):
    with devices.rounded(products):
        got = run(fused_lstm.lstm, inputs, first)
    want = run(reference, [t.double() for t in inputs], first)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == torch.float32
        assert a.shape == b.shape
        limit = slack * (VALUES if k < 3 else GRADIENTS)[products]
        error, largest = (a - b).abs().max().item(), b.abs().max().item()
        assert error <= limit * largest + 1e-7, f"result {k} is {error:.1e} off, of {largest:.1e}"


def fused(inputs, first, products):
    """y, h, c of inference."""
    with devices.rounded(products), torch.no_grad():
        return fused_lstm.lstm(*inputs[:7], first, tuple(inputs[7:]) or None)


def scaled(function, times):
    """``function`` with its outputs multiplied by ``times``, which broadcasts over [B, H]."""
    return lambda *given: [t * times.to(t) for t in function(*given)]


def assert_small_gradients_keep_their_digits(inputs, first, products):
    """Float16 ends at 6e-8: gradients of a mean over a million steps are smaller, and differ between rows."""
    scale = torch.tensor([1e-12, 1.0, 1e-6])[:, None]
    with devices.rounded(products):
        got = run(scaled(fused_lstm.lstm, scale), inputs, first)[3]
    want = run(scaled(reference, scale), [t.double() for t in inputs], first)[3]
    for row in range(3):
        limit = GRADIENTS[products] * want[:, row].abs().max().item()
        torch.testing.assert_close(got[:, row].double(), want[:, row], atol=limit, rtol=0)


def assert_huge_gradients_stay(device):
    """Gradients whose reciprocals a GPU takes for 0; infinity is no longer a number, but not 0 either."""
    inputs, first = draw(1, 2, 4, 8, learned=False, chance=0, device=device)
    inputs[2] *= 0.1  # c and w_hh, so that products and sums do not end in infinity
    inputs[4] *= 0.01
    h = inputs[1].requires_grad_()
    double = [t.detach().double() for t in inputs]
    double[1].requires_grad_()
    with devices.rounded("tf32"):
        _, _, c = fused_lstm.lstm(*inputs, first)
    _, _, wanted = reference(*double, first, None)
    (got,) = torch.autograd.grad(c, h, torch.full_like(c, 3e38), retain_graph=True)
    (want,) = torch.autograd.grad(wanted, double[1], torch.full_like(wanted, 3e38))
    limit = GRADIENTS["tf32"] * want.abs().max().item()
    torch.testing.assert_close(got.double(), want, atol=limit, rtol=0)
    (got,) = torch.autograd.grad(c, h, torch.full_like(c, torch.inf))
    assert not got.isfinite().any()


def assert_a_dead_state_leaves_no_trace(inputs, first, products):
    """A reset selects; what it throws away may be NaN, forwards and backwards."""
    first[0] = torch.tensor([True, False, True])
    clean = [t.clone() for t in inputs]
    for state in inputs[1:3]:
        state[0], state[2] = float("nan"), float("inf")
    with devices.rounded(products):
        got, want = (run(fused_lstm.lstm, given, first) for given in (inputs, clean))
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)
    assert not got[4][[0, 2]].any()
    assert not got[5][[0, 2]].any()


def assert_a_split_changes_nothing(inputs, first, products, splits, limits=(1e-6, 1e-6)):
    """Two pieces, or one step after the other, are the whole; so is what keeps nothing.

    ``limits`` of y, and of the state at the end.
    """
    x, *state = inputs[:3]
    whole, *end = fused(inputs, first, products)
    for times in splits:
        now, begin, pieces = state, 0, []
        for time in times:
            piece = slice(begin, time)
            y, *now = fused([x[piece], *now, *inputs[3:]], first[piece], products)
            pieces.append(y)
            begin = time
        torch.testing.assert_close(torch.cat(pieces), whole, atol=limits[0], rtol=1e-5)
        torch.testing.assert_close(now, end, atol=limits[1], rtol=1e-5)
    with devices.rounded(products):
        kept, *_ = fused_lstm.lstm(x.clone().requires_grad_(), *inputs[1:7], first, tuple(inputs[7:]) or None)
    assert torch.equal(kept, whole)


def assert_nothing_is_read(unread, products, H):
    inputs, first = draw(3, 2, 4, H, learned=True)
    with unread(), devices.rounded(products):
        run(fused_lstm.lstm, inputs, first)


@every_rounding
@pytest.mark.parametrize(
    ("T", "B", "D", "H", "learned"),
    [(5, 3, 7, 8, True), (1, 5, 4, 16, False), (2, 17, 3, 1, True), (3, 2, 8, 20, False)],
)
def test_equals_the_equations(T, B, D, H, learned, products, kernels):
    """S002-23: values and all gradients, with random resets."""
    assert_right(*draw(T, B, D, H, learned), products)


def test_more_units_than_one_block(kernels):
    """S002-23."""
    assert_right(*draw(3, 2, 3, 40, learned=True), "fp32")


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_no_resets_and_only_resets(chance, kernels):
    """S002-23."""
    assert_right(*draw(4, 3, 5, 8, learned=True, chance=chance), "fp32")


def test_any_strides(kernels):
    """Inputs need not be contiguous, nor the gradient that comes in."""
    inputs, first = draw(4, 3, 5, 8, learned=True)
    odd = [t.t().contiguous().t() if t.dim() == 2 else t for t in inputs]
    odd[0] = inputs[0].permute(2, 1, 0).contiguous().permute(2, 1, 0)
    assert_right(odd, first.t().contiguous().t(), "fp32")
    x = inputs[0].requires_grad_()
    y, _, _ = fused_lstm.lstm(x, *inputs[1:7], first, tuple(inputs[7:]))
    (got,) = torch.autograd.grad(y.sum(), x)  # an expanded gradient
    double = [t.detach().double() for t in inputs]
    y, _, _ = reference(double[0].requires_grad_(), *double[1:7], first, tuple(double[7:]))
    torch.testing.assert_close(got.double(), *torch.autograd.grad(y.sum(), double[0]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("products", ["fp32", "tf32"])
def test_small_gradients_keep_their_digits(products, kernels):
    assert_small_gradients_keep_their_digits(*draw(5, 3, 4, 8, learned=False), products)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_huge_gradients_stay(kernels):
    assert_huge_gradients_stay("cpu")


def test_autocast_changes_nothing(kernels):
    """Neither forwards nor backwards: the rounding is ours."""
    inputs, first = draw(3, 2, 4, 8, learned=True)
    want = run(fused_lstm.lstm, inputs, first)
    with torch.autocast("cpu", torch.bfloat16):
        got = run(fused_lstm.lstm, inputs, first)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a, b)


@every_rounding
def test_a_dead_state_leaves_no_trace(products, kernels):
    """S002-23."""
    assert_a_dead_state_leaves_no_trace(*draw(4, 3, 5, 8, learned=True), products)


@every_rounding
def test_a_split_changes_nothing(products, kernels):
    """S002-23."""
    assert_a_split_changes_nothing(*draw(6, 3, 5, 8, learned=True), products, ((2, 6), range(1, 7)))


def test_only_what_is_asked_for(kernels):
    """Frozen weights cost no product, and get no gradient."""
    inputs, first = draw(3, 2, 4, 8, learned=False)
    inputs[0].requires_grad_()
    y, _, c = fused_lstm.lstm(*inputs, first)
    y.sum().backward()
    assert inputs[0].grad is not None
    assert all(t.grad is None for t in inputs[1:])
    assert c.requires_grad


def test_nothing_is_read_on_the_host(unread, monkeypatch):
    """All but the kernels themselves, which cannot: a CUDA graph holds the whole of it."""
    monkeypatch.setattr(tiling.Plan, "launch", lambda *args, **flags: None)
    for products in ROUNDINGS:
        for resident in (0, 128):
            monkeypatch.setattr(tiling, "RESIDENT", dict.fromkeys(ROUNDINGS, resident))
            assert_nothing_is_read(unread, products, 8)


@pytest.mark.parametrize(
    "config",
    [
        LSTMConfig(hidden=8),
        LSTMConfig(hidden=8, layers=2, learned_initial_state=True),
        LSTMConfig(hidden=8, layers=2, layer_norm=True),
    ],
    ids=["plain", "learned", "normed"],
)
def test_the_core_takes_the_kernel(config, fused_on_cpu, monkeypatch):
    """S002-23: unroll and steps of the core by this kernel, against those by the others."""
    torch.manual_seed(0)
    core = config.build(5)
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    x, first = torch.randn(4, 3, 5), torch.rand(4, 3) < 0.3
    state = tree.map(lambda leaf: torch.randn(3, *leaf.shape[1:]), core.initial_state(1))

    def both():
        y, end = core.unroll(x, state, first)
        gradients = torch.autograd.grad(
            y.square().sum() + end[1].sum(), list(core.parameters()), allow_unused=True
        )
        steps, carried = [], state
        for t in range(4):
            out, carried = core.step(x[t], carried, first[t])
            steps.append(out)
        return [y, *end, torch.stack(steps), *carried, *(g for g in gradients if g is not None)]

    assert core.steps_by_unroll(x[0])
    calls = []
    monkeypatch.setattr(fused_lstm, "lstm", _counted(fused_lstm.lstm, calls))
    got = both()
    assert len(calls) == 5 * config.layers
    monkeypatch.setattr("recollect.base.triton_support._is_forced", False)
    assert not core.steps_by_unroll(x[0])
    for a, b in zip(got, both(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def _counted(function, calls):
    def wrapped(*args, **kwargs):
        calls.append(function)
        return function(*args, **kwargs)

    return wrapped


# On a GPU ---------------------------------------------------------------------------------------

SIZES = [
    *((37, 1000, 64, H, False, products) for H in (128, 256) for products in ROUNDINGS),
    *((5, 5000, 64, H, True, products) for H in (128, 256) for products in ("tf32", "bf16")),
    (37, 1000, 50, 96, True, "bf16"),
    (37, 1000, 64, 200, True, "tf32"),
    (7, 33, 3, 20, True, "fp32"),
    (1, 1, 3, 1, False, "tf32"),
]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("T", "B", "D", "H", "learned", "products"), SIZES)
def test_gpu_equals_the_equations(T, B, D, H, learned, products):
    """S002-14, S002-23: at real sizes, odd ones too, against float64 on the same GPU."""
    assert_right(*draw(T, B, D, H, learned, chance=0.05, device="cuda"), products, slack=3.0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("H", [128, 256])
@pytest.mark.parametrize("products", ["tf32", "bf16"])
def test_gpu_graph(H, products):
    """S002-14: captured in a CUDA graph, with nothing read on the host, it computes the same."""
    inputs, first = draw(37, 1000, 64, H, learned=False, chance=0.05, device="cuda")

    def work():
        with devices.rounded(products):
            return run(fused_lstm.lstm, inputs, first)

    want = work()
    graph, got = recorded(work, is_silent=True)
    for t in got:
        t.detach().fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(got, want, strict=True):  # in a graph cuBLAS may take another order for its sums
        limit = 0.1 * VALUES[products] * b.abs().max().item()
        torch.testing.assert_close(a, b, atol=limit, rtol=0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("products", ["tf32", "bf16"])
def test_gpu_steps_equal_unroll(products):
    """S002-23: acting and learning are one kernel; only the product with x has other rows.

    That may change its last bit, then the float16 of an h, and with it the next by 2^-11 of a weight.
    """
    inputs, first = draw(16, 1000, 64, 128, learned=False, chance=0.05, device="cuda")
    x, *state = inputs[:3]
    with devices.rounded(products), torch.no_grad():
        whole, *_ = fused_lstm.lstm(*inputs, first)
        for t in range(16):
            y, *state = fused_lstm.lstm(x[t : t + 1], *state, *inputs[3:], first[t : t + 1])
            limit = 2e-4 if products == "tf32" else VALUES["bf16"]
            torch.testing.assert_close(y[0], whole[t], atol=limit, rtol=0)


@pytest.mark.gpu
@needs_gpu
def test_gpu_huge_gradients_stay():
    assert_huge_gradients_stay("cuda")
