"""The precision of a policy, the same for acting and learning.

=================================================  ========  ===============  =========================
part                                               ``fp32``  ``tf32`` (GPU)   ``bf16``
=================================================  ========  ===============  =========================
encoder's first layer over numbers                 float32   float32          float32 on a GPU, if it is
                                                                              thin; else like the rest
the rest of an encoder                             float32   TF32 products    bfloat16 by autocast
core                                               float32   TF32 products    float32; on a GPU products
                                                                              in TF32, those of LSTM and
                                                                              GRU in bfloat16
state of the core                                  float32   float32          float32
action head, critic                                float32   float32          float32
log-probs, ratios, entropy, returns, losses        float32   float32          float32
weights, gradients, optimiser, normalisers         float32   float32          float32
=================================================  ========  ===============  =========================

(The sums of a normaliser are float64.) TF32 rounds the factors of a product to 11 bits, bfloat16 to 8; both
sum in float32. On a CPU ``tf32`` is ``fp32``. ``auto`` is ``tf32`` on a GPU and ``fp32`` elsewhere.

The first and last layers are exact (``kernels.exact_linear``): the last digits of an observation may encode a
velocity, and the learner must reproduce recorded log-probs and values. Thin layers, with up to 16 inputs or
outputs, give the same bits for any number of rows. If ``torch.compile`` compiles the first layer and the
critic, they are rounded like the rest.

With images or tokens, most work is in the encoder. A core carries its rounding errors over hundreds of steps,
so its state and everything except products stays exact.

The rounding of an encoder depends on the number of rows in a product, so the learner may not reproduce the
actor's records to 1e-5: see ``recollect.base.tolerances``.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import cast

import torch
from torch import Tensor

from recollect.base import devices
from recollect.errors import ConfigError

_PLAIN: AbstractContextManager = nullcontext()


def computing(precision: str, device: torch.device) -> AbstractContextManager:
    """The context of all forward and backward passes; ``precision`` is not "auto"."""
    if device.type != "cuda":
        return _PLAIN
    return devices.rounded(cast(devices.Products, precision))


def encoding(precision: str, device: torch.device) -> AbstractContextManager:
    """The context of an encoder."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else _PLAIN


def exact(x: Tensor) -> AbstractContextManager:
    """The context of cores and heads: without autocast, even if the caller enabled it."""
    if torch.is_autocast_enabled(x.device.type):
        return torch.autocast(x.device.type, enabled=False)
    return _PLAIN


def widen(x: Tensor) -> Tensor:
    """Half precision as float32, anything else as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def check(precision: str, device: torch.device) -> None:
    """Raise for bf16 on a device that computes it wrongly, by slow emulation, or not at all."""
    if precision != "bf16":
        return
    if device.type == "cuda":
        if not torch.cuda.is_bf16_supported(including_emulation=False):
            raise ConfigError(
                "precision = 'bf16': this GPU has no bf16: it needs one of compute capability 8.0 or more, "
                "or use precision='fp32'"
            )
    elif probe() != "ok":
        raise ConfigError(
            f"precision = 'bf16': it is not safe on this CPU ({probe()}). Set ONEDNN_MAX_CPU_ISA=AVX512_CORE "
            "before Python starts, which avoids the faulty instructions, or use precision='fp32'"
        )


# The probe ----------------------------------------------------------------------------------------------

_PROBE = """
import torch
torch.manual_seed(0)
worst = 0.0

def compare(exact, rounded):
    global worst
    worst = max(worst, float((exact - rounded.float()).abs().max() / exact.abs().max()))

for layer, x in (
    (torch.nn.Linear(130, 257), torch.randn(33, 130)),
    (torch.nn.Conv2d(3, 16, 3), torch.randn(2, 3, 17, 19)),
    (torch.nn.LSTM(16, 64), torch.randn(8, 5, 16)),
):
    first = (lambda y: y[0]) if isinstance(layer, torch.nn.LSTM) else (lambda y: y)
    exact = first(layer(x))
    exact.square().sum().backward()
    wanted = [p.grad.clone() for p in layer.parameters()]
    layer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        rounded = first(layer(x))
    rounded.float().square().sum().backward()
    compare(exact, rounded)
    for want, p in zip(wanted, layer.parameters()):
        compare(want, p.grad)
    with torch.no_grad():
        compare(exact, first(layer.bfloat16()(x.bfloat16())))
print("ok" if worst < 0.05 else f"results are off by {worst:.0%}")
"""


@lru_cache
def probe() -> str:
    """Whether bf16 works on this CPU: "ok", or a description of the fault. Cached; it takes seconds.

    Runs in a child process, forwards and backwards: a virtual machine may report instructions that the CPU
    lacks, and they end the process that uses them.
    """
    try:
        run = [sys.executable, "-W", "ignore", "-c", _PROBE]
        ended = subprocess.run(run, capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the test could not run: {error}"
    if ended.returncode < 0:
        return f"it ends the process (signal {-ended.returncode})"
    if ended.returncode:
        return f"it fails: {(ended.stderr.strip().splitlines() or ['?'])[-1]}"
    return ended.stdout.strip()
