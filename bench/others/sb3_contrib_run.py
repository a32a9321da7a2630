"""RecurrentPPO of sb3-contrib on a world of task.py; prints one line of JSON.

    .venv-sb3/bin/python bench/others/sb3_contrib_run.py [--world NAME] [--variant default|shared|tuned]

The work is that of task.py: an encoder (tanh) before an LSTM of 128, linear heads, all envs in one
DummyVecEnv. Variants:

default  RecurrentPPO's defaults: learning rate 3e-4, unscaled rewards, a second LSTM for the critic.
shared   the same with one LSTM for actor and critic, the cheapest network that it offers; the critic's
         gradient then does not reach the LSTM.
tuned    the default network with Recollect's learning rate. On CartPole that is also what RL Zoo found
         (CartPoleNoVel-v1); there, as in the zoo, VecNormalize scales observations and rewards. The
         zoo's linear decay, its gamma 0.98, lambda 0.8 and 20 epochs are left out.
"""

from __future__ import annotations

import gymnasium as gym
import stable_baselines3
import task
import torch
from encoders import Symbols
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import nn


class Encoder(BaseFeaturesExtractor):
    """One layer before the LSTM, a conv stack before it for a grid; by default the LSTM gets bare inputs."""

    def __init__(self, observation_space: gym.spaces.Box, width: int):
        super().__init__(observation_space, width)
        shape = observation_space.shape
        is_grid = len(shape) == 3
        self.layers = Symbols(shape, width) if is_grid else nn.Sequential(nn.Linear(*shape, width), nn.Tanh())

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
    args = task.parse(parser)
    world: task.World = args.world
    if args.threads:
        torch.set_num_threads(args.threads)
    env = DummyVecEnv([lambda: Monitor(world.make_flat())] * world.num_envs)
    chosen = {
        "n_steps": world.rollout,
        "batch_size": world.batch // world.minibatches,
        "n_epochs": world.epochs,
        "gamma": world.gamma,
        "gae_lambda": world.gae_lambda,
    }
    if world.entropy is not None:
        chosen["ent_coef"] = world.entropy
    network = {
        "features_extractor_kwargs": {"width": world.encoder},
        "lstm_hidden_size": world.hidden,
        "net_arch": [],
        "shared_lstm": args.variant == "shared",
        "enable_critic_lstm": args.variant != "shared",
        "normalize_images": False,  # a grid's values are ids
    }
    is_scaled = args.variant == "tuned" and world.has_numbers
    if args.variant == "tuned":
        chosen["learning_rate"] = world.learning_rate
    if is_scaled:
        env = VecNormalize(env, gamma=world.gamma)
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
            "vec_normalize": is_scaled,
        },
        "envs": "DummyVecEnv",
        "threads": torch.get_num_threads(),
        "stable_baselines3": stable_baselines3.__version__,
    }
    task.report("sb3-contrib", args, meter, settings)


if __name__ == "__main__":
    main()
