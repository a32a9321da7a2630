"""Faults and known traps of machines and installations, each with its fix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recollect.doctor.records import Diagnosis

MIB, GIB = 2**20, 2**30
LEAST = {"torch": (2, 11), "gymnasium": (1, 2), "numpy": (1, 26)}
"""The oldest versions that Recollect works with."""
FILES = 1024
"""Open files that a run with hundreds of other processes needs."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def find_faults(found: Diagnosis) -> list[str]:
    """What of this no training works with."""
    return [*_software(found), *_folders(found)]


def find_traps(found: Diagnosis, environ: Mapping[str, str]) -> list[str]:
    """What of this is in the way."""
    return [
        *_threads(found, environ),
        *_memory(found),
        *_gpus(found),
        *_bf16(found, environ),
    ]


def _software(found: Diagnosis) -> Iterator[str]:
    for name, least in LEAST.items():
        version: str | None = getattr(found.software, name)
        wanted = ".".join(map(str, least))
        if version is None:
            yield f"{name} cannot be imported: pip install '{name}>={wanted}'"
        elif _numbers(version) < least:
            yield f"{name} is {version}, and {wanted} is needed: pip install --upgrade {name}"


def _folders(found: Diagnosis) -> Iterator[str]:
    for folder in found.folders:
        if not folder.is_writable:
            yield f"{folder.path} cannot be written to: choose another folder, --run PATH (or TMPDIR)"


def _numbers(version: str) -> tuple[int, ...]:
    """2.13.0+cpu -> (2, 13)."""
    parts = version.split("+")[0].split(".")[:2]
    return tuple(int("".join(letter for letter in part if letter.isdigit()) or 0) for part in parts)


def _threads(found: Diagnosis, environ: Mapping[str, str]) -> Iterator[str]:
    cpu = found.cpu
    for name in THREAD_VARIABLES:
        text = environ.get(name)
        if text is None:
            continue
        first = text.split(",")[0].strip()  # OpenMP takes a list, one for each level
        if not first.isdigit() or int(first) == 0:
            yield f"{name}={text} is no number of threads: unset it, or set it to {cpu.usable}"
        elif int(first) > cpu.usable:
            yield (
                f"{name}={text}, and this process may use {cpu.usable} cores: threads wait for each other. "
                f"Unset it, or set it to {cpu.usable}"
            )
    if cpu.threads is not None and cpu.threads > cpu.usable:
        yield (
            f"torch starts {cpu.threads} threads for {cpu.usable} usable cores: set "
            f"OMP_NUM_THREADS={cpu.usable}. (A Recollect training sets its own number.)"
        )
    if cpu.quota is not None and cpu.quota < cpu.usable:
        yield (
            f"the container grants the time of {cpu.quota:g} cores and shows {cpu.usable}: more threads than "
            f"that are stopped by turns. Train with --threads {found.choice.threads}"
        )
    if cpu.load is not None and cpu.load > 1.5 * cpu.usable:
        yield (
            f"{cpu.load:.1f} processes want {cpu.usable} cores: training is slower for it, and so is the "
            "speed that was measured here"
        )


def _memory(found: Diagnosis) -> Iterator[str]:
    memory = found.memory
    free = min((m for m in (memory.available, memory.limit) if m is not None), default=None)
    if free is not None and free < GIB:
        yield f"only {free / MIB:.0f} MiB of memory are free: fewer envs, or close something"
    has_ray = any(extra.name == "ray" and extra.is_installed for extra in found.extras)
    if has_ray and memory.shared is not None and memory.shared < 256 * MIB:
        yield (
            f"/dev/shm has {memory.shared / MIB:.0f} MiB: Ray keeps its objects there and needs more "
            "(runtime processes does not). Docker: --shm-size=1g, or --ipc=host"
        )
    if found.files is not None and found.files < FILES:
        yield (
            f"a process may have {found.files} files open: hundreds of actors or env workers need more, "
            f"ulimit -n {FILES}"
        )
    for folder in found.folders:
        if folder.is_writable and folder.free is not None and folder.free < GIB:
            yield f"only {folder.free / MIB:.0f} MiB are free for {folder.path}: checkpoints may fail"


def _gpus(found: Diagnosis) -> Iterator[str]:
    if found.driver is not None and not found.gpus and found.software.torch is not None:
        build = (
            "is a CPU build" if found.software.cuda is None else f"was built for CUDA {found.software.cuda}"
        )
        yield (
            f"there is an NVIDIA driver ({found.driver}), and torch sees no GPU: torch {build}. Install "
            "the build for your CUDA (pytorch.org), or see CUDA_VISIBLE_DEVICES"
        )
    if found.gpus and found.software.triton is None:
        yield (
            "there is a GPU and no Triton, which the fast kernels of LSTM, GRU and linear recurrences are "
            "written in: pip install triton"
        )


def _bf16(found: Diagnosis, environ: Mapping[str, str]) -> Iterator[str]:
    if found.cpu.bf16 in (None, "ok"):
        return
    tried = " (ONEDNN_MAX_CPU_ISA is set already)" if "ONEDNN_MAX_CPU_ISA" in environ else ""
    yield (
        f"bf16 on this CPU is not safe: {found.cpu.bf16}. precision='bf16' is refused, and float32 is "
        f"the default; for bf16 set ONEDNN_MAX_CPU_ISA=AVX512_CORE before Python starts{tried}"
    )
