"""What a user may get wrong: each mistake is answered with what, where, why and what to do."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect.cores import GRUConfig
from recollect.errors import ConfigError, EnvError, RecollectError, SpaceError, StateError
from tests.support.agents import AnySpace, small_agent
from tests.support.helpers import LastSeen


class Broken(AnySpace):
    """An env with one thing wrong from its third step on."""

    def __init__(self, what: str = ""):
        super().__init__()
        self.what, self.steps = what, 0
        if what == "text_space":
            self.observation_space = gym.spaces.Text(5)
        if what == "sequence_action":
            self.action_space = gym.spaces.Sequence(gym.spaces.Discrete(2))
        if what == "integer_box_action":
            self.action_space = gym.spaces.Box(0, 5, (1,), np.int32)

    def step(self, action: Any) -> tuple:
        obs, reward, terminated, truncated, info = super().step(action)
        self.steps += 1
        if self.steps < 3:
            return obs, reward, terminated, truncated, info
        wrong: dict[str, Any] = {
            "shape": (np.zeros(4, np.float32), reward, terminated, truncated, info),
            "nan": (np.full(3, np.nan, np.float32), reward, terminated, truncated, info),
            "reward": (obs, float("inf"), terminated, truncated, info),
            "words": (obs, "high", terminated, truncated, info),
            "done": (obs, reward, terminated, info),
            "flag": (obs, reward, 1, truncated, info),
        }
        return wrong[self.what]


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("shape", EnvError, r"env 0 \(Broken\), step 3: .*shape \(4,\), and its space says \(3,\)"),
        ("nan", EnvError, r"obs of row 0 is nan at step 3 of rollout 0 .*the env produced it"),
        ("reward", EnvError, r"env 0 \(Broken\), step 3: the reward is inf .*division by zero"),
        ("words", EnvError, r"env 0 \(Broken\), step 3: the reward is 'high' \(str\), not a number"),
        ("done", EnvError, r"step returned 4 values.*a lone done is not accepted"),
        ("flag", EnvError, r"terminated is 1 \(int\), not a bool"),
        ("text_space", SpaceError, r"observation_space of Broken is a Text, which is not supported: wrap"),
        ("sequence_action", SpaceError, r"action_space of Broken is a Sequence, which is not supported"),
        ("integer_box_action", SpaceError, r"the action space is a Box of int32.*MultiDiscrete"),
    ],
)
def test_broken_envs(what, error, words):
    """S000-21, S000-1, S001-28: the env, its step and its row are named; weights stay finite."""
    with pytest.raises(error, match=words):
        small_agent(lambda: Broken(what))


def test_weights_survive_a_broken_env():
    """S001-28: after the error the agent is what it was before that rollout, and can be kept."""
    good = small_agent(AnySpace, steps=16)
    before = {name: value.clone() for name, value in good.policy.state_dict().items()}
    (world,) = good._trainer.collector.envs
    world.envs[1].step = lambda action: (np.full(3, np.nan, np.float32), 0.0, False, False, {})
    world._steppers[1] = world.envs[1].step
    with pytest.raises(EnvError, match="obs of row 1 is nan at step 1 of rollout 1"):
        good.train(16, progress=False)
    assert all(torch.equal(before[name], value) for name, value in good.policy.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, r"steps = 0: it must be at least 1"),
        ({"steps": -5}, r"steps = -5: it must be at least 1"),
        ({"steps": "many"}, r"steps = 'many': it needs a whole number"),
        ({"steps": 10.5}, r"steps = 10\.5: it needs a whole number"),
        ({"steps": True}, r"steps = True: it needs a whole number"),
        ({"num_envs": 0}, r"num_envs = 0: it must be at least 1"),
        ({"threads": 0}, r"threads = 0: it must be at least 1"),
        ({"seed": -1}, r"seed = -1: it must not be negative"),
        ({"device": "gpu"}, r"device = 'gpu': choose cpu or cuda"),
        ({"chunk": 9}, r"chunk = 9 is longer than rollout = 8: lower chunk, raise rollout, or use recurrent"),
        ({"chunk": 0}, r"chunk = 0: it must be at least 1"),
        ({"rollout": 0}, r"rollout = 0: it must be at least 1"),
        ({"minibatches": 5}, r"2 rows x 2 chunks a rollout make 4 chunks, too few for 5 minibatches: raise"),
        ({"recurrent_mode": "bptt"}, r"recurrent_mode = 'bptt': it needs none or stored_state or burn_in"),
        ({"recurrent_mode": "none"}, r"recurrent_mode = 'none', but LSTM carries memory.*core='none'"),
        ({"recurrent_mode": "none", "core": GRUConfig()}, r"GRU carries memory"),
        (
            {"recurrent_mode": "burn_in"},
            r"burn_in_steps = 0: with recurrent_mode='burn_in' it must be from 1",
        ),
        ({"recurrent_mode": "burn_in", "burn_in_steps": 5}, r"burn_in_steps = 5: .* to chunk = 4"),
        ({"burn_in_steps": 2}, r"burn_in_steps = 2 does nothing with recurrent_mode='stored_state'"),
        ({"learning_rate": 0}, r"learning_rate = 0: it must be above 0"),
        ({"learning_rate": "fast"}, r"learning_rate = 'fast': it needs a number"),
        ({"learning_rate": float("nan")}, r"learning_rate = nan: it needs a number"),
        (
            {"learning_rate_schedule": "sine"},
            r"learning_rate_schedule = 'sine'.*: .*constant or linear or cosine",
        ),
        ({"learning_rate_warmup": 1.0}, r"learning_rate_warmup = 1\.0: a fraction in \[0, 1\)"),
        ({"gamma": 1.5}, r"gamma = 1\.5: .*\[0, 1\]"),
        ({"clip": -0.1}, r"clip = -0\.1: it must be above 0"),
        ({"entropy": -1}, r"entropy = -1: it must not be negative"),
        ({"normalise_advantages": "yes"}, r"normalise_advantages = 'yes': it needs True or False"),
        ({"value_decay": 1.0}, r"value_decay = 1\.0: .*\[0, 1\)"),
        ({"head": {"gain": 1}}, r"head = \{'gain': 1\}: it needs a name \(actor_critic, q, quantile\), a"),
        ({"head": "actor_critics"}, r"head is 'actor_critics' \(did you mean 'actor_critic'\?\)"),
        ({"core": "lstmm"}, r"no core is called 'lstmm' \(did you mean 'lstm'\?\)"),
        ({"core": 3}, r"core is a int; it needs a name"),
        ({"encoder": "cnn"}, r"encoder"),
        ({"learnin_rate": 1}, r"there is no setting 'learnin_rate' \(did you mean 'learning_rate'\?\)"),
        ({"horizon": 3}, r"there is no setting 'horizon'.*env_kwargs"),
        ({"hidden": 3}, r"there is no setting 'hidden'.*core=LSTMConfig\(hidden=256\)"),
        (
            {"batch_size": 64},
            r"batch_size is counted in other units.*minibatches = num_envs \* rollout / batch",
        ),
        ({"env_kwargs": {"horizn": 3}}, r"delayed-cue has no option 'horizn' \(did you mean 'horizon'\?\)"),
        ({"config": {"steps": 3}}, r"config is a dict: give a TrainConfig"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_meant(settings, words):
    """S000-26, S003-17, S004-2, S004-9: refused before anything runs, with the name and the remedy."""
    with pytest.raises(RecollectError, match=words):
        small_agent(**settings)


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("lr", "learning_rate", 0.5),
        ("n_epochs", "epochs", 3),
        ("n_steps", "rollout", 64),
        ("clip_range", "clip", 0.3),
        ("ent_coef", "entropy", 0.2),
        ("vf_coef", "value_coef", 0.7),
        ("num_minibatches", "minibatches", 3),
    ],
)
def test_names_of_other_libraries(alias, name, value):
    """S000-26: understood, answered with ours, and refused beside ours."""
    with pytest.warns(UserWarning, match=f"{alias} is called {name} in Recollect"):
        config = rc.TrainConfig().override(**{alias: value})
    assert getattr(config.algo, name) == value
    twice = pytest.raises(ConfigError, match=f"{name} is given twice, once as")
    with pytest.warns(UserWarning, match=alias), twice:
        rc.TrainConfig().override(**{name: value, alias: value})


def test_aliases_of_the_run():
    """S000-26: through train itself, and the warning points at the caller's line."""
    small = {"rollout": 8, "chunk": 4, "minibatches": 2, "threads": 1, "progress": False, "core": "none"}
    with pytest.warns(UserWarning, match="total_timesteps is called steps") as caught:
        agent = rc.train("delayed-cue", total_timesteps=16, num_envs=2, **small)
    assert agent.steps == 16
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="n_envs is called num_envs"):
        assert rc.train("delayed-cue", n_envs=2, steps=16, **small).config.num_envs == 2


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (None, r"env is a NoneType: give a task's name"),
        ("cartpole", r"no env is registered as 'cartpole' .*did you mean 'CartPole-v1'"),
        ("delayed-que", r"no env is registered as 'delayed-que' .*did you mean"),
        (lambda: 3, r"the callable for env 0 returned a int, not a gymnasium\.Env"),
        (42, r"env is a int: give"),
    ],
)
def test_envs_that_are_none(env, words):
    """S000-21: what was given, and what can be."""
    with pytest.raises(RecollectError, match=words):
        small_agent(env)


def test_one_env_works():
    """A single row, with chunks enough for the minibatches."""
    assert small_agent(num_envs=1).steps == 16
    with pytest.raises(ConfigError, match="1 rows x 1 chunks a rollout make 1 chunks, too few for 2"):
        small_agent(num_envs=1, chunk=8)
    assert small_agent(num_envs=1, recurrent_mode="full", minibatches=1).steps == 16


def test_a_rollout_of_one_step_works():
    """S004-18: memory is carried from rollout to rollout; the update has what it needs."""
    agent = small_agent(rollout=1, chunk=1, steps=20, gauge_every=1)
    assert agent.steps == 20
    last = agent.history.rows[-1]
    assert last["deviation/log_prob"] < 1e-5
    assert last["state/norm_max"] > 0
    assert last["staleness"] == 0


def test_states_of_the_wrong_batch():
    """S000-12, S002-7: told with both numbers and the likely cause."""
    agent = small_agent()
    obs = np.zeros((4, 3), np.float32)
    with pytest.raises(
        StateError, match=r"LSTM\.step: state leaf '0' has 2 rows, the input 4: was the state"
    ):
        agent.predict(obs, agent.initial_state(2))
    with pytest.raises(StateError, match=r"the state has leaves .* this core needs"):
        agent.predict(obs, small_agent(core=GRUConfig(hidden=8)).initial_state(4))


def test_a_state_spec_that_changes_is_refused():
    """S000-21, S000-12: a core whose state outgrows its initial one fails at its second step, by name."""

    class Growing(LastSeen):
        def _step(self, x, state):
            y, _ = super()._step(x, state)
            return y, {"last": torch.cat([x, x], 1)}

    with pytest.raises(
        StateError, match=r"the state has leaves last \[B, 16\], this core needs last \[B, 8\]"
    ):
        small_agent(AnySpace, core=lambda size: Growing(size))
