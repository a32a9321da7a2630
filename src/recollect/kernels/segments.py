"""Segments: sequences with resets as packed sequences without them.

Resets split the T x B steps of a batch into S segments, each with a start state and no reset inside. Sorted
by length and laid side by side, they form one batch that shrinks as the shorter ones end:

    rows (| = reset)          segments, longest first        packed, step by step
    row 0: a b | c d e        f g h i                        f c a j   g d b   h e   i
    row 1: f g h i | j        c d e                          sizes = (4, 3, 2, 1)
                              a b
                              j

A recurrent kernel then needs no masks: it runs max(length) steps instead of T, with larger products, and
never computes with a state that a reset discarded (0 * NaN). The layout is that of
``torch.nn.utils.rnn.PackedSequence``, which cuDNN takes too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BLOCK = 128
"""Packed rows per block of a kernel: enough for fast products, few enough for the cache of a CPU core."""
Block = tuple[range, slice]
"""The steps of a block, and its packed rows."""


@dataclass(frozen=True, slots=True)
class Segments:
    """The packed layout of the N = T * B steps of a batch with S segments."""

    sizes: tuple[int, ...]
    """Active segments at each step of the loop; they sum to N, and ``sizes[0]`` is S."""
    order: Tensor | None
    """[N] the step ``t * B + b`` at each packed position; None: packing is the identity."""
    place: Tensor | None
    """[N] the inverse of ``order``."""
    source: Tensor | None
    """[S] the row whose state each segment starts from, B for the initial state; None: the rows in order."""
    end: Tensor
    """[B] the packed position of the last step of each row."""
    last: Tensor
    """[B] the last segment of each row."""

    def pack(self, x: Tensor, fresh: bool = False) -> Tensor:
        """x [T, B, D] -> [N, D] in packed order; with ``fresh`` always a copy."""
        flat = x.reshape(-1, x.shape[-1])
        if self.order is not None:
            return flat.index_select(0, self.order)
        return flat.clone(memory_format=torch.contiguous_format) if fresh else flat

    def pack_gradients(self, dy: Tensor | None, d_end: Tensor | None, y: Tensor) -> Tensor:
        """The gradient of packed y [N, H], from dy [T, B, H] and that of each row's last step, [B, H]."""
        packed = torch.zeros_like(y) if dy is None else self.pack(dy, fresh=True)
        return packed if d_end is None else packed.index_add_(0, self.end, d_end)

    def unpack(self, y: Tensor) -> Tensor:
        """y [N, H] in packed order -> [T, B, H]."""
        if self.place is not None:
            y = y.index_select(0, self.place)
        return y.view(-1, self.end.shape[0], y.shape[-1])

    def start(self, state: Tensor, initial: Tensor) -> Tensor:
        """The start states of the segments: state [B, ...], initial [1, ...] -> [S, ...].

        States that a reset discards are dropped rather than masked, so that no NaN in them has an effect.
        """
        if self.source is None:
            return state
        return torch.cat((state, initial)).index_select(0, self.source)

    def blocks(self) -> list[Block]:
        """Blocks of consecutive steps with about ``BLOCK`` packed rows."""
        out, begin, low, high = [], 0, 0, 0
        for k, n in enumerate(self.sizes):
            high += n
            if high - low >= BLOCK or k == len(self.sizes) - 1:
                out.append((range(begin, k + 1), slice(low, high)))
                begin, low = k + 1, high
        return out

    def survivors(self, after: Tensor) -> tuple[Tensor, ...]:
        """after [N, H] -> for every step but the last the rows that continue, as views [sizes[k+1], H]."""
        sizes = self.sizes
        if sizes[-1] == sizes[0]:
            return after.split(sizes)[:-1]
        lengths = [n for k in range(1, len(sizes)) for n in (sizes[k], sizes[k - 1] - sizes[k])]
        return after[: after.shape[0] - sizes[-1]].split(lengths)[::2]

    def carried(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """buffer = cat(start [S, H], after [N, H]) -> the input states of each step, views [sizes[k], H]."""
        S = self.sizes[0]
        return (buffer[:S], *self.survivors(buffer[S:]))

    def prefixes(self, buffer: Tensor) -> tuple[Tensor, ...]:
        """buffer [S, ...] -> for every step the rows of its active segments, as views."""
        views, view = [], buffer
        for n in self.sizes:
            if n != view.shape[0]:  # a view costs as much as a small product: reuse it
                view = view[:n]
            views.append(view)
        return tuple(views)

    def before(self, buffer: Tensor, views: tuple[Tensor, ...], block: Block, out: Tensor) -> Tensor:
        """The input states of the steps of a block, as one tensor; ``views`` are ``carried(buffer)``."""
        steps, rows = block
        if self.order is None:  # equal sizes: the input of a step is the output of the one before
            return buffer[rows]
        return torch.cat(views[steps.start : steps.stop], out=out[: rows.stop - rows.start])


def split_at_resets(first: Tensor) -> Segments:
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

    # Row by row, [B * T]: every segment is contiguous.
    opens = flags.T.copy()
    opens[:, 0] = True
    opens = opens.reshape(-1)
    begin = np.flatnonzero(opens)
    length = np.diff(begin, append=T * B)
    by_length = np.argsort(-length, kind="stable")
    rank = np.empty_like(by_length)
    rank[by_length] = np.arange(len(begin))

    # sizes[k]: number of segments longer than k; offset[k]: packed rows before step k.
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

    return Segments(tuple(sizes.tolist()), *(tensor(array) for array in (order, place, source, end, last)))


def scratch_rows(like: Tensor, plan: list[Block], width: int) -> Tensor:
    """An empty [rows of the largest block, width].

    Rows are padded: with strides such as 2 KiB they would share few cache lines, which costs the product with
    a transposed block about 15%.
    """
    rows = max(rows.stop - rows.start for _, rows in plan)
    return like.new_empty(rows, width + 16)[:, :width]
