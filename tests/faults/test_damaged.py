"""Checkpoints that are damaged, of another kind, or sent by somebody who means harm."""

from __future__ import annotations

import json
import os
import pickle
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

import recollect as rc
from recollect import cli
from recollect.base import run_files
from recollect.errors import ConfigError, RecollectError, StateError
from recollect.training.run_folder import Run
from tests.support.doomed import UPDATE, edit
from tests.support.whole import STOPPED


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def empty(file: Path) -> None:
    file.write_bytes(b"")


@pytest.mark.parametrize("name", run_files.FILES)
@pytest.mark.parametrize(
    "damage", [cut, flip, empty, Path.unlink], ids=["cut", "flipped", "empty", "missing"]
)
def test_a_damaged_checkpoint_is_told_and_the_one_before_goes_on(whole, stopped, name, damage):
    """The error names the file and what to do, and doing that gives the same weights."""
    damage(Run(stopped).checkpoint("last") / name)
    for call in (
        lambda: rc.load(stopped, checkpoint="last"),
        lambda: rc.resume(stopped, progress=False),
    ):
        with pytest.raises(RecollectError, match=rf"{STOPPED:012d}.*{name}") as raised:
            call()
        assert f"checkpoint: {STOPPED - UPDATE} (checkpoint={STOPPED - UPDATE}" in str(raised.value)
    agent = rc.resume(stopped, checkpoint=STOPPED - UPDATE, progress=False)
    whole.assert_same(stopped, agent)


def test_an_edited_description_is_told(whole, stopped):
    """One number changed with an editor."""
    last = Run(stopped).checkpoint("last")
    config = json.loads((last / "agent.json").read_text())["config"]
    edit(last, checksum=False, config=config | {"seed": 7})
    with pytest.raises(RecollectError, match=r"agent\.json differs from what was saved"):
        rc.resume(stopped, progress=False)
    whole.assert_same(stopped, rc.resume(stopped, checkpoint=str(STOPPED - UPDATE), progress=False))


def test_other_formats_are_told(stopped):
    """A checkpoint and a run of a Recollect that is not this one."""
    edit(Run(stopped).checkpoint("last"), format=2)
    with pytest.raises(RecollectError, match=r"agent\.json has format 2, this Recollect reads 1: update"):
        rc.resume(stopped, progress=False)
    file = stopped / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": "new"}))
    for call in (Run, rc.load, rc.resume):
        with pytest.raises(RecollectError, match=r"run\.json has format new, this Recollect reads 1: update"):
            call(stopped)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": 1', "[" * 100_000, "\xff"])
@pytest.mark.parametrize("name", ["run.json", "status.json", "checkpoint"])
def test_damaged_json_is_told_with_its_name(stopped, name, text):
    file = Run(stopped).checkpoint("last") / "agent.json" if name == "checkpoint" else stopped / name
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(RecollectError, match=rf"{file.name} is damaged"):
        rc.resume(stopped, progress=False)


@pytest.mark.parametrize("name", ["metrics.jsonl", "evaluations.jsonl", "events.jsonl"])
def test_half_a_line_at_the_end(whole, stopped, name):
    """Of a process that was killed while it wrote: left out when read, and nothing is written behind it."""
    read = getattr(Run, name.removesuffix(".jsonl"))
    before = read(Run(stopped))
    with (stopped / name).open("a") as file:
        file.write('{"steps": 192, "seconds": 0.1')
    assert read(Run(stopped)) == before
    agent = rc.resume(stopped, progress=False)
    assert read(Run(stopped))[: len(before)] == before
    whole.assert_same(stopped, agent)


def test_nothing_is_written_behind_half_a_line(stopped):
    """However long it is."""
    (stopped / "evaluations.jsonl").write_text("[" * 200_000)
    Run(stopped).add_evaluation(STOPPED, rc.load(stopped).evaluate(2))
    assert [row["steps"] for row in Run(stopped).evaluations()] == [STOPPED]


def test_a_damaged_line_is_told(stopped):
    file = stopped / "metrics.jsonl"
    file.write_text(file.read_text().replace("{", "", 1))
    with pytest.raises(RecollectError, match=r"metrics\.jsonl is damaged"):
        Run(stopped).metrics()


def changed(folder: Path, **changes: Any) -> None:
    """Change the config of a checkpoint, so that nothing but its meaning is wrong."""
    description = json.loads((folder / "agent.json").read_text())
    config = description["config"]
    for name, value in changes.items():
        next(part for part in (description, config, config["policy"]) if name in part)[name] = value
    edit(folder, **description)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"core": {"name": "gru", "hidden": 8}}, ConfigError, "does not fit this policy.*other settings"),
        ({"core": {"name": "lstm", "hidden": 9}}, ConfigError, "does not fit this policy"),
        ({"core": {"name": "evil"}}, ConfigError, "the core 'evil', which is not built in.*--import MODULE"),
        ({"num_envs": 6}, StateError, "saved with another core or another num_envs"),
        ({"env_kwargs": {"cues": 3}}, ConfigError, "the policy was made for observation_space"),
        ({"env": "CartPole-v1"}, ConfigError, "the policy was made for observation_space"),
        ({"action_space": {"discrete": 3, "start": 0, "dtype": "int64"}}, ConfigError, "does not fit"),
        ({"env": 3}, RecollectError, r"agent\.json is damaged"),
        ({"steps": "many"}, RecollectError, r"agent\.json is damaged"),
        ({"trainer": {"start": 0}}, RecollectError, r"agent\.json is damaged"),
        ({"trainer": [1]}, RecollectError, r"agent\.json is damaged"),
        ({"updates": -1}, RecollectError, r"agent\.json is damaged"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_checkpoint_of_another_world_or_network_is_refused(whole, stopped, changes, error, words):
    """S000-21: for other spaces, another core, another num_envs; the run is not touched by the attempt."""
    changed(Run(stopped).checkpoint("last"), **changes)
    with pytest.raises(error, match=words):
        rc.resume(stopped, progress=False)
    whole.assert_same(stopped, rc.resume(stopped, checkpoint=STOPPED - UPDATE, progress=False))


def test_an_optimiser_of_another_network_is_refused(stopped):
    """Adam's moments are looked at before they are used."""
    from safetensors.torch import load_file, save_file

    last = Run(stopped).checkpoint("last")
    moments = load_file(last / "optimizer.safetensors")
    name = next(name for name in moments if name.endswith(":exp_avg"))
    save_file(moments | {name: torch.zeros(3)}, last / "optimizer.safetensors")
    edit(last)
    with pytest.raises(ConfigError, match="optimiser does not fit"):
        rc.resume(stopped, progress=False)


# Hostile ---------------------------------------------------------------------------------------------------


class Boom:
    def __reduce__(self):
        return os.mkdir, ("boom",)


@pytest.mark.parametrize("name", run_files.TENSORS)
def test_a_pickle_in_place_of_tensors_is_not_opened(stopped, name, tmp_path, monkeypatch):
    """With the right checksum, and under the right name."""
    monkeypatch.chdir(tmp_path)
    last = Run(stopped).checkpoint("last")
    (last / name).write_bytes(pickle.dumps(Boom()))
    edit(last)
    for call in (
        lambda: rc.load(stopped, checkpoint="last"),
        lambda: rc.resume(stopped, progress=False),
    ):
        with pytest.raises(RecollectError, match=rf"{name} cannot be read"):
            call()
    assert not (tmp_path / "boom").exists()
    pickle.loads((last / name).read_bytes())
    assert (tmp_path / "boom").exists(), "or it would not have been seen"


@pytest.mark.parametrize(
    ("env", "kwargs"),
    [
        ("evil_world:Env", {}),
        ("evil_world:Env-v0", {}),
        ("evil_world.py:Env", {}),
        ("os:system", {"command": "mkdir executed"}),
        ("os:mkdir", {"path": "executed"}),
    ],
)
def test_a_name_in_a_run_imports_nothing(stopped, env, kwargs, tmp_path, monkeypatch, capsys):
    """The env of a run that somebody sent is not imported, unless one says so."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil_world.py").write_text("import os\nos.mkdir('executed')\n")
    for checkpoint in Run(stopped).checkpoints():
        changed(checkpoint, env=env, env_kwargs=kwargs)
    description = json.loads((stopped / "run.json").read_text())
    (stopped / "run.json").write_text(json.dumps(description | {"env": env}))
    agent = rc.load(stopped)
    agent.session().act(torch.zeros(3).numpy())
    for call in (
        lambda: agent.evaluate(2),
        lambda: agent.train(UPDATE, progress=False),
        lambda: rc.resume(stopped, progress=False),
    ):
        with pytest.raises(ConfigError, match="give it again with env="):
            call()
    for command in ("eval", "resume", "play"):
        assert cli.main([command, str(stopped)]) == 2
        assert "give it again with env=" in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert "evil_world" not in sys.modules
    with suppress(Exception):  # what it makes is no env
        rc.load(stopped, env=env, env_kwargs=kwargs).evaluate(1)
    assert (tmp_path / "executed").exists(), "or it would not have been seen"
    sys.modules.pop("evil_world", None)
