"""What ``examine`` finds, as plain records."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Software:
    """Versions."""

    recollect: str | None
    commit: str | None
    """Of the checkout that Recollect runs from; None if it is installed."""
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
    """Cores and what torch makes of them."""

    name: str | None
    cores: int
    """Logical cores of the machine."""
    usable: int
    """Those that this process may run on."""
    quota: float | None
    """Cores' worth of time that a container grants; None without a limit."""
    load: float | None
    """Processes that wanted a core in the last minute, on average."""
    capability: str | None
    """The instructions that torch uses, such as AVX512."""
    threads: int | None
    """torch's intra-op threads in a process that sets nothing."""
    mkl: bool | None
    onednn: bool | None
    bf16: str | None
    """Whether bf16 gives right results: "ok", or what went wrong; None if not tried."""


@dataclass(frozen=True, slots=True)
class Memory:
    """In bytes; None where unknown."""

    total: int | None
    available: int | None
    limit: int | None
    """What a container grants."""
    shared: int | None
    """The size of /dev/shm."""
    shared_free: int | None


@dataclass(frozen=True, slots=True)
class Folder:
    """A place that runs write to."""

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
    """An optional part."""

    name: str
    purpose: str
    packages: dict[str, str | None]
    """Version by package; None: not installed."""

    @property
    def is_installed(self) -> bool:
        """Whether all of it is there."""
        return None not in self.packages.values()

    @property
    def command(self) -> str:
        """How to get it."""
        return f"pip install 'recollect[{self.name}]'"


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where the output goes."""

    is_terminal: bool
    width: int
    colours: str | None
    """"standard", "256" or "truecolor"; None: none."""
    unicode: bool


@dataclass(frozen=True, slots=True)
class Speed:
    """A tiny training, measured."""

    task: str
    """Or the env."""
    steps_per_second: float
    env: float
    """Its share of the time; in other processes the shares overlap."""
    act: float
    learn: float
    updates: int
    flags: str = ""
    """The settings that it was trained with, where they are not the defaults."""


@dataclass(frozen=True, slots=True)
class Case:
    """What suits one kind of training."""

    when: str
    flags: str
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """What a training here would best use."""

    device: str
    threads: int
    runtime: str
    flags: str
    """What to type for it, where that is not the default."""
    cases: list[Case] = field(default_factory=list)
    """What else suits what else."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Everything that was found."""

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
    """How many files a process may have open at once."""
    speed: Speed | None
    tried: list[Speed]
    """The runtimes that were tried out on an env that the user named."""
    choice: Choice
    faults: list[str] = field(default_factory=list)
    """What keeps every training from working, each with its fix."""
    traps: list[str] = field(default_factory=list)
    """What makes training slow or some of it fail, each with its fix."""

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        extras = [
            asdict(extra) | {"installed": extra.is_installed, "command": extra.command}
            for extra in self.extras
        ]
        return asdict(self) | {"extras": extras}
