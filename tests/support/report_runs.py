"""Run folders and recorded episodes made by hand, for the tests of reports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from recollect.config.policy import PolicyConfig
from recollect.config.train import TrainConfig
from recollect.reports.configs import default_values
from recollect.training.metrics import GLOSSARY


def make_config(**changes: Any) -> dict[str, Any]:
    """run.json's config: the defaults but for ``changes``, which are flat."""
    config = default_config()
    for name, value in changes.items():
        home = next((config[p] for p in ("algo", "policy") if name in config[p]), config)
        home[name] = value
    return config


def default_config() -> dict[str, Any]:
    config = json.loads(json.dumps(default_values({}), default=str))
    algo = {"name": "ppo"} | {f: config[f] for f in TrainConfig().algo.__dataclass_fields__}
    network = {f: config[f] for f in PolicyConfig.__dataclass_fields__ if f in config}
    own = {
        f: getattr(TrainConfig(), f) for f in TrainConfig.__dataclass_fields__ if f not in ("algo", "policy")
    }
    return {**own, "policy": {"policy": None, **network}, "algo": algo}


def make_metrics(updates: int = 40, speed: float = 1000.0) -> list[dict[str, Any]]:
    rows = []
    for i in range(1, updates + 1):
        rows.append(
            {
                "steps": 2048.0 * i,
                "seconds": 1.6 * i + i * i / 100,  # slower and slower
                "updates": float(i),
                "episodes": 90.0 * i,
                "return": None if i == 1 else min(1.0, 0.4 + i / updates),
                "length": 22.0,
                "kl": 0.05 if i > updates * 0.6 else 0.01,
                "clip_fraction": 0.1,
                "entropy": 0.7 / i,
                "deviation/log_prob": 2e-7,
                "deviation/value": 5e-3 if i == 3 else 1e-6,
                "value/max": 1000.0,
                "value/min": 0.0,
                "value_scale": 1.0,
                "staleness": 0.1 if i % 20 == 1 else None,
                "explained_variance": 0.5,
                "made_up": float(i % 7),
                "speed/total": speed,
                "speed/env": speed * 10,
                "speed/act": speed * 5,
                "speed/learn": speed * 2,
            }
        )
    return rows


def with_actors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The metrics as actors in other processes add to them: an eighth is waited for, half is the env."""
    collector = {"time/env": 0.5, "time/policy": 0.25, "time/transport": 0.05, "time/learner": 0.2}
    collector |= {"queue/ready": 1.0, "queue/running": 2.0, "actors/slowest": 400.0, "actors/fastest": 600.0}
    return [
        row
        | collector
        | {"lag": 0.5, "lag/max": 1.0, "restarts": float(i // 20), "speed/wait": row["speed/total"] * 8}
        for i, row in enumerate(rows)
    ]


def make_trace(steps: int = 22, units: int = 8, **changes: Any) -> dict[str, Any]:
    """A recorded episode of the delayed cue, as ``Trace.to_json`` has it."""
    rng = np.random.default_rng(0)
    words = ["cue 1", *["blank"] * (steps - 2), "query"]
    return {
        "format": 1,
        "env": "delayed-cue",
        "seed": 0,
        "checkpoint_steps": 81920,
        "units": units,
        "leaves": [{"name": "h", "size": units // 2}, {"name": "c", "size": units - units // 2}],
        "first": [t == 0 for t in range(steps)],
        "reward": [float(t == steps - 1) for t in range(steps)],
        "value": [0.5 + t / steps / 2 for t in range(steps)],
        "action": [1] * steps,
        "log_prob": [-0.2] * steps,
        "distribution": [[{"part": "", "kind": "categorical", "probs": [0.2, 0.8]}] for _ in range(steps)],
        "obs": [
            [{"name": "", "kind": "vector", "values": [0.0, float(t == 0), float(t == steps - 1)]}]
            for t in range(steps)
        ],
        "words": words,
        "memory": rng.normal(size=(steps, units)).round(4).tolist(),
        "terminated": True,
        "truncated": False,
        "cut": False,
        "return": 1.0,
        **changes,
    }


def make_run(
    path: Path,
    *,
    env: str | None = "delayed-cue",
    name: str | None = None,
    config: dict[str, Any] | None = None,
    metrics: list[dict[str, Any]] | None = None,
    evaluations: list[float] | None = None,
    traces: list[dict[str, Any]] | None = None,
    preset: dict[str, Any] | None = None,
    **status: Any,
) -> Path:
    """The folder of a run as it might lie on a disk."""
    path.mkdir(parents=True)
    metrics = make_metrics() if metrics is None else metrics
    evaluations = [0.5, 0.9, 1.0] if evaluations is None else evaluations
    write(
        path / "run.json",
        {
            "format": 1,
            "name": name or path.name,
            "env": env,
            "config": config or make_config(env_kwargs={"horizon": 20}),
            "preset": preset or {},
            "versions": {"recollect": "0.1.0", "torch": "2.13.0"},
            "git": {"commit": "0123456789abcdef", "dirty": True},
            "machine": {"system": "Linux", "cpu": "x", "cores": 2, "memory": "8 GiB", "gpu": None},
            "started": "2026-11-15T06:50:00Z",
            "command": ["recollect", "train", "delayed-cue"],
        },
    )
    write(path / "glossary.json", GLOSSARY)
    state = {"state": "finished", "reason": "steps", "steps": 81920, "updates": 40, "episodes": 3600}
    write(path / "status.json", state | {"seconds": 81.92, "best": None} | status)
    write_lines(path / "metrics.jsonl", metrics)
    rows = [
        {"steps": 20000 * (i + 1), "seconds": 20.0 * (i + 1), "mean": mean, "std": 0.1}
        | {"interval": [mean - 0.1, mean], "returns": [mean] * 100, "lengths": [22] * 100}
        for i, mean in enumerate(evaluations)
    ]
    write_lines(path / "evaluations.jsonl", rows)
    event = {"steps": 0, "seconds": 0.0, "time": "2026-11-15T06:50:00Z"}
    write_lines(
        path / "events.jsonl",
        [
            event | {"kind": "start", "text": "start at step 0, to step 100000"},
            event | {"kind": "advice", "text": "lower learning_rate", "steps": 4096},
            event | {"kind": "checkpoint", "text": "000000020000", "steps": 20000},
            event | {"kind": "stop", "text": "steps", "steps": 81920},
        ],
    )
    for i, trace in enumerate(traces or []):
        (path / "episodes").mkdir(exist_ok=True)
        write(path / "episodes" / f"{i}.json", trace)
    return path


def write(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data), encoding="utf-8")


def write_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def data_of(report: Path) -> dict[str, Any]:
    """What the page of a report holds."""
    found = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', report.read_text("utf-8"), re.S
    )
    assert found is not None
    return json.loads(found[1])
