"""The glossary of all metrics, and a bounded history of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping

GLOSSARY = {
    "steps": "valid env steps so far, over all rows",
    "updates": "rollouts learned from so far",
    "lag": "age of the acting weights in updates, mean over the rollouts of an update; 0 in lockstep",
    "lag/max": "the largest lag of a rollout in the update",
    "episodes": "episodes finished so far",
    "return": "mean return of the last `target_episodes` episodes, from unscaled rewards",
    "return_spread": "standard deviation of the returns of the same episodes",
    "length": "mean length of the same episodes, in steps",
    "loss/policy": "policy loss (PPO: clipped surrogate), mean over the minibatches",
    "loss/value": "half the squared value error, in units of the returns' standard deviation",
    "loss/next_obs": "loss of the next-observation prediction (`next_obs_coef`)",
    "entropy": "mean entropy of the action distribution, in nats",
    "kl": "KL divergence from the acting policy, mean over the minibatches (k3 estimator)",
    "kl_last": "KL divergence from the acting policy in the last minibatch",
    "rho/mean": "IMPALA: mean truncated importance ratio; 1 without lag",
    "rho/clipped": "IMPALA: fraction of steps with an importance ratio above `rho_clip`",
    "c/clipped": "IMPALA: fraction of steps with an importance ratio above `c_clip`",
    "clip_fraction": "fraction of steps whose probability ratio was clipped",
    "minibatches": "optimiser steps of this update; fewer than configured after an early stop by `target_kl`",
    "sequences": "chunks or episode segments (`batching`) that minibatches are drawn from",
    "passes": "forward and backward passes per minibatch (`accumulate`)",
    "padding": "fraction of unrolled steps that are masked: padding, filler rows, dead agents",
    "recomputed": "time segments per unroll whose activations are recomputed (`recompute_activations`)",
    "loss/l2_init": "`l2_init` times the squared distance from the initial weights",
    "weights/distance": "L2 distance of the weights from the initial weights",
    "weights/clipped": "fraction of weights clipped to the limit of `weight_clip`",
    "grad_norm": "mean gradient norm before clipping",
    "grad_norm_max": "largest gradient norm before clipping",
    "grad_clip_rate": "fraction of minibatches whose gradient was clipped",
    "explained_variance": "1 - Var[return - value] / Var[return]; 1 is a perfect critic",
    "value_scale": "standard deviation of the returns by which PopArt normalises the critic",
    "deviation/log_prob": "largest difference between recomputed and recorded log-probs before the first "
    "optimiser step; only rounding if the learner uses the actor's states",
    "deviation/value": "largest difference between recomputed and recorded values before the first "
    "optimiser step",
    "deviation/q": "R2D2, IQN: largest difference between recomputed and recorded values of the chosen "
    "actions, on the newest rollout before it is learned from; every `gauge_every` updates",
    "epsilon": "R2D2, IQN: probability of a random action in this rollout, of the row that explores most",
    "loss/q": "R2D2: half the squared error of the action values; IQN: quantile Huber loss",
    "td_error": "R2D2, IQN: mean absolute error of the learned steps, in the units of the loss",
    "q/mean": "R2D2, IQN: mean value of the replayed actions, with `rescale` of h(Q)",
    "q/target": "R2D2, IQN: mean target of the same steps",
    "q/max": "R2D2, IQN: highest value of a chosen action in the newest rollout",
    "q/min": "R2D2, IQN: lowest value of a chosen action in the newest rollout",
    "gradient_steps": "R2D2, IQN: optimiser steps so far",
    "replay/steps": "steps in the replay",
    "replay/sequences": "sequences that can be drawn from the replay",
    "replay/ratio": "steps learned from in this update, divided by the steps collected for it",
    "replay/age": "mean age of the drawn sequences: steps that were added to their row since",
    "replay/priority_spread": "standard deviation of a minibatch's new priorities, divided by their mean",
    "replay/staleness": "mean difference between action values from stored states and from states recomputed "
    "with the present weights, divided by the largest value",
    "state/norm": "mean norm of the stored states",
    "state/norm_max": "largest norm of a stored state",
    "state/drift": "growth of the state norm within episodes, per step",
    "staleness": "relative distance between the stored states and states recomputed with the updated weights",
    "learning_rate": "learning rate of the encoder and the core",
    "entropy_coef": "weight of the entropy bonus",
    "encoder_bits": "bits of the numbers that the encoder computes with: 16 with `precision` bf16",
    "compiled_graphs": "graphs compiled so far, with `compile`: it rises at the start and then stays",
    "start_seconds": "seconds spent so far on compiling kernels and capturing CUDA graphs (GPU)",
    "speed/total": "env steps per second, everything included",
    "speed/env": "env steps per second if there were only the env; where env and policy are one CUDA graph, "
    "it is part of the acting",
    "speed/act": "env steps per second if there were only the acting",
    "speed/learn": "env steps per second if there were only the learning",
    "speed/wait": "env steps per second if the learner only waited for rollouts (actors in other processes)",
    "time/env": "share of the actors' time that their envs take",
    "time/policy": "share of the actors' time that choosing actions takes",
    "time/transport": "share of the actors' time that loading weights takes",
    "time/learner": "share of the actors' time in which they wait for the learner",
    "queue/ready": "rollouts that had arrived before the learner asked for them",
    "queue/running": "unfinished rollouts when the learner's batch was complete",
    "restarts": "restarts of actors in this run, because their process died or hung",
    "actors/slowest": "env steps per second of the slowest actor, its waiting included; without a rollout in "
    "this update, its speed as if one had arrived now",
    "actors/fastest": "env steps per second of the fastest actor",
    "actor/N/speed": "env steps per second of actor N (with up to 16 actors)",
    "actor/N/steps": "valid env steps of actor N in this run; their sum over all actors is `steps`, except "
    "for steps in another runtime",
} | {
    f"{name}/{kind}": f"{words} {what}"
    for name, what in {
        "reward": "reward over the valid steps of the newest rollout",
        "value": "recorded value over the valid steps",
        "advantage": "advantage before normalisation; IMPALA: V-trace advantage, weighted by rho",
        "return": "return target of the critic; IMPALA: V-trace target",
    }.items()
    for kind, words in {
        "mean": "mean",
        "std": "standard deviation of the",
        "min": "lowest",
        "max": "highest",
    }.items()
}
"""One line on every metric. ``staleness/epoch_K`` is ``staleness`` after epoch K; in ``actor/N/speed``, N is
the index of an actor."""


def meaning(name: str, glossary: Mapping[str, str] = GLOSSARY) -> str:
    """The glossary line of a metric, also if its name holds an epoch or an actor; empty if there is none."""
    stem, _, epoch = name.partition("/epoch_")
    if epoch:
        return f"{stem} after epoch {epoch}"
    known = glossary.get(re.sub(r"^actor/\d+/", "actor/N/", name), "")
    field = name.removeprefix("deviation/")
    if known or field == name:
        return known
    return f"largest difference between recomputed and recorded {field} before the first optimiser step"


class History:
    """The metrics of the run, in at most ``limit`` rows: when full, every second row is dropped."""

    def __init__(self, limit: int = 2000):
        self.rows: list[dict[str, float]] = []
        self.last: dict[str, float] = {}
        """The latest row, even if it was not kept."""
        self._limit, self._every, self._seen = limit, 1, 0

    def add(self, row: dict[str, float]) -> None:
        """Add a row; only every ``_every``-th is kept."""
        self.last = row
        if self._seen % self._every == 0:
            self.rows.append(row)
        self._seen += 1
        if len(self.rows) > self._limit:
            self.rows = self.rows[::2]
            self._every *= 2

    def column(self, name: str) -> tuple[list[float], list[float]]:
        """Steps and values of one metric, from the rows that have it."""
        pairs = [(row["steps"], row[name]) for row in self.rows if name in row]
        return [s for s, _ in pairs], [v for _, v in pairs]
