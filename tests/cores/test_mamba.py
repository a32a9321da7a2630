"""Mamba: what it carries, beyond the law that every core is held to."""

from __future__ import annotations

import math

import pytest
import torch

from recollect.base import tree
from recollect.cores import MambaConfig
from recollect.errors import ConfigError
from recollect.kernels.cpu import selective_scan
from tests.reference.mamba import mamba

torch.set_num_threads(1)


def stepped(core, x, state, first):
    y = []
    for t in range(x.shape[0]):
        out, state = core.step(x[t], state, first[t])
        y.append(out)
    return torch.stack(y), state


def assert_close(a, b, tolerance):
    a, b = (tuple(part) if isinstance(part, list) else part for part in (a, b))
    for got, want in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


def test_acting_and_training_agree_over_many_steps():
    """S004-14: at its default size, in float32, through resets of which some follow at once."""
    torch.manual_seed(0)
    core = MambaConfig().build(24)
    x, first = torch.randn(230, 11, 24), torch.rand(230, 11) < 0.05
    first[100:104, 3] = True
    first[:, 4] = False
    with torch.no_grad():
        acted = stepped(core, x, core.initial_state(11), first)
        trained = core.unroll(x, core.initial_state(11), first)
    assert_close(trained, acted, 1e-5)
    recorded = core.unroll(x.requires_grad_(), core.initial_state(11), first)
    assert_close(recorded, acted, 1e-5)


def test_state_is_exposed_and_reset():
    """S004-14: conv and ssm are leaves of the state; a reset empties both, in that row only."""
    core = MambaConfig(hidden=6, d_state=3, conv=5).build(2)
    state = core.initial_state(2)
    assert {name: tuple(leaf.shape) for name, leaf in state.items()} == {"conv": (2, 4, 6), "ssm": (2, 3, 6)}
    _, full = core.unroll(torch.randn(7, 2, 2), state, torch.zeros(7, 2, dtype=torch.bool))
    assert all((leaf != 0).all() for leaf in full.values())
    emptied = core.reset(full, torch.tensor([True, False]))
    for name, leaf in emptied.items():
        assert (leaf[0] == 0).all()
        assert torch.equal(leaf[1], full[name][1])


@pytest.mark.parametrize("since", [0, 1, 2, 3])
def test_window_stops_at_a_reset(since):
    """S004-14: whatever was before a reset changes not one bit of the steps right after it."""
    torch.manual_seed(0)
    core = MambaConfig(hidden=8, d_state=4).build(3)
    x, first = torch.randn(12, 2, 3), torch.zeros(12, 2, dtype=torch.bool)
    first[6, 0] = True
    other = x.clone()
    other[:6, 0] = 1e3 * torch.randn(6, 3)
    with torch.no_grad():
        y, end = core.unroll(x, core.initial_state(2), first)
        y_other, end_other = core.unroll(other, core.initial_state(2), first)
        fresh, _ = core.unroll(x[6:, :1], core.initial_state(1), first[:6, :1])
    assert torch.equal(y[6 + since, 0], y_other[6 + since, 0])
    assert all(torch.equal(end[name][0], end_other[name][0]) for name in end)
    torch.testing.assert_close(y[6 + since, 0], fresh[since, 0], atol=1e-6, rtol=1e-6)
    assert not torch.equal(y[5, 0], y_other[5, 0])


@pytest.mark.parametrize("chance", [0.0, 0.15, 0.6])
def test_blocks_and_chunks_join(chance, monkeypatch):
    """S002-23: many blocks of rows and chunks of time, the last of each smaller, against the equations."""
    monkeypatch.setattr(selective_scan, "ROWS", 3)
    monkeypatch.setattr(selective_scan, "STEPS", 4)
    torch.manual_seed(1)
    core = MambaConfig(hidden=3, d_state=2, expand=2).build(2).double()
    x = torch.randn(14, 7, 2, dtype=torch.float64, requires_grad=True)
    first = torch.rand(14, 7) < chance
    if chance:
        first[[4, 8], [0, 1]] = True  # right where chunks begin
    state = {name: torch.randn_like(leaf).requires_grad_() for name, leaf in core.initial_state(7).items()}
    outs = [core.unroll(x, state, first), mamba(core, x, state, first)]
    assert_close(*outs, 1e-12)
    leaves = [[y, *end.values()] for y, end in outs]
    factors = [torch.randn_like(leaf) for leaf in leaves[0]]
    inputs = [x, *state.values(), *core.parameters()]
    assert_close(*(torch.autograd.grad(found, inputs, factors) for found in leaves), 1e-10)


@pytest.mark.parametrize("used", ["y", "state"])
def test_gradient_of_one_result_only(used):
    """A loss that looks at the output alone, or at the state alone, has the gradient of the equations."""
    torch.manual_seed(2)
    core = MambaConfig(hidden=4, d_state=3).build(2).double()
    x, first = torch.randn(9, 3, 2, dtype=torch.float64, requires_grad=True), torch.rand(9, 3) < 0.2
    gradients = []
    for run in (core.unroll, lambda *given: mamba(core, *given)):
        y, end = run(x, core.initial_state(3), first)
        loss = y.sin().sum() if used == "y" else end["ssm"].sin().sum()
        gradients.append(torch.autograd.grad(loss, [x, core.A_log, core.conv_weight]))
    assert_close(*gradients, 1e-10)


def test_nan_inputs_stay_before_the_reset():
    """A NaN that was seen reaches no value and no gradient behind the next reset."""
    torch.manual_seed(0)
    core = MambaConfig(hidden=4, d_state=3).build(2).double()
    x, first = torch.randn(8, 2, 2, dtype=torch.float64), torch.zeros(8, 2, dtype=torch.bool)
    first[5, 1] = True
    bad = x.clone()
    bad[4, 1] = torch.nan
    results = []
    for given in (x, bad):
        given = given.requires_grad_()
        y, end = core.unroll(given, core.initial_state(2), first)
        loss = y[5:].sum() + y[:, 0].sum() + sum(leaf.sum() for leaf in end.values())
        (dx,) = torch.autograd.grad(loss, given)
        results.append([y[5:], y[:, 0], *end.values(), dx[5:], dx[:, 0]])
        wanted_nan = given is bad
        assert y[4, 1].isnan().all() == wanted_nan
    assert_close(*results, 1e-12)


def test_initial_step_sizes_and_reach():
    """Step sizes within their range; after ``reaching`` every channel has a memory that lasts."""
    torch.manual_seed(0)
    core = MambaConfig(dt_min=0.01, dt_max=0.2).build(3)
    dt = torch.nn.functional.softplus(core.dt_proj.bias)
    assert 0.0099 < dt.min() < 0.02
    assert 0.1 < dt.max() < 0.201

    def left(config):
        """[I] what the slowest memory of each channel keeps of itself over 500 empty steps."""
        core = config.build(3)
        state = {**core.initial_state(1), "ssm": torch.ones(1, config.d_state, core.A_log.shape[1])}
        none = torch.zeros(500, 1, dtype=torch.bool)
        return core.unroll(torch.zeros(500, 1, 3), state, none)[1]["ssm"].amax(1).squeeze()

    with torch.no_grad():
        assert left(MambaConfig().reaching(500)).min() > 0.99 * math.exp(-1)
        assert left(MambaConfig()).min() < 1e-4
    assert MambaConfig().reaching(1) == MambaConfig()


def test_outputs_are_of_order_one():
    """Also after hundreds of steps, for heads that follow."""
    torch.manual_seed(0)
    for config in (MambaConfig(), MambaConfig().reaching(1000), MambaConfig(expand=2)):
        core = config.build(32)
        with torch.no_grad():
            y, _ = core.unroll(torch.randn(400, 4, 32), core.initial_state(4), torch.zeros(400, 4) > 0)
        assert 0.5 < y[0].std() < 1.5
        assert 0.5 < y[-1].std() < 1.5


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"d_state": 0}, "d_state"),
        ({"conv": 1}, "core.conv = 1: it must be at least 2"),
        ({"dt_rank": -1}, "dt_rank"),
        ({"dt_min": 0.2, "dt_max": 0.1}, "dt_min <= dt_max"),
        ({"dt_min": 0.0}, "dt_min"),
        ({"a_min": 0.0}, "a_min"),
        ({"a_min": 17.0}, "at most d_state"),
    ],
)
def test_config_is_checked(wrong, word):
    """The message names the field and what it needs."""
    with pytest.raises(ConfigError, match=word):
        MambaConfig(**wrong)
