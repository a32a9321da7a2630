"""Linear layers in float32 at any precision setting: the first layer over numbers, action head, critic.

They have few inputs or few outputs, where tensor cores gain nothing, and their rounding matters: small
differences of observations encode velocities, and the learner must reproduce recorded log-probs. cuBLAS
chooses its algorithm, and with it the rounding, by the number of rows, which differs between acting and
learning. Here the bits of a result do not depend on the number of rows or outputs.

Triton kernels (``kernels.triton.exact_linear``) compute layers with up to ``FEW`` inputs or outputs; torch,
in float32, larger ones and where Triton cannot run; plain torch on a CPU, under a compiler, and for other
dtypes.

Nothing is read on the host, so a CUDA graph can capture all of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.base import devices, triton_support
from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node
from recollect.kernels.triton.tiling import launch, padded, rounding

FEW = 16
"""The most inputs or outputs of a thin layer."""
MOST = 1024
"""The most outputs or inputs on its other side."""
WRITTEN_OUT = 4096
"""The most weights of a layer with few outputs: the kernel unrolls over them, which takes long to compile."""
CHUNK = 32
"""Inputs per load of a wide layer: 4 per thread, so 8 threads share a row."""
UNITS = 64
"""The most outputs of a program."""
WARPS = 4
"""Warps of a program."""
STAGES = 4
"""Pipeline stages of a backward pass."""
SUMS = 12
"""About as many sums per number of a block fit into the registers of a backward program."""
PROGRAMS = {"forward": 2112, "backward": 528}
"""The most programs of a launch: 16 and 4 for each of an H100's 132 processors."""

_PLAIN: AbstractContextManager = nullcontext()


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernels take x [..., K] and weight [M, K]."""
    if not triton_support.suits(x) or torch.compiler.is_compiling():
        return False
    M, K = weight.shape
    is_small = 0 < min(K, M) <= FEW and max(K, M) <= MOST and (K <= FEW or M * K <= WRITTEN_OUT)
    is_match = x.shape[-1] == K and x.dtype == weight.dtype and x.device == weight.device
    return is_small and is_match


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: Literal["tanh"] | None = None
) -> Tensor:
    """x W^T + b, or its tanh.

    Args:
        x: [..., K].
        weight: [M, K].
        bias: [M].
        activation: applied to the result in the same pass.

    Returns:
        [..., M], in float32 also under autocast if ``suits``; otherwise in autocast's dtype.
    """
    if not suits(x, weight):
        with _unrounded(x):
            y = F.linear(x, weight, bias)
        return y if activation is None else torch.tanh(y)
    is_fused = activation is not None and weight.shape[1] <= FEW
    (y,) = node(_thin, _thin_backward, x, weight, bias, is_tanh=is_fused)
    return y if activation is None or is_fused else torch.tanh(y)


def through(layer: nn.Module, x: Tensor) -> Tensor:
    """layer(x), by the kernels above if the layer is a plain ``nn.Linear``."""
    if _is_bare(layer, x):
        return linear(x, layer.weight, layer.bias)
    with _unrounded(x):
        return layer(x)


def together(x: Tensor, *layers: nn.Module) -> tuple[Tensor, ...] | None:
    """The outputs of several layers of x [..., K] in one pass, with the bits of separate calls.

    None if one of them is not a plain linear layer, or if they are not thin together.
    """
    bare = [layer for layer in layers if _is_bare(layer, x)]
    sizes = [layer.out_features for layer in bare]
    if len(bare) < len(layers) or sum(sizes) > FEW:
        return None
    weight, bias = torch.cat([layer.weight for layer in bare]), torch.cat([layer.bias for layer in bare])
    return linear(x, weight, bias).split(sizes, -1)


def _is_bare(layer: nn.Module, x: Tensor) -> TypeGuard[nn.Linear]:
    """Whether layer(x) is a plain linear layer, without hooks, that the kernels take."""
    if not triton_support.suits(x) or type(layer) is not nn.Linear or layer.bias is None:
        return False
    if not suits(x, layer.weight):
        return False
    return not (layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks)


def _unrounded(x: Tensor) -> AbstractContextManager:
    """A context with float32 products for x, except under autocast or a compiler."""
    if not x.is_cuda or torch.compiler.is_compiling() or torch.is_autocast_enabled("cuda"):
        return _PLAIN
    return devices.rounded("fp32")


def _thin(
    x: Tensor, weight: Tensor, bias: Tensor | None, is_tanh: bool, keep: bool
) -> tuple[tuple[Tensor], Kept]:
    """y [..., M], and the inputs of the backward pass."""
    x = _plain(x)
    y = _forward(x, weight, bias, is_tanh)
    return (y,), (x, weight, y if is_tanh else None)


def _thin_backward(grads: Grads, saved: Saved, need: Need, is_tanh: bool) -> Grads:
    """The gradients of x, weight and bias."""
    (g,), (x, weight, y), (needs_x, needs_weight, needs_bias) = grads, saved, need
    assert g is not None
    M, K = weight.shape
    g, sums, dx = _plain(g), None, None
    if K <= FEW:
        g, sums = _shallow_backward(g, y, x, needs_x)
    elif needs_weight or needs_bias:
        dx, sums = _narrow_backward(g, x, weight, needs_x)
    if needs_x and dx is None:
        dx = _forward(g, weight.t(), None, False)
    if sums is None:
        return (dx,)
    total = sums.sum(0)  # [programs, M K + M] -> [M K + M]
    return dx, total[: M * K].view(M, K), total[M * K :] if needs_bias else None


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, is_tanh: bool) -> Tensor:
    """y [..., M] of x [..., K]; ``is_tanh`` only with few inputs."""
    (M, K), N = weight.shape, x.numel() // weight.shape[1]
    y = torch.empty(*x.shape[:-1], M, dtype=x.dtype, device=x.device)
    given = (x, _plain(weight), y if bias is None else _plain(bias), y, N)
    flags = {"K": K, "M": M, "BIAS": bias is not None}
    if K <= FEW:
        units, across = _units(M)
        rows = 4 * WARPS * 128 // units  # 16 numbers per thread
        flags |= {"TANH": is_tanh, "MATH": rounding(x, "fp32")["MATH"], "ROWS": rows, "UNITS": units}
        _launch("shallow", _programs("forward", N, rows, across), across, *given, **flags)
    else:
        rows = 4 * WARPS * min(4, _power(16 * CHUNK // K))  # up to 128 inputs: 4 rows per thread
        _launch("narrow", -(-N // rows), 1, *given, **flags, ROWS=rows, CHUNK=CHUNK)
    return y


def _narrow_backward(g: Tensor, x: Tensor, weight: Tensor, needs_x: bool) -> tuple[Tensor | None, Tensor]:
    """dx if needed, and the sums [programs, M K + M] of dW and db."""
    (M, K), N = weight.shape, x.numel() // weight.shape[1]
    dx = torch.empty_like(x) if needs_x else None
    chunks = -(-K // CHUNK)
    across = -(-chunks // max(1, SUMS // M))  # programs that share the inputs of a row
    chunks = -(-chunks // across)
    rows = 4 * WARPS * _power(SUMS // (chunks * M))
    sums = x.new_empty(_programs("backward", N, rows, across), M * K + M)
    flags = {"K": K, "M": M, "ROWS": rows, "CHUNK": CHUNK, "CHUNKS": chunks, "STAGES": STAGES, "DX": needs_x}
    given = (g, x, _plain(weight), g if dx is None else dx, sums, N)
    _launch("narrow_backward", len(sums), across, *given, **flags)
    return dx, sums


def _shallow_backward(g: Tensor, y: Tensor | None, x: Tensor, keep: bool) -> tuple[Tensor, Tensor]:
    """The gradient before the tanh with output y, if ``keep``, and the sums of dW and db."""
    (M, K), N = (g.shape[-1], x.shape[-1]), x.numel() // x.shape[-1]
    dz = torch.empty_like(g) if keep and y is not None else g
    units, across = _units(M)
    rows = WARPS * 128 // units * _power(SUMS // (K + 1))
    sums = x.new_empty(_programs("backward", N, rows, across), M * K + M)
    flags = {"K": K, "M": M, "ROWS": rows, "UNITS": units, "STAGES": STAGES, "KEEP": keep}
    given = (g, g if y is None else y, x, dz, sums, N)
    _launch("shallow_backward", len(sums), across, *given, **flags, TANH=y is not None)
    return dz, sums


def _launch(name: str, programs: int, across: int, *given: Any, **flags: Any) -> None:
    from recollect.kernels.triton import exact_linear as kernels

    if programs:
        launch(getattr(kernels, name), (programs, across), *given, **flags, num_warps=WARPS)


def _programs(way: str, N: int, rows: int, across: int) -> int:
    """Programs along the rows, for N rows in blocks of ``rows`` and ``across`` programs per block."""
    return min(-(-N // rows), max(1, PROGRAMS[way] // across))


def _units(M: int) -> tuple[int, int]:
    """Outputs of a program, a power of two >= 16, and the number of programs for M outputs."""
    units = min(UNITS, padded(M))
    return units, -(-M // units)


def _power(size: int) -> int:
    """The largest power of two up to ``size``, at least 1."""
    return 1 << max(0, size.bit_length() - 1)


def _plain(t: Tensor) -> Tensor:
    """t, contiguous and aligned to 16 bytes, so that one compiled kernel serves all calls."""
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()
