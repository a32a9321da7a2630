"""The settings of the sLSTM core."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recollect.config.cores.base import CoreConfig


@dataclass(frozen=True, slots=True)
class SLSTMConfig(CoreConfig):
    """Settings of the sLSTM core."""

    code = "recollect.cores.slstm:SLSTM"

    hidden: int = 128
    """Size of h, c and m, and of the output."""
    heads: int = 4
    """Groups of units; the recurrent weights mix h only within a group."""
    norm: bool = True
    """Whether the output is normalised over each head, with a learned scale and shift."""
    forget_bias: float = 2.0
    """Initial bias of the forget gates; with 2 the core forgets over about eight steps."""
    chrono: int | None = None
    """Longest time to remember, in steps, for chrono initialisation, which replaces forget_bias."""

    def __post_init__(self) -> None:
        self.check("hidden", "heads")
        self.check("chrono", least=2)
        self.check_heads(self.hidden, self.heads)

    def reaching(self, steps: int) -> SLSTMConfig:
        """With gates that start open for ``steps`` steps."""
        return replace(self, chrono=max(2, steps))
