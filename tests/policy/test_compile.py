"""torch.compile: it computes the same, compiles a few times and then never again, and leaves no trace.

The cheap backends prove what is captured and that nothing is captured anew; the real one is slow.
"""

from __future__ import annotations

import copy
import pickle
import shutil
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import recollect as rc
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.policy import EncoderConfig, PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.cores import CORES, GRUConfig, LSTMConfig
from recollect.errors import ConfigError
from recollect.policy import compiled
from recollect.policy.compiled import GRAPHS
from recollect.policy.policy import Policy
from tests.support.helpers import TensorWorld, assert_reproduced, make_actor, make_policy

LSTM = LSTMConfig(hidden=16)


@pytest.fixture(autouse=True)
def _forget_graphs():
    yield
    torch._dynamo.reset()


def twins(core: Any = LSTM, backend: str = "eager", **config: Any) -> tuple[Policy, Policy]:
    """A policy with statistics, eager and compiled."""
    env = TensorWorld(5)
    policy = make_policy(env, core, normalise_observations=True, **config)
    if policy.obs_norm is not None:
        policy.obs_norm.update(3 * torch.randn(1, 50, 3) + 1, torch.ones(1, 50, dtype=torch.bool))
    twin = copy.deepcopy(policy)
    twin.compile_parts(backend)
    return policy, twin


def acted(policy: Policy, rows: int, steps: int = 3) -> Tensor:
    """Values, log-probs and the last state of a few steps with resets, from seeded noise."""
    noise = torch.Generator().manual_seed(rows)
    state, found = policy.initial_state(rows), []
    for _ in range(steps):
        obs = 20 * torch.randn(rows, 3, generator=noise)  # some beyond the limit of the normaliser
        first = torch.rand(rows, generator=noise) < 0.4
        out, state = policy.act(obs, state, first, noise)
        found += [out.record["value"], out.record["log_prob"], policy.value(obs, state, first)]
    return torch.cat([*found, *(leaf.flatten().float() for leaf in tree.leaves(state))])


def learned(policy: Policy, steps: int, rows: int) -> Tensor:
    """Values, log-probs and the gradient of all parameters, from seeded noise."""
    noise = torch.Generator().manual_seed(rows)
    obs = torch.randn(steps, rows, 3, generator=noise)
    first = torch.rand(steps, rows, generator=noise) < 0.2
    action = torch.randint(3, (steps, rows), generator=noise)
    policy.zero_grad()
    log_prob, entropy, value = policy.evaluate_actions(obs, action, policy.initial_state(rows), first)
    (log_prob + entropy + value.square()).mean().backward()
    grads = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
    return torch.cat([log_prob.detach().flatten(), value.detach().flatten(), *grads])


def close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_compiled_is_eager(critic):
    """S002-11: values, log-probs, states and gradients within 1e-5; few graphs, whatever the shapes."""
    eager, fast = twins(backend="aot_eager", critic=critic)
    for rows in (5, 2, 1, 7):
        close(acted(fast, rows), acted(eager, rows))
    for steps, rows in ((7, 6), (3, 4)):
        close(learned(fast, steps, rows), learned(eager, steps, rows))
    before = fast.compiled_graphs
    assert 4 <= before <= GRAPHS
    for rows in (4, 9, 11, 6):  # sizes that it has not met
        acted(fast, rows, steps=10)
        learned(fast, rows, 2 * rows)
    assert fast.compiled_graphs == before


QUICK = ("gru", "stack")
"""The cores that are tried every time, beside the LSTM everywhere here; all others when slow tests run."""


@pytest.mark.parametrize(
    "core", [core if core in QUICK else pytest.param(core, marks=pytest.mark.slow) for core in CORES]
)
def test_every_core_steps_compiled(core):
    """S002-11: one graph for a step of any core, the same numbers, and no new one at any later step."""
    eager, fast = twins(core)
    close(acted(fast, 4), acted(eager, 4))
    before = fast.compiled_graphs
    acted(fast, 4, steps=12)
    assert fast.compiled_graphs == before <= 2, "compile is not given up, and does not go on"


@pytest.fixture
def cheap(monkeypatch):
    monkeypatch.setattr(compiled, "BACKEND", "eager")


def test_a_run_compiles_a_few_times(cheap):
    """S002-11: acting, values of changing numbers of truncated rows, padded and odd minibatches, burn-in,
    refresh, gauges and evaluations: all graphs are there after a few updates; torch counts the same."""
    torch._dynamo.utils.counters.clear()
    found: list[float] = []
    agent = rc.train(
        TensorWorld(5),
        steps=23 * 5 * 8,
        rollout=23,
        chunk=7,
        minibatches=3,
        epochs=2,
        recurrent_mode="burn_in",
        burn_in_steps=3,
        refresh_states=True,
        gauge_every=2,
        compile=True,
        core=LSTM,
        threads=1,
        progress=False,
        callbacks=[lambda _, metrics: found.append(metrics["compiled_graphs"])],
    )
    agent.evaluate(7, env=TensorWorld(3))
    assert len(found) == 8
    assert found[3] == found[-1] <= GRAPHS
    assert agent.policy.compiled_graphs <= found[-1] + 1, "another number of rows at most"
    assert agent.policy.compiled_graphs == torch._dynamo.utils.counters["stats"]["unique_graphs"]


def test_acting_and_learning_agree(cheap):
    """M, S002-11: the learner's graphs reproduce what the actor's recorded."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTM, normalise_observations=True)
    policy.compile_parts()
    actor = make_actor(env, policy, rollout=23, chunk=7)
    learner = make_learner(policy, PPOConfig(rollout=23, chunk=7, minibatches=2, tolerance=1e-5))
    for _ in range(3):
        rollout = actor.collect()
        assert_reproduced(policy, rollout, 7)
        learner.update(rollout)


def test_no_trace_is_left(cheap, tmp_path):
    """S002-11: names of weights, checkpoints, copies and pickles are those of an eager policy."""
    eager, fast = twins(GRUConfig(hidden=8))
    plain = make_policy(TensorWorld(5), LSTM, normalise_observations=False)  # statistics cannot be pickled
    plain.compile_parts()
    assert pickle.loads(pickle.dumps(plain)).compiled_graphs == 0
    assert list(eager.state_dict()) == list(fast.state_dict())
    assert [name for name, _ in eager.named_modules()] == [name for name, _ in fast.named_modules()]
    acted(fast, 3)
    other = copy.deepcopy(fast)
    close(acted(other, 3), acted(eager, 3))
    assert other.compiled_graphs == 0
    settings: dict[str, Any] = {
        "core": LSTM,
        "num_envs": 3,
        "rollout": 8,
        "chunk": 4,
        "minibatches": 2,
        "threads": 1,
        "env_kwargs": {"horizon": 2},
        "progress": False,
    }
    agents = [
        rc.train("delayed-cue", steps=48, run=tmp_path / str(flag), compile=flag, **settings)
        for flag in (False, True)
    ]
    weights = [agent.policy.state_dict() for agent in agents]
    for name in weights[0]:  # the cheap backend computes the very same
        close(weights[0][name], weights[1][name])
    loaded = rc.load(tmp_path / "True")
    assert loaded.policy.compiled_graphs == 0, "to act, nothing has to be compiled"
    assert loaded.evaluate(4).returns.tolist() == agents[1].evaluate(4).returns.tolist()
    assert rc.load(tmp_path / "False").policy.state_dict().keys() == loaded.policy.state_dict().keys()


class Deep(Policy):
    """Another critic and other features, by the hooks that a subclass has."""

    def __init__(self, observation_space: Any, action_space: Any):
        encoder = EncoderConfig(hidden=(8,))
        super().__init__(observation_space, action_space, PolicyConfig(core=LSTM, encoder=encoder))
        self.deep = nn.Linear(16, 16)

    def _encode(self, obs):
        return super()._encode(obs) * 0.5

    def _value(self, y):
        return super()._value(self.deep(y).tanh())


def test_hooks_of_a_subclass_are_compiled_too():
    """S002-11, S002-9: what a user's policy changes, its compiled parts change."""
    env = TensorWorld(4)
    eager = Deep(env.observation_space, env.action_space)
    fast = copy.deepcopy(eager)
    fast.compile_parts("eager")
    torch.testing.assert_close(acted(fast, 4), acted(eager, 4))
    torch.testing.assert_close(learned(fast, 5, 4), learned(eager, 5, 4))


def test_many_policies_in_one_process():
    """S002-11: the graphs of one are not counted against another; torch would give up at the ninth."""
    for width in range(2, 13):
        _, fast = twins("none", encoder=EncoderConfig(hidden=(width,)))
        acted(fast, 4, steps=1)
        assert fast.compiled_graphs == 1, width


def test_no_compiler_is_told(monkeypatch):
    """S002-11: before anything else happens, with the way out; nothing falls back in silence."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ConfigError, match=r"needs a C\+\+ compiler.*apt install g\+\+.*leave compile off"):
        rc.train("delayed-cue", steps=64, compile=True, progress=False)
    monkeypatch.setenv("CXX", "my-compiler")
    with pytest.raises(ConfigError, match=r"my-compiler.*CXX"):
        make_policy(TensorWorld(3), LSTM).compile_parts()
    make_policy(TensorWorld(3), LSTM).compile_parts("eager")


@pytest.mark.slow
def test_inductor(tmp_path, monkeypatch):
    """S002-11: the real backend, in values, gradients and a whole run; a few graphs."""
    try:
        compiled.check_backend(torch.device("cpu"))
    except ConfigError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "graphs"))
    eager, fast = twins(backend="inductor")
    for rows in (5, 2, 1, 7):
        torch.testing.assert_close(acted(fast, rows), acted(eager, rows))
    for steps, rows in ((7, 6), (7, 5)):
        close(learned(fast, steps, rows), learned(eager, steps, rows))
    assert fast.compiled_graphs <= GRAPHS
    settings: dict[str, Any] = {"rollout": 23, "chunk": 7, "core": LSTM, "threads": 1, "progress": False}
    agent = rc.train("delayed-cue", steps=2_000, compile=True, run=tmp_path / "run", **settings)
    assert agent.history.rows[-1]["compiled_graphs"] <= GRAPHS
    assert rc.resume(tmp_path / "run", steps=400, progress=False).policy.compiled_graphs > 0
