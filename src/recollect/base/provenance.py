"""Provenance of a run: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from recollect.base.system_limits import Places, processor


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that determine the results."""
    names = ("recollect", "torch", "numpy", "gymnasium")
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def git_commit(folder: Path | None = None) -> dict[str, Any] | None:
    """The git commit of ``folder`` (default: the current folder); None outside of a checkout."""

    def git(*args: str) -> str:
        done = subprocess.run(
            ["git", *args], cwd=folder, capture_output=True, text=True, timeout=10, check=True
        )
        return done.stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain", "-uno"))}
    except (OSError, subprocess.SubprocessError):
        return None


def machine() -> dict[str, Any]:
    """System, processor, cores, memory and GPU."""
    import torch

    return {
        "system": platform.platform(),
        "cpu": processor(Places()),
        "cores": usable_cores(),
        "memory": memory(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def usable_cores() -> int:
    """Number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int | None:
    """Memory of this machine in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
