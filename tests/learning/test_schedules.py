"""Schedules of coefficients."""

from __future__ import annotations

import pytest

from recollect.errors import ConfigError
from recollect.learning.schedules import scheduled


def twice(shape, progress, warmup=0.0):
    """From 2 to 1."""
    return 2 * scheduled(0.5, shape, progress, warmup)


@pytest.mark.parametrize(
    ("shape", "at"),
    [
        ("constant", {0.0: 2, 0.5: 2, 1.0: 2}),
        ("linear", {0.0: 2, 0.25: 1.75, 0.5: 1.5, 1.0: 1}),
        ("cosine", {0.0: 2, 0.25: 1.853553, 0.5: 1.5, 0.75: 1.146447, 1.0: 1}),
    ],
)
def test_shapes(shape, at):
    """S001-24: values by hand, held outside of [0, 1]."""
    for progress, expected in at.items():
        assert twice(shape, progress) == pytest.approx(expected, abs=1e-6)
    assert twice(shape, -1) == twice(shape, 0)
    assert twice(shape, 7) == twice(shape, 1)


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine"])
def test_warmup(shape):
    """S001-24: from 0 to the start in a straight line, then the shape over what is left."""
    assert [twice(shape, p, warmup=0.2) for p in (0, 0.1)] == pytest.approx([0, 1])
    assert twice(shape, 0.2, warmup=0.2) == pytest.approx(2)
    assert twice(shape, 0.6, warmup=0.2) == pytest.approx(twice(shape, 0.5))
    assert twice(shape, 1, warmup=0.2) == pytest.approx(twice(shape, 1))


def test_unknown_shape():
    with pytest.raises(ConfigError, match="no schedule is named 'sine': choose constant, linear or cosine"):
        scheduled(0, "sine", 0.5)
