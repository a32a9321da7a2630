"""The cores that every proof about cores runs over: each at a small size, and its options one by one."""

from __future__ import annotations

from typing import Any

from recollect.cores import (
    FFMConfig,
    FramesConfig,
    GRUConfig,
    LRUConfig,
    LSTMConfig,
    MambaConfig,
    MinGRUConfig,
    MinLSTMConfig,
    MLSTMConfig,
    NoneConfig,
    PMMConfig,
    RTUConfig,
    SLSTMConfig,
    StackConfig,
    WindowConfig,
)

CASES: dict[str, Any] = {
    "lstm": LSTMConfig(hidden=5),
    "lstm-2": LSTMConfig(hidden=4, layers=2),
    "lstm-learned": LSTMConfig(hidden=4, layers=2, learned_initial_state=True),
    "lstm-norm": LSTMConfig(hidden=4, layers=2, layer_norm=True),
    "gru": GRUConfig(hidden=5),
    "gru-2": GRUConfig(hidden=4, layers=2),
    "gru-learned": GRUConfig(hidden=4, layers=2, learned_initial_state=True),
    "gru-norm": GRUConfig(hidden=4, layers=2, layer_norm=True),
    "mingru": MinGRUConfig(hidden=5),
    "mingru-learned": MinGRUConfig(hidden=4, learned_initial_state=True),
    "mingru-plain": MinGRUConfig(hidden=5, convolution=1),
    "minlstm": MinLSTMConfig(hidden=5),
    "minlstm-learned": MinLSTMConfig(hidden=4, learned_initial_state=True),
    "lru": LRUConfig(hidden=5, units=4),
    "rtu": RTUConfig(hidden=5, units=4),
    "ffm": FFMConfig(hidden=5, trace=3, context=2),
    "frames": FramesConfig(frames=13),
    "mamba": MambaConfig(hidden=4, d_state=3, expand=2),
    "mamba-small": MambaConfig(hidden=5, d_state=2, conv=2, dt_rank=2),
    "mlstm": MLSTMConfig(hidden=12, heads=2),
    "mlstm-plain": MLSTMConfig(hidden=7, heads=1, conv=1),
    "none": NoneConfig(),
    "pmm": PMMConfig(hidden=5, slots=3, width=2),
    "pmm-2": PMMConfig(hidden=4, slots=2, width=3, read_heads=2, controller=GRUConfig(hidden=3)),
    "pmm-alone": PMMConfig(hidden=4, slots=3, width=2, controller="none"),
    "pmm-learned": PMMConfig(
        hidden=4, slots=3, width=2, controller={"name": "gru", "hidden": 3, "learned_initial_state": True}
    ),
    "slstm": SLSTMConfig(hidden=6, heads=2),
    "slstm-plain": SLSTMConfig(hidden=5, heads=1, norm=False),
    "stack": StackConfig(cores=("gru", "lstm"), hidden=4),
    "stack-plain": StackConfig(
        cores=(GRUConfig(hidden=5), "none"), hidden=4, residual=False, layer_norm=False
    ),
    "stack-learned": StackConfig(
        cores=({"name": "gru", "hidden": 5, "learned_initial_state": True}, "gru"), hidden=4
    ),
    "window": WindowConfig(hidden=6, window=14, heads=2),
    "window-2": WindowConfig(hidden=4, window=13, layers=2, heads=1, expansion=1),
    "window-gtrxl": WindowConfig(hidden=4, window=12, heads=2, gating="gtrxl"),
}
"""By the core's name, and after a dash what is special."""

SINGLE = 1e-6
SINGLE_TOLERANCE: dict[str, float] = {
    # Divided by the deviation of four numbers, which may be small.
    "mamba": 1e-5,
    "mamba-small": 1e-5,
    "mlstm": 1e-5,
    "mlstm-plain": 1e-5,
    # A softmax over scores of any size: up to 3.2e-6 in 400 draws, and 1e-12 in float64.
    "pmm-learned": 5e-6,
    "window": 5e-6,
    "window-2": 5e-6,
}
"""How far unroll and step may differ in float32, where that is more than ``SINGLE``; at most 1e-5."""
