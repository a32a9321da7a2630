"""RLlib's PPO with an LSTM: which steps the mean and the deviation of the advantages are taken over.

Each chunk of an episode gets one artificial step at its end, for its value, and zeros up to ``max_seq_len``;
both are masked out of the loss. One iteration of CartPole in one process; the batch is read after the
package's own connector.
"""

from __future__ import annotations

import logging
import os
from typing import Any

os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
import numpy as np
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.evaluation.postprocessing import Postprocessing
from verdict import gae, judge, report

SEQUENCE, STEPS = 20, 200
GAMMA, LAMBDA = 0.9, 0.8
SHOWN = 8


def first_batch() -> dict[str, Any]:
    """The batch [N, SEQUENCE] of the first update, with the value predictions that it used."""
    kept: dict[str, Any] = {}
    compute = GeneralAdvantageEstimation.__call__

    def watched(self, *, rl_module, episodes, batch, **keywords):
        if kept:
            return compute(self, rl_module=rl_module, episodes=episodes, batch=batch, **keywords)
        (name,) = batch
        module = rl_module[name].unwrapped()
        kept["value"] = module.compute_values(batch[name]).detach().numpy()
        batch = compute(self, rl_module=rl_module, episodes=episodes, batch=batch, **keywords)
        found = batch[name]
        kept["lengths"] = [len(episode) for episode in episodes]  # with the artificial step
        names = (Columns.LOSS_MASK, Columns.REWARDS, Columns.TERMINATEDS)
        names += (Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS)
        kept.update({name: np.asarray(found[name]) for name in names})
        return batch

    GeneralAdvantageEstimation.__call__ = watched
    try:
        config = (
            PPOConfig()
            .environment("CartPole-v1")
            .env_runners(num_env_runners=0)
            .learners(num_learners=0)
            .training(
                gamma=GAMMA,
                lambda_=LAMBDA,
                train_batch_size_per_learner=STEPS,
                minibatch_size=STEPS,
                num_epochs=1,
            )
            .rl_module(
                model_config=DefaultModelConfig(use_lstm=True, max_seq_len=SEQUENCE, lstm_cell_size=16)
            )
            .debugging(seed=0, log_level="ERROR")
        )
        algorithm = config.build_algo()
        algorithm.train()
        algorithm.stop()
    finally:
        GeneralAdvantageEstimation.__call__ = compute
        ray.shutdown()
    return kept


def unpadded(padded: np.ndarray, lengths: list[int]) -> list[np.ndarray]:
    """The steps of each episode, without the zeros behind them: [n, SEQUENCE] -> its first n_i steps."""
    found, row = [], 0
    for length in lengths:
        rows = -(-length // SEQUENCE)
        found.append(padded[row : row + rows].reshape(-1)[:length])
        row += rows
    assert row == len(padded)
    return found


def standardised(numbers: np.ndarray, over: np.ndarray) -> np.ndarray:
    return (numbers - over.mean()) / max(1e-4, over.std())


def main() -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)
    kept = first_batch()
    lengths = kept["lengths"]
    value, target = (unpadded(kept[name], lengths) for name in ("value", Postprocessing.VALUE_TARGETS))
    reward, over = (unpadded(kept[name], lengths) for name in (Columns.REWARDS, Columns.TERMINATEDS))
    raw = np.concatenate([one - other for one, other in zip(target, value)])
    # By hand, for the real steps: all but the last of each episode.
    right = np.concatenate(
        [
            gae(r[:-1], v[:-1], np.where(end[:-1], 0.0, v[1:]), end[:-1], gamma=GAMMA, lambda_=LAMBDA)
            for r, v, end in zip(reward, value, over)
        ]
    )
    is_real = np.concatenate([np.arange(length) < length - 1 for length in lengths])
    assert is_real.sum() == kept[Columns.LOSS_MASK].sum()
    assert np.allclose(raw[is_real], right, atol=1e-4)
    settings = f"use_lstm, max_seq_len {SEQUENCE}, {STEPS} steps of CartPole"
    default = "defaults of the algorithm; shorter batch"
    final = np.cumsum(lengths) - 2  # the last real step of each episode, in raw
    leak = np.concatenate(value)
    leaking = np.copy(raw)
    running, values, rewards = 0.0, np.append(leak, 0.0), np.concatenate(reward)
    for t in reversed(range(len(raw))):  # as if the episodes were one
        running = rewards[t] + GAMMA * values[t + 1] - values[t] + GAMMA * LAMBDA * running
        leaking[t] = running
    measured = np.concatenate(unpadded(kept[Postprocessing.ADVANTAGES], lengths))[is_real]
    padding = np.concatenate([raw, np.zeros(kept["value"].size - raw.size)])
    found = [
        judge(
            "advantages flow over the end of an episode into the next one",
            configuration=f"{settings}; last steps of the episodes",
            default=default,
            expected=right[(np.cumsum(is_real) - 1)[final]][:SHOWN],
            suspected=leaking[final][:SHOWN],
            measured=raw[final][:SHOWN],
        ),
        judge(
            "advantages are standardised over the artificial steps as well",
            configuration=f"{settings}; {len(lengths)} artificial, {is_real.sum()} real steps; first ones",
            default=default,
            expected=standardised(right, right)[:SHOWN],
            suspected=standardised(raw, raw)[is_real][:SHOWN],
            measured=measured[:SHOWN],
            note=f"mean {measured.mean():.3f} and deviation {measured.std():.3f} of the real steps, "
            "where 0 and 1 are meant; the loss leaves the artificial steps out (ray issue 57989)",
        ),
        judge(
            "advantages are standardised over the zeros of the padding as well",
            configuration=f"{settings}; {padding.size - raw.size} zeros; first steps",
            default=default,
            expected=standardised(raw, raw)[is_real][:SHOWN],
            suspected=standardised(raw, padding)[is_real][:SHOWN],
            measured=measured[:SHOWN],
            note="expected here: over real and artificial steps",
        ),
    ]
    report("ray", found)


if __name__ == "__main__":
    main()
