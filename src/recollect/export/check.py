"""Compares an exported step with the agent on random observations and resets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.types import State, Tree
from recollect.errors import RecollectError
from recollect.export.step import Part, Tensors, named_inputs, parts_of, value_of
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead

TOLERANCE = 1e-4
"""Largest deviation that counts as rounding, absolute and relative."""
ROWS = (1, 3)
"""Batch sizes."""
STEPS = 12
"""Steps per batch size."""


@torch.no_grad()
def check(exported: Callable[[Tensors], Tensors], policy: Policy, *, deterministic: bool, name: str) -> None:
    """Step both over random observations and resets, each with its own state; raise if they differ.

    Args:
        exported: the exported step, loaded from its file.
        policy: in eval mode, on the CPU.
        deterministic: whether actions are modes; sampled actions cannot be compared.
        name: the file's name, for errors.
    """
    rng = np.random.default_rng(0)
    for rows in ROWS:
        state = policy.initial_state(rows)
        theirs = dict(tree.named_leaves(state, "state"))
        for step in range(STEPS):
            where = f"{name}, step {step} of {rows} rows"
            obs = _observations(policy, rows, rng)
            first = torch.from_numpy(rng.random(rows) < (1.0 if step == 0 else 0.25))
            try:
                got = exported(named_inputs(obs, (), first) | theirs)
            except Exception as error:  # of any kind: the runtime's own
                raise RecollectError(f"{where}: the exported step fails: {short(error)}") from error
            state = _compare_step(got, policy, obs, state, first, deterministic, where)
            theirs = {name: got[f"next_{name}"] for name, _ in tree.named_leaves(state, "state")}


def short(error: Exception) -> str:
    """The class and the first line of an error, whose message may be pages long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:300] if lines else 'no message'}"


def _compare_step(
    got: Tensors, policy: Policy, obs: Tree, state: State, first: Tensor, deterministic: bool, where: str
) -> State:
    """Compare all outputs of one step with the policy's. Returns the policy's new state."""
    *found, _ = policy.step(obs, state, first)
    value = value_of(policy, found)
    acted, state = policy.act(obs, state, first, deterministic=True)
    action = dict(tree.named_leaves(policy.to_env(acted.action), "action"))
    for part in parts_of(policy, found):
        for name, tensor in part.outputs.items():
            _compare(name, got, tensor, where)
        want = action[part.action]
        free = _close_calls(part, policy) if deterministic else torch.ones_like(want, dtype=torch.bool)
        _compare(part.action, got, want, where, free=free)
    if value is not None:
        _compare("value", got, value, where, scale=max(1.0, float(policy.value_scale)))
    for name, leaf in tree.named_leaves(state, "next_state"):
        _compare(name, got, leaf, where)
    return state


def _compare(
    name: str, outputs: Tensors, want: Tensor, where: str, *, scale: float = 1.0, free: Tensor | None = None
) -> None:
    """Raise if an output differs from ``want``; where ``free``, only shape and dtype are compared."""
    got = outputs.get(name)
    if got is None or got.shape != want.shape or got.dtype != want.dtype:
        found = "missing" if got is None else f"{tuple(got.shape)} {got.dtype}"
        raise RecollectError(f"{where}: {name} is {found}, the agent's {tuple(want.shape)} {want.dtype}")
    # float64 also represents int64 and bool outputs.
    good = torch.isclose(got.double(), want.double(), TOLERANCE, TOLERANCE * scale, equal_nan=True)
    if free is not None:
        good |= free
    if not good.all():
        worst = (got.double() - want.double()).abs()[~good].max()
        raise RecollectError(
            f"{where}: {name} deviates by {worst:.3g} from the agent's, and nothing was written. Does an "
            "encoder or core of your own draw random numbers, branch on values, or keep hidden state?"
        )


def _close_calls(part: Part, policy: Policy) -> Tensor | None:
    """Where a discrete choice is a near tie that rounding can flip; None if the part is not discrete."""
    if part.kind == "values":
        head = cast(QHead, policy.head)
        components = part.parameters["q"].split(head.nvec, -1)
        close = torch.stack([_is_close(q, is_relative=True) for q in components], -1)  # [B, D]
        return close.reshape(len(close), *head.shape)
    logits = part.parameters.get("logits")
    if logits is None:
        return None
    if part.kind == "bernoulli":
        return logits.abs() < TOLERANCE
    if logits.shape[-1] == 1:
        return None
    return _is_close(logits)


def _is_close(numbers: Tensor, *, is_relative: bool = False) -> Tensor:
    """[...]: whether the two largest of numbers [..., n] nearly tie."""
    if numbers.shape[-1] == 1:
        return torch.zeros_like(numbers[..., 0], dtype=torch.bool)
    best = numbers.topk(2, -1).values
    unit = best[..., 0].abs().clamp(min=1) if is_relative else 1.0
    return best[..., 0] - best[..., 1] < TOLERANCE * unit


def _observations(policy: Policy, rows: int, rng: np.random.Generator) -> Tree:
    """Samples of the space, drawn from the observation statistics where they exist.

    The normalisation would clip nearly all uniform samples of a Box as wide as float32.
    """
    obs = spaces.sample(policy.observation_space, rows, rng)
    scalings = {} if policy.obs_norm is None else dict(policy.obs_norm.scalings.items())
    named = dict(tree.named_leaves(obs, "obs"))
    for name, leaf in named.items():
        scaling: Any = scalings.get(name.replace(".", "/"))
        if leaf.is_floating_point():
            named[name] = leaf.clamp(-1e3, 1e3)
            if scaling is not None and scaling.count > 0:
                noise = torch.from_numpy(rng.standard_normal(leaf.shape, np.float32))
                named[name] = scaling.offset + 2 * noise / scaling.scale
    return tree.from_named(obs, named, "obs")
