"""Action heads: what is stored, what the env gets, masks, standard deviations."""

from __future__ import annotations

import copy
import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as torch_dist

from recollect.base import spaces as rspaces
from recollect.base import tree
from recollect.config.policy import HeadConfig
from recollect.errors import ConfigError, SpaceError
from recollect.policy.distributions import Distribution, Gaussian, Shaped, TanhGaussian
from recollect.policy.heads import ActionHead, clamp_inward
from recollect.policy.masks import check_mask_space, mask_space

INF = float("inf")
FEATURES = 12

SPACES: dict[str, gym.Space] = {
    "discrete": spaces.Discrete(4),
    "discrete-start": spaces.Discrete(3, start=-1),
    "multi": spaces.MultiDiscrete([2, 5, 3]),
    "multi-start": spaces.MultiDiscrete([2, 3], start=[1, -4]),
    "multi-2d": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "binary": spaces.MultiBinary(5),
    "binary-2d": spaces.MultiBinary([2, 3]),
    "box-1": spaces.Box(-2.0, 2.0, (1,)),
    "box-scalar": spaces.Box(-1.0, 0.5, ()),
    "box-uneven": spaces.Box(np.array([0.1, -0.3, -7.7], np.float32), np.array([0.7, 0.1, 3.3], np.float32)),
    "box-2d": spaces.Box(-1.0, 1.0, (2, 3)),
    "box-unbounded": spaces.Box(-INF, INF, (2,)),
    "box-half": spaces.Box(0.0, INF, (2,)),
    "box-double": spaces.Box(-1.0, 1.0, (2,), np.float64),
    "tuple": spaces.Tuple((spaces.Discrete(3), spaces.Box(-1.0, 1.0, (2,)), spaces.MultiBinary(2))),
    "nested": spaces.Dict(
        move=spaces.Box(-1.0, 1.0, (4,)),
        fire=spaces.MultiBinary(5),
        target=spaces.Discrete(6),
        extra=spaces.Tuple((spaces.MultiDiscrete([3, 3]), spaces.Dict(talk=spaces.Box(-INF, INF, (8,))))),
    ),
}


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


def make(space: gym.Space, spread: float = 1.0, **options) -> ActionHead:
    """A head whose weights are large enough to have an opinion."""
    torch.manual_seed(5)
    return ActionHead(space, FEATURES, HeadConfig(gain=spread, **options))


# What is stored, what the env gets ----------------------------------------------------------------


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("lead", [(7,), (3, 7)])
def test_stored_actions_have_the_declared_layout_and_log_prob(
    name: str, lead: tuple[int, ...], generator: torch.Generator
):
    """S000-16: stored in buffers of ``spaces.zeros``, an action keeps its values and its log-prob."""
    space, rows = SPACES[name], math.prod(lead)
    head = make(space)
    features = torch.randn(*lead, FEATURES, generator=generator)
    action = head(features).sample(generator)
    recorded = head(features).log_prob(action)
    assert recorded.shape == lead
    stored = rspaces.zeros(space, rows)
    assert tree.spec(stored) == tree.spec(action, lead=len(lead))
    tree.copy_(stored, tree.map(lambda leaf: leaf.reshape(rows, *leaf.shape[len(lead) :]), action))
    again = tree.map(lambda leaf: leaf.view(*lead, *leaf.shape[1:]), stored)
    assert torch.equal(head(features).log_prob(again), recorded)


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("squash", ["auto", False])
def test_env_actions_lie_in_the_space(name: str, squash, generator: torch.Generator):
    """Shifted, scaled and clipped actions are members of the space, at the extremes too."""
    space = SPACES[name]
    head = make(space, spread=6.0, squash=squash)
    dist = head(torch.randn(200, FEATURES, generator=generator))
    for action in (dist.sample(generator), dist.mode()):
        sent = head.to_env(action)
        assert tree.spec(sent) == tree.spec(rspaces.zeros(space, 1))
        for row in range(200):
            assert space.contains(_as_gym(space, tree.index(sent, row)))


@pytest.mark.parametrize("u", [-60.0, -20.0, 0.0, 9.1, 60.0])
def test_squashed_actions_never_leave_the_bounds(u: float):
    space = SPACES["box-uneven"]
    sent = make(space).to_env(torch.full((1, 3), u))
    assert space.contains(sent[0].numpy())


def test_squashed_action_is_tanh_scaled_to_the_bounds():
    head = make(spaces.Box(np.array([0.0, -2.0], np.float32), np.array([10.0, 2.0], np.float32)))
    u = torch.tensor([[0.0, 0.0], [0.5, -1.0], [30.0, -30.0]])
    expected = torch.tensor([[5.0, 0.0], [5 + 5 * math.tanh(0.5), -2 * math.tanh(1.0)], [10.0, -2.0]])
    torch.testing.assert_close(head.to_env(u), expected)


def test_plain_gaussian_is_clipped_and_stored_unclipped():
    """S000-16: negative and out-of-bounds samples are stored as drawn; only the env's copy is clipped."""
    head = make(spaces.Box(-1.0, 1.0, (1,)), squash=False)
    u = torch.tensor([[-3.0], [0.25], [3.0]])
    assert head.to_env(u).tolist() == [[-1.0], [0.25], [1.0]]
    assert u.tolist() == [[-3.0], [0.25], [3.0]]


def test_start_is_added_for_the_env_only():
    head = make(SPACES["discrete-start"])
    assert head.to_env(torch.tensor([0, 1, 2])).tolist() == [-1, 0, 1]
    head = make(SPACES["multi-start"])
    assert head.to_env(torch.tensor([[0, 0], [1, 2]])).tolist() == [[1, -4], [2, -2]]


def test_auto_squashes_where_all_bounds_are_finite():
    squashed = lambda name: type(_bare(make(SPACES[name])(torch.zeros(1, FEATURES))))  # noqa: E731
    assert squashed("box-1") is squashed("box-uneven") is squashed("box-scalar") is TanhGaussian
    assert squashed("box-unbounded") is squashed("box-half") is Gaussian


# The layer ----------------------------------------------------------------------------------------


def test_hybrid_has_one_linear_and_equals_torch(generator: torch.Generator):
    """S001-19: categorical, Gaussian and Bernoulli parts from one layer; log-prob is the sum."""
    space = spaces.Dict(
        aim=spaces.Box(-INF, INF, (2,)), fire=spaces.MultiBinary(3), target=spaces.Discrete(4)
    )
    head = make(space)
    assert [type(m) for m in head.modules() if isinstance(m, torch.nn.Linear)] == [torch.nn.Linear]
    assert head.linear.out_features == 2 + 3 + 4
    features = torch.randn(9, FEATURES, generator=generator)
    mean, fire, target = head.linear(features).split([2, 3, 4], -1)
    action = head(features).sample(generator)
    parts = [
        torch_dist.Normal(mean, math.exp(-0.5)),
        torch_dist.Bernoulli(logits=fire),
        torch_dist.Categorical(logits=target),
    ]
    log_prob = (
        parts[0].log_prob(action["aim"]).sum(-1)
        + parts[1].log_prob(action["fire"].float()).sum(-1)
        + parts[2].log_prob(action["target"])
    )
    entropy = parts[0].entropy().sum(-1) + parts[1].entropy().sum(-1) + parts[2].entropy()
    torch.testing.assert_close(head(features).log_prob(action), log_prob, rtol=0, atol=2e-5)
    torch.testing.assert_close(head(features).entropy(), entropy, rtol=0, atol=2e-5)


@pytest.mark.parametrize("name", SPACES)
def test_every_parameter_learns(name: str, generator: torch.Generator):
    head = make(SPACES[name])
    dist = head(torch.randn(32, FEATURES, generator=generator))
    (dist.log_prob(dist.sample(generator)).sum() + dist.entropy().sum()).backward()
    for parameter_name, parameter in head.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0, parameter_name


def test_initial_policy_is_nearly_uniform(generator: torch.Generator):
    """Gain 0.01: whatever the features, every action starts about equally likely."""
    head = ActionHead(spaces.Discrete(5), FEATURES)
    dist = head(torch.randn(64, FEATURES, generator=generator))
    assert (dist.entropy() > math.log(5) - 0.01).all()
    head = ActionHead(spaces.Box(-1, 1, (2,)), FEATURES)
    assert head(torch.randn(64, FEATURES, generator=generator)).mode().abs().max() < 0.1


def test_half_precision_features_give_float32_log_probs(generator: torch.Generator):
    head = make(SPACES["nested"])
    features = torch.randn(4, FEATURES, generator=generator)
    with torch.autocast("cpu", torch.bfloat16):
        dist = head(features)
        action = dist.sample(generator)
        log_prob = dist.log_prob(action)
        assert log_prob.dtype is dist.entropy().dtype is torch.float32
    assert tree.spec(action) == tree.spec(rspaces.zeros(SPACES["nested"], 4))


def test_head_copies_and_saves_without_the_bounds():
    head = make(SPACES["nested"])
    twin = copy.deepcopy(head)
    twin.load_state_dict(head.state_dict())
    assert set(head.state_dict()) == {"linear.weight", "linear.bias", "root.parts.0.log_std"} | {
        "root.parts.3.parts.1.parts.0.log_std"
    }


# Standard deviations ------------------------------------------------------------------------------


@pytest.mark.parametrize("dependent", [False, True])
def test_std_is_state_independent_or_dependent(dependent: bool, generator: torch.Generator):
    """S001-7: one parameter per dimension, or a function of the features; both begin at log_std_init."""
    box = spaces.Box(-1.0, 1.0, (3,))
    head = make(box, state_dependent_std=dependent, log_std_init=-1.0, squash=False)
    assert head.linear.out_features == (6 if dependent else 3)
    dist = head(torch.randn(50, FEATURES, generator=generator))
    assert isinstance(dist, Gaussian)
    log_std = dist.log_std.expand(50, 3)
    assert (log_std.std(0) > 0.1).all() if dependent else (log_std == -1.0).all()
    start = head(torch.zeros(1, FEATURES))
    assert isinstance(start, Gaussian)
    torch.testing.assert_close(start.log_std.expand(1, 3), torch.full((1, 3), -1.0))


@pytest.mark.parametrize("dependent", [False, True])
@pytest.mark.parametrize("squash", [True, False])
def test_std_is_clamped_per_dimension(dependent: bool, squash: bool):
    """S001-7: always inside [log_std_min, log_std_max], each dimension by itself."""
    head = make(spaces.Box(-1, 1, (3,)), state_dependent_std=dependent, squash=squash, log_std_min=-3.0)
    target = torch.tensor([-9.0, 0.2, 9.0])
    with torch.no_grad():
        if dependent:
            head.linear.bias[3:] = target
        else:
            next(p for n, p in head.named_parameters() if "log_std" in n).copy_(target)
    dist = head(torch.zeros(4, FEATURES))
    assert isinstance(dist, Gaussian)
    torch.testing.assert_close(dist.log_std.expand(4, 3)[0], torch.tensor([-3.0, 0.2, 1.0]))


def test_clamp_leads_back_inside_and_never_further_out():
    """S001-7: beyond a bound the gradient passes only if descending it leads back."""
    values = torch.tensor([-9.0, -9.0, 0.3, 0.3, 9.0, 9.0, 1.0, 1.0])
    slopes = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    x = values.clone().requires_grad_()
    y = clamp_inward(x, -5.0, 1.0)
    assert torch.equal(y, values.clamp(-5.0, 1.0))
    (y * slopes).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, -1.0, 1.0, -1.0, 1.0, 0.0, 1.0, 0.0]
    with torch.no_grad():
        assert torch.equal(clamp_inward(x, -5.0, 1.0), y)


def test_std_beyond_the_clamp_can_come_back():
    """S001-7: a log_std that was carried far outside returns when the loss asks for it."""
    head = make(spaces.Box(-INF, INF, (1,)))
    log_std = next(p for n, p in head.named_parameters() if "log_std" in n)
    torch.nn.init.constant_(log_std, 2.0)
    optimiser = torch.optim.SGD([log_std], 0.1)
    for _ in range(30):
        optimiser.zero_grad()
        head(torch.zeros(1, FEATURES)).entropy().sum().backward()
        optimiser.step()
    assert log_std.item() < 0.0


# Masks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bool, torch.int8])
def test_masks_reach_their_parts(dtype: torch.dtype, generator: torch.Generator):
    head = make(SPACES["nested"])
    features = torch.randn(64, FEATURES, generator=generator)
    target = torch.tensor([0, 1, 0, 0, 1, 0], dtype=dtype).expand(64, 6)
    pair = torch.tensor([1, 0, 0, 0, 1, 1], dtype=dtype).expand(64, 6)
    action = head(features, {"target": target, "extra": (pair, None)}).sample(generator)
    assert set(action["target"].tolist()) == {1, 4}
    first, second = action["extra"][0].unbind(-1)
    assert set(first.tolist()) == {0}
    assert set(second.tolist()) == {1, 2}
    free = head(features).sample(generator)
    assert set(free["target"].tolist()) == set(range(6))


def test_mask_space_fits_the_head(generator: torch.Generator):
    """A mask drawn from ``mask_space`` is accepted by the checker and the head."""
    for space in SPACES.values():
        masks = mask_space(space)
        if masks is None:
            assert all(isinstance(leaf, spaces.Box | spaces.MultiBinary) for _, leaf in rspaces.walk(space))
            continue
        check_mask_space(space, masks)
        mask = rspaces.zeros(masks, 5)
        dist = make(space)(torch.randn(5, FEATURES, generator=generator), mask)
        assert dist.entropy().isfinite().all(), "a mask of zeros allows everything"


def test_mask_space_may_be_a_box_and_leave_parts_out():
    nested = SPACES["nested"]
    check_mask_space(spaces.Discrete(4), spaces.Box(0, 1, (4,), np.int8))
    check_mask_space(nested, spaces.Dict(target=spaces.Box(0, 1, (6,), np.uint8)))


@pytest.mark.parametrize(
    ("space", "mask", "says"),
    [
        ("discrete", spaces.MultiBinary(5), "MultiBinary\\(4\\)"),
        ("box-1", spaces.MultiBinary(1), "leave it out"),
        ("nested", spaces.Dict(aim=spaces.MultiBinary(6)), "'aim'"),
        ("nested", spaces.Dict(target=spaces.MultiBinary(5)), "action_mask.target"),
        ("tuple", spaces.Tuple((spaces.MultiBinary(3),)), "action_mask"),
    ],
)
def test_mask_space_that_does_not_fit_raises(space: str, mask: gym.Space, says: str):
    with pytest.raises(SpaceError, match=says):
        check_mask_space(SPACES[space], mask)


@pytest.mark.parametrize(
    ("space", "mask", "says"),
    [
        ("discrete", torch.ones(2, 1), r"\[..., 4\]"),
        ("multi", torch.ones(2, 3), r"\[..., 10\]"),
        ("box-1", torch.ones(2, 1), "takes no action mask"),
        ("binary", torch.ones(2, 5), "takes no action mask"),
        ("nested", {"aim": torch.ones(2, 6)}, "aim"),
        ("nested", torch.ones(2, 6), "needs a dict"),
        ("tuple", (torch.ones(2, 3),), "needs a tuple"),
    ],
)
def test_mask_that_does_not_fit_raises(space: str, mask, says: str):
    with pytest.raises(SpaceError, match=says):
        make(SPACES[space])(torch.zeros(2, FEATURES), mask)


# Mistakes -----------------------------------------------------------------------------------------


def test_squash_of_infinite_bounds_raises():
    with pytest.raises(SpaceError, match="infinite bounds"):
        make(SPACES["box-half"], squash=True)


def test_integer_box_raises_with_the_fix():
    with pytest.raises(SpaceError, match="MultiDiscrete"):
        make(spaces.Dict(grip=spaces.Box(0, 3, (2,), np.int64)))


def test_unsupported_space_is_named():
    with pytest.raises(SpaceError, match=r"the action space\.note is a Text"):
        make(spaces.Dict(note=spaces.Text(3)))
    with pytest.raises(SpaceError, match="empty"):
        make(spaces.Dict({}))


@pytest.mark.parametrize(
    "options",
    [
        {"squash": "yes"},
        {"log_std_min": 1.0, "log_std_max": 0.0},
        {"log_std_init": 2.0},
        {"log_std_init": math.nan},
        {"gain": -1.0},
        {"gain": math.nan},
    ],
)
def test_config_that_cannot_be_meant_raises(options: dict):
    with pytest.raises(ConfigError, match=r"head\."):
        HeadConfig(**options)


def test_squashed_std_beyond_the_quadrature_raises():
    """S001-11: where the entropy would not be exact, the head refuses."""
    with pytest.raises(ConfigError, match="log_std_max"):
        make(SPACES["box-1"], log_std_max=2.0)
    make(SPACES["box-unbounded"], log_std_max=2.0)


def _bare(dist: Distribution) -> Distribution:
    return dist.base if isinstance(dist, Shaped) else dist


def _as_gym(space: gym.Space, action):
    def leaf(sub: gym.Space, value: torch.Tensor):
        if isinstance(sub, spaces.Discrete):
            return np.int64(value.item())
        return value.numpy().astype(sub.dtype)

    return rspaces.map(leaf, space, action)
