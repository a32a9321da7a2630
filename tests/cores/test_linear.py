"""What is particular to the cores on linear recurrences: how far they reach, their scale, their settings."""

from __future__ import annotations

import math

import pytest
import torch

from recollect.base import row_threads, tree
from recollect.cores import FFMConfig, LRUConfig, MinGRUConfig, MinLSTMConfig, RTUConfig, make_core
from recollect.cores.mingru_minlstm import Convolution
from recollect.errors import ConfigError

torch.set_num_threads(1)

NAMES = ["mingru", "minlstm", "lru", "rtu", "ffm"]
each = pytest.mark.parametrize("name", NAMES)
averaging = pytest.mark.parametrize("config", [MinGRUConfig, MinLSTMConfig])
turning = pytest.mark.parametrize("config", [LRUConfig, RTUConfig])


def never(T, B):
    return torch.zeros(T, B, dtype=torch.bool)


def kept(core, steps):
    """What a state of ones keeps after ``steps`` steps of zeros: [units], 1 is all of it.

    Linear in the state: so the difference of two runs, in which what the inputs add cancels.
    """
    x, first = torch.zeros(steps, 2, core.input_size), never(steps, 2)
    state = tree.map(lambda leaf: torch.zeros_like(leaf).contiguous(), core.initial_state(2))
    memory = tree.leaves(state)[0]
    memory[1] = 1
    with torch.no_grad():
        end = tree.leaves(core.unroll(x, state, first)[1])[0]
    left = end[1] - end[0]
    return left if left.dim() == 1 else left.square().sum(-1).sqrt().flatten() / math.sqrt(2)


@each
@pytest.mark.parametrize("steps", [100, 1000])
def test_reaching(name, steps):
    """After that many steps a good share of the units still holds a good share of what it held."""
    torch.manual_seed(0)
    config = make_core(name, 3).config
    assert (kept(config.reaching(steps).build(3), steps) > 0.3).float().mean() > 0.08
    assert not (kept(config.build(3), 10 * steps) > 0.3).any()


@each
def test_short_memories_too_by_default(name):
    """Units that forget within a few steps, and some that keep for twenty."""
    torch.manual_seed(0)
    core = make_core(name, 3)
    assert (kept(core, 4) < 0.3).float().mean() > 0.1
    assert (kept(core, 20) > 0.3).float().mean() > 0.1


@each
@pytest.mark.parametrize("reach", [None, 1000])
@pytest.mark.parametrize("constant", [False, True])
def test_scale_at_the_start(name, reach, constant):
    """Outputs of order 1 for inputs of order 1, at once and after hundreds of steps, noise or standstill."""
    torch.manual_seed(0)
    config = make_core(name, 64).config
    core = (config if reach is None else config.reaching(reach)).build(64)
    x = torch.randn(1, 8, 64).expand(600, -1, -1) if constant else torch.randn(600, 8, 64)
    with torch.no_grad():
        y, _ = core.unroll(x, core.initial_state(8), never(600, 8))
    spread = y.square().mean((1, 2)).sqrt()
    assert spread.min() > 0.2
    assert spread.max() < 3
    assert y.abs().max() < 10


@each
def test_long_sequences_in_single_precision(name):
    """S002-23: 200 steps of the default size stay within 1e-5 of stepping."""
    torch.manual_seed(0)
    core = make_core(name, 16)
    x, first = torch.randn(200, 4, 16), torch.rand(200, 4) < 0.02
    state = core.initial_state(4)
    with torch.no_grad():
        y, _ = core.unroll(x, state, first)
        for t in range(200):
            out, state = core.step(x[t], state, first[t])
            torch.testing.assert_close(y[t], out, atol=1e-5, rtol=0)


@each
def test_in_two_threads(name):
    """Groups of rows side by side give what one gives, gradients too."""
    torch.manual_seed(0)
    core = make_core(name, 6).double()
    x = torch.randn(40, 9, 6, dtype=torch.float64, requires_grad=True)
    first, state = torch.rand(40, 9) < 0.1, core.initial_state(9)

    def run():
        y, end = core.unroll(x, state, first)
        loss = y.square().sum() + sum(leaf.sum() for leaf in tree.leaves(end))
        return [y, *torch.autograd.grad(loss, [x, *core.parameters()])]

    alone = run()
    with row_threads.threads(2):
        together = run()
    for a, b in zip(alone, together, strict=True):
        torch.testing.assert_close(a, b, atol=1e-10, rtol=1e-10)


@averaging
def test_an_average_stays_within_what_was_seen(config):
    """h never leaves the range of what went into it, whatever the gates do."""
    torch.manual_seed(0)
    core = config(hidden=16, convolution=1).build(4)
    x = 5 * torch.randn(300, 3, 4)
    with torch.no_grad():
        new = core.average.new(x)
        state = core.initial_state(3)
        for t in range(300):
            _, state = core.step(x[t], state, never(1, 3)[0])
            assert (state[0] <= new[: t + 1].amax(0).clamp(min=0) + 1e-5).all()
            assert (state[0] >= new[: t + 1].amin(0).clamp(max=0) - 1e-5).all()


def test_gates_shut_tight_are_no_division_by_zero():
    """minLSTM's shares are a ratio of gates; both may be zero in float32."""
    core = MinLSTMConfig(hidden=4, convolution=1).build(2)
    with torch.no_grad():
        for layer in (core.keep, core.take):
            layer.weight.zero_()
            layer.bias.fill_(-200.0)
        core.take.bias.add_(math.log(3))
    x = torch.randn(3, 2, 2, requires_grad=True)
    y, (h,) = core.unroll(x, core.initial_state(2), never(3, 2))
    y.sum().backward()
    assert h.isfinite().all()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    torch.testing.assert_close(core._share(x), torch.full((3, 2, 4), 0.75))


@averaging
def test_learned_initial_state_learns_only_through_first(config):
    """Its gradient flows where ``first`` selects it, not through a state that was passed in."""
    core = config(hidden=4, learned_initial_state=True).build(3)
    x, state = torch.randn(5, 2, 3), tree.clone(core.initial_state(2))
    core.unroll(x, state, never(5, 2))[0].sum().backward()
    learned = core.average.initial_h
    assert learned.grad is None or not learned.grad.any()
    once = never(5, 2)
    once[2, 1] = True
    core.unroll(x, state, once)[0].sum().backward()
    assert learned.grad.any()


def test_convolution_of_the_equation():
    """w_0 x_t + w_1 x_{t-1} + ..., the carried inputs latest first, nothing from before a reset."""
    layer = Convolution(1, 3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0], [10.0], [100.0]]))
    x = torch.tensor([1.0, 2.0, 3.0, 4.0]).view(4, 1, 1)
    recent = torch.tensor([[[7.0], [8.0]]])
    first = torch.tensor([[False], [False], [True], [False]])
    v, end = layer.unroll(x, recent, first)
    assert v.flatten().tolist() == [1 + 70 + 800, 2 + 10 + 700, 3, 4 + 30]
    assert end.flatten().tolist() == [4, 3]
    v, end = layer.unroll(x[:3], recent, first[:3])
    assert end.flatten().tolist() == [3, 0]


@turning
def test_starts_on_the_ring(config):
    """Moduli between r_min and r_max, evenly by area; phases up to max_phase."""
    torch.manual_seed(0)
    core = config(units=4096, r_min=0.4, r_max=0.9, max_phase=1.0).build(2)
    r, phase = torch.exp(-core.nu.exp()), core.theta.exp()
    assert r.min() > 0.399
    assert r.max() < 0.901
    inside = ((r**2 - 0.16) / (0.81 - 0.16)).sort().values
    torch.testing.assert_close(inside, torch.linspace(0, 1, 4096), atol=0.05, rtol=0)
    torch.testing.assert_close(phase.sort().values, torch.linspace(0, 1, 4096), atol=0.05, rtol=0)


@pytest.mark.parametrize("name", ["lru", "rtu", "ffm"])
def test_memories_of_all_lengths_have_one_scale(name):
    """The gain sqrt(1 - r^2): fed with noise, a unit that keeps for long is no larger than another."""
    torch.manual_seed(0)
    core = make_core(name, 32).config.reaching(50).build(32)
    state = core.initial_state(64)
    with torch.no_grad():
        _, end = core.unroll(torch.randn(600, 64, 32), state, never(600, 64))
    by_length = end.square().sum(-1).mean(0).flatten()  # [units]
    longest_first = by_length[kept(core, 20).argsort(descending=True)]
    quarter = len(by_length) // 4
    ratio = longest_first[:quarter].mean() / longest_first[-quarter:].mean()
    assert 0.5 < ratio < 2


def test_contexts_of_a_trace_fade_together_and_turn_apart():
    """FFM's factors: exp(-alpha_j) by trace, omega_k by context; periods of 4 steps to twice the reach."""
    core = FFMConfig(trace=5, context=3, chrono=64).build(2)
    state = torch.zeros(1, 5, 3, 2)
    state[..., 0] = 1
    _, s = core.step(torch.zeros(1, 2), state, never(1, 1)[0])
    s = torch.view_as_complex(s)[0]
    torch.testing.assert_close(s.abs(), torch.exp(-(64.0 ** -torch.linspace(0, 1, 5)))[:, None].expand(5, 3))
    period = 2 * math.pi / s.angle()
    torch.testing.assert_close(period, torch.tensor([4.0, math.sqrt(512), 128.0]).expand(5, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda: MinGRUConfig(hidden=0),
        lambda: MinGRUConfig(convolution=0),
        lambda: MinGRUConfig(chrono=1),
        lambda: MinLSTMConfig(hidden=2.5),
        lambda: MinLSTMConfig(convolution=True),
        lambda: LRUConfig(units=0),
        lambda: LRUConfig(r_min=0.9, r_max=0.5),
        lambda: LRUConfig(r_max=1.0),
        lambda: RTUConfig(r_min=-0.1),
        lambda: RTUConfig(max_phase=0.0),
        lambda: RTUConfig(max_phase=float("nan")),
        lambda: FFMConfig(trace=0),
        lambda: FFMConfig(context=-1),
        lambda: FFMConfig(chrono=0),
        lambda: make_core("lru", 0),
    ],
)
def test_settings_that_cannot_be_meant(make):
    with pytest.raises(ConfigError, match=r"needs|0 <= r_min|angle|at least"):
        make()
