"""The cores that every proof about cores runs over: each at a small size, and its options one by one."""

from __future__ import annotations

from typing import Any

from recollect.cores import GRUConfig, LSTMConfig, NoneConfig, StackConfig

CASES: dict[str, Any] = {
    "lstm": LSTMConfig(hidden=5),
    "lstm-2": LSTMConfig(hidden=4, layers=2),
    "lstm-learned": LSTMConfig(hidden=4, layers=2, learned_initial_state=True),
    "gru": GRUConfig(hidden=5),
    "gru-2": GRUConfig(hidden=4, layers=2),
    "gru-learned": GRUConfig(hidden=4, layers=2, learned_initial_state=True),
    "none": NoneConfig(),
    "stack": StackConfig(cores=("gru", "lstm"), hidden=4),
    "stack-plain": StackConfig(
        cores=(GRUConfig(hidden=5), "none"), hidden=4, residual=False, layer_norm=False
    ),
    "stack-learned": StackConfig(
        cores=({"name": "gru", "hidden": 5, "learned_initial_state": True}, "gru"), hidden=4
    ),
}
"""By the core's name, and after a dash what is special."""

SINGLE = 1e-6
SINGLE_TOLERANCE: dict[str, float] = {}
"""How far unroll and step may differ in float32, where that is more than ``SINGLE``; at most 1e-5."""
