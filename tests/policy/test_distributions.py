"""Distributions against torch.distributions, the reference integrals, and themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch import distributions as torch_dist

from recollect.policy.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    Joint,
    MultiCategorical,
    Shaped,
    TanhGaussian,
)

LEADS = [(), (5,), (3, 5)]
NVEC = (2, 5, 3)
ROWS = 200_000


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def every_kind(generator: torch.Generator, lead: tuple[int, ...]) -> dict[str, Distribution]:
    """One of each, in float32."""
    draw = lambda *shape: normal(generator, *lead, *shape).float()  # noqa: E731
    log_std = torch.tensor([-0.5, 0.3, -3.0])
    return {
        "categorical": Categorical(draw(4)),
        "masked": Categorical(draw(4), torch.tensor([1, 0, 1, 1], dtype=torch.int8).expand(*lead, 4)),
        "multi": MultiCategorical(draw(sum(NVEC)), NVEC),
        "bernoulli": Bernoulli(draw(3)),
        "gaussian": Gaussian(draw(3), log_std),
        "tanh": TanhGaussian(draw(3), log_std),
        "shaped": Shaped(TanhGaussian(draw(6), draw(6) * 0.3), (2, 3)),
        "scalar": Shaped(Gaussian(draw(1), draw(1)), ()),
        "joint": Joint(
            {"a": Categorical(draw(3)), "b": Joint((Bernoulli(draw(2)), Gaussian(draw(3), log_std)))}
        ),
    }


KINDS = list(every_kind(torch.Generator(), ()))


# Against torch.distributions ----------------------------------------------------------------------


@pytest.mark.parametrize("lead", LEADS)
def test_categorical_equals_torch(lead: tuple[int, ...], generator: torch.Generator):
    logits = 3.0 * normal(generator, *lead, 6)
    ours, theirs = Categorical(logits), torch_dist.Categorical(logits=logits)
    action = ours.sample(generator)
    assert action.shape == lead
    assert action.dtype is torch.int64
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action), rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.entropy(), theirs.entropy(), rtol=0, atol=1e-12)
    assert torch.equal(ours.mode(), logits.argmax(-1))


@pytest.mark.parametrize("nvec", [NVEC, (4, 4), (1,), (3,)])
def test_multi_categorical_equals_torch(nvec: tuple[int, ...], generator: torch.Generator):
    logits = 3.0 * normal(generator, 4, 5, sum(nvec))
    ours = MultiCategorical(logits, nvec)
    theirs = [torch_dist.Categorical(logits=part) for part in logits.split(nvec, -1)]
    action = ours.sample(generator)
    assert action.shape == (4, 5, len(nvec))
    log_prob = torch.stack([d.log_prob(action[..., i]) for i, d in enumerate(theirs)]).sum(0)
    entropy = torch.stack([d.entropy() for d in theirs]).sum(0)
    torch.testing.assert_close(ours.log_prob(action), log_prob, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.entropy(), entropy, rtol=0, atol=1e-12)
    assert torch.equal(ours.mode(), torch.stack([d.probs.argmax(-1) for d in theirs], -1))


@pytest.mark.parametrize("lead", LEADS)
def test_bernoulli_equals_torch(lead: tuple[int, ...], generator: torch.Generator):
    logits = 3.0 * normal(generator, *lead, 4)
    ours, theirs = Bernoulli(logits), torch_dist.Bernoulli(logits=logits)
    action = ours.sample(generator)
    assert action.shape == (*lead, 4)
    assert action.dtype is torch.int8
    log_prob = theirs.log_prob(action.double()).sum(-1)
    torch.testing.assert_close(ours.log_prob(action), log_prob, rtol=0, atol=1e-12)
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1), rtol=0, atol=1e-12)
    assert torch.equal(ours.mode().bool(), logits > 0)


def test_bernoulli_stays_finite_for_certain_choices():
    logits = torch.tensor([[-200.0, 200.0]], requires_grad=True)
    dist = Bernoulli(logits)
    assert dist.log_prob(torch.tensor([[0, 1]], dtype=torch.int8)).item() == 0.0
    assert dist.log_prob(torch.tensor([[1, 0]], dtype=torch.int8)).item() == -400.0
    dist.entropy().sum().backward()
    assert dist.entropy().item() == 0.0
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("shared_std", [True, False])
def test_gaussian_equals_torch(lead: tuple[int, ...], shared_std: bool, generator: torch.Generator):
    mean = normal(generator, *lead, 3)
    log_std = normal(generator, 3) if shared_std else normal(generator, *lead, 3)
    ours, theirs = Gaussian(mean, log_std), torch_dist.Normal(mean, log_std.exp())
    action = ours.sample(generator)
    assert action.shape == (*lead, 3)
    torch.testing.assert_close(ours.log_prob(action), theirs.log_prob(action).sum(-1), rtol=0, atol=1e-11)
    torch.testing.assert_close(ours.entropy(), theirs.entropy().sum(-1), rtol=0, atol=1e-12)
    assert torch.equal(ours.mode(), mean)


def test_tanh_gaussian_log_prob_equals_torch(generator: torch.Generator):
    """S001-8: log-prob of the stored u equals that of a = tanh(u), where a still determines u."""
    mean, log_std = normal(generator, 50, 2), 0.3 * normal(generator, 50, 2)
    transforms = [torch_dist.TanhTransform(cache_size=1)]
    theirs = torch_dist.TransformedDistribution(torch_dist.Normal(mean, log_std.exp()), transforms)
    u = normal(generator, 50, 2)
    log_prob = theirs.log_prob(u.tanh()).sum(-1)
    torch.testing.assert_close(TanhGaussian(mean, log_std).log_prob(u), log_prob, rtol=0, atol=1e-9)


def test_joint_equals_sum_of_torch(generator: torch.Generator):
    """S001-19, S002-18: the log-prob of a hybrid action is the sum over its parts."""
    logits, mean, triggers = normal(generator, 9, 4), normal(generator, 9, 3), normal(generator, 9, 5)
    log_std = normal(generator, 3)
    joint = Joint(
        {"target": Categorical(logits), "body": Joint((Gaussian(mean, log_std), Bernoulli(triggers)))}
    )
    action = joint.sample(generator)
    log_prob = joint.log_prob(action)
    assert set(action) == {"target", "body"}
    move, fire = action["body"]
    expected = (
        torch_dist.Categorical(logits=logits).log_prob(action["target"])
        + torch_dist.Normal(mean, log_std.exp()).log_prob(move).sum(-1)
        + torch_dist.Bernoulli(logits=triggers).log_prob(fire.double()).sum(-1)
    )
    entropy = (
        torch_dist.Categorical(logits=logits).entropy()
        + torch_dist.Normal(mean, log_std.exp()).entropy().sum(-1)
        + torch_dist.Bernoulli(logits=triggers).entropy().sum(-1)
    )
    torch.testing.assert_close(joint.log_prob(action), expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(log_prob, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(joint.entropy(), entropy, rtol=0, atol=1e-11)


# Masks --------------------------------------------------------------------------------------------


def test_masked_categorical_is_the_renormalised_one(generator: torch.Generator):
    logits = normal(generator, 500, 6)
    mask = torch.rand(500, 6, generator=generator) < 0.5
    mask[:, 2] = True
    dist = Categorical(logits, mask.to(torch.int8))
    theirs = torch_dist.Categorical(probs=logits.softmax(-1) * mask)
    probs = dist.log_probs.exp()
    assert (probs[~mask] == 0.0).all()
    torch.testing.assert_close(probs, theirs.probs, rtol=0, atol=1e-12)
    expected = [torch_dist.Categorical(logits=row[allowed]).entropy() for row, allowed in zip(logits, mask)]
    torch.testing.assert_close(dist.entropy(), torch.stack(expected), rtol=0, atol=1e-12)
    for _ in range(20):
        assert mask.gather(-1, dist.sample(generator).unsqueeze(-1)).all()
    assert mask.gather(-1, dist.mode().unsqueeze(-1)).all()


def test_masked_entries_get_no_gradient_and_no_nan(generator: torch.Generator):
    logits = normal(generator, 8, 5).float().requires_grad_()
    mask = torch.tensor([True, False, True, False, True]).expand(8, 5)
    dist = Categorical(logits, mask)
    (dist.entropy() + dist.log_prob(torch.full((8,), 2))).sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()
    assert (logits.grad[:, 1] == 0).all()
    assert (logits.grad[:, 0] != 0).all()


def test_single_allowed_action_is_certain():
    dist = Categorical(torch.tensor([[50.0, -50.0, 3.0]]), torch.tensor([[0, 1, 0]]))
    action = dist.sample()
    log_prob = dist.log_prob(action)
    assert action.item() == 1
    assert log_prob.item() == 0.0
    assert dist.entropy().item() == 0.0


def test_mask_that_allows_nothing_counts_as_allowing_all(generator: torch.Generator):
    logits = normal(generator, 4, 5).requires_grad_()
    dist, free = Categorical(logits, torch.zeros(4, 5, dtype=torch.bool)), Categorical(logits)
    assert torch.equal(dist.log_probs, free.log_probs)
    dist.entropy().sum().backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_forbidden_stored_action_has_a_finite_ratio():
    dist = Categorical(torch.zeros(1, 3), torch.tensor([[True, True, False]]))
    log_prob = dist.log_prob(torch.tensor([2]))
    assert log_prob.isfinite().all()
    assert (log_prob - log_prob).exp().item() == 1.0


def test_masked_multi_categorical(generator: torch.Generator):
    """Every choice is masked by its own stretch; one that allows nothing is free."""
    logits = normal(generator, 300, sum(NVEC))
    mask = torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 0, 0], dtype=torch.int8).expand(300, -1)
    dist = MultiCategorical(logits, NVEC, mask)
    action = dist.sample(generator)
    log_prob = dist.log_prob(action)
    assert (action[:, 0] == 0).all()
    assert set(action[:, 1].tolist()) == {1, 2, 4}
    assert set(action[:, 2].tolist()) == {0, 1, 2}
    second, third = logits[:, 2:7], logits[:, 7:]
    expected = Categorical(second, mask[:, 2:7]).log_prob(action[:, 1])
    expected = expected + Categorical(third).log_prob(action[:, 2])
    torch.testing.assert_close(log_prob, expected, rtol=0, atol=1e-12)
    assert dist.entropy().isfinite().all()


# Sampling and storage -----------------------------------------------------------------------------


def test_categorical_samples_follow_the_probabilities(generator: torch.Generator):
    """S002-18: the histogram of sampled actions is that of the probabilities, mode aside."""
    probs = torch.tensor([0.5, 0.3, 0.15, 0.049, 0.001])
    action = Categorical(probs.log().expand(ROWS, 5)).sample(generator)
    frequency = action.bincount(minlength=5) / ROWS
    assert ((frequency - probs).abs() < 5.0 * (probs / ROWS).sqrt()).all()


def test_bernoulli_and_gaussian_samples_follow_their_parameters(generator: torch.Generator):
    """S002-18: sampled, not the mode."""
    probs = torch.tensor([0.02, 0.5, 0.9])
    frequency = Bernoulli(probs.logit().expand(ROWS, 3)).sample(generator).float().mean(0)
    assert ((frequency - probs).abs() < 5.0 * (probs / ROWS).sqrt()).all()
    u = Gaussian(torch.full((ROWS, 1), 2.0), torch.tensor([-1.0])).sample(generator)
    std = math.exp(-1.0)
    assert u.mean().item() == pytest.approx(2.0, abs=5 * std / math.sqrt(ROWS))
    assert u.std().item() == pytest.approx(std, rel=5 / math.sqrt(ROWS))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lead", LEADS)
def test_stored_actions_evaluate_to_what_was_recorded(
    kind: str, lead: tuple[int, ...], generator: torch.Generator
):
    """S000-16, S001-8: through storage in the action's dtype the log-prob is the same to the bit."""
    dist = every_kind(generator, lead)[kind]
    action = dist.sample(generator)
    recorded = dist.log_prob(action)
    stored = _through_numpy(action)
    assert recorded.shape == lead
    assert dist.entropy().shape == lead
    assert torch.equal(dist.log_prob(stored), recorded)
    assert ((dist.log_prob(stored) - recorded).exp() == 1.0).all()
    assert dist.log_prob(dist.mode()).shape == lead


@pytest.mark.parametrize("kind", KINDS)
def test_generator_decides_the_sample(kind: str):
    dist = every_kind(torch.Generator().manual_seed(1), (16,))[kind]
    draw = lambda seed: dist.sample(torch.Generator().manual_seed(seed))  # noqa: E731
    before = torch.get_rng_state()
    leaves = lambda action: [leaf.flatten().tolist() for leaf in _flat(action)]  # noqa: E731
    assert leaves(draw(3)) == leaves(draw(3))
    assert leaves(draw(3)) != leaves(draw(4))
    assert torch.equal(before, torch.get_rng_state())


def test_samples_carry_no_gradient():
    """A reparameterised sample would cancel the score function's gradient."""
    mean = torch.zeros(4, 2, requires_grad=True)
    for dist in (Gaussian(mean, torch.zeros(2)), TanhGaussian(mean, torch.zeros(2))):
        action = dist.sample()
        log_prob = dist.log_prob(action)
        assert not action.requires_grad
        (gradient,) = torch.autograd.grad(log_prob.sum(), mean)
        torch.testing.assert_close(gradient, action, rtol=1e-5, atol=1e-6)


def test_half_precision_is_widened():
    """Log-probs and entropies are float32 whatever the network computes in."""
    half = lambda *shape: torch.randn(*shape).bfloat16()  # noqa: E731
    dists: list[Distribution] = [
        Categorical(half(4, 3)),
        MultiCategorical(half(4, 10), NVEC),
        Bernoulli(half(4, 3)),
        Gaussian(half(4, 3), half(3)),
        TanhGaussian(half(4, 3), half(3)),
    ]
    for dist in dists:
        action = dist.sample()
        log_prob = dist.log_prob(action)
        assert log_prob.dtype is dist.entropy().dtype is torch.float32
        assert not action.is_floating_point() or action.dtype is torch.float32


def test_constants_survive_inference_mode():
    """Cached constants that were first needed while acting can be used for learning."""
    with torch.inference_mode():
        TanhGaussian(torch.zeros(1, 1), torch.zeros(1)).entropy()
        MultiCategorical(torch.zeros(1, 9), (2, 7))
    mean, logits = torch.zeros(1, 1, requires_grad=True), torch.zeros(1, 9, requires_grad=True)
    TanhGaussian(mean, torch.zeros(1)).entropy().sum().backward()
    MultiCategorical(logits, (2, 7)).entropy().sum().backward()
    assert logits.grad is not None


def _flat(action) -> list[Tensor]:
    if isinstance(action, Tensor):
        return [action]
    parts = action.values() if isinstance(action, dict) else action
    return [leaf for part in parts for leaf in _flat(part)]


def _through_numpy(action):
    if isinstance(action, dict):
        return {key: _through_numpy(part) for key, part in action.items()}
    if isinstance(action, tuple):
        return tuple(_through_numpy(part) for part in action)
    assert action.dtype in (torch.int64, torch.int8, torch.float32)
    return torch.from_numpy(np.array(action.numpy(), copy=True))
