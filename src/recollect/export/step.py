"""One acting step as a module with named input and output tensors, for tracing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recollect.base import spaces, tree
from recollect.base.types import State, Tree
from recollect.errors import ConfigError, RecollectError
from recollect.policy.distributions import (
    Bernoulli,
    Categorical,
    Distribution,
    Gaussian,
    Joint,
    MultiCategorical,
    Shaped,
    TanhGaussian,
)
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead

Tensors = dict[str, Tensor]
"""Inputs or outputs of a step, by name."""


class StepModule(nn.Module):
    """One acting step of a policy; ``recollect.export.files`` lists the names."""

    def __init__(self, policy: Policy, deterministic: bool = True):
        super().__init__()
        head = type(policy.head).__name__
        if not policy.head.needs_critic and not isinstance(policy.head, QHead):
            raise ConfigError(
                f"the policy has a {head}, and only actor-critic heads and heads of action values can be "
                "exported: save the agent (agent.save), and serve it with agent.session"
            )
        if isinstance(policy.head, QHead) and not deterministic:
            raise ConfigError(
                f"the policy has a {head}, which takes the best action: leave deterministic=False (--sample) "
                "out"
            )
        self.policy, self.deterministic = policy, deterministic
        self.obs_like = spaces.zeros(policy.observation_space, 1)
        self.state_like = policy.initial_state(1)

    def forward(self, inputs: Tensors) -> Tensors:
        """One step of all rows."""
        obs = tree.from_named(self.obs_like, inputs, "obs")
        state = tree.from_named(self.state_like, inputs, "state")
        *found, state = self.policy.step(obs, state, inputs["first"])
        action = self.policy.to_env(self.policy.head.choose(found, None, self.deterministic))
        outputs = dict(tree.named_leaves(action, "action"))
        for part in parts_of(self.policy, found):
            outputs |= part.outputs
        value = value_of(self.policy, found)
        outputs |= {} if value is None else {"value": value}
        return outputs | dict(tree.named_leaves(state, "next_state"))

    def example(self) -> Tensors:
        """Inputs of the right shapes and dtypes; two rows, because tracing would make one a constant."""
        obs = spaces.sample(self.policy.observation_space, 2, np.random.default_rng(0))
        return named_inputs(obs, self.policy.initial_state(2), torch.tensor([True, False]))


def named_inputs(obs: Tree, state: State, first: Tensor) -> Tensors:
    """The inputs of a step by name."""
    named = [*tree.named_leaves(obs, "obs"), *tree.named_leaves(state, "state"), ("first", first)]
    [(name, count)] = Counter(name for name, _ in named).most_common(1)
    if count > 1:
        raise RecollectError(
            f"two inputs of the export would be named {name}: a key with a dot looks like a nested key. "
            "Rename it in the env or in a wrapper"
        )
    return dict(named)


@dataclass(frozen=True, slots=True)
class Part:
    """The distribution of one leaf of the action, or the values of all actions."""

    path: str
    """Path of the leaf: "", or for example ".move"."""
    kind: str
    """Name of the distribution, or "values"."""
    parameters: Tensors
    """Its parameters by name: "logits", "mean" or "log_std", or "q"."""

    @property
    def action(self) -> str:
        """Name of the action's output."""
        return f"action{self.path}"

    @property
    def outputs(self) -> Tensors:
        """The parameters by output name."""
        return {f"{label}{self.path}": tensor for label, tensor in self.parameters.items()}


def parts_of(policy: Policy, outputs: Sequence[Any]) -> list[Part]:
    """The parts of the action from the outputs of the head."""
    if isinstance(policy.head, QHead):
        return [Part("", "values", {"q": outputs[0]})]
    return list(parts(outputs[0]))


def value_of(policy: Policy, outputs: Sequence[Any]) -> Tensor | None:
    """V [B], if the head has it."""
    return outputs[1] if policy.head.needs_critic else None


def parts(dist: Distribution, path: str = "") -> Iterator[Part]:
    """The leaves of a distribution. A custom distribution has no known parameters."""
    if isinstance(dist, Joint):
        keys = range(len(dist.parts)) if dist.keys is None else dist.keys
        for key, part in zip(keys, dist.parts):
            yield from parts(part, f"{path}.{key}")
        return
    shape, dist = (dist.shape, dist.base) if isinstance(dist, Shaped) else (None, dist)
    kind, parameters = _parameters(dist)
    if shape is not None:  # [B, k, ...] -> [B, *shape, ...]
        parameters = {
            label: tensor.reshape(tensor.shape[0], *shape, *tensor.shape[2:])
            for label, tensor in parameters.items()
        }
    yield Part(path, kind, parameters)


def _parameters(dist: Distribution) -> tuple[str, Tensors]:
    if isinstance(dist, Categorical):
        return "categorical", {"logits": dist.log_probs}
    if isinstance(dist, MultiCategorical):
        return "multi_categorical", {"logits": dist.parts.log_probs}
    if isinstance(dist, Bernoulli):
        return "bernoulli", {"logits": dist.logits}
    if isinstance(dist, Gaussian):
        kind = "tanh_gaussian" if isinstance(dist, TanhGaussian) else "gaussian"
        return kind, {"mean": dist.mean, "log_std": dist.log_std.expand_as(dist.mean)}
    return type(dist).__name__, {}
