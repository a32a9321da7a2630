"""What the tests of resuming share: small runs that stop, and a run once with and once without a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import recollect as rc

SMALL: dict[str, Any] = {
    "rollout": 12,
    "chunk": 4,
    "num_envs": 4,
    "encoder": rc.EncoderConfig(hidden=(8,)),
    "threads": 1,
    "checkpoint_every": 96,
    "keep_checkpoints": 20,
    "progress": False,
}
EVERYTHING: dict[str, Any] = SMALL | {
    "core": rc.LSTMConfig(hidden=8, learned_initial_state=True),
    "normalise_value": True,
    "normalise_observations": True,
    "refresh_states": True,
    "recompute_advantages": True,
    "recurrent_mode": "burn_in",
    "burn_in_steps": 3,
    "learning_rate_schedule": "cosine",
    "learning_rate_warmup": 0.2,
    "entropy_schedule": "linear",
    "entropy_warmup": 0.1,
    "value_clip": 0.2,
    "target_kl": 0.05,
    "gauge_every": 3,
    "last_action_reward": True,
    "eval_every": 192,
    "eval_episodes": 4,
}
STEPS = 480  # ten iterations


class Stop(rc.Callback):
    """Stops at a number of steps, as Ctrl-C would."""

    def __init__(self, steps: int):
        self.steps = steps

    def on_iteration(self, training, metrics):
        if training.steps >= self.steps:
            training.stop("enough")


def weights(agent: rc.Agent) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics but for those that are times."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds" and not k.startswith("speed/")} for row in lines]


def twice(tmp_path: Path, env: Any, settings: dict[str, Any], at: int = 240) -> tuple[rc.Agent, rc.Agent]:
    """The same training in one piece, and stopped at ``at`` and resumed from the disk."""
    whole = rc.train(env, steps=STEPS, run=str(tmp_path / "whole"), **settings)
    rc.train(env, steps=STEPS, run=str(tmp_path / "halves"), callbacks=[Stop(at)], **settings)
    halves = rc.resume(tmp_path / "halves", progress=False, **({} if isinstance(env, str) else {"env": env}))
    return whole, halves
