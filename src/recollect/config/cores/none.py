"""The settings of the core without memory."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.cores.base import CoreConfig


@dataclass(frozen=True, slots=True)
class NoneConfig(CoreConfig):
    """The core without memory has no settings."""

    code = "recollect.cores.none:NoMemory"
