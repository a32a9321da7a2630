"""The settings of the heads that estimate action values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from recollect.config.fields import above_zero, at_least, check_fields
from recollect.errors import ConfigError


@dataclass(frozen=True, slots=True)
class QHeadConfig:
    """Settings of a head that estimates the value of every action."""

    section = "head."
    code = "recollect.policy.q_heads:QHead"

    hidden: tuple[int, ...] = (128,)
    """Widths of the layers between the core and the action values, of each stream if dueling; () for none."""
    activation: Literal["tanh", "relu", "silu"] = "relu"
    """Activation after every hidden layer."""
    dueling: bool = True
    """Estimate the value of the state and the advantages of the actions by separate streams of layers."""
    noisy: bool = False
    """Explore by noise on the weights, whose scale is learned, instead of by random actions alone."""
    noise_scale: float = 0.5
    """Initial standard deviation of the noise on a weight, times the square root of the layer's inputs. Only
    with noisy."""
    gain: float = 0.01
    """Gain of the orthogonal initial weights of the last layers; a small one makes all values nearly 0."""

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, 0, "gain")
        above_zero(self, "noise_scale")
        if any(not isinstance(width, int) or width < 1 for width in self.hidden):
            raise ConfigError(f"head.hidden = {self.hidden}: give widths of at least 1, such as (128,)")


@dataclass(frozen=True, slots=True)
class QuantileHeadConfig(QHeadConfig):
    """Settings of a head that estimates quantiles of the return of every action."""

    code = "recollect.policy.q_heads:QuantileHead"

    hidden: tuple[int, ...] = ()
    """Widths of layers after the product with the fractions, which are computed for every fraction."""
    base: int = 128
    """Width of the layer between the core and the product with the fractions; 0 for none."""
    quantiles: int = 8
    """Number of quantiles whose mean is the action value, in acting and wherever the value is needed."""
    embedding: int = 64
    """Number of cosines that represent a fraction."""

    def __post_init__(self) -> None:
        QHeadConfig.__post_init__(self)
        at_least(self, 1, "quantiles", "embedding")
        at_least(self, 0, "base")
