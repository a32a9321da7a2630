"""The settings of the minLSTM core, which are those of the minGRU."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.config.cores.mingru import MinGRUConfig


@dataclass(frozen=True, slots=True)
class MinLSTMConfig(MinGRUConfig):
    """Settings of the minLSTM core."""

    code = "recollect.cores.mingru:MinLSTM"
