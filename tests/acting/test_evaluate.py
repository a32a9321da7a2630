"""Evaluation: repeatable, unbiased, and without a trace in the training."""

from __future__ import annotations

import random
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect import Agent, TrainConfig
from recollect.acting.evaluate import Evaluation, evaluate
from recollect.base import tree
from recollect.cores import GRUConfig
from recollect.errors import ConfigError
from recollect.policy.policy import Policy
from recollect.tasks import make_task
from tests.support.agents import SMALL, small_agent
from tests.support.doomed import differing
from tests.support.helpers import TensorWorld, as_rows, make_policy


class Lengths(gym.Env):
    """Row 0 has short episodes, the others long ones; the return is the length."""

    def __init__(self, length: int):
        self.length = length
        self.observation_space = gym.spaces.Box(-1, 1, (3,))
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.age = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.age += 1
        return np.zeros(3, np.float32), 1.0, False, self.age == self.length, {}


def world(*lengths: int, how: str = "loop"):
    return as_rows([lambda n=n: Lengths(n) for n in lengths], how)


@pytest.mark.parametrize("how", ["loop", "next_step", "same_step"])
def test_every_row_plays_its_share(how):
    """S001-5: not whichever ends first, which would be short episodes of one row."""
    env = world(1, 20, 20, how=how)
    result = evaluate(make_policy(env, "none"), env, episodes=7)
    assert sorted(result.returns) == [1, 1, 1, 20, 20, 20, 20]
    assert result.returns.tolist() == result.lengths.tolist(), "fillers are not counted"
    few = evaluate(make_policy(env, "none"), env, episodes=2)
    assert sorted(few.returns) == [1, 20]


@pytest.mark.parametrize("deterministic", [True, False])
def test_same_seed_same_episodes(deterministic):
    """S001-5: repeatable, and another seed gives others."""
    env = TensorWorld(3)
    policy = make_policy(env)
    runs = [evaluate(policy, env, episodes=12, seed=s, deterministic=deterministic) for s in (1, 1, 2)]
    assert np.array_equal(runs[0].returns, runs[1].returns)
    assert not np.array_equal(runs[0].returns, runs[2].returns)


def by_hand(policy: Policy, env: TensorWorld, seed: int, deterministic: bool, episodes: int) -> list[list]:
    """(return, length) of each row's first episodes; the memory is replaced, not reset, where one begins."""
    rows = env.num_envs
    obs, generator = env.reset(seed), torch.Generator().manual_seed(seed)
    state = initial = policy.initial_state(rows)
    inside, begins = torch.zeros(rows, dtype=torch.bool), torch.ones(rows, dtype=torch.bool)
    played, total, length = [[] for _ in range(rows)], [0.0] * rows, [0] * rows
    while min(len(found) for found in played) < episodes:
        state = tree.select(begins, initial, state)
        acted, state = policy.act(obs, state, inside, generator, deterministic)
        step = env.step(policy.to_env(acted.action))
        obs, begins = step.obs, step.terminated | step.truncated
        for row in range(rows):
            total[row], length[row] = total[row] + float(step.reward[row]), length[row] + 1
            if begins[row]:
                played[row].append((total[row], length[row]))
                total[row], length[row] = 0.0, 0
    return [found[:episodes] for found in played]


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("core", ["lstm", GRUConfig(hidden=8, learned_initial_state=True)], ids=str)
def test_every_episode_begins_without_a_memory(core, deterministic):
    """S001-5, S000-7: returns and lengths are those of episodes played by hand, each from a fresh memory."""
    env = TensorWorld(3)
    policy = make_policy(env, core, seed=3)
    expected = by_hand(policy, env, 4, deterministic, 5)
    found = evaluate(policy, env, episodes=15, seed=4, deterministic=deterministic)
    played = sorted(zip(found.returns.tolist(), found.lengths.tolist()))
    assert played == sorted(one for row in expected for one in row)


def test_training_is_not_touched():
    """S001-5: weights, statistics, live state, RNG streams and the global RNG are bitwise as before."""
    agent = small_agent(normalise_observations=True)
    trainer = agent._trainer
    (actor,), learner = trainer.collector.actors, trainer.learner
    policy = agent.policy.train()

    def everything():
        streams = (torch.random.get_rng_state(), actor.generator.get_state(), learner.generator.get_state())
        return tree.clone((dict(policy.state_dict()), actor.snapshot(), actor.obs, streams))

    before, stepped = everything(), trainer.steps
    agent.evaluate(5)
    agent.evaluate(5, eval_mode="sampled")
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(before), tree.leaves(everything())))
    assert trainer.collector.actors == [actor]
    assert policy.training
    assert trainer.steps == stepped


def test_training_goes_on_as_if_nothing_had_been():
    """S001-5: weights after more training are the same with and without an evaluation between."""
    with_evaluation, without = small_agent(), small_agent()
    with_evaluation.evaluate(6, eval_mode="both")
    for agent in (with_evaluation, without):
        agent.train(32, progress=False)
    a, b = (agent.policy.state_dict() for agent in (with_evaluation, without))
    assert all(torch.equal(a[name], b[name]) for name in a)


RUNTIMES = {
    "inline": {},
    "two actors": {"actors": 2, "last_action_reward": True},
    "processes": {"runtime": "processes"},
}


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("runtime", RUNTIMES)
def test_a_run_with_evaluations_is_the_run_without(runtime):
    """S001-5: weights, statistics, Adam, every random stream, memories and envs, bit for bit."""

    def trained(every: int) -> tuple[dict[str, torch.Tensor], list[Any], int]:
        seen = []

        class Count(rc.Callback):
            def on_evaluation(self, training, evaluation):
                seen.append(evaluation.mean)

        for seeded in (torch.manual_seed, np.random.seed, random.seed):
            seeded(7)
        settings = SMALL | RUNTIMES[runtime] | {"normalise_observations": True, "eval_episodes": 3}
        with rc.train(
            "delayed-cue", steps=64, eval_every=every, callbacks=[Count()], progress=False, **settings
        ) as agent:
            learned = agent._trainer.learned(live=True)
            everything = dict(agent.policy.state_dict()) | learned.optimizer | learned.trainer.tensors
            streams = {"torch": torch.get_rng_state(), "numpy": torch.from_numpy(np.random.get_state()[1])}
            is_training = torch.tensor(agent.policy.training)
            return tree.clone(everything | streams | {"mode": is_training}), [random.getstate()], len(seen)

    without, python, none = trained(0)
    evaluated, again, some = trained(16)
    assert {name.split("/")[0] for name in without if "rng" in name} == {"actor", "minibatches:rng"}
    assert (none, some) == (0, 4)
    assert differing(without, evaluated) == []
    assert python == again


def test_an_env_object_plays_and_training_begins_anew():
    """S001-5: an env that cannot be made twice is used, and training after it works."""
    env = make_task("delayed-cue", 2)
    agent = small_agent(env)
    assert len(agent.evaluate(4).returns) == 4
    assert agent._trainer.collector.actors == [], "the env was used: new episodes"
    agent.train(16, progress=False)
    other = make_task("delayed-cue", 3, horizon=10)
    (actor,) = agent._trainer.collector.actors
    agent.evaluate(4, env=other)
    assert agent._trainer.collector.actors == [actor], "another env was used: training goes on"


def test_an_env_first_used_by_an_evaluation_can_be_trained_on():
    """S001-5: nothing that an evaluation allocates is closed to training."""
    agent = Agent.create(make_task("delayed-cue", 2), TrainConfig().override(**SMALL))
    agent.evaluate(2)
    assert agent.train(16, progress=False)["steps"] == 16


def test_eval_mode_while_it_plays():
    """S001-5: dropout and the like are off meanwhile, and back after."""
    env = TensorWorld(2)
    policy = make_policy(env)
    modes = []
    act = policy.act
    policy.act = lambda *a: (modes.append((policy.training, torch.is_grad_enabled())), act(*a))[1]
    evaluate(policy, env, episodes=2)
    assert set(modes) == {(False, False)}
    assert policy.training


def test_refusals():
    """S001-5: no episodes, or episodes that never end, are told."""
    env = world(10**9)
    policy = make_policy(env, "none")
    with pytest.raises(ConfigError, match="episodes = 0: it must be at least 1"):
        evaluate(policy, env, episodes=0)
    with pytest.raises(ConfigError, match=r"did not finish 1 episodes within 50 steps.*time limit"):
        evaluate(policy, env, episodes=1, max_steps=50)
    agent = small_agent(lambda: Lengths(3))
    agent.env = None
    with pytest.raises(ConfigError, match=r"give it again with env="):
        agent.evaluate(2)
    with pytest.raises(ConfigError, match="the policy was made for observation_space"):
        agent.evaluate(2, env="CartPole-v1")


def test_the_interval_is_that_of_the_mean():
    """S001-5: a 95% bootstrap interval, the same each time, as wide as theory says."""
    returns = np.random.default_rng(0).normal(10, 2, 400)
    result = Evaluation(returns, np.full(400, 7))
    low, high = result.interval
    assert low < result.mean < high
    assert high - low == pytest.approx(2 * 1.96 * 2 / 20, rel=0.1)
    assert result.interval == (low, high)
    assert str(result).startswith("greedy return 9.9")
    assert "400 episodes" in str(result)
    assert "length 7" in str(result)
