"""torch.compile for the pure parts of a policy.

=====================  ========================================================================
compiled               what it is
=====================  ========================================================================
``_advance``           an acting step up to the action head: normaliser, encoder, core with its reset,
                       critic
``_encode``            normaliser and encoder, for learning
``_value``             the critic in real units, for learning
=====================  ========================================================================

Distributions, and the one layer before them, are a handful of operations and stay as they are. So does the
unroll: its kernels look at ``first`` to cut episodes apart, which no graph can.

Nothing is wrapped: the names of the weights stay, so that checkpoints of compiled and eager runs are the
same, and a copy or a pickle of a compiled policy is an eager one.

An acting step is compiled for the number of rows that it meets first, and once more for any number;
the parts for learning take any number from the start. A row that is alone gets a graph of its own, and
so does work without gradients. That bounds the graphs of a run (``GRAPHS``, and the metric
``compiled_graphs``), however many steps it has.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from recollect.base import tree
from recollect.base.types import Tree
from recollect.errors import ConfigError

if TYPE_CHECKING:
    from recollect.policy.policy import Policy

BACKEND = "inductor"
"""What compiles. "aot_eager" and "eager" need no C++ compiler and make nothing faster: for tests."""

GRAPHS = 16
"""The most graphs that a run compiles, if encoder and core are one graph each: of ``_advance`` for this
number of rows, for any, and for one; of the others for any and for one, with gradients and without, and
a few for odd memory layouts."""


class Compiled:
    """The compiled parts of one policy, made when they are first called; it answers to the policy's names."""

    def __init__(self, policy: Policy, backend: str | None = None):
        """``backend``: as torch names it; ``BACKEND`` if None."""
        self.backend = backend or BACKEND
        device = next(policy.parameters()).device
        check_backend(device, self.backend)
        self.graphs = 0
        """How many were compiled so far."""
        # Our LSTM and GRU keep their weights in torch's modules, at the sight of which torch gives up a
        # graph. They are never called. There is no narrower switch: to patch it for a call costs 60 us.
        torch._dynamo.config.allow_rnn = True
        if policy.obs_norm is not None:
            policy.obs_norm.is_one_path = True
        with torch.no_grad():  # a core notes the shape of its state when it is first called
            dtype = policy.critic.weight.dtype
            x = torch.zeros(1, policy.core.input_size, device=device, dtype=dtype)
            policy.core.step(x, policy.core.initial_state(1), torch.ones(1, dtype=torch.bool, device=device))
        self._advance = self._compile(policy._advance)
        self._encode_rows = self._compile(policy._encode)
        self._value_rows = self._compile(policy._value)

    def _encode(self, obs: Tree) -> Tensor:
        """``Policy._encode``."""
        for leaf in tree.leaves(obs):
            torch._dynamo.maybe_mark_dynamic(leaf, 0)
        return self._encode_rows(obs)

    def _value(self, y: Tensor) -> Tensor:
        """``Policy._value`` of y [T, B, D]."""
        rows = y.flatten(0, 1)  # [T, B, D] -> [T * B, D]
        torch._dynamo.maybe_mark_dynamic(rows, 0)
        return self._value_rows(rows).view(y.shape[:2])  # [T * B] -> [T, B]

    def _compile(self, part: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(_own_code(part), backend=self._count)

    def _count(self, graph: Any, inputs: Any) -> Any:
        """The backend, counting."""
        self.graphs += 1
        return torch._dynamo.lookup_backend(self.backend)(graph, inputs)


def check_backend(device: torch.device, backend: str | None = None) -> None:
    """Refuse what torch.compile cannot do here: inductor writes C++ for a CPU and Triton for a GPU."""
    if (backend or BACKEND) != "inductor":
        return
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"compile = true needs a C++ compiler, and {compiler} is not here: install one (Debian, Ubuntu: "
            "apt install g++; macOS: xcode-select --install), set CXX to yours, or leave compile off"
        )
    if device.type == "cuda" and find_spec("triton") is None:
        raise ConfigError(
            "compile = true needs Triton on a GPU, and torch finds none: pip install triton, or leave "
            "compile off"
        )


def _own_code(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method with a copy of its code.

    torch keeps its graphs with the code, eight at most, and all policies share theirs: a ninth policy in a
    process (a sweep, a test) would silently run as it is.
    """
    fn: Any = method.__func__  # pyright: ignore[reportFunctionMemberAccess]
    copy = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    return MethodType(copy, method.__self__)  # pyright: ignore[reportFunctionMemberAccess]
