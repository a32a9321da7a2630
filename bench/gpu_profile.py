"""Where the time of an iteration goes on the GPU: a budget in microseconds, by part.

    python bench/gpu_profile.py --out bench/results/gpu_profile.json --trace kernels.json.gz
    python bench/gpu_profile.py --read kernels.json.gz --out bench/results/gpu_profile.json

One iteration of PPO (16,384 rows x 64 steps, LSTM of 128) under torch's profiler. It waits for the device
between acting and the update, so that every kernel falls into one of the two spans; within them its
name and its place in the order decide (bench/gpu_kernels.py). The profiler slows the host and a little each
kernel of a graph, so that "idle" is not what the trace shows, but the median time of iterations without a
profiler less the time in which some kernel ran; it is negative where the profiler made kernels slower.
``--trace`` keeps the kernels, and ``--read`` sorts them anew without a GPU.
"""

from __future__ import annotations

import gzip
import json
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gpu_common as gpu
from gpu_kernels import GROUPS, OTHER, Kernel, busy, grouped

SPANS = ("acting", "update", "rest")
WARM, PLAIN = 6, 11


def profiled(args: Any) -> dict[str, Any]:
    """The kernels of one iteration, and the seconds of others without the profiler."""
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    device = args.device
    sizes = {"num_envs": args.rows, "rollout": 64, "chunk": 64, "epochs": 4, "minibatches": 4}
    agent = gpu.make(
        args.task,
        device=device,
        core=gpu.core(args.core, 16 if args.tiny else 128),
        precision=args.precision,
        **(gpu.SMALL if args.tiny else sizes),
    )
    trainer = gpu.trainer_of(agent)
    trainer.begin(10**12)
    notes: list[str] = []

    @contextmanager
    def span(name: str) -> Iterator[None]:
        gpu.sync(device)
        with record_function(f"span {name}"):
            yield
            gpu.sync(device)

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with trainer.working(), tempfile.TemporaryDirectory() as folder:
        gpu.iterate(trainer, WARM, device, notes=notes)
        plain = gpu.iterate(trainer, 2 if args.tiny else PLAIN, device)
        path = Path(folder) / "trace.json"
        with (
            gpu.bordered(trainer, span),
            profile(
                activities=activities,
                schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
                on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
            ) as profiler,
        ):
            for _ in range(2):
                with span("iteration"):
                    trainer.iterate()
                profiler.step()
        events = json.loads(path.read_text())["traceEvents"]
        steps, rows = trainer.steps / trainer.learner.updates, trainer.collector.rows
    agent.close()
    kinds = ("kernel", "gpu_memcpy", "gpu_memset") if device == "cuda" else ("cpu_op",)
    return {
        "task": args.task,
        "core": args.core,
        "rows": rows,
        "precision": args.precision,
        "steps": steps,
        "plain_us": 1e6 * statistics.median(plain),
        "memory": gpu.gigabytes(),
        "notes": notes,
        **compact(events, kinds),
    }


def compact(events: list[dict[str, Any]], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Of a Chrome trace: names, the kernels as [name, start, duration], and the spans as [start, end]."""
    names: dict[str, int] = {}
    kernels = []
    spans: dict[str, list[float]] = {}
    for event in events:
        if event.get("ph") != "X":
            continue
        name = event["name"]
        if event.get("cat") == "user_annotation" and name.startswith("span "):
            spans[name.removeprefix("span ")] = [event["ts"], event["ts"] + event["dur"]]
        elif event.get("cat") in kinds:
            kernels.append([names.setdefault(name, len(names)), event["ts"], event["dur"]])
    zero = spans["iteration"][0]
    return {
        "names": list(names),
        "kernels": [[n, round(t - zero, 3), d] for n, t, d in sorted(kernels, key=lambda k: k[1])],
        "spans": {name: [start - zero, end - zero] for name, (start, end) in spans.items()},
    }


def budget(trace: dict[str, Any]) -> dict[str, Any]:
    """Microseconds by span and group, shares of the plain iteration, and the names behind them."""
    begin, end = trace["spans"]["iteration"]
    kernels = [
        Kernel(trace["names"][name], start, duration, span_at(trace["spans"], start))
        for name, start, duration in trace["kernels"]
        if begin <= start < end
    ]
    groups = grouped(kernels)
    plain, worked = trace["plain_us"], busy(kernels)
    rows = []
    for group in GROUPS:
        row: dict[str, Any] = {"group": group}
        for span in SPANS:
            own = [k for k, g in zip(kernels, groups) if g == group and k.span == span]
            row[span] = round(sum(k.duration for k in own), 1)
            row[f"{span}_kernels"] = len(own)
        row["us"] = round(sum(row[span] for span in SPANS), 1)
        row["share"] = round(row["us"] / plain, 4)
        rows.append(row)
    idle = plain - worked
    rows.append({"group": "idle", "us": round(idle, 1), "share": round(idle / plain, 4)})
    return {
        **{name: trace[name] for name in ("task", "core", "rows", "precision", "steps", "memory", "notes")},
        "iteration_us": round(plain, 1),
        "steps_per_s": round(trace["steps"] / plain * 1e6),
        "busy_us": round(worked, 1),
        "traced": {
            "iteration_us": round(end - begin, 1),
            "idle_us": round(end - begin - worked, 1),
            "kernels": len(kernels),
            "spans_us": {name: round(b - a, 1) for name, (a, b) in trace["spans"].items()},
        },
        "budget": rows,
        "names": named(kernels, groups),
    }


def span_at(spans: dict[str, list[float]], start: float) -> str:
    found = (name for name, (a, b) in spans.items() if name != "iteration" and a <= start < b)
    return next(found, "rest")


def named(kernels: list[Kernel], groups: list[str], most: int = 60) -> list[dict[str, Any]]:
    """The names that take the most time, in each span and group; those without a group, at least 15."""
    found: dict[tuple[str, str, str], list[float]] = {}
    for kernel, group in zip(kernels, groups):
        found.setdefault((kernel.span, group, kernel.name), []).append(kernel.duration)
    ordered = sorted(found.items(), key=lambda item: -sum(item[1]))
    unknown = [item for item in ordered if item[0][1] == OTHER][:15]
    chosen = ordered[:most] + [item for item in unknown if item not in ordered[:most]]
    return [
        {"span": span, "group": group, "name": name[:300], "count": len(d), "us": round(sum(d), 1)}
        for (span, group, name), d in chosen
    ]


def show(found: dict[str, Any]) -> None:
    """Two tables: the budget, and the names that take the most."""
    traced = found["traced"]
    print(
        f"{found['task']}, {found['core']}, {found['rows']} rows, {found['precision']}: "
        f"{found['iteration_us']:,.0f} us, {found['steps_per_s'] / 1e6:.2f} M steps/s; with the profiler "
        f"{traced['iteration_us']:,.0f} us, {traced['kernels']} kernels"
    )
    for note in found["notes"]:
        print(note)
    heads = ["group", *SPANS, "us", "share", "kernels"]
    rows = [
        [
            row["group"],
            *(f"{row[span]:,.0f}" if span in row else "" for span in SPANS),
            f"{row['us']:,.0f}",
            f"{row['share']:.1%}",
            str(sum(row.get(f"{span}_kernels", 0) for span in SPANS)),
        ]
        for row in found["budget"]
    ]
    gpu.table(heads, rows)
    print()
    heads = ["name", "span", "group", "count", "us", "us each"]
    names = found["names"]
    shown = names[:25] + [name for name in names[25:] if name["group"] == OTHER][:15]
    gpu.table(
        heads,
        [
            [
                n["name"][:90],
                n["span"],
                n["group"],
                str(n["count"]),
                f"{n['us']:,.0f}",
                f"{n['us'] / n['count']:.1f}",
            ]
            for n in shown
        ],
    )


def main() -> None:
    parser = gpu.arguments(__doc__, "gpu_profile.json")
    parser.add_argument("--task", default="position-cartpole")
    parser.add_argument("--core", default="lstm", choices=("lstm", "gru"))
    parser.add_argument("--rows", type=int, default=16_384)
    parser.add_argument("--precision", nargs="+", default=["tf32"], help="one after another")
    parser.add_argument("--trace", type=Path, help="keep the kernels here, as gzipped JSON")
    parser.add_argument("--read", type=Path, help="what --trace kept: needs no GPU")
    args = parser.parse_args()
    deadline = gpu.Deadline(args.minutes)
    if args.read:
        kept = json.loads(gzip.decompress(args.read.read_bytes()))
        traces, book = kept["traces"], gpu.Book(args.out, "gpu_profile", args.commit)
        book.context = kept["context"]  # where it was measured, not where it is read
    else:
        traces, book = [], gpu.Book(args.out, "gpu_profile", args.commit)
    for precision in [] if args.read else args.precision[: 1 if args.quick else None]:
        if deadline.is_over:
            break
        args.precision = precision
        traces.append(profiled(args))
        gpu.clear()
        book.write([budget(trace) for trace in traces])
        if args.trace:
            kept = {"context": book.context, "traces": traces}
            args.trace.write_bytes(gzip.compress(json.dumps(kept).encode()))
    found = [budget(trace) for trace in traces]
    book.write(found)
    for one in found:
        show(one)


if __name__ == "__main__":
    main()
