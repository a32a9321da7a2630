"""The configs of all cores: every field does something, and says what."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from recollect.config.fields import fields_of
from recollect.cores import (
    CORES,
    FFMConfig,
    FramesConfig,
    GRUConfig,
    LRUConfig,
    LSTMConfig,
    MambaConfig,
    MinGRUConfig,
    MinLSTMConfig,
    MLSTMConfig,
    PMMConfig,
    RTUConfig,
    SLSTMConfig,
    StackConfig,
    WindowConfig,
    make_core,
)

SMALL: dict[str, Any] = {
    "ffm": FFMConfig(hidden=8, trace=3, context=2),
    "frames": FramesConfig(frames=3),
    "gru": GRUConfig(hidden=8),
    "lru": LRUConfig(hidden=8, units=4),
    "lstm": LSTMConfig(hidden=8),
    "mamba": MambaConfig(hidden=8, d_state=3),
    "mingru": MinGRUConfig(hidden=8),
    "minlstm": MinLSTMConfig(hidden=8),
    "mlstm": MLSTMConfig(hidden=8, heads=2),
    "none": CORES["none"](),
    "pmm": PMMConfig(hidden=8, slots=3, width=2),
    "rtu": RTUConfig(hidden=8, units=4),
    "slstm": SLSTMConfig(hidden=8, heads=2),
    "stack": StackConfig(hidden=8),
    "window": WindowConfig(hidden=8, window=4, heads=2),
}
"""What the fields are changed from."""

OTHER: dict[str, Any] = {
    "a_min": 1.0,
    "chrono": 50,
    "context": 3,
    "controller": "gru",
    "conv": 3,
    "convolution": 3,
    "cores": ("gru", "lstm"),
    "d_state": 4,
    "dt_max": 0.5,
    "dt_min": 0.1,
    "dt_rank": 3,
    "erase_bias": -2.0,
    "expand": 2,
    "expansion": 3,
    "forget_bias": 0.0,
    "forget_max": 3.0,
    "forget_min": 2.0,
    "frames": 4,
    "gating": "gtrxl",
    "heads": 4,
    "hidden": 16,
    "layer_norm": lambda before: not before,
    "layers": 2,
    "learned_initial_state": True,
    "max_phase": 1.0,
    "norm": False,
    "r_max": 0.9,
    "r_min": 0.1,
    "read_heads": 2,
    "residual": False,
    "slots": 4,
    "trace": 4,
    "units": 5,
    "width": 3,
    "window": 5,
}
"""Another value for every field that a core may have, or a function of the one that it has."""

FIELDS = [(core, field.name) for core, config in SMALL.items() for field in dataclasses.fields(config)]


def said(config: Any) -> torch.Tensor:
    """y [12, 2, hidden] of a core with seeded weights; a learned initial state is not zero."""
    torch.manual_seed(0)
    core = make_core(config, 3)
    noise = torch.Generator().manual_seed(1)
    for name, parameter in core.named_parameters():
        if "initial" in name:
            torch.nn.init.normal_(parameter, generator=noise)
    x = torch.randn(12, 2, 3, generator=noise)
    first = torch.zeros(12, 2, dtype=torch.bool)
    first[0] = True
    return core.unroll(x, core.initial_state(2), first)[0].detach()


def test_every_core_is_here():
    assert {name: type(config) for name, config in SMALL.items()} == CORES


@pytest.mark.parametrize(("core", "field"), FIELDS, ids=[f"{core}.{field}" for core, field in FIELDS])
def test_every_field_does_something(core, field):
    """S000-26: with another value in one field, the core says something else; with the same, the same."""
    config = SMALL[core]
    assert field in OTHER, f"{core}.{field} is new: give it another value"
    before, value = getattr(config, field), OTHER[field]
    value = value(before) if callable(value) else value
    assert value != before
    plain, changed = said(config), said(dataclasses.replace(config, **{field: value}))
    assert torch.equal(plain, said(config))
    assert plain.shape != changed.shape or not torch.allclose(plain, changed, atol=1e-5)


def test_no_value_for_a_field_that_is_gone():
    """S000-26: the values are those of fields that there are."""
    assert OTHER.keys() == {field for _, field in FIELDS}


def test_every_field_is_documented():
    """S000-26: a docstring under each field."""
    described = {
        (core, field.name) for core, config in SMALL.items() for field in fields_of(config) if field.doc
    }
    assert described == set(FIELDS)
