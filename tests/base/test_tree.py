"""Trees of tensors: every state and observation goes through these few functions."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recollect.base import tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import StateError


def state(rows: int) -> dict:
    """Leaves of different ranks and dtypes; every entry is unlike every other."""
    return {
        "h": torch.arange(rows * 6, dtype=torch.float32).view(rows, 2, 3),
        "memory": (torch.arange(rows * 8).view(rows, 2, 2, 2), torch.arange(rows).double()),
        "used": torch.arange(rows) % 2 == 0,
    }


def same(a, b) -> bool:
    return tree.spec(a) == tree.spec(b) and all(
        torch.equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b))
    )


@given(st.data())
def test_index_and_put_are_inverses(data):
    """S004-6, S000-20: taking rows and putting them back, for any set and order of rows."""
    rows = data.draw(st.integers(1, 8))
    picks = data.draw(st.lists(st.integers(0, rows - 1), unique=True, max_size=rows))
    which = torch.tensor(picks, dtype=torch.int64)
    whole = state(rows)
    taken = tree.index(whole, which)
    assert same(tree.put(whole, which, taken), whole)
    blank = tree.map(torch.zeros_like, whole)
    scattered = tree.put(blank, which, taken)
    assert same(tree.index(scattered, which), taken)
    others = torch.tensor([i for i in range(rows) if i not in picks], dtype=torch.int64)
    assert same(tree.index(scattered, others), tree.index(blank, others))


@given(rows=st.integers(1, 6), seed=st.integers(0, 1000))
def test_select_is_row_by_row(rows, seed):
    """S001-26, S004-4: every leaf, whatever its rank, follows the mask of its row."""
    mask = torch.rand(rows, generator=torch.Generator().manual_seed(seed)) < 0.5
    yes, no = state(rows), tree.map(torch.zeros_like, state(rows))
    chosen = tree.select(mask, yes, no)
    for row in range(rows):
        assert same(tree.index(chosen, row), tree.index(yes if mask[row] else no, row))
    assert same(tree.zero_where(~mask, yes), chosen)


def test_select_never_multiplies():
    """0 * NaN is NaN: what is not chosen leaves no trace, in values or gradients."""
    weight = torch.ones(2, requires_grad=True)
    bad = torch.tensor([torch.nan, torch.inf])
    chosen = tree.select(torch.tensor([True, True]), weight * 3, bad)
    zeroed = tree.zero_where(torch.tensor([True, True]), bad)
    (chosen + zeroed).sum().backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [3, 3]


@pytest.mark.parametrize("config", [GRUConfig(4), LSTMConfig(4), LSTMConfig(4, layers=2), GRUConfig(4, 3)])
def test_state_of_h_and_of_h_c(config):
    """S000-20: index, scatter and reset work for h and (h, c), one layer or more."""
    core = config.build(3)
    x, first = torch.randn(5, 4, 3), torch.zeros(5, 4, dtype=torch.bool)
    _, carried = core.unroll(x, tree.clone(core.initial_state(4)), first)
    some = torch.tensor([2, 0])
    assert same(tree.put(carried, some, tree.index(carried, some)), carried)
    cleared = core.reset(carried, torch.tensor([False, True, False, False]))
    assert same(tree.index(cleared, 1), tree.index(core.initial_state(4), 1))
    for row in (0, 2, 3):
        assert same(tree.index(cleared, row), tree.index(carried, row))
    assert all(leaf[1].abs().sum() > 0 for leaf in tree.leaves(carried))


def test_wrong_states_are_refused():
    """S000-12, S004-4, S004-8: another size, another core, other rows, no state, no batch: all raise."""
    core = LSTMConfig(4).build(3)
    x, first = torch.zeros(6, 3), torch.zeros(6, dtype=torch.bool)
    good = core.initial_state(6)
    bad = {
        "no state was given": None,
        "another core": LSTMConfig(5).build(3).initial_state(6),
        "leaves": GRUConfig(4).build(3).initial_state(6),
        "rows": core.initial_state(5),
        "is it the state": (torch.tensor(0.0), torch.tensor(0.0)),
        "holds a list": list(good),
    }
    for words, wrong in bad.items():
        with pytest.raises(StateError, match=words):
            core.step(x, wrong, first)
        with pytest.raises(StateError, match=words):
            core.unroll(x.unsqueeze(0), wrong, first.unsqueeze(0))
    core.step(x, good, first)


class Pair(NamedTuple):
    h: Tensor
    c: Tensor


def test_fits():
    """S004-4: structure, rows and row shapes decide; a named tuple is a tuple, a list is nothing."""
    like = {"a": (torch.zeros(1, 2), torch.zeros(1)), "b": torch.zeros(1, 3)}
    good = {"a": Pair(torch.zeros(4, 2), torch.zeros(4)), "b": torch.zeros(4, 3)}
    assert tree.fits(good, like, 4)
    assert tree.fits((), (), 4)
    assert not tree.fits(good, like, 5)
    assert not tree.fits(good | {"b": torch.zeros(4, 2)}, like, 4)
    assert not tree.fits(good | {"b": torch.tensor(0.0)}, like, 4)
    assert not tree.fits(good | {"c": torch.zeros(4)}, like, 4)
    assert not tree.fits({"a": good["a"]}, like, 4)
    assert not tree.fits(good | {"a": list(good["a"])}, like, 4)
    assert not tree.fits(good | {"a": good["b"]}, like, 4)
    assert not tree.fits(None, like, 4)


def test_structure():
    values = state(3)
    names = ["h", "memory.0", "memory.1", "used"]
    assert [name for name, _ in tree.named_leaves(values)] == names
    assert tree.spec(values)["memory.0"] == ((2, 2, 2), torch.int64)
    assert same(tree.index(tree.stack([values, values]), 1), values)
    assert same(tree.index(tree.cat([values, values]), slice(3, 6)), values)
    assert tree.leaves(()) == []
    assert tree.size_bytes(values) == 3 * (6 * 4 + 8 * 8 + 8 + 1)
    empty = tree.empty(values, (5, 2))
    assert tree.spec(empty, lead=2) == tree.spec(values)
    for wrong in ([torch.zeros(1)], {"a": 3}, None):
        with pytest.raises(TypeError, match="a tree is a tensor"):
            tree.map(lambda leaf: leaf, wrong)


def test_clone_shares_nothing():
    """S004-5: a copy does not follow its source, and carries no graph."""
    source = {"h": torch.ones(2, requires_grad=True) * 2}
    copy = tree.clone(source)
    assert copy["h"].grad_fn is None
    target: dict[str, Tensor] = {"h": torch.zeros(2)}
    with torch.no_grad():
        tree.copy_(target, source)
        source["h"].zero_()
    assert copy["h"].tolist() == target["h"].tolist() == [2, 2]


def test_leaves_and_back():
    """S004-4: a tree taken apart and put together again, whatever its leaves are."""
    whole = state(3)
    assert same(tree.from_leaves(whole, tree.leaves(whole)), whole)
    with pytest.raises(ValueError, match="shorter"):
        tree.from_leaves(whole, tree.leaves(whole)[:-1])
