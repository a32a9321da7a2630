"""Programs of one launch that wait for each other at every step: a meeting, counted in global memory.

A launch in which programs meet must be cooperative (``launch_cooperative_grid``): then all of them are on the
GPU at once, or the launch is refused. Otherwise those that wait could keep those that they wait for from
starting.

Triton's interpreter runs one program after the other, in which nobody can wait: there kernels leave meetings
out (``fused_blocks.groups``).
"""

# pyright: reportMissingImports=false

from __future__ import annotations

import triton
import triton.language as tl

from recollect.kernels.triton import tiling

_APART = tl.constexpr(tiling.APART)


@triton.jit
def arrive(counters, group):
    """Say that all that this program has stored so far may be read by those who ``wait`` for it."""
    tl.debug_barrier()  # all threads have stored
    tl.atomic_add(counters + group * _APART, 1, sem="release")


@triton.jit
def wait(counters, group, arrivals):
    """Go on once so many programs have arrived. What they stored is to be loaded with ``.cg``, from L2.

    Every thread looks for itself, so that none waits for another of its program: the count only grows.
    """
    while _arrived(counters + group * _APART) < arrivals:
        pass


@triton.jit
def _arrived(counter):
    at = counter.to(tl.uint64, bitcast=True)
    return tl.inline_asm_elementwise("ld.acquire.gpu.global.u32 $0, [$1];", "=r,l", [at], tl.int32, False, 1)
