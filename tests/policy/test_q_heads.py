"""Heads that estimate action values: formulas, masks, exploration, noise."""

from __future__ import annotations

import itertools

import gymnasium as gym
import pytest
import torch

from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
from recollect.errors import ConfigError, SpaceError
from recollect.policy.q_heads import QHead, QuantileHead
from tests.reference.q_heads import joint_values, quantile_values, values

torch.set_num_threads(1)

SPACES = {
    "discrete": gym.spaces.Discrete(4),
    "discrete-start": gym.spaces.Discrete(3, start=5),
    "multi": gym.spaces.MultiDiscrete([3, 3]),
    "multi-unequal": gym.spaces.MultiDiscrete([2, 4, 3]),
    "multi-shaped": gym.spaces.MultiDiscrete([[2, 3], [1, 3]], start=[[1, 0], [-2, 0]]),
}
KINDS = {"q": (QHead, QHeadConfig), "quantiles": (QuantileHead, QuantileHeadConfig)}
FEATURES = 5
every_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
every_kind = pytest.mark.parametrize("kind", KINDS)


def build(kind="q", space=SPACES["discrete"], dtype=torch.float64, **settings) -> QHead:
    """A head with weights of any size."""
    torch.manual_seed(0)
    head, config = KINDS[kind]
    made = head(space, FEATURES, config(**{"hidden": (7,), **settings})).to(dtype)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return made


def draw(head, *lead, chance=0.5, seed=1):
    """y [*lead, features], and a mask of which a few rows allow nothing in a component."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randn(*lead, FEATURES, generator=generator, dtype=head.epsilon.dtype)
    return y, (torch.rand(*lead, sum(head.nvec), generator=generator) < chance).to(torch.int8)


@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("settings", [{}, {"dueling": False}, {"hidden": ()}, {"hidden": (4, 6)}], ids=str)
@every_space
@every_kind
def test_values_equal_the_papers_formula(kind, space, settings, is_masked):
    head = build(kind, space, **settings)
    y, mask = draw(head, 6, 3)
    mask = mask if is_masked else None
    (q,) = head(y, mask)
    want = torch.stack([values(head, row, None) for row in y.flatten(0, 1)])
    if is_masked:
        want = torch.stack([values(head, *row) for row in zip(y.flatten(0, 1), mask.flatten(0, 1))])
    torch.testing.assert_close(q.flatten(0, 1), want, atol=1e-12, rtol=1e-12)


@every_space
def test_quantiles_equal_the_papers_formula(space):
    head = build("quantiles", space, embedding=6)
    y, mask = draw(head, 4)
    fractions = torch.rand(4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = head.quantiles(y, fractions, mask)
    for b, i in itertools.product(range(4), range(5)):
        want = quantile_values(head, y[b], fractions[b, i], mask[b])
        torch.testing.assert_close(found[b, i], want, atol=1e-12, rtol=1e-12)


@every_space
@every_kind
def test_the_best_action_is_the_best_of_all(kind, space):
    """Every joint action enumerated: its value, the best one, and the largest value."""
    head = build(kind, space)
    y, mask = draw(head, 30)
    (q,) = head(y, mask)
    joint = [joint_values(head, row) for row in q]
    for b, by_action in enumerate(joint):
        largest = max(by_action.values())
        best = head.greedy(q)[b]
        assert by_action[tuple(best.flatten().tolist())] == largest
        assert head.best(q)[b].item() == pytest.approx(largest)
        for choices, value in by_action.items():
            action = torch.tensor(choices).reshape(head.shape)
            assert head.of(q[b], action).item() == pytest.approx(value)


@every_kind
def test_another_space_is_refused(kind):
    for space in (gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiBinary(3), gym.spaces.Dict()):
        with pytest.raises(SpaceError, match=r"Discrete or MultiDiscrete.*ppo.*impala"):
            KINDS[kind][0](space, FEATURES)


@pytest.mark.parametrize(
    "wrong",
    [{"hidden": (0,)}, {"gain": -1.0}, {"noise_scale": 0.0}, {"quantiles": 0}, {"embedding": 0}],
    ids=str,
)
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ConfigError, match=f"head.{next(iter(wrong))}"):
        QuantileHeadConfig(**wrong)
