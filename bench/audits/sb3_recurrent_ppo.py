"""sb3-contrib's RecurrentPPO with a minibatch of one sample.

The advantages of a minibatch are normalised by their standard deviation, which one sample does not have.
Stable-Baselines3's PPO leaves such a minibatch as it is. Measured: the share of the network's numbers that
are not finite after one epoch on a rollout of 9 steps, in minibatches of 4: 4 + 4 + 1.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO
from stable_baselines3.common.logger import Logger
from verdict import judge, report


def share_not_finite(algorithm, policy: str, *, steps: int, batch: int, epochs: int = 1, **settings) -> float:
    """After one rollout and update."""
    env = gym.make("CartPole-v1")
    model = algorithm(
        policy, env, n_steps=steps, batch_size=batch, n_epochs=epochs, seed=0, device="cpu", **settings
    )
    model.set_logger(Logger(None, []))  # the default one makes a folder
    model.learn(steps)
    flat = torch.cat([weights.flatten() for weights in model.policy.parameters()])
    return float((~flat.isfinite()).float().mean())


def message(**settings) -> str:
    """What a user sees with ten epochs, the default."""
    try:
        share_not_finite(RecurrentPPO, "MlpLstmPolicy", epochs=10, **settings)
    except ValueError as error:
        return f"ends in a {type(error).__name__} ({str(error).split(' to satisfy')[0][:60]}...)"
    return "runs to its end"


def main() -> None:
    np.seterr(all="ignore")
    lstm = "MlpLstmPolicy"
    measured = [
        share_not_finite(RecurrentPPO, lstm, steps=9, batch=4),
        share_not_finite(RecurrentPPO, lstm, steps=129, batch=128),
    ]
    controls = {
        "RecurrentPPO, 8 steps in minibatches of 4": share_not_finite(RecurrentPPO, lstm, steps=8, batch=4),
        "RecurrentPPO, 9 in 4, normalize_advantage=False": share_not_finite(
            RecurrentPPO, lstm, steps=9, batch=4, normalize_advantage=False
        ),
        "PPO, 9 in 4": share_not_finite(PPO, "MlpPolicy", steps=9, batch=4),
    }
    note = "; ".join(f"{name}: {share:g}" for name, share in controls.items())
    found = judge(
        "a minibatch of one sample makes all weights of RecurrentPPO NaN",
        configuration="n_envs * n_steps of 9 with batch_size 4, and 129 with 128; n_epochs 1; share of "
        "weights that are not finite",
        default="not the defaults: n_steps 128 and batch_size 128 leave no single sample",
        expected=[0.0, 0.0],
        suspected=[1.0, 1.0],
        measured=measured,
        note=f"shares of the controls: {note}. With n_epochs=10 the same run {message(steps=9, batch=4)}",
    )
    report("sb3-contrib", [found])


if __name__ == "__main__":
    main()
