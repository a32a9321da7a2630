"""Reports: what they gather, what they compute, and that the file needs nothing but itself."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recollect.errors import RecollectError
from recollect.reports import bootstrap_interval, iqm, write_report
from recollect.reports.configs import config_rows, differences, flatten, label
from recollect.reports.data import gather_run, header
from recollect.reports.read_run import read_folder
from recollect.reports.statistics import Curve, common_band
from recollect.reports.task_facts import known_task
from recollect.reports.thinning import in_order, json_numbers, thin
from recollect.training.gauges import GAUGES, SETTLING, judge
from recollect.training.metrics import GLOSSARY
from tests.support.report_runs import (
    data_of,
    default_config,
    make_config,
    make_metrics,
    make_run,
    with_actors,
    write_lines,
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
    assert json_numbers([1.0, 0.123456789, math.nan, math.inf, 2e-9]) == [1, 0.12346, None, None, 2e-09]


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
    values[0] = 3e-5
    assert _judge("deviation/log_prob", values, tolerance=1e-4) == "healthy"  # many action dimensions
    values[0] = 2e-4
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
    assert "backpropagation through time" in rows["chunk"]["line"]
    assert "run" not in rows  # the folder's place


def test_a_setting_is_explained_in_the_words_of_its_own_algorithm():
    """Both have ``clip``; it is optional in IMPALA only."""
    lines = {}
    for name in ("ppo", "impala"):
        rows = config_rows({"algo": {"name": name, "clip": 0.3}}, {})
        (lines[name],) = (row["line"] for row in rows if row["name"] == "clip")
    assert lines["ppo"] != lines["impala"]
    assert lines["impala"].startswith("If set, PPO's clip")


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
    with pytest.raises(RecollectError, match=r"run\.json.*it holds runs, such as .*one"):
        write_report(tmp_path / "runs")
    with pytest.raises(RecollectError, match="no run is given"):
        write_report([])


def test_the_head_of_a_run(tmp_path: Path):
    head = header(read_folder(make_run(tmp_path / "run")))
    assert (head["state"], head["reason"]) == ("finished", "all steps done")
    assert (head["steps"], head["return"]) == (81920, 1)
    numbers = {"mean": 1, "low": 0.9, "high": 1, "steps": 60000, "episodes": 100}
    assert head["evaluation"] == numbers | {"mode": "greedy", "sampled": None, "difference": None}
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
    for name, metrics in (("whole", with_actors(rows)), ("moved", rows[:20] + with_actors(rows)[20:])):
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
        1e-4,
    )
    assert gauges["staleness"]["sparse"]
    assert len(gauges["staleness"]["values"]) == 2
    assert [metric["name"] for metric in data["others"]] == ["value/max", "value/min", "made_up"]
    assert data["levels"] == {"best": 1, "memoryless": 0.5}


def test_advice_and_gauges_do_not_contradict_each_other(tmp_path: Path):
    """A gauge out of its range is never beside the words "no advice"; a settled run is healthy."""

    def lead(name: str, rows: list[dict[str, Any]], *kinds: str) -> str:
        path = make_run(tmp_path / name, metrics=rows)
        events = [{"kind": kind, "text": "x", "steps": 0, "seconds": 0.0} for kind in kinds]
        write_lines(path / "events.jsonl", events)
        return gather_run(read_folder(path), [])["advice"]

    def rows(**more: float) -> list[dict[str, Any]]:
        return [{"steps": 100 * (i + 1), "kl": 0.01, "episodes": 50} | more for i in range(40)]

    assert lead("healthy", rows(), "start") == "No advice: no gauge is out of its range."
    assert lead("high", rows(kl=0.2), "start").startswith("kl is out of range")
    both = lead("both", rows(kl=0.2, staleness=0.9), "advice", "warning", "advice")
    assert both.startswith("1 warning. 2 pieces of advice during the run")
    assert "staleness, kl are out of range" in both
    noise = rows(explained_variance=-0.5)
    assert "explained_variance" in lead("learning", noise)
    for i, row in enumerate(noise):
        row |= {"return": min(1.0, 0.1 * i), "return_spread": 0.1}
    assert lead("solved", noise).startswith("No advice")


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
