"""The settings that all algorithms share: what they are, what they refuse, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recollect.config.fields import check_fields
from recollect.errors import ConfigError
from recollect.experience.rollout import RolloutSize, rollout_bytes, state_steps
from recollect.learning.schedules import Shape
from recollect.policy.policy import Policy

RecurrentMode = Literal["none", "stored_state", "burn_in", "full"]
Batching = Literal["chunks", "episodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig:
    """What every algorithm has: how rollouts are cut and learned from. Algorithms add their own settings."""

    rollout: int = 128
    """T: steps that every row records between two updates."""
    chunk: int = 32
    """L: steps through which gradients flow; at most the rollout."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 4
    """Optimiser steps in each pass."""
    accumulate: int = 1
    """Parts that each minibatch is learned from one after another, their gradients added up before the one
    optimiser step: the same update in less memory."""
    batching: Batching = "chunks"
    """What minibatches are drawn over: chunks of rows, or whole "episodes", as far as the rollout holds
    them; then gradients flow through all of an episode's steps, and ``chunk`` has no effect."""
    recurrent_mode: RecurrentMode = "stored_state"
    """Where a chunk's memory starts: at the state stored while acting; at one replayed over the
    ``burn_in_steps`` before it ("burn_in"); at the rollout's start, chunks being whole rollouts
    ("full"). "none" is for cores without memory only."""
    burn_in_steps: int = 0
    """K: with "burn_in", steps replayed without gradient before each chunk; at most the chunk."""
    learning_rate: float = 1e-3
    """Of the encoder and the core, and of the heads unless they have their own."""
    actor_learning_rate: float | None = None
    """Of the action head; None: ``learning_rate``."""
    critic_learning_rate: float | None = None
    """Of the value head; None: ``learning_rate``."""
    learning_rate_schedule: Shape = "linear"
    """How all learning rates move over the run: constant, linear or cosine."""
    learning_rate_end: float = 0.1
    """What is left of them at the end, as a fraction."""
    learning_rate_warmup: float = 0.0
    """The fraction of the run over which they rise from 0."""
    gamma: float = 0.99
    """Discount; 1 / (1 - gamma) is the effective horizon."""
    gae_lambda: float = 0.95
    """Decay of the advantage trace."""
    value_coef: float = 0.5
    """Weight of the value loss."""
    entropy: float = 0.01
    """Weight of the entropy bonus."""
    entropy_schedule: Shape = "linear"
    """How the entropy bonus moves over the run: constant, linear or cosine."""
    entropy_warmup: float = 0.0
    """The fraction of the run over which the entropy bonus rises from 0."""
    entropy_end: float = 0.1
    """What is left of the entropy bonus at the end, as a fraction."""
    max_grad_norm: float = 0.5
    """The gradient is scaled down to this norm."""
    weight_clip: float | None = None
    """If set, every weight is kept within +- this times the bound that its layer was initialised in."""
    l2_init: float = 0.0
    """Weight of the squared distance from the weights that this training began with, in the loss."""
    next_obs_coef: float = 0.0
    """Weight of an auxiliary loss: from the memory and the action, predict the next observation."""
    target_kl: float | None = None
    """If set, an update ends at the first minibatch whose KL from the acting policy is above it."""
    normalise_advantages: bool = True
    """Advantages to mean 0 and spread 1, once over all valid steps of the batch."""
    reward_scale: float = 1.0
    """Rewards are multiplied by this before learning; PopArt makes it unnecessary."""
    reward_clip: float | None = None
    """If set, scaled rewards are clipped to +- this."""
    refresh_states: bool = False
    """Recompute the chunk-start states under the new weights before every epoch but the first."""
    recompute_advantages: bool = False
    """Recompute values and advantages under the new weights before every epoch but the first."""
    recompute_activations: bool = False
    """Compute the activations a second time for the gradient in place of keeping them: slower, but in
    less memory."""
    tolerance: float | None = None
    """If recomputed log-probs or values deviate by more from the recorded ones, the rows that deviate most
    are replayed in float64, and the run stops unless rounding explains it. None: 1e-4 in float32, 5e-3 in
    TF32, 0.05 in bf16; five times as much with attention, which rounds more."""
    gauge_every: int = 20
    """Updates between two measurements of the staleness of stored states; 0: never."""

    def __post_init__(self) -> None:
        """Refuse what cannot be meant."""
        check_fields(self)
        for name in ("rollout", "chunk", "epochs", "minibatches", "accumulate"):
            require(getattr(self, name) >= 1, f"{name} = {getattr(self, name)}: it must be at least 1")
        require(
            self.recurrent_mode in ("none", "stored_state", "burn_in", "full"),
            f"recurrent_mode = {self.recurrent_mode!r}: choose none, stored_state, burn_in or full",
        )
        require(
            self.chunk_length <= self.rollout,
            f"chunk = {self.chunk} is longer than rollout = {self.rollout}: "
            "lower chunk, raise rollout, or use recurrent_mode='full'",
        )
        if self.recurrent_mode == "burn_in":
            require(
                1 <= self.burn_in_steps <= self.chunk,
                f"burn_in_steps = {self.burn_in_steps}: with recurrent_mode='burn_in' it must be "
                f"from 1 to chunk = {self.chunk}",
            )
        else:
            require(
                self.burn_in_steps == 0,
                f"burn_in_steps = {self.burn_in_steps} does nothing with "
                f"recurrent_mode={self.recurrent_mode!r}: use 'burn_in' or leave it 0",
            )
        if self.batching == "episodes":
            require(
                self.recurrent_mode != "burn_in",
                "batching = 'episodes' with recurrent_mode = 'burn_in': whole episodes need no burn-in; use "
                "recurrent_mode='stored_state'",
            )
            require(
                not self.refresh_states,
                "refresh_states does nothing with batching = 'episodes', which starts from no stored state "
                "but the rollout's first: leave it off",
            )
        self.require_shares("gamma", "gae_lambda")
        self.require_positive("learning_rate", "actor_learning_rate", "critic_learning_rate")
        self.require_positive("max_grad_norm", "target_kl", "reward_clip", "reward_scale", "tolerance")
        not_negative = ("value_coef", "entropy", "next_obs_coef", "learning_rate_end", "entropy_end")
        for name in (*not_negative, "gauge_every", "l2_init"):
            require(getattr(self, name) >= 0, f"{name} = {getattr(self, name)}: it must not be negative")
        require(
            self.weight_clip is None or self.weight_clip >= 1,
            f"weight_clip = {self.weight_clip}: below 1 it would cut the initial weights; use 1 or more",
        )
        for name in ("learning_rate_warmup", "entropy_warmup"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} = {value}: a fraction in [0, 1)")

    def require_positive(self, *names: str) -> None:
        """Refuse these fields if they are 0 or below; None may be."""
        for name in names:
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} = {value}: it must be above 0")

    def require_shares(self, *names: str) -> None:
        """Refuse these fields if they are outside of [0, 1]."""
        for name in names:
            require(0 <= getattr(self, name) <= 1, f"{name} = {getattr(self, name)}: it is in [0, 1]")

    @property
    def chunk_length(self) -> int:
        """L as it is used: the whole rollout with "full", and with whole episodes."""
        is_whole = self.recurrent_mode == "full" or self.batching == "episodes"
        return self.rollout if is_whole else self.chunk

    @property
    def state_steps(self) -> tuple[int, ...]:
        """The steps whose states the actor must store."""
        return state_steps(self.rollout, self.chunk_length, self.burn_in_steps)

    @property
    def effective_horizon(self) -> float:
        """1 / (1 - gamma), in steps."""
        return float("inf") if self.gamma == 1 else 1 / (1 - self.gamma)

    @property
    def is_anchored(self) -> bool:
        """Whether the weights that the training began with matter to it."""
        return self.weight_clip is not None or self.l2_init > 0

    def rollout_size(self, policy: Policy, rows: int, places: int = 0) -> RolloutSize:
        """What a rollout of ``rows`` rows takes; ``places``: see ``rollout_bytes``."""
        return rollout_bytes(
            policy.observation_space,
            policy.action_space,
            policy.initial_state(1),
            rows=rows,
            steps=self.rollout,
            stored=len(self.state_steps),
            places=places,
        )

    def sequences(self, rows: int) -> int:
        """How many chunks a rollout of ``rows`` rows has; of episodes, how many at least."""
        return rows * -(-self.rollout // self.chunk_length)

    def check(self, policy: Policy, rows: int) -> None:
        """Refuse a policy or a number of rows that these settings do not fit."""
        if self.recurrent_mode == "none" and policy.has_memory:
            raise ConfigError(
                f"recurrent_mode = 'none', but {type(policy.core).__name__} carries memory, which would be "
                "trained from nothing: use 'stored_state', or core='none' for a policy without memory"
            )
        chunks = self.sequences(rows)
        if chunks < self.minibatches:
            made = (
                f"{rows} rows make as few as {chunks} episode segments, too few for {self.minibatches} "
                "minibatches: raise num_envs, or lower minibatches"
                if self.batching == "episodes"
                else f"{rows} rows x {chunks // rows} chunks a rollout make {chunks} chunks, too few for "
                f"{self.minibatches} minibatches: raise num_envs, or lower chunk or minibatches"
            )
            raise ConfigError(made)
        smallest = chunks // self.minibatches
        if smallest < self.accumulate:
            raise ConfigError(
                f"accumulate = {self.accumulate}: {chunks} chunks in {self.minibatches} minibatches are only "
                f"{smallest} a minibatch, and every part needs one: lower accumulate to {smallest}, lower "
                "minibatches, or raise num_envs"
            )


def require(condition: bool, message: str) -> None:
    """Refuse a config unless the condition holds."""
    if not condition:
        raise ConfigError(message)
