"""Presets: settings for built-in tasks, by task and by the horizon over which it must remember.

The defaults split rollouts into chunks of 32 steps. Gradients do not cross chunks, so longer dependencies
are not learned reliably. docs/tuning.md has the experiments; bench/presets.py measures every preset.
"""

from __future__ import annotations

from typing import Any

from recollect.config.algo_choice import algo_fields, algo_name, named_algo
from recollect.config.algo_shared import LearnerConfig
from recollect.config.core_choice import known, reaching
from recollect.config.replay import ReplayConfig
from recollect.tasks import TASKS, make_task

LONG = 100
"""Horizon in steps from which forget gates are initialised to stay open that long."""
LONG_STEPS = 1_000_000
"""Env steps for a horizon beyond a chunk and beyond the task's default."""
_ANSWERS = {"learning_rate": 4e-3, "gamma": 0.5, "gae_lambda": 0.5, "entropy": 0.003, "epochs": 8}
OWN: dict[str, dict[str, Any]] = {
    # Solved after 20k steps; the rest lets the policy converge.
    "delayed-cue": {"steps": 100_000},
    # An answer is rewarded at once and has no later effect, so the discount can be low. With the defaults
    # both plateaued at one symbol or pair of three; a higher learning rate and less entropy get past it.
    "copy": {"steps": 300_000, **_ANSWERS},
    "associative-recall": {"steps": 300_000, **_ANSWERS},
    "repeat-previous": {"steps": 300_000},
    "repeat-first": {"steps": 300_000},
    # In the corridor only "forward" avoids a penalty; at the junction it never pays. With an entropy bonus of
    # 0.01 one seed of length 50 collapsed to "forward" before it had turned once.
    "t-maze": {"steps": 150_000, "entropy": 0.03},
    "position-cartpole": {"steps": 150_000},
    # Rewards are dense, so the discount can be low; exploration only costs return; wider batches and more
    # epochs halve the steps needed.
    "position-pendulum": {"steps": 500_000, "num_envs": 32, "epochs": 8, "gamma": 0.95, "entropy": 0.0},
    # Items appear everywhere: what an agent can reach soon counts. One seed got 412 of both agents together
    # over the last of five parts of a million steps, 399 with the defaults in 32 envs.
    "treasure-hunt": {
        "steps": 1_000_000,
        "num_envs": 32,
        "learning_rate": 1e-3,
        "gamma": 0.95,
        "entropy": 0.005,
    },
    # A round is rewarded at once, and what it costs shows in the next ones. Against the bot that recalls all,
    # one seed won 98% of its games after 100k steps; with the defaults in 32 envs 8%.
    "recall-duel": {
        **{"steps": 200_000, "num_envs": 32, "learning_rate": 4e-3, "epochs": 8},
        **{"gamma": 0.9, "gae_lambda": 0.8},
    },
    # What an enemy out of sight does matters for seconds. A game has 240 decisions, a rollout the last 64.
    "mech": {"steps": 1_000_000, "rollout": 64},
    # Food comes every few steps once a bush is found: the discount can be low, the learning rate high. With
    # twice the rows, and so half the updates, one seed reached 8 instead of 14 after 150k steps.
    "forage": {"steps": 1_000_000, "learning_rate": 2e-3, "gamma": 0.97, "entropy": 0.005},
}
"""Settings by task: enough env steps for its default size, and changes to the defaults."""

_AT_ONCE = {"learning_rate": 2e-3, "gamma": 0.5, "gae_lambda": 0.5, "entropy": 0.003, "minibatches": 8}
FAR: dict[str, tuple[int, dict[str, Any]]] = {
    # One answer in a thousand steps. Only the last action counts, so the discount is low. Advantages are
    # normalised over all steps, of which answers are a thousandth, so theirs are 30 times as large as usual,
    # and an entropy bonus of 0.1 acts like 0.003 elsewhere. An LSTM's gates depend on its output, and over
    # a thousand steps that feedback dominates the gradient; mLSTM's gates do not.
    "delayed-cue": (
        500,
        {
            "core": "mlstm",
            "steps": 15_000_000,
            "num_envs": 128,
            "minibatches": 8,
            "gamma": 0.9,
            "gae_lambda": 0.8,
            "entropy": 0.1,
        },
    ),
    # Recall of the card 31 steps ago: LRU's rotating, decaying state separates the steps.
    "repeat-previous": (31, {"core": "lru", "steps": LONG_STEPS, "num_envs": 64, **_AT_ONCE}),
    "repeat-first": (400, {"core": "mingru", "steps": 3_000_000, "num_envs": 64, **_AT_ONCE}),
}
"""By task: the horizon from which PPO uses rollouts of whole episodes, and further settings."""

LONG_ROLLOUT = 128
"""Steps of an IMPALA rollout for a horizon beyond a chunk."""
PACE = ("learning_rate", "epochs")
"""Settings tuned for PPO's many optimiser steps per rollout, which do not carry over to IMPALA."""


_WALK = {"core": "frames", "states": "rebuilt", "burn_in_steps": 3, "chunk": 1, "batch": 64}
REPLAY: dict[str, dict[str, Any]] = {
    # Items appear everywhere: what an agent can reach soon counts. Four frames show where it came from.
    "treasure-hunt iqn": {
        **_WALK,
        **{"steps": 1_000_000, "gamma": 0.9, "learning_rate": 1e-3, "epsilon_decay": 0.05},
        "epsilon_end": 0.02,
    },
    "treasure-hunt r2d2": {
        **{"steps": 2_000_000, "gamma": 0.95, "learning_rate": 1e-3, "rollout": 20, "replay_ratio": 4.0},
        **{"epsilon": 1.0, "epsilon_end": 0.1, "epsilon_decay": 0.1, "epsilon_ladder": 2.0},
    },
    # The points of an episode add up to 1: rewards of 1/49 are scaled up, and each answer counts alone.
    "repeat-previous r2d2": {"steps": 300_000, "gamma": 0.5, "reward_scale": 20.0, "learning_rate": 1e-3},
    # Bootstrapped at the time limit, an LSTM valued "forward" at the junction at 50. In the corridor actions
    # differ by 1 / length: with less exploration, a low gamma and a falling learning rate, noise is smaller.
    "t-maze r2d2": {
        **{"steps": 150_000, "gamma": 0.9, "bootstrap_time_limits": False},
        **{"learning_rate_schedule": "linear", "epsilon": 0.02, "epsilon_end": 0.02, "epsilon_ladder": 0.0},
    },
    # With running statistics of the observations, which change the inputs of all old steps, the return fell
    # from 480 to 300 as episodes got longer.
    "position-cartpole r2d2": {
        **{"steps": 500_000, "n_step": 5, "normalise_observations": False},
        "learning_rate_schedule": "linear",
    },
}
"""Settings of the algorithms that replay old steps, by task and algorithm."""


def preset(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings for the built-in task ``name`` that the user's ``settings`` leave open; empty for other envs.

    ``core="lstm"`` leaves the gates open: they are set here for every core whose config has ``reaching``.
    """
    if name not in TASKS and name not in {task.id for task in TASKS.values()}:
        return {}
    task = make_task(name, 1, **settings.get("env_kwargs", {}))
    horizon = task.horizon
    found = dict(OWN.get(task.name, {}))
    algo = named_algo(settings.get("algo", "ppo"))
    if isinstance(algo, ReplayConfig):
        return _replay_preset(task, algo, settings)
    is_ppo = algo_name(algo) == "ppo"
    far_from, far = FAR.get(task.name, (0, {}))
    is_far = bool(far) and is_ppo and horizon >= far_from
    if not is_ppo:
        found = {key: value for key, value in found.items() if key not in PACE}
    if horizon >= LearnerConfig().chunk or is_far:
        # Chunks of whole rollouts; twice the rows keep the minibatches large.
        if not settings.keys() & {"chunk", "burn_in_steps"}:
            found["recurrent_mode"] = "full"
        found["num_envs"] = 32
        if not is_ppo:  # PPO's rollouts are long enough
            found["rollout"] = LONG_ROLLOUT
        if horizon > make_task(name, 1).horizon:
            found["steps"] = LONG_STEPS
    if is_far:
        found |= far | {"rollout": task.max_episode_steps}
    usual = found.pop("core", "lstm")
    is_whole_algo = not isinstance(settings.get("algo", "ppo"), str)  # its config sets all of its fields
    is_set = settings.keys() | (algo_fields() if is_whole_algo else ())
    found = {key: value for key, value in found.items() if key not in is_set}
    core = settings.get("core", usual)
    if (horizon >= LONG or is_far) and isinstance(core, str) and "policy" not in settings and core in known:
        reached = reaching(core, horizon)
        if reached != settings.get("core", "lstm"):
            found["core"] = reached
    return found


def _replay_preset(task: Any, algo: ReplayConfig, settings: dict[str, Any]) -> dict[str, Any]:
    """``preset`` for an algorithm that replays old steps."""
    found = dict(REPLAY.get(f"{task.name} {algo_name(algo)}", {}))
    if settings.get("core", "frames") != "frames":
        found = {name: value for name, value in found.items() if name not in _WALK}
    if task.horizon > algo.chunk and found.get("core") != "frames" and settings.get("core") != "frames":
        # Gradients must reach from the answer to what it is about: sequences of whole episodes.
        whole = task.horizon + 2
        if not settings.keys() & {"chunk", "burn_in_steps", "rollout"}:
            found |= {"chunk": whole, "burn_in_steps": 0, "rollout": whole, "batch": 16, "n_step": 5}
        if task.horizon > make_task(task.name, 1).horizon:
            found["steps"] = LONG_STEPS
    is_set = settings.keys() | (() if isinstance(settings.get("algo"), str) else algo_fields())
    return {key: value for key, value in found.items() if key not in is_set}
