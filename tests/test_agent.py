"""The Python API: train, predict, custom parts, training on."""

from __future__ import annotations

import copy
import pickle

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base import tree
from recollect.config.policy import PolicyConfig
from recollect.cores import LSTMConfig
from recollect.errors import ConfigError, PickleError, SpaceError, StateError
from recollect.policy.policy import Policy
from recollect.tasks import make_task
from tests.support.agents import ACTIONS, OBSERVATIONS, SMALL, AnySpace, small_agent
from tests.support.helpers import LastSeen, TensorWorld

pytestmark = pytest.mark.usefixtures("warm_children")


@pytest.fixture(scope="module")
def agent() -> rc.Agent:
    return small_agent(lambda: AnySpace())


def test_predict_is_the_call_that_sb3_users_know(agent):
    """S002-18, S002-10: batch or single, state in and out, episode_start by row; as the policy acts."""
    obs = np.random.default_rng(0).normal(size=(7, 4, 3)).astype(np.float32)
    state, starts = None, np.ones(4, bool)
    expected = agent.initial_state(4)
    for t in range(7):
        action, state = agent.predict(obs[t], state, starts)
        acted, expected = agent.policy.act(
            torch.from_numpy(obs[t]), expected, torch.from_numpy(starts), deterministic=True
        )
        assert isinstance(action, np.ndarray)
        assert action.tolist() == acted.action.tolist()
        starts = np.array([False, t == 3, False, False])
    for a, b in zip(tree.leaves(state), tree.leaves(expected)):
        torch.testing.assert_close(a, b)
    alone = None
    for t in range(7):
        action, alone = agent.predict(obs[t, 0], alone, episode_start=t == 0)
        assert np.shape(action) == ()
    for a, b in zip(tree.leaves(alone), tree.leaves(state)):
        torch.testing.assert_close(a[0], b[0], rtol=1e-4, atol=1e-5)


def test_predict_needs_a_state(agent):
    """S004-8: without one, and without every row at its start, it raises and names the ways out."""
    obs = np.zeros((2, 3), np.float32)
    for starts in (None, False, np.array([True, False])):
        with pytest.raises(StateError, match=r"no state was given.*episode_start=True.*agent\.session\(\)"):
            agent.predict(obs, None, starts)
    agent.predict(obs, None, True)
    agent.predict(obs, agent.initial_state(2))
    with pytest.raises(StateError, match="has 3 rows, the input 2"):
        agent.predict(obs, agent.initial_state(3))
    with pytest.raises(StateError, match="first has shape"):
        agent.predict(obs, agent.initial_state(2), np.ones(3, bool))


def test_predict_without_memory_needs_none():
    """S004-9: a policy without memory is asked plainly."""
    agent = small_agent(lambda: AnySpace(), core="none")
    action, state = agent.predict(np.zeros(3, np.float32))
    assert np.shape(action) == ()
    assert state == ()


def test_predict_samples(agent):
    """S002-18: deterministic takes the mode; else actions are drawn, and the seed decides them."""
    obs = np.zeros((300, 3), np.float32)
    fixed, _ = agent.predict(obs, None, True)
    torch.manual_seed(0)
    drawn, _ = agent.predict(obs, None, True, deterministic=False)
    torch.manual_seed(0)
    again, _ = agent.predict(obs, None, True, deterministic=False)
    assert len(np.unique(fixed)) == 1
    assert len(np.unique(drawn)) > 1
    assert np.array_equal(drawn, again)


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_all_observation_spaces(name):
    """Train, predict one and a batch, for each kind of observation."""
    space = OBSERVATIONS[name]
    agent = small_agent(lambda: AnySpace(space))
    single = space.sample()
    action, state = agent.predict(single, None, True)
    assert agent.policy.action_space.contains(action)
    batch = gym.vector.utils.batch_space(space, 3)
    actions, state = agent.predict(batch.sample(), None, True)
    assert actions.shape == (3,)
    agent.predict(batch.sample(), state)


@pytest.mark.parametrize("name", ACTIONS)
def test_all_action_spaces(name):
    """S000-16: what predict and a session return is what the env takes."""
    space = ACTIONS[name]
    agent = small_agent(lambda: AnySpace(None, space))
    obs = np.zeros(3, np.float32)
    action, _ = agent.predict(obs, None, True)
    assert space.contains(action)
    batched, _ = agent.predict(np.stack([obs, obs]), agent.initial_state(2))
    assert gym.vector.utils.batch_space(space, 2).contains(batched)
    assert space.contains(agent.session().act(obs))


def test_predict_refuses_what_does_not_fit(agent):
    """S002-10, S002-19: shapes, dtypes and missing keys are named."""
    with pytest.raises(SpaceError, match=r"shape \(2, 2, 3\), and its space says \(3,\).*rows first"):
        agent.predict(np.zeros((2, 2, 3), np.float32), None, True)
    with pytest.raises(SpaceError, match="NaN or Inf"):
        agent.predict(np.array([0, np.nan, 0], np.float32), None, True)
    keyed = small_agent(lambda: AnySpace(OBSERVATIONS["dict"]))
    with pytest.raises(SpaceError, match="the observation lacks 'z'"):
        keyed.predict({"a": 1}, None, True)


def test_what_was_seen_is_not_changed(agent):
    """S002-19: predict leaves the caller's array alone."""
    obs = np.random.default_rng(0).normal(size=(2, 3)).astype(np.float32)
    before = obs.copy()
    agent.predict(obs, None, True)
    assert np.array_equal(obs, before)


def test_any_kind_of_env():
    """S000-21: an id, a class, one env, a VectorEnv and a BatchedEnv; each brings its own number of rows."""
    vector = gym.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    small = {key: value for key, value in SMALL.items() if key != "num_envs"} | {"minibatches": 1}
    for env, rows in ((vector, 3), (AnySpace(), 1), (make_task("t-maze", 5), 5)):
        agent = rc.train(env, steps=rows * 8, progress=False, **small)
        assert agent._trainer.collector.envs[0].num_envs == rows
        assert agent.config.num_envs == rows
    assert small_agent(AnySpace).steps == 16
    assert small_agent("CartPole-v1").steps == 16
    with pytest.raises(ConfigError, match=r"num_envs is 4, and the given .* has 5"):
        rc.train(make_task("t-maze", 5), num_envs=4, steps=5, progress=False)


def test_training_on():
    """S000-30: more steps on the same agent; the counters go on; new steps are counted from there."""
    agent = small_agent()
    assert agent.steps == 16
    last = agent.train(32, progress=False)
    assert agent.steps == last["steps"] == 48
    assert last["updates"] == 3
    assert [row["steps"] for row in agent.history.rows] == [16, 32, 48]
    with pytest.raises(ConfigError, match="steps = 0: it must be at least 1"):
        agent.train(0)


def test_training_leaves_the_global_rng_alone():
    """S003-24: the seed of a run is its own; the caller's stream goes on."""
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    small_agent(seed=1)
    assert torch.equal(torch.rand(3), expected)


def test_two_agents_of_one_seed_are_one():
    """S000-26: bitwise the same weights from the same seed, others from another."""
    a, b, c = (small_agent(seed=s).policy.state_dict() for s in (0, 0, 1))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not all(torch.equal(a[name], c[name]) for name in a)


class Doubler(nn.Module):
    """An encoder of the user's own."""

    def __init__(self, space: gym.Space):
        super().__init__()
        self.output_size = 6
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs):
        return torch.cat([obs, obs * self.scale], -1)


class Shy(Policy):
    """A policy of the user's own."""

    def _encode(self, obs):
        return super()._encode(obs) * 0.5


def test_custom_parts_train():
    """S002-9: an encoder, a core and a policy by factory learn like ours, checked by the same gauges."""
    parts = {
        "encoder": {"encoder": Doubler},
        "core": {"core": lambda size: LastSeen(size)},
        "policy": {"policy": lambda o, a: Shy(o, a, PolicyConfig(core="gru"))},
    }
    for name, settings in parts.items():
        drop = ("encoder", "core", "head") if name == "policy" else ()
        base = {k: v for k, v in SMALL.items() if k not in drop}
        agent = rc.train(AnySpace, steps=32, progress=False, **(base | settings))
        assert agent.history.rows[-1]["deviation/value"] < 1e-4
        assert agent.session(2).act(np.zeros((2, 3), np.float32)).shape == (2,)
    assert isinstance(agent.policy, Shy)


def test_a_core_that_cheats_is_caught():
    """S002-9, S004-1: memory kept in the module instead of the state does not survive the first update."""

    class Cheat(LastSeen):
        def _step(self, x, state):
            self.kept = getattr(self, "kept", torch.zeros(())) + x.sum()
            return torch.cat([x, state["last"] + self.kept], 1), {"last": x}

    with pytest.raises(rc.errors.AlignmentError, match="update 0"):
        small_agent(AnySpace, core=lambda size: Cheat(size))


def test_policies_for_other_spaces_are_refused():
    """S000-21: a factory that builds for other spaces, or no policy at all, is told at the start."""
    other = gym.spaces.Box(-1, 1, (7,))
    base = {k: v for k, v in SMALL.items() if k not in ("encoder", "core", "head")}
    with pytest.raises(ConfigError, match=r"the policy was made for observation_space Box.*\(7,\).*env has"):
        rc.train(AnySpace, policy=lambda o, a: Policy(other, a), steps=16, **base)
    with pytest.raises(ConfigError, match="made for action_space"):
        rc.train(AnySpace, policy=lambda o, a: Policy(o, gym.spaces.Discrete(2)), steps=16, **base)
    with pytest.raises(ConfigError, match="the policy factory made a Linear; it needs to make a Policy"):
        rc.train(AnySpace, policy=lambda o, a: nn.Linear(1, 1), steps=16, **base)
    with pytest.raises(ConfigError, match=r"there is no policy 'MlpPolicy'.*leave it out"):
        rc.train(AnySpace, policy="MlpPolicy", steps=16, **base)
    with pytest.raises(ConfigError, match=r"policy is a factory.*encoder, core and head"):
        rc.train(AnySpace, policy=lambda o, a: Policy(o, a), core="gru", steps=16)


def note_firsts(patch: pytest.MonkeyPatch, firsts: list[torch.Tensor]) -> None:
    """Keep what every rollout begins with."""
    collecting = Actor.collecting

    def noting(self, version=0, buffer=0):
        firsts.append(self.first.clone())
        return collecting(self, version, buffer)

    patch.setattr(Actor, "collecting", noting)


def test_training_goes_on_cleanly_after_an_interrupted_rollout():
    """S002-21: the env went on without the actor, so the next rollout begins new episodes."""
    env = TensorWorld(3)
    agent = rc.Agent.create(env, rc.TrainConfig().override(rollout=8, chunk=4, minibatches=1, num_envs=3))
    agent.train(steps=24, progress=False)
    step, calls = env.step, []

    def interrupted(action):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return step(action)

    env.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        agent.train(steps=24, progress=False)
    env.step = step
    firsts: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        note_firsts(patch, firsts)
        agent.train(steps=24, progress=False)
    assert firsts[0].all()


def test_evaluation_from_a_callback_restarts_the_episodes_of_an_env_object():
    """S001-5: the env is one, so training begins new episodes after it was lent."""
    env = TensorWorld(3)
    agent = rc.Agent.create(env, rc.TrainConfig().override(rollout=8, chunk=4, minibatches=1, num_envs=3))
    firsts: list[torch.Tensor] = []
    with pytest.MonkeyPatch.context() as patch:
        note_firsts(patch, firsts)
        agent.train(steps=48, progress=False, callbacks=[lambda *_: agent.evaluate(episodes=3)])
    assert len(firsts) == 2
    assert all(first.all() for first in firsts)


def test_evaluation_in_another_world():
    """A longer horizon by name, without the training env's options getting in the way."""
    small = {"steps": 1, "progress": False, "rollout": 8, "chunk": 4, "core": LSTMConfig(hidden=8)}
    agent = rc.train("delayed-cue", env_kwargs={"cues": 2, "horizon": 3}, **small)
    assert (agent.evaluate(4).lengths == 5).all()
    assert (agent.evaluate(4, env_kwargs={"cues": 2, "horizon": 7}).lengths == 9).all()
    assert (agent.evaluate(4, env="recollect/DelayedCue-v0").lengths == 12).all()


# Copies --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [pickle.dumps, cloudpickle.dumps, copy.copy])
def test_an_agent_is_not_pickled_and_says_what_to_do(agent, keep):
    """A pickle would execute code when it is read; nor do two agents share a trainer."""
    with pytest.raises(PickleError, match=r"agent\.save\(path\).*recollect\.load\(.*deepcopy") as raised:
        keep(agent)
    assert isinstance(raised.value, TypeError), "which libraries that try to pickle expect"


def test_a_deep_copy_is_what_save_and_load_make(tmp_path):
    """It trains on as they would, and the agent that it is of does not notice."""
    original = small_agent(run=str(tmp_path / "run"), normalise_observations=True)
    twin = copy.deepcopy(original)
    loaded = rc.load(original.save(tmp_path / "saved"))
    before = {name: tensor.clone() for name, tensor in original.policy.state_dict().items()}
    assert (twin.steps, twin.run, twin.config.run) == (original.steps, None, None)
    for other in (twin, loaded):
        other.train(32, progress=False)
        other.close()
    for name, tensor in twin.policy.state_dict().items():
        assert torch.equal(tensor, loaded.policy.state_dict()[name]), name
        assert torch.equal(original.policy.state_dict()[name], before[name]), name
    assert twin.steps == original.steps + 32
    assert len(twin.history.rows) > len(original.history.rows)
    original.close()


def test_a_deep_copy_of_an_agent_with_actors_elsewhere():
    """Processes and env objects are not copied."""
    with small_agent(runtime="processes") as original:
        twin = copy.deepcopy(original)
        assert twin._trainer is None
    assert twin.evaluate(2).returns.shape == (2,)
    twin = copy.deepcopy(small_agent(make_task("delayed-cue", 2)))
    with pytest.raises(ConfigError, match="env="):
        twin.train(16, progress=False)


def test_a_policy_is_pickled_as_any_module(agent):
    again = pickle.loads(pickle.dumps(agent.policy))
    obs, first = torch.zeros(2, 3), torch.ones(2, dtype=torch.bool)
    acted = [p.act(obs, p.initial_state(2), first, deterministic=True)[0] for p in (agent.policy, again)]
    assert torch.equal(acted[0].record["log_prob"], acted[1].record["log_prob"])


def test_repr_is_one_line_of_facts(tmp_path):
    """Env, core, size, steps and run; also without an env, memory or run."""
    path = tmp_path / "run"
    made = small_agent("delayed-cue", run=str(path))
    size = sum(p.numel() for p in made.policy.parameters())
    assert repr(made) == (
        f"<Agent of delayed-cue: LSTM, {size:,} parameters, {made.steps:,} steps trained, run {path}>"
    )
    loaded = rc.load(path)
    assert repr(loaded) == repr(made).replace(f", run {path}", "")
    assert repr(small_agent(lambda: AnySpace(), core="none")).startswith("<Agent of an env: no memory, ")
    loaded.env = None
    assert "of no env" in repr(loaded)
