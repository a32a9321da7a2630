"""An external memory: slots that a controller reads and writes, addressed by content.

    c      = controller(x)                                  any other core, over all steps
    orders = W_orders c                                     per step: keys k and strengths b, erase, add
    q      = (1 + softplus(b)) k / |k|                      for every read, and for the write
    reads, M' = read M and then write it with q, sigmoid(erase), tanh(add)          (``kernels.cpu.pmm``)
    y      = norm(W_y [c, reads])

Addressing by content, erase and add are those of Graves, Wayne and Danihelka, "Neural Turing machines"
(2014). Differences:

- The reads go to the output only, not to the controller. So the controller unrolls with its own kernel, all
  orders of a rollout are one product, and only the memory needs a loop.
- Slots have learned keys, which are added to their content for addressing. The memory starts at zero; without
  keys all slots would be equal, get equal weights and writes, and stay equal.
- A step reads before it writes.
- There is no addressing by shifts: the slot keys already distinguish positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recollect.base import devices
from recollect.config.core_choice import PMMConfig
from recollect.cores.build_from_spec import make_core
from recollect.cores.contract import Core
from recollect.kernels.cpu.pmm import EPSILON, access, recall, recall_by_steps
from recollect.kernels.segments import split_at_resets

PMMState = dict[str, Any]
"""``controller``: the controller's state; ``memory``: [B, slots, width]."""


class PMM(Core):
    """See the module's docstring, and ``PMMState`` for the state."""

    empty: Tensor

    def __init__(self, input_size: int, config: PMMConfig):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.controller = make_core(config.part(), input_size, "core.controller")
        self.rounding = self.controller.rounding
        self.starts_at_zero = self.controller.starts_at_zero or not self.controller.has_memory
        H, R, width = self.controller.output_size, config.read_heads, config.width
        # Sizes of: keys and strengths (of the reads, then of the write), erase, add.
        self.sizes = ((R + 1) * width, R + 1, width, width)
        self.orders = nn.Linear(H, sum(self.sizes))
        self.slot_keys = nn.Parameter(torch.empty(config.slots, width))
        self.out = nn.Linear(H + R * width, config.hidden)
        self.norm = nn.LayerNorm(config.hidden)
        self.register_buffer("empty", torch.zeros(1, config.slots, width), persistent=False)
        self._init_weights()

    @torch.no_grad()
    def _init_weights(self) -> None:
        nn.init.normal_(self.slot_keys)
        for weight in (*self.orders.weight.split(self.sizes), self.out.weight):
            nn.init.xavier_uniform_(weight)
        nn.init.zeros_(self.out.bias)
        nn.init.zeros_(self.orders.bias)
        _, _, erase, _ = self.orders.bias.split(self.sizes)
        erase.fill_(self.config.erase_bias)

    def initial_state(self, batch: int) -> PMMState:
        """The controller's initial state and a memory of zeros."""
        memory = self.empty.expand(batch, -1, -1)
        return {"controller": self.controller.initial_state(batch), "memory": memory}

    def _step(self, x: Tensor, state: PMMState) -> tuple[Tensor, PMMState]:
        y, controller = self.controller._step(x, state["controller"])
        orders = self._orders(y).unflatten(1, (-1, self.config.width))
        reads, memory = access(state["memory"], orders, self.slot_keys)
        return self._output(y, reads.flatten(1)), {"controller": controller, "memory": memory}

    def _unroll(self, x: Tensor, state: PMMState, first: Tensor) -> tuple[Tensor, PMMState]:
        y, controller = self.controller.unroll(x, state["controller"], first)
        if devices.synchronises(first):
            reads, memory = recall_by_steps(
                self._orders(y), state["memory"], self.empty, self.slot_keys, first
            )
        else:
            segments = split_at_resets(first)
            memory = segments.start(state["memory"], self.empty)
            reads, memory = recall(self._orders(y), memory, self.slot_keys, segments)
        return self._output(y, reads), {"controller": controller, "memory": memory}

    def _orders(self, y: Tensor) -> Tensor:
        """y [..., H] -> queries, erase and add [..., (read_heads + 3) * width]."""
        keys, strength, erase, add = self.orders(y).split(self.sizes, -1)
        keys = keys.unflatten(-1, (-1, self.config.width))
        scale = (1 + F.softplus(strength)) * (keys.square().sum(-1) + EPSILON).rsqrt()
        return torch.cat(((keys * scale.unsqueeze(-1)).flatten(-2), erase.sigmoid(), add.tanh()), -1)

    def _output(self, y: Tensor, reads: Tensor) -> Tensor:
        """y [..., H], reads [..., read_heads * width] -> [..., hidden]."""
        return self.norm(self.out(torch.cat((y, reads), -1)))
