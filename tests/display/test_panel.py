"""Numbers as words, and the panel at every size; what the gauges say."""

from __future__ import annotations

import io
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from recollect.base import formatting
from recollect.display import words
from recollect.display.lines import Lines
from recollect.display.live import LivePanel
from recollect.display.panel import View
from recollect.display.state import State
from recollect.envs.env_names import display_name
from tests.support.display_fakes import (
    ADVICE,
    INTERVAL,
    Clock,
    drawn,
    evaluation_of,
    make_state,
    make_training,
    metrics_at,
    terminal,
)

# Words


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.93123, "0.931"),
        (0.9996, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234.5, "1,234"),
        (-12.34, "-12.3"),
        (0.0071, "0.0071"),
        (2.3e-7, "2.3e-7"),
        (1.5e12, "1.5e12"),
        (0.0, "0"),
        (math.nan, "-"),
        (None, "-"),
        (-math.inf, "-inf"),
    ],
)
def test_numbers_are_short(value, text):
    assert formatting.number(value) == text


def test_times_and_paths_are_short(tmp_path, monkeypatch):
    assert [formatting.duration(s) for s in (None, 7, 754, 3723, 90_000)] == [
        "-",
        "0:07",
        "12:34",
        "1:02:03",
        "1d 01:00",
    ]
    monkeypatch.chdir(tmp_path)
    assert words.path(tmp_path / "runs" / "a") == str(Path("runs/a"))
    assert words.path("/elsewhere/a") == "/elsewhere/a"
    assert words.tail("runs/a-long-name", 8) == "…ng-name"


def test_sparkline_and_trend_follow_the_curve():
    rising = [i / 100 for i in range(100)]
    assert words.sparkline(rising, 8) == "▁▂▃▄▅▆▇█"
    assert words.sparkline([1.0, 1.0, math.nan, 1.0], 8) == "▁▁▁"
    assert words.sparkline([1.0], 8) == ""
    assert words.trend(rising) == (pytest.approx(0.2), 1)
    assert words.trend(rising[::-1]) == (pytest.approx(-0.2), -1)
    assert words.trend([0.0, 1.0] + [1.0] * 20) == (0.0, 0)
    assert words.trend([1.0, 2.0]) is None


# The panel


def test_the_panel_says_what_matters():
    state, _ = make_state()
    state.evaluated(evaluation_of(0.6))
    state.checkpoint = 40_000
    state.notices.append(ADVICE)
    text = "\n".join(drawn(state))
    for fact in (
        "delayed-cue · LSTM",
        "runs/cue-7",
        "50%",
        "50,000 of 100,000 steps",
        "0:03 elapsed · 0:03 left",
        "return      0.500   ▲ +0.100",
        "4,166 episodes · length 12.0",
        f"evaluation  0.600   greedy, 95% {INTERVAL}",
        "best 0.600 at 50,000",
        "16,000 steps/s",
        "env 25% · act 50% · learn 25%",
        "policy -0.012",
        "value 0.046",
        "explained 83%",
        "entropy 0.321",
        "kl 0.0071",
        "clipped 7%",
        "✓ log-prob 2e-07   ✓ value 3e-06   ✓ staleness 0.08   ✓ lag 0",
        "Ctrl-C saves and stops",
        "checkpoint at 40,000",
        "! the gradient was clipped in [every]",
    ):
        assert fact in text, fact


def test_the_panel_of_a_replay():
    """Its own numbers, and none of a policy that it does not have."""
    state, _ = make_state(make_training(algo="r2d2"))
    more = {"loss/q": 0.25, "td_error": 0.125, "q/target": 3.5, "epsilon": 0.4, "replay/steps": 12_000.0}
    state.iterated(state.metrics | more | {"grad_clip_rate": 0.5})
    text = "\n".join(drawn(state))
    for fact in ("q 0.250", "error 0.125", "target 3.50", "epsilon 0.400", "replay 12,000", "clipped 50%"):
        assert fact in text, fact
    for word in ("entropy", "kl ", "explained", "policy"):
        assert word not in text, word


@pytest.mark.parametrize("width", [20, 30, 44, 59, 60, 61, 80, 100, 200])
@pytest.mark.parametrize("height", [8, 30])
def test_the_panel_fits_every_terminal(width, height):
    """No line is wider than the terminal, none wraps, and every gauge is there."""
    state, _ = make_state()
    state.notices.append(ADVICE)
    lines = drawn(state, width, height)
    assert all(len(line) <= width for line in lines)
    assert all(len(line) <= 100 for line in lines)
    text = "\n".join(lines)
    assert "50%" in text
    for gauge in ("log-prob 2e-07", "value 3e-06", "staleness 0.08", "lag 0"):
        assert gauge in text or width < 30
    if width >= 30 and height < 20:
        assert len(lines) <= 10


def test_the_panel_keeps_its_size_while_numbers_change():
    """Calm: the same lines in the same places, from the first update to the last."""
    training = make_training(eval_every=20_000)
    state = State(training, Clock())
    before = drawn(state)
    state.iterated(metrics_at(training, 2_000, **{"loss/policy": -1.234e-5, "return": -123.4, "kl": 12.3}))
    state.evaluated(evaluation_of(0.5))
    after = drawn(state)
    assert len(before) == len(after)
    assert [line[:14] for line in before][4:12] == [line[:14] for line in after][4:12]


def test_before_the_first_episode_there_is_no_return():
    state = State(make_training(), Clock())
    text = "\n".join(drawn(state))
    assert "return      - " in text
    assert "evaluation" not in text
    assert "- left" in text


def test_terminals_without_blocks_get_ascii():
    state, _ = make_state()
    state.notices.append(ADVICE)
    text = "\n".join(drawn(state, encoding="ascii"))
    assert "+ log-prob 2e-07" in text
    assert "delayed-cue - LSTM" in text


def test_without_a_run_folder_nothing_is_promised():
    state, _ = make_state(make_training(run=None))
    assert "Ctrl-C stops" in "\n".join(drawn(state))
    assert "Ctrl-C" not in "\n".join(drawn(state, is_final=True))


def test_the_panel_tells_that_it_is_stopping():
    state, _ = make_state()
    state.training.signal = 2
    assert "stopping after this update" in "\n".join(drawn(state))
    display = LivePanel(terminal()[0])
    assert not display.shows_signals
    display.on_start(make_training())
    assert display.shows_signals
    display.on_end(make_training(), "interrupt")
    assert not display.shows_signals
    assert not Lines().shows_signals


@pytest.mark.parametrize(
    ("more", "bad"),
    [
        ({}, []),
        ({"deviation/log_prob": 3e-5, "deviation/value": 3e-5}, []),
        ({"deviation/log_prob": 2e-4}, ["log-prob"]),
        ({"deviation/value": 2e-4}, ["value"]),
        ({"deviation/value": 2e-3, "value/max": 500.0}, []),
        ({"deviation/value": 2e-3, "value/min": -15.0}, ["value"]),
        ({"staleness": 0.31}, ["staleness"]),
        ({"lag": 1.0}, ["lag"]),
    ],
)
def test_gauges_warn_in_time(more, bad):
    """The tolerance (1e-4) for deviations, values in units of their size; 0.3; 0."""
    training = make_training()
    state = State(training, Clock())
    state.iterated(metrics_at(training, 1_000, **more))
    assert [g.name for g in state.gauges() if not g.is_good] == bad
    text = "\n".join(drawn(state))
    assert text.count("! ") == len(bad)


def test_staleness_stays_between_two_measurements():
    training = make_training()
    state = State(training, Clock())
    assert "staleness -" in "\n".join(drawn(state))
    state.iterated(metrics_at(training, 1_000, staleness=0.5))
    row = metrics_at(training, 2_000)
    del row["staleness"]
    state.iterated(row)
    assert "! staleness 0.50" in "\n".join(drawn(state))
    training.config = training.config.override(gauge_every=0)
    assert "staleness" not in "\n".join(drawn(state))


def test_time_left_is_that_of_steps_or_of_the_clock():
    state, clock = make_state()  # 50,000 steps in 3.125 s
    assert state.left() == pytest.approx(3.125)
    clock.now += 1.0  # an evaluation counts too
    assert state.left() == pytest.approx(4.125)
    limited, _ = make_state(make_training(max_seconds=5.0))
    assert limited.left() == pytest.approx(5 - 3.125)


def test_a_resumed_run_knows_its_time_and_best():
    training = make_training()
    training.steps, training.start, training.seconds = 60_000, 50_000, 30.0
    training.run.status = {"best": {"mean": 0.9, "steps": 40_000, "checkpoint": "000000040000"}}
    clock = Clock()
    state = State(training, clock)
    clock.now += 2
    assert (state.elapsed, state.fraction, state.left()) == (32.0, 0.2, None)
    state.evaluated(evaluation_of(0.5))
    assert state.best == (0.9, 40_000, "greedy")


def test_colours_are_left_out_if_asked(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=30)
    console.print(View(make_state()[0]))
    assert "\x1b[3" not in out.getvalue()


def test_envs_have_names():
    assert display_name("t-maze") == "t-maze"
    assert display_name(Clock) == "Clock"
    assert display_name(Clock()) == "Clock"
    assert display_name(SimpleNamespace(spec=SimpleNamespace(id="CartPole-v1"))) == "CartPole-v1"
    assert display_name(None) is None
