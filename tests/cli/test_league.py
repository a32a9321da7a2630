"""``recollect league`` and ``recollect eval --vs`` of a snapshot."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from recollect.cli import main
from recollect.training.run_folder import Run

DUEL = ["--task.cues", "2", "--task.delay", "0", "--num-envs", "8", "--rollout", "18", "--threads", "1"]
NET = ["--chunk", "6", "--encoder.hidden", "8", "--core", "gru", "--core.hidden", "8"]
ARENA = ["--task.size", "duel", "--task.limit", "3", "--task.maps", "1", "--num-envs", "4", "--rollout", "20"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("league") / "run"
    words = ["--vs", "league", "--vs.promote-every", "100", "--steps", "400", "--run", str(folder), *ARENA]
    rest = ["--chunk", "10", "--encoder.hidden", "8", "--core", "gru", "--core.hidden", "8", "--threads", "1"]
    assert main(["train", "mech", *words, *rest, "--quiet", "--no-report", "--no-eval"]) == 0
    return folder


def test_show_and_check(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S001-4: from the command line, and an exit code if a game was booked to another member."""
    assert main(["league", "show", str(run), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    rows = {row["name"]: row for row in found["members"]}
    assert (found["anchor"], found["cycles"]) == ("bot", [])
    assert rows["bot"]["rated"]["rating"] == 0
    assert rows["s0"]["rated"].keys() == {"rating", "interval", "games", "share", "bounded"}
    assert {row["name"] for row in found["agent"]} <= {f"{name}+" for name in rows}
    assert rows["s1"]["kind"] == "snapshot"
    assert rows["bot"]["kind"] == "scripted"
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert main(["league", "show", str(run)]) == 0
    assert "s1" in capsys.readouterr().out
    assert main(["league", "check", str(run)]) == 0
    assert "0 at fault" in capsys.readouterr().out
    file = run / "league" / "games" / "000000.jsonl"
    text = file.read_text()
    games = [json.loads(line) for line in text.splitlines()]
    games[0]["member"] = "s0" if games[0]["member"] != "s0" else "bot"
    file.write_text("".join(json.dumps(game) + "\n" for game in games))
    assert main(["league", "check", str(run), "--json"]) == 1
    assert "was drawn" in json.loads(capsys.readouterr().out)["faults"][0]
    file.write_text(text)


def test_eval_of_a_snapshot(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["eval", str(run), "--vs", "s1", "--games", "4", "--eval-mode", "greedy", "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["vs"], found["games"]) == ("s1", 4)
    assert main([*words[:3], "s99", *words[4:]]) == 2
    assert "s99" in capsys.readouterr().err


def test_a_run_without_a_league(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["league", "show", str(tmp_path)]) == 2
    assert "--vs league" in capsys.readouterr().err


# The second game -------------------------------------------------------------------------------------------


def train_duel(folder: Path, *words: str) -> Path:
    net = [] if "--core" in words else NET
    rest = ["--run", str(folder), *DUEL, *net, "--quiet", "--no-report", "--no-eval", *words]
    assert main(["train", "recall-duel", *rest]) == 0
    return folder


@pytest.fixture(scope="module")
def duel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A league in recall duel."""
    words = ("--vs", "league", "--vs.promote-every", "400", "--vs.refresh-every", "200", "--steps", "1500")
    return train_duel(tmp_path_factory.mktemp("duel") / "run", *words)


def ask(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The JSON that a command prints."""
    capsys.readouterr()
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The error of a wrong call."""
    capsys.readouterr()
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_a_match(duel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Games on both sides with intervals; they are in the ratings of ``show`` from then on."""
    run = str(duel)
    before = {row["name"]: row["rated"]["games"] for row in ask(capsys, "league", "show", run)["members"]}
    found = ask(capsys, "league", "match", run, "s2", "bot", "--games", "20")
    assert {side: one["games"] for side, one in found["sides"].items()} == {"north": 10, "south": 10}
    assert found["win"]["interval"][0] <= found["win"]["share"] <= found["win"]["interval"][1]
    after = {row["name"]: row["rated"]["games"] for row in ask(capsys, "league", "show", run)["members"]}
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    assert changed == {"s2": 20, "bot": 20}
    assert main(["league", "match", run, "s2", "s0", "--games", "4"]) == 0
    assert "s2 against s0: 4 games" in capsys.readouterr().out
    assert "s77" in refused(capsys, "league", "match", run, "s77", "bot")


def test_add(duel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run, a snapshot of another league; then as an opponent; and every wrong source by name."""
    run = str(duel)
    other = train_duel(tmp_path / "other", "--vs", "league", "--vs.promote-every", "400", "--steps", "800")
    assert ask(capsys, "league", "add", run, str(other), "--name", "rival")["name"] == "rival"
    snapshot = other / "league" / "members" / "s1.safetensors"
    added = ask(capsys, "league", "add", run, str(snapshot))
    assert (added["name"], added["state"]) == ("other-s1", "member")
    assert added["origin"].startswith("other/s1 (step ")
    assert (duel / "league" / "members" / "other-s1.safetensors").read_bytes() == snapshot.read_bytes()
    assert ask(capsys, "league", "match", run, "rival", "bot", "--games", "4")["games"] == 4
    assert ask(capsys, "eval", run, "--vs", "rival", "--games", "4", "--eval-mode", "greedy")["vs"] == "rival"
    assert main(["league", "show", run]) == 0
    assert "rival was added from other" in capsys.readouterr().out
    bad = snapshot.with_name("s0.safetensors")
    bad.write_bytes(b"damaged")
    for source, words in (
        (str(other), "--name"),  # "other" is free, and rival is taken
        (str(bad), "s0.safetensors"),
        (str(tmp_path / "s0.safetensors"), "no snapshot of a league"),
        (str(tmp_path / "nothing"), "nothing"),
    ):
        assert words in refused(capsys, "league", "add", run, source, "--name", "rival"), source
    assert "--checkpoint" in refused(capsys, "league", "add", run, str(snapshot), "--checkpoint", "last")


def test_prune(duel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it would do, does it, and leaves a run alone that trains."""
    run = tmp_path / "run"
    shutil.copytree(duel, run)
    dry = ask(capsys, "league", "prune", str(run), "--keep", "2", "--dry-run")
    assert dry["retired"]
    with Run(run).writing():
        assert "in use" in refused(capsys, "league", "prune", str(run), "--keep", "2")
        assert "in use" in refused(capsys, "league", "add", str(run), str(duel), "--name", "rival")
    done = ask(capsys, "league", "prune", str(run), "--keep", "2")
    assert (done["retired"], done["members"]) == (dry["retired"], dry["members"])
    assert "bot" in done["members"]
    states = {row["name"]: row["state"] for row in ask(capsys, "league", "show", str(run))["members"]}
    assert {name for name, state in states.items() if state == "retired"} == {
        o["name"] for o in done["retired"]
    }
    assert main(["league", "prune", str(run), "--keep", "2"]) == 0
    assert "0 members retired" in capsys.readouterr().out
    assert main(["league", "prune", str(run)]) == 2, "how many are kept must be said"


def test_eval_against_another_run(duel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of any network, but of the same env; a folder that is no run is named."""
    other = train_duel(tmp_path / "other", "--vs", "bot", "--steps", "300", "--core", "lstm", "--chunk", "6")
    words = ("--games", "6", "--eval-mode", "both")
    found = ask(capsys, "eval", str(duel), "--vs", str(other), *words)
    assert (found["vs"], found["games"], found["sampled"]["vs"]) == (str(other), 6, str(other))
    assert ask(capsys, "eval", str(other), "--vs", str(duel), *words)["games"] == 6
    assert "nothing" in refused(capsys, "eval", str(duel), "--vs", str(tmp_path / "nothing"), *words)
    assert "bot" in refused(capsys, "eval", str(other), "--vs", "s1", *words)
    assert "another network" in refused(capsys, "league", "add", str(duel), str(other), "--name", "rival2")
    plain = tmp_path / "plain"
    words_of = [
        "--steps",
        "64",
        "--num-envs",
        "4",
        "--rollout",
        "18",
        *NET,
        "--quiet",
        "--no-report",
        "--no-eval",
    ]
    assert main(["train", "delayed-cue", "--run", str(plain), *words_of]) == 0
    assert "delayed-cue" in refused(capsys, "eval", str(duel), "--vs", str(plain), *words)


def test_an_empty_league(duel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that says what to do, and nothing is lost."""
    run = tmp_path / "run"
    shutil.copytree(duel, run)
    file = run / "league" / "league.json"
    text = json.dumps(json.loads(file.read_text()) | {"members": []})
    file.write_text(text)
    for words in (("show",), ("prune", "--keep", "2")):
        assert "empty" in refused(capsys, "league", words[0], str(run), *words[1:])
    assert "no member" in refused(capsys, "league", "match", str(run), "s0", "bot")
    assert file.read_text() == text


def test_report(duel: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(duel), "--no-play"]) == 0
    text = (duel / "report.html").read_text()
    assert '"anchor":"bot"' in text
