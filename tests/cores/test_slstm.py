"""What is particular to the sLSTM: exponential gates that never overflow, heads, initialisation."""

from __future__ import annotations

import math

import pytest
import torch

from recollect.base import tree
from recollect.cores import SLSTMConfig
from recollect.errors import ConfigError

torch.set_num_threads(1)
FORGET = 3  # the gates are i, z, o, f


def plain_core():
    """One unit that reads (i, z, o, f) as they come, so that a test can set the gates by hand."""
    core = SLSTMConfig(hidden=1, heads=1, norm=False).build(4)
    with torch.no_grad():
        core.weight.copy_(torch.eye(4))
        core.recurrent.zero_()
        core.bias.zero_()
    return core


def unrolled(core, gates):
    """The outputs over gates [T, 4], and the end state, of one row that begins with the initial state."""
    x = torch.tensor(gates).unsqueeze(1)
    y, end = core.unroll(x, core.initial_state(1), torch.zeros(len(gates), 1, dtype=torch.bool))
    return y.squeeze(), end


def by_stepping(core, gates):
    state, out = core.initial_state(1), []
    for row in torch.tensor(gates):
        y, state = core.step(row[None], state, torch.zeros(1, dtype=torch.bool))
        out.append(y.squeeze())
    return torch.stack(out), state


@pytest.mark.parametrize("run", [unrolled, by_stepping])
def test_the_cell_is_a_weighted_mean(run):
    """By hand: a zero of weight 1, then +1 with weight 2 and -1 with weight 6; f and o are open."""
    wide = 50.0
    y, (h, c, m) = run(plain_core(), [[math.log(2), wide, wide, wide], [math.log(6), -wide, wide, wide]])
    torch.testing.assert_close(y, torch.tensor([2 / 3, (2 - 6) / 9]))
    assert y[1] == h.item() == c.item()
    assert m.item() == pytest.approx(math.log(9))


@pytest.mark.parametrize("run", [unrolled, by_stepping])
@pytest.mark.parametrize("size", [80.0, 1e4, 1e30])
def test_exponential_gates_do_not_overflow(run, size):
    """One input outweighs all before it, for as long as nothing heavier comes; and gradients are finite."""
    core = plain_core()
    gates = [[0.0, 1.0, 50.0, 0.0], [size, -1.0, 50.0, 0.0], [-size, 1.0, 50.0, 9.0], [0.0, 1.0, 50.0, 9.0]]
    y, end = run(core, gates)
    heavy = math.tanh(-1.0)
    torch.testing.assert_close(y[1:], torch.full((3,), heavy))
    (y.sum() + sum(leaf.sum() for leaf in end)).backward()
    assert all(p.grad.isfinite().all() for p in core.parameters())


@pytest.mark.parametrize("run", [unrolled, by_stepping])
def test_a_shut_forget_gate_forgets_everything(run):
    """What was there loses its weight, however much that was; gradients stay finite."""
    core = plain_core()
    y, (_, c, m) = run(core, [[30.0, 5.0, 50.0, 5.0], [-30.0, -1.0, 50.0, -1e4]])
    assert c.item() == pytest.approx(math.tanh(-1.0))
    assert m.item() == pytest.approx(-30.0)
    y.sum().backward()
    assert all(p.grad.isfinite().all() for p in core.parameters())


def test_heads_do_not_mix():
    """An output depends on the h, c and m of its own head only, over many steps."""
    torch.manual_seed(0)
    core = SLSTMConfig(hidden=6, heads=2).build(3)
    state = tuple(torch.randn(2, 6, requires_grad=True) for _ in range(3))
    y, _ = core.unroll(torch.randn(5, 2, 3), state, torch.zeros(5, 2, dtype=torch.bool))
    for gradient in torch.autograd.grad(y[-1, :, :3].square().sum() + y[-1, :, 0].sum(), state):
        assert not gradient[:, 3:].any()
        assert gradient[:, :3].all()


def test_the_output_is_normalised_head_by_head():
    """Mean 0 and variance 1 at the start of training, though c is a mean over many steps; c is bounded."""
    torch.manual_seed(0)
    core = SLSTMConfig(hidden=64, chrono=1000).build(8)
    y, (h, c, _) = core.unroll(
        torch.randn(200, 3, 8), core.initial_state(3), torch.zeros(200, 3, dtype=torch.bool)
    )
    heads = y.unflatten(2, (4, 16))
    assert heads.mean(3).abs().max() < 1e-5
    assert 0.3 < heads[-1].var(2, correction=0).min() <= heads.var(3, correction=0).max() <= 1
    assert c.abs().max() < 1
    assert h.abs().mean() < 0.1
    without, _ = (
        SLSTMConfig(norm=False).build(8).step(y[0, :, :8], (torch.zeros(3, 128),) * 3, torch.ones(3) > 0)
    )
    assert without.abs().max() < 1


def test_weights_at_the_start():
    """Orthogonal by head and gate; the forget bias, or chrono's; the other biases zero."""
    torch.manual_seed(0)
    core = SLSTMConfig(hidden=8, heads=2).build(3)
    for gate in core.recurrent.unflatten(2, (4, 4)).permute(0, 2, 1, 3).flatten(0, 1):
        torch.testing.assert_close(gate @ gate.T, torch.eye(4), atol=1e-5, rtol=0)
    bias = core.bias.view(2, 4, 4)
    assert (bias[:, FORGET] == 2).all()
    assert not bias[:, :FORGET].any()
    far = SLSTMConfig(hidden=512).reaching(100)
    assert far.chrono == 100
    forget = far.build(3).bias.view(4, 4, 128)[:, FORGET]
    assert forget.min() >= 0
    assert math.log(50) < forget.max() <= math.log(99)
    weight = SLSTMConfig(hidden=128).build(128).weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / 256), rel=0.05)


def test_a_state_that_nobody_reads_costs_nothing():
    """Without gradients nothing is kept: what comes out shares no memory with a buffer of all steps."""
    core = SLSTMConfig(hidden=8).build(3)
    with torch.no_grad():
        _, end = core.unroll(torch.randn(50, 2, 3), core.initial_state(2), torch.rand(50, 2) < 0.1)
    assert all(leaf.untyped_storage().nbytes() == 2 * 8 * 4 for leaf in tree.leaves(end))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"hidden": 10, "heads": 4}, "such as 12"),
        ({"heads": 0}, "heads = 0"),
        ({"chrono": 1}, "chrono = 1"),
        ({"forget_bias": float("inf")}, "forget_bias = inf: it needs a number"),
    ],
)
def test_settings_that_cannot_be_meant(wrong, words):
    with pytest.raises(ConfigError, match=words):
        SLSTMConfig(**wrong)
