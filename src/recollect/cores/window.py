"""Self-attention over the last W steps: a transformer whose memory is its cache of keys and values.

    h = W_in x
    h = join(h, W_o attention(norm(h)))       for every layer; attention as in ``kernels.cpu.window``
    h = join(h, mlp(norm(h)))
    y = norm(h)

Vaswani et al., "Attention is all you need" (2017), with the norm before each part; positions relative to
the query as in Dai et al., "Transformer-XL" (2019). ``join(h, new)`` is h + new, or the GRU-like gate of
Parisotto et al., "Stabilizing transformers for reinforcement learning" (GTrXL, 2019):

    r = sigmoid(W_r new + U_r h),   z = sigmoid(W_z new + U_z h - b),   n = tanh(W_n new + U_n (r h))
    gate(h, new) = (1 - z) h + z n        with new = relu(part), and b > 0 so that it begins near h

Differences from these papers:

- Positions are a learned vector for every age and head, not a projection of sinusoids; windows are short
  enough for that.
- The memory holds keys and values rather than hidden states, so that acting does not project W of them in
  every step. Unlike in Transformer-XL, gradients flow into them, as the law of cores requires.
- With several layers the context is longer than W steps, because the keys of a layer depend on W earlier
  steps; with one layer it is exactly W.

The memory is a shift register, oldest step first. States are values, so a ring buffer would also be copied
for every write. In order, the slot is the age, positions need no gather, and one ``cat`` serves as copy and
as input of the attention.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.base import devices
from recollect.config.cores import WindowConfig
from recollect.cores.contract import Core
from recollect.kernels.cpu.window import attend

WindowState = dict[str, Any]
"""``layers``: for each layer the keys and values [B, heads, W - 1, 2d], oldest first; ``count``: int64 [B],
how many of them, from the end, are of this episode."""


class Window(Core):
    """See the module's docstring, and ``WindowState`` for the state."""

    rounding = 5.0  # a softmax that has become steep multiplies the rounding of its scores
    starts_at_zero = True
    ages: Tensor
    empty: Tensor
    no_steps: Tensor

    def __init__(self, input_size: int, config: WindowConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.project = nn.Linear(input_size, config.hidden)
        self.blocks: Any = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.hidden)
        # Ages of the slots and of the present step; an empty memory of one row.
        W, d = config.window, config.hidden // config.heads
        self.register_buffer("ages", torch.arange(W - 1, -1, -1), persistent=False)
        self.register_buffer("empty", torch.zeros(1, config.heads, W - 1, 2 * d), persistent=False)
        self.register_buffer("no_steps", torch.zeros(1, dtype=torch.int64), persistent=False)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)

    def initial_state(self, batch: int) -> WindowState:
        """Zeros: no step has been seen."""
        empty = self.empty.expand(batch, -1, -1, -1)
        return {"layers": (empty,) * len(self.blocks), "count": self.no_steps.expand(batch)}

    def _step(self, x: Tensor, state: WindowState) -> tuple[Tensor, WindowState]:
        count = state["count"]
        too_old = self.ages > count.unsqueeze(1)  # [B, W]
        h, after = self.project(x), []
        for block, memory in zip(self.blocks, state["layers"]):
            h, memory = block.step(h, memory, too_old)
            after.append(memory)
        count = (count + 1).clamp_(max=self.config.window - 1)
        return self.norm(h), {"layers": tuple(after), "count": count}

    def _unroll(self, x: Tensor, state: WindowState, first: Tensor) -> tuple[Tensor, WindowState]:
        T, W = x.shape[0], self.config.window
        # The first step of every step's episode (-count for a continued one), and the age within it.
        time = torch.arange(T, device=x.device).unsqueeze(1)
        begin = torch.where(first, time, -state["count"]).cummax(0).values
        age = (time - begin).T  # [B, T]
        # A slot of the returned state is empty if it precedes the last reset.
        slots = torch.arange(T - W + 1, T, device=x.device)
        last_reset = torch.where(first, time, -W).amax(0)
        is_empty = (slots < last_reset.unsqueeze(1))[:, None, :, None]  # [B, 1, W - 1, 1]

        h, after = self.project(x), []
        for block, memory in zip(self.blocks, state["layers"]):
            h, memory = block.unroll(h, memory, age)
            after.append(memory[:, :, T:].masked_fill(is_empty, 0))
        count = (age[:, -1] + 1).clamp(max=W - 1)
        return self.norm(h), {"layers": tuple(after), "count": count}


class Block(nn.Module):
    """One layer: attention and an MLP, each joined to the stream h [..., H]."""

    def __init__(self, config: WindowConfig):
        super().__init__()
        H, heads, d = config.hidden, config.heads, config.hidden // config.heads
        self.heads = heads
        self.scale = 1 / math.sqrt(d)
        self.attention_norm = nn.LayerNorm(H)
        self.attention_in = nn.Linear(H, 3 * H, bias=False)  # q of all heads; k and v, head by head
        self.attention_out = nn.Linear(H, H)
        self.u = nn.Parameter(torch.zeros(heads, d))  # u and v are the biases of q
        self.v = nn.Parameter(torch.zeros(heads, d))
        self.positions = nn.Parameter(torch.empty(heads, config.window, d))  # age W - 1 first
        self.mlp_norm = nn.LayerNorm(H)
        self.mlp_in = nn.Linear(H, config.expansion * H)
        self.mlp_out = nn.Linear(config.expansion * H, H)
        is_gated = config.gating == "gtrxl"
        self.join_attention, self.join_mlp = (Gate(H) if is_gated else operator.add for _ in range(2))
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        for weight in (*self.attention_in.weight.chunk(3), self.attention_out.weight):
            nn.init.xavier_uniform_(weight)
        for layer in (self.mlp_in, self.mlp_out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.attention_out.bias)
        nn.init.normal_(self.positions)

    def step(self, h: Tensor, memory: Tensor, too_old: Tensor) -> tuple[Tensor, Tensor]:
        """One step: h [B, H], memory [B, heads, W - 1, 2d], too_old [B, W] -> h, memory."""
        B, H = h.shape
        q, new = self.attention_in(self.attention_norm(h)).split((H, 2 * H), 1)
        memory = torch.cat((memory, new.view(B, self.heads, 1, -1)), 2)  # [B, heads, W, 2d]
        keys, values = memory.chunk(2, 3)
        q = q.view(B, self.heads, -1) * self.scale
        by_position = torch.bmm((q + self.v).transpose(0, 1), self.positions.mT).transpose(0, 1)
        # A row of q times a matrix; the transposed product takes five times as long.
        scores = torch.matmul((q + self.u).unsqueeze(2), keys.mT).squeeze(2) + by_position  # [B, heads, W]
        weights = scores.masked_fill_(too_old.unsqueeze(1), float("-inf")).softmax(2)
        seen = torch.matmul(weights.unsqueeze(2), values).view(B, H)
        return self._rest(h, seen), memory[:, :, 1:]

    def unroll(self, h: Tensor, memory: Tensor, age: Tensor) -> tuple[Tensor, Tensor]:
        """All steps: h [T, B, H], memory as in ``step``, age [B, T] -> h, and the keys and values of the
        memory and of all steps [B, heads, W - 1 + T, 2d]."""
        H = h.shape[2]
        q, new = self.attention_in(self.attention_norm(h)).split((H, 2 * H), 2)
        # [T, B, 2H] -> [B, heads, T, 2d], appended to the memory
        memory = torch.cat((memory, new.unflatten(2, (self.heads, -1)).permute(1, 2, 0, 3)), 2)
        q, finite, sees_nan = without_nan(q, memory, age)
        seen = attend(q * self.scale, self.u, self.v, finite, self.positions, age)
        if sees_nan is not None:
            seen = seen.masked_fill(sees_nan, float("nan"))
        return self._rest(h, seen), memory

    def _rest(self, h: Tensor, seen: Tensor) -> Tensor:
        h = self.join_attention(h, self.attention_out(seen))
        return self.join_mlp(h, self.mlp_out(self.mlp_in(self.mlp_norm(h)).relu_()))


class Gate(nn.Module):
    """The gate of GTrXL; see the module's docstring."""

    def __init__(self, hidden: int):
        super().__init__()
        self.from_new = nn.Linear(hidden, 3 * hidden)  # r, z, n
        self.from_h = nn.Linear(hidden, 2 * hidden, bias=False)  # r, z
        self.from_reset_h = nn.Linear(hidden, hidden, bias=False)  # n
        with torch.no_grad():
            for layer in (self.from_new, self.from_h, self.from_reset_h):
                for weight in layer.weight.split(hidden):
                    nn.init.xavier_uniform_(weight)
            nn.init.zeros_(self.from_new.bias)
            self.from_new.bias[hidden : 2 * hidden] = -2  # b = 2: at first h passes almost unchanged

    def forward(self, h: Tensor, new: Tensor) -> Tensor:
        """h [..., H], new [..., H] -> [..., H]."""
        H = h.shape[-1]
        rz, n = self.from_new(new.relu()).split((2 * H, H), -1)
        r, z = (rz + self.from_h(h)).sigmoid().chunk(2, -1)
        return torch.lerp(h, torch.tanh(n + self.from_reset_h(r * h)), z)


def without_nan(q: Tensor, memory: Tensor, age: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Zero all steps that are not finite, so that no NaN leaves its episode: 0 times NaN is NaN.

    Queries that attend to such a step are zeroed too; their output is NaN, and no gradient passes them.

    Args:
        q: [T, B, H].
        memory: [B, heads, W - 1 + T, 2d].
        age: [B, T] of the queries.

    Returns:
        q, memory, and which queries attend to a NaN [T, B, 1]; None if everything is known to be finite.
    """
    with torch.no_grad():
        bad = ~memory.sum((1, 3)).isfinite()  # [B, W - 1 + T]
        bad_query = ~q.sum(2).isfinite()  # [T, B]
        if not devices.synchronises(q) and not (bad.any() | bad_query.any()):
            return q, memory, None
        T, steps = q.shape[0], memory.shape[2]
        before = F.pad(bad.cumsum(1), (1, 0))  # number of bad steps before each step
        end = torch.arange(steps - T + 1, steps + 1, device=q.device).expand_as(age)
        begin = end - 1 - age.clamp(max=steps - T)
        sees_bad = (before.gather(1, end) > before.gather(1, begin)).T | bad_query
    sees_bad = sees_bad.unsqueeze(2)
    return q.masked_fill(sees_bad, 0), memory.masked_fill(bad[:, None, :, None], 0), sees_bad
