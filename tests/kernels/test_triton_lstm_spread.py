"""The LSTM whose weights are spread over processors against float64: in Triton's interpreter, and on a GPU.

The interpreter runs one program after the other, so that nobody can wait there: see ``tiling.groups``.
"""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from recollect.base import devices
from recollect.kernels.triton import scaled_float16 as halves
from recollect.kernels.triton import tiling
from recollect.kernels.triton.lstm import fused_lstm
from recollect.kernels.triton.tiling import Blocks
from tests.kernels.test_triton_lstm import (
    VALUES,
    assert_a_dead_state_leaves_no_trace,
    assert_a_split_changes_nothing,
    assert_huge_gradients_stay,
    assert_nothing_is_read,
    assert_right,
    assert_small_gradients_keep_their_digits,
    draw,
    fused,
    needs_gpu,
    run,
)
from tests.kernels.test_triton_scaled_float16 import assert_right_of_any_size
from tests.support.recorded import recorded

PRODUCTS = ("tf32", "bf16")
every_rounding = pytest.mark.parametrize("products", PRODUCTS)
one_rounding = pytest.mark.parametrize("products", ["tf32", pytest.param("bf16", marks=pytest.mark.slow)])
"""In the interpreter, which takes seconds a case; a GPU runs them all."""


@pytest.fixture
def spread(fused_on_cpu, monkeypatch):
    """Four members of 16 units, whatever the number of units; keeps how launches were spread."""
    monkeypatch.setattr(tiling, "MEMBER_UNITS", 16)
    monkeypatch.setattr(tiling, "padded", lambda size: 64)
    monkeypatch.setattr(tiling, "RESIDENT", dict.fromkeys(("fp32", *PRODUCTS), 0))
    monkeypatch.setattr(tiling, "SPREAD", {"fp32": (), "tf32": (64,), "bf16": (64,)})
    blocks = Blocks(16, 8)
    monkeypatch.setattr(tiling, "CHOSEN", {"forward": blocks, "backward": blocks})
    teams, launch = [], tiling.Plan.launch

    def counted(plan, *args, **kwargs):
        teams.append(plan.groups)
        launch(plan, *args, **kwargs)

    monkeypatch.setattr(tiling.Plan, "launch", counted)
    return teams


@pytest.mark.parametrize(
    ("T", "B", "H", "learned", "products"),
    [
        (2, 17, 33, True, "bf16"),
        (2, 50, 40, False, "tf32"),
        pytest.param(4, 3, 64, True, "tf32", marks=pytest.mark.slow),
        pytest.param(1, 33, 61, False, "tf32", marks=pytest.mark.slow),
    ],
)
def test_equals_the_equations(T, B, H, learned, products, spread):
    """S002-23: values and all gradients, with random resets; also with several blocks of rows a group."""
    assert_right(*draw(T, B, 3, H, learned), products)
    launches = 3 if products == "tf32" else 2  # backwards a second one, in case the first has to be mended
    assert len(spread) == launches
    assert {team.members for team in spread} == {4}
    assert {team.number for team in spread} == {min(2, -(-B // 16))}


def test_one_group_for_all_rows(spread, monkeypatch):
    """S002-23: as where a GPU has few processors."""
    found = tiling.groups

    def one(x, T, B, H, rows):
        return found(x, T, B, H, rows)._replace(number=1, slots=1 << (-(-B // rows) * T).bit_length())

    monkeypatch.setattr(tiling, "groups", one)
    assert_right(*draw(2, 40, 3, 50, learned=True), "tf32")


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_no_resets_and_only_resets(chance, spread):
    """S002-23."""
    assert_right(*draw(2, 3, 5, 40, learned=True, chance=chance), "tf32")


@one_rounding
def test_a_dead_state_leaves_no_trace(products, spread):
    """S002-23."""
    assert_a_dead_state_leaves_no_trace(*draw(2, 3, 5, 40, learned=True), products)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_a_row_that_died_lives_again(spread):
    """S002-23: NaN in x stays in its row, and there until the next reset."""
    inputs, first = draw(4, 3, 5, 40, learned=True, chance=0)
    first[2, 1] = True
    clean = fused(inputs, first, "tf32")
    inputs[0][1, 1] = float("nan")
    for a, b in zip(fused(inputs, first, "tf32"), clean, strict=True):
        if a.dim() == 3:
            assert a[1, 1].isnan().all()
            a[1, 1] = b[1, 1] = 0
        assert torch.equal(a, b)


def test_small_gradients_keep_their_digits(spread):
    """Every member scales what it multiplies by itself, row by row."""
    assert_small_gradients_keep_their_digits(*draw(2, 3, 4, 40, learned=False), "tf32")


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize("times", [1e-33, pytest.param(1e36, marks=pytest.mark.slow)])
def test_gradients_of_any_size(times, spread, monkeypatch):
    """The factors of d are a guess, which is mended: here from rows that have no gradient."""
    monkeypatch.setattr(fused_lstm, "_SAMPLE", 3)
    inputs, first = draw(2, 6, 3, 40, learned=True)
    rows = torch.full((6, 1), times)
    rows[::2] = 0
    assert_right_of_any_size(inputs, first, rows)


def test_a_second_launch_that_has_nothing_to_do(spread, monkeypatch):
    """It leaves everything as it is: this one would leave NaN."""
    tried = halves.tried

    def and_again(launch, gains):
        found = tried(launch, gains)
        launch(torch.full_like(gains, float("nan")), torch.zeros_like(found.differ), torch.zeros_like(gains))
        return found

    monkeypatch.setattr(halves, "tried", and_again)
    assert_right(*draw(2, 3, 8, 40, learned=True), "tf32")


@pytest.mark.parametrize("size", [0.0, pytest.param(1.0, marks=pytest.mark.slow), 1e-9])
def test_what_is_done_again(size, spread, monkeypatch):
    """Rows without a gradient fit any gain; those with much smaller ones than others do not."""
    found, tried = [], halves.tried
    monkeypatch.setattr(halves, "tried", lambda *given: found.append(tried(*given)) or found[-1])
    inputs, first = draw(2, 6, 3, 40, learned=False)
    rows = torch.ones(6, 1)
    rows[1::2] = size
    assert_right_of_any_size(inputs, first, rows)
    (_, (each, differ)) = found  # of x, and of the gradients
    assert differ.item() == (size == 1e-9)
    assert len(set(each[::2].tolist())) == 1
    assert (each[1::2] > each[0]).all() == (size != 1.0)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow encountered", "ignore:All-NaN")
def test_an_infinite_gradient_stays_in_its_row(spread):
    """Those of the others are as they were: what is not finite is not taken for the largest number."""
    (x, *rest), first = draw(2, 4, 8, 40, learned=False)

    def gradient(dy):
        given = x.clone().requires_grad_()
        with devices.rounded("tf32"):
            y, _, _ = fused_lstm.lstm(given, *rest, first)
        return torch.autograd.grad(y, given, dy)[0]

    dy = torch.sin(torch.arange(2 * 4 * 40.0)).view(2, 4, 40)
    want = gradient(dy)
    dy[1, 2, 5] = float("inf")
    got = gradient(dy)
    assert not got[1, 2].isfinite().any()
    others = [0, 1, 3]
    torch.testing.assert_close(got[:, others], want[:, others], rtol=0, atol=1e-5)


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.parametrize(
    ("D", "scale"),
    [(3, 1e4), pytest.param(3, 1e-5, marks=pytest.mark.slow), pytest.param(270, 1e4, marks=pytest.mark.slow)],
)
def test_inputs_of_any_size(D, scale, spread):
    """x is kept as float16 with a factor."""
    inputs, first = draw(2, 3, D, 40, learned=False)
    inputs[0] *= scale
    inputs[3] /= scale
    assert_right_of_any_size(inputs, first, torch.ones(()))


@pytest.mark.filterwarnings("ignore:invalid value")
def test_huge_gradients_stay(spread):
    assert_huge_gradients_stay("cpu")


@one_rounding
def test_a_split_changes_nothing(products, spread):
    """S002-23."""
    assert_a_split_changes_nothing(*draw(3, 3, 5, 40, learned=True), products, ((1, 3), range(1, 4)))


def test_which_sizes_are_spread():
    """129 to 256 units, in the roundings whose weights fit; a GPU without the room streams them."""
    for H, products, kind in (
        (128, "tf32", "resident"),
        (129, "tf32", "spread"),
        (256, "bf16", "spread"),
        (256, "fp32", "streamed"),
        (257, "bf16", "streamed"),
    ):
        for way in ("forward", "backward"):
            assert tiling.choose(fused_lstm.TABLE, 1000, H, products, way, True)[0] == kind
            assert tiling.choose(fused_lstm.TABLE, 1000, H, products, way, False)[0] == "streamed"


def test_nothing_is_read_on_the_host(unread, monkeypatch):
    """All but the kernels themselves, which cannot: a CUDA graph holds the whole of it."""
    monkeypatch.setattr(tiling.Plan, "launch", lambda *args, **flags: None)
    for products in PRODUCTS:
        assert_nothing_is_read(unread, products, 130)


# On a GPU ---------------------------------------------------------------------------------------

SIZES = [
    *((64, 1024, 256, False, products) for products in PRODUCTS),
    *((64, 1024, 200, True, products) for products in PRODUCTS),
    *((T, B, H, True, "tf32") for T in (1, 2) for B in (1, 33, 5000) for H in (129, 256)),
    *((2, 5000, 200, True, "bf16"), (64, 33, 129, True, "bf16"), (64, 1, 256, False, "tf32")),
    *((9, 5000, 256, True, products) for products in PRODUCTS),
]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("T", "B", "H", "learned", "products"), SIZES)
def test_gpu_equals_the_equations(T, B, H, learned, products):
    """S002-14, S002-23: at real sizes, odd ones too, against float64 on the same GPU."""
    inputs, first = draw(T, B, 64, H, learned, chance=0.05, device="cuda")
    assert_right(inputs, first, products, slack=3.0)


@pytest.mark.gpu
@needs_gpu
@every_rounding
def test_gpu_a_split_changes_nothing(products):
    """S002-23: acting and learning are one kernel; only the product with x has other rows.

    That may change its last bit, then the float16 of an h, and with it the next by 2^-11 of a weight.
    """
    inputs, first = draw(16, 1000, 64, 256, learned=True, chance=0.05, device="cuda")
    limit = 2e-4 if products == "tf32" else VALUES["bf16"]
    splits = ((1, 7, 16), range(1, 17))
    assert_a_split_changes_nothing(inputs, first, products, splits, (limit, 4 * limit))


@pytest.mark.gpu
@needs_gpu
@every_rounding
@pytest.mark.parametrize(("B", "H"), [(1024, 256), (5000, 200)])
def test_gpu_always_the_same_bits(B, H, products):
    """Called again, and 20 times from a CUDA graph: who read before the others had written would show it."""
    inputs, first = draw(64, B, 64, H, learned=True, chance=0.02, device="cuda")

    def work():
        with devices.rounded(products):
            return run(fused_lstm.lstm, inputs, first)

    want = work()
    for a, b in zip(work(), want, strict=True):
        assert torch.equal(a, b)
    graph, got = recorded(work, is_silent=True)
    graph.replay()
    once = [t.detach().clone() for t in got]
    for a, b in zip(once, want, strict=True):  # in a graph cuBLAS may take another order for its sums
        torch.testing.assert_close(a, b, atol=0.1 * VALUES[products] * b.abs().max().item(), rtol=0)
    for _ in range(20):
        for t in got:
            t.detach().fill_(float("nan"))
        graph.replay()
        for a, b in zip(got, once, strict=True):
            assert torch.equal(a, b)


@pytest.mark.gpu
@needs_gpu
def test_gpu_two_streams_at_once():
    """Two launches that each want all processors wait for one another, and not for ever."""
    given = [draw(64, 1024, 64, 256, learned=False, chance=0.02, device="cuda") for _ in range(2)]
    want = [fused(*one, "tf32") for one in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in given]
    got = []
    for _ in range(5):
        for stream, one in zip(streams, given):
            with torch.cuda.stream(stream):
                got.append(fused(*one, "tf32"))
    torch.cuda.synchronize()
    for k, results in enumerate(got):
        for a, b in zip(results, want[k % 2], strict=True):
            torch.testing.assert_close(a, b, atol=2e-4, rtol=0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(("rows", "warps"), [(16, 8), (32, 8), (64, 8), (64, 16)])
@every_rounding
def test_gpu_other_blocks(rows, warps, products, monkeypatch):
    """What a benchmark may try is as right; more rows than all groups take at once."""
    blocks = Blocks(rows, warps)
    monkeypatch.setattr(tiling, "CHOSEN", {"forward": blocks, "backward": blocks})
    assert_right(*draw(7, 3000, 64, 256, True, chance=0.05, device="cuda"), products, slack=3.0)
