"""Every core on the path of a GPU: it reads no number on the host, and has the results of the other path.

The LSTM and the GRU are left out, also inside of other cores: there they are kernels of their own.
"""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.cores import PMMConfig, StackConfig, make_core
from tests.support.core_cases import CASES
from tests.support.recorded import recorded

OTHERS = {
    **{name: config for name, config in CASES.items() if name.split("-")[0] not in ("lstm", "gru", "stack")},
    "pmm": PMMConfig(hidden=5, slots=3, width=2, controller="mingru"),
    "pmm-2": PMMConfig(hidden=4, slots=2, width=3, read_heads=2, controller="slstm"),
    "pmm-learned": PMMConfig(
        hidden=4, slots=3, width=2, controller={"name": "mingru", "hidden": 3, "learned_initial_state": True}
    ),
    "stack": StackConfig(cores=("mingru", "slstm", "lru"), hidden=4),
}
every_case = pytest.mark.parametrize("name", list(OTHERS))
D, B = 3, 4


def build(name, dtype):
    """The core with weights of which none is zero."""
    torch.manual_seed(0)
    core = make_core(OTHERS[name], D).to(dtype)
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.6)
    return core


def draw(core, T, dtype, chance, seed=1):
    """x [T, B, D], a random state and first [T, B]; x and the state want gradients."""
    generator = torch.Generator().manual_seed(seed)

    def leaf_like(leaf):
        shape = (B, *leaf.shape[1:])
        if leaf.is_floating_point():
            return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()
        return torch.randint(1, 4, shape, generator=generator, dtype=leaf.dtype)

    state = tree.map(leaf_like, core.initial_state(1))
    x = torch.randn(T, B, D, generator=generator, dtype=dtype).requires_grad_()
    return x, state, torch.rand(T, B, generator=generator) < chance


def floats(value):
    return [leaf for leaf in tree.leaves(value) if leaf.is_floating_point()]


def backward(core, y, end, x, state, since=0):
    """Gradients of what comes out, of y only from the step ``since`` on, of everything that went in."""
    outs = [y[since:], *floats(end)]
    weights = [torch.linspace(-1, 2, o.numel(), dtype=o.dtype).view_as(o) for o in outs]
    inputs = [x, *floats(state), *core.parameters()]
    return torch.autograd.grad(outs, inputs, weights, allow_unused=True, materialize_grads=True)


def assert_close(got, want, tolerance):
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


@every_case
@pytest.mark.parametrize("chance", [0.0, 0.3, 1.0])
def test_unroll_reads_nothing(name, chance, unread):
    """Values and gradients, of a sequence longer than a chunk of any kernel on a CPU."""
    core = build(name, torch.float64)
    given = draw(core, 19, torch.float64, chance)
    with unread():
        y, end = core.unroll(*given)
        gradients = backward(core, y, end, *given[:2])
        with torch.no_grad():
            bare, bare_end = core.unroll(*given)
    want, want_end = core.unroll(*given)
    assert_close([y, *tree.leaves(end)], [want, *tree.leaves(want_end)], 1e-10)
    assert_close([y, *tree.leaves(end)], [bare, *tree.leaves(bare_end)], 1e-10)
    assert_close(gradients, backward(core, want, want_end, *given[:2]), 1e-8)


@every_case
def test_single_precision(name, unread):
    """In float32, to its rounding; of one step as of many."""
    core = build(name, torch.float32)
    for T in (1, 8):
        given = draw(core, T, torch.float32, 0.3)
        with unread(), torch.no_grad():
            y, end = core.unroll(*given)
        with torch.no_grad():
            want, want_end = core.unroll(*given)
        assert_close([y, *tree.leaves(end)], [want, *tree.leaves(want_end)], 1e-5)


@every_case
def test_step_reads_nothing(name, unread):
    """For acting, and with a gradient."""
    core = build(name, torch.float64)
    x, state, first = draw(core, 1, torch.float64, 0.5)
    with unread():
        y, end = core.step(x[0], state, first[0])
        gradients = backward(core, y, end, x, state)
    want, want_end = core.step(x[0], state, first[0])
    assert_close([y, *tree.leaves(end)], [want, *tree.leaves(want_end)], 1e-12)
    assert_close(gradients, backward(core, want, want_end, x, state), 1e-10)


def poisoned(state, row):
    """A copy of ``state`` with NaN in ``row``, which wants gradients."""

    def leaf_like(leaf):
        leaf = leaf.detach().clone()
        if leaf.is_floating_point():
            leaf[row] = float("nan")
            leaf.requires_grad_()
        return leaf

    return tree.map(leaf_like, state)


with_memory = pytest.mark.parametrize("name", [name for name in OTHERS if name != "none"])


@with_memory
def test_nan_that_a_reset_throws_away_does_not_leak(name, unread):
    """Selected, never multiplied: no value and no gradient behind the reset, at step 0."""
    core = build(name, torch.float64)
    x, state, first = draw(core, 6, torch.float64, 0.2)
    first[0, 2] = True
    bad = poisoned(state, 2)
    with unread():
        y, end = core.unroll(x, bad, first)
        gradients = backward(core, y, end, x, bad)
        step, step_end = core.step(x[0], bad, first[0])
    want, want_end = core.unroll(x, state, first)
    assert_close([y, *tree.leaves(end)], [want, *tree.leaves(want_end)], 1e-10)
    assert_close(gradients, backward(core, want, want_end, x, state), 1e-8)
    torch.testing.assert_close(step, want[0], atol=1e-10, rtol=1e-10)
    assert all(leaf.isfinite().all() for leaf in floats(step_end))


@with_memory
def test_nan_until_a_reset_in_the_middle_does_not_pass_it(name, unread):
    """The row is NaN until then, as on the other path, and the other rows know nothing of it."""
    core = build(name, torch.float64)
    x, state, first = draw(core, 6, torch.float64, 0)
    first[3, 2] = True
    bad = poisoned(state, 2)
    with unread():
        y, end = core.unroll(x, bad, first)
    want, want_end = core.unroll(x, state, first)
    poisoned_part = y[:3, 2, :D] if name == "frames" else y[:3, 2]  # the oldest of its inputs
    assert poisoned_part.isnan().all()
    keep = [0, 1, 3]
    assert_close(
        [y[3:], y[:, keep], *tree.leaves(end)], [want[3:], want[:, keep], *tree.leaves(want_end)], 1e-10
    )


@pytest.mark.parametrize("name", ["mlstm", "mlstm-plain", "window", "window-gtrxl", "mamba", "lru", "mingru"])
def test_gradients_of_other_rows_know_nothing_of_a_nan(name, unread):
    """A NaN in x, and no loss from its episode: gradients of all else are as without it."""
    core = build(name, torch.float64)
    x, state, first = draw(core, 8, torch.float64, 0)
    first[5, 2] = True
    bad = x.detach().clone()
    bad[4, 2] = float("nan")
    bad.requires_grad_()
    results = []
    for given in (x, bad):
        with unread():
            y, _ = core.unroll(given, state, first)
            loss = y[5:].sin().sum() + y[:, [0, 1, 3]].sin().sum()
            (dx,) = torch.autograd.grad(loss, given)
        results.append([y[5:], dx[5:], dx[:, [0, 1, 3]]])
    assert_close(*results, 1e-10)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("does", ["unroll", "step"])
def test_a_cuda_graph_can_hold_it(name, does):
    """Captured once, with the backward pass, and replayed with other inputs: the same as without a graph."""
    torch.manual_seed(0)
    core = make_core(CASES[name], D).cuda()
    given, *others = (tree.map(on_cuda, draw(core, 12, torch.float32, 0.2, seed)) for seed in (1, 2, 3))
    x, state, first = given

    def run():
        if does == "step":
            with torch.no_grad():
                y, end = core.step(x[0], state, first[0])
            return [y, *tree.leaves(end)]
        y, end = core.unroll(x, state, first)
        loss = y.square().sum() + sum(leaf.sin().sum() for leaf in floats(end))
        inputs = [x, *floats(state), *core.parameters()]
        return [
            y,
            *tree.leaves(end),
            *torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True),
        ]

    graph, held = recorded(run, calls=3)
    for other in others:
        with torch.no_grad():
            tree.copy_(given, other)
        graph.replay()
        got = [t.detach().clone() for t in held]
        assert_close(got, [t.detach() for t in run()], 1e-4)


def on_cuda(leaf):
    """A copy of ``leaf`` on the GPU that wants a gradient if the original does."""
    return leaf.detach().cuda().requires_grad_(leaf.requires_grad)
