"""The settings of the LSTM core."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recollect.config.cores.base import CoreConfig


@dataclass(frozen=True, slots=True)
class LSTMConfig(CoreConfig):
    """Settings of the LSTM core."""

    code = "recollect.cores.lstm:LSTM"

    hidden: int = 128
    """Size of h and c in every layer, and of the output."""
    layers: int = 1
    """Number of stacked layers; each takes the h of the one below."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates; with 1 the core remembers over a few steps from the start."""
    chrono: int | None = None
    """Longest time to remember, in steps, for chrono initialisation, which replaces forget_bias."""
    layer_norm: bool = False
    """Whether the input of every layer and the output are normalised; the recurrence is unchanged."""

    def __post_init__(self) -> None:
        self.check("hidden", "layers")
        self.check("chrono", least=2)

    def reaching(self, steps: int) -> LSTMConfig:
        """With gates that start open for ``steps`` steps."""
        return replace(self, chrono=max(2, steps))
