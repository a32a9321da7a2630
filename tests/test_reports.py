"""Reports: what they gather, what they compute, and that the file needs nothing but itself."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recollect as rc
from recollect import cli, trace
from recollect.errors import RecollectError
from recollect.metrics import GLOSSARY
from recollect.reports import bootstrap_interval, iqm, page, played, write_report
from recollect.reports.compare import gather_comparison, make_groups
from recollect.reports.configs import config_rows, differences, flatten, label
from recollect.reports.data import gather_run, header
from recollect.reports.episodes import CELLS, pack, read_episodes
from recollect.reports.folder import read_folder
from recollect.reports.healthy import GAUGES, SETTLING, judge
from recollect.reports.statistics import Curve, common_band
from recollect.reports.thinning import in_order, plain, thin
from recollect.reports.worlds import FACTORS, known_task, memory_lengths
from recollect.runs import Run
from tests.report_runs import (
    data_of,
    default_config,
    make_config,
    make_metrics,
    make_run,
    make_trace,
    with_crew,
    write,
)

# Statistics ------------------------------------------------------------------------------------------


def test_iqm_is_the_mean_of_the_middle_half():
    assert iqm([8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0]) == 4.5  # 3, 4, 5, 6
    assert iqm([1.0, 2.0, 30.0]) == 11.0  # a quarter of three, rounded down, is none
    assert iqm([0.0, 1.0, 2.0, 3.0, 1000.0]) == 2.0
    assert iqm(np.array([[1.0, 10.0], [2.0, 30.0]])).tolist() == [1.5, 20.0]


def test_bootstrap_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        scores = rng.normal(3.0, 1.0, size=20)
        low, high = bootstrap_interval(scores, statistic=lambda s: s.mean(0), samples=300, seed=trial)
        hits += bool(low <= 3.0 <= high)
    assert 0.87 <= hits / 200 <= 0.99


def test_bootstrap_interval_resamples_within_strata():
    scores, strata = [0.0, 0.0, 0.0, 10.0, 10.0, 10.0], ["a", "a", "a", "b", "b", "b"]
    low, high = bootstrap_interval(scores, strata=strata, statistic=lambda s: s.mean(0))
    assert low == high == 5.0  # each stratum always gives three of its own
    low, high = bootstrap_interval(scores, statistic=lambda s: s.mean(0))
    assert high - low > 5


def test_bootstrap_interval_is_repeatable_and_refuses_nonsense():
    scores = [0.3, 0.1, 0.7, 0.9]
    assert bootstrap_interval(scores) == bootstrap_interval(scores)
    with pytest.raises(ValueError, match="no scores"):
        bootstrap_interval([])
    with pytest.raises(ValueError, match="4 scores, but 1 strata"):
        bootstrap_interval(scores, strata=["a"])


def test_a_band_goes_from_the_latest_start_to_the_earliest_end():
    rising = Curve(np.array([0.0, 100.0]), np.array([0.0, 1.0]))
    later = Curve(np.array([10.0, 60.0]), np.array([0.1, 0.6]))
    band = common_band([rising, later], points=11)
    assert band is not None
    assert (band.steps[0], band.steps[-1]) == (10.0, 60.0)
    np.testing.assert_allclose(band.middle, band.steps / 100)  # both lie on one line
    np.testing.assert_allclose(band.low, band.high)


def test_a_band_of_one_run_has_no_width_and_of_strangers_there_is_none():
    one = Curve(np.array([0.0, 10.0]), np.array([1.0, 2.0]))
    band = common_band([one])
    assert band is not None
    assert (band.low == band.middle).all()
    assert common_band([one, Curve(np.array([20.0]), np.array([1.0]))]) is None
    assert common_band([Curve(np.array([]), np.array([]))]) is None


# Thinning --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes(values: list[float], limit: int):
    array = np.array(values)
    kept = thin(array, limit)
    assert len(kept) <= max(limit, 4)
    assert (np.diff(kept) > 0).all()
    assert (kept[0], kept[-1]) == (0, len(values) - 1)
    if np.isfinite(array).any():
        assert np.nanmin(array[kept]) == np.nanmin(array)
        assert np.nanmax(array[kept]) == np.nanmax(array)


def test_thinning_leaves_a_gap_a_gap():
    values = np.r_[np.ones(500), np.full(500, np.nan), np.ones(500)]
    assert np.isnan(values[thin(values, 60)]).sum() > 5


def test_rows_that_a_resumed_run_made_again_replace_the_old_ones():
    rows = [{"steps": s, "run": 1} for s in (1, 2, 3, 4)] + [{"steps": s, "run": 2} for s in (3, 4, 5)]
    assert [(row["steps"], row["run"]) for row in in_order(rows)] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2)]
    assert in_order([{"steps": None}, {}]) == []


def test_numbers_are_short_and_never_nan():
    assert plain([1.0, 0.123456789, math.nan, math.inf, 2e-9]) == [1, 0.12346, None, None, 2e-09]


# What is healthy -------------------------------------------------------------------------------------


def test_every_gauge_is_in_the_glossary_and_says_what_being_outside_means():
    for gauge in GAUGES:
        assert gauge.name in GLOSSARY
        assert gauge.above or gauge.high is None or gauge.below, gauge.name
        for sentence in (gauge.above, gauge.below, gauge.words):
            assert not sentence or sentence.endswith("."), gauge.name


def _judge(name: str, values: list[float], **ppo: float) -> str:
    gauge = next(gauge for gauge in GAUGES if gauge.name == name)
    return judge(gauge, np.array(values), ppo).verdict


def test_only_the_second_half_of_a_run_is_judged():
    early, late = [0.2] * 20 + [0.01] * 20, [0.01] * 20 + [0.2] * 20
    assert _judge("kl", early) == "healthy"
    assert _judge("kl", late) == "above"
    assert _judge("kl", [0.01] * 39 + [0.2]) == "healthy"  # one update is allowed
    assert _judge("kl", [0.2] * SETTLING) == "unjudged"
    assert _judge("explained_variance", [-1.0] * 40) == "below"
    assert _judge("entropy", [1.0] * 40) == "unjudged"
    assert _judge("entropy", [math.nan] * 40) == "missing"


def test_one_deviation_beyond_the_tolerance_is_enough():
    values = [1e-7] * 40
    assert _judge("deviation/log_prob", values, tolerance=1e-4) == "healthy"
    values[0] = 2e-5
    assert _judge("deviation/log_prob", values, tolerance=1e-4) == "above"
    assert _judge("deviation/log_prob", values, tolerance=1e-2) == "healthy"


# Configs ---------------------------------------------------------------------------------------------


def test_a_default_config_has_no_changed_settings():
    assert [row["name"] for row in config_rows(default_config(), {}) if row["changed"]] == []


def test_changed_settings_are_marked_with_their_default_and_their_sentence():
    config = make_config(chunk=64, steps=5, core={"name": "lstm", "hidden": 7}, env_kwargs={"horizon": 20})
    rows = {row["name"]: row for row in config_rows(config, {"chunk": 64})}
    assert {name for name, row in rows.items() if row["changed"]} >= {"chunk", "steps", "env_kwargs.horizon"}
    assert (rows["chunk"]["value"], rows["chunk"]["default"], rows["chunk"]["preset"]) == ("64", "32", True)
    assert (rows["steps"]["default"], rows["steps"]["preset"]) == ("300,000", False)
    assert rows["core.hidden"]["changed"]
    assert rows["core"]["value"] == "lstm"
    assert "gradients flow" in rows["chunk"]["line"]
    assert "run" not in rows  # the folder's place


def test_differences_leave_out_the_seed_and_name_the_rest():
    a = flatten(make_config(seed=1, core="gru"))
    b = flatten(make_config(seed=2, learning_rate=0.5))
    assert differences([a, b]) == ["core", "learning_rate"] or differences([a, b]) == [
        "learning_rate",
        "core",
    ]
    assert label(a, ["core"]) == "core=gru"
    assert differences([a, a | {"seed": 7, "run": "x"}]) == []


# Folders ---------------------------------------------------------------------------------------------


def test_half_a_line_at_the_end_is_silent_and_damage_in_the_middle_is_told(tmp_path: Path):
    run = make_run(tmp_path / "run")
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"steps": 99999999, "kl"')
    folder = read_folder(run)
    assert (len(folder.metrics), folder.problems) == (40, [])
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([*lines[:5], "garbage\n", *lines[5:]]))
    folder = read_folder(run)
    assert len(folder.metrics) == 40
    assert folder.problems == ["Left out of metrics.jsonl: 1 line that cannot be read."]


def test_what_is_no_run_is_refused_with_a_hint(tmp_path: Path):
    with pytest.raises(RecollectError, match="does not exist"):
        write_report(tmp_path / "nowhere")
    make_run(tmp_path / "runs" / "one")
    with pytest.raises(RecollectError, match=r"is no run.*it holds runs, such as .*one"):
        write_report(tmp_path / "runs")
    with pytest.raises(RecollectError, match="no run is given"):
        write_report([])


def test_the_head_of_a_run(tmp_path: Path):
    head = header(read_folder(make_run(tmp_path / "run")))
    assert (head["state"], head["reason"]) == ("finished", "all steps made")
    assert (head["steps"], head["return"]) == (81920, 1)
    assert head["evaluation"] == {"mean": 1, "low": 0.9, "high": 1, "steps": 60000, "episodes": 100}
    failed = make_run(tmp_path / "failed", state="failed", reason="error: EnvError: reward is nan")
    head = header(read_folder(failed))
    assert (head["state"], head["reason"]) == ("failed", "EnvError: reward is nan")


def test_the_plan_is_that_of_the_run_as_it_was_resumed(tmp_path: Path):
    longer = make_run(tmp_path / "longer", config=make_config(steps=50_000), end=181_920)
    assert header(read_folder(longer))["planned"] == 181_920
    older = make_run(tmp_path / "older", config=make_config(steps=50_000))
    assert header(read_folder(older))["planned"] == 50_000


def test_time_by_stage_is_the_inverse_of_speed(tmp_path: Path):
    data = gather_run(read_folder(make_run(tmp_path / "run")), [])
    shares = dict(zip(data["speed"]["stages"], data["speed"]["overall"]))
    assert shares == pytest.approx({"env": 0.1, "act": 0.2, "learn": 0.5, "other": 0.2})
    assert data["speed"]["mean"] == 1000


def test_the_time_of_actors_elsewhere_is_told_apart(tmp_path: Path):
    """Of the learner's time, waiting; of theirs, what they did. A run that moved has both kinds of rows."""
    rows = make_metrics()
    config = make_config(runtime="processes", mode="async", actors=2)
    for name, metrics in (("whole", with_crew(rows)), ("moved", rows[:20] + with_crew(rows)[20:])):
        data = gather_run(read_folder(make_run(tmp_path / name, metrics=metrics, config=config)), [])
        stages = dict(zip(data["speed"]["stages"], data["speed"]["overall"]))
        assert sum(stages.values()) == pytest.approx(1, abs=1e-3)
        assert stages["learn"] == pytest.approx(0.5)
        runtime = data["runtime"]
        assert dict(zip(runtime["stages"], runtime["overall"])) == pytest.approx(
            {"env": 0.5, "policy": 0.25, "transport": 0.05, "learner": 0.2}
        )
        assert (runtime["runtime"], runtime["mode"], runtime["actors"]) == ("processes", "async", 2)
        assert (runtime["waited"], runtime["restarts"]) == (pytest.approx(0.125), 1)
        assert runtime["lag_max"]["values"][0] == 1
        assert stages.get("env", 0) == pytest.approx(0 if name == "whole" else 0.05)
    inline = gather_run(read_folder(make_run(tmp_path / "inline")), [])
    assert inline["runtime"] is None


@pytest.mark.parametrize(
    ("core", "factor"),
    [
        ({"name": "lstm", "hidden": 4}, 1),
        ({"name": "window", "hidden": 8}, 5),
        ({"name": "stack", "hidden": 8, "cores": ["gru", {"name": "window", "hidden": 8}]}, 5),
        ("custom", 1),
        (None, 1),
    ],
)
def test_deviations_are_judged_by_the_run_s_tolerance(tmp_path: Path, core: Any, factor: float):
    """Of its precision and its core, unless one was given."""
    folder = read_folder(make_run(tmp_path / "run", config=make_config(core=core)))
    assert folder.algo["tolerance"] == pytest.approx(1e-4 * factor)
    given = make_config(core=core, tolerance=0.5)
    assert read_folder(make_run(tmp_path / "given", config=given)).algo["tolerance"] == 0.5


def test_gauges_are_judged_in_their_own_units(tmp_path: Path):
    data = gather_run(read_folder(make_run(tmp_path / "run")), [])
    gauges = {gauge["name"]: gauge for gauge in data["gauges"]}
    assert max(gauges["deviation/value"]["values"]) == pytest.approx(5e-6)  # over values of 1000
    assert gauges["deviation/value"]["verdict"] == "healthy"
    assert (gauges["kl"]["verdict"], gauges["kl"]["high"]) == ("above", 0.03)
    assert "learning_rate" in gauges["kl"]["advice"]
    assert (gauges["deviation/log_prob"]["limit"], gauges["deviation/log_prob"]["high"]) == (
        1e-4,
        pytest.approx(1e-5),
    )
    assert gauges["staleness"]["sparse"]
    assert len(gauges["staleness"]["values"]) == 2
    assert [metric["name"] for metric in data["others"]] == ["value/max", "value/min", "made_up"]
    assert data["levels"] == {"best": 1, "memoryless": 0.5}


def test_long_runs_stay_small(tmp_path: Path):
    run = make_run(tmp_path / "run", metrics=make_metrics(20_000))
    report = write_report(run, play=False)
    assert len(data_of(report)["returns"]["values"]) <= 600
    assert report.stat().st_size < 1_000_000


@pytest.mark.parametrize(
    "missing", ["status.json", "metrics.jsonl", "evaluations.jsonl", "events.jsonl", "glossary.json"]
)
def test_whatever_is_missing_or_damaged_the_report_is_written(tmp_path: Path, missing: str):
    run = make_run(tmp_path / "run")
    (run / missing).unlink()
    assert data_of(write_report(run, play=False))["kind"] == "run"
    (run / missing).write_text('{"a": [1, 2\n]]')
    assert data_of(write_report(run, play=False))["kind"] == "run"


def test_numbers_that_json_does_not_know_and_options_that_no_task_takes(tmp_path: Path):
    strange = {"noise": math.inf, "scales": [math.nan, 1.0], "huge": 10**400}
    run = make_run(tmp_path / "run", config=make_config(env_kwargs=strange), steps="many", seconds=10**400)
    data = data_of(write_report(run, play=False))
    assert data["run"]["env_kwargs"] == {"noise": None, "scales": [None, 1.0], "huge": 10**400}
    assert (data["run"]["steps"], data["run"]["seconds"]) == (81920, None)
    other = make_run(tmp_path / "other", env="t-maze", config=make_config(env_kwargs={"length": 10**30}))
    assert data_of(write_report([run, other], tmp_path / "both.html"))["kind"] == "comparison"
    for env, options in (("delayed-cue", {"device": "nonsense"}), ("t-maze", {"length": 10**30})):
        assert known_task(env, options) is None


def test_a_run_with_a_single_row_of_nulls(tmp_path: Path):
    row: dict[str, Any] = dict.fromkeys(make_metrics(1)[0])
    run = make_run(tmp_path / "run", metrics=[row | {"steps": 5}], evaluations=[], state="running")
    data = data_of(write_report(run, play=False))
    assert (data["gauges"], data["speed"], data["run"]["return"]) == ([], None, None)


# Episodes --------------------------------------------------------------------------------------------


def _memory(packed: dict[str, Any]) -> np.ndarray:
    """The memory [T, U] that the page will show."""
    memory = packed["memory"]
    cells = np.frombuffer(base64.b64decode(memory["data"]), "<i2").reshape(memory["units"], packed["steps"])
    return (cells / 32767 * np.array(memory["peak"])[:, None]).T


def test_the_memory_survives_packing():
    trace = make_trace()
    packed = pack(trace)
    np.testing.assert_allclose(_memory(packed), trace["memory"], atol=1e-4)
    assert packed["memory"]["names"][3:5] == ["h[3]", "c[0]"]
    assert packed["words"]["texts"] == ["cue 1", "blank", "query"]
    assert packed["first"] == [0]


def test_a_huge_memory_keeps_its_liveliest_units():
    steps, units = 500, 1000
    values = np.random.default_rng(0).normal(size=(steps, units)) * np.linspace(2, 1, units)
    packed = pack(make_trace(steps, units, memory=values.tolist()))
    assert packed["memory"]["units"] == CELLS // steps
    assert packed["memory"]["names"][0] == "h[0]"
    assert any("liveliest" in note for note in packed["notes"])


def test_pictures_and_wide_vectors_are_thinned():
    picture = {"name": "camera", "kind": "image", "shape": [8, 8, 3], "png": "x" * 40_000}
    wide = {"name": "wide", "kind": "vector", "values": [0.5] * 10_000}
    one = {"name": "one", "kind": "discrete", "value": 3, "n": 8}
    packed = pack(make_trace(20, obs=[[picture, wide, one]] * 20))
    camera, vector, discrete = packed["obs"]
    assert (camera["every"], len(camera["pngs"])) == (2, 10)
    assert len(vector["values"][0]) == 3000
    assert discrete["values"] == [3] * 20


def test_files_that_are_no_episodes_are_told_not_raised(tmp_path: Path):
    folder = make_run(tmp_path / "run", traces=[make_trace()]) / "episodes"
    (folder / "half.json").write_text('{"format": 1, "rew')
    write(folder / "other.json", {"format": 99})
    write(folder / "broken.json", {"format": 1, "reward": [1.0]})
    episodes, problems = read_episodes(folder)
    assert len(episodes) == 1
    assert len(problems) == 3
    assert any("broken.json cannot be shown" in text for text in problems)


@pytest.mark.parametrize("steps", ["abc", [], {}, math.inf, math.nan, -1])
def test_an_episode_of_no_checkpoint_is_told_not_raised(tmp_path: Path, steps: Any):
    folder = make_run(tmp_path / "run", traces=[make_trace(), make_trace(checkpoint_steps=steps)])
    data = data_of(write_report(folder, play=False))
    assert len(data["episodes"]) == 1
    (note,) = data["episode_notes"]
    assert note.startswith("1.json cannot be shown")


def test_episodes_nested_too_deep_or_of_overflowing_numbers_are_told_not_raised(tmp_path: Path):
    folder = make_run(tmp_path / "run", traces=[make_trace() | {"units": 10**400}]) / "episodes"
    (folder / "deep.json").write_text('{"format": 1, "reward": ' + "[" * 200_000 + "]" * 200_000 + "}")
    episodes, problems = read_episodes(folder)
    assert episodes == []
    assert len(problems) == 2


def test_lists_of_numbers_are_no_words():
    trace = make_trace(60, words=[f"[{t} 0.5]" for t in range(60)])
    assert pack(trace)["words"] is None


# Playing ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "tiny"
    settings: dict[str, Any] = {"num_envs": 4, "rollout": 16, "chunk": 16, "epochs": 1, "threads": 1}
    rc.train("delayed-cue", steps=64, env_kwargs={"horizon": 4}, run=str(path), progress=False, **settings)
    return path


def test_a_report_plays_once_and_reports_success_by_memory_length(
    trained: Path, monkeypatch: pytest.MonkeyPatch
):
    data = data_of(write_report(trained))
    assert [episode["steps"] for episode in data["episodes"]] == [6, 6, 6]
    assert data["episodes"][0]["words"]["texts"][1:] == ["blank", "query"]
    lengths = data["lengths"]
    assert (lengths["option"], lengths["trained"], lengths["episodes"]) == ("horizon", 4, 100)
    assert lengths["length"] == [1, 2, 4, 6, 8, 12, 16]
    assert lengths["memoryless"] == [0.5] * 7
    assert all(
        low <= mean <= high for low, mean, high in zip(lengths["low"], lengths["mean"], lengths["high"])
    )

    monkeypatch.setattr(played, "_load", lambda _: pytest.fail("it played again"))
    again = data_of(write_report(trained))
    assert again["lengths"] == lengths
    assert again["episode_notes"] == []


def test_another_checkpoint_is_played_anew(trained: Path, monkeypatch: pytest.MonkeyPatch):
    write_report(trained)
    for path in (trained / "episodes").iterdir():
        write(path, json.loads(path.read_text()) | {"checkpoint_steps": 1})
    loaded = []
    monkeypatch.setattr(played, "_load", lambda path: loaded.append(path) or pytest.fail("stop here"))
    with pytest.raises(pytest.fail.Exception):
        write_report(trained)
    assert loaded


def _twice(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page of a run shows, and then, after the run went back and made its last steps again."""
    settings: dict[str, Any] = {"num_envs": 4, "rollout": 16, "chunk": 16, "epochs": 1, "threads": 1}
    settings |= {"learning_rate": 0.1, "checkpoint_every": 64, "run": str(path), "progress": False}
    rc.train("CartPole-v1", steps=192, **settings)
    before = data_of(write_report(path))
    rc.resume(path, checkpoint=64, progress=False)
    return before, data_of(write_report(path, play=False))


def test_episodes_of_weights_that_are_no_more_are_neither_shown_nor_kept(tmp_path: Path):
    """A run that went back comes to the same steps with other weights, on an env with episodes of its own."""
    run = tmp_path / "run"
    before, between = _twice(run)
    assert Run(run).checkpoint("last").name == "000000000192"
    assert len(before["episodes"]) == 3
    assert before["episode_notes"] == []
    assert between["episodes"] == []
    assert "went back" in between["episode_notes"][0]
    after = data_of(write_report(run))
    assert [episode["checkpoint_steps"] for episode in after["episodes"]] == [192] * 3
    assert after["episode_notes"] == []
    assert [e["value"] for e in after["episodes"]] != [e["value"] for e in before["episodes"]]


def test_success_by_memory_length_belongs_to_the_weights(trained: Path):
    write_report(trained)
    file = trained / played.LENGTHS
    kept = file.read_text()
    assert data_of(write_report(trained, play=False))["lengths"] is not None
    write(file, json.loads(kept) | {"weights": "those of another day"})
    assert data_of(write_report(trained, play=False))["lengths"] is None
    write(file, json.loads(kept) | {"checkpoint_steps": 10**6})  # it was dropped
    assert data_of(write_report(trained, play=False))["lengths"] is None
    assert data_of(write_report(trained))["lengths"] is not None
    assert file.read_text() == kept


def test_of_fewer_episodes_than_before_none_is_left_over(trained: Path, monkeypatch: pytest.MonkeyPatch):
    write_report(trained)
    (trained / "episodes" / "report.json").unlink()
    record = trace.record
    monkeypatch.setattr(trace, "record", lambda *args, **named: record(*args, **named)[:1])
    assert len(data_of(write_report(trained))["episodes"]) == 1


def test_what_cannot_be_played_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = make_run(tmp_path / "code", env="my_module:Env")
    assert "cannot be made by name" in data_of(write_report(code))["episode_notes"][0]
    bare = make_run(tmp_path / "bare")
    data = data_of(write_report(bare))
    assert "no checkpoint" in data["episode_notes"][0]
    assert data["length_notes"] == data["episode_notes"]
    (bare / "checkpoints" / "000000000005").mkdir(parents=True)
    note = data_of(write_report(bare))["episode_notes"][0]
    assert note.startswith("Playing with checkpoint 5 failed")
    monkeypatch.setattr(played, "play", lambda _: pytest.fail("it played"))
    data = data_of(write_report(bare, play=False))
    assert data["episode_notes"] == []
    assert "without --no-play" in data["length_notes"][0]
    pole = make_run(tmp_path / "pole", env="position-cartpole", config=make_config(env_kwargs={}))
    assert data_of(write_report(pole))["length_notes"] == []  # it has no length of memory


@pytest.mark.parametrize(
    ("env", "option"), [("t-maze", "length"), ("repeat-previous", "k"), ("delayed-cue", "horizon")]
)
def test_the_lengths_of_memory_surround_the_trained_one(env: str, option: str):
    task = known_task(env, {})
    assert task is not None
    found, trained, lengths = memory_lengths(task)
    assert found == option
    assert trained in lengths
    assert max(lengths) == FACTORS[-1] * trained
    assert memory_lengths(known_task("position-cartpole", {}))[2] == []  # pyright: ignore[reportArgumentType]


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


def test_every_asset_is_on_the_page_and_none_is_left_over():
    folder = Path(page.__file__).parent / "assets"
    assert {path.name for path in folder.iterdir()} == {*page.SCRIPTS, *page.STYLES, "page.html"}


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
    assert "is a folder, and a report is a file" in said
    assert str(Path(out) / "report.html") in said
