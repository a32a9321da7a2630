"""Writes the tables of measurements in README.md and docs/ from bench/results.

    python bench/tables.py           # rewrite them
    python bench/tables.py --check   # fail if one is out of date

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; the names are those of ``TABLES``.
"""

from __future__ import annotations

import json
import re
import statistics
import string
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
MARKED = re.compile(r"(<!-- table: (.+?) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
Rows = Iterable[dict[str, Any]]


class Table(NamedTuple):
    """How a table is made from the results of a benchmark."""

    source: str
    """The file in bench/results."""
    columns: str
    """``HEAD = CELL | HEAD = CELL``, cells as format strings (``Cells``)."""
    rows: Callable[[Any], Rows] = lambda found: found
    """From the results, one mapping for each row."""
    words: Callable[[Any], str] = lambda found: ""
    """A paragraph below the table."""


class Cells(string.Formatter):
    """``str.format`` in which None is a dash, ``!m`` writes millions, ``!b`` bytes and ``!u`` upper case."""

    def convert_field(self, value: Any, conversion: str | None) -> Any:
        if value is None or conversion not in ("m", "b", "u"):
            return super().convert_field(value, conversion)
        if conversion == "u":
            return value.upper()
        if conversion == "m":
            return f"{value / 1e6:.1f}M"
        return f"{value} B" if value < 10_000 else f"{value / 1024:.1f} KiB"

    def format_field(self, value: Any, format_spec: str) -> str:
        return "-" if value is None else super().format_field(value, format_spec)


def load(name: str) -> dict[str, Any]:
    """A file of bench/results."""
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def named(found: dict[str, Any], key: str) -> Rows:
    """The values of a mapping as rows, with their names under the key."""
    return [{key: name, **row} for name, row in found.items()]


def core_costs(batch: int) -> Table:
    """Speed and size of every core with so many rows, the fastest to train first."""

    def rows(found: Any) -> Rows:
        chosen = [row for row in found if row["B"] == batch]
        return sorted(chosen, key=lambda row: -(row["train_of_lstm"] or 1e9))

    columns = (
        "core = `{core}` | train, of the LSTM = {train_of_lstm:.2f} | act, of the LSTM = {act_of_lstm:.2f} | "
        "train, steps/s = {train_steps_per_s:,} | act, steps/s = {act_steps_per_s:,} | "
        "state = {state_bytes!b} | weights = {weights:,}"
    )
    return Table("cores", columns, rows)


def network(run: dict[str, Any]) -> str:
    return " + ".join(filter(None, (run["policy"], run["core"])))


def learned(*tasks: str) -> Table:
    """The return of every network on those tasks, seed by seed, and the steps to the bar."""

    def rows(found: Any) -> Rows:
        made: dict[str, dict[str, Any]] = {}
        for run in sorted(found, key=lambda run: run["seed"]):
            if run["task"] in tasks and not run["soak"]:
                steps, mark = (run["trained"], "") if run["reached"] is None else (run["reached"], "**")
                row = made.setdefault(network(run), {"network": network(run)})
                text = f"{mark}{run['return']:.2f} ({steps / 1000:.0f}k){mark}"
                row[run["task"]] = f"{row[run['task']]}, {text}" if run["task"] in row else text
        return made.values()

    columns = ["network = `{network}`", *(f"{task} = {{{task}}}" for task in tasks)]
    return Table("memory", " | ".join(columns), rows)


def short(number: float) -> str:
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.3g}"


def worlds(*names: str) -> Table:
    """What the config files of those worlds reach, seed by seed."""

    def rows(found: Any) -> Rows:
        for name in names:
            runs = sorted((run for run in found if run["name"] == name), key=lambda run: run["seed"])
            if runs:
                returns = {by: ", ".join(short(run[by]) for run in runs) for by in ("greedy", "sampled")}
                yield {**runs[0], **returns}

    columns = (
        "env = {name} | steps = {steps:,} | greedy return, seed by seed = {greedy} | sampled = {sampled}"
    )
    return Table("worlds", columns, rows)


def soaks(found: Any) -> Rows:
    for row in found:
        if row["soak"]:
            early, late = row["curve"][len(row["curve"]) // 5], row["curve"][-1]
            yield {**row, "ratio": row["return"] / row["best"], "early": early[2], "late": late[2]}


def kernels(core: str) -> Table:
    """Speed of a core relative to torch's own, by length and rows."""
    sizes = (4, 16, 32, 64, 256, 1024)

    def rows(found: Any) -> Rows:
        ratios = {(one["T"], one["B"]): one["ratio"] for one in found["unroll"] if one["core"] == core}
        for T in sorted({T for T, _ in ratios}):
            yield {"T": T, **{f"B{B}": ratios[T, B] for B in sizes}}

    return Table("kernels", " | ".join(["T = {T}", *(f"B = {B} = {{B{B}:.2f}}" for B in sizes)]), rows)


LIBRARIES = {
    "recollect": "Recollect {version}, chunk 32",
    "recollect-chunk16": "Recollect, chunk 16",
    "recollect-chunk128": "Recollect, chunk 128",
    "sb3-contrib": "sb3-contrib {version}, its defaults",
    "sb3-contrib-shared": "sb3-contrib, one LSTM for both heads",
    "sb3-contrib-tuned": "sb3-contrib, VecNormalize and learning rate 1e-3",
    "sample-factory": "Sample Factory {version}, asynchronous, its defaults",
    "sample-factory-serial": "Sample Factory, one process, its defaults",
    "sample-factory-tuned": "Sample Factory, one process, learning rate 1e-3 and clip 0.2",
}

WORLD_LIBRARIES = {
    "recollect": "Recollect {version}",
    "sb3-contrib-tuned": "sb3-contrib {version}",
    "sample-factory-tuned": "Sample Factory {version}, one process",
}


def compared(found: Any) -> Rows:
    for key, name in LIBRARIES.items():
        row = found["summary"][key]
        yield {**row, "name": name.format(**row)}


def compared_world(world: str) -> Table:
    """Recollect and the tuned settings of the others in a world with a bar of 0.9."""

    def rows(found: Any) -> Rows:
        for key, name in WORLD_LIBRARIES.items():
            row = found["summary"][key]
            steps, seconds = row["steps_to_0.9"], row["seconds_to_0.9"]
            yield {
                **row,
                "name": name.format(**row),
                "steps_to": f"> {row['steps']:,.0f}" if steps is None else f"{steps:,}",
                "seconds_to": None if seconds is None else f"{seconds:,.0f}",
                "best": row["best_return_last_100"],
            }

    columns = (
        "library = {name} | steps per second = {steps_per_second:,.0f} | seeds that reach 0.9 = "
        "{reached} of {runs} | steps to 0.9 = {steps_to} | seconds = {seconds_to} | best return = {best:.2f}"
    )
    return Table(f"compare_{world}", columns, rows)


def summary(found: Any) -> Rows:
    """The README's figures: Recollect, and the best of the settings tried for the others."""
    runs = found["summary"]

    def best(library: str, key: str, choose: Callable[..., float]) -> float:
        return choose(run[key] for name, run in runs.items() if name.startswith(library) and run[key])

    for what, key, choose, cell in (
        ("CartPole without velocities, two CPU cores: steps per second", "steps_per_second", max, "{:,.0f}"),
        ("the same: seconds to a return of 400", "seconds_to_400", min, "{:.1f}"),
    ):
        others = {f"o{i}": cell.format(best(o, key, choose)) for i, o in enumerate(("sample", "sb3"))}
        yield {"what": what, "ours": cell.format(runs["recollect"][key]), **others}
    learned = load("gpu_learning")["results"]["delayed-cue-100"]["runs"]
    seconds = statistics.median(run["solved_after_s"] for run in learned)
    case = ("position-cartpole", "lstm", 16384, "tf32")
    (speed,) = (
        row["steps_per_s"]
        for row in load("gpu_ppo")["results"]
        if (row["task"], row["core"], row["rows"], row["precision"]) == case
    )
    for what, ours in (
        ("its built-in version on one H200, 16,384 rows: steps per second", f"{speed / 1e6:.1f} million"),
        ("a cue remembered over 100 steps, one H200: seconds of training", f"{seconds:.1f}"),
    ):
        yield {"what": what, "ours": ours, "o0": None, "o1": None}


def runtime_speeds(env: str) -> Table:
    """Every way to run an env, relative to inline, and whether the bar was reached."""

    def words(found: Any) -> str:
        one = found["envs"][env]
        verdict = "reached" if one["reached"] >= one["bar"] else "**not reached**"
        return f"Best: {one['best']}, {one['reached']:.2f} of inline. The bar, {one['bar']}, is {verdict}."

    columns = (
        "way = {way} | steps/s = {steps_per_s:,.0f} | of inline = {of_inline:.2f} | "
        "first update after = {first_update_after_s:.1f} s"
    )
    return Table("runtimes", columns, lambda found: named(found["envs"][env]["ways"], "way"), words)


def actor_costs(found: Any) -> Rows:
    """One actor and a thousand, beside their time."""
    most = max(found["rows"], key=lambda row: (row["mode"] == "async", row["actors"]))
    files, real = most["files"] / most["actors"], found["real_actor"]
    slots = most["slots_megabytes"] / most["actors"] * 1e3
    start, memory = real["start_cpu_seconds"], real["private_megabytes"]
    for what, one, thousand in (
        ("open files of the learner process", f"{files:.1f}", f"{files * 1000:,.0f}"),
        ("private memory of the actor's process", f"{memory:.0f} MB", f"{memory:.0f} GB"),
        ("CPU time to start", f"{start:.1f} s", f"{start * 1000 / 60:.0f} minutes"),
        ("slots in shared memory, async", f"{slots:.0f} kB", f"{slots / 1e3:.2f} GB"),
    ):
        yield {"what": what, "one": one, "thousand": thousand}


def gpu_budget(found: Any) -> Rows:
    """Where the time of an iteration goes, for the first precision that was measured."""
    whole = {"group": "an iteration", "us": found[0]["iteration_us"], "share": 1.0}
    for row in (*found[0]["budget"], whole):
        if row["us"]:
            yield {**row, **{span: row.get(span) or None for span in ("acting", "update", "rest")}}


def gpu_budget_words(found: Any) -> str:
    return (
        "{task}, {core}, {rows:,} rows, {precision}: microseconds of an iteration of {steps:,.0f} steps. "
        "{traced[kernels]:,} kernels ran in it."
    ).format(**found[0] | {"core": found[0]["core"].upper()})


def gpu_parity(found: Any) -> Rows:
    def spread(values: list[float]) -> str:
        return f"{statistics.fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"

    for row in found["summary"]:
        verdict = "yes" if row["is_within"] else "**no**"
        yield {**row, "cpu": spread(row["cpu"]), "gpu": spread(row["gpu"]), "verdict": verdict}


def replay_learning(found: Any) -> Rows:
    """One row for each task: its runs, seed by seed."""
    for name in dict.fromkeys(row["name"] for row in found):
        runs = [row for row in found if row["name"] == name]
        yield {
            "name": name.removeprefix("replay: "),
            "steps": ", ".join(f"{run['steps'] / 1e6:.2g}M" for run in runs),
            "returns": ", ".join(f"{run['return']:.3g}" for run in runs),
            "seconds": ", ".join(f"{run['seconds']:.0f}" for run in runs),
        }


def serving(found: Any) -> Rows:
    """Median, p95 and p99 in one cell."""
    for row in found["latencies"]:
        cells = {
            way: " / ".join(f"{row[f'{way}_{key}']:,.1f}" for key in ("median", "p95", "p99"))
            for way in ("one_thread", "all_threads")
        }
        yield {**row, **cells}


def suspicions(found: Any) -> Rows:
    """One row for each suspicion about a package."""
    return [
        {**one, "package": f"{script['package']} {script['version']}", "script": name}
        for name, script in found.items()
        for one in script["suspicions"]
    ]


def audited(found: Any) -> Rows:
    """One row for each example of an adapter: its checks by their result."""
    rows = []
    for example, one in found.items():
        names: dict[str, list[str]] = {"ok": [], "warning": [], "failed": [], "not checked": []}
        for check in one["checks"]:
            names[check["status"]].append(check["name"])
        counts = {"ok": len(names["ok"]), "open": len(names["not checked"]) + len(names["warning"])}
        failed = ", ".join(names["failed"]) or "none"
        rows.append({"trainer": one["trainer"], "example": example, "failed": failed, **counts})
    return rows


def floors(found: Any) -> Rows:
    """A row for each core: its shares by number of envs, by CPU time."""
    by_core: dict[str, dict[str, Any]] = {}
    for name, row in found["rows"].items():
        core, envs = name.removesuffix(" envs").split(", ")
        by_core.setdefault(core, {})[f"at_{envs}"] = row["cpu_share"]
    return named(by_core, "core")


def robust(found: Any) -> Rows:
    """A row for each world and variant."""
    rows = []
    for name, row in found["summary"].items():
        world, variant = name.split(", ")
        low, high = row["interval"]
        rows.append(row | {"world": world, "variant": variant, "low": low, "high": high})
    return rows


TABLES = {
    "robust": Table(
        "robust",
        "world = {world} | variant = {variant} | return at the end, IQM (95%) = {end:.3g} ({low:.3g} to "
        "{high:.3g}) | best = {best:.3g} | seeds that end at their best = {stable} of {seeds}",
        robust,
    ),
    "floor": Table(
        "floor",
        "core = `{core}` | 4 envs = {at_4:.2f} | 16 envs = {at_16:.2f} | 64 envs = {at_64:.2f}",
        floors,
    ),
    "suspicions": Table(
        "audit_candidates",
        "package = {package} | verdict = **{verdict}** | suspicion = {name} | occurs with = {default} | "
        "script in bench/audits = `{script}.py`",
        suspicions,
    ),
    "audited": Table(
        "audit_adapters",
        "trainer = {trainer} | passed = {ok} | failed = {failed} | not checked or unsure = {open} | "
        "in recollect.audit.adapters = `{example}`",
        audited,
    ),
    "summary": Table(
        "compare",
        "recurrent PPO, learning included = {what} | Recollect = **{ours}** | "
        "Sample Factory = {o0} | sb3-contrib = {o1}",
        summary,
    ),
    "core-costs 16": core_costs(16),
    "core-costs 256": core_costs(256),
    "learned easy": learned("repeat-previous", "delayed-cue-100"),
    "learned recall": learned("recall-3", "recall-5"),
    "learned forage": learned("forage"),
    "worlds minigrid": worlds("MiniGrid-MemoryS7"),
    "worlds mujoco": worlds("HalfCheetah, positions only", "HalfCheetah, no memory"),
    "compare minigrid": compared_world("minigrid_memory"),
    "compare count-recall": compared_world("count_recall"),
    "worlds popgym": worlds(
        "CountRecallEasy", "AutoencodeEasy", "ConcentrationEasy", "PositionOnlyPendulumEasy"
    ),
    "soaks": Table(
        "memory",
        "network = `{core}` | task = {task} | steps = {trained:,} | final = {return:.3f} | best seen = "
        "{best:.3f} | final of best = {ratio:.2f} | memory, first to last = {early:.0f} to {late:.0f} MB",
        soaks,
    ),
    "throughput": Table(
        "throughput",
        "work = {work} | total = {total:,} | env = {env:,} | act = {act:,} | learn = {learn:,}",
        lambda found: named(found, "work"),
    ),
    "kernels lstm": kernels("lstm"),
    "kernels gru": kernels("gru"),
    "compare": Table(
        "compare",
        "library = {name} | steps per second = {steps_per_second:,.0f} | relative = "
        "{steps_per_second_ratio:.2f} | steps to 400 = {steps_to_400:,} | seconds to 400 = "
        "{seconds_to_400:.1f} | relative = {seconds_to_400_ratio:.2f}",
        compared,
    ),
    "integrity reads": Table(
        "integrity",
        "weights = {kind} | reads = {reads:,} | mixed = {mixed:,} | an older version than before = "
        "{backwards:,} | published = {published:,} | readers killed = {readers_killed:,}",
        lambda found: [
            {"kind": "small", **found["small_weights"]},
            {"kind": "large", **found["large_weights"]},
            {"kind": "the control", **found["control_that_does_not_verify"]},
        ],
        lambda found: (
            "Writers killed while publishing: {killed_writers[writers]}; mixed reads after that: "
            "{killed_writers[mixed]}, versions lost: {killed_writers[lost]}. Rows through slots: "
            "{slots[rows]:,} in {slots[rollouts]:,} rollouts; torn: {slots[torn]}, stale: {slots[stale]}, "
            "out of order: {slots[disordered]}."
        ).format(**found),
    ),
    "integrity costs": Table(
        "integrity",
        "bytes of weights = {bytes:,} | one copy = {copy_ms:.3g} ms | publish, in copies = "
        "{publish_to_copy:.2f} | read, in copies = {read_to_copy:.2f}",
        lambda found: found["costs"],
    ),
    "soak-kills": Table(
        "soak_kills",
        "mode = {mode} | minutes = {minutes:g} | updates = {updates:,} | killed = {killed} | tickets given, "
        "given back, learned = {tickets[given]:,}, {tickets[given_back]:,}, {tickets[learned]:,} | lost = "
        "{lost} | doubled = {doubled} | beyond `max_lag` = {beyond_max_lag} | memory = "
        "{resident_mb[after_a_fifth]:.0f} to {resident_mb[at_the_end]:.0f} MB | open files = "
        "{open_files[after_a_fifth]:.0f} to {open_files[at_the_end]:.0f}",
        lambda found: named(found, "mode"),
    ),
    "runtime-speeds asleep": runtime_speeds("asleep 1 ms a step"),
    "runtime-speeds busy": runtime_speeds("busy 1 ms a step"),
    "runtime-speeds CartPole-v1": runtime_speeds("CartPole-v1"),
    "transport": Table(
        "transport",
        "rollout = {megabytes:.3g} MB | way = {way} | rollouts/s = {rollouts_per_s:,.0f} | MB/s = "
        "{megabytes_per_s:,.0f} | of one memcpy = {of_memcpy:.3f} | writing = {share[write]:.0%} | joining = "
        "{share[join]:.0%} | all else = {share[other]:.0%}",
        lambda found: [{**size, **row} for size in found["sizes"] for row in named(size["ways"], "way")],
    ),
    "scale-runs": Table(
        "scaling",
        "actors = {actors} | rows each = {rows} | mode = {mode} | steps/s = {steps_per_s:,.0f} | lag = "
        "{lag:.2f} | env = {time/env:.0%} | policy = {time/policy:.0%} | transport = {time/transport:.0%} | "
        "waiting for the learner = {time/learner:.0%}",
        lambda found: found["runs"],
    ),
    "simulation": Table(
        "simulation",
        "actors = {actors:,} | mode = {mode} | learner, steps/s = {learner_steps_per_s:,.0f} | offered, "
        "steps/s = {offered_steps_per_s:,} | made, steps/s = {steps_per_s:,} | at most, steps/s = "
        "{most_steps_per_s:,} | lag = {lag:.2f} | collect, ms = {cpu_ms_per_update[collect]:.1f} | join, ms "
        "= {cpu_ms_per_update[join]:.1f} | publish, ms = {cpu_ms_per_update[publish]:.1f} | episodes, ms = "
        "{cpu_ms_per_update[episodes]:.1f} | stubs busy = {ground_busy:.0%}",
        lambda found: found["rows"],
    ),
    "serving": Table(
        "serving",
        "observation = {policy} | cores = {cores} | rows = {rows:,} | one thread, ms = {one_thread} | "
        "all threads, ms = {all_threads}",
        serving,
        lambda found: f"Median / p95 / p99 of `session.act`; all threads: {found['threads']}.",
    ),
    "actor-costs": Table(
        "simulation", "what = {what} | one actor = {one} | 1,000 actors = {thousand}", actor_costs
    ),
    "gpu-speeds": Table(
        "gpu_ppo",
        "task = {task} | core = {core!u} | rows = {rows:,} | precision = {precision} | M steps/s = "
        "**{steps_per_s!m}** | quartiles = {quartiles[0]!m} to {quartiles[1]!m} | acting alone = "
        "{acting_steps_per_s!m} ({of_acting_ceiling:.2f}) | trained, per epoch = "
        "{trained_steps_per_s_and_epoch!m} ({of_training_ceiling:.2f}) | start = {warm_s:.0f} s | memory = "
        "{gpu_gb[used]:.1f} GB",
        lambda found: sorted(found, key=lambda row: (-row["rows"], -row["steps_per_s"])),
    ),
    "gpu-budget": Table(
        "gpu_profile",
        "part = {group} | acting = {acting:,.0f} | update = {update:,.0f} | rest = {rest:,.0f} | us = "
        "{us:,.0f} | share = {share:.1%}",
        gpu_budget,
        gpu_budget_words,
    ),
    "gpu-unrolls": Table(
        "gpu_unroll",
        "core = {core!u} | units = {hidden} | rows = {rows:,} | precision = {products} | forwards = "
        "{forward_ms:.2f} ms | both = {both_ms:.2f} ms | M steps/s = {both_msteps:.0f} | cuDNN = "
        "{cudnn[both_msteps]:.0f} | ratio = **{times_cudnn:.1f}**",
    ),
    "replay learning": Table(
        "replay_learning",
        "task = {name} | env steps = {steps} | greedy return, seed by seed = {returns} | seconds = {seconds}",
        replay_learning,
    ),
    "gpu-replay": Table(
        "gpu_replay",
        "case = {name} | env steps/s = {steps_per_s:,} | optimiser steps/s = {optimiser_steps_per_s:,.0f} | "
        "acting = {parts_ms[acting]:.1f} ms | update = {parts_ms[update]:.1f} ms",
    ),
    "gpu-learning": Table(
        "gpu_learning",
        "task = {task} | seed = {seed} | bar = {bar:g} | solved after = **{solved_after_s:.1f} s** | steps = "
        "{steps!m} | start-up = {warm_up_s:.1f} s | evaluations = {evaluating_s:.1f} s",
        lambda found: [{**task, **run} for task in named(found, "task") for run in task["runs"]],
    ),
    "gpu-parity": Table(
        "gpu_parity",
        "task = {task} | precision on the GPU = {precision} | CPU = {cpu} | GPU = {gpu} | difference = "
        "{difference:+.3g} | within chance = {verdict} (up to {allowed:.2g})",
        gpu_parity,
    ),
    "gpu-soak": Table(
        "gpu_soak",
        "run = {name} | steps = {trained!m} | last tenth = {final:.3g} | best tenth = {best:.3g} | GPU "
        "memory = {gpu_gb_early[used]:.2f} to {gpu_gb_late[used]:.2f} GB | verdict = {verdict}",
        lambda found: sorted(found, key=lambda row: row["name"]),
    ),
    "gpu-foreign": Table(
        "gpu_foreign",
        "envs = {num_envs} | way = {way} | training, steps/s = {training[steps_per_s]:,} | of the CPU = "
        "{training[of_cpu]:.2f} | acting, steps/s = {acting[steps_per_s]:,} | of the CPU = "
        "{acting[of_cpu]:.2f} | training, of a transfer per tensor = {training[of_before]:.2f}",
        lambda found: [{**one, **row} for one in found for row in named(one["ways"], "way")],
    ),
}


def markdown(name: str) -> str:
    """A table, the words below it, and what the reader has to know of the machine."""
    source, columns, rows, words = TABLES[name]
    file = load(source)
    found = file["results"]
    heads, cells = zip(*(column.rsplit(" = ", 1) for column in columns.split(" | ")))
    lines = [heads, ["---"] * len(heads)]
    lines += [[Cells().vformat(cell, (), row) for cell in cells] for row in rows(found)]
    parts = ["\n".join(f"| {' | '.join(line)} |" for line in lines), words(found)]
    if file.get("gpu"):
        triton = f", Triton {file['triton']}" if file.get("triton") else ""
        where = f"{file['gpu']}, torch {file['torch']}{triton}, commit `{file['commit']}`"
        parts.append(f"{where} (`bench/{source}.py`).")
    busy = found.get("busy_before", 0) if isinstance(found, dict) else 0
    if busy > 0.1:
        parts.append(f"**Preliminary:** other programs used {busy:.0%} of the cores when it started.")
    return "\n\n".join(filter(None, parts))


def renewed(text: str) -> str:
    """A page with its tables made from the present results."""
    return MARKED.sub(lambda match: f"{match[1]}\n{markdown(match[2])}\n\n{match[4]}", text)


def main() -> None:
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        before = path.read_text()
        after = renewed(before)
        if before != after and "--check" in sys.argv:
            raise SystemExit(f"{path.relative_to(ROOT)} is out of date: run python bench/tables.py")
        if before != after:
            path.write_text(after)


if __name__ == "__main__":
    main()
