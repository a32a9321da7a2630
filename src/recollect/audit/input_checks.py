"""Inputs of the network: keys of the critic, names that are no amounts, padding of sets, rows, precision."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from recollect.audit.gradient_checks import with_noise
from recollect.audit.recorded_rollouts import RecordedRollout
from recollect.audit.results import Passed, Problem
from recollect.base import spaces, tree
from recollect.base.tolerances import on_device
from recollect.base.types import Tree
from recollect.policy.policy import Policy

ROWS, MANY_ROWS = 16, 64
"""Of a rollout; and those of a batch that kernels of their own may compute."""
TOLERANCE = 1e-4
MORE_TOKENS = 5
ABSENT = (255, 3, 7)
"""A token that is not there; the last two numbers mean nothing."""


@torch.no_grad()
def inputs(rollouts: Sequence[RecordedRollout]) -> Passed:
    """The outputs depend on what they should, and on nothing else."""
    one = rollouts[-1]
    valid = one.rollout.valid
    obs, action = (
        tree.map(lambda leaf: leaf[: len(valid)][valid][:ROWS], part)
        for part in (one.rollout.obs, one.rollout.action)
    )
    largest, said = 0.0, []
    for check in (_critic_keys, _unscaled, _symbols, _tokens, _many_rows, _autocast):
        for name, gap in check(_Asked(one.policy, obs, action)):
            said.append(name)
            largest = max(largest, gap)
    return Passed(f"{len(tree.leaves(obs))} parts of the observation; {', '.join(said)}", largest, TOLERANCE)


class _Asked:
    """The policy's outputs in the first step of an episode, for fixed actions."""

    def __init__(self, policy: Policy, obs: Tree, action: Tree) -> None:
        self.policy, self.obs, self.action = policy, obs, action

    def __call__(self, obs: Tree, policy: Policy | None = None) -> dict[str, Tensor]:
        """Fields of the record [N]."""
        policy = policy or self.policy
        rows = len(tree.leaves(obs)[0])
        first = torch.ones(1, rows, dtype=torch.bool, device=policy.device)
        obs, action = (tree.map(lambda leaf: leaf[:rows].unsqueeze(0), part) for part in (obs, self.action))
        *outputs, _ = policy.unroll(obs, policy.initial_state(rows), first)
        return policy.head.record(outputs, action)


def _gap(one: dict[str, Tensor], other: dict[str, Tensor], names: Sequence[str] = ()) -> float:
    """The largest difference of the fields, relative to their size."""
    gaps = [0.0]
    for name in names or one:
        size = one[name].abs().max().clamp(min=1)
        gaps.append(float(((one[name] - other[name]).abs() / size).max()))
    return max(gaps)


def _same(gap: float, found: str, *advice: str) -> float:
    if not gap <= TOLERANCE:
        raise Problem(found, *advice, measured=gap, tolerance=TOLERANCE)
    return gap


def _critic_keys(asked: _Asked) -> Iterator[tuple[str, float]]:
    """Keys of the critic reach the value, and not the actions."""
    keys = asked.policy.config.critic_obs
    if not keys:
        return
    noise = with_noise(asked.obs)
    right, changed = asked(asked.obs), asked({**asked.obs, **{key: noise[key] for key in keys}})
    gap = _same(
        _gap(right, changed, ["log_prob"]),
        f"actions depend on {', '.join(keys)}, which only the critic may see",
        "Fix: leave these keys out of the actor's observation",
    )
    floats = [leaf for key in keys for leaf in tree.leaves(asked.obs[key]) if leaf.is_floating_point()]
    if floats and _gap(right, changed, ["value"]) == 0:
        raise Problem(
            f"the value does not depend on {', '.join(keys)}",
            "Likely cause: they are left out of the critic's observation, too, or blank",
            "Fix: give the critic all keys",
        )
    yield "keys of the critic reach it alone", gap


def _unscaled(asked: _Asked) -> Iterator[tuple[str, float]]:
    """Running statistics do not change what is a name: symbols, tokens, one-hots of the last action."""
    norm = asked.policy.obs_norm
    if norm is None:
        return
    norm = copy.deepcopy(norm)
    several = tree.map(lambda leaf: torch.stack([leaf, leaf + leaf.to(leaf.dtype)]), asked.obs)
    norm.update(several, torch.ones(2, len(tree.leaves(asked.obs)[0]), dtype=torch.bool))
    scaled, names = dict(tree.named_leaves(norm(asked.obs))), 0
    named = dict(spaces.walk(asked.policy.observation_space))
    for name, leaf in tree.named_leaves(asked.obs):
        space = named[name]
        is_choice = name == spaces.LAST_ACTION and space.is_bounded()  # pyright: ignore[reportAttributeAccessIssue]
        if not is_choice and leaf.is_floating_point():
            continue
        names += 1
        if not torch.equal(scaled[name], leaf):
            raise Problem(
                f"{name or 'the observation'} is scaled by running statistics, and holds names",
                "Fix: leave integers and one-hots as they are",
            )
    if names:
        yield f"{names} of names that are not scaled", 0.0


def _leaves_like(asked: _Asked, kind: Callable[[Any], bool]) -> Iterator[tuple[str, Tensor]]:
    found = dict(tree.named_leaves(asked.obs))
    for name, space in spaces.walk(asked.policy.observation_space):
        if kind(space):
            yield name, found[name]


def _with(obs: Tree, name: str, leaf: Tensor) -> Tree:
    return tree.from_named(obs, dict(tree.named_leaves(obs)) | {name: leaf}, "") if name else leaf


def _symbols(asked: _Asked) -> Iterator[tuple[str, float]]:
    """A symbol means something else in another channel of its cell."""
    for name, leaf in _leaves_like(asked, spaces.is_symbols):
        axis = 1 + min(range(3), key=lambda i: leaf.shape[1 + i])
        other = leaf.roll(1, axis)
        if torch.equal(leaf, other):
            continue
        if _gap(asked(asked.obs), asked(_with(asked.obs, name, other))) < TOLERANCE:
            raise Problem(
                "the channels of a grid of symbols can be exchanged, and the outputs stay",
                "Likely cause: all channels share the vectors of their symbols",
                "Fix: give each channel vectors of its own",
            )
        yield "symbols by channel", 0.0


def _tokens(asked: _Asked) -> Iterator[tuple[str, float]]:
    """More padding in a set of tokens changes nothing."""
    for name, leaf in _leaves_like(asked, spaces.is_tokens):
        none = torch.tensor(ABSENT, dtype=leaf.dtype, device=leaf.device)
        more = torch.cat([leaf, none.expand(len(leaf), MORE_TOKENS, 3)], 1)
        gap = _same(
            _gap(asked(asked.obs), asked(_with(asked.obs, name, more))),
            f"{MORE_TOKENS} absent tokens more change the outputs",
            "Likely cause: attention looks at padding",
            "Fix: give absent tokens a logit far below all others",
        )
        yield "padding of tokens", gap


def _many_rows(asked: _Asked) -> Iterator[tuple[str, float]]:
    """Two steps of many rows are those of a few."""
    policy, few = asked.policy, len(tree.leaves(asked.obs)[0])
    found = []
    for rows in (few, max(few, MANY_ROWS)):
        obs = tree.index(asked.obs, torch.arange(rows, device=policy.device) % few)
        state, first = policy.initial_state(rows), torch.zeros(rows, dtype=torch.bool, device=policy.device)
        for _ in range(2):
            *_, state = policy.step(obs, state, first)
        found.append([leaf[:few] for leaf in tree.leaves(state) if leaf.is_floating_point()])
    gap = max([float((a - b).abs().max() / a.abs().max().clamp(min=1)) for a, b in zip(*found)], default=0.0)
    yield (
        f"{MANY_ROWS} rows",
        _same(
            gap if on_device(policy.config.precision, policy.device.type) == "fp32" else 0.0,
            f"the memory after two steps of {MANY_ROWS} rows is {gap:.1e} off that of {few} of them alone",
            "Likely cause: the kernel of many rows leaves out the memory, or returns that before the step",
            "Fix: compare it with the plain step",
        ),
    )


def _autocast(asked: _Asked) -> Iterator[tuple[str, float]]:
    """Autocast of the caller does not reach core and heads."""
    if asked.policy.device.type != "cpu":
        return
    with torch.autocast("cpu", torch.bfloat16):
        found = asked(asked.obs)
    for name, x in found.items():
        if x.is_floating_point() and len(x.unique()) > ROWS // 2 and torch.equal(x, x.bfloat16().to(x.dtype)):
            raise Problem(
                f"{name} has the few digits of bf16 where the caller has turned on autocast",
                "Fix: compute the heads without autocast",
            )
    yield "autocast", 0.0
