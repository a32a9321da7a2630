"""The settings of the GRU core."""

from __future__ import annotations

from dataclasses import dataclass, replace

from recollect.config.cores.base import CoreConfig


@dataclass(frozen=True, slots=True)
class GRUConfig(CoreConfig):
    """Settings of the GRU core."""

    code = "recollect.cores.gru:GRU"

    hidden: int = 128
    """Size of h in every layer, and of the output."""
    layers: int = 1
    """Number of stacked layers; each takes the h of the one below."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    chrono: int | None = None
    """Longest time to remember, in steps, for chrono initialisation of the update gates."""
    layer_norm: bool = False
    """Whether the input of every layer and the output are normalised; the recurrence is unchanged."""

    def __post_init__(self) -> None:
        self.check("hidden", "layers")
        self.check("chrono", least=2)

    def reaching(self, steps: int) -> GRUConfig:
        """With gates that start open for ``steps`` steps."""
        return replace(self, chrono=max(2, steps))
