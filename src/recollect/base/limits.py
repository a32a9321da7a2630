"""What the system grants this process: memory, cores, and the limits of a container."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are found."""

    proc: Path = Path("/proc")
    cgroup: Path = Path("/sys/fs/cgroup")
    shm: Path = Path("/dev/shm")
    runs: Path = Path("runs")
    package: Path = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Limits:
    """None where unknown or unlimited."""

    cpu: str | None
    """The processor's name."""
    memory: int | None
    """Bytes of the machine."""
    available: int | None
    """Bytes that are free, or could be."""
    quota: float | None
    """Cores' worth of time."""
    memory_limit: int | None
    """Bytes."""


def read_limits(places: Places) -> Limits:
    """Read them from /proc and the control groups, as far as they are there."""
    meminfo = _meminfo(places.proc / "meminfo")
    groups = _groups(places)
    return Limits(
        cpu=_processor(places.proc / "cpuinfo"),
        memory=meminfo.get("MemTotal"),
        available=meminfo.get("MemAvailable"),
        quota=min((q for group in groups if (q := _quota(group)) is not None), default=None),
        memory_limit=min((m for group in groups if (m := _memory_limit(group)) is not None), default=None),
    )


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


def _processor(path: Path) -> str | None:
    for line in (_read(path) or "").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine() or None


def _groups(places: Places) -> list[Path]:
    """The folders of this process's control groups and of those above; of version 1 the usual two."""
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
        if text.isdigit() and int(text) < 2**60:  # version 1 says "no limit" with a huge number
            return int(text)
    return None
