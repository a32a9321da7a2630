"""What the recurrent kernels in Triton share on the host: blocks of work, and what is rounded to what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from recollect.base.devices import Products

ANY = 1 << 31
"""More rows than there ever are."""
MAX_HIDDEN = 1024
"""More units have not been tried."""

Kind = Literal["resident", "spread", "streamed"]
"""Where the recurrent weights are: on every processor that uses them, a part of them on each of a few, or in
memory."""
RESIDENT: dict[Products, int] = {"fp32": 64, "tf32": 128, "bf16": 128}
"""Up to how many units the recurrent weights fit on one processor; in fp32 every weight has two parts."""
SPREAD: dict[Products, tuple[int, ...]] = {"fp32": (), "tf32": (256,), "bf16": (256,)}
"""Which ``padded`` numbers of units are spread over several processors."""
MEMBER_UNITS = 64
"""Hidden units of which one program has the weights, where they are spread."""
APART = 64
"""Numbers from the counter of one group of programs to that of the next: in lines of the cache of their own,
so that groups do not queue behind each other."""


@dataclass(frozen=True, slots=True)
class Blocks:
    """How one launch is cut up; none of it changes what is computed, but for the order of sums."""

    rows: int
    """Rows of a program."""
    warps: int
    """Warps of a program."""
    prefetch: bool = False
    """Whether the kernel itself asks for a step's inputs one step before, into registers, with one stage;
    otherwise the compiler does, with ``stages``. For resident weights."""
    units: int = 64
    """Hidden units that are computed at once. For streamed weights."""
    depth: int = 64
    """Summands of a product that are read at once. For streamed weights."""
    stages: int = 3
    """Blocks, of a step's inputs or of streamed weights, that are under way or in use at once."""
    together: int = 1
    """Programs that a processor is to hold at once, by as many registers as that leaves each."""

    @property
    def options(self) -> dict[str, int]:
        """What Triton's compiler is told."""
        limit = {} if self.together == 1 else {"maxnreg": (1 << 16) // (32 * self.warps * self.together)}
        return {"num_warps": self.warps, **limit}


def padded(size: int) -> int:
    """The power of two, at least 16, that holds ``size``: what tensor cores multiply."""
    return max(16, 1 << (size - 1).bit_length())


Table = Mapping[tuple[str, Products], tuple[tuple[int, Blocks], ...]]
"""By kernel ("forward resident", "backward streamed", ...) and rounding: up to so many rows, so they are cut
up."""
SMALL = Blocks(16, 4, units=32, depth=32, stages=2)
"""Of streamed weights on a GPU with less shared memory than an H100 has."""


def choose(table: Table, B: int, H: int, products: Products, way: str, has_room: bool) -> tuple[Kind, Blocks]:
    """Where the weights are, and the blocks of a launch.

    Args:
        table: of the core.
        B: rows.
        H: units.
        products: what factors are rounded to.
        way: ``forward`` or ``backward``.
        has_room: whether the GPU is one that ``has_room``.
    """
    if not has_room:
        return "streamed", SMALL
    kind: Kind = "streamed"
    if padded(H) <= RESIDENT[products]:
        kind = "resident"
    elif padded(H) in SPREAD[products]:
        kind = "spread"
    rows = table[f"{way} {kind}", products]
    return kind, next(blocks for most, blocks in rows if most >= B)


class Groups(NamedTuple):
    """How a launch is spread: groups of programs, each with rows of its own, and how they exchange."""

    members: int
    """Programs of a group, each with ``MEMBER_UNITS`` of the units."""
    number: int
    """Groups, which take blocks of rows in turn."""
    slots: int
    """Places for what is exchanged, a power of two: meeting k uses place k % slots."""
    launches: int
    """How often the kernel is launched."""


def groups(x: Tensor, T: int, B: int, H: int, rows: int) -> Groups:
    """For T steps of B rows in blocks of ``rows``, with all programs on the device of ``x`` at once.

    Triton's interpreter runs one program after the other, so that none sees what later ones have to say.
    There nothing that is exchanged is overwritten, and every launch gets one more step right. (What kernels
    measure on the way, ``fused_halves``, is there the largest of all launches.)
    """
    members, blocks = padded(H) // MEMBER_UNITS, -(-B // rows)
    if not x.is_cuda:
        number = min(blocks, 2)
        return Groups(members, number, 1 << (-(-blocks // number) * T).bit_length(), T + 1)
    return Groups(members, min(blocks, max(1, _processors(x.device) // members)), 2, 1)


def launch_spread(
    kernel: Any,
    groups: Groups,
    blocks: Blocks,
    *given: Any,
    exchange: tuple[int, ...],
    dtype: Any,
    **flags: Any,
) -> None:
    """Launch a kernel whose programs meet; after ``given`` it takes what they need for that.

    These are memory [slots, groups, *exchange] in ``dtype``, and counters [groups, APART].
    """
    x: Tensor = given[0]
    shape, options = (groups.slots, groups.number, *exchange), blocks.options
    if x.is_cuda:
        memory = torch.empty(shape, dtype=dtype, device=x.device)
        options = {**options, "launch_cooperative_grid": True, "num_stages": 1}
    else:
        memory = torch.zeros(shape, dtype=dtype)
    for _ in range(groups.launches):
        counters = torch.zeros(groups.number, APART, dtype=torch.int32, device=x.device)
        with torch.cuda.device_of(x):
            kernel[groups.members * groups.number,](
                *given,
                memory,
                counters,
                slots=groups.slots,
                UNITS=MEMBER_UNITS,
                MEETS=x.is_cuda,
                **options,
                **flags,
            )


@lru_cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def has_room(x: Tensor) -> bool:
    """Whether the GPU has the shared memory, and the instructions, that resident weights were compiled for.

    For others Triton keeps such weights in registers, where they do not fit.
    """
    return not x.is_cuda or torch.cuda.get_device_capability(x.device) == (9, 0)


def product(a: Tensor, b: Tensor) -> Tensor:
    """a [n, k] @ b [k, m] in float32, whatever the factors are."""
    if a.dtype == torch.float32:
        return a @ b
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()


def nearest(w: Tensor, products: Products) -> Tensor:
    """Contiguous weights as a factor: for TF32 rounded to the nearest; tensor cores by themselves cut off.

    NaN stays as it is: the one that GPUs make, all ones, would become 0.
    """
    if products != "tf32":
        return w
    rounded = ((w.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)
    return torch.where(w.isfinite(), rounded, w)


def rounding(x: Tensor, products: Products) -> dict[str, str]:
    """What kernels on the device of ``x`` are told: how to multiply (``tl.dot``), and ``fused_math``'s way.

    Of float16 and bf16 factors ``PRECISION`` says nothing. Triton's interpreter has no instructions of a GPU.
    """
    is_nvidia = x.is_cuda and torch.version.cuda is not None
    return {
        "PRECISION": "tf32x3" if products == "fp32" else "tf32",
        "MATH": ("coarse" if products == "bf16" else "exact") if is_nvidia else "plain",
    }
