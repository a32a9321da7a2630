"""skrl's PPO_RNN: the stored state, and what a truncation does to the advantages.

Two envs show the step of the episode, 0, 1, 2, 3, and truncate after four steps. The "memory" of the policy
is a counter that starts at 0, so that the input state of a step has to equal the observation. The agent,
its memory and trainer are used as in the package's recurrent examples, but for the counters.
"""

from __future__ import annotations

import logging

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from skrl.agents.torch.ppo import PPO_RNN
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn
from verdict import gae, judge, report

ENVS, EPISODE, STEPS = 2, 4, 8
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


class Counter(Model):
    """Its state counts the steps of an episode; sequences begin at their first stored state."""

    def __init__(self, env):
        Model.__init__(
            self, observation_space=env.observation_space, action_space=env.action_space, device=env.device
        )
        self.weight = nn.Parameter(torch.ones(1))

    def get_specification(self):
        return {"rnn": {"sequence_length": EPISODE, "sizes": [(1, ENVS, 1)]}}

    def count(self, inputs):
        """The input state of each step [N, 1], and the state after the last."""
        (state,) = inputs["rnn"]  # [1, N, 1]
        if not self.training:
            return state[0], state + 1
        first = state.view(-1, EPISODE)[:, :1]  # the stored state of each sequence's first step
        ended = (inputs["terminated"] | inputs["truncated"]).view(-1, EPISODE)
        counts = []
        for t in range(EPISODE):
            counts.append(first)
            first = torch.where(ended[:, t : t + 1], 0, first + 1)
        return torch.cat(counts, 1).reshape(-1, 1), first[None]


class Policy(GaussianMixin, Counter):
    """The mean of its actions is its state."""

    def __init__(self, env):
        Counter.__init__(self, env)
        GaussianMixin.__init__(self)

    def compute(self, inputs, role=""):
        count, state = self.count(inputs)
        return self.weight * count, {"log_std": torch.zeros(1), "rnn": [state]}


class Value(DeterministicMixin, Counter):
    """V = 10 + its state."""

    def __init__(self, env):
        Counter.__init__(self, env)
        DeterministicMixin.__init__(self)

    def compute(self, inputs, role=""):
        count, state = self.count(inputs)
        return 10 * self.weight + count, {"rnn": [state]}


class Agent(PPO_RNN):
    """Keeps a copy of its memory from before the update, and the first recomputed log-probs."""

    def update(self, **keywords):
        names = ("observations", "log_prob", "rewards", "rnn_policy_0", "rnn_value_0", "values")
        self.kept = {name: self.memory.get_tensor_by_name(name).clone() for name in names}
        super().update(**keywords)
        self.kept["returns"] = self.memory.get_tensor_by_name("returns").clone()


def collect(autoreset=AutoresetMode.SAME_STEP, **settings) -> dict[str, np.ndarray]:
    """The memory [STEPS] of env 0 after one rollout and update."""
    env = wrap_env(SyncVectorEnv([Steps] * ENVS, autoreset_mode=autoreset))
    policy = Policy(env)
    cfg = {"rollouts": STEPS, "learning_epochs": 1, "mini_batches": 1}
    cfg |= {"discount_factor": GAMMA, "gae_lambda": LAMBDA, **settings}
    cfg["experiment"] = {"write_interval": 0, "checkpoint_interval": 0}
    agent = Agent(
        models={"policy": policy, "value": Value(env)},
        memory=RandomMemory(memory_size=STEPS, num_envs=ENVS, device=env.device),
        cfg=cfg,
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
    )
    recomputed = []
    act = policy.act

    def watched(inputs, *, role=""):
        actions, outputs = act(inputs, role=role)
        if policy.training:
            recomputed.append(outputs["log_prob"].detach())
        return actions, outputs

    policy.act = watched
    SequentialTrainer(
        env=env, agents=agent, cfg={"timesteps": STEPS, "headless": True, "disable_progressbar": True}
    ).train()
    agent.kept["ratio"] = recomputed[0].view(ENVS, STEPS, 1).transpose(0, 1) - agent.kept["log_prob"]
    return {name: tensor[:, 0].flatten().numpy() for name, tensor in agent.kept.items()}


def main() -> None:
    logging.getLogger("skrl").setLevel(logging.ERROR)
    torch.manual_seed(0)
    kept = collect()
    step = np.arange(STEPS) % EPISODE
    assert (kept["observations"] == step).all()
    late = step + 1
    late[0] = 0  # the very first step of a training
    reward, value, cut = np.ones(STEPS), 10.0 + step, step == EPISODE - 1
    settings = f"{ENVS} envs, rollouts {STEPS}, sequences of {EPISODE}, policy and value apart"
    found = [
        judge(
            "the state that PPO_RNN stores for the policy is the one after the step",
            configuration=settings,
            default="defaults",
            expected=step,
            suspected=late,
            measured=kept["rnn_policy_0"],
            note="each sequence but the first starts from a state that saw its first observation. "
            f"Largest |log ratio| before the first optimiser step: {np.abs(kept['ratio']).max():.3g}",
        ),
        judge(
            "the state that PPO_RNN stores for the critic is the one after the step",
            configuration=settings,
            default="defaults",
            expected=step,
            suspected=late,
            measured=kept["rnn_value_0"],
        ),
    ]
    for bootstrap in (False, True):
        kept = collect(time_limit_bootstrap=bootstrap)
        assert np.allclose(kept["values"], value)
        # The bootstrap after the last step is the value of the next episode's first step, V = 10.
        following = np.append(value[1:], 10.0)
        final = 10.0 + EPISODE  # V(final observation, state after the last step)
        right = np.where(cut, final if bootstrap else 0.0, following)
        leaking = gae(
            reward + GAMMA * value * cut * bootstrap,
            value,
            following,
            np.zeros(STEPS),
            gamma=GAMMA,
            lambda_=LAMBDA,
        )
        found.append(
            judge(
                "advantages flow over a truncation into the next episode",
                configuration=f"{settings}, time_limit_bootstrap={bootstrap}, returns of two episodes",
                default="time_limit_bootstrap, not the default" if bootstrap else "defaults",
                expected=gae(reward, value, right, cut, gamma=GAMMA, lambda_=LAMBDA) + value,
                suspected=leaking + value,
                measured=kept["returns"],
                note="with the setting, gamma * V(s_t) is added to the reward as well: V of the step, not "
                "of the observation that it led to"
                if bootstrap
                else "expected: the return ends at the truncation",
            )
        )
    found.append(
        judge(
            "the step in which a vector env resets is stored and learned from",
            configuration=f"{ENVS} envs, rollouts {STEPS}, autoreset in the next step; observations",
            default="defaults of gymnasium's vector envs",
            expected=step,
            suspected=np.arange(STEPS) % (EPISODE + 1),
            measured=collect(AutoresetMode.NEXT_STEP)["observations"],
            note=f"{EPISODE} is the final observation: the env ignores the action chosen on it. With "
            "AutoresetMode.SAME_STEP there are no such steps",
        )
    )
    report("skrl", found)


if __name__ == "__main__":
    main()
