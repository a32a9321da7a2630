"""Resource limits of this process: memory, cores, and the limits of a container."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """Paths of system files and folders, which tests replace."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")
    runs: Path = Path("runs")
    package: Path = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits; None: unknown or unlimited."""

    cpu: str | None
    """Name of the processor."""
    memory: int | None
    """Total bytes of the machine."""
    available: int | None
    """Available bytes, caches included."""
    quota: float | None
    """CPU quota of the control group, in cores."""
    memory_limit: int | None
    """Memory limit of the control group, in bytes."""


def read_limits(places: Places) -> Limits:
    """Read the limits from /proc and the control groups, where they exist."""
    meminfo = _meminfo(places.proc / "meminfo")
    groups = _groups(places)
    return Limits(
        cpu=processor(places),
        memory=meminfo.get("MemTotal"),
        available=meminfo.get("MemAvailable"),
        quota=min((q for group in groups if (q := _quota(group)) is not None), default=None),
        memory_limit=min((m for group in groups if (m := _memory_limit(group)) is not None), default=None),
    )


def free_memory(places: Places) -> int | None:
    """Bytes that this process can still take, by the machine and its control group; None: unknown."""
    limits = read_limits(places)
    own = (_read(places.proc / "self/statm") or "").split()  # pages: total, resident, ...
    resident = int(own[1]) * os.sysconf("SC_PAGE_SIZE") if len(own) > 1 else 0
    group = None if limits.memory_limit is None else max(0, limits.memory_limit - resident)
    return min((m for m in (limits.available, group) if m is not None), default=None)


def _read(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return None


def _meminfo(path: Path) -> dict[str, int]:
    """Bytes by name, from lines such as ``MemTotal:  1024 kB``."""
    found = {}
    for line in (_read(path) or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * 1024
    return found


def processor(places: Places) -> str | None:
    """Name of the processor."""
    for line in (_read(places.proc / "cpuinfo") or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or None


def _groups(places: Places) -> list[Path]:
    """Folders of this process's control groups and their parents; of version 1, the two usual ones."""
    folders = [places.cgroup, places.cgroup / "cpu", places.cgroup / "memory"]
    for line in (_read(places.proc / "self/cgroup") or "").splitlines():
        if line.startswith("0::"):
            inner = Path(line[3:].strip().lstrip("/"))
            folders += [places.cgroup / part for part in (inner, *inner.parents)]
    return list(dict.fromkeys(folders))


def _quota(group: Path) -> float | None:
    """``cpu.max`` holds "quota period", or "max period"; version 1 has a file for each."""
    words = (_read(group / "cpu.max") or "").split()
    if not words:
        words = [(_read(group / f"cpu.cfs_{name}_us") or "").strip() for name in ("quota", "period")]
    if len(words) != 2 or not all(word.isdigit() for word in words) or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _memory_limit(group: Path) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        text = (_read(group / name) or "").strip()
        if text.isdigit() and int(text) < 2**60:  # in version 1 a huge number means no limit
            return int(text)
    return None
