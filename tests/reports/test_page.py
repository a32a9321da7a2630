"""Reports as files: the page needs nothing but itself; comparisons of runs; the command."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest

from recollect import cli
from recollect.config.serialise import config_to_json
from recollect.config.train import TrainConfig
from recollect.errors import RecollectError
from recollect.reports import mech_viewer, page, write_report
from recollect.reports.compare import gather_comparison, make_groups
from recollect.reports.read_run import read_folder
from recollect.training.run_folder import Run
from tests.support.report_runs import data_of, make_config, make_metrics, make_run, make_trace

# The page --------------------------------------------------------------------------------------------


def test_the_file_needs_nothing_but_itself(tmp_path: Path):
    text = write_report(make_run(tmp_path / "run", traces=[make_trace()]), play=False).read_text("utf-8")
    assert not re.search(r"(src|href|action|srcset|poster)\s*=\s*[\"']?(https?:)?//", text)
    assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", text)
    assert not re.search(r"<link|<iframe|<object|<embed|fetch\(|XMLHttpRequest|WebSocket", text)
    assert "default-src 'none'" in text.replace("&#x27;", "'")


def test_the_policy_names_exactly_the_script_and_the_style_of_the_page(tmp_path: Path):
    text = write_report(make_run(tmp_path / "run"), play=False).read_text("utf-8")
    for tag, body in (("script", r"<script>(.*?)</script>"), ("style", r"<style>(.*?)</style>")):
        found = re.findall(body, text, re.S)
        assert len(found) == 1
        digest = base64.b64encode(hashlib.sha256(found[0].encode()).digest()).decode()
        assert f"{tag}-src &#x27;sha256-{digest}&#x27;" in text


HOSTILE = "</script><script>alert(1)</script><!-- \u2028 {{SCRIPT}} & \"'"


def test_hostile_names_stay_names(tmp_path: Path):
    config = make_config(env_kwargs={HOSTILE: HOSTILE})
    run = make_run(tmp_path / "run", name=HOSTILE, env=HOSTILE, config=config, reason=f"error: {HOSTILE}")
    text = write_report(run).read_text("utf-8")
    assert "alert(1)</script>" not in text
    assert len(re.findall(r"<script\b", text)) == 2  # the data and the code
    assert data_of(run / "report.html")["run"]["name"] == HOSTILE


def test_every_asset_is_on_a_page_and_none_is_left_over():
    folder = Path(page.__file__).parent / "assets"
    used = {*page.SCRIPTS, *page.STYLES, *mech_viewer.SCRIPTS, *mech_viewer.STYLES}
    assert {path.name for path in folder.iterdir()} == {*used, "page.html"}


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    run = make_run(tmp_path / "run")
    report = write_report(run, play=False)
    before = report.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(RecollectError, match="No space left"):
        write_report(run, play=False)
    assert report.read_bytes() == before
    assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []


# Comparisons -----------------------------------------------------------------------------------------


def _several(root: Path) -> list[Path]:
    """Four seeds of an LSTM, two of a GRU that ran half as long."""
    runs = []
    for seed, final in enumerate((0.8, 0.9, 1.0, 0.1)):
        config = make_config(seed=seed, env_kwargs={"horizon": 20})
        runs.append(make_run(root / f"lstm-{seed}", config=config, evaluations=[0.5, final]))
    for seed in (0, 1):
        config = make_config(seed=seed, core="gru", env_kwargs={"horizon": 20})
        runs.append(
            make_run(root / f"gru-{seed}", config=config, metrics=make_metrics(20), evaluations=[0.7])
        )
    return runs


def test_runs_that_differ_in_the_seed_only_are_one_group(tmp_path: Path):
    groups, names = make_groups([read_folder(path) for path in _several(tmp_path)])
    assert [(group.label, len(group.folders)) for group in groups] == [("core=lstm", 4), ("core=gru", 2)]
    assert names == ["core"]


def test_the_label_of_a_group_leaves_out_what_follows_from_its_algorithm(tmp_path: Path):
    """The table of differences has all settings."""
    frames = {"core": "frames", "states": "rebuilt", "burn_in_steps": 3}
    folders = []
    for chosen in ({}, {"algo": "r2d2"}, {"algo": "iqn", **frames}):
        for seed in (0, 1):
            config = TrainConfig().override(seed=seed, **chosen)
            path = tmp_path / f"{chosen.get('algo', 'ppo')}-{seed}"
            folders.append(read_folder(make_run(path, config=config_to_json(config, config.policy))))
    groups, names = make_groups(folders)
    assert [group.label for group in groups] == [
        "core=lstm, algo=ppo, burn_in_steps=0",
        "core=lstm, algo=r2d2, burn_in_steps=10, states=stored",
        "core=frames, algo=iqn, burn_in_steps=3, states=rebuilt",
    ]
    assert {"epsilon_end", "head.quantiles"} < set(names)


def test_single_runs_go_by_their_names(tmp_path: Path):
    """But only where all are single: repetitions have no name in common."""
    paths = _several(tmp_path)
    folders = [read_folder(path) for path in (paths[0], paths[-1])]
    assert [group.label for group in make_groups(folders)[0]] == [paths[0].name, paths[-1].name]


def test_a_comparison_has_interquartile_means_and_intervals(tmp_path: Path):
    data = gather_comparison([read_folder(path) for path in _several(tmp_path)])
    lstm, gru = data["groups"]
    assert lstm["iqm"] == pytest.approx(0.85)  # the mean of 0.8 and 0.9
    assert lstm["low"] < 0.85 < lstm["high"]
    assert (gru["iqm"], gru["low"], gru["high"]) == (0.7, 0.7, 0.7)
    (panel,) = data["panels"]
    assert [len(lines["singles"]) for lines in panel["returns"]] == [4, 2]
    assert panel["returns"][1]["band"]["steps"][-1] == 2048 * 20
    assert data["differences"]["rows"] == [{"name": "core", "values": ["lstm", "gru"]}]
    assert [run["seed"] for run in data["runs"]] == [0, 1, 2, 3, 0, 1]


def test_several_worlds_get_a_panel_each_and_a_normalised_score(tmp_path: Path):
    runs = [
        make_run(tmp_path / "cue", config=make_config(env_kwargs={"horizon": 20}), evaluations=[1.0]),
        make_run(tmp_path / "maze", env="t-maze", config=make_config(env_kwargs={}), evaluations=[0.5]),
        make_run(tmp_path / "own", env=None, config=make_config(env_kwargs={}), evaluations=[]),
    ]
    data = gather_comparison([read_folder(path) for path in runs])
    assert [panel["world"] for panel in data["panels"]] == ["delayed-cue (horizon=20)", "t-maze", "env"]
    (overall,) = data["overall"]
    assert (overall["runs"], overall["iqm"]) == (2, 0.5)  # one at the best, one at the memoryless return


CUE_PRESET = {"steps": 100_000}
MAZE_PRESET = {"steps": 150_000, "entropy": 0.03}


def _of_presets(root: Path, name: str, *, presets: bool = True, **changes: Any) -> list[Path]:
    """A run of the delayed cue at its best, and one of the maze at the memoryless return."""
    runs = []
    for env, chosen, final in (("delayed-cue", CUE_PRESET, 1.0), ("t-maze", MAZE_PRESET, 0.5)):
        preset = {k: v for k, v in chosen.items() if k not in changes} if presets else {}
        config = make_config(env_kwargs={}, **preset | changes)
        path = root / f"{name}-{env}"
        runs.append(make_run(path, env=env, config=config, evaluations=[final], preset=preset))
    return runs


def _overall(runs: list[Path]) -> list[tuple[str, int, float]]:
    data = gather_comparison([read_folder(path) for path in runs])
    return [(row["label"], row["runs"], row["iqm"]) for row in data["overall"]]


def test_what_presets_chose_for_their_tasks_keeps_no_runs_apart(tmp_path: Path):
    runs = _of_presets(tmp_path, "lstm")
    assert _overall(runs) == [("all runs", 2, 0.5)]
    runs += _of_presets(tmp_path, "gru", core="gru")
    assert _overall(runs) == [("core=lstm", 2, 0.5), ("core=gru", 2, 0.5)]


def test_a_setting_by_hand_is_no_choice_of_a_preset(tmp_path: Path):
    runs = _of_presets(tmp_path, "plain") + _of_presets(tmp_path, "bold", entropy=0.2)
    assert _overall(runs) == [("entropy=0.01", 2, 0.5), ("entropy=0.2", 2, 0.5)]


def test_runs_with_and_without_presets_are_kept_apart(tmp_path: Path):
    runs = _of_presets(tmp_path, "with") + _of_presets(tmp_path, "without", presets=False)
    assert _overall(runs) == [("preset=on", 2, 0.5), ("preset=off", 2, 0.5)]


def test_of_a_core_the_preset_chooses_the_gates_only(tmp_path: Path):
    runs = []
    for core in ("lstm", "gru"):
        gates = {"name": core, "chrono": 120}
        long = {"config": make_config(env_kwargs={"horizon": 120}, core=gates), "preset": {"core": "gates"}}
        runs.append(make_run(tmp_path / f"{core}-cue", evaluations=[1.0], **long))
        short = make_config(env_kwargs={}, core=core)
        runs.append(make_run(tmp_path / f"{core}-maze", env="t-maze", config=short, evaluations=[0.5]))
    assert _overall(runs) == [("core=lstm", 2, 0.5), ("core=gru", 2, 0.5)]


def test_a_comparison_of_runs_without_anything(tmp_path: Path):
    runs = [make_run(tmp_path / name, metrics=[], evaluations=[]) for name in "ab"]
    data = data_of(write_report(runs, tmp_path / "c.html"))
    assert data["groups"][0]["iqm"] is None
    assert data["panels"][0]["returns"][0]["band"] is None


# The command -----------------------------------------------------------------------------------------


def test_places_of_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    a, b = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    assert write_report(Run(a), play=False) == a / "report.html"
    assert write_report([a, a], play=False) == a / "report.html"  # named twice is one
    assert write_report([a, b]) == Path("report.html")
    assert write_report([a, b], tmp_path / "new" / "x.html").is_file()


def test_the_command_prints_the_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = make_run(tmp_path / "run")
    assert cli.main(["report", str(run), "--no-play"]) == 0
    assert capsys.readouterr().out.strip() == str(run / "report.html")
    assert cli.main(["report", str(tmp_path / "nowhere")]) == 2
    assert "does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("out", [".", "", "folder"])
def test_a_folder_is_no_place_for_a_report(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run = make_run(tmp_path / "run")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(run), "--out", out]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "is a folder: name a file" in said
    assert str(Path(out) / "report.html") in said
