"""The squashed Gaussian: its entropy against the integral, its density, and saturation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.policy.distributions import TanhGaussian
from tests.reference import distributions as reference

LN2 = math.log(2.0)
ROWS = 200_000


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_squashed_entropy_of_the_unit_normal():
    """S001-11: sigma = 1 and mean = 0 give 0.670; the wrong sign would give 2.17."""
    entropy = TanhGaussian(torch.zeros(1), torch.zeros(1)).entropy().item()
    assert entropy == pytest.approx(0.670, abs=5e-4)


@pytest.mark.parametrize("log_std", [-5.0, -2.0, -0.5, 0.0, 0.5, 1.0])
def test_squashed_entropy_equals_the_integral(log_std: float):
    """S001-11: the quadrature is right to 1e-4 up to log_std = 1, and never above ln 2."""
    means = [0.0, 0.1, 0.37, 1.0, 2.5, 6.0, 12.0]
    exact = [reference.tanh_normal_entropy(mean, math.exp(log_std)) for mean in means]
    ours = TanhGaussian(torch.tensor(means).unsqueeze(-1), torch.tensor([log_std])).entropy()
    np.testing.assert_allclose(ours.numpy(), exact, rtol=0, atol=1e-4)
    assert (ours <= LN2).all()


def test_squashed_entropy_sums_and_is_bounded(generator: torch.Generator):
    """S001-11: for n dimensions the entropy is the sum, at most n ln 2."""
    mean, log_std = normal(generator, 200, 4), normal(generator, 200, 4).clamp(-5, 1)
    entropy = TanhGaussian(mean, log_std).entropy()
    each = TanhGaussian(mean.reshape(-1, 1), log_std.reshape(-1, 1)).entropy().view(200, 4)
    torch.testing.assert_close(entropy, each.sum(-1), rtol=0, atol=1e-10)
    assert (entropy <= 4 * LN2).all()


def test_squashed_entropy_has_gradients_to_mean_and_std(generator: torch.Generator):
    """S001-11: the gradient reaches the mean, away from saturation, and is that of the quadrature."""
    mean = normal(generator, 6, 2).requires_grad_()
    log_std = normal(generator, 2).clamp(-2, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda m, s: TanhGaussian(m, s).entropy(), (mean, log_std))
    TanhGaussian(mean, log_std).entropy().sum().backward()
    assert mean.grad is not None
    assert (mean.grad * mean < 0).all(), "more entropy lies towards a mean of zero"


def test_squashed_entropy_is_deterministic():
    """S001-11: no samples: equal parameters give equal entropies, and the global RNG is untouched."""
    dist = TanhGaussian(torch.randn(8, 3), torch.zeros(3))
    before = torch.get_rng_state()
    assert torch.equal(dist.entropy(), dist.entropy())
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.7, 15.0])
def test_squashed_log_prob_is_finite_and_right_in_saturation(mean: float):
    """S001-8: float32 log-probs for |u| <= 20 agree with the float64 definition."""
    u = np.linspace(-20.0, 20.0, 401).astype(np.float32)
    exact = reference.tanh_normal_log_density(u.astype(np.float64), mean, 1.5)
    dist = TanhGaussian(torch.tensor([mean]), torch.tensor([math.log(1.5)]))
    ours = dist.log_prob(torch.from_numpy(u).unsqueeze(-1))
    assert ours.isfinite().all()
    np.testing.assert_allclose(ours.numpy(), exact, rtol=2e-6, atol=2e-5)


def test_squashed_gradients_are_finite_in_saturation():
    """S001-8: also the gradients."""
    mean, log_std = torch.zeros(41, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    u = torch.linspace(-20.0, 20.0, 41).unsqueeze(-1)
    dist = TanhGaussian(mean, log_std)
    (dist.log_prob(u).sum() + TanhGaussian(mean + u, log_std).entropy().sum()).backward()
    assert mean.grad is not None
    assert log_std.grad is not None
    assert mean.grad.isfinite().all()
    assert log_std.grad.isfinite().all()


@pytest.mark.parametrize(("mean", "log_std"), [(0.0, 0.0), (0.6, -0.5), (-0.3, 1.0)])
def test_squashed_samples_follow_the_density(mean: float, log_std: float, generator: torch.Generator):
    """S001-11, S002-18: the histogram of tanh(u) matches exp(log_prob); so does the sampled entropy."""
    dist = TanhGaussian(torch.full((ROWS, 1), mean), torch.tensor([log_std]))
    u = dist.sample(generator)
    log_prob = dist.log_prob(u)
    edges = np.linspace(-0.99, 0.99, 34)
    counts, _ = np.histogram(u.tanh().numpy(), edges)
    masses = reference.tanh_normal_bin_masses(mean, math.exp(log_std), edges)
    deviation = np.abs(counts / ROWS - masses)
    assert (deviation < 5.0 * np.sqrt(masses / ROWS) + 1e-5).all()
    spread = 5.0 * log_prob.std().item() / math.sqrt(ROWS)
    assert -log_prob.mean().item() == pytest.approx(dist.entropy()[0].item(), abs=spread)
