"""RecurrentPPO of sb3-contrib on CartPole without velocities; prints one line of JSON.

    .venv-sb3/bin/python bench/others/sb3_contrib_run.py [--variant default|shared|tuned]

The work is that of task.py: an encoder layer of 128 (tanh) before an LSTM of 128, linear heads, all
envs in one DummyVecEnv. Variants:

default  RecurrentPPO's defaults: learning rate 3e-4, unscaled rewards, a second LSTM for the critic.
shared   the same with one LSTM for actor and critic, the cheapest network that it offers; the critic's
         gradient then does not reach the LSTM.
tuned    the default network with what RL Zoo found for this env (CartPoleNoVel-v1), as far as the work
         allows: observations and rewards scaled by VecNormalize, learning rate 1e-3. The zoo's linear
         decay, its gamma 0.98, lambda 0.8 and 20 epochs are left out.
"""

from __future__ import annotations

import gymnasium as gym
import stable_baselines3
import task
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn


class Encoder(BaseFeaturesExtractor):
    """One layer before the LSTM; without it RecurrentPPO feeds the LSTM with bare observations."""

    def __init__(self, observation_space: gym.spaces.Box, width: int):
        super().__init__(observation_space, width)
        self.layers = nn.Sequential(nn.Linear(observation_space.shape[0], width), nn.Tanh())

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations)


class Watch(BaseCallback):
    """Tells the meter of raw returns as they come, and of updates as they end."""

    def __init__(self, meter: task.Meter):
        super().__init__()
        self.meter = meter

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > 0:  # what was collected before has been learned from by now
            self.meter.update(self.num_timesteps)

    def _on_step(self) -> bool:
        for info in self.locals["infos"]:
            if "episode" in info:
                self.meter.episode(info["episode"]["r"])
        return not self.meter.is_over


def main() -> None:
    parser = task.parser(__doc__)
    parser.add_argument("--variant", choices=("default", "shared", "tuned"), default="default")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    env = DummyVecEnv([lambda: Monitor(task.position_cartpole())] * task.NUM_ENVS)
    chosen = {
        "n_steps": task.ROLLOUT,
        "batch_size": task.BATCH // task.MINIBATCHES,
        "n_epochs": task.EPOCHS,
        "gamma": task.GAMMA,
        "gae_lambda": task.GAE_LAMBDA,
    }
    network = {
        "features_extractor_kwargs": {"width": task.HIDDEN},
        "lstm_hidden_size": task.HIDDEN,
        "net_arch": [],
        "shared_lstm": args.variant == "shared",
        "enable_critic_lstm": args.variant != "shared",
    }
    if args.variant == "tuned":
        env = VecNormalize(env, gamma=task.GAMMA)
        chosen["learning_rate"] = 1e-3
    model = RecurrentPPO(
        "MlpLstmPolicy",
        env,
        **chosen,
        policy_kwargs={"features_extractor_class": Encoder, **network},
        seed=args.seed,
        device="cpu",
    )
    meter = task.Meter(args)
    meter.start()
    model.learn(args.steps, callback=Watch(meter))
    meter.update(model.num_timesteps)  # the last update, which no rollout follows
    settings = {
        "variant": args.variant,
        "set": chosen | network,
        "all": {
            "learning_rate": model.learning_rate,
            "clip_range": model.clip_range(1.0),
            "ent_coef": model.ent_coef,
            "vf_coef": model.vf_coef,
            "max_grad_norm": model.max_grad_norm,
            "vec_normalize": args.variant == "tuned",
        },
        "envs": "DummyVecEnv",
        "threads": torch.get_num_threads(),
        "stable_baselines3": stable_baselines3.__version__,
    }
    task.report("sb3-contrib", args, meter, settings)


if __name__ == "__main__":
    main()
