"""Host side of the Triton kernels: tile sizes, launches, and the rounding of factors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from recollect.base import triton_support
from recollect.base.devices import Products

ANY = 1 << 31
"""More rows than any batch has."""
MAX_HIDDEN = 1024
"""The largest number of units that was tested."""
FACTOR: dict[Products, torch.dtype] = {"fp32": torch.float32, "tf32": torch.float16, "bf16": torch.bfloat16}
"""Factors of products with weights on the chip: float16 has the mantissa bits of TF32."""
OUTSIDE: dict[Products, torch.dtype] = {**FACTOR, "tf32": torch.float32}
"""Tensors between kernels and products outside of them, and weights that are streamed."""

Way = Literal["forward", "backward"]
Kind = Literal["resident", "spread", "streamed"]
"""Where the recurrent weights are stored: on every processor, split over a few of them, or in memory."""
RESIDENT: dict[Products, int] = {"fp32": 64, "tf32": 128, "bf16": 128}
"""The most units whose recurrent weights fit on one processor; in fp32 every weight has two parts."""
SPREAD: dict[Products, tuple[int, ...]] = {"fp32": (), "tf32": (256,), "bf16": (256,)}
"""The ``padded`` numbers of units that are spread over several processors."""
MEMBER_UNITS = 64
"""Hidden units of one program, where the weights are spread."""
COUNTER_STRIDE = 64
"""Numbers between the barrier counters of two groups: each counter has its own cache lines."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """Tile sizes of one launch; they change no result, except for the order of sums."""

    rows: int
    """Rows of a program."""
    warps: int
    """Warps of a program."""
    prefetch: bool = False
    """Whether the kernel loads the inputs of a step one step early, into registers, with one stage; otherwise
    the compiler pipelines loads, with ``stages``. For resident weights."""
    units: int = 64
    """Hidden units per tile. For streamed weights."""
    depth: int = 64
    """Depth of a product per tile. For streamed weights."""
    stages: int = 3
    """Pipeline stages for a step's inputs or for streamed weights."""
    together: int = 1
    """Programs per processor, enforced by a limit on registers."""

    @property
    def options(self) -> dict[str, int]:
        """Options of Triton's compiler."""
        limit = {} if self.together == 1 else {"maxnreg": (1 << 16) // (32 * self.warps * self.together)}
        return {"num_warps": self.warps, **limit}


def padded(size: int) -> int:
    """The smallest power of two >= ``size``, at least 16, as tensor cores need."""
    return max(16, 1 << (size - 1).bit_length())


Table = Mapping[tuple[str, Products], tuple[tuple[int, Blocks], ...]]
"""By kernel ("forward resident", "backward streamed", ...) and rounding: pairs of the most rows, and the tile
sizes up to there."""
SMALL = Blocks(16, 4, units=32, depth=32, stages=2)
"""Streamed weights on a GPU with less shared memory than an H100."""


def suits(x: Tensor, H: int) -> bool:
    """Whether the recurrent kernels take x [..., D] and H units."""
    return triton_support.suits(x) and H <= MAX_HIDDEN and x.numel() > 0


CHOSEN: dict[Way, Blocks] = {}
"""Blocks that a test or a benchmark tries in place of those in the tables."""


def choose(table: Table, B: int, H: int, products: Products, way: Way, has_room: bool) -> tuple[Kind, Blocks]:
    """Where the weights of H units are stored, and the blocks for B rows; ``has_room`` as below."""
    kind: Kind = "streamed"
    if has_room and padded(H) <= RESIDENT[products]:
        kind = "resident"
    elif has_room and padded(H) in SPREAD[products]:
        kind = "spread"
    rows = table[f"{way} {kind}", products] if has_room else ((ANY, SMALL),)
    return kind, CHOSEN.get(way) or next(blocks for most, blocks in rows if most >= B)


def launch(kernel: Any, grid: tuple[int, ...], *given: Any, **flags: Any) -> None:
    """Launch a kernel on the device of its first argument."""
    with torch.cuda.device_of(given[0]):
        kernel[grid](*given, **flags)


class Groups(NamedTuple):
    """The grid of a spread launch: groups of programs that share rows and exchange data."""

    members: int
    """Programs of a group, each with ``MEMBER_UNITS`` of the units."""
    number: int
    """Number of groups; they take blocks of rows in turn."""
    slots: int
    """Exchange buffers, a power of two: barrier k uses buffer k % slots."""
    launches: int
    """How often the kernel is launched."""


def groups(x: Tensor, T: int, B: int, H: int, rows: int) -> Groups:
    """The grid for T steps of B rows in blocks of ``rows``; all programs fit on the device of ``x`` at once.

    Triton's interpreter runs one program after the other, so a program does not see the data of later ones.
    There no buffer is reused, and every launch completes one more step. (The maxima that kernels measure for
    ``scaled_float16`` are then those over all launches.)
    """
    members, blocks = padded(H) // MEMBER_UNITS, -(-B // rows)
    if not x.is_cuda:
        number = min(blocks, 2)
        return Groups(members, number, 1 << (-(-blocks // number) * T).bit_length(), T + 1)
    return Groups(members, min(blocks, max(1, _processors(x.device) // members)), 2, 1)


class Plan:
    """One launch of a recurrent kernel, ``way`` over T steps of B rows with H units, on the device of x.

    ``sums`` is the number of programs or groups, each of which sums gradients over its rows.
    """

    def __init__(
        self, table: Table, x: Tensor, shape: tuple[int, int, int], products: Products, way: Way
    ) -> None:
        """``shape`` is (T, B, H)."""
        T, B, H = shape
        self.kind, blocks = choose(table, B, H, products, way, has_room(x))
        self.flags = {"T": T, "B": B, "H": H, "BB": blocks.rows, **blocks.options, **rounding(x, products)}
        self.groups, self.sums = None, -(-B // blocks.rows)
        HP = padded(H)
        if self.kind == "streamed":
            self.flags |= {"BN": min(blocks.units, HP), "BK": min(blocks.depth, HP), "STAGES": blocks.stages}
        elif self.kind == "resident":
            self.flags |= {"HP": HP, "AHEAD": blocks.prefetch, "STAGES": blocks.stages}
        else:
            self.groups = groups(x, T, B, H, blocks.rows)
            members, self.sums, slots, _ = self.groups
            self.flags |= {"HP": HP, "UNITS": MEMBER_UNITS, "slots": slots, "SYNC": x.is_cuda}
            if x.is_cuda:
                self.flags |= {"launch_cooperative_grid": True, "num_stages": 1}
            is_forward = way == "forward"
            self.exchange = (slots, self.sums, 1 if is_forward else members, blocks.rows, HP)
            self.exchange_dtype = FACTOR[products] if is_forward else torch.float32

    def launch(self, kernel: Any, *given: Any, **flags: Any) -> None:
        """Launch ``kernel``. A spread one also takes a buffer for ``exchange``, and counters of arrivals."""
        if self.groups is None:
            launch(kernel, (self.sums,), *given, **flags, **self.flags)
            return
        grid, device = (self.groups.members * self.sums,), given[0].device
        make = torch.empty if self.flags["SYNC"] else torch.zeros
        memory = make(self.exchange, dtype=self.exchange_dtype, device=device)
        for _ in range(self.groups.launches):
            counters = torch.zeros(self.sums, COUNTER_STRIDE, dtype=torch.int32, device=device)
            launch(kernel, grid, *given, memory, counters, **flags, **self.flags)


@lru_cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def has_room(x: Tensor) -> bool:
    """Whether the GPU has the shared memory and the instructions for resident weights.

    Elsewhere Triton would keep such weights in registers, where they do not fit.
    """
    return not x.is_cuda or torch.cuda.get_device_capability(x.device) == (9, 0)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [n, k] @ b [k, m] in float32, for factors of any dtype."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def nearest(w: Tensor, products: Products) -> Tensor:
    """Contiguous weights as a factor: for TF32 rounded to nearest, because tensor cores truncate.

    NaN is kept: the NaN of GPUs, all ones, would round to 0.
    """
    if products != "tf32":
        return w
    rounded = ((w.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(w.isfinite(), rounded, w)


def rounding(x: Tensor, products: Products) -> dict[str, str]:
    """Constants for kernels on the device of ``x``: the precision of ``tl.dot``, and the mode of ``math``.

    ``PRECISION`` has no effect on float16 and bf16 factors. Triton's interpreter has no GPU instructions.
    """
    is_nvidia = x.is_cuda and torch.version.cuda is not None
    return {
        "PRECISION": "tf32x3" if products == "fp32" else "tf32",
        "MATH": ("coarse" if products == "bf16" else "exact") if is_nvidia else "plain",
    }
