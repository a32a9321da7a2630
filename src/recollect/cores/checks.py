"""What the configs of the recurrent cores have in common: their checks and their initial weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recollect.errors import ConfigError


def check_size(owner: object, **sizes: int) -> None:
    """Raise unless every size is a whole number of at least 1."""
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ConfigError(
                f"{type(owner).__name__}: {name} is {size!r}; it needs a whole number of at least 1"
            )


def check_chrono(owner: object, chrono: int | None, *, optional: bool = True) -> None:
    """Raise unless ``chrono`` is a number of steps of at least 2, or None where that is ``optional``."""
    if chrono is None and optional:
        return
    if isinstance(chrono, bool) or not isinstance(chrono, int) or chrono < 2:
        more = ", or None for the plain initialisation" if optional else ""
        raise ConfigError(
            f"{type(owner).__name__}: chrono is {chrono!r}; it is the longest time to remember, in "
            f"steps, so a whole number of at least 2{more}"
        )


def check_finite(owner: object, **numbers: float) -> None:
    """Raise unless every number is one, and finite."""
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ConfigError(f"{type(owner).__name__}: {name} is {number!r}; it needs a finite number")


@torch.no_grad()
def init_gates(rnn: nn.RNNBase) -> None:
    """Orthogonal recurrent and Xavier input matrices, gate by gate, and zero biases."""
    H = rnn.hidden_size
    for name, parameter in rnn.named_parameters():
        if name.startswith("bias"):
            nn.init.zeros_(parameter)
            continue
        init = nn.init.orthogonal_ if name.startswith("weight_hh") else nn.init.xavier_uniform_
        for gate in parameter.split(H):
            init(gate)


def chrono_bias(hidden: int, longest: int) -> Tensor:
    """[hidden] gate biases log U[1, longest - 1]: a unit with bias b forgets over about e^b steps.

    Tallec and Ollivier, "Can recurrent neural networks warp time?", ICLR 2018.
    """
    return torch.empty(hidden).uniform_(1.0, float(longest - 1)).log_()
