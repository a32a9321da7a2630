"""What is seen of a run while it trains: the panel, lines, JSON, notebooks; and that it breaks nothing."""

from __future__ import annotations

import io
import json
import math
import os
import sys
import threading
import warnings
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from recollect.callbacks import Callback
from recollect.config import TrainConfig
from recollect.display import make_display, words
from recollect.display.base import standard_error
from recollect.display.closing import commands, outcome, summary
from recollect.display.lines import JsonLines, Lines
from recollect.display.live import EVERY, LivePanel
from recollect.display.notebook import Notebook, page
from recollect.display.panel import View
from recollect.display.state import State, env_name
from recollect.errors import ConfigError
from recollect.evaluate import Evaluation
from recollect.metrics import History
from tests.agents import small_agent

ADVICE = (
    "the gradient was clipped in [every] minibatch of 100 updates: lower learning_rate, or raise the limit"
)


class LSTM:
    """Stands for a core: only its name is shown."""


class Clock:
    """A time that moves when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make_training(*, run: str | None = "runs/cue-7", end: int = 100_000, **settings: Any) -> Any:
    config = TrainConfig().override(**settings)
    return SimpleNamespace(
        agent=SimpleNamespace(env="delayed-cue", policy=SimpleNamespace(core=LSTM())),
        config=config,
        start=0,
        end=end,
        steps=0,
        seconds=0.0,
        signal=0,
        history=History(),
        opening="12,345 weights; effective horizon 100 steps",
        run=None if run is None else SimpleNamespace(path=Path(run), status={"best": None}),
    )


def metrics_at(training: Any, steps: int, **more: float) -> dict[str, float]:
    """A row of metrics; the training is moved there."""
    training.steps, training.seconds = steps, steps / 1000
    row = {
        "steps": float(steps),
        "episodes": float(steps // 12),
        "return": steps / training.end,
        "length": 12.0,
        "loss/policy": -0.0123,
        "loss/value": 0.0456,
        "entropy": 0.321,
        "kl": 0.0071,
        "clip_fraction": 0.07,
        "explained_variance": 0.83,
        "deviation/log_prob": 2e-7,
        "deviation/value": 3e-6,
        "value/max": 1.0,
        "value/min": 0.0,
        "staleness": 0.08,
        "lag": 0.0,
        "speed/total": 16_000.0,
        "speed/env": 64_000.0,
        "speed/act": 32_000.0,
        "speed/learn": 64_000.0,
    } | more
    training.history.add(row)
    return row


def evaluation_of(mean: float) -> Evaluation:
    returns = np.where(np.arange(100) < 100 * mean, 1.0, 0.0)
    return Evaluation(returns, np.full(100, 12))


INTERVAL = " to ".join(words.number(end) for end in evaluation_of(0.6).interval)


def make_state(training: Any = None, *, until: int = 50_000) -> tuple[State, Clock]:
    clock = Clock()
    training = training or make_training(eval_every=20_000)
    state = State(training, clock)
    for steps in range(2_000, until + 1, 2_000):
        clock.now += 0.125
        state.iterated(metrics_at(training, steps))
        state.mark()
    return state, clock


def drawn(
    state: State, width: int = 80, height: int = 30, encoding: str = "utf-8", **kwargs: Any
) -> list[str]:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(file=file, width=width, height=height, color_system=None, force_terminal=True)
    console.print(View(state, **kwargs))
    file.flush()
    return file.buffer.getvalue().decode(encoding).splitlines()  # type: ignore[attr-defined]


def terminal(width: int = 80, height: int = 30) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, height=height, force_terminal=True, color_system=None), out


def play(display: Callback, training: Any, *, reason: str = "steps", clock: Clock | None = None) -> None:
    """A whole small run, as the training loop tells it."""
    display.on_start(training)
    for i, steps in enumerate(range(10_000, 100_001, 10_000)):
        if clock is not None:
            clock.now += 2.0
        if i == 3:
            display.on_advice(training, ADVICE)
        display.on_iteration(training, metrics_at(training, steps))
        if i == 5:
            display.on_evaluation(training, evaluation_of(0.6))
            display.on_checkpoint(training, Path("runs/cue-7/checkpoints/000000060000"))
    display.on_end(training, reason)


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
    assert words.number(value) == text


def test_times_and_paths_are_short(tmp_path, monkeypatch):
    assert [words.duration(s) for s in (None, 7, 754, 3723, 90_000)] == [
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
    state.advice.append(ADVICE)
    text = "\n".join(drawn(state))
    for fact in (
        "delayed-cue · LSTM",
        "runs/cue-7",
        "50%",
        "50,000 of 100,000 steps",
        "0:03 elapsed · 0:03 left",
        "return      0.500   ▲ +0.100",
        "4,166 episodes · length 12.0",
        f"evaluation  0.600   95% interval {INTERVAL}",
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


@pytest.mark.parametrize("width", [20, 30, 44, 59, 60, 61, 80, 100, 200])
@pytest.mark.parametrize("height", [8, 30])
def test_the_panel_fits_every_terminal(width, height):
    """No line is wider than the terminal, none wraps, and every gauge is there."""
    state, _ = make_state()
    state.advice.append(ADVICE)
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
    state.advice.append(ADVICE)
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


@pytest.mark.parametrize(
    ("more", "bad"),
    [
        ({}, []),
        ({"deviation/log_prob": 2e-5}, ["log-prob"]),
        ({"deviation/value": 2e-5}, ["value"]),
        ({"deviation/value": 2e-4, "value/max": 500.0}, []),
        ({"deviation/value": 2e-4, "value/min": -15.0}, ["value"]),
        ({"staleness": 0.3}, ["staleness"]),
        ({"lag": 1.0}, ["lag"]),
    ],
)
def test_gauges_warn_in_time(more, bad):
    """A tenth of the tolerance (1e-4) for deviations, values in units of their size; 0.3; 0."""
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
    assert state.best == (0.9, 40_000)


# Live


def test_it_draws_four_times_a_second_at_most():
    """However short the iterations are; and what is not drawn is not computed."""
    console, _ = terminal()
    clock = Clock()
    display = LivePanel(console, clock)
    training = make_training()
    display.on_start(training)
    draws = []
    refresh = display._live.refresh
    display._live.refresh = lambda: (draws.append(clock.now), refresh())
    display.state.returns = lambda: [] if draws and draws[-1] == clock.now else pytest.fail("not due")
    for i in range(1, 1001):
        clock.now = 0.01 * i
        display.on_iteration(training, metrics_at(training, 100 * i))
    assert 30 <= len(draws) <= 40
    assert min(b - a for a, b in pairwise(draws)) >= EVERY - 1e-9
    del display.state.returns
    display.on_end(training, "steps")


def test_the_live_run():
    """S001-28: advice comes above the panel, in whole and once; a line of it stays below; the end sums up."""
    console, out = terminal()
    clock = Clock()
    before = sys.stdout, sys.stderr
    play(LivePanel(console, clock), make_training(), clock=clock)
    assert (sys.stdout, sys.stderr) == before
    assert not [t for t in threading.enumerate() if t.name == "recollect-display"]
    text = out.getvalue()
    assert text.startswith("12,345 weights; effective horizon 100 steps")
    joined = " ".join(text.replace("\n", " ").split())
    assert joined.count(f"advice: {ADVICE}") == 1
    assert text.count(f"! {ADVICE[:40]}") > 1
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor is back
    last = text[text.rindex("╭") :]
    assert "Ctrl-C" not in last
    assert "! the" not in last
    assert last[last.index("finished") :].splitlines() == [
        "finished: all steps made",
        "  steps       100,000 in 1:40, 5,000 a second",
        "  return      1.00, mean of the last 100 episodes",
        f"  evaluation  0.600 (95% interval {INTERVAL}, 100 episodes)",
        "  run         runs/cue-7",
        "",
        "  recollect report runs/cue-7",
    ]


def test_after_an_error_the_terminal_is_as_before():
    console, out = terminal()
    before = sys.stdout, sys.stderr
    display = LivePanel(console)
    training = make_training()
    display.on_start(training)
    display.on_end(training, "error: reward of row 3 is nan")
    assert (sys.stdout, sys.stderr) == before
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h")
    assert "failed: reward of row 3 is nan" in out.getvalue()


def test_a_long_iteration_does_not_look_dead(monkeypatch):
    """The clock moves on by itself."""
    monkeypatch.setattr("recollect.display.live.IDLE", 0.01)
    console, out = terminal()
    display = LivePanel(console)
    display.on_start(make_training())
    moved = threading.Event()
    mark = display.state.mark
    display.state.mark = lambda: (mark(), moved.set())
    assert moved.wait(10)
    display.on_end(display.state.training, "interrupt")
    assert "stopped: interrupted" in out.getvalue()


# Lines


def test_plain_lines():
    """S001-24, S004-10, S001-28: the opening first; then a line every five seconds, advice on its own."""
    out, clock = io.StringIO(), Clock()
    play(Lines(Console(file=out), clock), make_training(), clock=clock)
    lines = out.getvalue().splitlines()
    assert lines == [
        "delayed-cue, LSTM, runs/cue-7",
        "12,345 weights; effective horizon 100 steps",
        "     30,000  30%  return   0.300    16,000/s  left     0:14  deviation 3e-06",
        f"     30,000  advice: {ADVICE}",
        "     60,000  60%  return   0.600    16,000/s  left     0:08  deviation 3e-06",
        f"     60,000  evaluation 0.600 (95% interval {INTERVAL}, 100 episodes)",
        "     60,000  checkpoint runs/cue-7/checkpoints/000000060000",
        "     90,000  90%  return   0.900    16,000/s  left     0:02  deviation 3e-06",
        "    100,000 100%  return    1.00    16,000/s  left     0:00  deviation 3e-06",
        "finished: all steps made",
        "  steps       100,000 in 1:40, 5,000 a second",
        "  return      1.00, mean of the last 100 episodes",
        f"  evaluation  0.600 (95% interval {INTERVAL}, 100 episodes)",
        "  run         runs/cue-7",
        "  recollect report runs/cue-7",
    ]


def test_json_lines_are_for_machines():
    out = io.StringIO()
    training = make_training()
    display = JsonLines(out)
    display.on_start(training)
    display.on_iteration(training, metrics_at(training, 10, kl=math.nan, entropy=math.inf))
    display.on_evaluation(training, evaluation_of(0.6))
    display.on_advice(training, 'quotes " and\nlines')
    display.on_checkpoint(training, Path("runs/a/checkpoints/1"))
    display.on_end(training, "target")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]
    assert [row["event"] for row in rows] == [
        "start",
        "iteration",
        "evaluation",
        "advice",
        "checkpoint",
        "end",
    ]
    assert (rows[0]["env"], rows[0]["end"], rows[0]["run"]) == ("delayed-cue", 100_000, "runs/cue-7")
    assert (rows[1]["kl"], rows[1]["entropy"], rows[1]["loss/policy"]) == (None, None, -0.0123)
    assert (rows[2]["mean"], rows[2]["episodes"]) == (0.6, 100)
    assert rows[2]["interval"] == list(evaluation_of(0.6).interval)
    assert rows[3]["text"] == 'quotes " and\nlines'
    assert rows[5] == {"event": "end", "reason": "target", "steps": 10, "seconds": 0.01}


def test_json_goes_to_stdout_and_all_else_to_stderr(capsys):
    play(make_display("json"), make_training())
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 15
    assert err == ""
    play(make_display("plain"), make_training())
    out, err = capsys.readouterr()
    assert out == ""
    assert "finished" in err
    play(make_display("quiet"), make_training(), reason="error: something")
    play(make_display(False), make_training())
    assert capsys.readouterr() == ("", "")


# Notebooks


class Handle:
    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data)


def fake_ipython(monkeypatch: pytest.MonkeyPatch, shell: type | None) -> Handle:
    handle = Handle()

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        handle.shown.append(data)
        return handle

    package, sub = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: None if shell is None else shell()  # type: ignore[attr-defined]
    sub.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", sub)
    return handle


ZMQ = type("ZMQInteractiveShell", (), {})
COLAB = type("Shell", (), {"__module__": "google.colab._shell"})
CONSOLE = type("TerminalInteractiveShell", (), {})


def test_a_notebook_updates_in_place(monkeypatch):
    handle = fake_ipython(monkeypatch, ZMQ)
    clock = Clock()
    display = Notebook(clock)
    training = make_training()
    training.agent.env = "<b>cue"
    play(display, training, clock=clock)
    assert len(handle.shown) == 12  # the start, ten updates, the end
    last = handle.shown[-1]["text/html"]
    assert "&lt;b&gt;cue" in last
    assert '<progress value="1.0000"' in last
    assert f"evaluation 0.600 ({INTERVAL})" in last
    assert "⚠ the gradient was clipped in [every]" in last
    assert "<b>finished</b>: all steps made" in last
    assert "<code>recollect report runs/cue-7</code>" in last
    assert "return    1.00" in handle.shown[-1]["text/plain"]
    assert "interrupt the kernel to save and stop" in handle.shown[-2]["text/html"]
    assert "interrupt the kernel" not in last


def test_a_notebook_is_not_flooded(monkeypatch):
    handle = fake_ipython(monkeypatch, ZMQ)
    clock = Clock()
    display = Notebook(clock)
    training = make_training()
    display.on_start(training)
    for i in range(75):
        clock.now += 0.01
        display.on_iteration(training, metrics_at(training, i))
    assert len(handle.shown) == 2


def test_html_of_a_run_that_has_not_begun():
    assert "return <b>-</b>" in page(State(make_training(run=None), Clock()))


# Which


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_auto_finds_what_fits(monkeypatch):
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setitem(sys.modules, "IPython", None)
    assert isinstance(make_display("auto", Console(file=Tty())), LivePanel)
    assert isinstance(make_display(True, Console(file=Tty())), LivePanel)
    assert isinstance(make_display("auto", Console(file=io.StringIO())), Lines)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as CI does: colours, but no terminal
    assert isinstance(make_display("auto", Console(file=io.StringIO())), Lines)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(make_display("auto", Console(file=Tty())), Lines)


@pytest.mark.parametrize(
    ("shell", "kind"), [(ZMQ, Notebook), (COLAB, Notebook), (CONSOLE, LivePanel), (None, LivePanel)]
)
def test_auto_finds_notebooks(monkeypatch, shell, kind):
    monkeypatch.setenv("TERM", "xterm-256color")
    fake_ipython(monkeypatch, shell)
    assert isinstance(make_display("auto", Console(file=Tty())), kind)


def test_a_notebook_without_ipython_is_plain(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert isinstance(make_display("notebook"), Lines)
    assert "IPython" not in sys.modules


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match=r"progress = 'jsn' \(did you mean 'json'\?\): choose auto, live"):
        make_display("jsn")


def test_colours_are_left_out_if_asked(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, height=30)
    console.print(View(make_state()[0]))
    assert "\x1b[3" not in out.getvalue()


def test_columns_are_honoured(monkeypatch):
    monkeypatch.setenv("COLUMNS", "64")
    assert standard_error().width == 64


# Never break a run


class Broken(io.StringIO):
    """Fails after some writes, as when the reader of a pipe has gone."""

    def __init__(self, error: BaseException, writes: int):
        super().__init__()
        self.error, self.left = error, writes

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().write(text)


ERRORS = {
    "pipe": BrokenPipeError(32, "Broken pipe"),
    "disk": OSError(28, "No space left on device"),
    "encoding": UnicodeEncodeError("ascii", "✓", 0, 1, "ordinal not in range"),
    "closed": ValueError("I/O operation on closed file."),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("writes", [0, 1, 3])
@pytest.mark.parametrize("mode", ["live", "plain", "json"])
@pytest.mark.parametrize("kind", [Console, type(standard_error())])
def test_broken_output_does_not_break_the_run(mode, error, writes, kind):
    """Not the run, not the process (Rich's own console ends it), not stdout; and nothing is said."""
    file = Broken(ERRORS[error], writes)
    console = kind(file=file, force_terminal=mode == "live", width=80, height=30)
    before = sys.stdout, sys.stderr
    stdout = os.dup(1)  # Rich's own console redirects it to nowhere
    clock = Clock()
    display = LivePanel(console, clock) if mode == "live" else make_display(mode, console)
    display.clock = clock  # type: ignore[attr-defined]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            play(display, make_training(), clock=clock)
    finally:
        os.dup2(stdout, 1)
        os.close(stdout)
    assert (sys.stdout, sys.stderr) == before
    assert not display.is_active  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "recollect-display"]


def test_a_reader_that_goes_leaves_no_error_for_later(monkeypatch):
    """``recollect train --progress json | head -1``: Python flushes stdout again when it ends."""
    reading, writing = os.pipe()
    os.close(reading)
    stdout = os.fdopen(writing, "w")
    monkeypatch.setattr(sys, "stdout", stdout)
    play(make_display("json"), make_training())
    stdout.write("more")
    stdout.close()


def test_a_bug_in_the_display_is_told_once_and_goes_no_further():
    display = Lines(Console(file=io.StringIO()))
    training = make_training()
    display.on_start(training)
    display.clock = lambda: 1 / 0
    with pytest.warns(RuntimeWarning, match="the display failed .ZeroDivisionError.*the run goes on"):
        display.on_iteration(training, metrics_at(training, 10))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        display.on_iteration(training, metrics_at(training, 20))
        display.on_end(training, "steps")


@pytest.mark.parametrize("mode", ["live", "plain", "json"])
def test_events_before_the_start_are_not_shown(mode):
    """The run folder's first checkpoint is made while the callbacks start; another may fail in that."""
    console, out = terminal()
    display = make_display(mode, console)
    display.on_checkpoint(make_training(), Path("a"))
    display.on_advice(make_training(), "something")
    display.on_end(make_training(), "error: something")
    assert out.getvalue() == ""


def test_one_display_for_two_trainings():
    """``agent.train`` twice with the same callback object."""
    console, out = terminal()
    display = LivePanel(console)
    for _ in range(2):
        play(display, make_training())
    assert out.getvalue().count("finished: all steps made") == 2


# The end


@pytest.mark.parametrize(
    ("reason", "words_", "next_"),
    [
        ("steps", ("finished", "all steps made"), ["report"]),
        ("target", ("finished", "the target return is reached"), ["report"]),
        ("time", ("stopped", "the time is up (max_seconds)"), ["report"]),
        ("callback: good enough", ("stopped", "good enough"), ["report"]),
        ("return has not improved", ("stopped", "return has not improved"), ["report"]),
        ("interrupt", ("stopped", "interrupted"), ["resume", "report"]),
        ("error: disk full", ("failed", "disk full"), ["resume", "report"]),
    ],
)
def test_the_end_in_words_and_what_comes_next(reason, words_, next_):
    state, _ = make_state(make_training(run="my runs/cue"))
    state.checkpoint = 40_000
    assert outcome(reason) == words_
    assert commands(state, reason) == [f"recollect {name} 'my runs/cue'" for name in next_]
    state.checkpoint = None
    if reason.startswith("error"):
        assert commands(state, reason) == ["recollect report 'my runs/cue'"]
    state.run = None
    assert commands(state, reason) == []


def test_the_best_is_told_if_it_is_not_the_last():
    state, _ = make_state()
    state.evaluated(evaluation_of(0.9))
    assert "best" not in dict(summary(state, "steps"))
    metrics_at(state.training, 60_000)
    state.evaluated(evaluation_of(0.5))
    assert dict(summary(state, "steps"))["best"] == "0.900 at 50,000 steps"


def test_envs_have_names():
    assert env_name("t-maze") == "t-maze"
    assert env_name(Clock) == "Clock"
    assert env_name(Clock()) == "Clock"
    assert env_name(SimpleNamespace(spec=SimpleNamespace(id="CartPole-v1"))) == "CartPole-v1"
    assert env_name(None) == "env"


def test_a_real_run_is_shown(capsys):
    """S001-24, S004-10: with everything that the loop tells, in each mode that needs no terminal."""
    agent = small_agent()
    agent.train(16, progress="plain")
    text = capsys.readouterr().err
    assert text.startswith("delayed-cue, LSTM\n")
    assert "weights; a rollout of 8 steps x 2 rows takes" in text
    assert "     32 100%" in text
    assert "finished: all steps made\n  steps       32 in 0:00" in text
    agent.train(16, progress="json")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["start", "iteration", "end"]
