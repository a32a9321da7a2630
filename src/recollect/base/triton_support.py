"""Whether the Triton kernels can run.

They need a GPU, or Triton's interpreter on the CPU, for tests. The kernels in ``kernels.cpu`` are the
fallback and the reference.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch
from torch import Tensor

CAPABILITY = 8
"""The first compute capability with TF32 and bf16."""
_is_forced = False
"""Set by tests: use the kernels also on the CPU, in Triton's interpreter."""

_HAS_TRITON = find_spec("triton") is not None


def suits(x: Tensor) -> bool:
    """Whether the kernels take the device and dtype of x."""
    if not (x.is_cuda or _is_forced) or x.dtype != torch.float32 or not _HAS_TRITON:
        return False
    if x.is_cuda:
        return torch.cuda.get_device_capability(x.device)[0] >= CAPABILITY
    return os.environ.get("TRITON_INTERPRET") == "1"


def why_not(device: torch.device) -> str | None:
    """Why a GPU cannot run these kernels, as a message for the user; None if it can."""
    if device.type != "cuda":
        return None
    if not _HAS_TRITON:
        lacks = "Triton is not installed (pip install triton)"
    elif (found := torch.cuda.get_device_capability(device))[0] < CAPABILITY:
        lacks = f"this GPU has compute capability {found[0]}.{found[1]}, and they need {CAPABILITY}.0"
    else:
        return None
    return (
        f"cores run without Triton kernels and CUDA graphs, LSTM and GRU on cuDNN: {lacks}. "
        "Training is slower; results differ only by rounding"
    )
