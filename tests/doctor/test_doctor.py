"""``recollect doctor``: it finds what is there, says what is in the way, and crashes at nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recollect.base.system_limits import read_limits
from recollect.cli import doctor as command
from recollect.cli import main
from recollect.doctor import Diagnosis, Places, examine, gather
from recollect.doctor.known_problems import find_faults, find_traps
from recollect.doctor.recommendation import actors_for, choose, choose_by, measure_speed
from recollect.doctor.records import Extra, Folder, Gpu, Speed
from recollect.training.parse_config import parse_config

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


def faults(found: Diagnosis, **changes: Any) -> str:
    return "\n".join(find_faults(replace(found, **changes)))


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
    monkeypatch.setattr("recollect.base.system_limits.platform", SimpleNamespace(processor=str, machine=str))

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
    said = "\n".join(found.faults)
    assert "torch cannot be imported: pip install 'torch>=2.11'" in said
    assert "cannot be written to" in said
    assert "training failed with ImportError: no torch here" in said
    json.dumps(found.to_json())
    assert list(command._lines(found))


def test_a_quota_below_the_cores_is_a_trap(found):
    """Recollect would start a thread for every core that it sees."""
    cpu = replace(found.cpu, usable=8, quota=1.5, threads=8, load=0.1)
    choice = choose(cpu, [])
    assert (choice.threads, choice.flags) == (1, "--threads 1")
    assert "limited to the time of 1.5" in traps(found, cpu=cpu, choice=choice)
    free = replace(cpu, quota=None)
    assert choose(free, []).flags == ""
    assert "limited to" not in traps(found, cpu=free)


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"OMP_NUM_THREADS": "banana"}, "OMP_NUM_THREADS=banana is not a number"),
        ({"OMP_NUM_THREADS": "0"}, "OMP_NUM_THREADS=0 is not a number"),
        ({"MKL_NUM_THREADS": "64"}, "MKL_NUM_THREADS=64, but this process may use only 4 cores"),
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
        files=4096,
    )
    assert traps(fine) == ""
    assert "torch starts 9 threads for 4" in traps(fine, cpu=replace(cpu, threads=9))
    assert "7.5 on 4 cores" in traps(fine, cpu=replace(cpu, load=7.5))
    assert "512 MiB of memory" in traps(fine, memory=replace(fine.memory, limit=GIB // 2))
    small, ray = replace(fine.memory, shared=2**26), Extra("ray", "clusters", {"ray": "2.60"})
    assert "--shm-size" in traps(fine, memory=small, extras=[ray])
    assert traps(fine, memory=small, extras=[]) == "", "processes use no /dev/shm"
    assert "ulimit -n 1024" in traps(fine, files=256)
    assert traps(fine, files=None) == ""
    assert "checkpoints may fail" in traps(fine, folders=[Folder("runs", 2**20, True)])
    assert faults(fine) == ""
    unwritable = [Folder("runs", 9 * GIB, False)]
    assert "runs cannot be written to" in faults(fine, folders=unwritable)
    assert traps(fine, folders=unwritable) == "", "said once"
    assert "finds no GPU: torch is a CPU build" in traps(
        fine, driver="550.1", software=replace(fine.software, cuda=None)
    )
    gpus, software = [Gpu("H", GIB, None, "9.0", True)], replace(fine.software, triton="3.6.0")
    assert traps(fine, driver="550.1", gpus=gpus, software=software) == ""
    assert "pip install triton" in traps(fine, gpus=gpus, software=replace(software, triton=None))
    assert "torch is 2.3.1+cpu, but 2.11 or later is needed" in faults(
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
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    assert len(commit(root / "src/recollect").split()[0]) == 12
    (tmp_path / "__init__.py").touch()
    tolerant = gather._tolerant
    assert tolerant(lambda: commit(tmp_path), None) is None


def test_the_speed_is_measured():
    """Its parts are shares of the whole."""
    speed = measure_speed(seconds=0.0, rollout=8, chunk=4, threads=1)
    assert speed.steps_per_second > 0
    assert speed.updates == 1
    assert min(speed.env, speed.act, speed.learn) > 0
    assert speed.env + speed.act + speed.learn <= 1.001


def test_what_it_would_choose(found):
    """For every kind of training one line, as far as the machine has what it takes."""
    one = replace(found.cpu, usable=1, quota=None)
    assert [case.flags for case in choose(one, []).cases] == ["nothing to set"]
    two = [case.flags for case in choose(replace(one, usable=2), []).cases]
    assert two == ["nothing to set", "--actors 2 --env-workers 1"]
    gpu = Gpu("H", GIB, None, "9.0", True)
    many = choose(replace(one, usable=8), [gpu, gpu], ray="2.60")
    assert [case.flags for case in many.cases] == [
        "nothing to set",
        "--actors 2 --env-workers 4",
        "--runtime processes --actors 4 --mode async",
        "--device cuda --num-envs 1024",
        "--device cuda --learners 2",
        "--runtime ray --ray-address auto",
    ]
    assert all(case.when and case.why for case in many.cases)
    assert (many.device, many.runtime, many.threads) == ("cpu", "inline", 8)


def test_env_slots_can_be_split_over_the_actors():
    for cores in range(1, 130):
        actors, num_envs = actors_for(cores)
        assert num_envs % actors == 0
        assert actors <= max(1, cores - 1)


def test_what_it_proposes_can_be_typed(found):
    """Every flag is one that training takes, with a value that it takes."""
    gpus = [Gpu("H", GIB, None, "9.0", True)] * 2
    for cores in (2, 8, 64):
        cpu = replace(found.cpu, usable=cores, quota=cores - 1)
        for case in choose(cpu, gpus, ray="2.60").cases:
            if case.flags != "nothing to set":
                parse_config(case.flags.split(), env="delayed-cue")


def test_the_fastest_that_was_tried_is_chosen(found):
    """If it is worth it: a training in one process is simpler."""
    base = choose(replace(found.cpu, usable=4, quota=3), [])
    inline = Speed("Slow-v0", 1000, 0.8, 0.1, 0.1, 9)
    workers = replace(inline, steps_per_second=1900, flags="--env-workers 3")
    actors = replace(inline, steps_per_second=1800, flags="--runtime processes --actors 2")
    best = choose_by(base, [inline, workers, actors])
    assert (best.runtime, best.flags) == ("inline", "--threads 3 --env-workers 3")
    assert "1.9 times as fast" in best.cases[0].why
    best = choose_by(base, [inline, actors])
    assert (best.runtime, best.flags) == ("processes", "--threads 3 --runtime processes --actors 2")
    same = choose_by(base, [inline, replace(workers, steps_per_second=1050)])
    assert (same.runtime, same.flags) == ("inline", "--threads 3")
    assert "the env takes 80% of the time" in same.cases[0].why
    assert "one core" in choose_by(base, [inline]).cases[0].why


@pytest.mark.usefixtures("warm_children")
def test_an_env_is_tried_out(monkeypatch, capsys):
    """With the runtimes that could pay here; shown to people and to programs."""
    tried: list[Any] = []

    def measured(seconds: float, env: str, **settings: Any) -> Speed:
        tried.append(settings)
        return measure_speed(0.0, env=env, rollout=8, chunk=4, threads=1, **settings)

    monkeypatch.setattr("recollect.doctor.recommendation.measure_speed", measured)
    monkeypatch.setattr(gather, "cores_of", lambda _: 2)
    assert main(["doctor", "--env", "delayed-cue"]) == 0
    assert tried == [
        {},
        {"actors": 2, "env_workers": 1},
        {"runtime": "processes", "actors": 2, "mode": "async"},
    ]
    out = capsys.readouterr().out
    assert out.count("steps/s training delayed-cue") == 3
    assert main(["doctor", "--env", "no-such-env"]) == 2
    assert "no-such-env" in capsys.readouterr().err
    assert main(["doctor", "--env", "delayed-cue", "--quick"]) == 2


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


def test_a_machine_that_cannot_train_is_told_by_the_exit_code(found, tmp_path, capsys, monkeypatch):
    """1 if something that training needs is missing or broken; a trap alone is none of that."""
    for changes, code in (
        ({"traps": ["slow"]}, 0),
        ({"faults": ["torch cannot be imported"]}, 1),
        ({"faults": ["a short training failed"], "traps": ["slow"]}, 1),
    ):
        monkeypatch.setattr("recollect.doctor.examine", lambda c=changes, **_: replace(found, **c))
        assert main(["doctor"]) == code
        said = capsys.readouterr().out
        assert all(words in said for words in changes.get("faults", []))
        assert main(["doctor", "--json"]) == code
        assert json.loads(capsys.readouterr().out)["faults"] == changes.get("faults", [])
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is missing')")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-m", "recollect", "doctor", "--quick"],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "torch cannot be imported" in done.stdout
    assert "Traceback" not in done.stderr


def test_the_extras_are_those_of_the_package():
    """What the doctor tells people to install can be installed."""
    project = tomllib.loads((Path(__file__).resolve().parents[2] / "pyproject.toml").read_text())
    offered = project["project"]["optional-dependencies"]
    assert set(gather.EXTRAS) == set(offered) - {"dev", "docs"}
    for name, (_, packages) in gather.EXTRAS.items():
        assert [entry.split(">=")[0] for entry in offered[name]] == list(packages)
