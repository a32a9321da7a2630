"""The mLSTM: what it carries, beyond the law that every core is held to."""

from __future__ import annotations

import copy

import pytest
import torch

from recollect.base import tree
from recollect.cores import MLSTMConfig
from recollect.errors import ConfigError
from recollect.kernels.cpu import matrix_memory
from tests.reference.mlstm import mlstm

torch.set_num_threads(1)


def stepped(core, x, state, first):
    y = []
    for t in range(x.shape[0]):
        out, state = core.step(x[t], state, first[t])
        y.append(out)
    return torch.stack(y), state


def assert_close(a, b, tolerance, **options):
    a, b = (tuple(part) if isinstance(part, list) else part for part in (a, b))
    for got, want in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance, **options)


def random_state(core, rows):
    return {name: torch.randn_like(leaf) for name, leaf in core.initial_state(rows).items()}


def test_acting_and_training_agree_over_many_steps():
    """S002-23: at its default size, in float32, over several chunks, with resets."""
    torch.manual_seed(0)
    core = MLSTMConfig().build(24)
    x, first = torch.randn(200, 18, 24), torch.rand(200, 18) < 0.03
    first[:, 4] = False
    with torch.no_grad():
        acted = stepped(core, x, core.initial_state(18), first)
        trained = core.unroll(x, core.initial_state(18), first)
    assert_close(trained, acted, 1e-5)


@pytest.mark.parametrize("chance", [0.0, 0.15, 0.6])
def test_blocks_and_chunks_join(chance, monkeypatch):
    """S002-23: many blocks of rows and chunks of time, the last of each smaller, against the equations."""
    monkeypatch.setattr(matrix_memory, "ROWS", 3)
    monkeypatch.setattr(matrix_memory, "STEPS", 4)
    torch.manual_seed(1)
    core = MLSTMConfig(hidden=6, heads=2, forget_max=2.0).build(2).double()
    x = torch.randn(14, 7, 2, dtype=torch.float64, requires_grad=True)
    first = torch.rand(14, 7) < chance
    if chance:
        first[[4, 8], [0, 1]] = True  # right where chunks begin
    state = {name: leaf.requires_grad_() for name, leaf in random_state(core, 7).items()}
    outs = [core.unroll(x, state, first), mlstm(core, x, state, first)]
    outs = [[y, *(end[name] for name in state)] for y, end in outs]
    assert_close(*outs, 1e-12)
    factors = [torch.randn_like(leaf) for leaf in outs[0]]
    inputs = [x, *state.values(), *core.parameters()]
    assert_close(*(torch.autograd.grad(found, inputs, factors) for found in outs), 1e-10)


def test_stabiliser_changes_nothing_that_is_read():
    """C and n times e^-a with m + a is the same memory, and read alike, step by step and at once."""
    torch.manual_seed(2)
    core = MLSTMConfig(hidden=8, heads=2).build(3).double()
    x, first = torch.randn(9, 2, 3, dtype=torch.float64), torch.zeros(9, 2, dtype=torch.bool)
    state = random_state(core, 2)
    a = torch.tensor([[3.0, -2.0], [0.5, 7.0]], dtype=torch.float64)
    scale = torch.exp(-a)
    same = {
        **state,
        "C": state["C"] * scale[:, :, None, None],
        "n": state["n"] * scale[:, :, None],
        "m": state["m"] + a,
    }
    for run in (core.unroll, lambda *given: stepped(core, *given)):
        assert_close(run(x, same, first)[0], run(x, state, first)[0], 1e-10)


def test_stabiliser_keeps_huge_gates_in_range():
    """Input gates at their cap for a hundred steps, forget gates wide open and shut: nothing overflows."""
    torch.manual_seed(3)
    core = MLSTMConfig(hidden=8, heads=2).build(3)
    for i, f in ((1e4, 1e4), (-1e4, 1e4), (1e4, -1e4), (-1e4, -1e4)):
        with torch.no_grad():
            core.in_proj.bias[8:10] = i
            core.in_proj.bias[10:12] = f
        x = torch.randn(100, 2, 3, requires_grad=True)
        y, end = core.unroll(x, core.initial_state(2), torch.zeros(100, 2, dtype=torch.bool))
        y.sum().backward()
        assert all(t.isfinite().all() for t in (y, *end.values(), x.grad, core.in_proj.weight.grad))


def test_recalls_the_value_of_a_key():
    """What the matrix is for: values stored under different keys come back by their key."""
    q, k = torch.eye(4).double(), torch.eye(4).double() * 10
    v = torch.randn(4, 4, dtype=torch.float64)
    asked = torch.tensor([2, 0, 3, 1])
    queries = torch.cat((torch.zeros(4, 4).double(), q[asked]))  # store four, then ask for four
    keys, values = torch.cat((k, torch.zeros(4, 4).double())), torch.cat((v, torch.zeros(4, 4).double()))
    ones = torch.zeros(8, 1, 1, dtype=torch.float64)
    read, *_ = matrix_memory.matrix_memory(
        *(t.view(8, 1, 1, 4) for t in (queries, keys, values)),
        ones,
        ones,
        *(torch.zeros(1, 1, *shape, dtype=torch.float64) for shape in ((4, 4), (4,), ())),
        torch.zeros(8, 1, dtype=torch.bool),
    )
    torch.testing.assert_close(read[4:, 0, 0], v[asked], atol=1e-12, rtol=0)


@pytest.mark.parametrize("where", ["x", "C", "m", "conv"])
def test_nan_is_lost_until_the_reset(where):
    """A NaN in an input or in any leaf: where stepping gives NaN, unrolling does; behind a reset neither."""
    torch.manual_seed(0)
    core = MLSTMConfig(hidden=8, heads=2).build(2).double()
    x, first = torch.randn(9, 3, 2, dtype=torch.float64), torch.zeros(9, 3, dtype=torch.bool)
    first[5, 1] = True
    state = random_state(core, 3)
    if where == "x":
        x[3, 1, 0] = torch.nan
    else:
        state[where][1].view(-1)[0] = torch.nan
    x.requires_grad_()
    y, end = core.unroll(x, state, first)
    acted, acted_end = stepped(core, x, state, first)
    assert_close(
        [y, *(end[name] for name in state)],
        [acted, *(acted_end[name] for name in state)],
        1e-12,
        equal_nan=True,
    )
    assert y[4, 1].isnan().all()
    assert y[5:, 1].isfinite().all()
    loss = y[5:].sum() + y[:, 0].sum() + sum(leaf.sum() for leaf in end.values())
    gradients = torch.autograd.grad(loss, [x, *core.parameters()])
    assert all(gradient.isfinite().all() for gradient in gradients[1:])
    assert gradients[0][5:].isfinite().all()


def test_heads_start_with_different_reach():
    """From forgetting at once to keeping for long; ``reaching`` opens the last head's gate further."""
    torch.manual_seed(0)
    config = MLSTMConfig(forget_min=0.0, forget_max=3.0)
    assert config.build(3).in_proj.bias[-4:].tolist() == pytest.approx([0, 1, 2, 3])
    far = config.reaching(1000)
    keep = torch.sigmoid(far.build(3).in_proj.bias[-1]).item()
    assert keep**1000 > 0.9 * torch.exp(torch.tensor(-1.0)).item()
    assert MLSTMConfig().reaching(2) == MLSTMConfig()


def test_outputs_are_of_order_one():
    """Also after hundreds of steps, for heads that follow."""
    torch.manual_seed(0)
    core = MLSTMConfig().build(32)
    with torch.no_grad():
        y, _ = core.unroll(torch.randn(400, 4, 32), core.initial_state(4), torch.zeros(400, 4) > 0)
    assert 0.3 < y[0].std() < 1.5
    assert 0.3 < y[-1].std() < 1.5


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"heads": 3}, "no multiple of core.heads"),
        ({"heads": 0}, "heads"),
        ({"conv": 0}, "conv"),
        ({"forget_min": 7.0}, "forget_min <= forget_max"),
        ({"forget_max": float("inf")}, "forget_max = inf: it needs a number"),
    ],
)
def test_config_is_checked(wrong, word):
    """The message names the field and what it needs."""
    with pytest.raises(ConfigError, match=word):
        MLSTMConfig(**wrong)


@torch.no_grad()
def test_closed_gates_lose_no_precision():
    """S002-23: sums of log f are large where gates close, and their differences must not suffer."""
    torch.manual_seed(0)
    core = MLSTMConfig().build(16)
    core.in_proj.bias[-core.config.heads :] = -60.0  # the forget gates
    x, first = torch.randn(64, 4, 16), torch.zeros(64, 4, dtype=torch.bool)
    single, _ = core.unroll(x, core.initial_state(4), first)
    exact = copy.deepcopy(core).double()
    double, _ = exact.unroll(x.double(), exact.initial_state(4), first)
    torch.testing.assert_close(single.double(), double, atol=2e-5, rtol=0)
