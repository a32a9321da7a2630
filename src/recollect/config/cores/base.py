"""The base class of core configs, and the checks that several of them share."""

from __future__ import annotations

import math
from typing import Any

from recollect.base.registry import load
from recollect.config.fields import at_least, check_fields
from recollect.errors import ConfigError


class CoreConfig:
    """The settings of a core: a frozen dataclass whose fields all have defaults.

    A config may also have ``reaching(steps) -> config``: the same core, initialised so that it can remember
    over this many steps. The presets of tasks with a long memory use it.
    """

    __slots__ = ()
    section = "core."
    """Prefix of the settings in error messages."""
    code = ""
    """Module and class of the core, which takes the input size and the config."""

    def build(self, input_size: int) -> Any:
        """The core for inputs of ``input_size`` features."""
        return load(self.code)(input_size, self)

    def check(self, *sizes: str, least: int = 1) -> None:
        """Raise unless all fields have the type of their annotation and the ``sizes`` are large enough."""
        check_fields(self)
        at_least(self, least, *sizes)

    def check_heads(self, hidden: int, heads: int) -> None:
        """Raise unless ``hidden`` units divide evenly into ``heads``."""
        if hidden % heads:
            fitting = -(-hidden // heads) * heads
            divisors = ", ".join(str(n) for n in range(1, hidden + 1) if hidden % n == 0)
            raise ConfigError(
                f"core.hidden = {hidden} is no multiple of core.heads = {heads}: use another width, such as "
                f"{fitting}, or one of {divisors} heads"
            )

    def check_ring(self, r_min: float, r_max: float, max_phase: float) -> None:
        """Raise unless 0 <= r_min < r_max < 1 and 0 < max_phase <= 2 pi."""
        if not 0 <= r_min < r_max < 1:
            raise ConfigError(
                f"core.r_min = {r_min!r} and core.r_max = {r_max!r}: decay factors need "
                "0 <= r_min < r_max < 1; a unit remembers for about 1 / (1 - r) steps"
            )
        if not 0 < max_phase <= 2 * math.pi:
            raise ConfigError(
                f"core.max_phase = {max_phase!r}: it is an angle in radians, above 0 and at most 6.28"
            )


def reaching_ring(steps: int) -> tuple[float, float]:
    """r_min and r_max of units that remember for ``steps / 10`` to ``2 * steps`` steps."""
    steps = max(2, steps)
    return math.exp(-10 / steps), math.exp(-0.5 / steps)
