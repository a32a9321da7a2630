"""Policy: an encoder, a core, and heads for the action and the value.

The memory is a value that is passed: every method takes the state and none keeps it. ``act`` is
the one step of the actor, ``unroll`` the many of the learner; both go through the same encoder,
core, normalisers and heads, and the core applies ``first`` in both, so that the two agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from recollect import tree
from recollect.cores import make_core
from recollect.errors import StateError
from recollect.policy.distributions import Distribution
from recollect.policy.encoders import make_encoder
from recollect.policy.heads import ActionHead, HeadConfig
from recollect.policy.masks import ACTION_MASK, check_mask_space
from recollect.policy.normalise import ObservationNorm, PopArt
from recollect.types import State, Tree


class Acted(NamedTuple):
    """One acting step of B rows; all but the action is what the rollout records."""

    action: Tree
    """[B, ...] as stored and learned from; ``Policy.to_env`` makes the env's action of it."""
    log_prob: Tensor
    """[B]"""
    value: Tensor
    """[B] in real units."""


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """What a policy is made of. ``encoder`` and ``core`` take a name, a config or a factory."""

    encoder: Any = None
    """How observations become features: by the observation space if None."""
    core: Any = "lstm"
    """What carries over time: "lstm", "gru", "none", a core config, or a factory."""
    head: HeadConfig = field(default_factory=HeadConfig)
    """The action distribution."""
    normalise_observations: bool = True
    """Scale Box observations, but for images, by running statistics."""
    normalise_value: bool = True
    """PopArt: the critic predicts in units of the returns' own spread."""
    value_decay: float = 0.99
    """How slowly the statistics of the returns forget, per update."""

    def build(self, observation_space: gym.Space, action_space: gym.Space) -> Policy:
        """The policy for these spaces."""
        return Policy(observation_space, action_space, self)


class Policy(nn.Module):
    """See the module's docstring. A network of your own fits in as ``encoder`` or ``core``."""

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        config: PolicyConfig | None = None,
    ):
        super().__init__()
        config = config or PolicyConfig()
        self.observation_space = observation_space
        self.action_space = action_space
        self.config = config
        self.encoder = make_encoder(config.encoder, observation_space)
        self.core = make_core(config.core, self.encoder.output_size)
        self.head = ActionHead(action_space, self.core.output_size, config.head)
        self.critic = nn.Linear(self.core.output_size, 1)
        nn.init.orthogonal_(self.critic.weight)
        nn.init.zeros_(self.critic.bias)
        self.obs_norm = ObservationNorm(observation_space) if config.normalise_observations else None
        self.value_norm = PopArt(config.value_decay) if config.normalise_value else None
        self._masked = False
        if isinstance(observation_space, gym.spaces.Dict) and ACTION_MASK in observation_space.spaces:
            check_mask_space(action_space, observation_space.spaces[ACTION_MASK])
            self._masked = True

    @property
    def has_memory(self) -> bool:
        """Whether the core carries anything."""
        return self.core.has_memory

    @property
    def value_scale(self) -> Tensor | float:
        """The unit of the value loss: the spread of the returns, or 1."""
        return 1.0 if self.value_norm is None else self.value_norm.std

    def initial_state(self, batch: int) -> State:
        """The state before an episode's first step, as a copy of its own, for ``batch`` rows."""
        return tree.map(lambda leaf: leaf.detach().clone(), self.core.initial_state(batch))

    @torch.no_grad()
    def act(
        self,
        obs: Tree,
        state: State,
        first: Tensor,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
    ) -> tuple[Acted, State]:
        """Choose actions: obs [B, ...], state, first [B] -> (action, log_prob, value) [B], state."""
        dist, value, state = self.step(obs, state, first)
        if deterministic:
            action = dist.mode()
            log_prob = dist.log_prob(action)
        else:
            action, log_prob = dist.sample_with_log_prob(generator)
        return Acted(action, log_prob, value), state

    def step(self, obs: Tree, state: State, first: Tensor) -> tuple[Distribution, Tensor, State]:
        """What ``act`` chooses from: obs [B, ...], state, first [B] -> distribution, value [B], state."""
        y, state = self.core.step(self._encode(obs), state, first)
        return self._distribution(y, obs), self._value(y), state

    def to_env(self, action: Tree) -> Tree:
        """What the env gets for a stored action: squashed, scaled, clipped, offset."""
        return self.head.to_env(action)

    def unroll(self, obs: Tree, state: State, first: Tensor) -> tuple[Distribution, Tensor, State]:
        """Replay T steps: obs [T, B, ...], the raw state at step 0, first [T, B].

        Returns the action distribution [T, B], the value [T, B] in real units, and the state after.
        """
        x = self._encode_sequence(obs, first)
        y, state = self.core.unroll(x, state, first)
        return self._distribution(y, obs), self._value(y), state

    def evaluate_actions(
        self, obs: Tree, action: Tree, state: State, first: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log_prob, entropy and value [T, B] of given actions [T, B, ...]; nothing is resampled."""
        dist, value, _ = self.unroll(obs, state, first)
        return dist.log_prob(action), dist.entropy(), value

    @torch.no_grad()
    def value(self, obs: Tree, state: State, first: Tensor) -> Tensor:
        """V(obs [B, ...], state) [B] in real units. Changes no state and draws no random number."""
        y, _ = self.core.step(self._encode(obs), state, first)
        return self._value(y)

    def unroll_with_states(
        self, obs: Tree, state: State, first: Tensor, times: Sequence[int]
    ) -> tuple[Distribution, Tensor, list[State]]:
        """``unroll`` that returns the raw input states of the steps ``times`` (ascending, 0..T)."""
        y, states = self.core.states_at(self._encode_sequence(obs, first), state, first, times)
        return self._distribution(y, obs), self._value(y), states

    def _encode(self, obs: Tree) -> Tensor:
        """Features [N, D] of obs [N, ...]."""
        return self.encoder(obs if self.obs_norm is None else self.obs_norm(obs))

    def _encode_sequence(self, obs: Tree, first: Tensor) -> Tensor:
        """Features [T, B, D] of obs [T, B, ...], all steps in one pass of the encoder."""
        T, B = first.shape
        for name, leaf in tree.named_leaves(obs, "obs"):
            if leaf.shape[:2] != first.shape:
                raise StateError(
                    f"Policy.unroll: {name} has shape {tuple(leaf.shape)}, first {tuple(first.shape)}: both "
                    "begin with [T, B], time first: was one of them transposed?"
                )
        flat = tree.map(lambda leaf: leaf.reshape(T * B, *leaf.shape[2:]), obs)  # [T, B, ..] -> [T * B, ..]
        return self._encode(flat).view(T, B, -1)  # [T * B, D] -> [T, B, D]

    def _distribution(self, y: Tensor, obs: Tree) -> Distribution:
        return self.head(y, obs[ACTION_MASK] if self._masked else None)

    def _value(self, y: Tensor) -> Tensor:
        value = self.critic(y).squeeze(-1).float()
        return value if self.value_norm is None else self.value_norm.denormalise(value)
