"""``recollect audit --trace``: files of recorded rollouts: what is wrong in them and with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.audit import TracedRollout, audit_trace
from recollect.audit.trace_files import load_trace, save_trace
from recollect.base import tree
from recollect.cli import main
from recollect.errors import ConfigError
from tests.audit.scripts import make, record


def recorded(bug: str = "") -> TracedRollout:
    return record(make(bug), bug)


def as_lines(trace: TracedRollout, file: Path) -> None:
    """The JSON lines of a trace, as another program would write them."""
    timed = [name for name in trace.parts if name not in ("bootstrap", "chunk_index", "chunk_state", "gamma")]
    timed = [name for name in timed if name not in ("chunk_first", "gae_lambda")]
    end = {name: getattr(trace, name).tolist() for name in ("bootstrap", "chunk_index", "chunk_state")}
    end |= {"chunk_first": trace.chunk_first.tolist(), "state": trace.state[-1].tolist()}
    header = {"format": "recollect-trace", "version": 1, "gamma": trace.gamma, "gae_lambda": trace.gae_lambda}
    steps = [{name: getattr(trace, name)[t].tolist() for name in timed} for t in range(trace.steps)]
    file.write_text("\n".join(json.dumps(line) for line in (header, *steps, {"end": end})))


@pytest.mark.parametrize("suffix", ["npz", "jsonl"])
def test_a_file_is_the_trace(tmp_path: Path, suffix: str):
    trace, file = recorded(), tmp_path / f"rollout.{suffix}"
    save_trace(trace, file) if suffix == "npz" else as_lines(trace, file)
    read = load_trace(file)
    assert read.parts == trace.parts
    for name in trace.parts:
        ours = getattr(trace, name)
        for a, b in zip(tree.leaves(ours), tree.leaves(getattr(read, name))) if torch.is_tensor(ours) else ():
            torch.testing.assert_close(b.to(a.dtype), a)
    assert audit_trace(read).ok, str(audit_trace(read))


def test_trees_keep_their_structure(tmp_path: Path):
    flags = torch.zeros(3, 2, dtype=torch.bool)
    state = (torch.rand(4, 2, 5), {"c": torch.rand(4, 2, 1)})
    trace = TracedRollout(
        first=flags, terminated=flags, truncated=flags, state=state, obs={"a": torch.rand(3, 2)}
    )
    save_trace(trace, tmp_path / "a.npz")
    read = load_trace(tmp_path / "a.npz")
    assert tree.spec(read.state, lead=0) == tree.spec(state, lead=0)
    torch.testing.assert_close(read.state[1]["c"], state[1]["c"])
    torch.testing.assert_close(read.obs["a"], trace.obs["a"])


def test_the_command_line_reads_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Exit code 0 or 1; what a file lacks is not checked, and never passed."""
    save_trace(recorded(), tmp_path / "good.npz")
    assert main(["audit", "--trace", str(tmp_path / "good.npz")]) == 0
    assert "not checked" not in capsys.readouterr().out
    as_lines(recorded("recorded: memories one step late"), tmp_path / "bad.jsonl")
    assert main(["audit", "--trace", str(tmp_path / "bad.jsonl"), "--json", "-"]) == 1
    data = json.loads(capsys.readouterr().out)
    failed = {check["name"]: check for check in data["checks"] if check["status"] == "failed"}
    assert failed["chunk states"]["cause"] == "the memory after the step: it is stored one step late"
    assert failed["chunk states"]["measured"] > failed["chunk states"]["tolerance"]
    flags = np.zeros((5, 2), bool)
    np.savez(tmp_path / "few.npz", first=flags, terminated=flags, truncated=flags)
    assert main(["audit", "--trace", str(tmp_path / "few.npz"), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    status = {check["name"]: check["status"] for check in data["checks"]}
    assert status["flags"] == "ok"
    assert {status[name] for name in ("chunk states", "ratios", "advantages", "contiguity")} == {
        "not checked"
    }


HEADER = '{"format": "recollect-trace", "version": 1}'
STEP = '{"first": [true], "terminated": [false], "truncated": [false]}'
FLAGS: dict[str, Any] = {name: np.zeros((4, 2), bool) for name in ("first", "terminated", "truncated")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no steps"),
        ("nonsense", "line 1: not JSON"),
        ("[1]", "line 1: a list"),
        ('{"steps": 3}', "the first line must be"),
        (HEADER.replace("}", ', "gama": 1}'), "the header has no 'gama' (did you mean 'gamma'"),
        (f"{HEADER}\n{STEP}\n{{", "line 3: not JSON"),
        (f"{HEADER}\n" + STEP.replace("first", "frist"), "a step has no 'frist' (did you mean 'first'"),
        (f'{HEADER}\n{STEP}\n{{"end": {{}}}}\n{STEP}', "nothing may follow"),
        (f'{HEADER}\n{STEP}\n{{"end": 1}}', '"end" must be an object'),
        (f'{HEADER}\n{STEP}\n{{"end": {{"reward": 1}}}}', "\"end\" may not hold 'reward'"),
        (f"{HEADER}\n{STEP}\n" + STEP.replace("}", ', "value": [1.0]}'), "value is in some steps"),
        (f"{HEADER}\n{STEP}\n" + STEP.replace("[true]", "[true, false]"), "not the same number of rows"),
        (f"{HEADER}\n" + STEP.replace("}", ', "state": [[1.0]]}'), "the memory after the last step"),
        (f"{HEADER}\n" + STEP.replace("[true]", "[3]"), "first must hold true and false"),
        (f"{HEADER}\n" + STEP.replace("[true]", '["a"]'), "not numbers or booleans"),
        (f'{HEADER}\n{{"first": [true], "terminated": [false]}}', "has no truncated"),
        (f'{HEADER}\n{STEP}\n{{"end": {{"chunk_index": [[7]]}}}}', "chunk_index must hold integers"),
    ],
)
def test_a_malformed_file_says_what_is_wrong(tmp_path: Path, text: str, words: str):
    file = tmp_path / "a.jsonl"
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_trace(file)
    assert words in str(error.value)
    assert main(["audit", "--trace", str(file)]) == 2


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"first": FLAGS["first"]}, "has no terminated, truncated"),
        (FLAGS | {"reward": np.zeros((2, 4))}, "Is it transposed?"),
        (FLAGS | {"rewards": np.zeros((4, 2))}, "unknown part 'rewards' (did you mean 'reward'"),
        (FLAGS | {"first": np.zeros(4, bool)}, "not [T, B]"),
        (FLAGS | {"obs": np.array([["a"] * 2] * 4)}, "not numbers or booleans"),
        (FLAGS | {"gamma": np.zeros(2)}, "gamma must be one number"),
        (FLAGS | {"chunk_state": np.zeros((3, 1))}, "without chunk_index"),
        (FLAGS | {"obs": np.array([[None] * 2] * 4)}, "no readable .npz file"),
    ],
)
def test_a_malformed_archive_says_what_is_wrong(tmp_path: Path, arrays: dict[str, Any], words: str):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(ConfigError) as error:
        load_trace(tmp_path / "a.npz")
    assert words in str(error.value)


def test_files_that_are_no_traces(tmp_path: Path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04 and no more")
    (tmp_path / "a.csv").write_text("1,2")
    for name, words in (
        ("a.npz", "no readable .npz"),
        ("a.csv", ".npz or a .jsonl"),
        ("b.npz", "no such file"),
    ):
        with pytest.raises(ConfigError, match=words):
            load_trace(tmp_path / name)
