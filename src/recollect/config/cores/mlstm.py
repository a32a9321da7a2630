"""The settings of the mLSTM core."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from recollect.config.cores.base import CoreConfig
from recollect.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MLSTMConfig(CoreConfig):
    """Settings of the mLSTM core."""

    code = "recollect.cores.mlstm:MLSTM"

    hidden: int = 128
    """Size of the queries, keys and values of all heads together, and of the output."""
    heads: int = 4
    """Number of heads; each has a memory of (hidden / heads) squared numbers, and its own gates."""
    conv: int = 4
    """Steps of the convolution before queries, keys and output gates, the current one included;
    1: no convolution."""
    forget_min: float = 1.0
    """Initial bias of the first head's forget gate: it forgets over about e^forget_min steps."""
    forget_max: float = 6.0
    """Initial bias of the last head's forget gate; those between are evenly spread."""

    def __post_init__(self) -> None:
        self.check("hidden", "heads", "conv")
        self.check_heads(self.hidden, self.heads)
        if self.forget_min > self.forget_max:
            raise ConfigError(
                f"core.forget_min = {self.forget_min!r} and core.forget_max = {self.forget_max!r}: they need "
                "forget_min <= forget_max, such as 1.0 and 6.0"
            )

    def reaching(self, steps: int) -> MLSTMConfig:
        """With a last head that starts to forget over at least ``steps`` steps."""
        return replace(self, forget_max=max(self.forget_max, math.log(max(2, steps))))
