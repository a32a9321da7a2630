"""Which sizes suit the scans in Triton: one line for every choice, forwards and backwards, best of a few.

    python bench/gpu_scans.py

At the size of a minibatch, T = 64, 4096 rows and 128 features. GB/s counts what has to be read and written
once; beside it stands the torch path.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable

import torch

from recollect.base import triton_support
from recollect.kernels import linear_scan as scans
from recollect.kernels.cpu import selective_scan
from recollect.kernels.triton.scan import fused_scan, fused_selective_scan


def milliseconds(run: Callable[[], object], times: int = 3, runs: int = 5) -> float:
    """Of one run: several between two events, so that launches are hidden, and the shortest of some times."""
    run()
    found = []
    for _ in range(times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(runs):
            run()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / runs)
    return min(found)


def line(name: str, forward: float, backward: float, size: tuple[float, float]) -> None:
    """One choice: its times, and the rate at which ``size`` bytes went through memory."""
    rates = [bytes_ / time / 1e6 for bytes_, time in zip(size, (forward, backward))]
    print(
        f"{name:44} {forward:8.3f} ms {rates[0]:6.0f} GB/s {backward:8.3f} ms {rates[1]:6.0f} GB/s",
        flush=True,
    )


def both(run: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> tuple[float, float]:
    """Forwards with a graph, and backwards."""
    forward = milliseconds(run)
    y = run()
    dy = torch.randn_like(y)
    return forward, milliseconds(lambda: torch.autograd.grad(y, inputs, dy, retain_graph=True))


def plain_scans(T: int, B: int, features: int) -> None:
    """The linear recurrence: real with factors of every step, and complex with constant ones."""
    first = torch.rand(T, B, device="cuda") < 0.02
    for dtype, varies in ((torch.float32, True), (torch.complex64, False)):
        shape = (T, B, features)
        a = (torch.rand(shape if varies else shape[2:], device="cuda") * 0.9).to(dtype).requires_grad_()
        b = torch.randn(shape, dtype=dtype, device="cuda").requires_grad_()
        h0 = torch.randn(shape[1:], dtype=dtype, device="cuda").requires_grad_()
        stream = b.numel() * b.element_size()
        size = (3.0 * stream, 5.0 * stream) if varies else (2.0 * stream, 3.0 * stream)
        inputs = [a, b, h0]
        print(f"scan, {dtype}, factors {'vary' if varies else 'are constant'}")
        for (block, warps), steps in itertools.product(((128, 2), (128, 4), (256, 2), (256, 4)), (4, 8)):
            fused_scan.BLOCK, fused_scan.WARPS, fused_scan.STEPS = block, warps, steps
            times = both(lambda: scans.scan(a, b, h0, first), inputs)  # noqa: B023
            line(f"  BLOCK {block}, WARPS {warps}, STEPS {steps}", *times, size)
        suits, triton_support.suits = triton_support.suits, lambda x: False
        line("  torch", *both(lambda: scans.scan(a, b, h0, first), inputs), size)  # noqa: B023
        triton_support.suits = suits


def selective_scans(T: int, R: int, inner: int, N: int) -> None:
    """Mamba's."""
    sequences = [torch.randn(T, R, inner, device="cuda") for _ in range(3)]
    sequences += [torch.randn(T, R, N, device="cuda") for _ in range(2)]
    A, D = -torch.rand(N, inner, device="cuda") - 0.05, torch.ones(inner, device="cuda")
    inputs = [t.requires_grad_() for t in (*sequences, A, D, torch.randn(R, N, inner, device="cuda"))]
    first = torch.rand(T, R, device="cuda") < 0.02
    stream = 4.0 * T * R * inner
    size = (4 * stream, 7 * stream)
    print("selective scan (GB/s without the states in between)")
    run: Callable[[], torch.Tensor] = lambda: selective_scan.selective_scan(*inputs, first)[0]  # noqa: E731
    for channels, chunk, registers in (
        (32, 8, 168), (32, 8, None), (32, 8, 128), (32, 4, 168), (32, 16, 168), (64, 8, 168), (128, 8, 168),
    ):  # fmt: skip
        fused_selective_scan.CHANNELS, fused_selective_scan.CHUNK = channels, chunk
        fused_selective_scan.REGISTERS = registers
        line(f"  CHANNELS {channels}, CHUNK {chunk}, REGISTERS {registers}", *both(run, inputs), size)
    suits, triton_support.suits = triton_support.suits, lambda x: False
    line("  torch", *both(run, inputs), size)
    triton_support.suits = suits


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=64)
    options = parser.parse_args()
    plain_scans(options.steps, options.rows, 128)
    selective_scans(options.steps, options.rows, 128, 16)


if __name__ == "__main__":
    main()
