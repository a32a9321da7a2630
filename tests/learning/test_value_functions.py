"""Value rescaling, the quantile Huber loss, priorities and double Q-learning against the papers' formulas."""

from __future__ import annotations

import itertools

import gymnasium as gym
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.learning.value_functions import double_q, mixed_priority, quantile_huber, rescale, undo_rescale
from recollect.policy.q_heads import QHead
from tests.reference import value_functions as reference
from tests.reference.q_heads import joint_values

DOUBLE = torch.float64
EPSILONS = (1e-3, 1e-2, 0.1)
REAL = torch.cat([10.0 ** torch.linspace(-12, 6, 400, dtype=DOUBLE), torch.zeros(1, dtype=DOUBLE)])
REAL = torch.cat([REAL, -REAL])
"""From -1e6 to 1e6."""


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_rescaling_equals_the_papers_formula(epsilon):
    found = rescale(REAL, epsilon)
    want = torch.tensor([reference.h(x, epsilon) for x in REAL.tolist()], dtype=DOUBLE)
    torch.testing.assert_close(found, want, atol=1e-13, rtol=1e-13)
    back = torch.tensor([reference.inverse_h(x, epsilon) for x in REAL.tolist()], dtype=DOUBLE)
    torch.testing.assert_close(undo_rescale(REAL, epsilon), back, atol=1e-9, rtol=1e-10)


@pytest.mark.parametrize("epsilon", [0.0, *EPSILONS])
def test_the_inverse_undoes_the_rescaling(epsilon):
    """Exact to 1e-9 over +-1e6, and to 14 digits near 0."""
    scaled = rescale(REAL, epsilon)
    found = undo_rescale(scaled, epsilon)
    torch.testing.assert_close(found, REAL, atol=1e-9, rtol=0)
    torch.testing.assert_close(found, REAL, atol=0, rtol=1e-14)
    torch.testing.assert_close(rescale(found, epsilon), scaled, atol=0, rtol=1e-14)


def test_rescaling_keeps_its_digits_in_single_precision():
    x = REAL.float()
    torch.testing.assert_close(undo_rescale(rescale(x)), x, atol=0, rtol=2e-6)


def test_the_gradient_of_rescaling():
    x = torch.tensor([-1e3, -2.0, -1e-6, 1e-6, 0.3, 50.0], dtype=DOUBLE, requires_grad=True)
    torch.autograd.gradcheck(rescale, (x,))
    (slope,) = torch.autograd.grad(rescale(x, 0.01).sum(), x)
    torch.testing.assert_close(slope, 0.5 / (x.abs() + 1).sqrt() + 0.01)


numbers = st.floats(-5, 5).map(lambda x: round(x, 3))


@given(data=st.data(), kappa=st.sampled_from([0.1, 1.0, 2.5]))
def test_the_quantile_loss_equals_the_papers_formula(data, kappa):
    N, other = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    predicted = data.draw(st.lists(numbers, min_size=N, max_size=N))
    target = data.draw(st.lists(numbers, min_size=other, max_size=other))
    fractions = data.draw(st.lists(st.floats(0.01, 0.99), min_size=N, max_size=N))
    tensors = [torch.tensor(part, dtype=DOUBLE) for part in (predicted, target, fractions)]
    loss, error = quantile_huber(predicted=tensors[0], target=tensors[1], fractions=tensors[2], kappa=kappa)
    assert loss.item() == pytest.approx(
        reference.quantile_huber(predicted, target, fractions, kappa), abs=1e-12
    )
    assert error.item() == pytest.approx(sum(target) / other - sum(predicted) / N, abs=1e-12)


@pytest.mark.parametrize("targets", [4, 7])
def test_the_quantile_loss_of_many_rows(targets):
    """As many quantiles on both sides or not; the fractions belong to the predictions."""
    generator = torch.Generator().manual_seed(0)
    predicted, fractions = (torch.rand(3, 2, 4, generator=generator, dtype=DOUBLE) for _ in range(2))
    target = 2 * torch.randn(3, 2, targets, generator=generator, dtype=DOUBLE)
    loss, error = quantile_huber(predicted=predicted, target=target, fractions=fractions)
    assert loss.shape == error.shape == (3, 2)
    for i, j in itertools.product(range(3), range(2)):
        given = [part[i, j].tolist() for part in (predicted, target, fractions)]
        assert loss[i, j].item() == pytest.approx(reference.quantile_huber(*given, 1.0), abs=1e-12)


def test_the_quantile_loss_finds_the_quantiles():
    """Its minimum is at the quantiles of the targets: also its gradient points there."""
    target = torch.linspace(0, 10, 1001, dtype=DOUBLE)
    fractions = torch.tensor([0.1, 0.5, 0.9], dtype=DOUBLE)
    predicted = torch.full((3,), 5.0, dtype=DOUBLE, requires_grad=True)
    optimiser = torch.optim.SGD([predicted], lr=1.0)
    for _ in range(400):
        optimiser.zero_grad()
        quantile_huber(predicted=predicted, target=target, fractions=fractions, kappa=0.01)[0].backward()
        optimiser.step()
    torch.testing.assert_close(predicted.detach(), 10 * fractions, atol=0.02, rtol=0)


@given(data=st.data(), eta=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_priorities_mix_the_largest_and_the_mean_error(data, eta):
    L = data.draw(st.integers(1, 6))
    error = [data.draw(st.lists(numbers, min_size=L, max_size=L)) for _ in range(3)]
    is_step = [data.draw(st.lists(st.booleans(), min_size=L, max_size=L)) for _ in range(3)]
    padded = torch.tensor(error, dtype=DOUBLE).T.masked_fill(~torch.tensor(is_step).T, 1e9)
    found = mixed_priority(error=padded, is_step=torch.tensor(is_step).T, eta=eta)
    want = [
        reference.mixed_priority([e for e, kept in zip(*column) if kept], eta)
        for column in zip(error, is_step)
    ]
    assert found.tolist() == pytest.approx(want, abs=1e-12)


def test_padding_has_no_part_in_a_priority():
    """Nor in its mean; a sequence without a step has priority 0."""
    error = torch.full((4, 2), float("nan"))
    error[1:3, 0] = torch.tensor([-3.0, 1.0])
    found = mixed_priority(error=error, is_step=error.isfinite())
    assert found.tolist() == pytest.approx([0.9 * 3 + 0.1 * 2, 0.0])


@pytest.mark.parametrize("space", [gym.spaces.Discrete(4), gym.spaces.MultiDiscrete([2, 3])], ids=str)
def test_double_q_learning_selects_online_and_values_by_the_target(space):
    """Masked actions are never selected, also if they were the best; quantiles of the selected action."""
    head = QHead(space, 3)
    generator = torch.Generator().manual_seed(0)
    online, target = (torch.randn(50, head.size, generator=generator) for _ in range(2))
    quantiles = torch.randn(50, 5, head.size, generator=generator)
    mask = torch.rand(50, head.size, generator=generator) < 0.5
    mask[:, 0] = mask[:, -1] = True
    online = online.masked_fill(~mask, float("-inf"))
    found = double_q(head, online=online, target=target)
    found_quantiles = double_q(head, online=online, target=quantiles)
    for b in range(50):
        by_action = joint_values(head, online[b])
        chosen = max(by_action, key=lambda choices: by_action[choices])
        assert found[b].item() == pytest.approx(joint_values(head, target[b])[chosen], abs=1e-6)
        for i in range(5):
            want = joint_values(head, quantiles[b, i])[chosen]
            assert found_quantiles[b, i].item() == pytest.approx(want, abs=1e-6)
