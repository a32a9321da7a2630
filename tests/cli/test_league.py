"""``recollect league`` and ``recollect eval --vs`` of a snapshot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recollect.cli import main

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
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
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
