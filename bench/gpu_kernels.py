"""Which part of the work a GPU kernel belongs to: by its name, and where that says nothing by its place.

Inside of a CUDA graph no Python range is known. But the order is: in an update everything before the
core's forward kernel encodes, everything after it belongs to heads and loss, and so on. Torch's elementwise
kernels have the same names everywhere, so that single ones may be counted with a neighbour.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

ENV, ENCODER, FORWARD, BACKWARD = "env", "encoder", "core forward", "core backward"
HEADS, OPTIMISER, COPIES, METRICS, OTHER = (
    "heads and loss",
    "optimiser",
    "gather and copies",
    "returns and metrics",
    "other",
)
GROUPS = (ENV, ENCODER, FORWARD, BACKWARD, HEADS, OPTIMISER, COPIES, METRICS, OTHER)

_CORES = r"(lstm|gru|rnn|recurren|selective|scan)"
NAMES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (group, re.compile(pattern, re.IGNORECASE))
    for group, pattern in (
        # torch's cumulative sums are called scans, too.
        (METRICS, r"tensor_kernel_scan|devicescan|cumsum|gae|vtrace|returns|episode"),
        (HEADS, r"loss|softmax|logits|categorical|entropy|_heads?_|^narrow"),  # policy/thin_kernels.py
        (ENCODER, r"^shallow"),
        (OPTIMISER, r"multi_tensor|adam|foreach|lpnorm|normtwo|clip_grad"),
        # Those of cuDNN say _fp and _bp; plain names without a template are Triton's.
        (BACKWARD, rf"{_CORES}\w*(backward|bwd|_bp)|(backward|bwd)\w*{_CORES}|^\w*(backward|bwd)\w*$"),
        (FORWARD, rf"{_CORES}\w*(forward|fwd|_fp|kernel|step|unroll)|^\w*(forward|fwd)\w*$|^_?{_CORES}$"),
        (ENV, r"cartpole|pendulum|deck|forage|maze|recall|copy_task|_cue|_task|_env|env_"),
        (
            COPIES,
            r"memcpy|memset|catarray|index_?select|gather|scatter|index_elementwise|index_kernel"
            r"|direct_copy|copy_kernel|fillfunctor",
        ),
    )
)
"""What a name decides wherever the kernel stands; the first that is found counts."""
PRODUCT = re.compile(r"(?i:gemm|gemv|nvjet|cutlass|xmma|splitk|wgmma|addmm|aten::mm|linear)")
SAMPLING = re.compile(
    r"(?i:argmax|argmin|arg_?max|exponential|multinomial|distribution|uniform|philox|random|sampl)"
)
AFTER_BACKWARD = 3
"""Products of the core after its backward kernel: the input's gradient and those of its two matrices."""


@dataclass(frozen=True)
class Kernel:
    """One that ran, or a copy."""

    name: str
    start: float
    """Microseconds."""
    duration: float
    span: str
    """"acting", "update" or "rest"."""

    @property
    def end(self) -> float:
        return self.start + self.duration


def by_name(name: str) -> str | None:
    """The group that the name decides, if it does."""
    return next((group for group, pattern in NAMES if pattern.search(name)), None)


def grouped(kernels: Sequence[Kernel]) -> list[str]:
    """The group of every kernel; they are in the order of time."""
    found = [OTHER] * len(kernels)
    for span, place in (("acting", _acting), ("update", _update)):
        own = [i for i, kernel in enumerate(kernels) if kernel.span == span]
        for i, group in zip(own, place([kernels[i].name for i in own])):
            found[i] = group
    for i, kernel in enumerate(kernels):
        if kernel.span == "rest":
            found[i] = by_name(kernel.name) or METRICS
    return found


def _acting(names: list[str]) -> list[str]:
    """encoder, core, heads until the action is drawn, env; and again."""
    groups: list[str] = []
    place, is_drawn = ENCODER, False
    for name in names:
        decided, is_product = by_name(name), bool(PRODUCT.search(name))
        if decided == FORWARD:
            place, is_drawn = HEADS, False
        elif decided == ENV:
            place = ENV
        elif place == ENV and is_product:
            place = ENCODER
        elif place == HEADS and SAMPLING.search(name):
            is_drawn = True
        elif place == HEADS and is_drawn and decided is None and not is_product:
            place = ENV
        groups.append(decided or place)
    return _with_input_products(names, groups)


def _update(names: list[str]) -> list[str]:
    """Returns; then for every minibatch gather, encoder, core, heads and loss, and all back; then metrics."""
    groups: list[str] = []
    place, products = METRICS, 0
    for name in names:
        decided, is_product = by_name(name), bool(PRODUCT.search(name))
        if decided == FORWARD:
            place = HEADS
        elif decided == BACKWARD:
            place, products = BACKWARD, 0
        elif decided == OPTIMISER:
            place = OPTIMISER
        elif decided == COPIES and place in (METRICS, OPTIMISER):
            place = ENCODER  # a minibatch is gathered
        elif is_product and place == BACKWARD:
            products += 1
            place = ENCODER if products > AFTER_BACKWARD else BACKWARD
        elif is_product and place in (METRICS, OPTIMISER):
            place = ENCODER
        groups.append(decided or place)
    last = max((i for i, name in enumerate(names) if by_name(name) == OPTIMISER), default=len(names))
    for i in range(last + 1, len(groups)):
        if by_name(names[i]) in (None, COPIES):
            groups[i] = METRICS
    return _with_input_products(names, groups)


def _with_input_products(names: list[str], groups: list[str]) -> list[str]:
    """The last product before a core's forward kernel is the core's own: that of its input."""
    latest: int | None = None
    for i, group in enumerate(groups):
        if group == ENCODER and PRODUCT.search(names[i]):
            latest = i
        elif group == FORWARD and by_name(names[i]) == FORWARD and latest is not None:
            groups[latest], latest = FORWARD, None
    return groups


def busy(kernels: Sequence[Kernel]) -> float:
    """Microseconds in which at least one kernel ran."""
    total, until = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda kernel: kernel.start):
        total += max(0.0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)
    return total
