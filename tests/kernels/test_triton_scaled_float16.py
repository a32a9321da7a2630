"""Float16 with gains: right for numbers of any size, and done again only where a guess was bad."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from recollect.base import devices
from recollect.kernels.triton import scaled_float16 as halves
from recollect.kernels.triton.lstm import fused_lstm
from tests.kernels.test_triton_lstm import GRADIENTS, draw, needs_gpu, reference, run, scaled

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, needs_gpu])]
BITS = 2.0**-11
"""How far a number may be off by rounding it to float16, of itself."""


@pytest.fixture(params=DEVICES)
def device(request):
    if request.param == "cpu":
        request.getfixturevalue("fused_on_cpu")
    return request.param


def normal(*shape, device, scale=1.0):
    generator = torch.Generator().manual_seed(0)
    return (scale * torch.randn(*shape, generator=generator)).to(device)


def is_power_of_two(gains):
    return bool((torch.frexp(gains)[0] == 0.5).all())


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e-6, 60.0, 1e6, 1e30])
def test_narrow_of_any_size(scale, device):
    """The gain is a power of two that keeps all bits of the largest numbers."""
    x, out = normal(50, 24, device=device, scale=scale), torch.zeros(50, 32, device=device).half()
    gain = halves.narrow(x, out)
    assert is_power_of_two(gain)
    back = out[:, :24].double() / gain.double()
    assert (back - x).abs().max() <= BITS * x.abs().max()
    assert not out[:, 24:].any()
    if 1e-3 < scale < 1e3:
        assert gain == 256


@pytest.mark.parametrize("where", [(0, 0), (2, 299)])
def test_narrow_more_columns_than_one_block(where, device):
    """Wherever the largest number is."""
    x, out = normal(3, 300, device=device), torch.empty(3, 300, device=device).half()
    x[where] = 1e4
    gain = halves.narrow(x, out)
    assert gain < 256
    torch.testing.assert_close(out.float() / gain, x, rtol=BITS, atol=1e-6)


def test_narrow_leaves_what_is_not_finite(device):
    """Infinity and NaN stay where they are, and the others as they were."""
    x, out = normal(4, 16, device=device), torch.empty(4, 16, device=device).half()
    x[0, 0], x[1, 1] = float("inf"), float("nan")
    assert halves.narrow(x, out) == 256
    assert out[0, 0].isinf()
    assert out[1, 1].isnan()
    assert out.isfinite().sum() == 62


def test_narrow_with_another_default(device):
    """Of torch's."""
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.ones(3, 16, dtype=torch.float32, device=device)
        out = torch.empty(3, 16, device=device).half()
        assert halves.narrow(x, out).dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)
    assert out.unique() == 256


def test_told_not_to_narrow(device):
    """The second launch leaves everything as it is, if the first one's guess was good."""
    x, out = torch.ones(3, 16, device=device), torch.full((3, 16), 7.0, device=device).half()
    most, go = torch.zeros(1, device=device), torch.zeros(1, dtype=torch.int32, device=device)
    sizes = {"WIDTH": 16, "BR": 16, "BW": 16}
    halves.run(halves._narrow, (1, 1), x, out, torch.ones(1, device=device), go, most, 3, 16, **sizes)
    assert out.unique() == 7
    assert most == 0


def test_zeros(device):
    out = torch.ones(4, 16, device=device).half()
    assert halves.narrow(torch.zeros(4, 16, device=device), out) == 2.0**126
    assert not out.any()
    assert halves.guess(torch.zeros(3, device=device), n=2).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("largest", [1e-38, 1e-7, 1.0, 3.0, 1e20, 3e38])
def test_guess(largest, device):
    """The largest number is brought to 2^10 to 2^11, as far as float32 reaches."""
    gains = halves.guess(torch.tensor([0.0, -largest, largest / 3], device=device), n=3)
    assert gains.shape == (3,)
    assert is_power_of_two(gains)
    assert len(set(gains.tolist())) == 1
    brought = gains[0].double().item() * torch.tensor(largest).double().item()
    assert 2**10 <= brought < 2**11 or gains[0] == 2.0**126


def test_guess_from_several(device):
    samples = [torch.tensor([size], device=device) for size in (1.0, 3.0, 0.5)]
    assert halves.guess(*samples) == 512


@pytest.mark.parametrize("largest", [float("inf"), float("nan")])
def test_guess_of_what_is_not_finite(largest, device):
    assert halves.guess(torch.tensor([1.0, largest], device=device)) == 1


@pytest.mark.parametrize(
    ("largest", "again"),
    [
        ((1.0, 50.0, 0.0), False),
        ((0.016, 65504.0, 1.0), False),
        ((1.0, 65536.0, 1.0), True),
        ((0.015, 1.0, 1.0), True),
    ],
)
def test_tried_again_only_if_it_must(largest, again, device):
    """What is 0 fits any gain; the others are within the range or get a gain that brings them there."""
    calls = []

    def launch(gains, go, most):
        calls.append((gains.clone(), go.item()))
        most.copy_(torch.tensor(largest))

    found = halves.tried(launch, torch.ones(3, device=device))
    assert [go for _, go in calls] == [1, int(again)]
    assert found.differ.item() == again
    assert torch.equal(calls[1][0], found.each)
    assert is_power_of_two(found.each)
    for gain, number in zip(found.each.tolist(), largest, strict=True):
        if not number:
            assert gain == 2.0**126
        elif 0.015625 <= number <= 65504:
            assert gain == 1
        else:
            assert 2**14 <= gain * number < 2**15


@pytest.mark.parametrize(("rows", "K", "N", "B"), [(130, 64, 16, 130), (6, 72, 5, 3), (3, 516, 300, 1)])
def test_multiply(rows, K, N, B, device):
    """Every row has the bits of its own size, whatever the sizes of the others are."""
    sizes = torch.logspace(-20, 20, B).to(device)
    d = normal(rows, K, device=device) * sizes.repeat(rows // B)[:, None]
    each = torch.exp2(10 - sizes.log2().floor())
    b = normal(K, N, device=device, scale=1e-7)
    low = (d * each.repeat(rows // B)[:, None]).half()
    got = halves.multiply(low, b, halves.Gains(each, torch.ones(1, device=device)))
    want = d.double() @ b.double()
    assert got.dtype == torch.float32
    error = (got - want).abs().amax(1) / want.abs().amax(1)
    assert error.max() < 4 * BITS


def test_multiply_with_a_transposed_matrix(device):
    """However b lies in memory."""
    a, b = normal(6, 32, device=device).half(), normal(32, 16, device=device)
    gains = halves.Gains(torch.ones(1, device=device), torch.zeros(1, device=device))
    want = halves.multiply(a, b, gains)
    assert torch.equal(halves.multiply(a, b.t().contiguous().t(), gains), want)


def test_level(device):
    """All rows get the least gain, in place; where they do not differ nothing is touched."""
    each = torch.tensor([4.0, 1.0, 16.0], device=device)
    a = normal(6, 40, device=device).half()
    whole = a.clone()
    least = halves.level(a, halves.Gains(each, torch.ones(1, dtype=torch.int32, device=device)))
    assert least == 1
    assert torch.equal(a, whole / torch.tensor([4, 1, 16] * 2, device=device)[:, None])
    halves.level(a := whole.clone(), halves.Gains(each, torch.zeros(1, dtype=torch.int32, device=device)))
    assert torch.equal(a, whole)


# In the LSTM ------------------------------------------------------------------------------------


def assert_right_of_any_size(inputs, first, times):
    """The gradients of outputs that are multiplied by ``times``."""
    with devices.rounded("tf32"):
        got = run(scaled(fused_lstm.lstm, times), inputs, first)
    want = run(scaled(reference, times), [t.double() for t in inputs], first)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        error, largest = (a - b).abs().max().item(), b.abs().max().item()
        assert error <= 3 * GRADIENTS["tf32"] * largest, f"result {k} is {error:.1e} off, of {largest:.1e}"


SIZES = {"tiny": 1e-20, "small": 1e-8, "large": 1e8, "huge": 1e20}


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("size", SIZES)
def test_gpu_gradients_of_any_size(size):
    """S002-14: as if they were of size one."""
    inputs, first = draw(8, 600, 64, 256, learned=True, chance=0.05, device="cuda")
    assert_right_of_any_size(inputs, first, torch.tensor(SIZES[size]))


@pytest.mark.gpu
@needs_gpu
def test_gpu_gradients_where_no_sample_is_taken():
    """S002-14: a guess from rows without any gradient is a bad one."""
    inputs, first = draw(8, 600, 64, 256, learned=False, chance=0.05, device="cuda")
    times = torch.ones(600, 1)
    times[::3] = 0
    assert_right_of_any_size(inputs, first, 1e-6 * times)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("scale", [1e-5, 1e4])
@pytest.mark.parametrize("D", [64, 300])
def test_gpu_inputs_of_any_size(D, scale):
    """S002-14: x and its weights."""
    inputs, first = draw(8, 600, D, 256, learned=False, chance=0.05, device="cuda")
    inputs[0] *= scale
    inputs[3] /= scale
    assert_right_of_any_size(inputs, first, torch.ones(()))
