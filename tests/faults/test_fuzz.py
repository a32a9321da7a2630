"""Run folders that are damaged in every way, or written by somebody who means harm: only clear errors.

Whatever reads a run gets every file cut, flipped, exchanged, and every value in it replaced by a hostile one.
Each call either works or raises a RecollectError, within bounded memory; the choice of places is seeded.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect import cli
from recollect.errors import RecollectError
from recollect.reports import play_episodes, write_report
from recollect.sweep import Sweep
from recollect.training.run_folder import Run
from tests.support.damages import DAMAGES
from tests.support.doomed import edit
from tests.support.whole import STOPPED
from tests.sweep.test_foreign import FLAGS, write_sweep

LAST = f"checkpoints/{STOPPED:012d}"
JSONS = ("run.json", "status.json", "glossary.json", "memory_lengths.json", "episodes/report.json")
LINES = ("metrics.jsonl", "evaluations.jsonl", "events.jsonl")
TENSORS = tuple(f"{LAST}/{name}.safetensors" for name in ("weights", "optimizer", "trainer"))
EVERY = (*JSONS, *LINES, "config.yaml", "episodes/report-0.json", f"{LAST}/agent.json", *TENSORS)
DEEP: list[Any] = []
for _ in range(400):
    DEEP = [DEEP]
HOSTILE = (
    *(10**400, -(10**400), 2**63, 2**40, -1, 0, 1e308, float("nan"), float("inf")),
    *(None, True, "", "\0", "../../../../etc/passwd", "/dev/zero", "x" * 70_000),
    *([], {}, [[]], [10**9, 10**9], {"name": "lstm", "hidden": 2**40}, {"a": {"b": None}}, DEEP),
)
"""Of every type, and of every size."""
GIGABYTE = 2**30


class ReadyError(Exception):
    """A run would train now."""


@pytest.fixture(autouse=True)
def _bounded(monkeypatch) -> Iterator[None]:
    """No training; no more than some gigabytes of addresses, and not one of memory."""

    def ready(*_: Any, **__: Any) -> None:
        raise ReadyError

    monkeypatch.setattr("recollect.training.run_loop.Training.fit", ready)
    monkeypatch.setattr(play_episodes, "EVALUATED", 2)
    monkeypatch.setattr("recollect.export.files.export_agent", lambda *_, **__: None)
    before, (soft, hard) = peak(), resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + 4 * GIGABYTE, hard))
    yield
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert peak() - before < GIGABYTE


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.fixture(scope="module")
def recorded(_stopped, tmp_path_factory) -> Path:
    """The stopped run with all that a report leaves in it."""
    path = shutil.copytree(_stopped, tmp_path_factory.mktemp("recorded") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(play_episodes, "EVALUATED", 2)
        patch.setattr(play_episodes, "EPISODES", 1)
        write_report(path)
    return path


def read_all(path: Path) -> None:
    """What ``Run`` has to say."""
    run = Run(path)
    for part in ("status", "glossary"):
        attempt(lambda name: getattr(run, name), part)
    for call in (run.metrics, run.evaluations, run.events, run.history, run.checkpoint):
        attempt(lambda call: call(), call)


def load(path: Path) -> None:
    agent = rc.load(path, checkpoint="last")
    with agent.opened(1):
        pass


READERS: dict[str, Callable[[Path], Any]] = {
    "run": read_all,
    "load": load,
    "resume": lambda path: rc.resume(path, progress=False),
    "report": lambda path: write_report(path, play=False),
}
COMMANDS = (
    ["eval", "--episodes", "1", "--checkpoint", "last"],
    ["play", "--text", "--episodes", "1", "--max-steps", "2"],
    ["export"],
    ["report"],
    ["resume", "--quiet", "--no-report", "--no-eval"],
)


def attempt(call: Callable[[Any], Any], path: Any) -> None:
    """It works, or says clearly what is wrong, without having tried to take memory that is not there."""
    try:
        call(path)
    except ReadyError:
        pass
    except RecollectError as error:
        text = str(error)
        assert "allocate" not in text
        assert "MemoryError" not in text
        assert len(text) < 5000


def command(words: list[str], path: Path) -> None:
    """It ends with an exit code."""
    with suppress(ReadyError):
        assert cli.main([words[0], str(path), *words[1:]]) in (0, 1, 2)


def fresh(recorded: Path, tmp_path: Path) -> Path:
    """A copy to be damaged; the same place again and again."""
    path = tmp_path / "run"
    shutil.rmtree(path, ignore_errors=True)
    return shutil.copytree(recorded, path)


# Files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files(recorded, tmp_path, damage, capsys):
    """Each file of a run damaged in this way, for two of the functions, or for a command."""
    luck = random.Random(damage)
    for name in EVERY:
        path = fresh(recorded, tmp_path)
        DAMAGES[damage](path / name, luck)
        if luck.random() < 0.3:
            command(luck.choice(COMMANDS), path)
            continue
        for call in luck.sample(sorted(READERS), 2):
            attempt(READERS[call], path)
    capsys.readouterr()


@pytest.mark.parametrize("name", ["checkpoints", LAST, "episodes"])
@pytest.mark.parametrize("damage", ["pipe", "zeros", "dangling", "itself", "file"])
def test_damaged_folders(recorded, tmp_path, name, damage, capsys):
    for number, call in enumerate([*READERS.values(), None]):
        path = fresh(recorded, tmp_path)
        shutil.rmtree(path / name)
        (path / name).touch()
        if damage != "file":
            DAMAGES[damage](path / name, random.Random(0))
        if call is None:
            command(COMMANDS[number % len(COMMANDS)], path)
        else:
            attempt(call, path)
    capsys.readouterr()


# Values ----------------------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside of ``value``; of long lists only the ends."""
    yield path
    if isinstance(value, dict):
        for key, part in value.items():
            yield from places(part, (*path, key))
    elif isinstance(value, list):
        for i in {0, len(value) - 1} if value else ():
            yield from places(value[i], (*path, i))


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with ``new`` at ``path``; without it, if that is the ellipsis."""
    if not path:
        return new
    key, *rest = path
    parts = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    if not rest and new is ...:
        del parts[key]
    else:
        parts[key] = replaced(parts[key], tuple(rest), new)
    return parts if isinstance(value, dict) else list(parts.values())


def hostile(value: Any, luck: random.Random, count: int) -> Iterator[Any]:
    """``value`` with hostile values in it, ``count`` for each place, and without that place."""
    for path in places(value):
        for new in luck.sample(HOSTILE, count):
            yield replaced(value, path, new)
        if path:
            yield replaced(value, path, ...)


@pytest.mark.parametrize("name", ["status.json", "memory_lengths.json", "episodes/report.json"])
def test_hostile_values_in_small_files(recorded, tmp_path, name):
    luck, value = random.Random(name), json.loads((recorded / name).read_text())
    path = fresh(recorded, tmp_path)
    for changed in hostile(value, luck, 5 if name == "status.json" else 2):
        (path / name).write_text(json.dumps(changed))
        for call in ("run", "load", "resume") if name == "status.json" else ("report",):
            attempt(READERS[call], path)


@pytest.mark.parametrize("name", LINES)
def test_hostile_values_in_lines(recorded, tmp_path, name):
    luck, path = random.Random(name), tmp_path
    lines = (recorded / name).read_text().splitlines(keepends=True)
    for number, changed in enumerate(hostile(json.loads(lines[0]), luck, 1)):
        path = fresh(recorded, tmp_path) if number % 7 == 0 else path
        (path / name).write_text("".join([json.dumps(changed) + "\n", *lines[1:]]))
        for call in ("run", "report", "resume") if number % 7 == 0 else ("run",):
            attempt(READERS[call], path)


def test_hostile_values_in_run_json(recorded, tmp_path):
    """It has no checksum: a report believes it."""
    luck, path = random.Random(1), fresh(recorded, tmp_path)
    for changed in hostile(json.loads((recorded / "run.json").read_text()), luck, 1):
        (path / "run.json").write_text(json.dumps(changed))
        attempt(READERS["report"], path)


def test_hostile_values_in_an_episode(recorded, tmp_path):
    luck, path, name = random.Random(2), fresh(recorded, tmp_path), "episodes/report-0.json"
    for changed in hostile(json.loads((recorded / name).read_text()), luck, 1):
        (path / name).write_text(json.dumps(changed))
        attempt(READERS["report"], path)


@pytest.mark.parametrize("call", ["load", "resume"])
def test_hostile_values_with_the_right_checksum(recorded, tmp_path, call):
    """The description of a checkpoint, changed by somebody who knows the format."""
    luck, path = random.Random(call), fresh(recorded, tmp_path)
    for changed in hostile(json.loads((path / LAST / "agent.json").read_text()), luck, 2):
        if not isinstance(changed, dict):
            continue
        if not (path / LAST).is_dir():  # a resume from an earlier step has dropped it
            path = fresh(recorded, tmp_path)
        try:
            (path / LAST / "agent.json").write_text("{}")
            edit(path / LAST, **changed)
        except (RecursionError, TypeError, KeyError):  # no checksum can be made of it
            continue
        attempt(READERS[call], path)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        struct.pack("<Q", 2**63),
        struct.pack("<Q", 2**32) + b"{}",
        *(
            struct.pack("<Q", len(text)) + text
            for text in (
                b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}}',
                b'{"a":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,0]}}',
                b'{"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,4]}}....',
                b'{"a":{"dtype":"X","shape":[-1],"data_offsets":[4,0]}}',
                b"[" * 100_000,
            )
        ),
    ],
)
@pytest.mark.parametrize("name", TENSORS)
def test_hostile_tensor_headers(recorded, tmp_path, header, name):
    """With the right checksum."""
    path = fresh(recorded, tmp_path)
    (path / name).write_bytes(header)
    edit(path / LAST)
    for call in ("load", "resume"):
        attempt(READERS[call], path)


def test_hostile_tensors(recorded, tmp_path):
    """Of other shapes and types, and under other names, with the right checksum."""
    import torch
    from safetensors.torch import load_file, save_file

    luck = random.Random(3)
    for name in TENSORS:
        tensors = load_file(recorded / name)
        for key in luck.sample(sorted(tensors), 4):
            tensor = tensors[key]
            for other in (
                torch.zeros(0),
                torch.full_like(tensor, 255 if tensor.dtype == torch.uint8 else 1),
                tensor.to(torch.float64),
                None,
            ):
                path = fresh(recorded, tmp_path)
                rest = {k: v for k, v in tensors.items() if k != key}
                save_file(
                    rest | {"other/name": tensor} if other is None else rest | {key: other}, path / name
                )
                edit(path / LAST)
                attempt(READERS["resume"], path)


# Sweeps ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", [*DAMAGES, "values"])
def test_damaged_sweeps(tmp_path, damage, monkeypatch, capsys):
    monkeypatch.setattr("recollect.sweep.sweep_folder.run_members", lambda *_, **__: 0)
    luck, path = random.Random(damage), tmp_path / "sweep"

    def whole() -> dict[str, Any]:
        shutil.rmtree(path, ignore_errors=True)
        write_sweep(path, ["delayed-cue"], FLAGS)
        return json.loads((path / "sweep.json").read_text())

    def see(_: Any = None) -> None:
        sweep = Sweep.open(path)
        sweep.results()
        sweep.to_do(1)

    if damage != "values":
        whole()
        DAMAGES[damage](path / "sweep.json", luck)
        attempt(see, path)
        return
    for changed in hostile(whole(), luck, 4):
        (path / "sweep.json").write_text(json.dumps(changed))
        attempt(see, path)
    for flag in (
        "--num-envs=99999999999",
        "--core.hidden=99999999",
        "--rollout=9999999999",
        "--config=/dev/zero",
    ):
        whole()
        write = json.loads((path / "sweep.json").read_text())
        write["variants"][0]["flags"].append(flag)
        (path / "sweep.json").write_text(json.dumps(write))
        assert cli.main(["sweep", "--resume", str(path), "--dry-run"]) == 2
    capsys.readouterr()


@pytest.mark.parametrize("name", ["status.json", "evaluations.jsonl", "metrics.jsonl", "run.json"])
def test_damaged_runs_of_a_sweep(recorded, tmp_path, name):
    """The board and the results read them while they are written."""
    write_sweep(tmp_path / "sweep", ["delayed-cue"], FLAGS)
    (tmp_path / "sweep" / "v0").mkdir()
    path = tmp_path / "sweep" / "v0" / "seed-0"
    for number, damage in enumerate(DAMAGES):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(recorded, path)
        DAMAGES[damage](path / name, random.Random(number))
        (member,) = Sweep.open(tmp_path / "sweep").members
        for call in (member.progress, member.score, member.left, member.is_over, member.is_readable):
            attempt(lambda call: call(), call)
    for value in (f'{{"steps": 1{"0" * 400}}}\n', "[" * 9000 + "\n", '{"mean": []}\n'):
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(recorded, path)
        (path / name).write_text(value)
        for call in (member.progress, member.score, member.left, member.is_over, member.is_readable):
            attempt(lambda call: call(), call)
