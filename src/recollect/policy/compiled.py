"""torch.compile for the pure parts of a policy.

* ``_advance``: an acting step up to the head, that is normaliser, encoder, core with reset, critic (if any);
* ``_encode``, ``_encode_for_critic``: normaliser and encoder, for learning;
* ``_value``: the critic in real units, for learning.

Distributions, and the layer before them, are few operations and stay eager. So does the unroll: its kernels
read ``first`` on the host to split episodes, which a graph cannot.

No module is wrapped: weights keep their names, so checkpoints of compiled and eager runs are the same, and a
copy or a pickle of a compiled policy is eager.

An acting step is compiled for the first number of rows, and a second time for any number; the parts for
learning are compiled for any number. A single row and work without gradients get their own graphs. This
bounds the graphs of a run (``GRAPHS``, and the metric ``compiled_graphs``).
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
"""torch's backend. "aot_eager" and "eager", for tests, need no C++ compiler and give no speed-up."""

GRAPHS = 16
"""The most graphs that a run compiles, if encoder and core are one graph each: ``_advance`` for the first
number of rows, any and one; the others for any and one, with gradients and without; a few for odd layouts."""


class Compiled:
    """The compiled parts of one policy, under the policy's names; each is compiled on its first call."""

    def __init__(self, policy: Policy, backend: str | None = None):
        """``backend``: as torch names it; ``BACKEND`` if None."""
        self.backend = backend or BACKEND
        device = next(policy.parameters()).device
        check_backend(device, self.backend)
        self.graphs = 0
        """The number of graphs compiled so far."""
        # LSTM and GRU hold their weights in torch's modules, which are never called but break a graph. There
        # is no narrower switch; patching it for each call costs 60 us.
        torch._dynamo.config.allow_rnn = True
        if policy.obs_norm is not None:
            policy.obs_norm.is_one_path = True
        with torch.no_grad():  # a core caches the shape of its state in its first call
            for core in (trunk.core for trunk in policy.trunks):
                x = torch.zeros(1, core.input_size, device=device, dtype=policy.dtype)
                core.step(x, core.initial_state(1), torch.ones(1, dtype=torch.bool, device=device))
        self._advance = self._compile(policy._advance)
        self._encode_rows = self._compile(policy._encode)
        self._encode_rows_for_critic = self._compile(policy._encode_for_critic)
        self._value_rows = self._compile(policy._value)

    def _encode(self, obs: Tree) -> Tensor:
        """``Policy._encode``."""
        return self._encode_rows(_any_rows(obs))

    def _encode_for_critic(self, obs: Tree) -> Tensor:
        """``Policy._encode_for_critic``."""
        return self._encode_rows_for_critic(_any_rows(obs))

    def _value(self, y: Tensor) -> Tensor:
        """``Policy._value`` of y [T, B, D]."""
        rows = _any_rows(y.flatten(0, 1))  # [T, B, D] -> [T * B, D]
        return self._value_rows(rows).view(y.shape[:2])  # [T * B] -> [T, B]

    def _compile(self, part: Callable[..., Any]) -> Callable[..., Any]:
        return torch.compile(_own_code(part), backend=self._count)

    def _count(self, graph: Any, inputs: Any) -> Any:
        """The backend, with a count of graphs."""
        self.graphs += 1
        return torch._dynamo.lookup_backend(self.backend)(graph, inputs)


def _any_rows(value: Tree) -> Tree:
    """``value`` [N, ...], marked so that the compiler makes a graph for any N."""
    for leaf in tree.leaves(value):
        torch._dynamo.maybe_mark_dynamic(leaf, 0)
    return value


def check_backend(device: torch.device, backend: str | None = None) -> None:
    """Raise unless torch.compile can run: inductor needs a C++ compiler, and Triton on a GPU."""
    if (backend or BACKEND) != "inductor":
        return
    usual = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    compiler = os.environ.get("CXX", usual)
    if shutil.which(compiler) is None:
        raise ConfigError(
            f"compile = true needs a C++ compiler, and {compiler} was not found: install one (Debian or "
            "Ubuntu: apt install g++; macOS: xcode-select --install), set CXX to yours, or leave compile off"
        )
    if device.type == "cuda" and find_spec("triton") is None:
        raise ConfigError("compile = true needs Triton on a GPU: pip install triton, or leave compile off")


def _own_code(method: Callable[..., Any]) -> Callable[..., Any]:
    """The method with its own copy of the code object.

    torch caches at most eight graphs per code object, which all policies would share: a ninth policy in a
    process (a sweep, a test) would silently run eagerly.
    """
    fn: Any = method.__func__  # pyright: ignore[reportFunctionMemberAccess]
    copy = FunctionType(fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    return MethodType(copy, method.__self__)  # pyright: ignore[reportFunctionMemberAccess]
