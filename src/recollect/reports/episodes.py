"""Packs recorded episodes for the page: memory as 16-bit numbers, long or wide data truncated."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recollect.reports.read_run import read_json
from recollect.reports.thinning import Row, json_numbers, number, rounded
from recollect.training.recorded_episodes import INDEX

SHOWN = 6
"""Maximum episodes of a report."""
STEPS = 2000
"""Maximum steps of an episode."""
CELLS = 200_000
"""Maximum memory values of an episode's agents; beyond it, the least active units are left out."""
NUMBERS = 60_000
"""Maximum values of one part of the observation over an episode, of all agents."""
PICTURES = 400_000
"""Maximum characters of images of an episode's agents; beyond it, only every second, third, ... is kept."""


def read_episodes(folder: Path, outdated: Collection[str] = ()) -> tuple[list[Row], list[str]]:
    """The packed episodes of a folder, and a sentence on each that cannot be shown.

    Episodes of the latest weights come first; files named in ``outdated`` are left out. Of several agents
    each has a trace; traces with the same ``number`` are of one episode.
    """
    found, problems = [], []
    for path in sorted(folder.glob("*.json"), key=_in_order):
        if path.name == INDEX or path.name in outdated:
            continue
        trace = read_json(path)
        if trace is None or trace.get("format") != 1:
            problems.append(f"{path.name} is not a recorded episode that this version reads.")
            continue
        steps = number(trace.get("checkpoint_steps", 0))
        if not steps >= 0:
            problems.append(f"{path.name} cannot be shown: checkpoint_steps is not a count.")
            continue
        found.append((path, trace, steps))
    found.sort(key=lambda episode: -episode[2])
    together: dict[str, list[tuple[Path, Row]]] = {}
    for path, trace, _ in found:
        together.setdefault(_episode_of(path, trace), []).append((path, trace))
    packed = []
    for place, traces in enumerate(list(together.values())[:SHOWN]):
        for path, trace in traces:
            try:
                packed.append(pack(trace, len(traces)) | {"number": place})
            except Exception as error:  # a damaged file can cause any error
                problems.append(f"{path.name} cannot be shown ({type(error).__name__}: {error}).")
    if len(together) > SHOWN:
        problems.append(f"{len(together) - SHOWN} more episodes are recorded; the latest {SHOWN} are shown.")
    return packed, problems


def _in_order(path: Path) -> list[tuple[int, str]]:
    """The name as a sort key, with numbers in it by value: ``report-2`` comes before ``report-10``."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]


def _episode_of(path: Path, trace: Row) -> str:
    """Equal for the traces of an episode's agents."""
    if not isinstance(trace.get("agent"), str):
        return path.name
    return repr([trace.get(name) for name in ("env", "seed", "checkpoint_steps", "mode", "episode")])


def pack(trace: Row, agents: int = 1) -> Row:
    """A trace in the form that the page reads; the limits are those of an episode of so many agents."""
    steps = min(len(trace["reward"]), STEPS)
    if steps == 0:
        raise ValueError("it has no steps")
    memory, note = _pack_memory(trace, steps, max(1, CELLS // agents))
    notes = [note] if note else []
    if len(trace["reward"]) > steps:
        notes.append(f"Only the first {steps:,} of {len(trace['reward']):,} steps are shown.")
    total = trace.get("return")
    ends = ("terminated", "truncated")
    return {
        **{name: trace.get(name) for name in ("env", "seed", "checkpoint_steps", "mode")},
        **{name: _text(trace.get(name)) for name in ("agent", "group")},
        "start": int(trace.get("start", 0)),
        "steps": steps,
        "return": rounded(float(total)) if total is not None else None,
        "ended": next((name for name in ends if trace.get(name)), "cut"),
        "first": [i for i, first in enumerate(trace["first"][:steps]) if first],
        **{name: _numbers(trace[name][:steps]) for name in ("reward", "value", "log_prob")},
        "action": trace["action"][:steps],
        "distribution": [_pack_distribution(parts) for parts in trace["distribution"][:steps]],
        "obs": _pack_observations(trace["obs"][:steps], notes, agents),
        "words": _pack_words(trace.get("words"), steps),
        "memory": memory,
        "notes": notes,
    }


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _numbers(values: Sequence[float | None], digits: int = 4) -> list[float | int | None]:
    return json_numbers(np.array([np.nan if v is None else v for v in values], dtype=np.float64), digits)


def _pack_memory(trace: Row, steps: int, cells: int) -> tuple[Row, str]:
    """The memory [T, U] as base64 of little-endian int16, unit by unit, each scaled by its peak.

    At most ``cells`` values, of the most active units.
    """
    units = int(trace["units"])
    values = np.array(trace["memory"][:steps], dtype=np.float64).reshape(steps, units)
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    sizes = [int(leaf["size"]) for leaf in trace["leaves"]]
    if sum(sizes) != units or min(sizes, default=0) < 0:
        raise ValueError(f"its memory has {units} units, its leaves {sum(sizes)}")
    parts = [leaf for leaf, size in zip(trace["leaves"], sizes) for _ in range(size)]
    place = [i for size in sizes for i in range(size)]
    kept, note = np.arange(units), ""
    if units * steps > cells:
        active = np.argsort(-values.std(0), kind="stable")[: max(1, cells // steps)]
        kept = np.sort(active)
        note = f"The {len(kept):,} most active of {units:,} units are shown."
    shown = values[:, kept]
    peak = np.abs(shown).max(0) if len(kept) else np.zeros(0)
    scaled = np.round(shown / np.where(peak > 0, peak, 1.0) * 32767).astype("<i2")
    memory = {
        "units": len(kept),
        "names": [f"{parts[i]['name']}[{place[i]}]" for i in kept],
        "parts": [parts[i]["name"] for i in kept],
        "peak": json_numbers(peak, 6),
        "data": base64.b64encode(np.ascontiguousarray(scaled.T).tobytes()).decode(),
    }
    return memory, note


def _pack_distribution(parts: Sequence[Row]) -> list[Row]:
    packed = []
    for part in parts:
        numbers = {k: _numbers(part[k], 3) for k in ("probs", "mean", "std", "q") if k in part}
        packed.append({"part": part.get("part", ""), "kind": part["kind"], **numbers})
    return packed


def _pack_words(words: Any, steps: int) -> Row | None:
    """The distinct words, and an index for each step.

    None if most steps have their own words: these are numbers, which are drawn anyway.
    """
    if not isinstance(words, list):
        return None
    different = list(dict.fromkeys(map(str, words[:steps])))
    if len(different) > max(24, steps // 2):
        return None
    place = {word: i for i, word in enumerate(different)}
    return {"texts": different, "index": [place[str(word)] for word in words[:steps]]}


def _pack_observations(steps: Sequence[Sequence[Row]], notes: list[str], agents: int) -> list[Row]:
    """The parts of the observation, each as a column over time."""
    return [_pack_column([step[i] for step in steps], notes, agents) for i in range(len(steps[0]))]


def _pack_column(column: Sequence[Row], notes: list[str], agents: int) -> Row:
    kind, name = column[0]["kind"], str(column[0].get("name", ""))
    if kind == "discrete":
        return {"name": name, "kind": kind, "n": column[0]["n"], "values": [part["value"] for part in column]}
    if kind == "image":
        size = sum(len(part["png"]) for part in column)
        every = -(-size * agents // PICTURES) or 1
        if every > 1:
            notes.append(f"One picture in {every} is kept.")
        pngs = [part["png"] for part in column[::every]]
        return {"name": name, "kind": kind, "shape": column[0]["shape"], "every": every, "pngs": pngs}
    width = len(column[0]["values"])
    shown = min(width, max(1, NUMBERS // agents // len(column)))
    if shown < width:
        notes.append(f"The first {shown} of {width:,} numbers of the observation are shown.")
    values = [_numbers(part["values"][:shown]) for part in column]
    flat = [v for row in values for v in row if v is not None]
    return {
        "name": name,
        "kind": "vector",
        "low": min(flat, default=0),
        "high": max(flat, default=0),
        "values": values,
    }
