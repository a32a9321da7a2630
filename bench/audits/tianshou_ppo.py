"""tianshou's PPO with a recurrent actor: which log-probability is the old one of the ratio.

The "LSTM" of the actor is a counter that starts at 0 and grows by 1 with each observation; the mean of the
actions is the counter. So the actor chose the action of step t with a mean of t + 1. As the documentation
asks of recurrent networks, the buffer stacks the last observations (``stack_num``).
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from torch import nn
from torch.distributions import Independent, Normal
from verdict import gae, judge, report

EPISODE, STACK = 8, 4
GAMMA, LAMBDA = 0.9, 0.8


class Steps(gym.Env):
    """Shows the step of the episode; each step earns 1; ends by its time limit only."""

    observation_space = gym.spaces.Box(0, EPISODE, (1,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_of_episode = 0
        return self._obs(), {}

    def step(self, action):
        self.step_of_episode += 1
        return self._obs(), 1.0, False, self.step_of_episode == EPISODE, {}

    def _obs(self):
        return np.array([self.step_of_episode], np.float32)


class CountingActor(nn.Module):
    """The interface of ``RecurrentActorProb``: [B, dim] while acting, [B, stack, dim] while learning."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, obs, state=None, info=None):
        obs = torch.as_tensor(obs, dtype=torch.float32)
        seen = 1 if obs.dim() == 2 else obs.shape[1]
        before = torch.zeros(len(obs), 1) if state is None else state["hidden"]
        after = before + seen
        return (self.weight * after, torch.ones(len(obs), 1)), {"hidden": after.detach()}


class Critic(nn.Module):
    """V = 10 + the last observation."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, obs, **_):
        obs = torch.as_tensor(obs, dtype=torch.float32)
        return 10 * self.weight + (obs if obs.dim() == 2 else obs[:, -1])


class Kept(PPO):
    """Keeps the batch that the update gets."""

    def _update_with_batch(self, batch, batch_size, repeat):
        self.kept = batch
        return super()._update_with_batch(batch, batch_size, repeat)


def collect(stack: int):
    """The batch of one episode, as the update gets it."""
    policy = ProbabilisticActorPolicy(
        actor=CountingActor(),
        dist_fn=lambda mean_and_std: Independent(Normal(*mean_and_std), 1),
        action_space=Steps.action_space,
    )
    algorithm = Kept(
        policy=policy, critic=Critic(), optim=AdamOptimizerFactory(), gamma=GAMMA, gae_lambda=LAMBDA
    )
    collector = Collector(policy, DummyVectorEnv([Steps]), VectorReplayBuffer(64, 1, stack_num=stack))
    collector.reset()
    with policy_within_training_step(policy):
        collector.collect(n_step=2 * EPISODE)
        algorithm.update(collector.buffer, batch_size=None, repeat=1)
    return algorithm.kept


def main() -> None:
    torch.manual_seed(0)
    found = []
    step = np.arange(2 * EPISODE) % EPISODE
    for stack in (STACK, 1):
        batch = collect(stack)
        action = torch.as_tensor(batch.act).flatten()

        def log_prob(mean, action=action):
            return Normal(torch.as_tensor(mean, dtype=torch.float32), 1.0).log_prob(action).numpy()

        suspected = log_prob(
            np.full(2 * EPISODE, stack)
        )  # from zero, over a stack that is padded to its size
        # The state after each step is in the buffer: the actor did count.
        assert (
            np.asarray(batch.policy.hidden_state.hidden).reshape(2 * EPISODE, -1)[:, -1] == step + 1
        ).all()
        found.append(
            judge(
                "the old log-probability of PPO's ratio is recomputed from a zero state",
                configuration=f"recurrent actor, stack_num={stack}, two episodes of {EPISODE} steps",
                default=f"defaults, with any recurrent actor; stack_num={stack} in the buffer",
                expected=log_prob(step + 1),
                suspected=suspected,
                measured=batch.logp_old.numpy(),
                note="the log-probability of acting is not stored, so the ratio starts at 1 although the "
                "learner's policy is not the one that acted; states are stored but not used for learning",
            )
        )
    value, cut = 10.0 + step, step == EPISODE - 1
    reward = np.ones(2 * EPISODE)
    right = gae(reward, value, value + 1, cut, gamma=GAMMA, lambda_=LAMBDA)
    following = np.append(value[1:], 10.0)
    found.append(
        judge(
            "advantages flow over a truncation into the next episode",
            configuration=f"time limit of {EPISODE} steps, critic without memory",
            default="defaults",
            expected=right,
            suspected=gae(reward, value, following, np.zeros(2 * EPISODE), gamma=GAMMA, lambda_=LAMBDA),
            measured=batch.adv.numpy(),
        )
    )
    report("tianshou", found)


if __name__ == "__main__":
    main()
