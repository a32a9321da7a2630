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

import pytest
from rich.console import Console

from recollect.display import make_display
from recollect.display.base import standard_error
from recollect.display.closing_summary import commands, outcome, summary
from recollect.display.lines import JsonLines, Lines
from recollect.display.live import EVERY, LivePanel
from recollect.display.notebook import page
from recollect.display.state import State
from recollect.errors import ConfigError
from tests.support.agents import small_agent
from tests.support.display_fakes import (
    ADVICE,
    INTERVAL,
    Clock,
    Tty,
    evaluation_of,
    make_state,
    make_training,
    metrics_at,
    play,
    terminal,
)

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
        "finished: all steps done",
        "  steps       100,000 in 1:40, 5,000 a second",
        "  return      1.00, mean of the last 100 episodes",
        f"  evaluation  greedy 0.600 (95% interval {INTERVAL}, 100 episodes)",
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
    assert "failed: the error is below" in out.getvalue()
    assert "reward of row 3" not in out.getvalue(), "the exception says it, once"


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
    """S001-24, S004-10, S001-28: the opening first; a line after the first update, then every five seconds;
    advice on its own."""
    out, clock = io.StringIO(), Clock()
    play(Lines(Console(file=out), clock), make_training(), clock=clock)
    lines = out.getvalue().splitlines()
    assert lines == [
        "delayed-cue, LSTM, runs/cue-7",
        "12,345 weights; effective horizon 100 steps",
        "     10,000  10%  return   0.100    16,000/s  left     0:18  deviation 3e-06",
        f"     30,000  advice: {ADVICE}",
        "     40,000  40%  return   0.400    16,000/s  left     0:12  deviation 3e-06",
        f"     60,000  evaluation greedy 0.600 (95% interval {INTERVAL}, 100 episodes)",
        "     60,000  checkpoint runs/cue-7/checkpoints/000000060000",
        "     70,000  70%  return   0.700    16,000/s  left     0:06  deviation 3e-06",
        "    100,000 100%  return    1.00    16,000/s  left     0:00  deviation 3e-06",
        "finished: all steps done",
        "  steps       100,000 in 1:40, 5,000 a second",
        "  return      1.00, mean of the last 100 episodes",
        f"  evaluation  greedy 0.600 (95% interval {INTERVAL}, 100 episodes)",
        "  run         runs/cue-7",
        "  recollect report runs/cue-7",
    ]


def test_a_death_is_a_warning_not_advice():
    """In lines, above the panel, and in a notebook."""
    text = "actor 1 was killed by SIGKILL; it was restarted in new episodes"
    training = make_training()
    for make in (Lines, LivePanel):
        out = io.StringIO()
        display = make(Console(file=out, width=200), Clock())
        display.on_start(training)
        display.on_warning(training, text)
        display.on_end(training, "steps")
        assert out.getvalue().count(f"warning: {text}") == 1
        assert "advice" not in out.getvalue()
    state = State(training, Clock())
    state.notices.append(text)
    assert text in page(state)


def test_json_lines_are_for_machines():
    out = io.StringIO()
    training = make_training()
    display = JsonLines(out)
    display.on_start(training)
    display.on_iteration(training, metrics_at(training, 10, kl=math.nan, entropy=math.inf))
    display.on_evaluation(training, evaluation_of(0.6))
    display.on_advice(training, 'quotes " and\nlines')
    display.on_warning(training, "actor 1 died; it was restarted")
    display.on_checkpoint(training, Path("runs/a/checkpoints/1"))
    display.on_end(training, "target")
    rows = [json.loads(line, parse_constant=pytest.fail) for line in out.getvalue().splitlines()]
    assert [row["event"] for row in rows] == [
        "start",
        "iteration",
        "evaluation",
        "advice",
        "warning",
        "checkpoint",
        "end",
    ]
    assert (rows[0]["env"], rows[0]["end"], rows[0]["run"]) == ("delayed-cue", 100_000, "runs/cue-7")
    assert (rows[1]["kl"], rows[1]["entropy"], rows[1]["loss/policy"]) == (None, None, -0.0123)
    assert (rows[2]["mean"], rows[2]["episodes"]) == (0.6, 100)
    assert rows[2]["interval"] == list(evaluation_of(0.6).interval)
    assert rows[3]["text"] == 'quotes " and\nlines'
    assert rows[4]["text"] == "actor 1 died; it was restarted"
    assert rows[6] == {"event": "end", "reason": "target", "steps": 10, "seconds": 0.01}


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


# Which


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


def test_an_unknown_mode_is_refused():
    with pytest.raises(ConfigError, match=r"progress = 'jsn' \(did you mean 'json'\?\): choose auto, live"):
        make_display("jsn")


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
    with pytest.warns(RuntimeWarning, match="the display failed .ZeroDivisionError.*the run continues"):
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
    assert out.getvalue().count("finished: all steps done") == 2


# The end


@pytest.mark.parametrize(
    ("reason", "words_", "next_"),
    [
        ("steps", ("finished", "all steps done"), ["report"]),
        ("target", ("finished", "target return reached"), ["report"]),
        ("time", ("stopped", "time limit reached (max_seconds)"), ["resume", "report"]),
        ("callback: good enough", ("stopped", "good enough"), ["report"]),
        ("return has not improved", ("stopped", "return has not improved"), ["report"]),
        ("interrupt", ("stopped", "interrupted"), ["resume", "report"]),
        ("error: disk full", ("failed", "the error is below"), ["resume", "report"]),
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


def test_after_an_interrupt_own_code_is_named_for_the_report_too():
    """Such a run has recorded no episodes: the report plays some."""
    state, _ = make_state(make_training())
    state.training.run.description = {"env": "my:Env"}
    own = "runs/cue-7 --env=my:Env"
    assert commands(state, "interrupt") == [f"recollect resume {own}", f"recollect report {own}"]
    assert commands(state, "steps") == ["recollect report runs/cue-7"], "it has them"


def test_commands_can_be_copied_from_a_narrow_terminal():
    """The terminal wraps them, not we: what is copied is one line."""
    console, out = terminal(width=30)
    play(LivePanel(console), make_training(run="runs/a-name-that-is-longer-than-the-terminal"))
    assert out.getvalue().endswith("\n  recollect report runs/a-name-that-is-longer-than-the-terminal\n")


def test_the_best_is_told_if_it_is_not_the_last():
    state, _ = make_state()
    state.evaluated(evaluation_of(0.9))
    assert "best" not in dict(summary(state, "steps"))
    metrics_at(state.training, 60_000)
    state.evaluated(evaluation_of(0.5))
    assert dict(summary(state, "steps"))["best"] == "greedy 0.900 at 50,000 steps"


def test_a_real_run_is_shown(capsys):
    """S001-24, S004-10: with everything that the loop tells, in each mode that needs no terminal."""
    agent = small_agent()
    agent.train(16, progress="plain")
    text = capsys.readouterr().err
    assert text.startswith("delayed-cue, LSTM\n")
    assert "weights; a rollout of 8 steps x 2 rows takes" in text
    assert "     32 100%" in text
    assert "finished: all steps done\n  steps       32 in " in text
    agent.train(16, progress="json")
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["event"] for event in events] == ["start", "iteration", "end"]
