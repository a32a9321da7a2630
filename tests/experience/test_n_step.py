"""n-step returns over sequences from a replay, against the double sum and by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.experience.returns import n_step
from tests.reference import returns as reference


def sequences(L: int, n: int, M: int, seed: int, trailing: tuple[int, ...] = ()):
    """Sequences with terminations anywhere, and slots that are no steps; NaN where nothing may be read."""
    generator = torch.Generator().manual_seed(seed)
    slots = (L + n, M)
    is_step = torch.rand(slots, generator=generator) < 0.85
    terminated = (torch.rand(slots, generator=generator) < 0.15) & is_step
    reward = torch.randn(slots, generator=generator, dtype=torch.float64).masked_fill(~is_step, torch.nan)
    value = torch.randn((*slots, *trailing), generator=generator, dtype=torch.float64)
    behind = torch.cat([terminated.new_zeros(1, M), terminated[:-1] | ~is_step[:-1]])
    value[behind & ~is_step] = torch.nan  # after an end nothing is read
    return {"reward": reward, "value": value, "terminated": terminated, "is_step": is_step}


@given(
    L=st.integers(1, 12),
    n=st.integers(1, 15),
    M=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    gamma=st.sampled_from([0.0, 0.9, 0.997, 1.0]),
    trailing=st.sampled_from([(), (3,), (2, 1)]),
)
def test_equals_the_double_sum(L, n, M, seed, gamma, trailing):
    """S003-5: rewards, power of gamma and bootstrap use the same k, at most n, and stop at ends."""
    given = sequences(L, n, M, seed, trailing) | {"gamma": gamma, "n": n}
    ours, truth = n_step(**given), reference.n_step(**given)
    torch.testing.assert_close(ours, truth, atol=1e-9, rtol=1e-9)
    assert ours.isfinite().all()


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


@pytest.mark.parametrize(
    ("terminated", "is_step", "expected"),
    [
        ((0, 0, 0, 0), (1, 1, 1, 1), [1 + 2 / 2 + 30 / 4, 2 + 3 / 2 + 40 / 4]),
        ((0, 1, 0, 0), (1, 1, 0, 0), [1 + 2 / 2, 2]),  # terminated: no bootstrap
        ((0, 0, 0, 0), (1, 1, 0, 0), [1 + 2 / 2 + 30 / 4, 2 + 30 / 2]),  # slot 2: the final observation
        ((1, 0, 0, 0), (1, 0, 0, 0), [1, 0]),
        ((0, 0, 0, 0), (1, 0, 0, 0), [1 + 20 / 2, 0]),
    ],
)
def test_by_hand(terminated, is_step, expected):
    """S003-5: two steps, gamma 1/2, over an end in every place."""
    target = n_step(
        reward=column(1, 2, 3, 4),
        value=column(10, 20, 30, 40),
        terminated=column(*terminated).bool(),
        is_step=column(*is_step).bool(),
        gamma=0.5,
        n=2,
    )
    assert target.squeeze(1).tolist() == expected


@pytest.mark.parametrize(("n", "slots"), [(0, 4), (4, 4), (5, 4)])
def test_too_few_slots_are_named(n, slots):
    given = sequences(slots, 0, 2, 0)
    with pytest.raises(RecollectError, match=f"{slots} slots and n = {n}"):
        n_step(**given, gamma=0.9, n=n)


def test_one_value_for_each_slot():
    given = sequences(4, 2, 3, 0)
    with pytest.raises(RecollectError, match=r"\(5, 3\), wanted \(6, 3\)"):
        n_step(**given | {"value": given["value"][1:]}, gamma=0.9, n=2)
