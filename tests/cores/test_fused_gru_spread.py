"""S002-14: the GRU in Triton with weights spread over processors, against plain steps in float64.

Triton's interpreter runs the programs that meet one after the other, as often as there are steps
(``fused_blocks.groups``); there members have 16 units each, so that four of them have 64.
"""

from __future__ import annotations

import pytest
import torch

from recollect import devices
from tests.cores.test_fused_gru import (
    IN_INTERPRETER,
    ON_GPU,
    assert_close,
    assert_right,
    draw,
    gradients,
    on_gpu,
    truth,
    wide,
)

SPREAD = ("tf32", "bf16")
every_rounding = pytest.mark.parametrize("products", SPREAD)


# In the interpreter ------------------------------------------------------------------------------


@pytest.fixture(params=["ahead", "at once"])
def fused_gru(request, fused_on_cpu, monkeypatch):
    """The module, with so few units for a member, and so few rows in a block, that there are several."""
    from recollect.cores.kernels import fused_blocks, fused_gru

    small = fused_blocks.Blocks(16, 4, prefetch=request.param == "ahead")
    monkeypatch.setattr(fused_blocks, "MEMBER_UNITS", 16)
    monkeypatch.setattr(fused_gru, "_RESIDENT", dict.fromkeys(ON_GPU, 0))
    monkeypatch.setattr(fused_gru, "_SPREAD", dict.fromkeys(ON_GPU, (64,)))
    every = {(f"{way} spread", p): ((1 << 31, small),) for way in ("forward", "backward") for p in ON_GPU}
    monkeypatch.setattr(fused_gru, "TABLE", every)
    return fused_gru


@pytest.mark.parametrize(
    ("T", "B", "H", "learned"), [(3, 5, 64, False), (2, 3, 33, True), (1, 2, 50, True), (2, 40, 49, True)]
)
@pytest.mark.parametrize("products", list(ON_GPU))
def test_equals_the_steps(products, T, B, H, learned, fused_gru):
    """Odd numbers of units and rows; the most rows are two blocks for one group, one for the other."""
    with devices.rounded(products):
        assert_right(fused_gru.gru, draw(T, B, H, 3, learned), IN_INTERPRETER[products])


def test_it_is_spread(fused_gru):
    from recollect.cores.kernels.fused_blocks import groups

    assert fused_gru.gru_blocks(40, 49, "tf32", "forward", True)[0] == "spread"
    assert groups(torch.zeros(1), 2, 40, 49, 16) == (4, 2, 5, 3)


def test_inference_gives_the_same(fused_gru):
    inputs = draw(3, 3, 40, 4, True)
    y, h = fused_gru.gru(*inputs)
    with torch.no_grad():
        got = fused_gru.gru(*inputs)
    assert torch.equal(got[0], y)
    assert torch.equal(got[1], h)
    assert torch.equal(h, y[-1])


def test_any_split_gives_the_same(fused_gru):
    x, h, *weights, first, initial = inputs = draw(3, 18, 34, 4, True)
    whole = fused_gru.gru(*inputs)
    wanted = gradients(whole, inputs)
    for cut in (1, 2):
        y1, between = fused_gru.gru(x[:cut], h, *weights, first[:cut], initial)
        y2, end = fused_gru.gru(x[cut:], between, *weights, first[cut:], initial)
        assert_close((torch.cat((y1, y2)), end), whole, 1e-6)
        assert_close(gradients((torch.cat((y1, y2)), end), inputs), wanted, 1e-5)


def test_a_reset_throws_everything_away(fused_gru):
    """NaN that nobody continues goes nowhere, forwards or backwards."""
    inputs = draw(3, 4, 35, 3)
    h, first = inputs[1], inputs[6]
    first[0] = torch.tensor([True, True, False, False])
    with torch.no_grad():
        h[:2] = torch.nan
    got = fused_gru.gru(*inputs)
    found = gradients(got, inputs)
    assert all(t.isfinite().all() for t in (*got, *found))
    assert (found[1][:2] == 0).all()
    with torch.no_grad():
        h[:2] = 3.0
    assert_close(found, gradients(fused_gru.gru(*inputs), inputs), 1e-6)


def test_nothing_comes_back_through_a_reset(fused_gru):
    """Not even NaN, of an episode that begins with one."""
    inputs = draw(3, 4, 35, 3)
    x, first = inputs[0], inputs[6]
    first[:] = torch.tensor([False, False, True])[:, None]
    with torch.no_grad():
        x[2, 0] = torch.nan
    y, h = fused_gru.gru(*inputs)
    dx, dh, *_ = gradients((y, h), inputs)
    assert y[2, 0].isnan().all()
    assert y[:2].isfinite().all()
    assert dx[:2].isfinite().all()
    assert dh.isfinite().all()
    assert y[2, 1:].isfinite().all()
    assert dx[2, 1:].isfinite().all()


def test_small_gradients_keep_their_digits(fused_gru):
    """Float16 ends at 6e-8; members scale what they multiply, each row by itself."""
    inputs = draw(3, 3, 40, 4)
    scale = torch.tensor([1e-12, 1.0, 1e-6])[:, None]
    with devices.rounded("tf32"):
        y, h = fused_gru.gru(*inputs)
    copies = wide(inputs)
    want_y, want_h = truth(*copies)
    got, *_ = gradients((y * scale, h * scale), inputs)
    want, *_ = gradients((want_y * scale.double(), want_h * scale.double()), copies)
    for row in range(3):
        assert (got[:, row] - want[:, row]).norm() <= IN_INTERPRETER["tf32"] * want[:, row].norm()


@pytest.mark.parametrize("wanted", [(0,), (3, 4), (1, 7)])
@pytest.mark.parametrize("output", [0, 1])
def test_some_gradients_of_one_output(output, wanted, fused_gru):
    inputs = draw(2, 2, 36, 3, True)
    inputs = [t.detach().requires_grad_(k in wanted) if k != 6 else t for k, t in enumerate(inputs)]
    got = gradients(fused_gru.gru(*inputs)[output : output + 1], inputs)
    copies = wide(inputs)
    assert_close(got, gradients(truth(*copies)[output : output + 1], copies), IN_INTERPRETER["fp32"])


def test_when_it_is_spread(fused_on_cpu):
    from recollect.cores.kernels.fused_gru import gru_blocks

    def kind(H, products: devices.Products = "tf32", has_room=True):
        (found,) = {gru_blocks(64, H, products, way, has_room)[0] for way in ("forward", "backward")}
        return found

    assert [kind(H) for H in (128, 129, 256, 257)] == ["resident", "spread", "spread", "streamed"]
    assert kind(256, "bf16") == "spread"
    assert kind(256, "fp32") == "streamed"
    assert kind(256, has_room=False) == "streamed"


# On a GPU ----------------------------------------------------------------------------------------


@pytest.fixture
def gru():
    pytest.importorskip("triton")
    from recollect.cores.kernels import fused_gru

    return fused_gru.gru


def results(gru, inputs, products):
    """Values and all gradients."""
    with devices.rounded(products):
        got = gru(*inputs)
    return [t.detach() for t in (*got, *gradients(got, inputs))]


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize(
    ("T", "B", "H", "learned"),
    [
        (64, 1024, 256, False),
        (64, 33, 200, True),
        (2, 5000, 256, True),
        (64, 5000, 129, False),
        (1, 1024, 200, True),
        (1, 1, 129, True),
        (2, 33, 256, False),
        (64, 1, 256, True),
        (7, 9001, 250, True),
    ],
)
@every_rounding
def test_equals_the_steps_on_a_gpu(products, T, B, H, learned, gru):
    with devices.rounded(products):
        assert_right(gru, draw(T, B, H, 24, learned, "cuda", 0.1), ON_GPU[products])


@pytest.mark.gpu
@on_gpu
@every_rounding
def test_dead_states_on_a_gpu(products, gru):
    inputs = draw(5, 3000, 200, 16, True, "cuda")
    h, first = inputs[1], inputs[6]
    first[0, ::3] = True
    with torch.no_grad():
        h[::3] = torch.nan
    assert all(t.isfinite().all() for t in results(gru, inputs, products))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("H", [200, 256])
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
@every_rounding
def test_any_split_gives_the_same_on_a_gpu(products, gru):
    x, h, *weights, first, initial = inputs = draw(16, 3000, 200, 32, True, "cuda", 0.1)
    with devices.rounded(products):
        whole = gru(*inputs)
        y1, between = gru(x[:5], h, *weights, first[:5], initial)
        y2, end = gru(x[5:], between, *weights, first[5:], initial)
    parts = torch.cat((y1, y2)), end
    assert_close(parts, whole, ON_GPU[products] / 10)
    assert_close(gradients(parts, inputs), gradients(whole, inputs), ON_GPU[products])


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("B", [1000, 5000])
@every_rounding
def test_twice_the_same_on_a_gpu(products, B, gru):
    """The same bits, also from a CUDA graph that is replayed: what a race would change."""
    inputs = draw(64, B, 256, 32, True, "cuda", 0.1)
    want = [t.clone() for t in results(gru, inputs, products)]
    assert all(map(torch.equal, results(gru, inputs, products), want))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        results(gru, inputs, products)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = results(gru, inputs, products)
    for _ in range(20):
        for t in got:
            t.zero_()
        graph.replay()
        assert all(map(torch.equal, got, want))


@pytest.mark.gpu
@on_gpu
def test_two_streams_do_not_wait_for_each_other_for_ever_on_a_gpu(gru):
    inputs = draw(32, 5000, 256, 32, False, "cuda", 0.1)
    want = [t.clone() for t in results(gru, inputs, "bf16")]
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    got = []
    for _ in range(5):
        for stream in streams:
            with torch.cuda.stream(stream):
                got.append(results(gru, inputs, "bf16"))
    torch.cuda.synchronize()
    for some in got:
        assert all(map(torch.equal, some, want))
