"""A program: compile the kernels of the mech arena for a GPU that need not be there."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

sys.path.insert(0, str(Path(__file__).parents[3]))
from recollect.tasks.mech import MechArena, actions, damage, fused
from tests.tasks.mech import scenes

TYPES = {torch.float32: "*fp32", torch.int64: "*i64", torch.bool: "*i1"}


def main() -> None:
    launched: list[Any] = []
    fused._launch = lambda kernel, arena, given, **options: launched.append((kernel, given, options))
    arena = scenes.arena(1, 2)
    arena.reset(0)
    fused.decide(arena, actions.decode(arena, scenes.idle(arena)), damage.Tally.of(arena))
    fused.sense(arena)
    assert [kernel.fn.__name__ for kernel, *_ in launched] == ["decide", "sense"]
    for kernel, given, options in launched:
        compile_for_hopper(arena, kernel, given, options)


def compile_for_hopper(arena: MechArena, kernel: Any, given: list[Tensor], options: dict[str, Any]) -> None:
    sizes = fused.sizes(arena.mechs)
    chosen = options | sizes
    types = {name: TYPES[tensor.dtype] for name, tensor in zip(kernel.arg_names, given)}
    constants = {name: chosen[name] for name in kernel.arg_names[len(given) :]}
    source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    backend = {"num_warps": sizes["num_warps"], "enable_fp_fusion": False}
    code = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=backend).asm["ptx"]
    assert "fma." not in code, "a product and a sum were fused: they round differently"


if __name__ == "__main__":
    main()
