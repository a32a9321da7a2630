"""The body of LSTM and GRU: weights, initial state, layers and the choice of a kernel.

``layer_norm`` normalises the input of every layer and the output of the last. The layer norm of Ba et al.
(2016) stands inside the cell instead; it would change the meaning of ``nn.LSTM`` and ``nn.GRU`` weights, and
neither oneDNN, cuDNN nor our kernels compute it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recollect.base import triton_support
from recollect.cores.contract import Core
from recollect.cores.shared.initial_weights import init_gates
from recollect.kernels import cudnn
from recollect.kernels.segments import Segments, split_at_resets

Leaves = tuple[Tensor, ...]
"""The leaves of a state: (h, c) or (h,), each [B, layers, H]."""
Layer = Callable[..., Leaves]
"""One layer over all steps, or one step of it: x, leaves [B, H], weights -> y and the leaves after it."""


class GatedCore(Core):
    """Layers of one cell on top of each other; the output is h of the last layer, normalised on request.

    The state is the tuple of its leaves, or the leaf itself if there is one. ``config`` is ``LSTMConfig`` or
    ``GRUConfig``. ``rnn`` holds the weights and is never called: weights of PyTorch's module load into it.
    """

    is_step_traceable = True
    leaves: ClassVar[tuple[str, ...]]
    """Names of the leaves of the state, as in the equations."""
    rnn_class: ClassVar[type[nn.LSTM] | type[nn.GRU]]
    """PyTorch's module."""

    def __init__(self, input_size: int, config: Any):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        self.rnn = self.rnn_class(input_size, config.hidden, config.layers)
        for name in self.leaves:
            zeros = torch.zeros(1, config.layers, config.hidden)
            if config.learned_initial_state:
                self.register_parameter(f"initial_{name}", nn.Parameter(zeros))
            else:
                self.register_buffer(f"initial_{name}", zeros, persistent=False)
        sizes = (input_size, *(config.hidden,) * config.layers) if config.layer_norm else ()
        self.norms = nn.ModuleList(nn.LayerNorm(size) for size in sizes)  # before each layer, and at the end
        init_gates(self.rnn)
        with torch.no_grad():
            for layer in range(config.layers):
                self._init_bias(getattr(self.rnn, f"bias_ih_l{layer}"))

    @abstractmethod
    def _init_bias(self, bias: Tensor) -> None:
        """Set the initial gate biases of one layer, [gates * H], in place."""

    @abstractmethod
    def _cell(self, x: Tensor, *given: Tensor) -> Leaves:
        """One step of one layer: x [B, D], leaves [B, H], weights -> y and the leaves."""

    @abstractmethod
    def _unroll_eager(self, x: Tensor, state: Leaves, first: Tensor) -> tuple[Tensor, Leaves]:
        """``_unroll`` where the Triton kernel cannot run."""

    @abstractmethod
    def _fused(self, x: Tensor) -> Layer | None:
        """The Triton kernel of a layer, or None where it cannot run on x [..., D]."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """``leaves``."""
        return self.leaves

    def initial_state(self, batch: int) -> Tensor | Leaves:
        """Zeros or the learned state, each leaf [batch, layers, H], as expanded views."""
        return self._state([leaf.expand(batch, -1, -1) for leaf in self._initial()])

    def steps_by_unroll(self, x: Tensor) -> bool:
        """True where one Triton kernel serves acting and learning."""
        return self._fusable(x) is not None

    def _step(self, x: Tensor, state: Tensor | Leaves) -> tuple[Tensor, Tensor | Leaves]:
        before = (state,) if isinstance(state, Tensor) else state
        if self.config.layers == 1 and not self.config.layer_norm:
            y, *end = self._cell(x, *[leaf.squeeze(1) for leaf in before], *self._weights())
            return y, self._state([leaf.unsqueeze(1) for leaf in end])
        y, end = self._layers(x, before, self._cell)
        return y, self._state(end)

    def _unroll(self, x: Tensor, state: Tensor | Leaves, first: Tensor) -> tuple[Tensor, Tensor | Leaves]:
        before, layer = (state,) if isinstance(state, Tensor) else state, self._fusable(x)
        if layer is None:
            y, end = self._unroll_eager(x, before, first)
        else:
            is_learned = self.config.learned_initial_state
            y, end = self._layers(x, before, partial(layer, first=first), is_learned)
        return y, self._state(end)

    def _state(self, leaves: Sequence[Tensor]) -> Tensor | Leaves:
        return leaves[0] if len(leaves) == 1 else tuple(leaves)

    def _fusable(self, x: Tensor) -> Layer | None:
        # torch.compile compiles a step as a whole, from torch's own cell.
        if not triton_support.suits(x) or torch.compiler.is_compiling():
            return None
        return self._fused(x)

    def _initial(self) -> Leaves:
        return tuple(getattr(self, f"initial_{name}") for name in self.leaves)

    def _weights(self) -> list[Tensor]:
        """The weights of a single layer. ``all_weights`` would cost 5 us a step."""
        rnn: Any = self.rnn
        return [rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0]

    def _unroll_packed(
        self, x: Tensor, state: Leaves, first: Tensor, function: Callable[..., Any], layer: Layer
    ) -> tuple[Tensor, Leaves]:
        """All steps over packed segments: on cuDNN by ``function``, elsewhere by the kernel ``layer``."""
        segments = split_at_resets(first)
        state = tuple(segments.start(leaf, initial) for leaf, initial in zip(state, self._initial()))
        if cudnn.suits(x) and not self.config.layer_norm:
            weights = [w for layer in self.rnn.all_weights for w in layer]
            y, *end = cudnn.run_packed(function, x, state, weights, segments)
            return y, tuple(end)
        if cudnn.suits(x):
            layer = partial(_cudnn_layer, function)
        return self._layers(x, state, partial(layer, segments=segments))

    def _layers(
        self, x: Tensor, state: Leaves, layer: Layer, takes_initial: bool = False
    ) -> tuple[Tensor, Leaves]:
        """One layer after the other over x [..., D], from leaves [rows, layers, H].

        ``takes_initial``: whether ``layer`` takes the initial state of an episode, [1, H] or a tuple of such.
        """
        ends, options = [], {}
        by_layer = zip(self.rnn.all_weights, *(leaf.unbind(1) for leaf in state))
        for k, (weights, *leaves) in enumerate(by_layer):
            if takes_initial:
                options = {"initial": self._state([leaf[:, k] for leaf in self._initial()])}
            x, *end = layer(self._normalised(x, k), *leaves, *weights, **options)
            ends.append(end)
        # [B, H] of every layer -> [B, layers, H]; of one layer without a copy
        stack = torch.stack if len(ends) > 1 else lambda layers, dim: layers[0].unsqueeze(dim)
        return self._normalised(x, -1), tuple(stack(leaves, 1) for leaves in zip(*ends))

    def _normalised(self, x: Tensor, k: int) -> Tensor:
        """The input of layer ``k``, or with -1 the output of the last layer."""
        return self.norms[k](x) if self.config.layer_norm else x


def _cudnn_layer(function: Callable[..., Any], x: Tensor, *given: Tensor, segments: Segments) -> Leaves:
    """One layer on cuDNN: ``given`` is the leaves [S, H], then the four weights."""
    state = tuple(leaf.unsqueeze(1) for leaf in given[:-4])
    y, *end = cudnn.run_packed(function, x, state, given[-4:], segments)
    return y, *(leaf.squeeze(1) for leaf in end)
