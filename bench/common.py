"""What every benchmark writes beside its numbers: the machine, the versions, the commit."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from recollect.base import provenance


def context() -> dict[str, Any]:
    """Hardware, versions and commit."""
    return {
        "cpu": provenance.machine()["cpu"],
        "cores": len(os.sched_getaffinity(0)),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
        "date": time.strftime("%Y-%m-%d"),
    }


def write(path: str | Path, name: str, results: Any) -> None:
    """Write the results with their context."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"benchmark": name, **context(), "results": results}, indent=1) + "\n")
    print(f"written to {path}")


def curve(history: Any, points: int = 20) -> list[list[float]]:
    """About so many points of the mean return over a training, as (env steps, return)."""
    steps, returns = history.column("return")
    every = max(1, len(steps) // points)
    return [[int(s), float(f"{r:.3g}")] for s, r in zip(steps[::every], returns[::every])]


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent, check=False)
    return done.stdout.strip()
