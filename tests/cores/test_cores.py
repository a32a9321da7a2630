"""What is particular to one core: PyTorch's conventions, initialisation, configs, the registry."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from recollect.base import tree
from recollect.cores import (
    CORES,
    GRU,
    LSTM,
    Core,
    FFMConfig,
    GRUConfig,
    LSTMConfig,
    MinGRUConfig,
    MinLSTMConfig,
    NoneConfig,
    PMMConfig,
    SLSTMConfig,
    StackConfig,
    make_core,
)
from recollect.errors import ConfigError
from recollect.kernels.cpu import lstm_onednn
from recollect.kernels.cpu.lstm import lstm
from recollect.kernels.segments import split_at_resets

torch.set_num_threads(1)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_equals_torch_without_resets(kind, layers):
    """Weights of nn.LSTM and nn.GRU load as they are, and mean the same."""
    torch.manual_seed(0)
    config = {"lstm": LSTMConfig, "gru": GRUConfig}[kind](hidden=6, layers=layers)
    theirs = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](4, 6, layers).double()
    core = config.build(4).double()
    core.rnn.load_state_dict(theirs.state_dict())
    x = torch.randn(7, 3, 4, dtype=torch.float64)
    state = tree.map(torch.randn_like, core.initial_state(3))
    y, end = core.unroll(x, state, torch.zeros(7, 3, dtype=torch.bool))
    layers_first = tree.map(lambda leaf: leaf.transpose(0, 1).contiguous(), state)
    want, want_end = theirs(x, layers_first)
    torch.testing.assert_close(y, want, atol=1e-12, rtol=0)
    for got, leaf in zip(tree.leaves(end), tree.leaves(want_end), strict=True):
        torch.testing.assert_close(got, leaf.transpose(0, 1), atol=1e-12, rtol=0)


@pytest.mark.parametrize("chance", [0.0, 0.1, 0.5, 1.0])
@pytest.mark.parametrize(("T", "B"), [(1, 1), (5, 3), (12, 4)])
def test_the_two_lstm_kernels_agree(T, B, chance):
    """S002-23: oneDNN's layer with steps put in, and the packed one, in values and gradients."""
    torch.manual_seed(T)
    core = LSTMConfig(hidden=6).build(3)
    x, first = torch.randn(T, B, 3, requires_grad=True), torch.rand(T, B) < chance
    first[0] = False
    h, c = torch.randn(B, 6, requires_grad=True), torch.randn(B, 6, requires_grad=True)
    weights = core.rnn.all_weights[0]
    segments = split_at_resets(first)
    zero = torch.zeros(1, 6)
    ours = lstm(x, segments.start(h, zero), segments.start(c, zero), *weights, segments=segments)
    theirs = lstm_onednn.lstm(x, h, c, *weights, first=first)
    factors = [torch.randn_like(out) for out in ours]
    gradients = [
        torch.autograd.grad(outs, (x, h, c, *weights), factors, materialize_grads=True, allow_unused=True)
        for outs in (ours, theirs)
    ]
    for a, b in zip((*ours, *gradients[0]), (*theirs, *gradients[1]), strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-5)


def test_onednn_resets_are_exact():
    """S004-3: not small but zero: the gradient through a step that resets, and what it leaves."""
    core = LSTMConfig(hidden=6).build(3)
    x = torch.randn(9, 2, 3, requires_grad=True)
    first = torch.zeros(9, 2, dtype=torch.bool)
    first[4, 1] = first[8, 1] = True
    h, c = (torch.randn(2, 6, requires_grad=True) for _ in range(2))
    y, h_end, c_end = lstm_onednn.lstm(x, h, c, *core.rnn.all_weights[0], first=first)
    after = y[4:8, 1].sum()
    gradient, *state = torch.autograd.grad(after, (x, h, c), retain_graph=True)
    assert not gradient[:4].any()
    assert not any(g.any() for g in state)
    gradient, *state = torch.autograd.grad(h_end[1].sum() + c_end[1].sum(), (x, h, c))
    assert not gradient[:8].any()
    assert not any(g.any() for g in state)
    with torch.no_grad():
        fresh = lstm_onednn.lstm(
            x[4:8, 1:], *torch.zeros(2, 1, 6), *core.rnn.all_weights[0], first=first[:4, :1]
        )
    assert torch.equal(y[4:8, 1:], fresh[0])


def test_onednn_is_left_to_what_suits_it():
    """NaN anywhere, many resets, other types: the packed kernel takes over."""
    x, first = torch.randn(10, 4, 3), torch.zeros(10, 4, dtype=torch.bool)
    assert lstm_onednn.suits(x, first)
    assert not lstm_onednn.suits(x, ~first)
    assert not lstm_onednn.suits(x.double(), first)
    assert lstm_onednn.finite(x, x)
    assert not lstm_onednn.finite(x, x.index_fill(0, torch.tensor([2]), float("nan")))


def test_learned_initial_state_learns_only_through_first():
    """Its gradient flows where ``first`` selects it, not through a state that was passed in."""
    core = LSTMConfig(hidden=4, learned_initial_state=True).build(3)
    x, never = torch.randn(5, 2, 3), torch.zeros(5, 2, dtype=torch.bool)
    state = tree.clone(core.initial_state(2))
    core.unroll(x, state, never)[0].sum().backward()
    assert core.initial_h.grad is None or not core.initial_h.grad.any()
    once = never.clone()
    once[2, 1] = True
    core.unroll(x, state, once)[0].sum().backward()
    assert core.initial_h.grad.any()


def test_recurrent_weights_are_orthogonal_gate_by_gate():
    for config in (LSTMConfig(hidden=8), GRUConfig(hidden=8)):
        for gate in config.build(5).rnn.weight_hh_l0.split(8):
            torch.testing.assert_close(gate @ gate.T, torch.eye(8), atol=1e-5, rtol=0)


def test_biases_at_the_start():
    """Forget bias 1 by default; chrono spreads the time scales from 1 to T_max, and i mirrors f."""
    i, f, g, o = LSTMConfig(hidden=64, layers=2).build(3).rnn.bias_ih_l1.split(64)
    assert (f == 1).all()
    assert not torch.stack((i, g, o)).any()
    i, f, _, _ = LSTMConfig(hidden=512, chrono=100).build(3).rnn.bias_ih_l0.split(512)
    assert (i == -f).all()
    assert f.min() >= 0
    assert math.log(50) < f.max() <= math.log(99)
    r, z, _ = GRUConfig(hidden=512, chrono=100).build(3).rnn.bias_ih_l0.split(512)
    assert not r.any()
    assert math.log(50) < z.max() <= math.log(99)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LSTMConfig(hidden=0),
        lambda: LSTMConfig(layers=-1),
        lambda: LSTMConfig(hidden=1.5),
        lambda: LSTMConfig(chrono=1),
        lambda: LSTMConfig(forget_bias=float("nan")),
        lambda: GRUConfig(hidden=True),
        lambda: GRUConfig(chrono=0.5),
        lambda: MinGRUConfig(chrono=None),
        lambda: MinLSTMConfig(chrono=None),
        lambda: FFMConfig(chrono=None),
        lambda: SLSTMConfig(forget_bias="much"),
        lambda: PMMConfig(erase_bias=None),
        lambda: StackConfig(cores=5),
        lambda: make_core("lstm", 0),
        lambda: make_core(3, 4),
        lambda: make_core(LSTMConfig, 4),
        lambda: make_core(lambda size: nn.Linear(size, 2), 4),
    ],
)
def test_settings_that_cannot_be_meant(make):
    with pytest.raises(ConfigError):
        make()


def test_make_core():
    """A name, a config or a factory; an unknown name is answered with the nearest and the list."""
    assert isinstance(make_core("lstm", 3), LSTM)
    assert make_core(GRUConfig(hidden=7), 3).output_size == 7
    assert isinstance(make_core(lambda size: GRUConfig().build(size), 3), GRU)
    none = make_core(NoneConfig(), 3)
    assert not none.has_memory
    assert none.initial_state(4) == ()
    with pytest.raises(ConfigError, match=r"'lstm'.*gru, .*lstm"):
        make_core("lsmt", 3)
    assert all(isinstance(config().build(2), Core) for config in CORES.values())


def test_segments_of_the_drawing():
    """The example in the docstring of ``segments``; step t of row b is number 2 t + b."""
    first = torch.zeros(5, 2, dtype=torch.bool)
    first[2, 0] = first[4, 1] = True
    segments = split_at_resets(first)
    a, f, b, g, c, h, d, i, e, j = range(10)
    assert segments.sizes == (4, 3, 2, 1)
    assert segments.order.tolist() == [f, c, a, j, g, d, b, h, e, i]
    assert segments.order[segments.place].tolist() == list(range(10))
    assert segments.source.tolist() == [1, 2, 0, 2]  # 2 is the initial state
    assert segments.last.tolist() == [1, 3]
    assert segments.end.tolist() == [8, 3]


@pytest.mark.parametrize(
    "config", [LSTMConfig(hidden=6, layer_norm=True), GRUConfig(hidden=6, layer_norm=True)]
)
def test_layer_norm_is_around_the_recurrence(config):
    """Inputs of any scale and offset give the same; outputs are normalised; the state is not."""
    torch.manual_seed(0)
    core = config.build(8).double()
    x, first = torch.randn(5, 3, 8, dtype=torch.float64), torch.rand(5, 3) < 0.2
    y, end = core.unroll(x, core.initial_state(3), first)
    louder, _ = core.unroll(1000 * x + 50, core.initial_state(3), first)
    torch.testing.assert_close(louder, y, atol=1e-4, rtol=0)
    torch.testing.assert_close(y.mean(2), torch.zeros_like(y[..., 0]), atol=1e-12, rtol=0)
    assert (y.var(2, correction=0) - 1).abs().max() < 0.05
    h = tree.leaves(end)[0].squeeze(1)
    torch.testing.assert_close(nn.functional.layer_norm(h, (6,)), y[-1])
    assert h.var(1).max() < 0.5
    assert len(core.norms) == 2
    assert not LSTMConfig(hidden=6).build(8).norms


def many_rows_step_as_few() -> None:
    """One acting step of many rows equals that of a few of them."""
    core = LSTM(5, LSTMConfig(hidden=16, layers=2))
    B = lstm_onednn.MANY_ROWS
    x, first = torch.randn(B, 5), torch.zeros(B, dtype=torch.bool)
    state = tree.map(torch.randn_like, core.initial_state(B))
    with torch.no_grad():
        assert lstm_onednn.suits_step(x), "fused"
        y, end = core.step(x, state, first)
        for rows in (slice(0, B // 2), slice(B // 2, B)):
            few, few_end = core.step(x[rows], tree.index(state, rows), first[rows])
            torch.testing.assert_close(few, y[rows])
            for one, two in zip(few_end, tree.index(end, rows)):
                torch.testing.assert_close(one, two)
    assert not lstm_onednn.suits_step(x), "gradients need the cell"


def test_many_rows_step_as_few():
    """The fused step of many rows is the cell's, up to rounding."""
    many_rows_step_as_few()
