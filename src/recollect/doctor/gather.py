"""Examines the machine without ever failing: unknown values are None.

torch and other packages are imported inside functions, so that a broken installation can be examined too.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from recollect.base import tracebacks
from recollect.base.system_limits import Limits, Places, read_limits
from recollect.doctor.known_problems import find_faults, find_traps
from recollect.doctor.recommendation import SECONDS, choose, choose_by, cores_of, measure_speed, try_out
from recollect.doctor.records import Cpu, Diagnosis, Extra, Folder, Gpu, Memory, Software, Terminal
from recollect.errors import RecollectError

T = TypeVar("T")

EXTRAS = {
    "video": ("recollect play as GIF or MP4", ("pillow", "imageio-ffmpeg")),
    "ray": ("actors on a cluster, --runtime ray", ("ray",)),
    "pettingzoo": ("envs of PettingZoo, with several agents", ("pettingzoo",)),
    "onnx": ("recollect export", ("onnx", "onnxscript", "onnxruntime")),
    "tensorboard": ("metrics to TensorBoard", ("tensorboard",)),
    "wandb": ("metrics to Weights & Biases", ("wandb",)),
}
"""By extra: its purpose and its packages."""


def examine(
    *,
    quick: bool = False,
    places: Places | None = None,
    environ: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
    env: str | None = None,
) -> Diagnosis:
    """Examine this machine.

    Args:
        quick: skip measurements.
        places: paths to read, for tests.
        environ: the environment variables, for tests.
        seconds: duration of one speed measurement.
        env: measure the runtimes on this env instead of a built-in task.
    """
    places = places or Places()
    environ = os.environ if environ is None else environ
    limits = read_limits(places)
    cpu, gpus = _cpu(limits, quick=quick), _tolerant(_gpus, [])
    found = Diagnosis(
        software=_software(places),
        cpu=cpu,
        memory=_memory(limits, places),
        folders=[_folder(places.runs), _folder(Path(_tolerant(tempfile.gettempdir, "/tmp")))],
        gpus=gpus,
        driver=_tolerant(lambda: _driver(places), None),
        extras=[_extra(name) for name in EXTRAS],
        terminal=_tolerant(lambda: _terminal(environ), Terminal(False, 80, None, False)),
        files=_tolerant(_files, None),
        speed=None,
        tried=[],
        choice=choose(cpu, gpus, _version("ray")),
    )
    failed: list[str] = []
    if not quick:
        try:
            if env is None:
                found = replace(found, speed=measure_speed(seconds))
            else:
                tried = try_out(env, cores_of(cpu), seconds)
                found = replace(found, tried=tried, choice=choose_by(found.choice, tried))
        except Exception as error:
            if isinstance(error, RecollectError) or (env is not None and tracebacks.user_frames(error)):
                raise  # the user's env cannot be used
            failed.append(f"a short training failed with {type(error).__name__}: {error}")
    return replace(found, faults=[*find_faults(found), *failed], traps=find_traps(found, environ))


def _tolerant(find: Callable[[], T], default: T) -> T:
    """The result of ``find``, or ``default`` if it fails."""
    try:
        return find()
    except Exception:
        return default


def _version(package: str) -> str | None:
    return _tolerant(lambda: importlib.metadata.version(package), None)


def _software(places: Places) -> Software:
    return Software(
        commit=_tolerant(lambda: _commit(places.package), None),
        python=platform.python_version(),
        torch=_tolerant(lambda: _torch().__version__, None),
        cuda=_tolerant(lambda: _torch().version.cuda, None),
        **{name: _version(name) for name in ("recollect", "triton", "numpy", "gymnasium")},
        system=_tolerant(platform.platform, "unknown"),
    )


def _torch() -> Any:
    return importlib.import_module("torch")


def _commit(package: Path) -> str | None:
    """The commit of ``package``, if git tracks it: it may be installed inside another checkout."""

    def git(*args: str) -> str:
        return _output("git", *args, cwd=package)

    git("ls-files", "--error-unmatch", "__init__.py")
    changed = bool(git("status", "--porcelain", "--untracked-files=no", "."))
    return git("rev-parse", "--short=12", "HEAD") + (" with changes" if changed else "")


def _output(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _cpu(limits: Limits, *, quick: bool) -> Cpu:
    cores = os.cpu_count() or 1
    return Cpu(
        name=limits.cpu,
        cores=cores,
        usable=_tolerant(lambda: len(os.sched_getaffinity(0)), cores),
        quota=limits.quota,
        load=_tolerant(lambda: os.getloadavg()[0], None),
        capability=_tolerant(lambda: _torch().backends.cpu.get_cpu_capability(), None),
        threads=_tolerant(lambda: _torch().get_num_threads(), None),
        mkl=_tolerant(lambda: _torch().backends.mkl.is_available(), None),
        onednn=_tolerant(lambda: _torch().backends.mkldnn.is_available(), None),
        bf16=None if quick else _tolerant(_try_bf16, None),
    )


def _try_bf16() -> str:
    """The same check that a training with precision="bf16" makes."""
    from recollect.policy.precision import probe

    return probe()


def _memory(limits: Limits, places: Places) -> Memory:
    shared = _tolerant(lambda: shutil.disk_usage(places.shm), None)
    return Memory(
        total=limits.memory,
        available=limits.available,
        limit=limits.memory_limit,
        shared=None if shared is None else shared.total,
        shared_free=None if shared is None else shared.free,
    )


def _folder(path: Path) -> Folder:
    """Free space and permissions of ``path``, or of its nearest existing parent."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    free = _tolerant(lambda: shutil.disk_usage(there).free, None)
    return Folder(str(path), free, _tolerant(lambda: _is_writable(there), False))


def _is_writable(folder: Path) -> bool:
    """Tested by writing, since permissions do not show a read-only file system."""
    with tempfile.TemporaryFile(dir=folder):
        return True


def _gpus() -> list[Gpu]:
    torch = _torch()
    if not torch.cuda.is_available():
        return []
    found = []
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        major, minor = torch.cuda.get_device_capability(index)
        free = _tolerant(lambda index=index: torch.cuda.mem_get_info(index)[0], None)
        found.append(Gpu(about.name, about.total_memory, free, f"{major}.{minor}", major >= 8))
    return found


def _driver(places: Places) -> str | None:
    """The version of the NVIDIA driver, even if torch cannot use it."""
    text = _tolerant(lambda: (places.proc / "driver/nvidia/version").read_text(), "")
    if "Kernel Module" in text:
        return next(word for word in text.split("Kernel Module", 1)[1].split() if word[:1].isdigit())
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader").split()[0]


def _extra(name: str) -> Extra:
    purpose, packages = EXTRAS[name]
    return Extra(name, purpose, {package: _version(package) for package in packages})


def _terminal(environ: Mapping[str, str]) -> Terminal:
    from rich.console import Console

    console = Console(_environ=dict(environ))
    # Not sys.stdout, which a display may have replaced.
    encoding = (getattr(sys.__stdout__, "encoding", None) or "").lower().replace("-", "")
    return Terminal(console.is_terminal, console.width, console.color_system, encoding.startswith("utf"))


def _files() -> int | None:
    """The limit on open files; None: no limit."""
    resource = importlib.import_module("resource")  # not on Windows
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
