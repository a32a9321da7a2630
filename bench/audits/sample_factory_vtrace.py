"""Sample Factory's V-trace: the value that stands in for what follows a rollout, and that of its GAE.

An endless env that shows the number of its step and earns 1 at each. Serial training in one process for one
update; the minibatch, the values and the advantages are read from the learner's own methods.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.train import make_runner
from verdict import gae, judge, report

STEPS, ENVS = 8, 2
GAMMA, LAMBDA = 0.9, 0.8
FAILS = (
    "The training itself ends in an AttributeError: the learner's summaries ask for advantages that the "
    "minibatch does not have with V-trace (Learner._record_summaries)"
)


class Endless(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    render_mode = None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = 0
        return self._obs(), {}

    def step(self, action):
        self.count += 1
        return self._obs(), 1.0, False, False, {}

    def _obs(self):
        return np.array([np.sin(self.count), np.cos(self.count)], np.float32)


def make_env(name, cfg=None, env_config=None, render_mode=None):
    return Endless()


def first_minibatch(*, vtrace: bool) -> dict[str, Any]:
    """The first minibatch of a training [ENVS, STEPS], and the value after its last step [ENVS].

    Also ``finished``: whether the training went on to its end.
    """
    kept: dict[str, Any] = {}
    prepare, calculate = Learner._prepare_batch, Learner._calculate_losses

    def watched_prepare(self, batch):
        prepared = prepare(self, batch)
        # The learner fills in the last value of the batch that it was given.
        kept.setdefault("last_value", batch["values"][:, -1].numpy().copy())
        return prepared

    def watched_calculate(self, minibatch, invalid):
        losses = calculate(self, minibatch, invalid)
        summaries = losses[-1]
        if "advantage" not in kept:
            raw = summaries["adv"] * summaries["adv_std"] + summaries["adv_mean"]  # before normalisation
            kept["advantage"] = raw.detach().numpy().reshape(ENVS, STEPS)
            kept["value"] = summaries["values"].detach().numpy().reshape(ENVS, STEPS)
            kept["ratio"] = summaries["ratio"].detach().numpy()
        return losses

    Learner._prepare_batch, Learner._calculate_losses = watched_prepare, watched_calculate
    try:
        with tempfile.TemporaryDirectory(prefix="sample-factory-") as folder:
            chosen = {
                "env": "endless",
                "experiment": "audit",
                "train_dir": folder,
                "device": "cpu",
                "seed": 0,
                "serial_mode": True,
                "async_rl": False,
                "num_workers": 1,
                "num_envs_per_worker": ENVS,
                "worker_num_splits": 1,
                "rollout": STEPS,
                "recurrence": STEPS,
                "batch_size": STEPS * ENVS,
                "num_epochs": 1,
                "train_for_env_steps": STEPS * ENVS,
                "gamma": GAMMA,
                "gae_lambda": LAMBDA,
                "with_vtrace": vtrace,
                "normalize_returns": False,  # required with V-trace
                "use_rnn": True,
                "normalize_input": False,  # its statistics move before the update, and the ratios with them
            }
            argv = [f"--{name}={value}" for name, value in chosen.items()]
            _, runner = make_runner(parse_full_cfg(parse_sf_args(argv)[0], argv))
            if runner.init() != ExperimentStatus.SUCCESS:
                sys.exit("Sample Factory failed: its log above says why")
            kept["finished"] = runner.run() == ExperimentStatus.SUCCESS
            if "advantage" not in kept:
                sys.exit("Sample Factory made no update: its log above says why")
    finally:
        Learner._prepare_batch, Learner._calculate_losses = prepare, calculate
    return kept


def vtrace(value: np.ndarray, bootstrap: float) -> np.ndarray:
    """Advantages on the policy that acted: rewards of 1 to the end, then the bootstrap."""
    target, advantage = bootstrap, np.zeros(STEPS)
    for t in reversed(range(STEPS)):
        target = 1 + GAMMA * target
        advantage[t] = target - value[t]
    return advantage


def main() -> None:
    register_env("endless", make_env)
    settings = f"rollout {STEPS} = recurrence, {ENVS} envs, no ends, normalize_returns=False"
    kept = first_minibatch(vtrace=True)
    assert np.allclose(kept["ratio"], 1, atol=1e-5)
    value, last = kept["value"][0], float(kept["last_value"][0])
    found = [
        judge(
            "V-trace replaces the value after a rollout by (V of its last step - its reward) / gamma",
            configuration=f"with_vtrace=True, {settings}; advantages of one rollout",
            default="not the default: with_vtrace is off",
            expected=vtrace(value, last),
            suspected=vtrace(value, (value[-1] - 1) / GAMMA),
            measured=kept["advantage"][0],
            note=f"the learner has computed that value, {last:.4f}, and does not use it; the last step of a "
            "rollout has an advantage of 0. " + ("" if kept["finished"] else FAILS),
        )
    ]
    kept = first_minibatch(vtrace=False)
    value, last = kept["value"][0], float(kept["last_value"][0])
    none, reward = np.zeros(STEPS), np.ones(STEPS)
    guess = np.append(value[1:], (value[-1] - 1) / GAMMA)
    found.append(
        judge(
            "GAE replaces the value after a rollout in the same way",
            configuration=f"with_vtrace=False, {settings}; advantages of one rollout",
            default="the default estimator",
            expected=gae(reward, value, np.append(value[1:], last), none, gamma=GAMMA, lambda_=LAMBDA),
            suspected=gae(reward, value, guess, none, gamma=GAMMA, lambda_=LAMBDA),
            measured=kept["advantage"][0],
        )
    )
    report("sample-factory", found)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
