"""The slow truth of the clipped losses: the papers' formulas by cases, one step at a time, in float64."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor


def number(x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def surrogate(ratio: Tensor, advantage: float, clip: float) -> Tensor:
    """min(r A, clip(r) A) of one step: a good action gains up to r = 1 + clip, a bad one down to 1 - clip."""
    if advantage >= 0:
        return ratio * advantage if ratio < 1 + clip else number((1 + clip) * advantage)
    return ratio * advantage if ratio > 1 - clip else number((1 - clip) * advantage)


def value_error(value: Tensor, old: float, target: float, scale: float, clip: float | None) -> Tensor:
    """The squared error in units of the returns' spread; with a clip, that of a nearer value if it is larger.

    The nearer value is at most ``clip`` spreads away from the old one.
    """
    error = ((value - target) / scale) ** 2
    change = float(value.detach()) - old
    if clip is None or abs(change) <= clip * scale:
        return error
    near = old + math.copysign(clip * scale, change)
    return torch.maximum(error, number(((near - target) / scale) ** 2))


def loss(
    *,
    log_prob: Tensor,
    entropy: Tensor,
    value: Tensor,
    valid: Tensor,
    before: Tensor,
    acted: Tensor,
    advantage: Tensor,
    old_value: Tensor,
    target: Tensor,
    scale: float,
    config: Any,
) -> dict[str, Tensor]:
    """The mean over valid steps [L, N] of everything that PPO's loss is made of, and that loss as ``total``.

    ``before``: the log-probs that the ratio of the clip is to; ``acted``: those that the KL is from.
    """
    names = ("loss/policy", "loss/value", "entropy", "kl", "clip_fraction")
    found = {name: number(0) for name in names}
    for t, n in valid.nonzero().tolist():
        ratio = (log_prob[t, n] - before[t, n]).exp()
        to_acted = log_prob[t, n] - acted[t, n]
        old, goal = float(old_value[t, n]), float(target[t, n])
        value_clip = getattr(config, "value_clip", None)
        parts = (
            -surrogate(ratio, float(advantage[t, n]), config.clip),
            0.5 * value_error(value[t, n], old, goal, scale, value_clip),
            entropy[t, n],
            to_acted.exp() - 1 - to_acted,
            number(float(ratio < 1 - config.clip or ratio > 1 + config.clip)),
        )
        for name, part in zip(names, parts):
            found[name] = found[name] + part / valid.sum()
    total = found["loss/policy"] + config.value_coef * found["loss/value"] - config.entropy * found["entropy"]
    return found | {"total": total}
