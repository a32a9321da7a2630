"""The law of cores, for every core that we ship: ``unroll`` is ``step`` repeated, and a reset is a wall.

A new core joins by a line in ``tests/support/core_cases.py`` and its equations in ``tests/reference``.
"""

from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recollect.base import tree
from recollect.cores import CORES, make_core
from recollect.errors import StateError
from tests.reference.cores import REFERENCE
from tests.support.core_cases import CASES, SINGLE, SINGLE_TOLERANCE

torch.set_num_threads(1)

D = 3
some = settings(derandomize=True)
every_core = pytest.mark.parametrize("name", list(CASES))
with_memory = pytest.mark.parametrize("name", [name for name in CASES if name != "none"])


def build(name, dtype=torch.float64):
    """The core with weights large enough for mistakes to show."""
    torch.manual_seed(0)
    core = make_core(CASES[name], D).to(dtype)
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return core


def draw(core, T, B, seed, dtype=torch.float64, chance=0.3, fewest=0):
    """x [T, B, D], a random state and first [T, B]; x and the state want gradients.

    Counts in the state, of what a memory holds, are ``fewest`` to 3: with 0, what it holds does not matter.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=dtype).requires_grad_()

    def leaf_like(leaf):
        if leaf.is_floating_point():
            return normal(B, *leaf.shape[1:])
        return torch.randint(fewest, 4, (B, *leaf.shape[1:]), generator=generator, dtype=leaf.dtype)

    state = tree.map(leaf_like, core.initial_state(1))
    return normal(T, B, D), state, torch.rand(T, B, generator=generator) < chance


def floats(value):
    """The leaves that have gradients: not the counts."""
    return [leaf for leaf in tree.leaves(value) if leaf.is_floating_point()]


def poison(leaf, rows):
    """The leaf with NaN in ``rows``; a count stays as it is."""
    return leaf.index_fill(0, rows, float("nan")) if leaf.is_floating_point() else leaf


def stepped(core, x, state, first):
    """unroll as the law defines it."""
    y = []
    for t in range(x.shape[0]):
        out, state = core.step(x[t], state, first[t])
        y.append(out)
    return torch.stack(y), state


def grads(core, y, state, x, given_state):
    """Gradients of a fixed random functional of everything that comes out, of all that went in."""
    generator = torch.Generator().manual_seed(1)
    outs = [y, *floats(state)]
    weights = [torch.randn(o.shape, generator=generator, dtype=torch.float64).to(o) for o in outs]
    loss = sum((o * w).sum() for o, w in zip(outs, weights))
    inputs = [x, *floats(given_state), *core.parameters()]
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


def assert_close(a, b, tolerance):
    for got, want in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


shapes = {"T": st.integers(1, 9), "B": st.integers(1, 5), "seed": st.integers(0, 10**6)}
chances = st.sampled_from([0.0, 0.1, 0.5, 1.0])


def test_every_core_is_here():
    """S002-9: a core cannot join the registry without joining this suite."""
    assert {name.split("-")[0] for name in CASES} == set(CORES)


@every_core
@some
@given(**shapes, chance=chances)
def test_unroll_is_step_repeated(name, T, B, seed, chance):
    """S002-4, S002-23: values and gradients, for every pattern of resets."""
    core = build(name)
    x, state, first = draw(core, T, B, seed, chance=chance)
    whole, loop = core.unroll(x, state, first), stepped(core, x, state, first)
    assert_close(whole, loop, 1e-12)
    assert_close(grads(core, *whole, x, state), grads(core, *loop, x, state), 1e-10)


@every_core
@some
@given(**shapes, chance=chances)
def test_unroll_is_the_reference(name, T, B, seed, chance):
    """S002-23: the same against the equations, which share no code with the core."""
    core = build(name)
    x, state, first = draw(core, T, B, seed, chance=chance)
    ours, truth = core.unroll(x, state, first), REFERENCE[type(core)](core, x, state, first)
    assert_close(ours, truth, 1e-12)
    assert_close(grads(core, *ours, x, state), grads(core, *truth, x, state), 1e-10)


@every_core
@some
@given(**shapes, chance=chances)
def test_single_precision(name, T, B, seed, chance):
    """S002-23: in float32, with and without gradient recording, unroll and step agree."""
    tolerance = SINGLE_TOLERANCE.get(name, SINGLE)
    assert tolerance <= 1e-5
    core = build(name, torch.float32)
    x, state, first = draw(core, T, B, seed, torch.float32, chance)
    whole, loop = core.unroll(x, state, first), stepped(core, x, state, first)
    assert_close(whole, loop, tolerance)
    assert_close(grads(core, *whole, x, state), grads(core, *loop, x, state), 1e-4)
    with torch.no_grad():
        assert_close(core.unroll(x, state, first), whole, tolerance)
        assert_close(stepped(core, x, state, first), whole, tolerance)


@every_core
@some
@given(T=st.integers(2, 9), B=st.integers(1, 4), seed=st.integers(0, 10**6), data=st.data())
def test_any_split_gives_the_same(name, T, B, seed, data):
    """S000-7: state carries over the seams of pieces, gradients too."""
    core = build(name)
    x, state, first = draw(core, T, B, seed)
    cut = data.draw(st.integers(1, T - 1))
    whole = core.unroll(x, state, first)
    y1, middle = core.unroll(x[:cut], state, first[:cut])
    y2, last = core.unroll(x[cut:], middle, first[cut:])
    pieces = torch.cat((y1, y2)), last
    assert_close(pieces, whole, 1e-12)
    assert_close(grads(core, *pieces, x, state), grads(core, *whole, x, state), 1e-10)


@every_core
def test_states_at_equals_stepping(name):
    """The raw input states of chosen steps, and the output as ever."""
    core = build(name)
    x, state, first = draw(core, 8, 3, 5)
    times = [0, 3, 4, 8]
    y, states = core.states_at(x, state, first, times)
    assert_close(y, core.unroll(x, state, first)[0], 1e-12)
    for time, got in zip(times, states, strict=True):
        want = state if time == 0 else stepped(core, x[:time], state, first[:time])[1]
        assert_close(got, want, 1e-12)


@every_core
def test_rows_are_independent(name):
    """S001-26: another row's input, state and resets change nothing in this one."""
    core = build(name)
    x, state, first = draw(core, 7, 4, 11, fewest=1)
    y, end = core.unroll(x, state, first)
    keep = torch.tensor([0, 1, 3])
    (gradient,) = torch.autograd.grad(y[:, keep].sum(), x)
    assert (gradient[:, 2] == 0).all()
    assert (gradient[:, keep] != 0).any()

    with torch.no_grad():
        x2, first2 = x.clone(), first.clone()
        x2[:, 2] += 10
        first2[:, 2] = ~first2[:, 2]
        state2 = tree.map(lambda leaf: leaf.index_fill(0, torch.tensor([2]), 5), state)
        y2, end2 = core.unroll(x2, state2, first2)
    torch.testing.assert_close(y2[:, keep], y[:, keep], atol=1e-12, rtol=0)
    assert_close(tree.index(end2, keep), tree.index(end, keep), 1e-12)


@with_memory
def test_nothing_crosses_a_reset(name):
    """S004-3, S002-3: what comes after a reset has no gradient from before it, exactly; inside it has."""
    core = build(name)
    x, state, _ = draw(core, 9, 3, 2, fewest=1)
    first = torch.zeros(9, 3, dtype=torch.bool)
    first[4, 1] = True
    y, end = core.unroll(x, state, first)
    after = y[4:, 1].sum() + sum(leaf[1].sum() for leaf in floats(end))
    dx, *dstate = torch.autograd.grad(after, [x, *floats(state)], retain_graph=True)
    assert (dx[:4] == 0).all()
    assert (dx[4:, 1] != 0).any(1).all()
    assert all((d == 0).all() for d in dstate)

    others = torch.autograd.grad(y[8, 0].square().sum(), [x, *floats(state)])
    assert (others[0][:, 0] != 0).any(1).all()
    assert all((d[0] != 0).any() for d in others[1:])


@with_memory
def test_first_resets_that_row_to_the_initial_state(name):
    """S000-7, S001-26: after a reset the row is as in a fresh episode; its neighbours go on."""
    core = build(name)
    x, state, _ = draw(core, 6, 3, 3, fewest=1)
    none = torch.zeros(6, 3, dtype=torch.bool)
    first = none.clone()
    first[3, 1] = True
    y, _ = core.unroll(x, state, first)
    fresh, _ = core.unroll(x[3:, 1:2], core.initial_state(1), none[3:, 1:2])
    torch.testing.assert_close(y[3:, 1:2], fresh, atol=1e-12, rtol=0)
    undisturbed, _ = core.unroll(x, state, none)
    torch.testing.assert_close(y[:, [0, 2]], undisturbed[:, [0, 2]], atol=1e-12, rtol=0)
    assert not torch.allclose(y[3:, 1], undisturbed[3:, 1])


@with_memory
@pytest.mark.parametrize("T", [1, 6])
def test_nan_before_a_reset_stays_there(name, T):
    """Resets select, never multiply: a NaN that ``first`` throws away reaches no value, no gradient."""
    core = build(name)
    x, state, first = draw(core, T, 4, 4, fewest=1)
    first[0] = torch.tensor([True, False, True, False])
    poisoned = tree.map(lambda leaf: poison(leaf.detach(), first[0].nonzero().squeeze(1)), state)
    for leaf in floats(poisoned):
        leaf.requires_grad_()
    for unrolled in (core.unroll, lambda *a: stepped(core, *a)):
        y, end = unrolled(x, poisoned, first)
        assert_close((y, end), core.unroll(x, state, first), 1e-12)
        for gradient in grads(core, y, end, x, poisoned):
            assert gradient.isfinite().all()


@with_memory
def test_nan_in_the_middle_does_not_pass_the_next_reset(name):
    """The same for a row that is NaN from its start until a reset inside the sequence."""
    for dtype in (torch.float64, torch.float32):
        core = build(name, dtype)
        x, state, _ = draw(core, 6, 3, 6, dtype, fewest=1)
        first = torch.zeros(6, 3, dtype=torch.bool)
        first[3, 1] = True
        poisoned = tree.map(lambda leaf: poison(leaf, torch.tensor([1])), state)
        y, end = core.unroll(x, poisoned, first)
        want, want_end = core.unroll(x, state, first)
        poisoned_part = y[:3, 1, :D] if name == "frames" else y[:3, 1]  # the oldest of its inputs
        assert poisoned_part.isnan().all()
        torch.testing.assert_close(y[3:, 1], want[3:, 1], atol=1e-6, rtol=0)
        torch.testing.assert_close(y[:, [0, 2]], want[:, [0, 2]], atol=1e-6, rtol=0)
        assert_close(end, want_end, 1e-6)


@every_core
def test_non_contiguous_and_expanded_inputs(name):
    """Transposed views, and the expanded initial state, give what copies give."""
    core = build(name)
    x, _, first = draw(core, 5, 4, 7)
    state = core.initial_state(4)
    odd_x = x.detach().permute(1, 2, 0).contiguous().permute(2, 0, 1)
    odd_first = first.T.contiguous().T
    assert_close(core.unroll(odd_x, state, odd_first), core.unroll(x, tree.clone(state), first), 1e-12)


@with_memory
def test_gradcheck(name):
    """Finite differences, so that no shared mistake in two analytic gradients can hide."""
    core = build(name)
    x, state, first = draw(core, 4, 2, 8, chance=0.4)
    leaves = tree.leaves(state)

    def outputs(x, *rest):
        y, end = core.unroll(x, tree.from_leaves(state, rest[: len(leaves)]), first)
        return y, *floats(end)

    assert torch.autograd.gradcheck(outputs, (x, *leaves, *core.parameters()), fast_mode=True)


@with_memory
def test_backward_twice_and_double_backward(name):
    """A kept graph can be used again; a gradient of the gradient is right, or raises."""
    core = build(name)
    x, state, first = draw(core, 4, 2, 9)
    y, _ = core.unroll(x, state, first)
    once = torch.autograd.grad(y.sum(), x, retain_graph=True)
    again = torch.autograd.grad(y.sum(), x, retain_graph=True)
    assert_close(once, again, 0)
    (gradient,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    try:
        gradient.sum().backward()
    except RuntimeError as error:
        if not re.search("once_differentiable|not implemented|does not require", str(error)):
            raise
        return
    slow, _ = stepped(core, x, state, first)
    (gradient,) = torch.autograd.grad((slow**2).sum(), x, create_graph=True)
    want = torch.autograd.grad(gradient.sum(), x)[0]
    torch.testing.assert_close(x.grad, want, atol=1e-9, rtol=1e-9)


@with_memory
def test_only_what_is_asked_for(name):
    """Frozen weights, or a state that wants no gradient, change none of the other gradients."""
    core = build(name)
    x, state, first = draw(core, 5, 3, 10)
    (want,) = torch.autograd.grad(core.unroll(x, state, first)[0].sum(), x)
    core.requires_grad_(False)
    y, _ = core.unroll(x, tree.clone(state), first)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], want, atol=1e-12, rtol=0)
    assert not core.unroll(x.detach(), tree.clone(state), first)[0].requires_grad


@every_core
def test_misuse_is_refused(name):
    """S000-12, S002-10, S004-4: no state, another's state, cut rows, a transposed x."""
    core = build(name)
    x, state, first = draw(core, 5, 4, 12)
    with pytest.raises(StateError, match="no state was given"):
        core.unroll(x, None, first)
    with pytest.raises(StateError, match="transposed"):
        core.unroll(x.permute(2, 0, 1), state, first)
    with pytest.raises(StateError, match="first"):
        core.unroll(x.transpose(0, 1), state, first)
    with pytest.raises(StateError, match="first"):
        core.step(x[0], state, first)
    if tree.leaves(state):
        with pytest.raises(StateError, match="rows"):
            core.unroll(x, tree.index(state, slice(0, 2)), first)
        with pytest.raises(StateError, match="leaves"):
            core.unroll(x, (), first)
        with pytest.raises(StateError, match="leaves"):
            core.step(x[0], tree.map(lambda leaf: leaf[..., :-1], state), first[0])


@every_core
def test_state_survives_index_and_put(name):
    """S000-20: rows cut out of a state and put back change nothing; other rows stay."""
    core = build(name)
    _, state, _ = draw(core, 1, 5, 13)
    rows = torch.tensor([3, 1])
    back = tree.put(tree.clone(state), rows, tree.index(state, rows))
    assert_close(back, state, 0)
