"""Gymnasium spaces as trees of tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from recollect.base import spaces, tree
from recollect.errors import SpaceError
from tests.envs.test_space_values import SPACES


@pytest.mark.parametrize("name", SPACES)
def test_samples_lie_inside(name: str) -> None:
    space = SPACES[name]
    sample = spaces.sample(space, 200, np.random.default_rng(0))
    assert tree.spec(sample) == tree.spec(spaces.zeros(space, 1))
    for leaf_space, leaf in zip(dict(spaces.walk(space)).values(), tree.leaves(sample)):
        assert not spaces.outside(leaf_space, leaf).any()


def test_samples_reach_both_ends() -> None:
    for space, low, high in (
        (gym_spaces.Discrete(3, start=4), 4, 6),
        (gym_spaces.MultiDiscrete([3, 3]), 0, 2),
        (gym_spaces.Box(0, 255, (4,), np.uint8), 0, 255),
        (gym_spaces.Box(-2, 1, (4,), np.int8), -2, 1),
    ):
        sample = spaces.sample(space, 2000, np.random.default_rng(0))
        assert (int(sample.min()), int(sample.max())) == (low, high)


def test_one_sided_bounds() -> None:
    box = gym_spaces.Box(0, np.inf, (2,), np.float32)
    assert not spaces.outside(box, spaces.sample(box, 50, np.random.default_rng(0))).any()


def test_outside() -> None:
    box = gym_spaces.Box(-0.1, 0.1, (2,), np.float64)
    rows = torch.tensor([[0.1, -0.1], [0.2, 0.0], [torch.nan, 0.0]])
    assert spaces.outside(box, rows).tolist() == [False, True, True]
    assert spaces.outside(gym_spaces.Discrete(2, start=1), torch.tensor([0, 1, 2, 3])).tolist() == [
        True,
        False,
        False,
        True,
    ]
    assert spaces.outside(gym_spaces.MultiBinary(2), torch.tensor([[0, 1], [2, 0]])).tolist() == [False, True]


def test_walk_names_and_refuses() -> None:
    assert [name for name, _ in spaces.walk(SPACES["nested"])] == ["x.0", "x.1.y", "z"]
    with pytest.raises(SpaceError, match=r"x is a Text, which is not supported"):
        list(spaces.walk(gym_spaces.Dict({"x": gym_spaces.Text(3)})))


def test_dtypes() -> None:
    """Floats travel as float32, categories as int64, bits as int8, images as they are."""
    dtypes = {name: next(iter(tree.spec(spaces.zeros(s, 1)).values()))[1] for name, s in SPACES.items()}
    assert dtypes["box-float64"] == torch.float32
    assert dtypes["discrete"] == dtypes["multi-discrete"] == torch.int64
    assert dtypes["multi-binary"] == torch.int8
    assert dtypes["image"] == torch.uint8


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((84, 84, 3), True), ((4, 64, 64), True), ((3, 3, 3), False), ((84, 84), False)],
)
def test_is_image(shape: tuple[int, ...], expected: bool) -> None:
    assert spaces.is_image(gym_spaces.Box(0, 255, shape, np.uint8)) is expected
