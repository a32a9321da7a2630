"""What displays say of actors in other processes; and gauges by the run's own tolerance."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest

from recollect.display import words
from recollect.display.lines import JsonLines, line
from recollect.display.notebook import page
from recollect.display.state import State
from recollect.display.words import bar
from tests.support.display_fakes import Clock, drawn, make_state, make_training, metrics_at, play

CREW = {
    "lag": 0.5,
    "lag/max": 1.0,
    "time/env": 0.5,
    "time/policy": 0.25,
    "time/transport": 0.05,
    "time/learner": 0.2,
    "queue/ready": 1.0,
    "queue/running": 3.0,
    "restarts": 0.0,
    "actors/slowest": 1_883.0,
    "actors/fastest": 2_135.0,
    "speed/wait": 64_000.0,
}


def actors_state(**more: float) -> State:
    training = make_training(runtime="processes", actors=2, mode="async")
    state = State(training, Clock())
    state.iterated(metrics_at(training, 2_000, **CREW | more))
    state.mark()
    return state


def test_the_panel_says_how_the_actors_do():
    text = "\n".join(drawn(actors_state(), height=40))
    for fact in (
        "learn 25% · wait 25%",
        "actors      2 in processes, async",
        "1,883 to 2,135 steps/s each",
        "█ env 50%  ▓ policy 25%  ▒ transport 5%  ░ learner 20%",
        "queue       1 rollouts ready · 3 running · lag at most 1",
        "✓ lag 0.5",
    ):
        assert fact in text, fact
    assert "restart" not in text
    assert "act 50%" not in text, "they act while the learner does something else"
    assert "2 restarts" in "\n".join(drawn(actors_state(restarts=2.0), height=40))


def test_in_one_process_nothing_is_said_of_actors():
    state, _ = make_state()
    assert state.remote_actors() is None
    assert "actors" not in "\n".join(drawn(state))
    assert "actors" not in line(state)
    assert "actors" not in page(state)


@pytest.mark.parametrize("width", [20, 44, 60, 80, 100, 200])
@pytest.mark.parametrize("height", [8, 22, 40])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_panel_fits_every_terminal(width, height, encoding):
    lines = drawn(actors_state(restarts=3.0), width, height, encoding)
    assert all(len(row) <= width for row in lines)
    assert len(lines) <= max(height, 12) or width == 60, "narrow rows are laid one below the other"


def test_the_panel_keeps_its_size():
    """The same lines before the first update and after it."""
    training = make_training(runtime="ray", actors=4)
    state = State(training, Clock())
    before = drawn(state, height=40)
    state.iterated(metrics_at(training, 2_000, **CREW))
    state.mark()
    assert len(drawn(state, height=40)) == len(before)
    assert "4 on Ray, lockstep" in "\n".join(before)
    assert "env -" in "\n".join(before)


def test_bars_have_the_shares_of_the_time():
    shares = {"a": 0.5, "b": 0.25, "c": 0.0, "d": 0.25}
    assert bar(shares, 8, words.UNICODE.shades) == "████▓▓░░"
    assert [len(bar(shares, width, "#=:.")) for width in (0, 1, 7, 30)] == [0, 1, 7, 30]
    assert bar({"a": float("nan")}, 8, "#") == bar({}, 8, "#") == ""


def test_lines_and_notebooks_say_it_too():
    state = actors_state(restarts=1.0)
    assert line(state).endswith("actors 1,883 to 2,135/s  lag 0.500  wait 25%  1 restart")
    text = page(state)
    assert "actors: 2 in processes, async · 1,883 to 2,135 steps/s each · time: env 50%, policy 25%" in text
    assert "the learner waits 25% · 1 restart" in text


def test_json_says_where_the_actors_are():
    out = io.StringIO()
    play(JsonLines(out), make_training(runtime="processes", actors=2))
    start = json.loads(out.getvalue().splitlines()[0])
    assert (start["runtime"], start["mode"], start["actors"]) == ("processes", "lockstep", 2)


@pytest.mark.parametrize(
    ("settings", "most", "good"),
    [
        ({}, 0.0, True),
        ({}, 1.0, False),
        ({"runtime": "processes", "mode": "async"}, 1.0, True),
        ({"runtime": "processes", "mode": "async", "max_lag": 3}, 3.0, True),
        ({"runtime": "processes", "mode": "async", "max_lag": 3}, 4.0, False),
    ],
)
def test_a_lag_that_was_asked_for_is_no_alarm(settings, most, good):
    training = make_training(**settings)
    state = State(training, Clock())
    state.iterated(metrics_at(training, 10, lag=most / 2, **{"lag/max": most}))
    assert state.gauges()[-1].is_good is good


def test_deviations_are_judged_by_the_run_s_tolerance():
    """A core that rounds more has a wider one, as in the check that stops the run."""
    verdicts = []
    for rounding in (1.0, 5.0):
        training = make_training()
        training.agent.policy.core = SimpleNamespace(rounding=rounding)
        state = State(training, Clock())
        state.iterated(metrics_at(training, 10, **{"deviation/log_prob": 3e-4}))
        verdicts.append(state.gauges()[0].is_good)
    assert verdicts == [False, True]


def test_deviations_stay_between_two_measurements():
    """With a lag they are measured now and then only."""
    state = actors_state()
    rest = {name: value for name, value in state.metrics.items() if not name.startswith("deviation/")}
    state.iterated(rest | {"value/max": 1e9})
    assert [gauge.text for gauge in state.gauges()[:2]] == ["2e-07", "3e-06"]
    assert "deviation 3e-06" in line(state)
