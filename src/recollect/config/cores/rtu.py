"""The settings of the RTU core, which are those of the LRU."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.cores.lru import LRUConfig


@dataclass(frozen=True, slots=True)
class RTUConfig(LRUConfig):
    """Settings of the RTU core."""

    code = "recollect.cores.lru:RTU"
