"""The sum tree: exact sums, draws in proportion to weights, no draw of weight 0."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.experience.sum_tree import BRANCHES, ROOT_BRANCHES, SumTree

SIZES = [1, 2, ROOT_BRANCHES, ROOT_BRANCHES + 1, BRANCHES * ROOT_BRANCHES, BRANCHES * ROOT_BRANCHES + 3]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(size=st.sampled_from(SIZES), seed=st.integers(0, 10**6), batches=st.integers(1, 6))
def test_sums_are_those_of_the_children(size, seed, batches):
    """Bit for bit, after any number of changes over many orders of magnitude, repeated entries included."""
    tree, generator = SumTree(size, "cpu"), seeded(seed)
    truth = torch.zeros(size, dtype=torch.float64)
    for _ in range(batches):
        index = torch.randint(size, (50,), generator=generator)
        weight = 10 ** torch.empty(50, dtype=torch.float64).uniform_(-8, 8, generator=generator)
        weight[torch.rand(50, generator=generator) < 0.3] = 0
        tree.set(index, weight)
        for i in index.unique():
            truth[i] = weight[index == i].max()
    assert torch.equal(tree.weights, truth)
    children, root = tree.levels[0], tree.levels[-1]
    for sums, totals in tree.nodes:
        wanted = torch.zeros_like(sums)
        cumulative = children.view(-1, BRANCHES).cumsum(1)
        wanted[: len(cumulative)] = cumulative
        assert torch.equal(sums, wanted), "the sums of the children"
        children = totals
        assert torch.equal(totals, sums[:, -1]), "the totals of the nodes"
    assert torch.equal(root, children.cumsum(0)), "the sums of the root"


@pytest.mark.parametrize("size", SIZES)
def test_an_entry_of_weight_zero_is_never_drawn(size):
    tree, generator = SumTree(size, "cpu"), seeded()
    weight = torch.rand(size, dtype=torch.float64, generator=generator)
    weight[torch.rand(size, generator=generator) < 0.9] = 0
    weight[-1] = 1e-6
    tree.set(torch.arange(size), weight)
    drawn = tree.draw(20_000, generator)
    assert (tree.weights[drawn] > 0).all()
    tree.set(torch.arange(size - 1), torch.zeros(size - 1))
    assert (tree.draw(100, generator) == size - 1).all()


@pytest.mark.parametrize("size", [7, ROOT_BRANCHES + 100])
def test_draws_follow_the_weights(size):
    """Chi-square of 400,000 draws, each entry expected at least 50 times, at five standard deviations."""
    tree, generator, draws = SumTree(size, "cpu"), seeded(3), 400_000
    weight = 0.5 + torch.rand(size, dtype=torch.float64, generator=generator) ** 3
    tree.set(torch.arange(size), weight)
    expected = draws * weight / weight.sum()
    assert expected.min() > 50
    counts = tree.draw(draws, generator).bincount(minlength=size)
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = size - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_draws_of_an_empty_tree_stay_inside():
    tree = SumTree(ROOT_BRANCHES + 1, "cpu")
    assert (tree.draw(10, seeded()) < tree.size).all()


def test_draws_repeat_with_the_seed():
    tree = SumTree(500, "cpu")
    tree.set(torch.arange(500), torch.rand(500))
    assert torch.equal(tree.draw(64, seeded(1)), tree.draw(64, seeded(1)))
    assert not torch.equal(tree.draw(64, seeded(1)), tree.draw(64, seeded(2)))


def test_a_draw_of_nothing_is_an_error():
    with pytest.raises(RecollectError, match="count must be at least 1"):
        SumTree(3, "cpu").draw(0)
