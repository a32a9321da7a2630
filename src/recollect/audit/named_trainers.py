"""A trainer by the name of the function that makes it, ``module:factory``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from recollect.audit.trainer import Trainer, of_module
from recollect.base.import_code import import_attribute
from recollect.errors import ConfigError

WANTED = (
    "it must be a function without arguments that returns a recollect.audit.Trainer, or a torch.nn.Module "
    "with (x, state) -> (y, state)"
)


def named_trainer(name: str) -> Callable[[], Trainer]:
    """The factory ``module:factory``, whose results are ``Trainer``s."""
    return partial(_made, name, import_attribute(name, "policy", WANTED))


def _made(name: str, make: Callable[[], Any]) -> Trainer:
    made = make() if isinstance(make, type) or not isinstance(make, nn.Module) else make
    if isinstance(made, Trainer):
        return made
    if isinstance(made, nn.RNNBase):
        return _of_rnn(made)
    shape, start = getattr(made, "obs_shape", None), getattr(made, "initial_state", None)
    if isinstance(made, nn.Module) and shape is not None and callable(start):
        return of_module(made, obs_shape=tuple(shape), initial_state=start)
    what = f"a {type(made).__name__}"
    if isinstance(made, nn.Module):
        what += " without obs_shape (of one x) and initial_state(rows)"
    raise ConfigError(f"{name} made {what}: {WANTED}. With an env in front, it is the policy of a training")


def _of_rnn(module: nn.RNNBase) -> Trainer:
    """A module of torch's own, in either order of dimensions."""
    layers = module.num_layers * (2 if module.bidirectional else 1)

    def leaf(rows: int, size: int) -> torch.Tensor:
        return torch.zeros(layers, rows, size)

    def start(rows: int) -> Any:
        hidden = leaf(rows, module.proj_size or module.hidden_size)
        return (hidden, leaf(rows, module.hidden_size)) if module.mode == "LSTM" else hidden

    name, shape = type(module).__name__, (module.input_size,)
    timed = _TimeFirst(module) if module.batch_first else module
    return of_module(timed, obs_shape=shape, initial_state=start, state_dim=1, name=name)


class _TimeFirst(nn.Module):
    """A module with batch_first=True for inputs [T, B, ...]."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        """x [T, B, ...], state -> y [T, B, ...], state."""
        y, after = self.module(x.transpose(0, 1), state)
        return y.transpose(0, 1), after
