"""What is logged of actors in other processes: their figures add up, and say where the time goes."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

import recollect as rc
from recollect.runtimes.actor_metrics import SHOWN, Reports
from recollect.runtimes.actor_server import Report
from recollect.runtimes.run_summary import placement_summary
from tests.support.doomed import SMALL, UPDATE

pytestmark = pytest.mark.usefixtures("warm_children")

TIMES = ("time/env", "time/policy", "time/transport", "time/learner")


def rows_of(**settings: Any) -> list[dict[str, float]]:
    with rc.train("delayed-cue", **SMALL | {"steps": 6 * UPDATE} | settings) as agent:
        return agent.history.rows


def made(row: dict[str, float]) -> dict[str, float]:
    return {name: value for name, value in row.items() if re.fullmatch(r"actor/\d+/steps", name)}


@pytest.mark.parametrize(("mode", "lag"), [("lockstep", 0), ("async", 1)])
def test_totals_are_the_sums_over_the_actors(mode, lag):
    """S003-19: the steps of the actors add up to all steps, and differ from update to update."""
    rows = rows_of(runtime="processes", actors=2, mode=mode)
    assert len(rows) == 6
    for row in rows:
        assert sum(made(row).values()) == row["steps"]
        assert len(made(row)) == 2
        assert row["actors/slowest"] == min(row["actor/0/speed"], row["actor/1/speed"])
        assert sum(row[name] for name in TIMES) == pytest.approx(1)
        assert 0 <= row["lag"] <= row["lag/max"] <= lag
        assert 0 <= row["queue/ready"] + row["queue/running"] <= 2 * (2 + lag)
    for name in ("actor/0/steps", "actor/1/steps", "time/learner"):
        assert len({row[name] for row in rows}) > 2, name  # an update may have no rollout of one of them


def test_one_process_says_nothing_of_a_runtime():
    """S003-19: no figures where there is nobody else."""
    row = rows_of(actors=2)[-1]
    assert (row["lag"], row["lag/max"]) == (0, 0)
    assert not [
        name for name in row if name.startswith(("time/", "queue/", "actor", "restarts", "speed/wait"))
    ]


def report(steps: int, seconds: float) -> Report:
    parts = {"env": 0.5 * seconds, "act": 0.2 * seconds, "weights": 0.1 * seconds, "idle": 0.2 * seconds}
    return Report(0, steps, {}, parts, False, ())


def test_many_actors_are_summed_up():
    """S003-19: of hundreds, the slowest and the fastest; the restarts and the queues are as they are told."""
    reports = Reports(SHOWN + 1)
    batch = [(index, report(100, 1.0 + index)) for index in range(SHOWN + 1)]
    reports.restarts = 5
    found = reports.metrics(batch, ready=3, running=4)
    assert not [name for name in found if name.startswith("actor/")]
    assert (found["actors/slowest"], found["actors/fastest"]) == (100 / (1 + SHOWN), 100)
    assert [found[name] for name in TIMES] == pytest.approx([0.5, 0.2, 0.1, 0.2])
    assert (found["queue/ready"], found["queue/running"], found["restarts"]) == (3, 4, 5)


@pytest.mark.parametrize(("later", "speed"), [(0.5, 20), (5.0, 4), (100.0, 0.2)])
def test_an_actor_that_brought_nothing_still_counts(later, speed, monkeypatch):
    """S003-19: in async mode an update may have two rollouts of one actor and none of another.

    Its steps stay. It is no faster than it was, and the slower the longer nothing comes.
    """
    now = 1000.0
    monkeypatch.setattr("recollect.runtimes.actor_metrics.time.monotonic", lambda: now)
    reports = Reports(2)
    reports.metrics([(0, report(10, 1.0)), (1, report(20, 1.0))], ready=0, running=0)
    now += later
    found = reports.metrics([(0, report(10, 1.0)), (0, report(30, 3.0))], ready=0, running=0)
    assert (found["actor/0/steps"], found["actor/1/steps"]) == (50, 20)
    assert (found["actor/0/speed"], found["actor/1/speed"]) == (10, speed)
    assert (found["actors/slowest"], found["actors/fastest"]) == (min(10, speed), max(10, speed))


def test_one_that_never_brought_anything_has_no_speed():
    """S003-19: it is the slowest."""
    assert Reports(2).metrics([(0, report(10, 1.0))], ready=0, running=0)["actors/slowest"] == 0


def test_a_resumed_run_goes_on_counting(tmp_path):
    """S003-19: steps add up to all that were learned from, and who died before is not forgotten."""
    settings = SMALL | {"runtime": "processes", "actors": 2, "run": str(tmp_path / "run")}

    def kill(training, metrics):
        if metrics["updates"] == 1:
            os.kill(training.agent._trainer.collector.pids[0], signal.SIGKILL)

    with rc.train("delayed-cue", callbacks=[kill], **settings | {"steps": 3 * UPDATE}) as agent:
        assert agent.history.last["restarts"] == 1
    with rc.resume(tmp_path / "run", steps=2 * UPDATE, progress=False) as agent:
        last = agent.history.last
    assert last["restarts"] == 1
    assert sum(made(last).values()) == last["steps"] == 5 * UPDATE


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, ""),
        ({"actors": 2}, "2 actors x 8 rows in this process"),
        ({"env_workers": 4}, "4 env workers"),
        ({"runtime": "processes"}, "1 actor in processes, lockstep"),
        (
            {"runtime": "processes", "actors": 4, "mode": "async", "env_workers": 2},
            "4 actors x 4 rows in processes, async (at most 1 update behind); 2 env workers each",
        ),
        ({"runtime": "ray", "actors": 2}, "2 actors x 8 rows on a Ray cluster of its own, lockstep"),
        (
            {"runtime": "ray", "actors": 2, "ray_address": "auto", "learners": 2},
            "2 actors x 8 rows on the Ray cluster auto, lockstep; 2 learners",
        ),
    ],
)
def test_the_opening_says_who_lives_where(settings, text):
    config = rc.TrainConfig().override(**settings)
    assert placement_summary(config, 16) == (f"\n{text}" if text else "")
