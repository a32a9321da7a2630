"""The settings of the core with an external memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from recollect.config.cores.base import CoreConfig
from recollect.config.cores.specs import as_config, part_config, reaching


@dataclass(frozen=True, slots=True)
class PMMConfig(CoreConfig):
    """Settings of the core with an external memory."""

    code = "recollect.cores.pmm:PMM"

    hidden: int = 128
    """Size of the output, and of a controller that is given by name."""
    slots: int = 16
    """Number of memory slots."""
    width: int = 32
    """Size of a slot."""
    read_heads: int = 1
    """Reads per step."""
    controller: Any = "lstm"
    """The core that reads and writes: a name, a config, a mapping such as {name: gru, hidden: 64}, or a
    factory. With none, the external memory is the only one."""
    erase_bias: float = 0.0
    """Initial bias of the erase gate; a negative one remembers for longer."""

    def __post_init__(self) -> None:
        self.check("hidden", "slots", "width", "read_heads")
        object.__setattr__(self, "controller", as_config(self.controller, self.hidden))

    def reaching(self, steps: int) -> PMMConfig:
        """With a controller that reaches that far, and writes that initially leave 1/e after ``steps``."""
        share = min(0.5, self.slots / max(steps, 1))  # an undecided write reaches every slot by 1 / slots
        bias = min(self.erase_bias, math.log(share / (1 - share)))
        return replace(self, controller=reaching(self.part(), steps), erase_bias=bias)

    def part(self) -> Any:
        """The controller's spec: a name becomes a config of this width."""
        return part_config(self.controller, self.hidden)
