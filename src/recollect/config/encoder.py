"""The settings of the encoder, and the names of encoders."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from recollect.base.registry import load
from recollect.config.fields import check_fields
from recollect.errors import ConfigError


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Settings of the encoder, which is built from an observation space."""

    section = "encoder."

    hidden: tuple[int, ...] = (64,)
    """Widths of the MLP's layers, also after a conv stack; () for no layer. Token networks have layers of
    their own."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Activation after every layer."""
    layer_norm: bool = False
    """Normalise every layer of the MLP before its activation."""
    conv: Literal["small", "nature"] = "small"
    """The conv stack for images: small halves the sides with 3 x 3 layers down to 8, for any size; nature is
    DQN's, for images of 36 x 36 or more."""
    images: Literal["auto", "always", "never"] = "auto"
    """Which three-dimensional Boxes are images and go through the conv stack; auto: by their shape."""
    tokens: Literal[
        "auto", "fast", "latent_attn_tiny", "latent_attn_small", "latent_attn_med", "example", "never"
    ] = "auto"
    """The network for token sets, 8-bit Boxes of shape (M, 3). auto: fast, where there are any; a name: there
    must be some; never: they are plain numbers."""

    def __post_init__(self) -> None:
        check_fields(self)
        if any(not isinstance(width, int) or width < 1 for width in self.hidden):
            raise ConfigError(f"encoder.hidden = {self.hidden}: give widths of at least 1, such as (128,)")

    def build(self, observation_space: Any) -> Any:
        """The encoder for this space."""
        return load("recollect.policy.encoders:Encoder")(observation_space, self)


ENCODERS: dict[str, EncoderConfig] = {
    "auto": EncoderConfig(),
    "mlp": EncoderConfig(images="never", tokens="never"),
    "conv": EncoderConfig(images="always"),
}
"""The encoders by name."""
