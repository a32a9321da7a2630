"""``recollect play``: what it prints, writes and refuses."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import recollect as rc
from recollect.cli import main
from tests.support.agents import small_agent
from tests.support.drawing import Drawing

Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def cue_run(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "cue"
    small_agent("delayed-cue", run=str(path), env_kwargs={"horizon": 20})
    return path


@pytest.fixture(scope="module")
def drawing_run(tmp_path_factory) -> Path:
    gym.register("tests/Drawing-v0", entry_point=Drawing)
    path = tmp_path_factory.mktemp("runs") / "drawing"
    small_agent("tests/Drawing-v0", run=str(path))
    return path


def test_text_needs_no_pillow(monkeypatch, cue_run, capsys):
    real = builtins.__import__

    def without_pillow(name: str, *args: Any) -> Any:
        if name.split(".")[0] == "PIL":
            raise ImportError(name)
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", without_pillow)
    monkeypatch.delitem(__import__("sys").modules, "recollect.play.draw", raising=False)
    assert main(["play", str(cue_run)]) == 0
    assert "query" in capsys.readouterr().out


def test_play_prints_text_for_a_task(cue_run, capsys):
    assert main(["play", str(cue_run), "--episodes", "2", "--seed", "4"]) == 0
    out = capsys.readouterr().out
    assert "Episode 2 of 2, seed 4" in out
    assert out.count("after 22 steps, terminated") == 2
    assert "20 steps like this" not in out
    assert not list(cue_run.glob("play.*"))
    assert main(["play", str(cue_run), "--episodes", "1", "--task.horizon", "50"]) == 0
    assert "after 52 steps" in capsys.readouterr().out


def test_play_shows_what_evaluate_counts(cue_run, capsys):
    """S001-5: the returns that are shown are those of an evaluation with this seed."""
    agent = rc.load(cue_run)
    returns = agent.evaluate(5, seed=7, num_envs=1).returns
    assert main(["play", str(cue_run), "--episodes", "5", "--seed", "7"]) == 0
    shown = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("return")]
    assert [float(x) for x in shown] == returns.tolist()


def test_play_writes_a_gif_for_an_env_with_frames(drawing_run, capsys):
    assert main(["play", str(drawing_run), "--episodes", "2"]) == 0
    out = capsys.readouterr().out
    assert "episode 2: return 4 after 4 steps, terminated" in out
    with Image.open(drawing_run / "play.gif") as gif:
        assert gif.n_frames == 10
        assert gif.info["duration"] == 30, "at most 30 a second, in hundredths"
    (drawing_run / "play.gif").unlink()
    assert main(["play", str(drawing_run), "--text"]) == 0
    assert "memory" in capsys.readouterr().out
    assert not (drawing_run / "play.gif").exists()


def test_everything_that_play_prints_fits_80_columns(drawing_run, monkeypatch, capsys):
    """Also the reason why there is no video."""

    def missing(self: Any) -> None:
        raise gym.error.DependencyNotInstalled("pygame is not installed, run `pip install gymnasium[all]`")

    monkeypatch.setattr(Drawing, "render", missing)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["play", str(drawing_run)]) == 0
    out = capsys.readouterr().out
    assert "pip install gymnasium[all]" in " ".join(out.split())
    assert "memory" in out
    assert max(map(len, out.splitlines())) <= 80


def test_play_out_and_text_together(cue_run, tmp_path, capsys):
    out = tmp_path / "a.gif"
    assert main(["play", str(cue_run), "--episodes", "1", "--out", str(out), "--text", "--fps", "12"]) == 0
    with Image.open(out) as gif:
        assert gif.n_frames == 23
        assert gif.info["duration"] == 80
    text = capsys.readouterr().out
    assert "query" in text
    assert "a.gif" in text


def test_play_samples_by_seed(cue_run, capsys):
    texts = []
    for seed in ("1", "1", "2"):
        assert main(["play", str(cue_run), "--sample", "--seed", seed, "--all"]) == 0
        texts.append(capsys.readouterr().out.replace(f"seed {seed}", ""))
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--task.horizn", "3"], "did you mean 'horizon'"),
        (["--horizon", "3"], "--task"),
        (["--learning-rate", "3"], "--task"),
        (["--task.cues", "4"], "observation_space"),
        (["--out", "a.avi"], "a.gif"),
        (["--episodes", "0"], "at least 1"),
        (["--checkpoint", "77"], "77"),
        (["--text", "--fps", "3"], "--fps"),
    ],
)
def test_wrong_calls_are_answered(flags, says, cue_run, capsys):
    assert main(["play", str(cue_run), *flags]) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.startswith("error: ")
    assert not captured.out


def test_play_of_nothing(tmp_path, capsys):
    assert main(["play", str(tmp_path / "none")]) == 2
    assert "none" in capsys.readouterr().err
