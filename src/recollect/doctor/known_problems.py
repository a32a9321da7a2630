"""Problems of machines and installations, each with its fix: faults and less serious traps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recollect.doctor.records import Diagnosis

MIB, GIB = 2**20, 2**30
LEAST = {"torch": (2, 11), "gymnasium": (1, 2), "numpy": (1, 26)}
"""The oldest supported versions."""
FILES = 1024
"""Open files needed by a run with hundreds of processes."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def find_faults(found: Diagnosis) -> list[str]:
    """Problems that prevent every training."""
    return [*_software(found), *_folders(found)]


def find_traps(found: Diagnosis, environ: Mapping[str, str]) -> list[str]:
    """Problems that slow training down or break some features."""
    return [*_threads(found, environ), *_memory(found), *_gpus(found), *_bf16(found, environ)]


def _software(found: Diagnosis) -> Iterator[str]:
    for name, least in LEAST.items():
        version: str | None = getattr(found.software, name)
        wanted = ".".join(map(str, least))
        if version is None:
            yield f"{name} cannot be imported: pip install '{name}>={wanted}'"
        elif _numbers(version) < least:
            yield f"{name} is {version}, but {wanted} or later is needed: pip install --upgrade {name}"


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
        first = text.split(",")[0].strip()  # OpenMP takes a list, one number per nesting level
        if not first.isdigit() or int(first) == 0:
            yield f"{name}={text} is not a number of threads: unset it, or set it to {cpu.usable}"
        elif int(first) > cpu.usable:
            yield (
                f"{name}={text}, but this process may use only {cpu.usable} cores, so threads compete. Unset "
                f"it, or set it to {cpu.usable}"
            )
    if cpu.threads is not None and cpu.threads > cpu.usable:
        yield (
            f"torch starts {cpu.threads} threads for {cpu.usable} usable cores: set "
            f"OMP_NUM_THREADS={cpu.usable} (Recollect's own trainings are not affected)"
        )
    if cpu.quota is not None and cpu.quota < cpu.usable:
        yield (
            f"the container shows {cpu.usable} cores but is limited to the time of {cpu.quota:g}, so further "
            f"threads are throttled. Train with --threads {found.choice.threads}"
        )
    if cpu.load is not None and cpu.load > 1.5 * cpu.usable:
        yield (
            f"the load is {cpu.load:.1f} on {cpu.usable} cores: training, and the speed measured here, are "
            "slower than on an idle machine"
        )


def _memory(found: Diagnosis) -> Iterator[str]:
    memory = found.memory
    free = min((m for m in (memory.available, memory.limit) if m is not None), default=None)
    if free is not None and free < GIB:
        yield f"only {free / MIB:.0f} MiB of memory are free: lower --num-envs, or close other programs"
    has_ray = any(extra.name == "ray" and extra.is_installed for extra in found.extras)
    if has_ray and memory.shared is not None and memory.shared < 256 * MIB:
        yield (
            f"/dev/shm has {memory.shared / MIB:.0f} MiB: --runtime ray stores its objects there and needs "
            "more (--runtime processes does not). Docker: --shm-size=1g, or --ipc=host"
        )
    if found.files is not None and found.files < FILES:
        yield (
            f"a process may open only {found.files} files: hundreds of actors or env workers need more, "
            f"ulimit -n {FILES}"
        )
    for folder in found.folders:
        if folder.is_writable and folder.free is not None and folder.free < GIB:
            yield f"only {folder.free / MIB:.0f} MiB are free for {folder.path}: checkpoints may fail"


def _gpus(found: Diagnosis) -> Iterator[str]:
    if found.driver is not None and not found.gpus and found.software.torch is not None:
        cuda = found.software.cuda
        build = "is a CPU build" if cuda is None else f"was built for CUDA {cuda}"
        yield (
            f"there is an NVIDIA driver ({found.driver}), but torch finds no GPU: torch {build}. Install "
            "the build for your CUDA version (pytorch.org), or check CUDA_VISIBLE_DEVICES"
        )
    if found.gpus and found.software.triton is None:
        yield (
            "there is a GPU but no Triton, which the fast kernels of LSTM, GRU and linear recurrences need: "
            "pip install triton"
        )


def _bf16(found: Diagnosis, environ: Mapping[str, str]) -> Iterator[str]:
    if found.cpu.bf16 in (None, "ok"):
        return
    tried = " (ONEDNN_MAX_CPU_ISA is set already)" if "ONEDNN_MAX_CPU_ISA" in environ else ""
    yield (
        f"bf16 gives wrong results on this CPU: {found.cpu.bf16}. precision='bf16' raises an error; to use "
        f"it, set ONEDNN_MAX_CPU_ISA=AVX512_CORE before Python starts{tried}"
    )
