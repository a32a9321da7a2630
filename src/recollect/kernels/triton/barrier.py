"""A barrier between programs of one launch, with a counter in global memory.

A launch with barriers must be cooperative (``launch_cooperative_grid``): then all programs are on the GPU at
once, or the launch fails. Otherwise waiting programs could keep others from starting.

Triton's interpreter runs one program after the other, so kernels skip barriers there (``tiling.groups``).
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton import tiling

_STRIDE = tl.constexpr(tiling.COUNTER_STRIDE)


@triton.jit
def arrive(counters, group):
    """Release this program's stores to the programs that ``wait`` on the counter."""
    tl.debug_barrier()  # all threads have stored
    tl.atomic_add(counters + group * _STRIDE, 1, sem="release")


@triton.jit
def wait(counters, group, arrivals):
    """Spin until ``arrivals`` programs have arrived. Load their stores with ``.cg``, from L2.

    Every thread polls the counter itself, without a barrier inside the program: the count only grows.
    """
    while _arrived(counters + group * _STRIDE) < arrivals:
        pass


@triton.jit
def _arrived(counter):
    at = counter.to(tl.uint64, bitcast=True)
    return tl.inline_asm_elementwise("ld.acquire.gpu.global.u32 $0, [$1];", "=r,l", [at], tl.int32, False, 1)
