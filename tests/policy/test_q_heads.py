"""Heads that estimate action values: formulas, masks, exploration, noise."""

from __future__ import annotations

import itertools
import math

import gymnasium as gym
import pytest
import torch

from recollect.acting.actor import Actor
from recollect.acting.evaluate import evaluating
from recollect.acting.session import Session
from recollect.config.policy import EncoderConfig, PolicyConfig
from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
from recollect.errors import ConfigError, SpaceError
from recollect.policy.masks import mask_space
from recollect.policy.noisy import NoisyLinear
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead, QuantileHead
from tests.reference.q_heads import joint_values, quantile_values, values
from tests.support.core_cases import CASES
from tests.support.helpers import TensorWorld

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
@pytest.mark.parametrize("base", [0, 9])
def test_quantiles_equal_the_papers_formula(space, base):
    head = build("quantiles", space, embedding=6, base=base)
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


# Exploration -----------------------------------------------------------------------------------------------


def explored(head, q, rate, epsilon=1.0, seed=0):
    head.epsilon.fill_(epsilon)
    generator = torch.Generator().manual_seed(seed)
    return head.choose((q,), generator, False, torch.full(q.shape[:1], rate, dtype=q.dtype))


@every_space
@every_kind
def test_a_masked_action_is_never_chosen(kind, space):
    """Neither greedily nor when exploring; a component of which all is masked has no mask."""
    head = build(kind, space)
    y, mask = draw(head, 4000)
    (q,) = head(y, mask)
    for action in (head.greedy(q), explored(head, q, 1.0), explored(head, q, 1.0, 0.5)):
        assert action.shape == (4000, *head.shape)
        assert action.dtype == torch.int64
        chosen = action.reshape(4000, -1)
        begin = 0
        for n, choice in zip(head.nvec, chosen.T):
            allowed = mask[:, begin : begin + n].bool()
            allowed |= ~allowed.any(1, keepdim=True)
            assert allowed.gather(1, choice.unsqueeze(1)).all()
            begin += n


@pytest.mark.parametrize("allowed", [(0, 1, 2, 3), (1, 3), (2,)], ids=str)
def test_random_actions_are_uniform_over_the_allowed_ones(allowed):
    """Chi-square of 20,000 draws, whatever the values; above 16.3 with a chance of 0.001 (3 degrees of
    freedom)."""
    head = build()
    mask = torch.zeros(20_000, 4)
    mask[:, list(allowed)] = 1
    (q,) = head(draw(head, 1)[0].expand(20_000, -1), mask)
    counts = torch.bincount(explored(head, q, 1.0), minlength=4).double()
    assert counts.sum() == counts[list(allowed)].sum() == 20_000
    want = 20_000 / len(allowed)
    assert ((counts[list(allowed)] - want) ** 2 / want).sum() < 16.3


def test_random_joint_actions_are_uniform():
    """All components of a row are random at once: 24 joint actions, 49.7 with a chance of 0.001."""
    head = build(space=SPACES["multi-unequal"])
    (q,) = head(draw(head, 1)[0].expand(20_000, -1))
    action = explored(head, q, 1.0)
    joint = (action[:, 0] * 4 + action[:, 1]) * 3 + action[:, 2]
    counts = torch.bincount(joint, minlength=24).double()
    assert ((counts - 20_000 / 24) ** 2 / (20_000 / 24)).sum() < 49.7


@every_kind
def test_a_row_explores_with_the_probability_epsilon_times_its_rate(kind):
    """Random actions differ from the greedy one in 3 of 4 cases; within 4 standard deviations."""
    head, rows = build(kind), 20_000
    (q,) = head(draw(head, 1)[0].expand(rows, -1))
    best = head.greedy(q)
    assert torch.equal(explored(head, q, 0.0), best)
    assert torch.equal(explored(head, q, 1.0, epsilon=0.0), best)
    head.epsilon.fill_(0.8)
    rate = torch.tensor([0.0, 0.1, 0.5, 1.0], dtype=q.dtype).repeat_interleave(rows // 4)
    differs = head.choose((q,), torch.Generator().manual_seed(1), False, rate) != best
    for found, one in zip(differs.view(4, -1).double().mean(1).tolist(), (0.0, 0.1, 0.5, 1.0)):
        want = 0.8 * one * 0.75
        assert abs(found - want) <= 4 * (want * (1 - want) / (rows / 4)) ** 0.5
    assert torch.equal(head.choose((q,), None, True, rate), best)
    assert torch.equal(head.choose((q,), None, False, None), best)


def test_exploration_is_reproduced_by_its_generator():
    head = build(space=SPACES["multi-unequal"])
    (q,) = head(draw(head, 500)[0])
    once, again, other = (explored(head, q, 0.5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)


@every_space
def test_the_env_gets_actions_of_its_space(space):
    head = build(space=space)
    (q,) = head(draw(head, 40)[0])
    for action in head.to_env(explored(head, q, 0.5)):
        assert space.contains(action.item() if action.dim() == 0 else action.numpy())


# Acting and learning ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("core", CASES)
@every_kind
def test_the_learner_finds_the_recorded_values(kind, core):
    """S001-28: of every core, with noise on the weights and exploring rows."""
    torch.manual_seed(0)
    env = TensorWorld(4)
    make, config = KINDS[kind]
    policy = Policy(
        env.observation_space,
        env.action_space,
        PolicyConfig(core=CASES[core], encoder=EncoderConfig(hidden=(8,))),
        head=lambda space, size: make(space, size, config(hidden=(16,), gain=1.0, noisy=True)),
    )
    policy.head.draw_noise(torch.Generator().manual_seed(2))
    actor = Actor(
        *(env, policy),
        **{"rollout": 20, "state_steps": (0,), "seed": 0, "needs_values": False},
        exploration=torch.linspace(0, 1, 4),
    )
    rollout = actor.collect()
    assert rollout.record["q"].dtype == torch.float32
    q, _ = policy.unroll(rollout.obs[:20], rollout.state_at(0), rollout.first[:20])
    torch.testing.assert_close(policy.head.of(q, rollout.action), rollout.record["q"], atol=1e-5, rtol=1e-5)
    assert (policy.head.greedy(q) != rollout.action).any()


@pytest.mark.parametrize("space", [SPACES["discrete-start"], SPACES["multi-unequal"]], ids=str)
@every_kind
def test_a_policy_gives_the_head_its_masks(kind, space):
    """From the observations, in acting and learning alike."""
    make, config = KINDS[kind]
    seen = gym.spaces.Dict({"action_mask": mask_space(space), "x": gym.spaces.Box(-1, 1, (3,))})
    torch.manual_seed(0)
    policy = Policy(seen, space, head=lambda actions, size: make(actions, size, config()))
    T, B = 6, 20
    mask = (torch.rand(T, B, sum(policy.head.nvec)) < 0.5).to(torch.int8)
    obs = {"x": torch.rand(T, B, 3), "action_mask": mask}
    state, first = policy.initial_state(B), torch.zeros(T, B, dtype=torch.bool)
    q, _ = policy.unroll(obs, state, first)
    for t in range(T):
        now = {name: leaf[t] for name, leaf in obs.items()}
        acted, state = policy.act(now, state, first[t], None, False, torch.ones(B))
        torch.testing.assert_close(policy.head.of(q[t], acted.action), acted.record["q"])
        assert acted.record["q"].isfinite().all()
    assert q.isinf().any()


@every_space
@every_kind
def test_gradients_are_those_of_the_formula(kind, space):
    """Of y and of every weight, through masks: those of masked choices are exactly zero."""
    head = build(kind, space, noisy=True, activation="tanh")
    head.draw_noise(torch.Generator().manual_seed(3))
    y, mask = draw(head, 3)
    action = head.greedy(head(y, mask)[0])
    names = [name for name, _ in head.named_parameters()]

    def chosen(y, *weights):
        (q,) = torch.func.functional_call(head, dict(zip(names, weights)), (y, mask))
        return head.of(q, action)

    assert torch.autograd.gradcheck(chosen, (y.requires_grad_(), *head.parameters()))
    chosen(y, *head.parameters()).sum().backward()
    assert y.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


@every_kind
def test_values_are_float32_under_autocast(kind):
    """In bf16 the head computes as without autocast, to the bit."""
    head = build(kind, dtype=torch.float32)
    y, mask = draw(head, 6)
    with torch.autocast("cpu", torch.bfloat16):
        (q,) = head(y, mask)
        assert head(y.bfloat16())[0].dtype == torch.float32
    assert q.dtype == torch.float32
    assert torch.equal(q, head(y, mask)[0])


@every_space
@every_kind
def test_nothing_is_read_on_the_host(kind, space, unread):
    """So CUDA graphs can capture acting and learning."""
    head = build(kind, space, dtype=torch.float32, noisy=True)
    y, mask = draw(head, 6)
    rate, generator = torch.ones(6), torch.Generator().manual_seed(0)
    with unread():
        outputs = head(y, mask)
        action = head.choose(outputs, generator, False, rate)
        head.record(outputs, action)["q"].sum().backward()
        head.best(outputs[0]), head.to_env(action)


# Noise -----------------------------------------------------------------------------------------------------


def test_a_noisy_layer_equals_the_papers_formula():
    layer = NoisyLinear(5, 3).double()
    layer.draw_noise(torch.Generator().manual_seed(4))
    generator = torch.Generator().manual_seed(4)
    before = [torch.randn(n, generator=generator).double() for n in (5, 3)]
    after = [[math.copysign(math.sqrt(abs(e)), e) for e in part.tolist()] for part in before]
    torch.testing.assert_close(layer.noise_in, torch.tensor(after[0], dtype=torch.float64), rtol=1e-6, atol=0)
    x = torch.randn(5, dtype=torch.float64)
    found = layer(x)
    for i in range(3):
        want = layer.bias[i] + layer.bias_std[i] * layer.noise_out[i]
        for k in range(5):
            noise = layer.weight_std[i, k] * layer.noise_out[i] * layer.noise_in[k]
            want = want + (layer.weight[i, k] + noise) * x[k]
        assert found[i].item() == pytest.approx(want.item(), abs=1e-12)
    assert layer.weight_std[0, 0].item() == pytest.approx(0.5 / math.sqrt(5))


@every_kind
def test_noise_lies_in_the_buffers(kind):
    """The same buffers give the same bits; nothing else draws; it travels with the weights."""
    one, other = build(kind, noisy=True), build(kind, noisy=True)
    y, _ = draw(one, 6)
    means = one(y)[0]
    one.draw_noise(torch.Generator().manual_seed(5))
    noisy = one(y)[0]
    assert not torch.equal(noisy, means)
    assert torch.equal(noisy, one(y)[0])
    other.load_state_dict(one.state_dict())
    assert torch.equal(noisy, other(y)[0])
    other.draw_noise(torch.Generator().manual_seed(6))
    assert not torch.equal(noisy, other(y)[0])
    other.draw_noise(torch.Generator().manual_seed(5))
    assert torch.equal(noisy, other(y)[0])


@every_kind
def test_evaluations_and_sessions_use_the_mean_weights(kind):
    env = TensorWorld(2)
    make, config = KINDS[kind]
    policy = Policy(
        env.observation_space,
        env.action_space,
        head=lambda space, size: make(space, size, config(noisy=True, noise_scale=5.0)),
    )
    obs, start = torch.randn(40, 3), policy.initial_state(40)
    first = torch.ones(40, dtype=torch.bool)
    quiet = policy.act(obs, start, first)[0].record["q"]
    policy.head.draw_noise(torch.Generator().manual_seed(7))
    assert not torch.equal(policy.act(obs, start, first)[0].record["q"], quiet)
    with evaluating(policy):
        assert torch.equal(policy.act(obs, start, first)[0].record["q"], quiet)
    seen = []
    policy.head.register_forward_hook(lambda _, __, outputs: seen.append(outputs[0]))
    Session(policy, 40).act(obs.numpy())
    assert torch.equal(seen[0].amax(-1), quiet)


def test_without_noisy_layers_there_is_no_noise():
    head, generator = build(), torch.Generator().manual_seed(0)
    before = generator.get_state()
    head.draw_noise(generator)
    assert torch.equal(generator.get_state(), before)


def test_values_begin_near_zero():
    """With every option; and advantages of actions do not differ much, so that none is preferred."""
    for kind, (make, config) in KINDS.items():
        torch.manual_seed(0)
        head = make(SPACES["discrete"], 128, config())
        (q,) = head(torch.randn(100, 128))
        assert 0 < q.abs().mean() < 0.05, kind


def test_the_state_dict_has_epsilon_and_no_constants():
    head = build("quantiles")
    assert [name for name in head.state_dict() if "." not in name] == ["epsilon"]
    assert head.epsilon.item() == 1
