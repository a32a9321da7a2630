"""Resets inside a sequence, without a reset inside the loop.

A reset cuts a row in two: what follows knows nothing of what came before. So the T x B steps of a
batch are S segments, each of which begins with a given state and never resets. Sorted by length
and laid side by side, they form one batch that shrinks as the shorter ones end:

    rows (| = reset)          segments, longest first        packed, step by step
    row 0: a b | c d e        f g h i                        f c a j   g d b   h e   i
    row 1: f g h i | j        c d e                          sizes = (4, 3, 2, 1)
                              a b
                              j

A recurrent kernel runs over that as if there were no resets: max(length) steps instead of T, with
larger products, no masks, and no arithmetic on a state that a reset has thrown away (0 * NaN).
The layout is that of ``torch.nn.utils.rnn.PackedSequence``, so cuDNN takes it too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Segments:
    """Where the N = T * B steps of a batch stand when its S segments are packed."""

    sizes: tuple[int, ...]
    """How many segments are alive at each step of the loop; they sum to N, and ``sizes[0]`` is S."""
    order: Tensor | None
    """[N] for each packed place the step ``t * B + b`` that stands there; None: nothing moves."""
    place: Tensor | None
    """[N] the inverse of ``order``."""
    source: Tensor | None
    """[S] the row whose state each segment begins with, B for the initial one; None: rows as given."""
    end: Tensor
    """[B] the packed place of the last step of each row."""
    last: Tensor
    """[B] the last segment of each row."""


def cut(first: Tensor) -> Segments:
    """The segments of first [T, B]. Reads ``first`` on the host: one synchronisation on a GPU."""
    T, B = first.shape
    device = first.device
    flags = first.cpu().numpy()
    if not flags[1:].any():
        rows = torch.arange(B, device=device)
        source = None
        if flags.any():
            source = torch.from_numpy(np.where(flags[0], B, np.arange(B))).to(device)
        return Segments((B,) * T, None, None, source, rows + (T - 1) * B, rows)

    # Row by row, [B * T], in which every segment is one stretch.
    opens = flags.T.copy()
    opens[:, 0] = True
    opens = opens.reshape(-1)
    begin = np.flatnonzero(opens)
    length = np.diff(begin, append=T * B)
    by_length = np.argsort(-length, kind="stable")
    rank = np.empty_like(by_length)
    rank[by_length] = np.arange(len(begin))

    # sizes[k] = how many are longer than k; offset[k] = packed rows before step k.
    longest = int(length.max())
    sizes = len(begin) - np.cumsum(np.bincount(length, minlength=longest + 1))[:longest]
    offset = np.cumsum(sizes) - sizes

    segment = np.cumsum(opens) - 1
    step = np.arange(T * B) - begin[segment]
    place_by_row = offset[step] + rank[segment]
    place = place_by_row.reshape(B, T).T.reshape(-1)
    order = np.empty_like(place)
    order[place] = np.arange(T * B)

    row, start = np.divmod(begin, T)
    source = np.where((start == 0) & ~flags[0][row], row, B)[by_length]
    end = place[(T - 1) * B :]
    last = rank[segment.reshape(B, T)[:, -1]]

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    return Segments(
        tuple(sizes.tolist()),
        tensor(order),
        tensor(place),
        tensor(source),
        tensor(end),
        tensor(last),
    )


def pack(x: Tensor, segments: Segments, fresh: bool = False) -> Tensor:
    """x [T, B, D] -> [N, D] in packed order; with ``fresh`` always in memory of its own."""
    flat = x.reshape(-1, x.shape[-1])
    if segments.order is not None:
        return flat.index_select(0, segments.order)
    return flat.clone(memory_format=torch.contiguous_format) if fresh else flat


def unpack(y: Tensor, segments: Segments, rows: int) -> Tensor:
    """y [N, H] in packed order -> [T, B, H] with B = ``rows``."""
    if segments.place is not None:
        y = y.index_select(0, segments.place)
    return y.view(-1, rows, y.shape[-1])


def start(state: Tensor, initial: Tensor, segments: Segments) -> Tensor:
    """What each segment begins with: state [B, ...], initial [1, ...] -> [S, ...].

    Rows that nobody continues are left out rather than masked, so that neither their values nor
    their gradients (NaN among them) go anywhere.
    """
    if segments.source is None:
        return state
    return torch.cat((state, initial)).index_select(0, segments.source)


BLOCK = 128
"""Packed rows that a kernel takes through all its work before it goes on: enough for fast products,
few enough for their gates to stay in the cache of a CPU core."""


def blocks(sizes: tuple[int, ...]) -> list[tuple[range, slice]]:
    """Stretches of steps of about ``BLOCK`` packed rows: the steps of each, and the rows."""
    out, begin, low, high = [], 0, 0, 0
    for k, n in enumerate(sizes):
        high += n
        if high - low >= BLOCK or k == len(sizes) - 1:
            out.append((range(begin, k + 1), slice(low, high)))
            begin, low = k + 1, high
    return out


def survivors(after: Tensor, segments: Segments) -> tuple[Tensor, ...]:
    """after [N, H] -> for every step but the last its rows that go on, as views [sizes[k+1], H]."""
    sizes = segments.sizes
    if sizes[-1] == sizes[0]:
        return after.split(sizes)[:-1]
    pieces = [n for k in range(1, len(sizes)) for n in (sizes[k], sizes[k - 1] - sizes[k])]
    return after[: after.shape[0] - sizes[-1]].split(pieces)[::2]


def carried(buffer: Tensor, segments: Segments) -> tuple[Tensor, ...]:
    """buffer = cat(start [S, H], after [N, H]) -> what each step begins with, as views [sizes[k], H]."""
    S = segments.sizes[0]
    return (buffer[:S], *survivors(buffer[S:], segments))


def prefixes(buffer: Tensor, sizes: tuple[int, ...]) -> tuple[Tensor, ...]:
    """buffer [S, ...] -> for every step the rows of the segments that are alive, as views."""
    views, view = [], buffer
    for n in sizes:
        if n != view.shape[0]:  # a view costs as much as a small product: make only new ones
            view = view[:n]
        views.append(view)
    return tuple(views)


def scratch_rows(like: Tensor, plan: list[tuple[range, slice]], width: int) -> Tensor:
    """An empty [rows of the largest block, width].

    The rows stand a little apart: strides of 2 KiB and the like send them all to the same few lines
    of the cache, which costs the product with a transposed block some 15%.
    """
    rows = max(rows.stop - rows.start for _, rows in plan)
    return like.new_empty(rows, width + 16)[:, :width]


def before(
    buffer: Tensor,
    views: tuple[Tensor, ...],
    segments: Segments,
    steps: range,
    rows: slice,
    out: Tensor,
) -> Tensor:
    """What the steps of a block began with, as one tensor: ``views`` are ``carried(buffer)``."""
    if segments.order is None:  # equal sizes: each step begins right where the one before it ended
        return buffer[rows]
    return torch.cat(views[steps.start : steps.stop], out=out[: rows.stop - rows.start])
