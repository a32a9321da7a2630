"""Acting steps as traced graphs: the same rollouts, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.acting import traced_steps
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


def actor_of(core: Any, *, eager: bool, env: Any = None, **config: Any) -> Actor:
    env = env or TensorWorld(3)
    policy = make_policy(env, core, normalise_observations=True, **config)
    actor = make_actor(env, policy, rollout=12, chunk=6)
    assert actor._traced is not None
    actor._traced._has_failed = eager
    return actor


def rollouts(actor: Actor) -> Iterator[Any]:
    """Rollouts that begin before statistics exist, while they do not and after they do; weights move."""
    generator = torch.Generator().manual_seed(0)
    for number in range(traced_steps.EAGER_ROLLOUTS + 4):
        rollout = keep(actor.collect())
        yield rollout
        if number >= traced_steps.EAGER_ROLLOUTS:
            seen = tree.map(lambda leaf: leaf[:12], rollout.obs)
            actor.policy.obs_norm.update(seen, rollout.valid)  # pyright: ignore[reportOptionalMemberAccess]
            with torch.no_grad():
                for weight in actor.policy.parameters():
                    weight += 0.1 * torch.randn(weight.shape, generator=generator)


def assert_same_rollouts(core: Any, **config: Any) -> None:
    traced, eager = (actor_of(core, eager=eager, **config) for eager in (False, True))
    resets = 0
    for one, two in zip(rollouts(traced), rollouts(eager), strict=True):
        for name in ("obs", "first", "action", "reward", "record", "states", "bootstrap", "final_value"):
            pairs = zip(tree.leaves(getattr(one, name)), tree.leaves(getattr(two, name)), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), name
        resets += int(one.first[1:].sum())
    assert resets > 0
    assert traced._traced._is_proved  # pyright: ignore[reportOptionalMemberAccess]
    assert eager._traced._graph is None  # pyright: ignore[reportOptionalMemberAccess]


@pytest.mark.parametrize("name", CORES)
def test_rollouts_are_those_of_eager_steps(name):
    """S000-4, S002-21: also where statistics appear, and where episodes end inside a rollout."""
    assert_same_rollouts(CORES[name])


def test_a_critic_with_a_memory_of_its_own():
    assert_same_rollouts(LSTMConfig(hidden=8), critic="separate")


def lstm_rollouts_are_the_same() -> None:
    assert_same_rollouts(CORES["lstm"])


def test_short_runs_do_not_trace():
    actor = actor_of("lstm", eager=False)
    for _ in range(traced_steps.EAGER_ROLLOUTS):
        actor.collect()
    assert actor._traced._graph is None  # pyright: ignore[reportOptionalMemberAccess]


def a_step_that_differs_ends_tracing() -> None:
    """A graph has one way through the code; here the step that is compared goes another one."""
    calls = []

    def branching(self: LSTM, x: Tensor, *given: Tensor) -> Any:
        calls.append(1)
        return cell(self, x if len(calls) % 2 else 2 * x, *given)

    cell = LSTM._cell
    actor = actor_of("lstm", eager=False)
    for _ in range(traced_steps.EAGER_ROLLOUTS):
        actor.collect()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LSTM, "_cell", branching)
        actor.collect()
    assert actor._traced._has_failed  # pyright: ignore[reportOptionalMemberAccess]


def test_a_step_that_differs_ends_tracing():
    a_step_that_differs_ends_tracing()


def test_a_graph_that_cannot_run_ends_tracing(monkeypatch):
    """torch traces a product with a bool, and cannot run it."""
    encode = Policy._encode
    monkeypatch.setattr(Policy, "_encode", lambda self, obs: encode(self, obs) * True)
    actor = actor_of("lstm", eager=False)
    for _ in range(traced_steps.EAGER_ROLLOUTS + 2):
        actor.collect()
    assert actor._traced._has_failed  # pyright: ignore[reportOptionalMemberAccess]


def test_only_known_parts_are_traced():
    """Images, and networks of the user, may branch on values."""

    class Own(torch.nn.Module):
        output_size = 4

        def forward(self, obs: Tensor) -> Tensor:
            return obs.new_ones(len(obs), 4)

    env = TensorWorld(3)
    cpu = torch.device("cpu")
    assert traced_steps.suits(make_policy(env), cpu)
    assert traced_steps.suits(make_policy(env, encoder=EncoderConfig(hidden=(8, 8), layer_norm=True)), cpu)
    assert not traced_steps.suits(make_policy(env, encoder=lambda space: Own()), cpu)
    assert not traced_steps.suits(make_policy(env, "window"), cpu)
    assert not traced_steps.suits(make_policy(env, precision="bf16"), cpu)
