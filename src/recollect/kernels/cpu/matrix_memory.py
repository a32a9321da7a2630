"""The matrix memory of the mLSTM over sequences with resets, many steps at once.

The recurrence (see ``recollect.cores.mlstm``) is linear in C and n. So the read of step t is a sum over the
writes of the earlier steps s of its episode, plus the state before them:

    weight[t, s] = log f[s+1] + ... + log f[t] + i[s]             s <= t in the same episode
    weight[t]    = log f[1] + ... + log f[t] + m                  m: the one carried, or 0 after a reset
    m[t]         = max(weight[t], max_s weight[t, s])             the recurrence's running maximum
    read[t]      = sum_s exp(weight[t, s] - m[t]) (q[t] . k[s]) v[s] + exp(weight[t] - m[t]) C^T q[t]

and likewise for n. Time is processed in chunks, because the first sum is quadratic in their length, and rows
in blocks that fit into the cache of a CPU core. All numbers must be finite.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

STEPS = 64
"""Steps of a chunk."""
ROWS = 16
"""Rows of a block on a CPU; on a GPU a block is all rows."""


def matrix_memory(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    i: Tensor,
    log_f: Tensor,
    C: Tensor,
    n: Tensor,
    m: Tensor,
    first: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """T steps of all rows.

    Args:
        q: [T, B, H, K] queries of the H heads.
        k: [T, B, H, K] keys, scaled.
        v: [T, B, H, V] values.
        i: [T, B, H] the exponents of the input gates.
        log_f: [T, B, H] the logarithms of the forget gates.
        C: [B, H, K, V] the memory before the first step, with ``first[0]`` applied.
        n: [B, H, K] its normaliser.
        m: [B, H] its stabiliser.
        first: [T, B].

    Returns:
        The reads [T, B, H, V], and C, n, m after the last step.
    """
    rows = ROWS if q.device.type == "cpu" else q.shape[1]
    episode = first.long()
    episode[0] = 0  # applied already
    episode = episode.cumsum(0)
    sequences = [t.split(rows, 1) for t in (q, k, v, i, log_f, episode)]
    states = [t.split(rows) for t in (C, n, m)]
    blocks = [_block(parts[:6], parts[6:]) for parts in zip(*sequences, *states)]
    reads, Cs, ns, ms = zip(*blocks)
    return torch.cat(reads, 1), torch.cat(Cs), torch.cat(ns), torch.cat(ms)


def _block(sequences: Sequence[Tensor], state: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The reads and the state after the last step, for a block of rows, chunk after chunk."""
    reads, now = [], torch.zeros_like(sequences[-1][0])  # the episode of the state
    for *given, episode in zip(*(t.split(STEPS) for t in sequences)):
        read, *state = _chunk(given, state, *_mask(now, episode))
        reads.append(read)
        now = episode[-1]
    return torch.cat(reads), *state


def _mask(now: Tensor, episode: Tensor) -> tuple[Tensor, Tensor]:
    """Episode masks of a chunk: now [B] is the episode of the state, episode [L, B] that of each step.

    Returns ``seen`` [B, 1, L, L], whether t reads from s, and ``held`` [B, 1, L], whether t reads the state.
    """
    episode = episode.t()
    L = episode.shape[1]
    earlier = torch.ones(L, L, dtype=torch.bool, device=episode.device).tril()
    seen = (episode.unsqueeze(2) == episode.unsqueeze(1)).logical_and_(earlier)
    return seen.unsqueeze(1), (episode == now.unsqueeze(1)).unsqueeze(1)


def _chunk(
    sequences: Sequence[Tensor], state: Sequence[Tensor], seen: Tensor, held: Tensor
) -> tuple[Tensor, ...]:
    """One chunk: as ``matrix_memory``, with the masks of ``_mask`` instead of ``first``."""
    (q, k, v, i, log_f), (C, n, m) = sequences, state
    q, k, v = (t.permute(1, 2, 0, 3) for t in (q, k, v))  # [B, H, L, .]
    i, log_f = i.permute(1, 2, 0), log_f.permute(1, 2, 0)  # [B, H, L]

    # The sum of log f since the start of the episode or chunk. A product, because with differences of one
    # running sum, steps before a reset would change the rounding of those after it. In float64, because with
    # closed gates the sums are large and their differences small.
    since = (seen.double() @ log_f.double().unsqueeze(3)).squeeze(3)
    between = (since.unsqueeze(3) - since.unsqueeze(2)).to(log_f)
    weight = (between + i.unsqueeze(2)).masked_fill(~seen, -torch.inf)
    since = since.to(log_f)
    carried = torch.where(held, since + m.unsqueeze(2), since)
    m_all = torch.maximum(carried, weight.amax(3))  # [B, H, L]
    weight = torch.exp(weight - m_all.unsqueeze(3))
    carried = torch.where(held, torch.exp(carried - m_all), 0)

    scores = weight * (q @ k.transpose(2, 3))
    read = scores @ v + (q @ C) * carried.unsqueeze(3)
    along = scores.sum(3) + (q @ n.unsqueeze(3)).squeeze(3) * carried
    read = read / torch.maximum(along.abs(), torch.exp(-m_all)).unsqueeze(3)

    written = k * weight[:, :, -1].unsqueeze(3)
    keep = carried[:, :, -1:]
    C = torch.addcmul(written.transpose(2, 3) @ v, C, keep.unsqueeze(3))
    n = torch.addcmul(written.sum(2), n, keep)
    return read.permute(2, 0, 1, 3), C, n, m_all[:, :, -1]
