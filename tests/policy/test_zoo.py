"""The conformance suite of policies for tokens: each one of ``POLICIES`` has to pass all of it.

A new policy joins with its line in ``POLICIES``; nothing here names one, but where a name itself is tested.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args, get_type_hints

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

import recollect as rc
from recollect.base import tree
from recollect.config.policy import POLICIES, EncoderConfig, HeadConfig, PolicyConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import ConfigError, SpaceError, StateError
from recollect.policy.policy import GUARDED, Policy
from recollect.policy.tokens import NETWORKS
from recollect.training.parse_config import parse_config
from tests.learning.test_master import T, check
from tests.support.agents import SMALL
from tests.support.helpers import as_rows, keep, make_actor
from tests.support.token_worlds import FEATURES, LARGEST, TOKENS, TokenEnv, batch, byte, token_space

CORES: dict[str, Any] = {
    "lstm": LSTMConfig(hidden=16, learned_initial_state=True),
    "gru": GRUConfig(hidden=16),
}
PAD = torch.tensor([255, 0, 0], dtype=torch.uint8)


def make(name: str, core: Any = "none", space: Any = None, actions: Any = None) -> Policy:
    """The policy of a name, with actions that depend strongly on what it sees."""
    torch.manual_seed(0)
    config = replace(POLICIES[name], core=core, head=HeadConfig(gain=1.0))
    return config.build(space or token_space(), actions or TokenEnv().action_space)


@pytest.fixture(params=POLICIES)
def name(request) -> str:
    return request.param


@pytest.fixture
def policy(name) -> Policy:
    """Without memory, in float64: what it says is a function of the observation alone."""
    return make(name).double()


def says(policy: Policy, obs: Tensor) -> Tensor:
    """[N, A + 1]: the log-probs of all actions and the value, for obs [N, M, 3]."""
    rows = len(obs)
    first = torch.zeros(rows, dtype=torch.bool)
    dist, value, _ = policy.step(obs, policy.initial_state(rows), first)
    return torch.cat([dist.log_probs, value.unsqueeze(1).to(dist.log_probs.dtype)], 1)  # pyright: ignore[reportAttributeAccessIssue]


def same(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def assert_learns(policy: Policy, obs: Tensor, *, every: bool) -> None:
    """Finite gradients; of every parameter, where that is asked."""
    policy.zero_grad()
    out = says(policy, obs)
    assert out.isfinite().all()
    (out * torch.linspace(-1.0, 2.0, out.shape[1], dtype=out.dtype)).square().sum().backward()
    for parameter_name, parameter in policy.named_parameters():
        if parameter.grad is not None:
            assert parameter.grad.isfinite().all(), parameter_name
        if every:
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.abs().sum() > 0, parameter_name


# The same in acting and learning --------------------------------------------------------------------------


@pytest.mark.parametrize("core", CORES)
def test_what_is_learned_from_is_what_was_done(name, core):
    """M, S002-8: over rollouts with real updates between them, chunks cut anywhere."""
    env = as_rows([TokenEnv] * 3, "loop")
    check(env, make(name, CORES[core]), 7, rollouts=2)


def test_observations_stay_as_they_are(name):
    """S002-19: acting, learning, asking for values, updating statistics: nothing writes to them."""
    env = as_rows([TokenEnv] * 3, "loop")
    policy = make(name, CORES["gru"])
    rollout = keep(make_actor(env, policy, rollout=T, chunk=7).collect())
    obs = rollout.obs
    before, state, first = obs.clone(), policy.initial_state(3), rollout.first[:T]
    policy.act(obs[0], state, first[0])
    policy.value(obs[0], state, first[0])
    policy.evaluate_actions(obs[:T], rollout.action, state, first)[2].sum().backward()
    policy.unroll_with_states(obs[:T], state, first, [0, 3])
    assert policy.obs_norm is not None
    policy.obs_norm.update(obs[:T], rollout.valid)
    assert torch.equal(obs, before)


def test_time_and_rows_are_not_guessed(name):
    """S002-10: transposed observations raise, whether time and rows or tokens and bytes are swapped."""
    policy = make(name, CORES["gru"])
    obs, first = batch(14).view(7, 2, TOKENS, 3), torch.zeros(7, 2, dtype=torch.bool)
    state = policy.initial_state(2)
    policy.unroll(obs, state, first)
    with pytest.raises(StateError, match=r"\[T, B\].*transposed"):
        policy.unroll(obs.transpose(0, 1), state, first)
    with pytest.raises(StateError, match="has 2 rows, the input 7"):
        policy.unroll(obs.transpose(0, 1), state, first.T)
    with pytest.raises(SpaceError, match=r"wanted uint8 \(N, M, 3\)"):
        policy.unroll(obs.transpose(2, 3), state, first)


# Sets -----------------------------------------------------------------------------------------------------


def test_order_does_not_matter(policy):
    """S002-19: a set has none."""
    obs = batch(6)
    order = torch.stack([torch.randperm(TOKENS) for _ in range(6)])
    same(says(policy, obs.gather(1, order.unsqueeze(2).expand(-1, -1, 3))), says(policy, obs))


def test_order_hardly_matters_in_single_precision(name):
    """S002-19: to 1e-6, in the precision that acts."""
    policy, obs = make(name), batch(6)
    torch.testing.assert_close(says(policy, obs.flip(1)), says(policy, obs), rtol=1e-6, atol=1e-6)


@given(seed=st.integers(0, 2**31), content=arrays(np.uint8, (TOKENS, 2)), more=st.integers(0, 20))
def test_padding_says_nothing(seed, content, more):
    """S002-19: neither what stands in a pad nor how many pads there are."""
    obs = batch(2, seed=seed)
    filled = obs.clone()
    pads = obs[:, :, 0] == 0xFF
    filled[:, :, 1:][pads] = torch.from_numpy(content).expand(2, -1, -1)[pads]
    longer = torch.cat([filled, PAD.expand(2, more, 3)], 1)
    for policy in _all().values():
        expected = says(policy, obs)
        assert torch.equal(says(policy, filled), expected)
        same(says(policy, longer), expected)


def test_every_token_of_a_dense_row_counts(name):
    """S002-19: 200 tokens without one pad, most of them on one cell: whichever is changed, it shows."""
    space = token_space(200, 32, 255)
    policy = make(name, space=space).double()
    obs = batch(1, space, pads=0.0)
    obs[:, :150, 0] = byte(5, 5)
    changed = obs.repeat(200, 1, 1)
    slots = torch.arange(200)
    changed[slots, slots, 1] = (changed[slots, slots, 1] + 1) % 32
    changed[slots, slots, 2] = 255 - changed[slots, slots, 2]
    gap = (says(policy, changed) - says(policy, obs)).abs().amax(1)
    assert (gap > 1e-7).all()
    assert_learns(policy, changed[:8], every=False)


def test_what_is_out_of_range_is_no_token(policy):
    """S002-19: as if a pad stood there: no error, no clamp, no wrap-around into the next cell or plane."""
    obs = batch(1, pads=0.0)
    without = obs.clone()
    without[0, 4] = PAD
    wrong = [(byte(x, y), 1, 1) for x, y in ((11, 0), (0, 11), (15, 3), (3, 15), (12, 12), (15, 14))]
    wrong += [(byte(3, 3), feature, 1) for feature in (FEATURES, FEATURES + 1, 128, 255)]
    expected = says(policy, without)
    for token in wrong:
        obs[0, 4] = torch.tensor(token)
        same(says(policy, obs), expected)
    obs[0, 4] = torch.tensor((byte(3, 3), 1, 1))
    assert (says(policy, obs) - expected).abs().max() > 1e-5


def test_values_are_numbers_in_float(policy):
    """S002-19: every step of a value shows, more than the largest is the largest, and no sum wraps."""
    obs = batch(1)[:, :1].repeat(LARGEST + 1, 4, 1)
    obs[:, :, :2] = torch.tensor([byte(2, 7), 1])
    obs[:, :, 2] = torch.arange(LARGEST + 1).unsqueeze(1)
    out = says(policy, obs)
    assert (torch.pdist(out) > 1e-6).all()
    obs[:, :, 2] = 255
    same(says(policy, obs), out[-1:].expand_as(out))


def test_every_byte_of_a_token_is_seen(policy):
    """S002-8: x, y, feature and value each make a difference, and x is not y."""
    tokens = [(byte(2, 7), 1, 3), (byte(7, 2), 1, 3), (byte(3, 7), 1, 3), (byte(2, 8), 1, 3)]
    tokens += [(byte(2, 7), 2, 3), (byte(2, 7), 1, 4)]
    obs = torch.tensor(tokens, dtype=torch.uint8).unsqueeze(1)
    assert (torch.pdist(says(policy, obs)) > 1e-5).all()


def test_a_row_without_tokens_is_finite(policy):
    """S002-19: only pads: finite, the same for any number of them, and gradients are finite too."""
    none = PAD.expand(3, TOKENS, 3)
    same(says(policy, none[:, :1]), says(policy, none))
    assert_learns(policy, none, every=False)
    mixed = batch(4)
    alone = says(policy, mixed[:2])
    mixed[2:] = PAD
    same(says(policy, mixed)[:2], alone)
    assert_learns(policy, mixed, every=False)


@given(arrays(np.uint8, st.tuples(st.integers(1, 3), st.integers(1, 9), st.just(3))))
def test_any_bytes_at_all_are_finite(obs):
    """S002-19: whatever an env sends, no index error and no NaN, forward or backward."""
    for policy in _all().values():
        assert_learns(policy, torch.from_numpy(obs), every=False)


def test_every_parameter_learns(name):
    """S002-8: gradients reach all of it."""
    policy = make(name, CORES["lstm"])
    obs, first = batch(24).view(6, 4, TOKENS, 3), torch.zeros(6, 4, dtype=torch.bool)
    first[[0, 3]] = True
    action = torch.randint(0, 3, (6, 4))
    state = policy.initial_state(4)
    log_prob, entropy, value = policy.evaluate_actions(obs, action, state, first)
    (log_prob + entropy + value).square().sum().backward()
    for parameter_name, parameter in policy.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


def test_features_begin_with_the_scale_of_others(name):
    """Rows differ by about as much as with other encoders, with few tokens and with many."""
    space = token_space(48, 12, 255)
    encoder = make(name, space=space).encoder
    with torch.no_grad():
        for pads in (0.9, 0.5, 0.0):
            assert 0.05 < encoder(batch(64, space, pads=pads)).std(0).mean() < 2


_POLICIES: dict[str, Policy] = {}


def _all() -> dict[str, Policy]:
    """All policies in float64, made once: Hypothesis has no time for more."""
    if not _POLICIES:
        _POLICIES.update({name: make(name).double() for name in POLICIES})
    return _POLICIES


# By name --------------------------------------------------------------------------------------------------


def test_a_policy_cannot_be_forgotten():
    """S002-9: names of policies, networks and the encoder's setting are the same."""
    choices = get_args(get_type_hints(EncoderConfig)["tokens"])
    assert set(choices) - {"auto", "never"} == NETWORKS.keys()
    assert NETWORKS.keys() == POLICIES.keys()


def small(**settings: Any) -> dict[str, Any]:
    drop = ("encoder", "core", "head")
    return {key: value for key, value in SMALL.items() if key not in drop} | {"progress": False} | settings


def test_an_agent_is_saved_and_comes_back(name, tmp_path):
    """S002-8: by its name alone, with another core; a run goes on where it stopped."""
    agent = rc.train(TokenEnv, policy=name, core="gru", steps=32, run=str(tmp_path / "run"), **small())
    assert isinstance(agent.policy.encoder.tokens[0].network, type(NETWORKS[name](token_space())))
    back = rc.load(agent.save(tmp_path / "agent"), env=TokenEnv)
    assert back.policy.config == agent.policy.config
    obs = batch(4)
    for other in (back, rc.load(tmp_path / "run", env=TokenEnv)):
        assert torch.equal(says(other.policy, obs), says(agent.policy, obs))
    more = rc.resume(tmp_path / "run", env=TokenEnv, steps=16, progress=False)
    assert more.steps >= 48
    assert more.policy.config == agent.policy.config


def test_names_on_the_command_line(tmp_path):
    """S002-8: --policy with a core and further settings; files too; later layers win."""
    config = parse_config(
        ["--policy", "example", "--core", "gru", "--encoder.hidden", "8"]
    ).config.chosen_policy
    assert config == PolicyConfig(encoder=EncoderConfig(tokens="example", hidden=(8,)), core="gru")
    path = tmp_path / "c.yaml"
    path.write_text("policy: {name: latent_attn_tiny, value_decay: 0.5}\ncore: gru\n")
    config = parse_config(["--config", str(path)]).config.chosen_policy
    assert config == replace(POLICIES["latent_attn_tiny"], core="gru", value_decay=0.5)
    path.write_text("policy: latent_attn_tiny\nencoder: {activation: relu}\n")
    config = parse_config(["--config", str(path), "--policy", "fast"]).config.chosen_policy
    assert config == POLICIES["fast"]
    with pytest.raises(
        ConfigError, match=r"--policy fasst: there is no such policy \(did you mean 'fast'\?\)"
    ):
        parse_config(["--policy", "fasst"])
    with pytest.raises(ConfigError, match="is an encoder, and encoder is given besides"):
        parse_config(["--policy", "fast", "--encoder", "mlp"])


def test_names_in_python():
    """S002-8: in train, in a config, in override; unknown names and other spaces are answered."""
    assert rc.TrainConfig(policy="fast").chosen_policy == POLICIES["fast"]  # pyright: ignore[reportArgumentType]
    config = rc.TrainConfig().override(policy="example", core="gru", value_decay=0.5).chosen_policy
    assert config == replace(POLICIES["example"], core="gru", value_decay=0.5)
    with pytest.raises(ConfigError, match=r"no policy 'latent_tiny' \(did you mean 'latent_attn_tiny'\?\)"):
        rc.train(TokenEnv, policy="latent_tiny", **small())
    with pytest.raises(
        ConfigError, match=r"leave the policy out and write encoder=EncoderConfig\(tokens='fast'"
    ):
        rc.train(TokenEnv, policy="fast", encoder=EncoderConfig(hidden=(8,)), **small())
    with pytest.raises(SpaceError, match=r"'fast' is a network for tokens.* has none"):
        rc.train("CartPole-v1", policy="fast", **small())


def test_a_name_leaves_the_core_to_the_preset():
    """As without a name: a long task gets a core that reaches far."""
    from recollect.api import resolve

    task = {"env_kwargs": {"horizon": 400}}
    plain, _, _ = resolve("delayed-cue", task)
    named, _, _ = resolve("delayed-cue", task, policy="fast")
    assert named.policy == replace(plain.policy, encoder=POLICIES["fast"].encoder)
    assert named.policy.core != "lstm"
    flags = ["--policy", "fast", "--task.horizon", "400"]
    assert parse_config(flags, env="delayed-cue").config.policy == named.policy


# Subclasses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", GUARDED)
def test_a_subclass_cannot_handle_the_state(method):
    """S002-9: the class is refused when it is made, whoever brings the method."""
    own = {method: lambda self, *args: None}
    with pytest.raises(ConfigError, match=rf"Mine overrides Policy.{method}:.* encoder.* core"):
        type("Mine", (Policy,), own)
    with pytest.raises(ConfigError, match=f"Mine overrides Policy.{method}"):
        type("Mine", (type("Mixin", (), own), Policy), {})
    decent = type("Decent", (Policy,), {})
    with pytest.raises(ConfigError, match=f"Mine overrides Policy.{method}"):
        type("Mine", (decent,), own)


def test_all_that_takes_a_state_is_guarded():
    """S002-9: a method that comes later has to decide."""
    import inspect

    takes = {
        method
        for method, value in vars(Policy).items()
        if inspect.isfunction(value) and "state" in inspect.signature(value).parameters
    }
    assert takes - {"__setstate__"} <= set(GUARDED)


def test_a_subclass_may_change_what_is_around_the_core(name):
    """S002-9: its own features, values and actions, by the same gauges as ours."""

    class Squashed(Policy):
        def _encode(self, obs):
            return super()._encode(obs).tanh()

        def _value(self, y):
            return super()._value(y * 0.5)

        def _distribution(self, y, obs):
            return super()._distribution(-y, obs)

    def factory(observation_space: Any, action_space: Any) -> Policy:
        return Squashed(observation_space, action_space, replace(POLICIES[name], core="gru"))

    agent = rc.train(TokenEnv, policy=factory, steps=32, **small())
    assert agent.history.rows[-1]["deviation/value"] < 1e-4
    _, state = agent.policy.act(batch(2), agent.policy.initial_state(2), torch.ones(2, dtype=torch.bool))
    assert len(tree.leaves(state)) > 0
