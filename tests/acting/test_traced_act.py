"""Acting steps as traced graphs: the same rollouts, bit for bit. Steps that cannot be traced stay eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import Tensor, nn

from recollect.acting import traced_act
from recollect.acting.actor import Actor
from recollect.base import tree
from recollect.config.policy import EncoderConfig
from recollect.cores import GRUConfig, LSTMConfig, MinGRUConfig
from recollect.cores.lstm import LSTM
from recollect.policy.policy import Policy
from tests.support.helpers import TensorWorld, keep, make_actor, make_policy

CORES = {
    "none": "none",
    "lstm": LSTMConfig(hidden=8),
    "normalised layers": LSTMConfig(hidden=8, layers=2, layer_norm=True, learned_initial_state=True),
    "gru": GRUConfig(hidden=8),
    "mingru": MinGRUConfig(hidden=8),
}


def actor_of(core: Any, *, eager: bool, **config: Any) -> Actor:
    env = TensorWorld(3)
    actor = make_actor(
        env, make_policy(env, core, normalise_observations=True, **config), rollout=12, chunk=6
    )
    if eager:
        traced(actor)._has_failed = True
    return actor


def traced(actor: Actor) -> traced_act.TracedAct:
    assert actor._traced is not None
    return actor._traced


def skip_eager_rollouts(actor: Actor) -> None:
    for _ in range(traced_act.EAGER_ROLLOUTS):
        actor.collect()


def change_weights(policy: Policy, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)


def rollouts(actor: Actor) -> Iterator[Any]:
    """Rollouts before statistics exist and after they do; weights change, and are loaded once."""
    for number in range(traced_act.EAGER_ROLLOUTS + 5):
        rollout = keep(actor.collect())
        yield rollout
        if number >= traced_act.EAGER_ROLLOUTS:
            seen = tree.map(lambda leaf: leaf[:12], rollout.obs)
            actor.policy.obs_norm.update(seen, rollout.valid)  # pyright: ignore[reportOptionalMemberAccess]
            change_weights(actor.policy, number)
        if number == traced_act.EAGER_ROLLOUTS + 2:
            loaded = {name: 0.5 * value for name, value in actor.policy.state_dict().items()}
            actor.policy.load_state_dict(loaded)


def assert_same(one: Any, two: Any) -> None:
    for name in ("obs", "first", "action", "reward", "record", "states", "bootstrap", "final_value"):
        pairs = zip(tree.leaves(getattr(one, name)), tree.leaves(getattr(two, name)), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs), name


def assert_same_rollouts(core: Any, **config: Any) -> None:
    fast, eager = (actor_of(core, eager=eager, **config) for eager in (False, True))
    resets = 0
    for one, two in zip(rollouts(fast), rollouts(eager), strict=True):
        assert_same(one, two)
        resets += int(one.first[1:].sum())
    assert resets > 0
    assert traced(fast)._is_proved
    assert traced(eager)._graph is None


@pytest.mark.parametrize("name", CORES)
def test_rollouts_are_those_of_eager_steps(name):
    """S000-4, S002-21: also where statistics appear, weights are loaded, and episodes end in a rollout."""
    assert_same_rollouts(CORES[name])


def test_a_critic_with_a_memory_of_its_own():
    assert_same_rollouts(LSTMConfig(hidden=8), critic="separate")


def test_a_state_that_cannot_be_traced():
    """A dict of unlike parts: the critic's state is empty."""
    fast, eager = (actor_of("lstm", eager=eager, critic="memoryless") for eager in (False, True))
    for _ in range(traced_act.EAGER_ROLLOUTS + 2):
        assert_same(keep(fast.collect()), keep(eager.collect()))
    assert traced(fast)._has_failed


def lstm_rollouts_are_the_same() -> None:
    assert_same_rollouts(CORES["lstm"])


HEADS = {
    "choices": gym.spaces.MultiDiscrete([2, 3]),
    "switches": gym.spaces.MultiBinary(3),
    "squashed": gym.spaces.Box(-1, 1, (20,)),
    "not squashed": gym.spaces.Box(-float("inf"), float("inf"), (7,)),
    "parts": gym.spaces.Dict({"a": gym.spaces.Discrete(2), "b": gym.spaces.Box(-1, 1, (1,))}),
    "masked": gym.spaces.Discrete(4),
}


@pytest.mark.parametrize("name", HEADS)
@torch.no_grad()
def test_every_action_space_draws_the_same(name):
    """The graph draws from the actor's generator, in the order of eager steps."""
    rows, space = 5, HEADS[name]
    spaces: dict[str, gym.Space] = {"seen": gym.spaces.Box(-1, 1, (3,))}
    obs: dict[str, Tensor] = {"seen": torch.randn(rows, 3)}
    if name == "masked":
        spaces["action_mask"] = gym.spaces.MultiBinary(4)
        obs["action_mask"] = torch.tensor([[1, 0, 1, 0]] * rows, dtype=torch.int8)
    policy = Policy(gym.spaces.Dict(spaces), space)
    state, first = policy.initial_state(rows), torch.zeros(rows, dtype=torch.bool)
    assert traced_act.suits(policy, torch.device("cpu"), 8)
    act = traced_act.TracedAct(policy, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(3)
    for number in range(traced_act.EAGER_ROLLOUTS + 2):
        act.begin()
        for _ in range(3):
            found, want = act(obs, state, first), policy.act(obs, state, first, generator)
            assert tree.leaves(found[0]), number
            pairs = zip(tree.leaves(found), tree.leaves(want), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs)
            if name == "masked":
                assert torch.isin(found[0].action, torch.tensor([0, 2])).all()
            state = found[1]
    assert act._is_proved


def test_short_runs_do_not_trace():
    actor = actor_of("lstm", eager=False)
    skip_eager_rollouts(actor)
    assert traced(actor)._graph is None


def a_step_that_differs_ends_tracing() -> None:
    """A graph has one way through the code; here the step that is compared goes another one."""
    calls = []

    def branching(self: LSTM, x: Tensor, *given: Tensor) -> Any:
        calls.append(1)
        return cell(self, x if len(calls) % 2 else 2 * x, *given)

    cell = LSTM._cell
    actor = actor_of("lstm", eager=False)
    skip_eager_rollouts(actor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LSTM, "_cell", branching)
        actor.collect()
    assert traced(actor)._has_failed


def test_a_step_that_differs_ends_tracing():
    a_step_that_differs_ends_tracing()


def replaced_weights_are_seen() -> None:
    """``assign=True`` replaces the tensors that a graph refers to."""
    fast, eager = (actor_of("lstm", eager=eager) for eager in (False, True))
    for actor in (fast, eager):
        skip_eager_rollouts(actor)
        actor.collect()
    assert traced(fast)._is_proved
    for actor in (fast, eager):
        halved = {name: 0.5 * value for name, value in actor.policy.state_dict().items()}
        actor.policy.load_state_dict(halved, assign=True)
    assert_same(keep(fast.collect()), keep(eager.collect()))
    assert_same(keep(fast.collect()), keep(eager.collect()))


def test_replaced_weights_are_seen():
    replaced_weights_are_seen()


def a_graph_that_cannot_run_ends_tracing() -> None:
    """torch traces a product with a bool, and cannot run it."""
    encode = Policy._encode
    fast, eager = (actor_of("lstm", eager=eager) for eager in (False, True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Policy, "_encode", lambda self, obs: encode(self, obs) * True)
        for _ in range(traced_act.EAGER_ROLLOUTS + 2):
            assert_same(keep(fast.collect()), keep(eager.collect()))
    assert traced(fast)._has_failed


def test_a_graph_that_cannot_run_ends_tracing():
    a_graph_that_cannot_run_ends_tracing()


def hooks_are_called() -> None:
    actor, calls = actor_of("lstm", eager=False), []
    skip_eager_rollouts(actor)
    actor.collect()
    hook = actor.policy.encoder.register_forward_hook(lambda *_: calls.append(1))
    actor.collect()
    assert len(calls) >= 12
    hook.remove()
    actor.collect()
    assert traced(actor)._is_proved


def test_hooks_are_called():
    hooks_are_called()


def test_only_known_parts_are_traced():
    """Images, and parts of the user, may branch on values, or drop units."""

    class Own(nn.Module):
        output_size = 4

        def forward(self, obs: Tensor) -> Tensor:
            return obs.new_ones(len(obs), 4)

    class OwnCore(LSTM):
        pass

    def drops(space: gym.Space) -> nn.Module:
        network: Any = nn.Sequential(nn.Flatten(), nn.Linear(1, 4), nn.Dropout(0.5))
        network.output_size = 4
        return network

    env, cpu = TensorWorld(3), torch.device("cpu")
    assert traced_act.suits(make_policy(env), cpu, 8)
    assert not traced_act.suits(make_policy(env), cpu, 7), "short rollouts"
    assert traced_act.suits(make_policy(env, encoder=EncoderConfig(hidden=(8, 8), layer_norm=True)), cpu, 8)
    assert not traced_act.suits(make_policy(env, encoder=lambda space: Own()), cpu, 8)
    assert not traced_act.suits(make_policy(env, encoder=drops), cpu, 8)
    assert not traced_act.suits(make_policy(env, lambda size: OwnCore(size, LSTMConfig(hidden=8))), cpu, 8)
    assert not traced_act.suits(make_policy(env, "window"), cpu, 8)
    assert not traced_act.suits(make_policy(env, precision="bf16"), cpu, 8)
    replaced = make_policy(env)
    replaced.encoder.mlp = Own()
    assert not traced_act.suits(replaced, cpu, 8)
