"""Seeds of the random streams of a run."""

from __future__ import annotations

import numpy as np


def stream(*key: int) -> int:
    """The seed of one random stream, distinct for every key, such as (seed, role, index)."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> np.uint64(2))
