"""The sLSTM over packed segments, as one node of the autograd graph.

    i, z, o, f = W x + R h + b          (head by head; R mixes only inside a head)
    a  = log sigmoid(f) + m
    w  = sigmoid(i - a)                 the weight of this step among all so far
    c' = c + w (tanh(z) - c)
    m' = log(exp(a) + exp(i))
    h' = sigmoid(o) c'

``recollect.cores.slstm`` derives this from the paper's cell. Gradients, with dh, dc and dm those of the
outputs of a step, i before and z, o, f after activation:

    dc += dh o
    di  = dm w + dc (z - c) w (1-w),    dz = dc w (1-z^2),    do = dh c' o (1-o)
    dm(before) = dm - di,               df = dm(before) (1-f)
    dc(before) = dc (1-w),              dh(before) = R^T d(i, z, o, f)

All factors except dh, dc and dm are known before the backward loop, and are computed for many steps at once.
tanh is computed by the sigmoid, as in ``kernels.cpu.lstm``: one call for z, o and f.

``step`` is one step; ``slstm_by_steps`` repeats it, for devices where a host read of the resets synchronises.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid

from recollect.kernels.autograd_node import Grads, Kept, Need, Saved, node
from recollect.kernels.segments import Segments, scratch_rows


def step(gates: Tensor, h: Tensor, c: Tensor, m: Tensor, recurrent: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step: gates = W x + b [B, 4H], and h, c, m [B, H] -> h, c, m."""
    h, c, m = (leaf.unflatten(1, (recurrent.shape[0], -1)) for leaf in (h, c, m))
    mixed = torch.bmm(h.transpose(0, 1), recurrent).transpose(0, 1)  # [B, heads, 4 units]
    i, z, o, f = (gates.view_as(mixed) + mixed).chunk(4, 2)
    a = logsigmoid(f) + m
    c = torch.lerp(c, z.tanh(), torch.sigmoid(i - a))
    return (o.sigmoid() * c).flatten(1), c.flatten(1), torch.logaddexp(a, i).flatten(1)


def slstm_by_steps(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    m: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    initial: Tensor,
    first: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As ``slstm``, with the raw state [B, H], initial [1, H] of all three, and first [T, B]."""
    y = []
    for gates, new in zip(linear(x, weight, bias).unbind(), first.unsqueeze(2).unbind()):
        h, c, m = (torch.where(new, initial, leaf) for leaf in (h, c, m))
        h, c, m = step(gates, h, c, m, recurrent)
        y.append(h)
    return torch.stack(y), h, c, m


def slstm(
    x: Tensor,
    h: Tensor,
    c: Tensor,
    m: Tensor,
    weight: Tensor,
    recurrent: Tensor,
    bias: Tensor,
    segments: Segments,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One layer over a batch of sequences with resets.

    Args:
        x: [T, B, D].
        h: [S, H] the start state of each segment.
        c: [S, H] likewise.
        m: [S, H] likewise.
        weight: [4H, D], its rows ordered by head, then gate (i, z, o, f), then unit.
        recurrent: [heads, H / heads, 4H / heads], from unit to gate and unit.
        bias: [4H], ordered like the rows of ``weight``.
        segments: the packed layout.

    Returns:
        y [T, B, H], and h, c, m [B, H] after the last step.
    """
    return node(_forward, _backward, x, h, c, m, weight, recurrent, bias, segments=segments)


def _forward(*inputs: Tensor, segments: Segments, keep: bool) -> tuple[tuple[Tensor, ...], Kept]:
    """y [T, B, H], h, c and m [B, H], and with ``keep`` the inputs of the backward pass."""
    x, h, c, m, weight, recurrent, bias = inputs
    sizes, (S, H), (heads, unit, _) = segments.sizes, h.shape, recurrent.shape
    x = segments.pack(x)  # [N, D]
    N = x.shape[0]
    wx, wh, b = _double_z(weight.t(), heads), _double_z(recurrent, 1), _double_z(bias, heads)
    minus_one = x.new_full((), -1.0)

    # [:S] holds the start states and [S:] the state after each packed step. All have a dimension of heads,
    # because the gates of one head are adjacent.
    hidden = x.new_empty(S + N, heads, unit)
    cell = x.new_empty(S + N if keep else S, heads, unit)
    stabiliser, forgotten = x.new_empty(2, S, heads, unit)  # m and a of the active segments
    gates = x.new_empty(N, heads, 4 * unit)  # after activation; w takes the place of i
    for buffer, leaf in ((hidden, h), (cell, c), (stabiliser, m)):
        buffer[:S] = leaf.unflatten(1, (heads, unit))

    h_before = [view.transpose(0, 1) for view in segments.carried(hidden)]
    h_after = hidden[S:].split(sizes)
    if keep:
        c_before, c_after = segments.carried(cell), cell[S:].split(sizes)
    else:
        c_before = c_after = segments.prefixes(cell)
    alive, a = segments.prefixes(stabiliser), segments.prefixes(forgotten)
    product = gates.transpose(0, 1).split(sizes, 1)
    zof = gates[..., unit:].split(sizes)
    i, z, o, f = (part.split(sizes) for part in gates.split(unit, 2))

    for steps, rows in segments.blocks():
        torch.addmm(b, x[rows], wx, out=gates.view(N, 4 * H)[rows])
        for k in steps:
            product[k].baddbmm_(h_before[k], wh)
            zof[k].sigmoid_()
            torch.add(minus_one, z[k], alpha=2, out=z[k])
            torch.log(f[k], out=a[k]).add_(alive[k])  # -inf where f = 0: then m has no effect
            torch.logaddexp(a[k], i[k], out=alive[k])
            i[k].sub_(a[k]).sigmoid_()
            torch.lerp(c_before[k], z[k], i[k], out=c_after[k])
            torch.mul(o[k], c_after[k], out=h_after[k])

    y = hidden[S:].flatten(1)
    h = y.index_select(0, segments.end)
    c = cell[S:].index_select(0, segments.end) if keep else cell.index_select(0, segments.last)
    m = stabiliser.index_select(0, segments.last)
    saved = (x, hidden, cell, gates, weight, recurrent) if keep else ()
    return (segments.unpack(y), h, c.flatten(1), m.flatten(1)), saved


def _double_z(weight: Tensor, heads: int) -> Tensor:
    """A copy of weight [..., heads * 4 * units] with the weights of z doubled, for its tanh."""
    weight = weight.clone(memory_format=torch.contiguous_format)
    weight.unflatten(-1, (heads, 4, -1))[..., 1, :].mul_(2)
    return weight


def _backward(grads: Grads, saved: Saved, need: Need, segments: Segments) -> Grads:
    """The gradients of x, h, c, m, weight, recurrent and bias."""
    (dy, dh_end, dc_end, dm_end), (x, hidden, cell, gates, weight, recurrent) = grads, saved
    sizes, (heads, unit, _) = segments.sizes, recurrent.shape
    S, H = sizes[0], heads * unit
    back = recurrent.transpose(1, 2).contiguous()

    # dh [N, H] accumulates gradients from later steps; dc and dm [S, H] run back along the segments.
    dh = segments.pack_gradients(dy, dh_end, hidden[S:].flatten(1))
    dc, dm = x.new_zeros(2, S, H)
    for grad, end in ((dc, dc_end), (dm, dm_end)):
        if end is not None:
            grad.index_copy_(0, segments.last, end)
    dh_start = x.new_zeros(S, H) if need[1] else None
    dx = torch.empty_like(x) if need[0] else None
    dweight, drecurrent = torch.empty_like(weight), torch.empty_like(recurrent)
    dbias = weight.new_empty(4 * H)

    plan = segments.blocks()
    scratch = scratch_rows(gates, plan, 4 * H)
    h_block, c_block = (scratch_rows(gates, plan, H).unflatten(1, (heads, unit)) for _ in range(2))
    ones = gates.new_ones(scratch.shape[0])
    h_before, c_before = segments.carried(hidden), segments.carried(cell)
    dh = dh.unflatten(1, (heads, unit))
    dh_after = dh.split(sizes)
    dh_before = [
        dh_start if dh_start is None else dh_start.unflatten(1, (heads, unit)),
        *segments.survivors(dh),
    ]
    dc_alive, dm_alive = (segments.prefixes(grad.view(S, heads, unit)) for grad in (dc, dm))
    dc_wide = segments.prefixes(dc.view(S, heads, 1, unit))
    w, _, o, _ = (part.split(sizes) for part in gates.split(unit, 2))
    beta = 0  # the first block writes the gradients of the weights, the others add to them

    for steps, rows in reversed(plan):
        n, here = rows.stop - rows.start, slice(steps.start, steps.stop)
        h_was = segments.before(hidden, h_before, (steps, rows), h_block)
        c_was = segments.before(cell, c_before, (steps, rows), c_block)
        dgates = scratch[:n]
        by_head = dgates.unflatten(1, (heads, 4 * unit))
        _factors(gates[rows], c_was, cell[S:][rows], by_head)
        dgate = by_head.transpose(0, 1).split(sizes[here], 1)
        diz = by_head[..., : 2 * unit].unflatten(2, (2, unit)).split(sizes[here])
        di, _, do, df = (part.split(sizes[here]) for part in by_head.split(unit, 2))
        for k in reversed(steps):
            j = k - steps.start
            dc_alive[k].addcmul_(dh_after[k], o[k])
            do[j].mul_(dh_after[k])
            diz[j].mul_(dc_wide[k])
            di[j].addcmul_(dm_alive[k], w[k])
            dm_alive[k].sub_(di[j])
            df[j].mul_(dm_alive[k])
            dc_alive[k].addcmul_(dc_alive[k], w[k], value=-1)
            earlier = dh_before[k]
            if earlier is not None:
                earlier.transpose(0, 1).baddbmm_(dgate[j], back)
        if dx is not None:
            torch.mm(dgates, weight, out=dx[rows])
        dweight.addmm_(dgates.t(), x[rows], beta=beta)
        drecurrent.baddbmm_(h_was.permute(1, 2, 0), by_head.transpose(0, 1), beta=beta)
        dbias.addmv_(dgates.t(), ones[:n], beta=beta)
        beta = 1

    dx = None if dx is None else segments.unpack(dx)
    return dx, dh_start, dc, dm, dweight, drecurrent, dbias


def _factors(gates: Tensor, c_before: Tensor, c_after: Tensor, factors: Tensor) -> None:
    """Write the factors of dc, dc, dh and dm in the gradients of i, z, o, f: [n, heads, 4 units]."""
    w, z, o, f = gates.chunk(4, 2)
    di, dz, do, df = factors.chunk(4, 2)
    torch.addcmul(w, w, w, value=-1, out=di)
    torch.sub(z, c_before, out=df)  # df as scratch: it is written below
    di.mul_(df)
    torch.mul(w, z, out=dz)
    torch.addcmul(w, dz, z, value=-1, out=dz)
    torch.addcmul(o, o, o, value=-1, out=do).mul_(c_after)
    torch.neg(f, out=df).add_(1)
