"""The results of ``examine``, as dataclasses."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Software:
    """Versions of the software."""

    recollect: str | None
    commit: str | None
    """The commit of a source checkout; None for an installed package."""
    python: str
    torch: str | None
    cuda: str | None
    """The CUDA version that torch was built for; None for a CPU build."""
    triton: str | None
    numpy: str | None
    gymnasium: str | None
    system: str


@dataclass(frozen=True, slots=True)
class Cpu:
    """Cores, limits and torch's use of them."""

    name: str | None
    cores: int
    """Logical cores of the machine."""
    usable: int
    """Cores that this process may run on."""
    quota: float | None
    """A container's CPU limit in cores; None without a limit."""
    load: float | None
    """Load average of the last minute."""
    capability: str | None
    """The instruction set that torch uses, such as AVX512."""
    threads: int | None
    """torch's default number of intra-op threads."""
    mkl: bool | None
    onednn: bool | None
    bf16: str | None
    """Whether bf16 gives correct results: "ok", or the failure; None if not tested."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory in bytes; None where unknown."""

    total: int | None
    available: int | None
    limit: int | None
    """A container's memory limit."""
    shared: int | None
    """The size of /dev/shm."""
    shared_free: int | None


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that runs write to."""

    path: str
    free: int | None
    """Bytes."""
    is_writable: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as torch sees it."""

    name: str
    memory: int
    free: int | None
    capability: str
    bf16: bool


@dataclass(frozen=True, slots=True)
class Extra:
    """An optional dependency group."""

    name: str
    purpose: str
    packages: dict[str, str | None]
    """Version by package; None: not installed."""

    @property
    def is_installed(self) -> bool:
        """Whether all packages are installed."""
        return None not in self.packages.values()

    @property
    def command(self) -> str:
        """The command that installs it."""
        return f"pip install 'recollect[{self.name}]'"


@dataclass(frozen=True, slots=True)
class Terminal:
    """The terminal of the output."""

    is_terminal: bool
    width: int
    colours: str | None
    """"standard", "256" or "truecolor"; None: none."""
    unicode: bool


@dataclass(frozen=True, slots=True)
class Speed:
    """The measured speed of a short training."""

    task: str
    """The task or env."""
    steps_per_second: float
    env: float
    """Share of the time spent in the env; with other processes the shares overlap."""
    act: float
    learn: float
    updates: int
    flags: str = ""
    """Settings that differ from the defaults."""


@dataclass(frozen=True, slots=True)
class Case:
    """Recommended flags for one kind of training."""

    when: str
    flags: str
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The recommended settings on this machine."""

    device: str
    threads: int
    runtime: str
    flags: str
    """Flags that differ from the defaults."""
    cases: list[Case] = field(default_factory=list)
    """Recommendations by kind of training."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All results of ``examine``."""

    software: Software
    cpu: Cpu
    memory: Memory
    folders: list[Folder]
    gpus: list[Gpu]
    driver: str | None
    """The version of the NVIDIA driver."""
    extras: list[Extra]
    terminal: Terminal
    files: int | None
    """Limit on the open files of a process."""
    speed: Speed | None
    tried: list[Speed]
    """The runtimes measured on the user's env."""
    choice: Choice
    faults: list[str] = field(default_factory=list)
    """Problems that prevent every training, each with its fix."""
    traps: list[str] = field(default_factory=list)
    """Problems that slow training down or break some features, each with its fix."""

    def to_json(self) -> dict[str, Any]:
        """JSON form."""
        extras = [
            asdict(extra) | {"installed": extra.is_installed, "command": extra.command}
            for extra in self.extras
        ]
        return asdict(self) | {"extras": extras}
