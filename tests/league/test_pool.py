"""The members of a league on disk: frozen, complete or absent, and validated."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from recollect.base import files
from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.league import pool as pools
from recollect.league.pool import Pool, signature
from tests.support.leagues import network, pool
from tests.support.two_sides import TwoSides


def test_a_snapshot_is_frozen(tmp_path: Path) -> None:
    """S001-4: neither later training nor a player that changes what it loaded reaches the member."""
    live = network(1)
    before = {name: tensor.clone() for name, tensor in live.state_dict().items()}
    made = pool(tmp_path / "league", 0)
    made.add(live.state_dict(), 0)
    with torch.no_grad():
        for tensor in live.parameters():
            tensor += 1
    one = made.load("s0", live.state_dict())
    assert all(torch.equal(one[name], before[name]) for name in before)
    for tensor in one.values():
        tensor.zero_()
    two = Pool(tmp_path / "league").load("s0", live.state_dict())
    assert all(torch.equal(two[name], before[name]) for name in before)


def test_members_have_names_states_and_an_order(tmp_path: Path) -> None:
    made = pool(tmp_path, 2)
    made.set_state("s0", "retired")
    made.add(network(5).state_dict(), 200, "candidate")
    again = Pool(tmp_path)
    assert [(one.name, one.state, one.steps) for one in again.members] == [
        ("echo", "member", 0),
        ("fixed", "member", 0),
        ("s0", "retired", 0),
        ("s1", "member", 100),
        ("s2", "candidate", 200),
    ]
    assert [one.name for one in again.playing] == ["echo", "fixed", "s1"]
    assert again.newest is not None
    assert again.newest.name == "s1"


def test_a_crash_in_the_middle_of_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the weights are complete, and between the weights and the index."""
    made = pool(tmp_path, 1)

    def half(tensors: Any, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(pools, "save_file", half)
        with pytest.raises(StorageError):
            made.add(network(7).state_dict(), 100)
    assert [path.name for path in (tmp_path / "members").iterdir()] == ["s0.safetensors"]

    def killed(file: Path, text: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files, "write_atomically", killed)
        with pytest.raises(KeyboardInterrupt):
            made.add(network(8).state_dict(), 100)
    again = Pool(tmp_path)
    assert [one.name for one in again.members if one.is_snapshot] == ["s0"]
    again.add(network(9).state_dict(), 100)
    found = Pool(tmp_path).load("s1", network().state_dict())
    assert all(torch.equal(found[name], tensor) for name, tensor in network(9).state_dict().items())


def test_a_reader_sees_complete_members_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that opens the league at any write finds every member that the index names."""
    made, seen = pool(tmp_path, 1), []
    replace = files.os.replace

    def looked(source: Any, target: Any) -> None:
        for _ in range(2):
            reader = Pool(tmp_path)
            for member in reader.members:
                reader.verify(member.name)
            seen.append(len(reader.members))
            if len(seen) % 2:
                replace(source, target)

    monkeypatch.setattr(files.os, "replace", looked)
    made.add(network(1).state_dict(), 100)
    assert seen == [3, 3, 3, 4]


def test_a_rewind_removes_later_snapshots(tmp_path: Path) -> None:
    made = pool(tmp_path, 3)
    made.rewind(100)
    assert [one.name for one in Pool(tmp_path).members] == ["echo", "fixed", "s0", "s1"]
    assert made.add(network(9).state_dict(), 200).name == "s2"


@pytest.mark.parametrize("damage", ["missing", "changed", "other", "larger"])
def test_a_damaged_snapshot_is_named(tmp_path: Path, damage: str) -> None:
    made, file = pool(tmp_path, 2), tmp_path / "members" / "s1.safetensors"
    like = network().state_dict()
    if damage == "missing":
        file.unlink()
    elif damage == "changed":
        file.write_bytes(file.read_bytes()[:-4] + b"abcd")
    elif damage == "other":
        like = {name: tensor for name, tensor in like.items() if "critic" not in name}
    else:
        with file.open("ab") as handle:
            handle.truncate(2**26)
    with pytest.raises(RecollectError, match=r"s1\.safetensors"):
        made.load("s1", like)
    made.load("s0", network().state_dict())


@pytest.mark.parametrize(
    "change",
    [
        {"members": [{"name": "../../x"}] * 2},
        {"members": [{"name": "s0", "sha256": "x"}]},
        {"members": [{"name": "bot", "state": "king"}]},
        {"members": [{"name": "bot", "steps": -1}]},
        {"members": [{"name": "bot", "steps": True}]},
        {"members": [{"name": 5}]},
        {"members": [{"name": "b" * 1000}]},
        {"members": [{"name": "bot", "code": "x"}]},
        {"members": "bot"},
        {"signature": []},
        {"format": 9},
    ],
)
def test_hostile_content(tmp_path: Path, change: dict[str, Any]) -> None:
    pool(tmp_path, 1)
    file = tmp_path / "league.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(RecollectError, match=r"league\.json"):
        Pool(tmp_path)


def test_links_are_refused(tmp_path: Path) -> None:
    made = pool(tmp_path / "league", 1)
    file = made.path("s0")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RecollectError, match="link"):
        made.load("s0", network().state_dict())


def test_a_league_of_another_env(tmp_path: Path) -> None:
    made, env = pool(tmp_path, 1), TwoSides(1)
    made.create(signature(env, {}), ())
    with pytest.raises(ConfigError, match="env_kwargs"):
        made.create(signature(env, {"team": 1}), ())
    env.sides = ("east", "west")  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="sides"):
        made.create(signature(env, {}), ())
    assert len(Pool(tmp_path).members) == 3


def test_an_unknown_member(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="s0"):
        pool(tmp_path, 1)["s7"]


# Members from elsewhere ------------------------------------------------------------------------------------


def test_a_member_from_elsewhere(tmp_path: Path) -> None:
    """It is frozen like a snapshot, is none of the run's own, and a rewind leaves it at its place."""
    made = pool(tmp_path, 2)
    weights = network(5).state_dict()
    made.add_other("rival-1", weights, 900, "other (step 900)")
    assert made.add(network(6).state_dict(), 200).name == "s2"
    again = Pool(tmp_path)
    assert [one.name for one in again.members] == ["echo", "fixed", "s0", "s1", "rival-1", "s2"]
    assert again["rival-1"].is_snapshot
    assert not again["rival-1"].is_own
    assert again["rival-1"].origin == "other (step 900)"
    assert again.newest == again["s2"]
    found = again.load("rival-1", weights)
    assert all(torch.equal(found[name], tensor) for name, tensor in weights.items())
    again.rewind(100)
    assert [one.name for one in Pool(tmp_path).members][-1] == "rival-1", "a rewind is of the run's own"
    assert again.add(network(7).state_dict(), 200).name == "s2"


@pytest.mark.parametrize("name", ["s3", "s0", "", "../x", "a/b", ".hidden", "a b", "x" * 51, "echo", "s3+"])
def test_names_of_members_from_elsewhere(tmp_path: Path, name: str) -> None:
    made = pool(tmp_path, 1)
    text = made.file.read_text()
    with pytest.raises(ConfigError, match="--name"):
        made.add_other(name, network(1).state_dict(), 0, "elsewhere")
    assert made.file.read_text() == text
    assert [file.name for file in (tmp_path / "members").iterdir()] == ["s0.safetensors"]


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../x", "origin": "y", "sha256": "0" * 64},
        {"name": "s1", "origin": "y", "sha256": "0" * 64},
        {"name": "rival", "origin": "y"},
        {"name": "rival", "origin": 5, "sha256": "0" * 64},
        {"name": "rival", "origin": "y" * 1000, "sha256": "0" * 64},
    ],
)
def test_hostile_members(tmp_path: Path, change: dict[str, Any]) -> None:
    pool(tmp_path, 1)
    file = tmp_path / "league.json"
    index = json.loads(file.read_text())
    index["members"].append(change)
    file.write_text(json.dumps(index))
    with pytest.raises(RecollectError, match=r"league\.json"):
        Pool(tmp_path)


def test_the_anchor(tmp_path: Path) -> None:
    """A scripted player; without one the first snapshot; an empty league has none, and says what to do."""
    assert pool(tmp_path / "a", 2).anchor.name == "echo"
    alone = Pool(tmp_path / "b")
    alone.create(signature(TwoSides(1), {}), ())
    with pytest.raises(ConfigError, match=r"empty.*--vs league"):
        _ = alone.anchor
    alone.add(network(1).state_dict(), 0)
    assert alone.anchor.name == "s0"


def test_scripted_players_have_no_weights(tmp_path: Path) -> None:
    with pytest.raises(RecollectError, match="echo has no weights"):
        pool(tmp_path, 1).load("echo", {})


def test_opening_reads_the_index_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred snapshots: no weights are read, hashed or loaded, so time and memory do not grow."""
    made, read = pool(tmp_path, 1), []
    made._write([*made.members, *(replace(made["s0"], name=f"s{i}") for i in range(1, 100))])
    opened = files.opened

    def noted(file: Path) -> Any:
        read.append(file.name)
        return opened(file)

    monkeypatch.setattr(files, "opened", noted)
    for name in ("_sha256", "load_file"):
        monkeypatch.setattr(pools, name, lambda file: read.append(file.name))
    found = Pool(tmp_path)
    assert len(found.playing) == 102
    assert read == ["league.json"]
