"""The settings that all algorithms share that learn from replayed sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from recollect.config.algo_shared import AlgoConfig, Shape
from recollect.config.fields import above_zero, at_least, require
from recollect.errors import ConfigError

STORED, REBUILT = "stored", "rebuilt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayConfig(AlgoConfig):
    """Settings of every algorithm that learns from replayed sequences. Algorithms add their own."""

    default_head = "q"
    is_greedy = True

    rollout: int = 16
    """T: steps that every row records between two updates."""
    learning_rate: float = 3e-4
    """Learning rate (step size of the optimiser)."""
    learning_rate_schedule: Shape = "constant"
    """Schedule of the learning rate over the run: constant, linear or cosine."""
    max_grad_norm: float = 10.0
    """Gradients are clipped to this norm."""
    chunk: int = 20
    """L: steps of a sequence that are learned from."""
    burn_in_steps: int = 10
    """K: steps before them that are unrolled without gradient, from the state stored there; fewer after the
    start of an episode, whose initial state is exact."""
    n_step: int = 3
    """Steps of rewards in a target, before the target network's value; fewer at the end of an episode."""
    bootstrap_time_limits: bool = True
    """Whether targets at a time limit continue with the value of the final observation; else they end there,
    as at a termination. No action follows a final observation, so nothing corrects its value: where a memory
    tells it apart, by the time that has passed, values may grow without bound."""
    stride: int | None = None
    """Steps between the starts of two sequences of an episode; None: ``chunk``."""
    states: Literal["stored", "rebuilt"] = "stored"
    """Initial memory of a sequence: the state stored while acting, or rebuilt from zeros by the burn-in
    ("rebuilt"), which is exact for the core ``frames`` with a burn-in of its frames - 1, and for ``none``."""
    batch: int = 32
    """Sequences in an optimiser step."""
    replay_capacity: int = 200_000
    """Steps that the replay holds, over all rows; the oldest are overwritten."""
    replay_warmup: int = 2_000
    """Steps that are collected before the first optimiser step."""
    replay_ratio: float = 4.0
    """Steps learned from for each step collected; every optimiser step counts as batch * chunk steps."""
    save_replay: bool = False
    """Store the replay in checkpoints, so that a resumed run continues bit for bit; else it is refilled."""
    double: bool = True
    """The next action is chosen by the learning network and valued by the target network (double Q-learning);
    else the target network does both."""
    target_every: int | None = 500
    """Optimiser steps between two copies of the weights to the target network; None: ``target_rate``."""
    target_rate: float | None = None
    """If set, the target network moves by this share towards the weights after every optimiser step. Needs
    target_every=None."""
    priority_exponent: float = 0.0
    """Sequences are drawn in proportion to their priority, the error of their steps, to this power; 0:
    uniformly."""
    priority_eta: float = 0.9
    """A sequence's priority is eta * the largest + (1 - eta) * the mean of its steps' absolute errors."""
    importance_exponent: float = 0.0
    """Losses are weighted by 1 / probability to this power, in proportion to the largest weight; 1 corrects
    fully for the priorities, 0 (as in R2D2) not at all."""
    epsilon: float = 1.0
    """Probability of a random action at the start of the run, of the row that explores most."""
    epsilon_end: float = 0.05
    """The same after ``epsilon_decay``, until the end."""
    epsilon_decay: float = 0.1
    """Fraction of the run over which epsilon falls, linearly."""
    epsilon_ladder: float = 0.0
    """Row i of N explores with epsilon * epsilon_end^(epsilon_ladder * i / (N - 1)): the first row most, the
    last hardly ever. 0: all rows alike."""

    def __post_init__(self) -> None:
        """Validate."""
        AlgoConfig.__post_init__(self)  # no super(): slots=True replaces the class
        at_least(self, 1, "chunk", "n_step", "stride", "batch", "replay_capacity", "target_every")
        at_least(self, 0, "burn_in_steps", "replay_warmup", "priority_exponent", "epsilon_ladder")
        above_zero(self, "replay_ratio", "target_rate")
        for name in ("priority_eta", "importance_exponent", "epsilon", "epsilon_end", "epsilon_decay"):
            value = getattr(self, name)
            require(0 <= value <= 1, f"{name} = {value}: it must be in [0, 1]")
        require(
            self.epsilon_end <= self.epsilon,
            f"epsilon_end = {self.epsilon_end} is above epsilon = {self.epsilon}: exploration falls during "
            "the run; lower epsilon_end or raise epsilon",
        )
        require(
            (self.target_every is None) != (self.target_rate is None),
            f"target_every = {self.target_every} and target_rate = {self.target_rate}: the target network is "
            "copied every so many steps or moves a little in each; set one of them, and the other to None",
        )
        require(
            self.target_rate is None or self.target_rate <= 1,
            f"target_rate = {self.target_rate}: a share in (0, 1]",
        )
        require(
            self.stride is None or self.stride <= self.chunk,
            f"stride = {self.stride} is above chunk = {self.chunk}: the steps between two sequences would "
            "never be learned from; lower stride or raise chunk",
        )

    @property
    def spacing(self) -> int:
        """Steps between the starts of two sequences, at most: each rollout stores its first state."""
        return self._stride if self.states == REBUILT else self.rollout // len(self.state_steps)

    @property
    def state_distance(self) -> int:
        """Steps between two stored states of a rollout; of rollouts with one state, between these."""
        return min(self._stride, self.rollout)

    @property
    def chunk_length(self) -> int:
        """Steps that gradients reach back."""
        return self.chunk

    @property
    def window(self) -> int:
        """Steps of a sequence with its burn-in and the steps that only its targets need."""
        return self.burn_in_steps + self.chunk + self.n_step

    @property
    def state_steps(self) -> tuple[int, ...]:
        """The steps at which the actor stores its state; the first one for the deviation check."""
        return (0,) if self.states == REBUILT else tuple(range(0, self.rollout, self._stride))

    @property
    def _stride(self) -> int:
        return self.chunk if self.stride is None else self.stride

    def slots(self, rows: int) -> int:
        """The steps that the replay holds of each row."""
        return self.replay_capacity // rows

    def exploration(self, rows: int) -> list[float]:
        """The share of epsilon with which each of ``rows`` rows explores."""
        return [self.epsilon_end ** (self.epsilon_ladder * row / max(1, rows - 1)) for row in range(rows)]

    def check(self, policy: Any, rows: int) -> None:
        """Raise unless these settings fit the policy and the number of rows."""
        core = policy.core
        if not hasattr(policy.head, "epsilon"):
            raise ConfigError(
                f"{type(policy.head).__name__} has no Q-values, which this algorithm learns: leave head out, "
                "or use algo=ppo or impala"
            )
        if self.states == REBUILT and (core.reach is None or core.reach > self.burn_in_steps):
            raise ConfigError(
                f"states = 'rebuilt', but {type(core).__name__} cannot be rebuilt by burn_in_steps = "
                f"{self.burn_in_steps}: "
                + (
                    "it may remember any number of steps; use states='stored'"
                    if core.reach is None
                    else f"it needs {core.reach}"
                )
            )
        if self.states == STORED and core.reach is not None and core.has_memory:
            raise ConfigError(
                f"states = 'stored' would store the last {core.reach} inputs of {type(core).__name__} again "
                f"beside the steps: use states='rebuilt' with burn_in_steps={core.reach} (--states rebuilt "
                f"--burn-in-steps {core.reach})"
            )
        least = self.window + 2 * self.rollout + 1
        if self.slots(rows) < least:
            raise ConfigError(
                f"replay_capacity = {self.replay_capacity:,} holds {self.slots(rows)} steps of each of "
                f"{rows} rows, and sequences of burn_in_steps + chunk + n_step = {self.window} steps with "
                f"rollouts of {self.rollout} need {least}: raise it to at least {least * rows:,}, or lower "
                "num_envs"
            )
        if self.replay_warmup > self.replay_capacity:
            raise ConfigError(
                f"replay_warmup = {self.replay_warmup:,} is above replay_capacity = "
                f"{self.replay_capacity:,}: the first steps would be overwritten before they are learned "
                "from; lower replay_warmup"
            )
