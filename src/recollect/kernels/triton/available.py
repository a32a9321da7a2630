"""Kernels in Triton: a whole unroll, forwards or backwards, in one launch. Here: whether they can run.

They run on a GPU, and in Triton's interpreter on the CPU, which is for tests. Whoever cannot use them
has the other kernels of this folder, which stay the reference.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

CAPABILITY = 8
"""The first compute capability with TF32 and bf16."""
_is_forced = False
"""Set by tests: also on the CPU, if Triton interprets."""


_HAS_TRITON = find_spec("triton") is not None


def is_available() -> bool:
    """Whether there is a Triton to be imported."""
    return _HAS_TRITON


def suits(x: Tensor) -> bool:
    """Whether x is where these kernels run, and of a type that they take."""
    if x.dtype != torch.float32 or not is_available():
        return False
    if x.is_cuda:
        return torch.cuda.get_device_capability(x.device)[0] >= CAPABILITY
    return _is_forced and os.environ.get("TRITON_INTERPRET") == "1"


def why_not(device: torch.device) -> str | None:
    """What a GPU lacks for these kernels, for the user; None if nothing."""
    if device.type != "cuda":
        return None
    if not is_available():
        lacks = "there is no Triton here (pip install triton)"
    elif (found := torch.cuda.get_device_capability(device))[0] < CAPABILITY:
        lacks = f"this GPU has compute capability {found[0]}.{found[1]}, and they need {CAPABILITY}.0"
    else:
        return None
    return (
        f"cores run without their Triton kernels, LSTM and GRU on cuDNN and without CUDA graphs: {lacks}. "
        "That is slower, with the same results but for rounding"
    )
