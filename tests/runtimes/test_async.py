"""Actors that run ahead: bounded, counted, and honest about the weights that acted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect.errors import AlignmentError
from recollect.experience.rollout import Rollout
from recollect.runtimes.remote_collector import RemoteCollector
from recollect.training.episodes import EpisodeTracker
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE
from tests.support.process_runs import Slow, Turns, process_collector

pytestmark = pytest.mark.usefixtures("warm_children")

ASYNC: dict[str, Any] = {"runtime": "processes", "mode": "async"}


@pytest.mark.parametrize("max_lag", [pytest.param(0, marks=pytest.mark.slow), 3])
def test_the_lag_is_bounded_and_every_ticket_comes_once(max_lag):
    """S000-24, S000-22: every rollout says the version that really acted; none is lost, doubled, too old."""
    with process_collector("delayed-cue", mode="async", max_lag=max_lag, actors=2) as (collector, policy):
        turns = Turns(collector, policy)
        for _ in range(30):
            metrics = turns.turn().metrics
            assert 0 <= metrics["queue/ready"] <= 2 * (max_lag + 1)
        lags = turns.check(max_lag)
        assert max_lag == 0 or max(lags) > 0, "nobody ran ahead"


@pytest.mark.slow
def test_a_slow_actor_does_not_starve(tmp_path):
    """S003-19: the others go on meanwhile, and what it brings is learned from."""
    folder = str(tmp_path)
    make = lambda: Slow(gym.make("CartPole-v1"), folder, 0.02)  # noqa: E731
    with process_collector(make, mode="async", max_lag=1, actors=2, num_envs=2) as (collector, policy):
        turns = Turns(collector, policy)
        for _ in range(20):
            batch = turns.turn()
        turns.check(1)
        counts = [sum(r.actor == actor for batch in turns.batches for r in batch) for actor in range(2)]
        assert min(counts) >= 2, "it has its share"
        assert max(counts) > min(counts), "and the other does more"
        steps = [batch.metrics[f"actor/{actor}/steps"] for actor in range(2)]
        assert steps == [12 * count for count in counts]


def test_two_lives_in_one_batch():
    """S000-22: what ran when an actor died never ends, and is not added to what its next life does."""
    tracker = EpisodeTracker(1)

    def rollout(sequence: int, ended: list[int], *, is_first: bool) -> Any:
        ends = torch.tensor(ended, dtype=torch.bool).unsqueeze(1)
        first = torch.cat([torch.full((1, 1), is_first), ends])
        return SimpleNamespace(
            reward=torch.ones(len(ended), 1),
            terminated=ends,
            truncated=torch.zeros_like(ends),
            valid=torch.ones_like(ends),
            first=first,
            actor=0,
            rows=1,
            sequence=sequence,
        )

    tracker.add(rollout(0, [0, 0, 0], is_first=True), restarted={0})
    both = rollout(1, [0, 1, 0], is_first=False), rollout(2, [0, 0, 1], is_first=True)
    found = tracker.add(*both, restarted={0})
    assert sorted(found.lengths.tolist()) == [3, 5]
    assert tracker.add(rollout(3, [1, 0, 0], is_first=True)).lengths.tolist() == [1]


def test_it_learns_and_resumes_in_new_episodes(tmp_path, capsys):
    """S000-30: a good return although the weights that act are old; a resumed run says what it does."""
    settings = {"num_envs": 16, "actors": 2, "rollout": 16, "chunk": 8, "seed": 1, "threads": 1}
    settings |= {"steps": 60_000, "env_kwargs": {"horizon": 2}, "target_return": 0.9, "progress": False}
    path = tmp_path / "run"
    with rc.train("delayed-cue", run=str(path), **settings, **ASYNC) as agent:
        assert max(row["lag/max"] for row in agent.history.rows) == 1
        steps = agent.steps
    assert Run(path).status["reason"] == "target", Run(path).metrics()[-1]["return"]
    capsys.readouterr()
    with rc.resume(path, steps=256, progress="plain") as agent:
        assert agent.steps == steps + 256
    told = capsys.readouterr().err
    assert "in new episodes: an async run cannot resume mid-episode" in told
    assert "has no snapshots" not in told


def newest(rollout: Rollout, updates: int) -> Rollout:
    """Says that the newest weights acted."""
    return replace(rollout, version=updates)


def newer(rollout: Rollout, updates: int) -> Rollout:
    """Says a version too new, but old enough not to be looked at as if it were the newest."""
    return replace(rollout, version=rollout.version + 1) if rollout.version + 1 < updates else rollout


def oldest(rollout: Rollout, updates: int) -> Rollout:
    """Says a version older than any that may act."""
    return replace(rollout, version=updates - 3) if updates >= 3 else rollout


@pytest.mark.parametrize("lie", [newest, newer, pytest.param(oldest, marks=pytest.mark.slow)])
def test_a_lie_about_the_version_is_found(lie: Callable[[Rollout, int], Rollout]):
    """S000-24: recomputed with the weights of the version that it names, a rollout must come out the same."""
    settings = {name: value for name, value in SMALL.items() if name not in ("progress", "checkpoint_every")}
    settings |= {"max_lag": 2, "gauge_every": 1, "learning_rate": 0.01, "num_envs": 4}
    agent = rc.Agent.create("delayed-cue", rc.TrainConfig().override(**settings, **ASYNC))
    collector, lies = agent._trainer.collector, []
    assert isinstance(collector, RemoteCollector)
    honest = collector.collect

    def collect(version: int) -> Any:
        batch = honest(version)
        told = [lie(rollout, version) for rollout in batch.rollouts]
        lies.extend(new for new, old in zip(told, batch.rollouts) if new.version != old.version)
        return replace(batch, rollouts=told)

    collector.collect = collect
    with agent, pytest.raises(AlignmentError):
        agent.train(200 * UPDATE, progress=False)
    assert len(lies) == 1, "the first one is found"


def test_the_honest_twin_passes():
    """S000-24: with every rollout looked at, nothing is found where nothing is wrong."""
    settings = SMALL | {"max_lag": 2, "gauge_every": 1, "learning_rate": 0.01, "steps": 40 * UPDATE}
    with rc.train("delayed-cue", **settings, **ASYNC) as agent:
        late = [row for row in agent.history.rows if row["lag/max"] > 0]
        assert late
        assert max(row["deviation/log_prob"] for row in late) < 1e-4
