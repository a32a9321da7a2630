"""Numbers as texts: large ones without an exponent."""

from __future__ import annotations

import math

import numpy as np
import pytest

from recollect.acting.evaluate import Evaluation
from recollect.base.formatting import digits, setting, short


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (4896.0, "4,896"),
        (-4896.4, "-4,896"),
        (1_234_567.8, "1,234,568"),
        (999.4, "999"),
        (999.6, "1,000"),
        (0.0, "0"),
        (1.0, "1"),
        (-0.2371, "-0.237"),
        (2.5e-7, "2.5e-07"),
        (1e20, "1e+20"),
        (math.nan, "nan"),
        (math.inf, "inf"),
    ],
)
def test_digits(value, text):
    assert digits(value) == text


def test_more_digits_and_other_forms():
    assert digits(4896.0, 4) == "4,896"
    assert digits(10_000.0, 4) == "10,000"
    assert digits(99.996, 4) == "100"
    assert [setting(x) for x in (3e-4, 0.5, 2.0, 1e6, 4e4, 5000.0)] == [
        *("0.0003", "0.5", "2", "1,000,000", "40,000", "5000")
    ]
    assert short(-43_210.0) == "-43,210"


def test_an_evaluation_of_large_returns():
    returns = np.array([4_700.0, 5_100.0])
    text = str(Evaluation(returns, np.array([1000, 1000])))
    assert "return 4,900 (95% interval 4,700 to 5,100), length 1,000" in text
    assert "e+" not in text
