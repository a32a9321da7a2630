"""The settings of the attention core."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from recollect.config.cores.base import CoreConfig


@dataclass(frozen=True, slots=True)
class WindowConfig(CoreConfig):
    """Settings of the attention core."""

    code = "recollect.cores.window:Window"

    hidden: int = 128
    """Width of the residual stream, and of the output."""
    window: int = 64
    """Steps that a layer attends to, the current one included; at least 2."""
    layers: int = 1
    """Number of attention layers; each one extends the reach by window - 1 steps."""
    heads: int = 4
    """Attention heads of every layer; hidden must be a multiple of it."""
    expansion: int = 2
    """Width of the hidden layer of every MLP, as a multiple of hidden."""
    gating: Literal["residual", "gtrxl"] = "residual"
    """How a block joins the stream: added (residual), or by GTrXL's gate, which starts near identity."""

    def __post_init__(self) -> None:
        self.check("hidden", "layers", "heads", "expansion")
        self.check("window", least=2)
        self.check_heads(self.hidden, self.heads)

    def reaching(self, steps: int) -> WindowConfig:
        """With a window that holds a step, the step ``steps`` before it, and one more."""
        return replace(self, window=max(self.window, steps + 2))
