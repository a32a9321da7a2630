"""The GRU in Triton with weights spread over processors, against plain steps in float64.

Triton's interpreter runs the programs that meet one after the other, as often as there are steps
(``tiling.groups``); there members have 16 units each, so that four of them have 64.
"""

from __future__ import annotations

import pytest
import torch

from recollect.base import devices
from tests.kernels.test_triton_gru import (
    IN_INTERPRETER,
    ON_GPU,
    assert_a_reset_throws_everything_away,
    assert_any_split_gives_the_same,
    assert_inference_gives_the_same,
    assert_nothing_comes_back_through_a_reset,
    assert_right,
    assert_small_gradients_keep_their_digits,
    assert_some_gradients_of_one_output,
    draw,
    gradients,
    on_gpu,
)
from tests.support.recorded import recorded

SPREAD = ("tf32", "bf16")
every_rounding = pytest.mark.parametrize("products", SPREAD)


# In the interpreter ------------------------------------------------------------------------------


@pytest.fixture
def fused_gru(fused_on_cpu, monkeypatch):
    """The module, with so few units for a member, and so few rows in a block, that there are several."""
    from recollect.kernels.triton import tiling
    from recollect.kernels.triton.gru import fused_gru

    small = tiling.Blocks(16, 4)
    monkeypatch.setattr(tiling, "MEMBER_UNITS", 16)
    monkeypatch.setattr(tiling, "RESIDENT", dict.fromkeys(ON_GPU, 0))
    monkeypatch.setattr(tiling, "SPREAD", dict.fromkeys(ON_GPU, (64,)))
    every = {(f"{way} spread", p): ((1 << 31, small),) for way in ("forward", "backward") for p in ON_GPU}
    monkeypatch.setattr(fused_gru, "TABLE", every)
    return fused_gru


@pytest.mark.parametrize(
    ("T", "B", "H", "learned", "products"),
    [
        (3, 2, 64, False, "fp32"),
        pytest.param(2, 5, 64, False, "tf32", marks=pytest.mark.slow),
        pytest.param(2, 3, 33, True, "fp32", marks=pytest.mark.slow),
        (2, 3, 33, True, "bf16"),
        pytest.param(2, 3, 33, True, "tf32", marks=pytest.mark.slow),
        (1, 2, 50, True, "tf32"),
        (2, 40, 49, True, "fp32"),
        pytest.param(2, 20, 49, False, "fp32", marks=pytest.mark.slow),
    ],
)
def test_equals_the_steps(T, B, H, learned, products, fused_gru):
    """Odd numbers of units and rows; the most rows are two blocks for one group, one for the other."""
    with devices.rounded(products):
        assert_right(fused_gru.gru, draw(T, B, H, 3, learned), IN_INTERPRETER[products])


def test_it_is_spread(fused_gru):
    from recollect.kernels.triton.tiling import choose, groups

    assert choose(fused_gru.TABLE, 40, 49, "tf32", "forward", True)[0] == "spread"
    assert groups(torch.zeros(1), 2, 40, 49, 16) == (4, 2, 8, 3)


def test_inference_gives_the_same(fused_gru):
    assert_inference_gives_the_same(fused_gru.gru, draw(2, 3, 40, 4, True))


def test_any_split_gives_the_same(fused_gru):
    assert_any_split_gives_the_same(fused_gru.gru, draw(3, 3, 34, 4, True), (2,))


def test_a_reset_throws_everything_away(fused_gru):
    assert_a_reset_throws_everything_away(fused_gru.gru, draw(2, 4, 35, 3))


def test_nothing_comes_back_through_a_reset(fused_gru):
    assert_nothing_comes_back_through_a_reset(fused_gru.gru, draw(2, 4, 35, 3))


def test_small_gradients_keep_their_digits(fused_gru):
    """Members scale what they multiply, each row by itself."""
    assert_small_gradients_keep_their_digits(fused_gru.gru, draw(2, 3, 40, 4), "tf32")


@pytest.mark.parametrize(
    ("output", "wanted"), [(0, (1, 7)), pytest.param(1, (0,), marks=pytest.mark.slow), (1, (3, 4))]
)
def test_some_gradients_of_one_output(output, wanted, fused_gru):
    assert_some_gradients_of_one_output(fused_gru.gru, draw(2, 2, 36, 3, True), output, wanted)


def test_when_it_is_spread(fused_on_cpu):
    from recollect.kernels.triton.gru.fused_gru import TABLE
    from recollect.kernels.triton.tiling import choose

    def kind(H, products: devices.Products = "tf32", has_room=True):
        (found,) = {choose(TABLE, 64, H, products, way, has_room)[0] for way in ("forward", "backward")}
        return found

    assert [kind(H) for H in (128, 129, 256, 257)] == ["resident", "spread", "spread", "streamed"]
    assert kind(256, "bf16") == "spread"
    assert kind(256, "fp32") == "streamed"
    assert kind(256, has_room=False) == "streamed"


# On a GPU ----------------------------------------------------------------------------------------


@pytest.fixture
def gru():
    pytest.importorskip("triton")
    from recollect.kernels.triton.gru import fused_gru

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
    """S002-14, S002-23: values and all gradients, with random resets, against float64 on the same GPU."""
    with devices.rounded(products):
        assert_right(gru, draw(T, B, H, 24, learned, "cuda", 0.1), ON_GPU[products])


@pytest.mark.gpu
@on_gpu
@every_rounding
def test_any_split_gives_the_same_on_a_gpu(products, gru):
    inputs, limit = draw(16, 3000, 200, 32, True, "cuda", 0.1), ON_GPU[products]
    with devices.rounded(products):
        assert_any_split_gives_the_same(gru, inputs, (5,), (limit / 10, limit))


@pytest.mark.gpu
@on_gpu
@pytest.mark.parametrize("B", [1000, 5000])
@every_rounding
def test_twice_the_same_on_a_gpu(products, B, gru):
    """The same bits, also from a CUDA graph that is replayed: what a race would change."""
    inputs = draw(64, B, 256, 32, True, "cuda", 0.1)
    want = [t.clone() for t in results(gru, inputs, products)]
    assert all(map(torch.equal, results(gru, inputs, products), want))
    graph, got = recorded(lambda: results(gru, inputs, products))
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
