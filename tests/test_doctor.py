"""``recollect doctor``: it finds what is there, says what is in the way, and crashes at nothing."""

from __future__ import annotations

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recollect.cli import doctor as command
from recollect.cli import main
from recollect.doctor import Diagnosis, Places, examine, gather
from recollect.doctor.limits import read_limits
from recollect.doctor.records import Extra, Folder, Gpu, Speed
from recollect.doctor.traps import find_traps

GIB = 2**30


@pytest.fixture
def places(tmp_path) -> Places:
    """A machine with 8 GiB, of which a container may use 2, and the time of one and a half cores."""
    group = tmp_path / "cgroup" / "box"
    (tmp_path / "proc" / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  8388608 kB\nMemAvailable:  4194304 kB\nHugePages: x\n")
    (tmp_path / "proc/cpuinfo").write_text("processor\t: 0\nmodel name\t: Abacus 9\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/box\n")
    (group / "cpu.max").write_text("150000 100000\n")
    (group / "memory.max").write_text(f"{2 * GIB}\n")
    (tmp_path / "cgroup/memory.max").write_text("max\n")
    (tmp_path / "cgroup/cpu.max").write_text("max 100000\n")
    return Places(tmp_path / "proc", tmp_path / "cgroup", tmp_path, tmp_path / "runs", tmp_path)


@pytest.fixture
def found(places) -> Diagnosis:
    return examine(quick=True, places=places, environ={})


def traps(found: Diagnosis, environ: dict[str, str] | None = None, **changes: Any) -> str:
    return "\n".join(find_traps(replace(found, **changes), environ or {}))


def test_limits_of_a_container_are_read(places):
    """The tightest of its control groups, of version 2 and of version 1."""
    limits = read_limits(places)
    assert limits.cpu == "Abacus 9"
    assert (limits.memory, limits.available) == (8 * GIB, 4 * GIB)
    assert (limits.quota, limits.memory_limit) == (1.5, 2 * GIB)
    (places.cgroup / "box/cpu.max").unlink()
    (places.cgroup / "box/memory.max").unlink()
    (places.cgroup / "cpu").mkdir()
    (places.cgroup / "cpu/cpu.cfs_quota_us").write_text("50000\n")
    (places.cgroup / "cpu/cpu.cfs_period_us").write_text("100000\n")
    (places.cgroup / "memory").mkdir()
    (places.cgroup / "memory/memory.limit_in_bytes").write_text("9223372036854771712\n")
    limits = read_limits(places)
    assert (limits.quota, limits.memory_limit) == (0.5, None)
    (places.cgroup / "cpu/cpu.cfs_quota_us").write_text("-1\n")
    assert read_limits(places).quota is None


def test_nothing_there_is_no_crash(tmp_path, monkeypatch):
    """No /proc, no git, no torch, no nvidia-smi, no affinity, nowhere to write: unknown, and said so."""
    nowhere = tmp_path / "nowhere"
    monkeypatch.setenv("PATH", str(nowhere))
    monkeypatch.delattr("os.sched_getaffinity", raising=False)
    monkeypatch.delattr("os.getloadavg", raising=False)
    monkeypatch.setattr("recollect.doctor.limits.platform", SimpleNamespace(processor=str, machine=str))

    def missing(*_: Any, **__: Any) -> Any:
        raise ImportError("no torch here")

    monkeypatch.setattr(gather, "_torch", missing)
    monkeypatch.setattr(gather, "_is_writable", missing)
    monkeypatch.setattr(gather, "measure_speed", missing)
    monkeypatch.setattr(gather, "_try_bf16", missing)
    found = examine(places=Places(nowhere, nowhere, nowhere, nowhere, nowhere), environ={})
    assert found.software.torch is None
    assert found.software.commit is None
    assert (found.memory.total, found.cpu.name, found.driver, found.gpus) == (None, None, None, [])
    assert found.speed is None
    said = "\n".join(found.traps)
    assert "torch cannot be imported: pip install 'torch>=2.11'" in said
    assert "cannot be written to" in said
    assert "a tiny training failed with ImportError: no torch here" in said
    json.dumps(found.to_json())
    assert list(command._lines(found))


def test_a_quota_below_the_cores_is_a_trap(found):
    """Recollect would start a thread for every core that it sees."""
    cpu = replace(found.cpu, usable=8, quota=1.5, threads=8, load=0.1)
    choice = gather._choice(cpu, [])
    assert (choice.threads, choice.flags) == (1, "--threads 1")
    assert "grants the time of 1.5 cores" in traps(found, cpu=cpu, choice=choice)
    free = replace(cpu, quota=None)
    assert gather._choice(free, []).flags == ""
    assert "grants" not in traps(found, cpu=free)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OMP_NUM_THREADS": "banana"}, "OMP_NUM_THREADS=banana is no number"),
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS=0 is no number"),
        ({"MKL_NUM_THREADS": "64"}, "MKL_NUM_THREADS=64, and this process may use 4 cores"),
        ({"OMP_NUM_THREADS": "4,2"}, ""),
        ({"OMP_NUM_THREADS": "1"}, ""),
        ({}, ""),
    ],
)
def test_silly_numbers_of_threads_are_traps(found, environ, words):
    cpu = replace(found.cpu, usable=4, threads=4, quota=None, load=0.0)
    said = traps(found, environ, cpu=cpu)
    assert words in said if words else "THREADS" not in said


def test_traps_of_the_machine(found):
    """Each of them alone, and none where all is well."""
    cpu = replace(found.cpu, usable=4, threads=4, quota=None, load=0.0)
    fine = replace(
        found,
        cpu=cpu,
        memory=replace(found.memory, available=8 * GIB, limit=None, shared=GIB),
        folders=[Folder("runs", 9 * GIB, True)],
    )
    assert traps(fine) == ""
    assert "torch starts 9 threads for 4" in traps(fine, cpu=replace(cpu, threads=9))
    assert "7.5 processes want 4 cores" in traps(fine, cpu=replace(cpu, load=7.5))
    assert "512 MiB of memory" in traps(fine, memory=replace(fine.memory, limit=GIB // 2))
    assert "--shm-size" in traps(fine, memory=replace(fine.memory, shared=2**26))
    assert "checkpoints may fail" in traps(fine, folders=[Folder("runs", 2**20, True)])
    assert "runs cannot be written to" in traps(fine, folders=[Folder("runs", 9 * GIB, False)])
    assert "sees no GPU: torch is a CPU build" in traps(
        fine, driver="550.1", software=replace(fine.software, cuda=None)
    )
    assert traps(fine, driver="550.1", gpus=[Gpu("H", GIB, None, "9.0", True)]) == ""
    assert "torch is 2.3.1+cpu, and 2.11 is needed" in traps(
        fine, software=replace(fine.software, torch="2.3.1+cpu")
    )
    wrong = replace(cpu, bf16="results are off by 75%")
    assert "ONEDNN_MAX_CPU_ISA=AVX512_CORE" in traps(fine, cpu=wrong)
    assert "set already" in traps(fine, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, cpu=wrong)
    assert traps(fine, cpu=replace(cpu, bf16="ok")) == ""


def test_extras_are_told_with_their_command():
    """Installed only if all of it is."""
    part = Extra("video", "films", {"pillow": "1", "imageio-ffmpeg": None})
    assert not part.is_installed
    assert part.command == "pip install 'recollect[video]'"
    assert replace(part, packages={"pillow": "1", "imageio-ffmpeg": "2"}).is_installed


def test_the_commit_is_that_of_recollect_or_none(tmp_path):
    """Not that of whatever checkout it happens to be installed in."""
    commit = gather._commit
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    assert len(commit(root / "src/recollect").split()[0]) == 12
    (tmp_path / "__init__.py").touch()
    tolerant = gather._tolerant
    assert tolerant(lambda: commit(tmp_path), None) is None


def test_the_speed_is_measured():
    """Its parts are shares of the whole."""
    speed = gather.measure_speed(seconds=0.0, rollout=8, chunk=4, threads=1)
    assert speed.steps_per_second > 0
    assert speed.updates == 1
    assert min(speed.env, speed.act, speed.learn) > 0
    assert speed.env + speed.act + speed.learn <= 1.001


def test_it_fits_the_terminal(found, capsys, monkeypatch):
    """Within 80 columns, whatever was found."""
    monkeypatch.setenv("COLUMNS", "80")
    full = replace(
        found,
        gpus=[Gpu("NVIDIA H200 with a very long name indeed", 140 * GIB, 100 * GIB, "9.0", True)],
        driver="550.54",
        speed=Speed("position-cartpole", 12345.6, 0.2, 0.3, 0.5, 9),
        traps=["a trap " * 30],
    )
    monkeypatch.setattr("recollect.doctor.examine", lambda **_: full)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "12,346 steps/s" in out
    assert "capability 9.0, bf16" in out
    assert "Abacus 9" in out


def test_the_command_line(capsys):
    """For people and for programs; a flag that it does not know is a wrong call."""
    assert main(["doctor", "--quick"]) == 0
    assert "best here" in capsys.readouterr().out
    assert main(["doctor", "--quick", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["speed"] is None
    assert {"software", "cpu", "memory", "gpus", "extras", "terminal", "choice", "traps"} <= data.keys()
    assert main(["doctor", "--fast"]) == 2


def test_the_extras_are_those_of_the_package():
    """What the doctor tells people to install can be installed."""
    project = tomllib.loads((Path(__file__).resolve().parent.parent / "pyproject.toml").read_text())
    offered = project["project"]["optional-dependencies"]
    assert set(gather.EXTRAS) == set(offered) - {"dev", "docs"}
    for name, (_, packages) in gather.EXTRAS.items():
        assert [entry.split(">=")[0] for entry in offered[name]] == list(packages)
