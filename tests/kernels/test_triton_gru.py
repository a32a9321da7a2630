"""The GRU in Triton against plain steps in float64, in the interpreter and on a GPU."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch

from recollect.base import devices
from recollect.cores import make_core
from tests.reference.cores import REFERENCE, gru_step
from tests.support.core_cases import CASES
from tests.support.recorded import recorded

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
GRUS = [name for name in CASES if name.split("-")[0] == "gru"]

IN_INTERPRETER = {"fp32": 5e-6, "tf32": 2e-3, "bf16": 3e-2}
"""By rounding: the norm of an error over that of the truth. The interpreter cuts bits off to make bf16 and
knows no TF32 but in weights that are rounded outside the kernel."""
ON_GPU = {"fp32": 3e-5, "tf32": 3e-3, "bf16": 2e-2}
every_rounding = pytest.mark.parametrize("products", list(ON_GPU))


def draw(T, B, H, D, learned=False, device="cpu", chance=0.3):
    """x, h, the weights, first, initial (or None); all but first want gradients."""
    generator = torch.Generator().manual_seed(T * 1000 + B * 10 + H)

    def normal(*shape, scale=1.0):
        drawn = torch.randn(*shape, generator=generator) * scale
        return drawn.to(device).requires_grad_()

    scale = (H + 1) ** -0.5
    inputs = [normal(T, B, D), normal(B, H), normal(3 * H, D, scale=(D + 1) ** -0.5)]
    inputs += [normal(3 * H, H, scale=scale), normal(3 * H, scale=0.5), normal(3 * H, scale=0.5)]
    first = (torch.rand(T, B, generator=generator) < chance).to(device)
    return [*inputs, first, normal(1, H) if learned else None]


def truth(x, h, w_ih, w_hh, b_ih, b_hh, first, initial):
    """y, h by one step after the other."""
    start = torch.zeros_like(h[:1]) if initial is None else initial
    y = []
    for t in range(x.shape[0]):
        h = gru_step(x[t], torch.where(first[t][:, None], start, h), w_ih, w_hh, b_ih, b_hh)
        y.append(h)
    return torch.stack(y), h


def wide(inputs):
    """Copies in float64, which want the gradients that the originals want."""
    return [
        t if t is None or t.dtype == torch.bool else t.detach().double().requires_grad_(t.requires_grad)
        for t in inputs
    ]


def gradients(outputs, inputs):
    """Of a fixed functional of the outputs, by every input that wants one."""
    weights = [torch.linspace(-1, 2, o.numel(), dtype=o.dtype, device=o.device).view_as(o) for o in outputs]
    wanted = [t for t in inputs if t is not None and t.requires_grad]
    return torch.autograd.grad(outputs, wanted, weights, allow_unused=True, materialize_grads=True)


def assert_close(got, want, tolerance):
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        assert a.dtype == torch.float32
        assert (a - b).norm() <= tolerance * (b.norm() + 1e-3), f"{(a - b).norm() / b.norm()} of {a.shape}"


def assert_right(gru, inputs, tolerance):
    """Values and all gradients."""
    got, want = gru(*inputs), truth(*(copies := wide(inputs)))
    assert_close(got, want, tolerance)
    assert_close(gradients(got, inputs), gradients(want, copies), tolerance)


def assert_huge_numbers_stay(gru, device):
    """Gradients whose reciprocals a GPU takes for 0, and an m beyond float16, where tanh is 1."""
    inputs = draw(2, 3, 8, 4, device=device, chance=0)
    with torch.no_grad():
        inputs[3] *= 0.01  # w_hh, so that sums do not end in infinity
        inputs[5][-1] = 1e6  # of m
    with devices.rounded("tf32"):
        _, h = gru(*inputs)
    copies = wide(inputs)
    _, want = truth(*copies)
    assert_close((h,), (want,), ON_GPU["tf32"])
    found = torch.autograd.grad(h, inputs[1], torch.full_like(h, 1e38), retain_graph=True)
    wanted = torch.autograd.grad(want, copies[1], torch.full_like(want, 1e38))
    assert_close([t * 1e-38 for t in found], [t * 1e-38 for t in wanted], ON_GPU["tf32"])
    (found,) = torch.autograd.grad(h, inputs[1], torch.full_like(h, torch.inf))
    assert not found.isfinite().any()


def assert_inference_gives_the_same(gru, inputs):
    y, h = gru(*inputs)
    with torch.no_grad():
        got = gru(*inputs)
    assert torch.equal(got[0], y)
    assert torch.equal(got[1], h)
    assert torch.equal(h, y[-1])


def assert_any_split_gives_the_same(gru, inputs, cuts, tolerances=(1e-6, 1e-5)):
    """As the whole, values and gradients within ``tolerances``."""
    x, h, *weights, first, initial = inputs
    whole = gru(*inputs)
    wanted = gradients(whole, inputs)
    for cut in cuts:
        y1, between = gru(x[:cut], h, *weights, first[:cut], initial)
        y2, end = gru(x[cut:], between, *weights, first[cut:], initial)
        parts = torch.cat((y1, y2)), end
        assert_close(parts, whole, tolerances[0])
        assert_close(gradients(parts, inputs), wanted, tolerances[1])


def assert_a_reset_throws_everything_away(gru, inputs):
    """NaN that nobody continues goes nowhere, forwards or backwards."""
    h, first = inputs[1], inputs[6]
    first[0] = torch.tensor([True, True, False, False])
    with torch.no_grad():
        h[:2] = torch.nan
    got = gru(*inputs)
    found = gradients(got, inputs)
    assert all(t.isfinite().all() for t in (*got, *found))
    assert (found[1][:2] == 0).all()
    with torch.no_grad():
        h[:2] = 3.0
    assert_close(found, gradients(gru(*inputs), inputs), 1e-6)


def assert_nothing_comes_back_through_a_reset(gru, inputs):
    """Not even NaN, of an episode that begins with one: the last step here."""
    x, first = inputs[0], inputs[6]
    first[:-1], first[-1] = False, True
    with torch.no_grad():
        x[-1, 0] = torch.nan
    y, h = gru(*inputs)
    dx, dh, *_ = gradients((y, h), inputs)
    assert y[-1, 0].isnan().all()
    assert y[:-1].isfinite().all()
    assert dx[:-1].isfinite().all()
    assert dh.isfinite().all()
    assert y[-1, 1:].isfinite().all()
    assert dx[-1, 1:].isfinite().all()


def assert_small_gradients_keep_their_digits(gru, inputs, products):
    """Float16 ends at 6e-8: gradients of a mean over a million steps are smaller, and differ between rows."""
    scale = torch.tensor([1e-12, 1.0, 1e-6])[:, None]
    with devices.rounded(products):
        y, h = gru(*inputs)
    copies = wide(inputs)
    want_y, want_h = truth(*copies)
    got, *_ = gradients((y * scale, h * scale), inputs)
    want, *_ = gradients((want_y * scale.double(), want_h * scale.double()), copies)
    for row in range(3):
        assert (got[:, row] - want[:, row]).norm() <= IN_INTERPRETER[products] * want[:, row].norm()


def assert_some_gradients_of_one_output(gru, inputs, output, wanted):
    """Only those that are wanted."""
    inputs = [t.detach().requires_grad_(k in wanted) if k != 6 else t for k, t in enumerate(inputs)]
    got = gradients(gru(*inputs)[output : output + 1], inputs)
    copies = wide(inputs)
    assert_close(got, gradients(truth(*copies)[output : output + 1], copies), IN_INTERPRETER["fp32"])


# In the interpreter ------------------------------------------------------------------------------


@pytest.fixture(params=["ahead", "staged", "streamed"])
def fused_gru(request, fused_on_cpu, monkeypatch):
    """The module, with blocks so small that there are several."""
    from recollect.kernels.triton import tiling
    from recollect.kernels.triton.gru import fused_gru

    small = tiling.Blocks(16, 4, prefetch=request.param == "ahead", units=16, depth=16, stages=2)
    monkeypatch.setattr(tiling, "CHOSEN", {"forward": small, "backward": small})
    if request.param == "streamed":
        monkeypatch.setattr(tiling, "RESIDENT", dict.fromkeys(ON_GPU, 0))
    return fused_gru


@pytest.mark.parametrize(
    ("T", "B", "H", "D", "learned"), [(6, 5, 8, 3, False), (4, 3, 1, 1, True), (1, 2, 20, 4, True)]
)
@every_rounding
def test_equals_the_steps(products, T, B, H, D, learned, fused_gru):
    with devices.rounded(products):
        assert_right(fused_gru.gru, draw(T, B, H, D, learned), IN_INTERPRETER[products])


def test_many_rows_and_units(fused_gru):
    """More than one program, more than one block of units, none of them full."""
    assert_right(fused_gru.gru, draw(3, 18, 40, 5, True), IN_INTERPRETER["fp32"])


def test_inference_gives_the_same(fused_gru):
    assert_inference_gives_the_same(fused_gru.gru, draw(5, 3, 16, 4, True))


def test_any_split_gives_the_same(fused_gru):
    assert_any_split_gives_the_same(fused_gru.gru, draw(6, 3, 8, 4, True), (1, 4))


def test_a_reset_throws_everything_away(fused_gru):
    assert_a_reset_throws_everything_away(fused_gru.gru, draw(3, 4, 8, 3))


def test_nothing_comes_back_through_a_reset(fused_gru):
    assert_nothing_comes_back_through_a_reset(fused_gru.gru, draw(3, 4, 8, 3))


@pytest.mark.parametrize("products", ["fp32", "tf32"])
def test_small_gradients_keep_their_digits(products, fused_gru):
    assert_small_gradients_keep_their_digits(fused_gru.gru, draw(5, 3, 8, 4), products)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:All-NaN slice")
def test_huge_numbers_stay(fused_gru):
    assert_huge_numbers_stay(fused_gru.gru, "cpu")


def test_factors_keep_nan(fused_gru):
    """Also the NaN that a GPU makes, all ones, which a rounding to the nearest carries over into 0."""
    from recollect.kernels.triton.tiling import nearest

    numbers = torch.tensor([0x7FFFFFFF, 0x7F800000, 0x3F801000, 0x3F800FFF], dtype=torch.int32)
    got = nearest(numbers.view(torch.float32), "tf32")
    assert got[0].isnan()
    assert got[1:].tolist() == [float("inf"), 1 + 2**-10, 1.0]


def test_what_programs_share():
    """Half of the registers for each of two."""
    from recollect.kernels.triton.tiling import Blocks

    assert Blocks(16, 8).options == {"num_warps": 8}
    assert Blocks(16, 8, together=2).options == {"num_warps": 8, "maxnreg": 128}


def test_strange_strides(fused_gru):
    x, h, w_ih, w_hh, b_ih, b_hh, first, initial = draw(4, 5, 8, 3, True)
    strange = [x.transpose(0, 1).contiguous().transpose(0, 1), h.t().contiguous().t()]
    strange += [w.t().contiguous().t() for w in (w_ih, w_hh)]
    strange += [torch.stack((b, b), 1)[:, 1] for b in (b_ih, b_hh)]
    strange += [first.t().contiguous().t(), initial]
    strange = [t.detach().requires_grad_() if t.is_floating_point() else t for t in strange]
    assert not strange[0].is_contiguous()
    assert not strange[4].is_contiguous()
    assert_right(fused_gru.gru, strange, IN_INTERPRETER["fp32"])


@pytest.mark.parametrize("wanted", [(0,), (3, 4), (1, 7)])
@pytest.mark.parametrize("output", [0, 1])
def test_some_gradients_of_one_output(output, wanted, fused_gru):
    assert_some_gradients_of_one_output(fused_gru.gru, draw(3, 2, 8, 3, True), output, wanted)


@pytest.mark.parametrize("name", GRUS)
def test_the_core_uses_it(name, fused_gru, monkeypatch):
    """Layers, norms and learned states; and steps are unrolls of one step."""
    torch.manual_seed(0)
    core: Any = make_core(CASES[name], 3)
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    calls = []
    gru = fused_gru.gru
    monkeypatch.setattr(fused_gru, "gru", lambda *args, **named: calls.append(1) or gru(*args, **named))
    x, first = torch.randn(4, 2, 3), torch.rand(4, 2) < 0.3
    state = torch.randn_like(core.initial_state(2))
    y, end = core.unroll(x, state, first)
    layers = len(calls)
    assert layers == core.config.layers
    found = torch.autograd.grad(y.square().sum() + end.sum(), list(core.parameters()), allow_unused=True)
    outs, carried = [], state
    for t in range(4):
        out, carried = core.step(x[t], carried, first[t])
        outs.append(out)
    assert len(calls) == 5 * layers
    assert_close((torch.stack(outs), carried), (y, end), 1e-6)
    core = core.double()
    want_y, want_end = cast(Any, REFERENCE[type(core)])(core, x.double(), state.double(), first)
    assert_close((y, end), (want_y, want_end), 1e-5)
    loss = want_y.square().sum() + want_end.sum()
    want = torch.autograd.grad(loss, list(core.parameters()), allow_unused=True)
    assert_close([t for t in found if t is not None], [t for t in want if t is not None], 1e-5)


def test_whom_it_does_not_suit(fused_on_cpu):
    from recollect.kernels.triton import tiling
    from recollect.kernels.triton.gru import fused_gru

    assert fused_gru.suits(torch.zeros(2, 3, 4), 8)
    assert not fused_gru.suits(torch.zeros(2, 0, 4), 8)
    assert not fused_gru.suits(torch.zeros(2, 3, 4, dtype=torch.float64), 8)
    assert not fused_gru.suits(torch.zeros(2, 3, 4), tiling.MAX_HIDDEN + 1)


# On a GPU ----------------------------------------------------------------------------------------


@pytest.fixture
def gru():
    pytest.importorskip("triton")
    from recollect.kernels.triton.gru import fused_gru

    return fused_gru.gru


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    ("T", "B", "H", "D", "learned"),
    [
        (37, 1000, 96, 40, True),
        (37, 5000, 128, 128, False),
        (3, 2500, 64, 17, True),
        (2, 1, 5, 1, True),
        (37, 1000, 200, 33, True),
        (9, 4099, 256, 256, False),
        (5, 70, 512, 8, True),
    ],
)
@every_rounding
def test_equals_the_steps_on_a_gpu(products, T, B, H, D, learned, gru):
    """S002-14, S002-23: values and all gradients, with random resets, against float64 on the same GPU."""
    with devices.rounded(products):
        assert_right(gru, draw(T, B, H, D, learned, "cuda", 0.1), ON_GPU[products])


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("H", [128, 200])
@every_rounding
def test_dead_states_on_a_gpu(products, H, gru):
    inputs = draw(5, 3000, H, 16, True, "cuda")
    h, first = inputs[1], inputs[6]
    first[0, ::3] = True
    with torch.no_grad():
        h[::3] = torch.nan
    with devices.rounded(products):
        got = gru(*inputs)
    assert all(t.isfinite().all() for t in (*got, *gradients(got, inputs)))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("H", [128, 200, 256])
@every_rounding
def test_steps_equal_the_unroll_on_a_gpu(products, H, gru):
    x, h, *weights, first, initial = inputs = draw(16, 3000, H, 32, True, "cuda", 0.1)
    with devices.rounded(products), torch.no_grad():
        y, _ = gru(*inputs)
        for t in range(16):
            out, h = gru(x[t : t + 1], h, *weights, first[t : t + 1], initial)
            assert_close((out[0],), (y[t],), ON_GPU[products] / 10)


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("H", [128, 256])
@every_rounding
def test_in_a_cuda_graph(products, H, gru):
    """Nothing is read on the host, and what is replayed is what was computed."""
    inputs = draw(8, 2200, H, 32, True, "cuda", 0.1)

    def run():
        with devices.rounded(products):
            got = gru(*inputs)
        return *got, *gradients(got, inputs)

    want = [t.detach().clone() for t in run()]
    graph, got = recorded(run, calls=3, is_silent=True)
    graph.replay()
    torch.cuda.synchronize()
    assert_close([t.detach() for t in got], want, 1e-5)


@pytest.mark.gpu
@on_gpu
def test_huge_numbers_stay_on_a_gpu(gru):
    assert_huge_numbers_stay(gru, "cuda")
