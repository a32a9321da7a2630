"""Traces: what is recorded is what happened, and training does not notice."""

from __future__ import annotations

import functools
import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from recollect.acting.recording import leaf_names, record_env
from recollect.acting.trace import Trace
from recollect.agent import Agent
from recollect.base import tree
from recollect.config.train import TrainConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.envs.env_names import display_name
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, RecollectError
from recollect.play.trace import record
from recollect.tasks import make_task
from tests.support.agents import ACTIONS, OBSERVATIONS, SMALL, AnySpace, small_agent
from tests.support.helpers import CounterEnv as Counting
from tests.support.helpers import TensorWorld, as_rows, counting_policy, make_policy


def new_agent(env: Any, **settings: Any) -> Agent:
    """An agent with random weights; nothing here needs it to be good."""
    return Agent.create(env, TrainConfig().override(**SMALL | settings))


def of_spaces(observation: str = "box", action: str = "discrete") -> Any:
    return functools.partial(AnySpace, OBSERVATIONS[observation], ACTIONS[action])


# What is recorded ---------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("core", ["lstm", "gru", "none"])
def test_it_is_what_the_policy_does_by_hand(core, deterministic):
    """S000-7, S001-5: values, log-probs, rewards and memory equal those of the policy stepped by hand."""
    env = TensorWorld(1)
    policy = make_policy(env, core, seed=3)
    traces = record_env(policy, env, episodes=5, seed=4, deterministic=deterministic)
    obs, state = env.reset(4), policy.initial_state(1)
    first, generator = torch.ones(1, dtype=torch.bool), torch.Generator().manual_seed(4)
    for trace in traces:
        for t in range(len(trace)):
            memory = tree.leaves(policy.core.reset(state, first))
            flat = torch.cat([leaf.flatten() for leaf in memory]) if memory else torch.zeros(0)
            assert np.array_equal(trace.memory[t], flat.numpy())
            assert trace.obs[t][0]["values"] == pytest.approx(obs[0].tolist(), rel=1e-5)
            acted, state = policy.act(obs, state, first, generator, deterministic)
            step = env.step(policy.to_env(acted.action))
            assert trace.first[t] == bool(first) == (t == 0)
            assert trace.value[t] == acted.record["value"].item()
            assert trace.log_prob[t] == acted.record["log_prob"].item()
            assert trace.action[t] == acted.action.item()
            assert trace.reward[t] == step.reward.item()
            obs, first = step.obs, step.first
        assert (trace.terminated, trace.truncated) == (bool(step.terminated), bool(step.truncated))
        assert bool(first), "a trace ends with its episode"
        assert not trace.cut


@pytest.mark.parametrize("deterministic", [True, False])
def test_its_episodes_are_those_of_evaluate(deterministic):
    """S001-5: the same seed gives the same returns and lengths."""
    agent = new_agent("t-maze", env_kwargs={"length": 4})
    traces = record(agent, episodes=6, seed=9, deterministic=deterministic)
    again = agent.evaluate(6, seed=9, eval_mode="greedy" if deterministic else "sampled", num_envs=1)
    assert [trace.return_ for trace in traces] == again.returns.tolist()
    assert [len(trace) for trace in traces] == again.lengths.tolist()


def test_memory_at_a_first_step_is_the_initial_state():
    """S000-7: after the reset that ``first`` implies, also where the initial state is learned."""
    env = TensorWorld(1)
    policy = make_policy(env, LSTMConfig(hidden=4, learned_initial_state=True))
    initial = torch.cat([leaf.flatten() for leaf in tree.leaves(policy.initial_state(1))]).numpy()
    assert initial.any()
    for trace in record_env(policy, env, episodes=4):
        assert np.array_equal(trace.memory[0], initial)
        assert not any(np.array_equal(row, initial) for row in trace.memory[1:])


@pytest.mark.parametrize("how", ["loop", "next_step", "same_step", "disabled"])
def test_every_way_to_autoreset_gives_the_same_trace(how):
    """S001-9: fillers are not recorded, and no step is."""
    env = as_rows([lambda: Counting(0)], how)
    traces = record_env(counting_policy(env), env, episodes=4)
    assert [len(trace) for trace in traces] == [5, 1, 1, 8]
    # CounterEnv shows 16 * episode + step, and a vector env may have reset it before.
    starts = [trace.obs[0][0]["values"][0] for trace in traces]
    assert [s - starts[0] for s in starts] == [0, 16, 32, 48]
    for trace in traces:
        seen = [step[0]["values"][0] for step in trace.obs]
        assert seen == [seen[0] + t for t in range(len(trace))]
        assert trace.memory[:, 0].tolist() == [-1, *seen[:-1]]
        assert trace.first.tolist() == [True] + [False] * (len(trace) - 1)


def test_of_many_rows_the_first_is_recorded():
    env = TensorWorld(3)
    policy = make_policy(env)
    trace = record_env(policy, env, seed=2)[0]
    obs = env.reset(2)
    acted, _ = policy.act(obs, policy.initial_state(3), torch.ones(3, dtype=torch.bool), None, True)
    assert trace.value[0] == acted.record["value"][0].item()
    assert len(set(acted.record["value"].tolist())) == 3


def test_an_episode_that_is_too_long_is_cut():
    env = TensorWorld(1, lengths=(2, 50, 2))
    traces = record_env(make_policy(env), env, episodes=9, max_steps=7)
    assert [len(trace) for trace in traces] == [2, 7]
    assert [trace.cut for trace in traces] == [False, True]
    assert not traces[1].terminated
    assert not traces[1].truncated


def test_training_is_not_touched():
    """S001-5: weights, mode, live state and every RNG are as before, and training goes on the same."""
    torch.manual_seed(0)
    one, two = (small_agent("delayed-cue", steps=32) for _ in range(2))
    one.policy.train()
    before = torch.get_rng_state()
    record(one, episodes=3, deterministic=False)
    assert torch.equal(before, torch.get_rng_state())
    assert one.policy.training
    for agent in (one, two):
        agent.train(32, progress=False)
    for a, b in zip(one.policy.state_dict().values(), two.policy.state_dict().values()):
        assert torch.equal(a, b)


def test_eval_mode_meanwhile():
    env, modes = TensorWorld(1), []
    policy = make_policy(env)
    act = policy.act
    policy.act = lambda *args: (modes.append(policy.training), act(*args))[1]  # type: ignore[method-assign]
    policy.train()
    record_env(policy, env)
    assert modes
    assert not any(modes)
    assert policy.training


# Of which env -------------------------------------------------------------------------------------


def test_env_kwargs_choose_another_world():
    agent = new_agent("delayed-cue", env_kwargs={"horizon": 3})
    assert len(record(agent)[0]) == 5
    assert len(record(agent, env_kwargs={"horizon": 6})[0]) == 8
    assert len(record(agent, env="delayed-cue")[0]) == 5, "its own env with its own options"
    assert len(record(agent, env="recollect/DelayedCue-v0")[0]) == 12, "another spelling has none"


def test_an_env_object_plays_and_training_starts_anew():
    world = TensorWorld(2)
    agent = small_agent(world)
    trace = record(agent)[0]
    assert trace.env == "TensorWorld"
    assert agent._trainer is not None
    assert agent._trainer.collector.actors == [], "the next rollout begins new episodes"
    agent.train(16, progress=False)
    with pytest.raises(ConfigError, match="env_kwargs"):
        record(agent, env_kwargs={"length": 3})


def test_errors_say_what_to_do():
    agent = new_agent("delayed-cue")
    with pytest.raises(ConfigError, match="at least 1"):
        record(agent, episodes=0)
    with pytest.raises(ConfigError, match="observation_space"):
        record(agent, env_kwargs={"cues": 5})
    with pytest.raises(ConfigError, match="no option 'horizn'"):
        record(agent, env_kwargs={"horizn": 5})
    with pytest.raises(ConfigError, match=r"CartPole-v1 does not take the options \{'depth': 3\}"):
        record(agent, env="CartPole-v1", env_kwargs={"depth": 3})
    agent.env = None
    with pytest.raises(ConfigError, match="env="):
        record(agent)


def test_names():
    assert display_name("t-maze") == "t-maze"
    assert display_name(AnySpace) == display_name(of_spaces()) == display_name(AnySpace()) == "AnySpace"
    assert display_name(gym.make("CartPole-v1")) == "CartPole-v1"
    assert display_name(lambda: AnySpace()) is None
    env = TensorWorld(1)
    assert leaf_names(make_policy(env, LSTMConfig(hidden=4, layers=2))) == (("h", 8), ("c", 8))
    assert leaf_names(make_policy(env, GRUConfig(hidden=4))) == (("h", 4),)
    assert leaf_names(make_policy(env, "none")) == ()
    assert leaf_names(counting_policy(Counting(0))) == (("last", 1),)


# Words -------------------------------------------------------------------------------------------


def test_last_action_and_reward_are_seen_and_words_are_found_below():
    """The wrapper that the config asks for is there, and the task inside still speaks."""
    agent = new_agent("delayed-cue", last_action_reward=True, env_kwargs={"horizon": 2})
    trace = record(agent)[0]
    assert trace.words is not None
    assert trace.words[0].startswith("cue ")
    assert trace.words[1:] == ["blank", "blank", "query"]
    names = [{part["name"]: part["values"] for part in step} for step in trace.obs]
    assert names[0]["last_action"] == [0, 0]
    for t in range(1, len(trace)):
        assert names[t]["last_action"] == [float(trace.action[t - 1] == a) for a in (0, 1)]
        assert names[t]["last_reward"] == [trace.reward[t - 1]]


def test_words():
    policy_of = functools.partial(make_policy, core="none")
    task = make_task("t-maze", 1, length=1)
    assert record_env(policy_of(task), task)[0].words[0].startswith("sign:")  # type: ignore[index]
    loop = as_rows([lambda: gym.make("recollect/TMaze-v0", disable_env_checker=True)], "loop")
    assert record_env(policy_of(loop), loop)[0].words[0].startswith("sign:")  # type: ignore[index]
    wrapped = LastActionReward(TensorWorld(1))
    assert record_env(policy_of(wrapped), wrapped)[0].words is None


# Files --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action", ["dict", "multidiscrete", "tuple"])
def test_round_trip(action, tmp_path):
    trace = record(new_agent(of_spaces("dict", action)))[0]
    data = trace.to_json()
    text = json.dumps(data, allow_nan=False)
    assert Trace.from_json(text).to_json() == Trace.from_json(data).to_json() == data
    path = trace.save(tmp_path / "episodes" / "a.json")
    again = Trace.load(path)
    assert again.to_json() == data
    assert np.allclose(again.memory, trace.memory, atol=5.1e-5)
    assert np.array_equal(again.value.astype(np.float32), trace.value.astype(np.float32)), (
        "9 digits keep float32"
    )
    assert again.leaves == trace.leaves
    assert again.return_ == pytest.approx(trace.return_)


def test_the_format():
    """The file that reports read: these keys and no others."""
    data = record(new_agent("delayed-cue", env_kwargs={"horizon": 1}), seed=5)[0].to_json()
    scalars = {key: value for key, value in data.items() if not isinstance(value, list)}
    assert scalars == {
        "format": 1,
        "env": "delayed-cue",
        "seed": 5,
        "checkpoint_steps": 0,
        "units": 16,
        "terminated": True,
        "truncated": False,
        "cut": False,
        "mode": "greedy",
        "agent": None,
        "group": None,
        "episode": 0,
        "start": 0,
        "returns": {},
        "return": data["reward"][-1],
    }
    assert data["leaves"] == [{"name": "h", "size": 8}, {"name": "c", "size": 8}]
    per_step = ["first", "reward", "value", "action", "log_prob", "distribution", "obs", "words", "memory"]
    assert set(data) == {*scalars, *per_step, "leaves"}
    assert {len(data[key]) for key in per_step} == {3}
    assert data["memory"][0] == [0.0] * 16
    assert all(round(x, 4) == x for row in data["memory"] for x in row)
    assert data["obs"][0] == [{"name": "", "kind": "vector", "values": data["obs"][0][0]["values"]}]


def test_a_file_of_an_older_version_has_no_mode_and_no_agent():
    data = record(new_agent("delayed-cue"), deterministic=False)[0].to_json()
    assert Trace.from_json(data).mode == "sampled"
    for name in ("mode", "agent", "group", "episode", "start", "returns"):
        del data[name]
    assert Trace.from_json(data).mode is None
    assert Trace.from_json(data).agent is None


def test_without_memory():
    data = record(new_agent("delayed-cue", core="none"))[0].to_json()
    assert data["units"] == 0
    assert data["leaves"] == []
    assert Trace.from_json(data).memory.shape == (12, 0)


def test_numbers_that_json_lacks():
    env = TensorWorld(1)
    policy = make_policy(env)
    trace = record_env(policy, env)[0]
    trace.value[0], trace.memory[0, 0] = np.nan, np.inf
    data = json.loads(json.dumps(trace.to_json(), allow_nan=False))
    assert data["value"][0] is None
    assert data["memory"][0][0] is None
    assert np.isnan(Trace.from_json(data).value[0])


def test_files_that_are_none(tmp_path):
    path = record(new_agent("delayed-cue"))[0].save(tmp_path / "a.json")
    path.write_text(path.read_text()[:-20])
    with pytest.raises(RecollectError, match=r"a\.json .*Record it again"):
        Trace.load(path)
    path.write_text('{"format": 99}')
    with pytest.raises(RecollectError, match="format 99"):
        Trace.load(path)
    path.write_text("[]")
    with pytest.raises(RecollectError, match="Record it again"):
        Trace.load(path)
