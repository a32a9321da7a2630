"""A memory of slots that is read and written at every step, as one node of the autograd graph.

A memory M [slots, width] starts at zero, where all slots would be addressed alike; learned keys K [slots,
width] distinguish them. With A = M + K, a query q (a direction times a sharpness) and M the memory before the
step:

    w(q)_i = softmax_i(q . A_i / s_i)          s_i = sqrt(|A_i|^2 + EPSILON)
    read   = sum_i w(q_read)_i M_i
    M_i'   = M_i + w(q_write)_i (a - e M_i)

``access`` is one step; ``recall_by_steps`` repeats it, for devices where a host read of the resets
synchronises. ``recall`` computes all steps over packed segments (``kernels.segments``): its loop computes
only the memories; the reads follow, a block of steps at a time. In the backward pass, the gradients of the
reads are computed by the block, and the loop has two products,

    p_i = dM'_i . w_i (a - e M_i),      ds_i = p_i - w_i sum(p)        (through the softmax)
    dM  = dM' (1 - w e) + ds (q - (q . A/s) A/s) / s + the reads' part
"""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node
from recollect.kernels.segments import Segments

EPSILON = 1e-6
"""Under the root of every norm, of slots and of keys: smooth where one is zero."""


def access(memory: Tensor, orders: Tensor, slot_keys: Tensor) -> tuple[Tensor, Tensor]:
    """One step: memory [B, slots, width] -> the reads [B, reads, width], and the next memory.

    ``orders`` [B, reads + 3, width] are the queries of the reads, that of the write, erase and add.
    """
    queries, erase, add = orders.split((orders.shape[1] - 2, 1, 1), 1)
    addresses = memory + slot_keys
    inverse = addresses.square().sum(2).add_(EPSILON).rsqrt_().unsqueeze(1)  # [B, 1, slots]
    weights = torch.bmm(queries, addresses.mT).mul(inverse).softmax(2)
    by_read, by_write = weights.split((weights.shape[1] - 1, 1), 1)
    after = torch.addcmul(memory, by_write.mT, torch.addcmul(add, erase, memory, value=-1))
    return torch.bmm(by_read, memory), after


def recall(orders: Tensor, memory: Tensor, slot_keys: Tensor, segments: Segments) -> tuple[Tensor, Tensor]:
    """All steps of a batch of sequences with resets.

    Args:
        orders: [T, B, (reads + 3) * width] as in ``access``.
        memory: [S, slots, width] the start memory of each segment.
        slot_keys: [slots, width].
        segments: the packed layout.

    Returns:
        The reads [T, B, reads * width], and the memory [B, slots, width] after the last step.
    """
    return node(_forward, _backward, orders, memory, slot_keys, segments=segments)


def recall_by_steps(
    orders: Tensor, memory: Tensor, empty: Tensor, slot_keys: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """As ``recall``, by a loop over all steps, with resets by selection.

    memory [B, slots, width] is the raw memory before the first step, empty [1, slots, width] that at the
    start of an episode, first [T, B].
    """
    width, reads = memory.shape[2], []
    for orders_now, new in zip(orders.unflatten(2, (-1, width)).unbind(), first.view(*first.shape, 1, 1)):
        read, memory = access(torch.where(new, empty, memory), orders_now, slot_keys)
        reads.append(read)
    return torch.stack(reads).flatten(2), memory


def _forward(
    orders: Tensor, memory: Tensor, slot_keys: Tensor, segments: Segments, keep: bool
) -> tuple[tuple[Tensor, Tensor], Kept]:
    """The reads and the last memory, and the inputs of the backward pass."""
    sizes, (S, slots, width) = segments.sizes, memory.shape
    orders = segments.pack(orders).unflatten(1, (-1, width))  # [N, R + 3, width]
    N, R = orders.shape[0], orders.shape[1] - 3
    epsilon = orders.new_full((), EPSILON)

    # [:S] holds the start memories and [S:] the memory after each packed step; rows of slots * width.
    memories = orders.new_empty(S + N, slots * width)
    memories[:S] = memory.flatten(1)
    by_write, by_read = orders.new_empty(N, 1, slots), orders.new_empty(N, R, slots)
    reads = orders.new_empty(N, R, width)

    m_before = segments.carried(memories)
    m_after = memories[S:].unflatten(1, (slots, width)).split(sizes)
    query, erase, add = (orders[:, i : i + 1].split(sizes) for i in range(R, R + 3))
    weight = by_write.split(sizes)
    address = segments.prefixes(orders.new_empty(S, slots, width))
    change = segments.prefixes(orders.new_empty(S, slots, width))
    inverse = segments.prefixes(orders.new_empty(S, slots))
    score = segments.prefixes(orders.new_empty(S, 1, slots))

    plan = segments.blocks()
    scratch = orders.new_empty(max(rows.stop - rows.start for _, rows in plan), slots * width)
    for steps, rows in plan:
        for k in steps:
            m = m_before[k].unflatten(1, (slots, width))
            torch.add(m, slot_keys, out=address[k])
            torch.mul(address[k], address[k], out=change[k])
            torch.sum(change[k], 2, out=inverse[k]).add_(epsilon).rsqrt_()
            torch.bmm(query[k], address[k].mT, out=score[k]).mul_(inverse[k].unsqueeze(1))
            torch.softmax(score[k], 2, out=weight[k])
            torch.addcmul(add[k], erase[k], m, value=-1, out=change[k])
            torch.addcmul(m, weight[k].mT, change[k], out=m_after[k])
        m = segments.before(memories, m_before, (steps, rows), scratch).unflatten(1, (slots, width))
        unit, _ = _addresses(m, slot_keys)
        torch.softmax(torch.bmm(orders[rows, :R], unit.mT), 2, out=by_read[rows])
        torch.bmm(by_read[rows], m, out=reads[rows])

    end = memories[S:].index_select(0, segments.end).unflatten(1, (slots, width))
    return (segments.unpack(reads.flatten(1)), end), (orders, memories, by_write, by_read, slot_keys)


def _addresses(m: Tensor, slot_keys: Tensor) -> tuple[Tensor, Tensor]:
    """A / s [n, slots, width] and 1 / s [n, slots, 1] of the memories m [n, slots, width]."""
    unit = m + slot_keys
    inverse = unit.square().sum(2, keepdim=True).add_(EPSILON).rsqrt_()
    return unit.mul_(inverse), inverse


def _backward(grads: Grads, saved: Saved, need: Need, segments: Segments) -> Grads:
    """The gradients of the orders, the first memories and the slot keys."""
    (dreads, dend), (orders, memories, by_write, by_read, slot_keys) = grads, saved
    sizes, (slots, width) = segments.sizes, slot_keys.shape
    S, R = sizes[0], by_read.shape[1]
    dread = None if dreads is None else segments.pack(dreads).unflatten(1, (R, width))

    # [N, slots * width] the gradient of the memory after each packed step, accumulated from later steps.
    dmemories = torch.zeros_like(memories[S:])
    if dend is not None:
        dmemories.index_copy_(0, segments.end, dend.flatten(1))
    dstart = dmemories.new_zeros(S, slots * width)
    dorders, dslot_keys = torch.zeros_like(orders), torch.zeros_like(slot_keys)

    m_before = segments.carried(memories)
    dm_after = dmemories.unflatten(1, (slots, width)).split(sizes)
    dm_before = (dstart, *segments.survivors(dmemories))
    plan = segments.blocks()
    scratch = orders.new_empty(max(rows.stop - rows.start for _, rows in plan), slots * width)
    product = segments.prefixes(orders.new_empty(S, slots, width))
    total = segments.prefixes(orders.new_empty(S, 1))

    for steps, rows in reversed(plan):
        m = segments.before(memories, m_before, (steps, rows), scratch).unflatten(1, (slots, width))
        found = unit, inverse = _addresses(m, slot_keys)
        here = sizes[steps.start : steps.stop]
        dorder, order = dorders[rows], orders[rows]
        daddress = torch.zeros_like(m)  # the gradient of A by the reads, then by the write too
        dm_by_reads = daddress
        if dread is not None:
            dorder[:, :R], dm_by_reads = _through_reads(
                dread[rows], by_read[rows], order[:, :R], m, found, daddress
            )

        # Factors of the loop: ``slope`` from scores to A, ``gain`` from dM' to the write weights (already
        # multiplied by these), ``stay`` from dM' to M.
        query, erase, add = order[:, R:].split(1, 1)
        weight = by_write[rows].mT  # [n, slots, 1]
        slope = torch.addcmul(query, unit, torch.bmm(unit, query.mT), value=-1).mul_(inverse)
        gain = torch.addcmul(add, erase, m, value=-1).mul_(weight)
        stay = 1 - weight * erase
        dscore = m.new_empty(m.shape[:2])
        parts = zip(*(t.split(here) for t in (dm_by_reads, slope, gain, stay, weight.squeeze(2), dscore)))
        for k, (by_reads, slope_k, gain_k, stay_k, weight_k, ds) in reversed(list(zip(steps, parts))):
            dm = dm_after[k]
            torch.mul(dm, gain_k, out=product[k])
            torch.sum(product[k], 2, out=ds)
            torch.sum(ds, 1, keepdim=True, out=total[k])
            ds.addcmul_(weight_k, total[k], value=-1)
            earlier = dm_before[k].unflatten(1, (slots, width))
            earlier.add_(by_reads).addcmul_(dm, stay_k).addcmul_(ds.unsqueeze(2), slope_k)

        dafter = dmemories[rows].unflatten(1, (slots, width))
        dslot_keys += daddress.addcmul_(dscore.unsqueeze(2), slope).sum(0)
        dorder[:, R] = torch.bmm(dscore.unsqueeze(1), unit).squeeze(1)
        dorder[:, R + 1] = torch.bmm(weight.mT, dafter * m).squeeze(1).neg_()
        dorder[:, R + 2] = torch.bmm(weight.mT, dafter).squeeze(1)

    return segments.unpack(dorders.flatten(1)), dstart.unflatten(1, (slots, width)), dslot_keys


def _through_reads(
    dread: Tensor, weight: Tensor, query: Tensor, m: Tensor, found: tuple[Tensor, Tensor], daddress: Tensor
) -> tuple[Tensor, Tensor]:
    """The gradients of the queries [n, R, width] and of m [n, slots, width]; that of A into ``daddress``."""
    unit, inverse = found
    dweight = torch.bmm(dread, m.mT).mul_(weight)  # [n, R, slots], times the weights
    dscore = dweight.addcmul_(weight, dweight.sum(2, keepdim=True), value=-1)
    dunit = torch.bmm(dscore.mT, query)
    along = (dunit * unit).sum(2, keepdim=True)
    torch.addcmul(dunit, unit, along, value=-1, out=daddress).mul_(inverse)
    return torch.bmm(dscore, unit), torch.baddbmm(daddress, weight.mT, dread)
