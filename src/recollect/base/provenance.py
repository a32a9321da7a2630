"""What a run was made with: versions, commit, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any


def versions() -> dict[str, str]:
    """Of Python and of the packages that decide the numbers."""
    names = ("recollect", "torch", "numpy", "gymnasium")
    return {"python": platform.python_version()} | {name: _version(name) for name in names}


def git_commit(folder: Path | None = None) -> dict[str, Any] | None:
    """The commit of the folder's checkout (the current folder's if None); None where there is none."""

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
    """What it ran on, as far as it can be told."""
    import torch

    return {
        "system": platform.platform(),
        "cpu": cpu(),
        "cores": usable_cores(),
        "memory": memory(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def usable_cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int | None:
    """Bytes of this machine."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def cpu() -> str:
    """The processor's name."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "unknown"
