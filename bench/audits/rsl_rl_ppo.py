"""rsl_rl's PPO at time-outs: which value stands in for the rest of an episode that was cut.

One env, four steps an episode, then a time-out; each step earns 1; the observation is the step of the
episode. The critic is V = 10 + observation. The package's own PPO, model and storage compute the returns.
"""

from __future__ import annotations

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from verdict import gae, judge, report

EPISODE, STEPS = 4, 8
GAMMA, LAMBDA = 0.9, 0.8
GROUPS = {"actor": ["obs"], "critic": ["obs"]}


class Critic(MLPModel):
    """V = 10 + the observation."""

    def forward(self, obs, masks=None, hidden_state=None, stochastic_output=False):
        return 10 + self.get_latent(obs)


def observe(step: int) -> TensorDict:
    return TensorDict({"obs": torch.tensor([[float(step)]])}, batch_size=[1])


def returns(*, announced: bool) -> np.ndarray:
    """The returns of two episodes; ``announced``: the env reports its time-outs."""
    gaussian = {"class_name": "GaussianDistribution", "init_std": 1.0}
    actor = MLPModel(observe(0), GROUPS, "actor", 1, hidden_dims=[4], distribution_cfg=gaussian)
    critic = Critic(observe(0), GROUPS, "critic", 1, hidden_dims=[4])
    storage = RolloutStorage("rl", 1, STEPS, observe(0), [1], "cpu")
    algorithm = PPO(actor, critic, storage, gamma=GAMMA, lam=LAMBDA)
    obs = observe(0)
    for step in range(STEPS):
        algorithm.act(obs)
        is_over = (step + 1) % EPISODE == 0
        obs = observe((step + 1) % EPISODE)  # envs of this interface reset themselves
        done = torch.tensor([is_over])
        extras = {"time_outs": done} if announced else {}
        algorithm.process_env_step(obs, torch.ones(1), done, extras)
    algorithm.compute_returns(obs)
    return storage.returns[:, 0, 0].numpy()


def envs_in_minibatches(envs: int, minibatches: int) -> np.ndarray:
    """How many sequences of each env one epoch of the recurrent generator hands out."""
    obs = TensorDict({"obs": torch.arange(envs).float()[:, None]}, batch_size=[envs])
    storage = RolloutStorage("rl", envs, STEPS, obs, [1], "cpu")
    storage.observations.copy_(obs.expand(STEPS, envs))
    storage.distribution_params = ()
    found = np.zeros(envs)
    for batch in storage.recurrent_mini_batch_generator(minibatches, 1):
        for env in batch.observations["obs"][0, :, 0].int().tolist():
            found[env] += 1
    return found


def main() -> None:
    torch.manual_seed(0)
    step = np.arange(STEPS) % EPISODE
    reward, value, cut = np.ones(STEPS), 10.0 + step, step == EPISODE - 1
    following = np.append(value[1:], 10.0)

    def expected(at_the_end: float) -> np.ndarray:
        following_or_end = np.where(cut, at_the_end, following)
        return gae(reward, value, following_or_end, cut, gamma=GAMMA, lambda_=LAMBDA) + value

    found = judge(
        "at a time-out the return ends with the value of the observation before the last action",
        configuration='the env reports extras["time_outs"]; returns of two episodes',
        default="defaults, with any env that reports its time-outs",
        expected=expected(10.0 + EPISODE),  # V(final observation)
        suspected=expected(10.0 + EPISODE - 1),  # V(s_t)
        measured=returns(announced=True),
        note="its envs hand over no final observation, so that the right value is not at hand; "
        "the maintainers call it the next best approximation (rsl_rl issue 151)",
    )
    leak = gae(reward, value, following, np.zeros(STEPS), gamma=GAMMA, lambda_=LAMBDA) + value
    control = judge(
        "advantages flow over an episode's end into the next one",
        configuration="the env reports no time-outs, so that every end is a termination",
        default="defaults",
        expected=expected(0.0),
        suspected=leak,
        measured=returns(announced=False),
    )
    left_out = judge(
        "envs beyond a multiple of num_mini_batches are not learned from",
        configuration="6 envs, num_mini_batches=4, recurrent models; sequences of each env in one epoch",
        default="num_mini_batches is the default; a number of envs that it does not divide",
        expected=np.ones(6),
        suspected=np.array([1, 1, 1, 1, 0, 0]),
        measured=envs_in_minibatches(6, 4),
        note="the same envs are left out in every epoch and update",
    )
    report("rsl-rl-lib", [found, control, left_out])


if __name__ == "__main__":
    main()
