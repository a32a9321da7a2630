"""LastActionReward: what was done and earned, as part of what is seen."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from recollect.base import tree
from recollect.envs import BatchedEnv, GymLoop, GymVector, Resumable, make_env
from recollect.envs.checks import check_batched_env
from recollect.envs.wrappers import LastActionReward
from recollect.errors import SpaceError
from tests.support.worlds import Counter, Echo, TwoAgents, choose


def _vector(mode: AutoresetMode) -> BatchedEnv:
    return GymVector(SyncVectorEnv([Counter] * 3, autoreset_mode=mode))


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_zero_at_the_start_and_right_at_the_end(mode: AutoresetMode) -> None:
    env = LastActionReward(_vector(mode))
    obs = tree.clone(env.reset(0))
    assert not obs["last_action"].any()
    assert not obs["last_reward"].any()
    shown = obs["last_action"], obs["last_reward"]
    for _ in range(40):
        action = choose(obs["obs"])
        step = env.step(action)
        for row in range(3):
            made = torch.nn.functional.one_hot(action[row], 1000).float(), step.reward[row : row + 1]
            if not step.valid[row]:  # the action was not used: what the last real step had
                made = shown[0][row], shown[1][row]
            if step.terminated[row] | step.truncated[row]:
                assert torch.equal(step.final_obs["last_action"][row], made[0])
                assert torch.equal(step.final_obs["last_reward"][row], made[1])
            if step.first[row]:
                made = torch.zeros(1000), torch.zeros(1)
            assert torch.equal(step.obs["last_action"][row], made[0])
            assert torch.equal(step.obs["last_reward"][row], made[1])
        obs = tree.clone(step.obs)
        shown = obs["last_action"], obs["last_reward"]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_the_observation_inside_stays(mode: AutoresetMode) -> None:
    plain, wrapped = _vector(mode), LastActionReward(_vector(mode))
    obs, other = plain.reset(1), wrapped.reset(1)["obs"]
    for _ in range(20):
        step, around = plain.step(choose(obs)), wrapped.step(choose(other))
        obs, other = step.obs, around.obs["obs"]
        assert torch.equal(obs, other)


def test_a_dead_agent_keeps_its_last_step() -> None:
    """S001-29: the wait of a dead agent adds nothing; what it did last stands until it starts anew."""
    env = LastActionReward(TwoAgents())
    env.reset(0)
    actions = [torch.tensor([0, 2, 0, 2]), torch.tensor([2, 0, 2, 0]), torch.tensor([2, 2, 2, 2])]
    alive, died, waits = (env.step(action) for action in actions)
    assert died.terminated.tolist() == [False, True, False, True]
    assert alive.obs["last_action"][1].tolist() == [0, 0, 1]
    assert died.final_obs["last_action"][1].tolist() == [1, 0, 0]
    assert not waits.valid[1]
    assert waits.obs["last_action"][1].tolist() == [1, 0, 0]
    assert waits.obs["last_reward"][1] == died.reward[1] == 2
    assert waits.obs["last_action"][0].tolist() == [0, 0, 1]
    anew = env.step(torch.tensor([0, 2, 0, 2]))
    assert anew.first.all()
    assert not anew.obs["last_action"].any()
    assert not anew.obs["last_reward"].any()
    assert anew.final_obs["last_action"][0].tolist() == [1, 0, 0]
    assert check_batched_env(LastActionReward(TwoAgents()), steps=20).invalid == 20


def test_all_kinds_of_actions() -> None:
    """Discrete parts are such that no action yet, all zeros, is unlike every action."""
    space = spaces.Dict(
        {
            "a": spaces.Discrete(3, start=5),
            "b": spaces.MultiDiscrete([2, 3]),
            "c": spaces.MultiBinary(2),
            "d": spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    env = LastActionReward(GymLoop([lambda: Echo(space)]))
    assert env.reset(0)["last_action"].shape == (1, 3 + 5 + 2 + 2)
    action = {
        "a": torch.tensor([6]),
        "b": torch.tensor([[0, 2]]),
        "c": torch.tensor([[0, 1]], dtype=torch.int8),
        "d": torch.tensor([[-0.5, 0.25]]),
    }
    step = env.step(action)
    assert step.obs["last_action"].tolist() == [[0, 1, 0, 1, 0, 0, 0, 1, -1, 1, -0.5, 0.25]]
    assert list(step.obs) == list(env.observation_space.spaces)
    assert check_batched_env(env, steps=5).steps == 5


def test_contract_and_resume() -> None:
    """It is Resumable just where the env inside is, its own tensors included."""
    cart = LastActionReward(make_env("CartPole-v1", 2))
    assert not isinstance(cart, Resumable)
    assert check_batched_env(cart, steps=60).terminated
    task = LastActionReward(make_env("delayed-cue", 3))
    assert isinstance(task, Resumable)
    assert check_batched_env(task, steps=60).terminated
    env = LastActionReward(make_env("delayed-cue", 2))
    env.reset(0)
    shown = tree.clone(env.step(torch.tensor([1, 0])).obs)
    saved = env.snapshot()
    env.step(torch.tensor([0, 1]))
    restored = env.restore(saved)
    for name in shown:
        assert torch.equal(restored[name], shown[name])


def test_dict_observations_gain_keys() -> None:
    env = LastActionReward(GymLoop([lambda: Counter(as_dict=True)]))
    assert set(env.reset(0)) == {"a", "b", "last_action", "last_reward"}
    with pytest.raises(SpaceError, match="already: is it wrapped twice"):
        LastActionReward(env)
