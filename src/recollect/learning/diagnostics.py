"""Metrics of an update, and the checks that stop a run.

All metrics are computed as tensors on the device and read together, once per update.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from recollect.base import devices, tree
from recollect.base.formatting import digits
from recollect.errors import ConfigError, DivergedError, EnvError
from recollect.experience.chunks import Chunks
from recollect.experience.rollout import Rollout
from recollect.learning.ranks import ALONE, Ranks
from recollect.policy.head_contract import Field
from recollect.policy.policy import Policy

DEVIATION = "deviation/"
"""The prefix of the names of deviations."""


def read(metrics: dict[str, Tensor]) -> dict[str, float]:
    """All metrics as numbers, in one synchronisation."""
    return dict(zip(metrics, stacked(metrics).tolist()))


def stacked(metrics: dict[str, Tensor]) -> Tensor:
    """All metrics as one tensor [N] float64, on their device."""
    return torch.stack([value.detach().double().reshape(()) for value in metrics.values()])


def describe(rollout: Rollout, advantage: Tensor, returns: Tensor, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """Mean, spread and range of reward, value, advantage and return over the valid steps of all ranks.

    ``advantage`` and ``returns`` are [T, B]. Explained variance is 1 - Var[R - V] / Var[R]. Where a host
    read synchronises, the number of valid steps is returned as ``valid``, for ``check_valid`` after the
    metrics are read.
    """
    value = rollout.record["value"]
    named = {"reward": rollout.reward, "value": value, "advantage": advantage, "return": returns}
    valid, *numbers = ranks.gather(rollout.valid, *named.values())
    if devices.synchronises(valid):
        return _describe_where(valid, dict(zip(named, numbers)))
    samples = torch.stack([x[valid] for x in numbers])  # [4, N]
    if samples.shape[1] == 0:
        check_valid({"valid": 0.0})
    (std, mean), (low, high) = torch.std_mean(samples, dim=1, correction=0), samples.aminmax(dim=1)
    metrics = _named_rows({"mean": mean, "std": std, "min": low, "max": high}, list(named))
    variance = samples[3].var(correction=0)
    residual = (samples[3] - samples[1]).var(correction=0)
    metrics["explained_variance"] = torch.where(variance > 0, 1 - residual / variance, torch.nan)
    return metrics


@torch.no_grad()
def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """The mean of x where ``mask``; 0 if that is nowhere."""
    return x.masked_fill(~mask, 0).sum() / mask.sum().clamp(min=1)


def moments(name: str, x: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Mean, spread and range of x [T, B] over the valid steps."""
    count = valid.sum().clamp(min=1)
    mean = x.masked_fill(~valid, 0).sum(dtype=torch.float64) / count
    std = ((x - mean).square().masked_fill(~valid, 0).sum() / count).sqrt()
    low, high = x.masked_fill(~valid, torch.inf).amin(), x.masked_fill(~valid, -torch.inf).amax()
    return _named_rows(
        {
            kind: value.unsqueeze(0)
            for kind, value in {"mean": mean, "std": std, "min": low, "max": high}.items()
        },
        [name],
    )


def _describe_where(valid: Tensor, named: dict[str, Tensor]) -> dict[str, Tensor]:
    """``describe`` of tensors ``named`` [T, B] each, by masks, without a host read; sums in float64."""
    residual = named["return"] - named["value"]
    samples = torch.stack([*named.values(), residual]).flatten(1)  # [5, T * B]
    invalid, count = ~valid.flatten(), valid.sum()
    number = count.clamp(min=1)
    mean = samples.masked_fill(invalid, 0).sum(1, dtype=torch.float64) / number
    centred = (samples - mean.unsqueeze(1)).masked_fill_(invalid, 0)
    variance = centred.square_().sum(1) / number
    low = samples.masked_fill(invalid, torch.inf).amin(1)
    high = samples.masked_fill(invalid, -torch.inf).amax(1)
    metrics = _named_rows({"mean": mean, "std": variance.sqrt(), "min": low, "max": high}, list(named))
    # Equal returns have no variance; rounding of their mean would show one.
    explained = 1 - variance[4] / variance[3]
    metrics["explained_variance"] = torch.where(high[3] > low[3], explained, torch.nan)
    return metrics | {"valid": count}


def _named_rows(kinds: dict[str, Tensor], names: list[str]) -> dict[str, Tensor]:
    """``NAME/KIND`` for each of ``names``, the i-th of every kind."""
    return {f"{name}/{kind}": values[i] for i, name in enumerate(names) for kind, values in kinds.items()}


def check_valid(metrics: dict[str, float]) -> None:
    """Raise if the metric ``valid``, the number of valid steps, is 0."""
    if metrics.get("valid", 1.0) == 0:
        raise EnvError("a whole rollout without one valid step: every row was a filler or a dead agent")


def state_norms(rollout: Rollout, ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """The norm of the stored states, and its drift per step within episodes.

    Only states that a valid step left count: the state of a dead agent's row may hold anything, NaN included.
    Drift compares neighbouring stored states of the same episode; NaN if there are none.
    """
    leaves = [leaf for leaf in tree.leaves(rollout.states) if leaf.is_floating_point()]  # no counts
    if not leaves:
        return {}
    lived = _lived(rollout)
    norm = torch.stack([_squares(leaf) for leaf in leaves]).sum(0).sqrt().masked_fill(~lived, 0)  # [S, B]
    resets = rollout.first.long().cumsum(0)
    # The raw state at step s belongs to the episode of step s - 1: the two are of one episode if
    # nothing opened in steps s_k .. s_(k+1) - 1.
    opened = torch.stack([resets[s - 1] if s else torch.zeros_like(resets[0]) for s in rollout.state_steps])
    together = torch.zeros_like(lived)  # with the stored state before it
    together[1:] = (opened[1:] == opened[:-1]) & lived[1:] & lived[:-1]
    norm, lived, together = ranks.gather(norm, lived, together)
    metrics = {"state/norm": norm.sum() / lived.sum().clamp(min=1), "state/norm_max": norm.max()}
    growth = (norm[1:] - norm[:-1]) / _gaps(rollout.state_steps, norm.device).unsqueeze(1)
    total, count = growth.masked_fill(~together[1:], 0).sum(), together.sum()
    metrics["state/drift"] = torch.where(count > 0, total / count, torch.nan)
    return metrics


@torch.no_grad()
def staleness(policy: Policy, rollout: Rollout, rows: int = 8, ranks: Ranks = ALONE) -> Tensor:
    """The relative difference between the stored states and those of the present weights.

    The norm of the difference divided by the norm of the stored states, for the first ``rows`` rows of all
    ranks. The states at step 0 do not count, because the replay starts from them; 0 if there are no others.
    """
    if len(rollout.state_steps) < 2:
        return torch.zeros((), device=rollout.reward.device)
    own = max(0, min(rows - ranks.begin, rollout.rows))
    squares = torch.zeros(2, device=rollout.reward.device)  # of the difference, of the stored states
    if own > 0:
        span, some = slice(0, rollout.state_steps[-1]), slice(0, own)
        obs, start = tree.index(rollout.obs, (span, some)), tree.index(rollout.state_at(0), some)
        first, died = rollout.first[span, some], ~_lived(rollout)[:, some]
        *_, states = policy.unroll_with_states(obs, start, first, rollout.state_steps)
        for fresh, stored in zip(tree.leaves(tree.stack(states)), tree.leaves(rollout.states)):
            if stored.is_floating_point():  # a count is never stale
                stored = stored[:, some].float()
                both = [_squares(fresh.float() - stored), _squares(stored)]
                squares = squares + torch.stack([x.masked_fill(died, 0)[1:].sum() for x in both])
    gap, size = ranks.sum(squares)
    return (gap / size.clamp(min=1e-12)).sqrt()


def summarise(
    steps: list[dict[str, Tensor]], stale: list[Tensor], max_grad_norm: float, *, is_recorded: bool
) -> dict[str, Tensor]:
    """The metrics of an update from the statistics of its minibatches: means, first deviations, last KL.

    Without ``is_recorded`` there are no deviations: other weights acted, so they would measure the lag.
    """
    if not is_recorded:
        steps = [{n: x for n, x in stats.items() if not n.startswith(DEVIATION)} for stats in steps]
    metrics = {}
    for name in dict.fromkeys(name for stats in steps for name in stats):
        if name.startswith(DEVIATION):
            metrics[name] = steps[0][name]
        elif name != "grad_norm":
            metrics[name] = torch.stack([stats[name] for stats in steps if name in stats]).mean()
    if "kl" in steps[-1]:
        metrics["kl_last"] = steps[-1]["kl"]
    norms = [stats["grad_norm"] for stats in steps if "grad_norm" in stats]
    some = next(iter(metrics.values()))
    metrics["minibatches"] = torch.full_like(some, len(norms))  # without one that the KL ended
    if norms:
        norm = torch.stack(norms)
        metrics["grad_norm"] = norm.mean()
        metrics["grad_norm_max"] = norm.max()
        metrics["grad_clip_rate"] = (norm > max_grad_norm).float().mean()
    if stale:
        metrics["staleness"] = stale[-1]
        metrics |= {f"staleness/epoch_{i + 1}": value for i, value in enumerate(stale)}
    return metrics


def join(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The statistics of a minibatch from those of its parts: sums, and the largest deviations."""
    if len(parts) == 1:
        return parts[0]
    return {
        name: stacked.max() if name.startswith(DEVIATION) else stacked.sum()
        for name in parts[0]
        for stacked in [torch.stack([part[name] for part in parts])]
    }


@torch.no_grad()
def deviation(record: Mapping[str, Tensor], batch: Chunks) -> dict[str, Tensor]:
    """The largest deviations of recomputed fields of the record [L, N, ...] from those of the batch."""
    return {
        f"{DEVIATION}{name}": (now - batch.data[name]).masked_fill(_wide(~batch.valid, now), 0).abs().max()
        for name, now in record.items()
    }


def _wide(mask: Tensor, like: Tensor) -> Tensor:
    """A mask [L, N] that broadcasts to ``like`` [L, N, ...]."""
    return mask.view(*mask.shape, *(1,) * (like.dim() - mask.dim()))


@torch.no_grad()
def rollout_is_finite(rollout: Rollout) -> Tensor:
    """Bool on the rollout's device: whether ``check_finite_rollout`` passes. Without a host read."""
    leaves = [(leaf, where) for _, leaf, where in _used(rollout) if leaf.is_floating_point()]
    return torch.stack([((_sizes(leaf) < torch.inf) | ~where).all() for leaf, where in leaves]).all()


def check_finite_rollout(rollout: Rollout) -> None:
    """Raise if a number of a rollout that learning uses is NaN or Inf; the error says which and where.

    EnvError for numbers of the env, DivergedError for numbers that the policy made from finite
    observations: they must not reach the statistics of the returns, which rescale the critic's weights.
    """
    for name, leaf, where in _used(rollout):
        found = _first_bad(leaf, where)
        if found is None:
            continue
        t, row, value = found
        origin = name.split(".")[0]
        if origin == "final_obs" and rollout.finals is not None:
            t, row = int(rollout.finals.time[row]), int(rollout.finals.row[row])
        t = rollout.steps if origin == "bootstrap" else t
        said = f"{name} of row {row} is {value} at step {t} of rollout {rollout.sequence}"
        if origin in ("reward", "obs", "final_obs"):
            raise EnvError(
                f"{said} (step {rollout.sequence * rollout.steps + t} of that row): the env produced it; "
                "nothing was learned from this rollout, and the weights are as they were before it"
            )
        raise DivergedError(
            f"{said}, and all observations are finite: the policy has diverged. Nothing was learned from "
            "this rollout; lower learning_rate, or scale the observations (normalise_observations=True)"
        )


def _used(rollout: Rollout) -> list[tuple[str, Tensor, Tensor]]:
    """The names of the leaves [T, B, ...] that learning uses, the leaves, and the masks [T, B] of used steps.

    Those of the env come first.
    """
    ended = rollout.terminated[-1] | rollout.truncated[-1]
    inside = (rollout.valid[-1] & ~ended).unsqueeze(0)  # [1, B]: the episode continues after the last step
    needed = torch.cat([rollout.valid, inside])  # [T + 1, B]
    leaves = [("reward", rollout.reward), *tree.named_leaves(rollout.obs, "obs")]
    used = [(name, leaf, needed[: len(leaf)]) for name, leaf in leaves]
    if rollout.finals is not None:
        always = torch.ones_like(rollout.finals.row, dtype=torch.bool).unsqueeze(0)
        finals = tree.named_leaves(rollout.finals.obs, "final_obs")
        used += [(name, leaf.unsqueeze(0), always) for name, leaf in finals]
    used += [(name, leaf, rollout.valid) for name, leaf in rollout.record.items()]
    if rollout.final_value is not None:
        used.append(("final_value", rollout.final_value, rollout.truncated & ~rollout.terminated))
    if rollout.bootstrap is not None:
        used.append(("bootstrap", rollout.bootstrap.unsqueeze(0), inside))
    return used


def _sizes(leaf: Tensor) -> Tensor:
    """The largest magnitude in leaf [T, B, ...], as [T, B]; NaN if there is a NaN."""
    return leaf.abs() if leaf.dim() == 2 else leaf.abs().flatten(2).amax(2)


def _first_bad(leaf: Tensor, where: Tensor) -> tuple[int, int, float] | None:
    """(t, row, value) of the first NaN or Inf of leaf [T, B, ...] where ``where`` [T, B]."""
    # A finite sum proves that all are finite; else it may have overflowed, and all are examined.
    if not leaf.is_floating_point() or torch.isfinite(leaf.sum()):
        return None
    wrong = ~torch.isfinite(leaf)
    bad = (wrong.flatten(2).any(2) if leaf.dim() > 2 else wrong) & where
    if not bad.any():
        return None
    t, row = bad.nonzero()[0].tolist()
    return t, row, leaf[t, row][wrong[t, row]].flatten()[0].item()


def check_gradient(
    metrics: dict[str, float], parameters: Iterable[tuple[str, nn.Parameter]], update: int
) -> None:
    """Raise if a gradient of this update was not finite; ``parameters``: by name, with their gradients."""
    if metrics.get("grad_norm_max", 0.0) < float("inf"):
        return
    bad = (name for name, p in parameters if p.grad is not None and not torch.isfinite(p.grad).all())
    losses = ", ".join(
        f"{k} {digits(v)}" for k, v in metrics.items() if k.startswith("loss/") or k == "entropy"
    )
    raise DivergedError(
        f"update {update}, minibatch {int(metrics['minibatches'])}: the gradient is not finite, first in "
        f"{next(bad, 'an earlier minibatch')} ({losses}). That step was not applied: the weights are the "
        "last finite ones. Lower learning_rate, or look at the spread of rewards and advantages"
    )


def size_names(name: str) -> tuple[str, ...]:
    """The metrics that give the scale of a field of the record, to which float32 rounding is relative."""
    return f"{name}/max", f"{name}/min", f"{name}_scale"


def units(fields: Mapping[str, Field], metrics: Mapping[str, float]) -> dict[str, float]:
    """The unit of the deviations of each field."""
    return {
        name: max([1.0, *(abs(metrics[size]) for size in size_names(name) if size in metrics)])
        if field.unit is None
        else field.unit
        for name, field in fields.items()
    }


def check_deviations(stats: Mapping[str, Tensor], fields: Mapping[str, Field]) -> None:
    """Raise if the statistics of a loss lack the deviation of one of these fields."""
    missing = [name for name in fields if f"{DEVIATION}{name}" not in stats]
    if missing:
        raise ConfigError(
            f"the algorithm's loss returned no deviation of {', '.join(missing)}, which its actors record: "
            "add diagnostics.deviation({name: recomputed}, batch) to its statistics"
        )


def deviations(metrics: Mapping[str, float], fields: Mapping[str, Field]) -> dict[str, float]:
    """The measured deviations of these fields, in their units."""
    return {
        name: metrics[f"{DEVIATION}{name}"] / unit
        for name, unit in units(fields, metrics).items()
        if f"{DEVIATION}{name}" in metrics
    }


@torch.no_grad()
def record_range(rollout: Rollout, fields: Mapping[str, Field], ranks: Ranks = ALONE) -> dict[str, Tensor]:
    """``NAME/max`` and ``NAME/min`` over the valid steps of all ranks, of fields whose unit is their scale.

    0 counts as a number of every field. The number of valid steps is added as ``valid``.
    """
    found = {"valid": ranks.sum(rollout.valid.sum())}
    for name, field in fields.items():
        if field.unit is None:
            recorded = rollout.record[name]
            recorded = recorded.masked_fill(_wide(~rollout.valid, recorded), 0)
            high, low = ranks.max(torch.stack([recorded.max(), -recorded.min()]))
            found |= {f"{name}/max": high, f"{name}/min": -low}
    return found


def _lived(rollout: Rollout) -> Tensor:
    """[S, B] bool: the stored states that a valid step left, as far as this rollout shows."""
    before = [
        rollout.valid[step - 1] if step else rollout.valid[0] & ~rollout.first[0]
        for step in rollout.state_steps
    ]
    return torch.stack(before)


def _squares(leaf: Tensor) -> Tensor:
    """The sum of squares of a state's leaf [S, B, ...], as [S, B]."""
    return leaf.float().square().reshape(*leaf.shape[:2], -1).sum(2)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _gaps(steps: tuple[int, ...], device: torch.device) -> Tensor:
    """[S - 1] int64: the differences of the steps. Cached: a copy from the host synchronises."""
    return torch.tensor(steps, device=device).diff()
