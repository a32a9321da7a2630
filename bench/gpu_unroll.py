"""Our LSTM and GRU in Triton against cuDNN's: a whole unroll, forwards, and forwards and backwards.

Ours has resets in 2 % of all steps, cuDNN's has none. Gradients are those of x and of all weights. Ours is
replayed from a CUDA graph, as training does it. cuDNN is called, which for few rows may be slower than it
could be; with ``--cudnn-graph`` the faster of calls and a graph counts.

    python bench/gpu_unroll.py --out bench/results/gpu_unroll.json
    python bench/gpu_unroll.py --tune --core lstm --out /tmp/tuned.json

``--tune`` tries blocks (``tiling.Blocks``) and prints the best of every case, for the tables in
``fused_lstm`` and ``fused_gru``: first of 128 units with many rows in bf16 and TF32, of both cores, then of
the others, as far as the time goes. Kernels are compiled beforehand by many processes, which leave them in
Triton's cache. What fails is reported and left out; results are written after every case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

import common
import torch
from torch import Tensor, nn

from recollect.base import devices
from recollect.kernels.triton import tiling
from recollect.kernels.triton.tiling import Blocks

STEPS = 64
GATES = {"lstm": 4, "gru": 3}


class Case(NamedTuple):
    """One row of the table."""

    core: str
    hidden: int
    rows: int
    products: devices.Products


class Variant(NamedTuple):
    """One way to cut up one kernel."""

    core: str
    hidden: int
    products: devices.Products
    way: tiling.Way
    blocks: Blocks


def module(core: str) -> Any:
    return import_module(f"recollect.kernels.triton.{core}.fused_{core}")


# What is measured -------------------------------------------------------------------------------


def ours(case: Case, steps: int = STEPS) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """The forward pass, and both."""
    torch.manual_seed(0)
    H, B, G = case.hidden, case.rows, GATES[case.core]
    bound = H**-0.5
    shapes = ((G * H, H), (G * H, H), (G * H,), (G * H,))
    weights = [torch.empty(shape, device="cuda").uniform_(-bound, bound).requires_grad_() for shape in shapes]
    x = torch.randn(steps, B, H, device="cuda", requires_grad=True)
    state = [torch.zeros(B, H, device="cuda") for _ in range(2 if case.core == "lstm" else 1)]
    first = torch.rand(steps, B, device="cuda") < 0.02
    dy = torch.randn(steps, B, H, device="cuda")
    function = getattr(module(case.core), case.core)

    def forward() -> Tensor:
        with devices.rounded(case.products):
            return function(x, *state, *weights, first, None)[0]

    return forward, lambda: torch.autograd.grad(forward(), [x, *weights], dy)


def cudnn(case: Case) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """torch's own module, without resets."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if case.products == "bf16" else torch.float32
    rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[case.core](case.hidden, case.hidden).cuda().to(dtype)
    rnn.flatten_parameters()
    x = torch.randn(STEPS, case.rows, case.hidden, device="cuda", dtype=dtype, requires_grad=True)
    dy = torch.randn(STEPS, case.rows, case.hidden, device="cuda", dtype=dtype)
    inputs = [x, *rnn.parameters()]

    def forward() -> Tensor:
        torch.backends.cudnn.allow_tf32 = case.products != "fp32"
        return rnn(x)[0]

    return forward, lambda: torch.autograd.grad(forward(), inputs, dy)


def is_acting(case: Case) -> bool:
    """Of which cases one step without gradients is measured, too."""
    return case.core == "lstm" and case.hidden == 128 and case.rows == 16384


# How --------------------------------------------------------------------------------------------


def captured(work: Callable[[], Any]) -> Callable[[], Any]:
    """The same from a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def clock(work: Callable[[], Any], repeats: int) -> float:
    """The median of milliseconds, after two runs that do not count."""
    for _ in range(2):
        work()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
        if len(times) >= 5 and sum(times) > 500:
            break
    return statistics.median(times)


def speeds(case: Case, forward: float, both: float) -> dict[str, float]:
    steps = STEPS * case.rows / 1e3  # of milliseconds: millions a second
    return {
        "forward_ms": round(forward, 4),
        "both_ms": round(both, 4),
        "forward_msteps": round(steps / forward, 2),
        "both_msteps": round(steps / both, 2),
    }


def measure_cudnn(case: Case, by_graph: bool) -> dict[str, float]:
    found = []
    for work in cudnn(case):
        ways = (work, captured(work)) if by_graph else (work,)
        found.append(min(clock(way, 10) for way in ways))
    return speeds(case, *found)


def measure_case(case: Case, cudnn_by_graph: bool) -> dict[str, Any]:
    forward, both = (clock(captured(work), 10) for work in ours(case))
    theirs = measure_cudnn(case, cudnn_by_graph)
    result: dict[str, Any] = {**case._asdict(), **speeds(case, forward, both), "cudnn": theirs}
    if is_acting(case):
        with torch.no_grad():
            result["step_ms"] = round(clock(captured(ours(case, steps=1)[0]), 10), 4)
    result["times_cudnn"] = round(result["both_msteps"] / theirs["both_msteps"], 2)
    print(
        f"{case.core:5}{case.hidden:4}{case.rows:6} {case.products}: forward {forward:7.3f} ms, both "
        f"{both:7.3f} ms, {result['both_msteps']:7.1f} M/s = {result['times_cudnn']:5.2f} x cuDNN "
        f"({theirs['both_msteps']:.1f} M/s)",
        flush=True,
    )
    return result


def measure(cases: list[Case], cudnn_by_graph: bool, write: Callable[[Any], None]) -> None:
    results = []
    for case in cases:
        try:
            results.append(measure_case(case, cudnn_by_graph))
        except Exception as error:  # of many kinds; the other cases are worth having
            report(case, error)
            results.append({**case._asdict(), "error": str(error)[:400]})
        write(results)
        torch.cuda.empty_cache()


def report(what: Any, error: Exception) -> None:
    print(f"{what}: {type(error).__name__}: {str(error)[:80]}", flush=True)


# Blocks -----------------------------------------------------------------------------------------


def variants(core: str, hidden: int, products: devices.Products, way: tiling.Way) -> Iterator[Variant]:
    """Blocks that are worth a try."""
    kind, _ = tiling.choose(module(core).TABLE, 4096, hidden, products, way, True)
    found = {"resident": _resident(core, way), "spread": _spread(core, way), "streamed": _streamed(products)}
    for blocks in found[kind]:
        yield Variant(core, hidden, products, way, blocks)


def _resident(core: str, way: str) -> Iterator[Blocks]:
    yield Blocks(32, 8, prefetch=True, stages=1)
    yield Blocks(16, 8, prefetch=True, stages=1)
    yield Blocks(16, 8, stages=3)
    yield Blocks(32, 8, stages=2)
    if core == "gru":
        yield Blocks(16, 8, prefetch=True, stages=1, together=2)
        yield Blocks(16, 8, stages=1, together=2)
        yield Blocks(32, 8, stages=3)
        yield Blocks(32, 16, stages=3)
    elif way == "forward":
        yield Blocks(32, 8, stages=3)
        yield Blocks(32, 16, prefetch=True, stages=1)
    else:
        yield Blocks(32, 8, stages=1)


def _spread(core: str, way: str) -> Iterator[Blocks]:
    for rows in (64, 32, 16):
        yield Blocks(rows, 8)
    if core == "lstm" and way == "forward":
        yield Blocks(64, 16)


def _streamed(products: devices.Products) -> Iterator[Blocks]:
    depth = 64 if products == "bf16" else 32
    for rows, warps in ((16, 4), (32, 4), (32, 8), (64, 8), (128, 8)):
        yield Blocks(rows, warps, units=64, depth=depth, stages=3)
    yield Blocks(32, 8, units=128, depth=64, stages=2)
    yield Blocks(32, 4, units=64, depth=64, stages=4)
    yield Blocks(64, 8, units=64, depth=64, stages=4)


def compile_one(variant: Variant) -> None:
    """Leave one kernel in Triton's cache; what does not fit on the chip is not tried later either."""
    tiling.CHOSEN.clear()
    tiling.CHOSEN[variant.way] = variant.blocks
    try:
        forward, both = ours(Case(variant.core, variant.hidden, 64, variant.products), steps=16)
        (forward if variant.way == "forward" else both)()
        torch.cuda.synchronize()
    except Exception as error:  # Triton's own, of many kinds
        report(variant, error)


def compile_case(case: Case) -> None:
    """Leave the kernels of the tables in Triton's cache."""
    try:
        forward, both = ours(case, steps=16)
        both()
        if is_acting(case):
            with torch.no_grad():
                forward()
        torch.cuda.synchronize()
    except Exception as error:  # it will be seen again when it is measured
        report(case, error)


def compile_all(function: Callable[[Any], None], jobs: list[Any]) -> None:
    began = time.perf_counter()
    processes = max(1, min(12, (os.cpu_count() or 2) - 2, len(jobs)))
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        try:
            pool.map_async(function, jobs, chunksize=1).get(timeout=300)
        except multiprocessing.TimeoutError:  # a process that died never answers
            print("not everything is compiled", flush=True)
    print(f"compiled {len(jobs)} in {time.perf_counter() - began:.0f} s", flush=True)


def is_flagship(case: Case) -> bool:
    return case.hidden == 128 and case.rows >= 4096 and case.products != "fp32"


def tune(cases: list[Case], seconds: float, write: Callable[[Any], None]) -> None:
    """The best blocks of every case, those that matter most first."""
    began, results = time.perf_counter(), []
    groups: dict[tuple[Any, ...], list[Case]] = {(): [case for case in cases if is_flagship(case)]}
    for case in cases:
        if not is_flagship(case):
            groups.setdefault((case.core, case.hidden, case.products), []).append(case)
    for group in groups.values():
        if time.perf_counter() - began > seconds:
            print(f"no time left for {group}")
            continue
        jobs = {
            (case.core, case.hidden, case.products, way): list(variants(*case[:2], case.products, way))
            for case in group
            for way in ("forward", "backward")
        }
        compile_all(compile_one, [variant for some in jobs.values() for variant in some])
        for case in group:
            try:
                results.append({**case._asdict(), **best(case)})
            except Exception as error:  # of many kinds; the other cases are worth having
                report(case, error)
            write(results)
            tiling.CHOSEN.clear()
            torch.cuda.empty_cache()


def best(case: Case) -> dict[str, Any]:
    """The best blocks, first of the forward kernel, then with these of the backward one."""
    chosen, found = tiling.CHOSEN, {}
    chosen.clear()
    for way, work in zip(("forward", "backward"), ours(case)):
        times: list[tuple[float, Blocks]] = []
        for variant in variants(case.core, case.hidden, case.products, way):
            chosen[way] = variant.blocks
            try:
                times.append((clock(captured(work), 3), variant.blocks))
            except Exception:  # too large for the chip
                torch.cuda.synchronize()
        chosen.pop(way)
        times.sort(key=lambda pair: pair[0])
        if times:
            chosen[way] = times[0][1]
        found[way] = [{"ms": round(ms, 4), "blocks": str(blocks)} for ms, blocks in times]
        print(f"{case.core:5}{case.hidden:4}{case.rows:6} {case.products} {way}:", flush=True)
        for line in found[way]:
            print(f"    {line['ms']:8.3f} ms {line['blocks']}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True, help="write JSON here")
    parser.add_argument("--quick", action="store_true", help="only 128 units, and no fp32")
    parser.add_argument("--tune", action="store_true", help="try blocks instead")
    parser.add_argument("--cudnn-graph", action="store_true", help="cuDNN also from a CUDA graph")
    parser.add_argument("--core", nargs="+", default=["lstm", "gru"])
    parser.add_argument("--hidden", nargs="+", type=int)
    parser.add_argument("--products", nargs="+")
    parser.add_argument("--rows", nargs="+", type=int, default=[1024, 4096, 16384])
    parser.add_argument("--seconds", type=float, default=110, help="--tune begins nothing new after so many")
    options = parser.parse_args()
    hidden = options.hidden or ([128] if options.quick else [128, 256])
    products: list[Any] = options.products or (
        ["bf16", "tf32"] if options.quick else ["bf16", "tf32", "fp32"]
    )
    cores = []
    for core in options.core:
        try:
            module(core)
        except ImportError as error:
            print(f"no {core}: {error}")
        else:
            cores.append(core)
    cases = [Case(core, H, B, p) for core in cores for H in hidden for p in products for B in options.rows]
    if options.tune:
        tune(cases, options.seconds, partial(common.write, options.out, "gpu_unroll_blocks"))
        return
    compile_all(compile_case, cases)
    measure(cases, options.cudnn_graph, partial(common.write, options.out, "gpu_unroll"))


if __name__ == "__main__":
    main()
