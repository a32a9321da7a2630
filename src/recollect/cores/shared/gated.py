"""The body of LSTM and GRU: weights, initial state, layers and the choice of a kernel.

``layer_norm`` normalises the input of every layer and the output of the last. The layer norm of Ba et al.
(2016) stands inside the cell instead; it would change the meaning of ``nn.LSTM`` and ``nn.GRU`` weights, and
neither oneDNN, cuDNN nor our kernels compute it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from recollect.cores.contract import Core
from recollect.cores.shared.initial_weights import init_gates
from recollect.kernels import cudnn
from recollect.kernels.segments import Segments, split_at_resets
from recollect.kernels.triton import available

Leaves = tuple[Tensor, ...]
"""The leaves of a state: (h, c) or (h,), each [B, layers, H]."""
Layer = Callable[..., Leaves]
"""One layer over all steps, or one step of it: x, leaves [B, H], weights -> y and the leaves after it."""


class GatedCore(Core):
    """Layers of one cell on top of each other; the output is h of the last layer, normalised on request.

    ``rnn`` holds the weights and is never called: the weights of PyTorch's module load into it.

    Args:
        input_size: D.
        config: ``LSTMConfig`` or ``GRUConfig``.
        rnn: PyTorch's module.
    """

    leaves: ClassVar[tuple[str, ...]]
    """Names of the leaves of the state, as in the equations."""
    rnn: nn.RNNBase

    def __init__(self, input_size: int, config: Any, rnn: Callable[..., nn.RNNBase]):
        super().__init__(input_size, config.hidden)
        self.config = config
        self.starts_at_zero = not config.learned_initial_state
        self.rnn = rnn(input_size, config.hidden, config.layers)
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
    def _fused(self, x: Tensor) -> Layer | None:
        """The Triton kernel of a layer, or None where it cannot run on x [..., D]."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """``leaves``."""
        return self.leaves

    def steps_by_unroll(self, x: Tensor) -> bool:
        """True where one Triton kernel serves acting and learning."""
        return self._fusable(x) is not None

    def _fusable(self, x: Tensor) -> Layer | None:
        # torch.compile compiles a step as a whole, from torch's own cell.
        if not available.suits(x) or torch.compiler.is_compiling():
            return None
        return self._fused(x)

    def _initial(self) -> Leaves:
        return tuple(getattr(self, f"initial_{name}") for name in self.leaves)

    def _weights(self) -> list[Tensor]:
        """The weights of a single layer. ``all_weights`` would cost 5 us a step."""
        rnn: Any = self.rnn
        return [rnn.weight_ih_l0, rnn.weight_hh_l0, rnn.bias_ih_l0, rnn.bias_hh_l0]

    def _unroll_packed(
        self, x: Tensor, first: Tensor, state: Leaves, function: Callable[..., Any], layer: Layer
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
        for k, (weights, *leaves) in enumerate(
            zip(self.rnn.all_weights, *(leaf.unbind(1) for leaf in state))
        ):
            if takes_initial:
                initial = [leaf[:, k] for leaf in self._initial()]
                options = {"initial": initial[0] if len(initial) == 1 else tuple(initial)}
            x, *end = layer(self._normalised(x, k), *leaves, *weights, **options)
            ends.append(end)
        return self._normalised(x, -1), tuple(_stack(leaves) for leaves in zip(*ends))

    def _normalised(self, x: Tensor, k: int) -> Tensor:
        """The input of layer ``k``, or with -1 the output of the last layer."""
        return self.norms[k](x) if self.config.layer_norm else x


def _cudnn_layer(function: Callable[..., Any], x: Tensor, *given: Tensor, segments: Segments) -> Leaves:
    """One layer on cuDNN: ``given`` is the leaves [S, H], then the four weights."""
    state = tuple(leaf.unsqueeze(1) for leaf in given[:-4])
    y, *end = cudnn.run_packed(function, x, state, given[-4:], segments)
    return y, *(leaf.squeeze(1) for leaf in end)


def _stack(layers: tuple[Tensor, ...]) -> Tensor:
    """[B, H] of every layer -> [B, layers, H]; of one layer without a copy."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(layers, 1)
