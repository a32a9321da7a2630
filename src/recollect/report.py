"""A picture of a run: how it learned, whether it was honest, and what its memory does.

matplotlib is an extra: ``pip install recollect[matplotlib]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from recollect import tree
from recollect.envs.batched import BatchedEnv
from recollect.errors import RecollectError
from recollect.metrics import History
from recollect.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class Trace:
    """One episode of one row, step by step."""

    memory: np.ndarray
    """[T, units] the state that each step started from, all leaves side by side."""
    value: np.ndarray
    """[T]"""
    reward: np.ndarray
    """[T]"""
    action: np.ndarray
    """[T, ...] as stored; of a hybrid action the first part."""
    obs: np.ndarray
    """[T, ...] of a structured observation the first part."""


@torch.no_grad()
def trace(policy: Policy, env: BatchedEnv, *, seed: int = 0, max_steps: int = 2000) -> Trace:
    """Play one episode of the env's first row, greedily, and record what the memory held."""
    rows = env.num_envs * env.agents
    obs, state = env.reset(seed), policy.initial_state(rows)
    first = torch.ones(rows, dtype=torch.bool, device=env.device)
    columns: dict[str, list[np.ndarray]] = {"memory": [], "value": [], "reward": [], "action": [], "obs": []}
    for _ in range(max_steps):
        leaves = [leaf[0].float().flatten() for leaf in tree.leaves(state)]
        columns["memory"].append(torch.cat(leaves).cpu().numpy() if leaves else np.zeros(0))
        columns["obs"].append(tree.leaves(obs)[0][0].cpu().numpy().copy())
        acted, state = policy.act(obs, state, first, None, deterministic=True)
        step = env.step(policy.to_env(acted.action))
        columns["value"].append(acted.value[0].cpu().numpy())
        columns["reward"].append(step.reward[0].cpu().numpy().copy())
        columns["action"].append(tree.leaves(acted.action)[0][0].cpu().numpy())
        obs, first = step.obs, step.first
        if step.terminated[0] or step.truncated[0]:
            break
    return Trace(**{name: np.stack(values) for name, values in columns.items()})


def plot_run(
    path: str | Path,
    histories: dict[str, History],
    episode: Trace | None = None,
    *,
    title: str = "",
    levels: dict[str, float] | None = None,
) -> Path:
    """Draw learning curves, the honesty gauges of the first run, and one episode's memory, as a PNG.

    Args:
        path: the file.
        histories: runs by name; the first is the one that the gauges are of.
        episode: what the memory did in one episode.
        title: above everything.
        levels: horizontal lines in the learning curve by name, such as chance.
    """
    plt = _pyplot()
    rows = 2 if episode is None else 3
    figure, axes = plt.subplots(rows, 1, figsize=(8, 3.1 * rows), layout="constrained")
    figure.suptitle(title)
    _draw_returns(axes[0], histories, levels or {})
    _draw_gauges(axes[1], next(iter(histories.values())))
    if episode is not None:
        _draw_memory(figure, axes[2], episode)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return path


def _draw_returns(axis: Any, histories: dict[str, History], levels: dict[str, float]) -> None:
    for name, history in histories.items():
        axis.plot(*history.column("return"), label=name)
    for name, level in levels.items():
        axis.axhline(level, linestyle="--", linewidth=1, color="0.5")
        axis.annotate(
            name, (1, level), xycoords=("axes fraction", "data"), ha="right", va="bottom", color="0.4"
        )
    axis.set(xlabel="env steps", ylabel="mean return of the last episodes", title="Learning")
    axis.legend(loc="center right")
    axis.grid(alpha=0.3)


def _draw_gauges(axis: Any, history: History) -> None:
    for name, label in (
        ("deviation/log_prob", "deviation of log-probs (0 but for rounding)"),
        ("deviation/value", "deviation of values"),
        ("staleness", "staleness of stored states"),
        ("kl", "KL of the update"),
    ):
        steps, values = history.column(name)
        if any(values):  # with chunks of whole rollouts nothing is stale
            axis.semilogy(
                steps, np.maximum(values, 1e-9), label=label, marker="." if name == "staleness" else ""
            )
    axis.set(xlabel="env steps", title="Honesty gauges", ylim=(1e-9, 100))
    axis.legend(fontsize="small", loc="upper center", ncols=2)
    axis.grid(alpha=0.3)


def _draw_memory(figure: Any, axis: Any, episode: Trace) -> None:
    units = episode.memory.shape[1]
    if units == 0:
        axis.text(0.5, 0.5, "this policy has no memory", ha="center", va="center")
        return
    # Units that change most come first: they are the ones worth a look.
    order = np.argsort(-episode.memory.std(0))[: min(64, units)]
    shown = episode.memory[:, order].T
    limit = float(np.abs(shown).max()) or 1.0
    image = axis.imshow(shown, aspect="auto", cmap="RdBu", vmin=-limit, vmax=limit, interpolation="nearest")
    figure.colorbar(image, ax=axis, label="state")
    axis.set(xlabel="step of one episode", ylabel="liveliest units", title="The memory in one episode")


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        raise RecollectError(
            "plots need matplotlib, which is an extra: pip install 'recollect[matplotlib]'"
        ) from None
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt
