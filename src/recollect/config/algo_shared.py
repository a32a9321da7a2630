"""The settings that all algorithms share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from recollect.config.fields import above_zero, at_least, check_fields, require
from recollect.errors import ConfigError

Shape = Literal["constant", "linear", "cosine"]
"""The schedules of a coefficient."""
RecurrentMode = Literal["none", "stored_state", "burn_in", "full"]
Batching = Literal["chunks", "episodes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgoConfig:
    """Settings of every algorithm. ``LearnerConfig`` is for those that learn from each rollout and drop it,
    ``recollect.config.replay.ReplayConfig`` for those that replay old steps."""

    default_head = "actor_critic"
    """The name of the head that policies have unless another one is chosen."""
    is_greedy = False
    """Whether evaluations are greedy only, because random actions are just exploration."""

    rollout: int = 128
    """T: steps that every row records between two updates."""
    learning_rate: float = 1e-3
    """Learning rate (step size of the optimiser) of the encoder and the core, and of heads without one of
    their own."""
    learning_rate_schedule: Shape = "linear"
    """Schedule of all learning rates over the run: constant, linear or cosine."""
    learning_rate_end: float = 0.1
    """Final learning rates, as a fraction of the initial ones."""
    learning_rate_warmup: float = 0.0
    """Fraction of the run over which learning rates rise from 0."""
    gamma: float = 0.99
    """Discount factor; 1 / (1 - gamma) is the effective horizon in steps."""
    max_grad_norm: float = 0.5
    """Gradients are clipped to this norm."""
    reward_scale: float = 1.0
    """Factor of the rewards before learning; unnecessary with PopArt."""
    reward_clip: float | None = None
    """If set, scaled rewards are clipped to +- this."""
    tolerance: float | None = None
    """If recomputed log-probs or values deviate by more from the recorded ones, the rows that deviate most
    are replayed in float64, and the run stops unless rounding explains it. None: 1e-4 in float32, 5e-3 in
    TF32, 0.05 in bf16; five times as much with attention, which rounds more."""
    gauge_every: int = 20
    """Updates between two measurements of the staleness of stored states; 0: never."""

    def __post_init__(self) -> None:
        """Validate."""
        check_fields(self)
        at_least(self, 1, "rollout")
        at_least(self, 0, "learning_rate_end", "gauge_every")
        above_zero(self, "learning_rate", "max_grad_norm", "reward_clip", "reward_scale", "tolerance")
        require(0 <= self.gamma <= 1, f"gamma = {self.gamma}: it must be in [0, 1]")
        warmup = self.learning_rate_warmup
        require(0 <= warmup < 1, f"learning_rate_warmup = {warmup}: a fraction in [0, 1)")

    @property
    def effective_horizon(self) -> float:
        """1 / (1 - gamma), in steps."""
        return float("inf") if self.gamma == 1 else 1 / (1 - self.gamma)

    @property
    def chunk_length(self) -> int:
        """Steps that gradients reach back."""
        return self.rollout

    @property
    def is_anchored(self) -> bool:
        """Whether training needs its initial weights."""
        return False

    def check(self, policy: Any, rows: int) -> None:
        """Raise unless these settings fit the policy and the number of rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerConfig(AlgoConfig):
    """Settings of every algorithm that learns from rollouts. Algorithms add their own."""

    chunk: int = 32
    """L: steps of truncated backpropagation through time; at most the rollout."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 4
    """Optimiser steps in each pass."""
    accumulate: int = 1
    """Parts that each minibatch is split into; their gradients are added up before the one optimiser step:
    the same update in less memory."""
    batching: Batching = "chunks"
    """The sequences of minibatches: chunks of rows, or whole "episodes", as far as the rollout holds
    them; then gradients flow through all steps of an episode, and ``chunk`` has no effect."""
    recurrent_mode: RecurrentMode = "stored_state"
    """Initial memory of a chunk: the state stored while acting; a state replayed over the ``burn_in_steps``
    before it ("burn_in"); or the state at the rollout's start, with whole rollouts as chunks ("full"). "none"
    is only for cores without memory."""
    burn_in_steps: int = 0
    """K: with "burn_in", steps replayed without gradient before each chunk; at most the chunk."""
    actor_learning_rate: float | None = None
    """Learning rate of the action head; None: ``learning_rate``."""
    critic_learning_rate: float | None = None
    """Learning rate of the value head; None: ``learning_rate``."""
    gae_lambda: float = 0.95
    """Lambda of generalised advantage estimation: 0 for one-step, 1 for Monte Carlo advantages."""
    value_coef: float = 0.5
    """Coefficient of the value loss."""
    entropy: float = 0.01
    """Coefficient of the entropy bonus."""
    entropy_schedule: Shape = "linear"
    """Schedule of the entropy coefficient over the run: constant, linear or cosine."""
    entropy_warmup: float = 0.0
    """Fraction of the run over which the entropy coefficient rises from 0."""
    entropy_end: float = 0.1
    """Final entropy coefficient, as a fraction of the initial one."""
    weight_clip: float | None = None
    """If set, every weight is clipped to +- this times the initialisation bound of its layer."""
    l2_init: float = 0.0
    """Coefficient of the squared distance from the initial weights of this training, in the loss."""
    next_obs_coef: float = 0.0
    """Coefficient of an auxiliary loss: predict the next observation from the memory and the action."""
    target_kl: float | None = None
    """If set, an update ends at the first minibatch whose KL divergence from the acting policy exceeds it."""
    normalise_advantages: bool = True
    """Normalise advantages to mean 0 and standard deviation 1, over all valid steps of the batch."""
    refresh_states: bool = False
    """Recompute the stored states under the new weights before every epoch but the first."""
    recompute_advantages: bool = False
    """Recompute values and advantages under the new weights before every epoch but the first."""
    recompute_activations: bool = False
    """Recompute activations in the backward pass (gradient checkpointing): slower, in less memory."""

    def __post_init__(self) -> None:
        """Validate."""
        AlgoConfig.__post_init__(self)  # no super(): slots=True replaces the class
        at_least(self, 1, "chunk", "epochs", "minibatches", "accumulate")
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
        require(0 <= self.gae_lambda <= 1, f"gae_lambda = {self.gae_lambda}: it must be in [0, 1]")
        above_zero(self, "actor_learning_rate", "critic_learning_rate", "target_kl")
        at_least(self, 0, "value_coef", "entropy", "next_obs_coef", "entropy_end", "l2_init")
        require(
            self.weight_clip is None or self.weight_clip >= 1,
            f"weight_clip = {self.weight_clip}: below 1 it would clip the initial weights; use 1 or more",
        )
        warmup = self.entropy_warmup
        require(0 <= warmup < 1, f"entropy_warmup = {warmup}: a fraction in [0, 1)")

    @property
    def chunk_length(self) -> int:
        """The effective L: the whole rollout with "full", and with whole episodes."""
        is_whole = self.recurrent_mode == "full" or self.batching == "episodes"
        return self.rollout if is_whole else self.chunk

    @property
    def state_steps(self) -> tuple[int, ...]:
        """The steps at which the actor stores its state."""
        return state_steps(self.rollout, self.chunk_length, self.burn_in_steps)

    @property
    def is_anchored(self) -> bool:
        """Whether training needs its initial weights."""
        return self.weight_clip is not None or self.l2_init > 0

    def sequences(self, rows: int) -> int:
        """The number of chunks in a rollout of ``rows`` rows; with whole episodes, the smallest number."""
        return rows * -(-self.rollout // self.chunk_length)

    def check(self, policy: Any, rows: int) -> None:
        """Raise unless these settings fit the policy and the number of rows."""
        if self.recurrent_mode == "none" and policy.has_memory:
            raise ConfigError(
                f"recurrent_mode = 'none', but {type(policy.core).__name__} carries memory, which would be "
                "trained from nothing: use 'stored_state', or core='none' for a policy without memory"
            )
        chunks = self.sequences(rows)
        if chunks < self.minibatches:
            made, lower = f"x {chunks // rows} chunks a rollout make {chunks} chunks", "chunk or minibatches"
            if self.batching == "episodes":
                made, lower = f"make as few as {chunks} episode segments", "minibatches"
            raise ConfigError(
                f"{rows} rows {made}, too few for {self.minibatches} minibatches: raise num_envs, or lower "
                f"{lower}"
            )
        smallest = chunks // self.minibatches
        if smallest < self.accumulate:
            raise ConfigError(
                f"accumulate = {self.accumulate}: {chunks} chunks in {self.minibatches} minibatches are only "
                f"{smallest} a minibatch, and every part needs one: lower accumulate to {smallest}, lower "
                "minibatches, or raise num_envs"
            )


def state_steps(rollout: int, chunk: int, burn_in: int = 0) -> tuple[int, ...]:
    """The steps at which states must be stored: chunk starts, and burn-in prefix starts before them."""
    starts = range(0, rollout, chunk)
    return tuple(sorted({*starts, *(start - burn_in for start in starts if start > 0)}))
