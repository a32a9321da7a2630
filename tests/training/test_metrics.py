"""Metrics: episodes, history, glossary and advice."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.base import devices
from recollect.config.train import TrainConfig
from recollect.cores import LSTMConfig
from recollect.policy import compiled
from recollect.training.advice import Advisor
from recollect.training.episodes import EpisodeTracker
from recollect.training.metrics import GLOSSARY, History, meaning
from tests.support.helpers import TensorWorld


def fake(reward, ended, valid=None):
    """A rollout as far as the tracker looks at it: [T, B] lists."""
    ended = torch.tensor(ended, dtype=torch.bool)
    odd = torch.zeros_like(ended)
    odd[::2] = True
    return SimpleNamespace(
        reward=torch.tensor(reward, dtype=torch.float32),
        terminated=ended & odd,
        truncated=ended & ~odd,
        valid=torch.ones_like(ended) if valid is None else torch.tensor(valid, dtype=torch.bool),
        actor=0,
        rows=ended.shape[1],
    )


def test_episodes_by_hand():
    """Over rollout boundaries, several in one rollout, invalid steps left out."""
    tracker = EpisodeTracker(2)
    one = tracker.add(fake([[1, 10], [2, 20], [4, 40]], [[0, 1], [1, 0], [0, 0]]))
    assert one.returns.tolist() == [10, 3]
    assert one.lengths.tolist() == [1, 2]
    two = tracker.add(fake([[8, 80], [99, 160], [16, 1]], [[1, 0], [0, 1], [1, 1]], [[1, 1], [0, 1], [1, 1]]))
    assert two.returns.tolist() == [12, 300, 16, 1]
    assert two.lengths.tolist() == [2, 4, 1, 1]
    assert tracker.metrics() == {
        "episodes": 6.0,
        "return": pytest.approx(np.mean([10, 3, 12, 300, 16, 1])),
        "return_spread": pytest.approx(np.std([10, 3, 12, 300, 16, 1])),
        "length": pytest.approx(np.mean([1, 2, 2, 4, 1, 1])),
    }


def test_random_streams_against_a_loop():
    """Sums and lengths equal those of a loop over every step."""
    rng = np.random.default_rng(0)
    tracker, total, length, expected = EpisodeTracker(5, window=10**6), np.zeros(5), np.zeros(5), []
    for _ in range(6):
        reward, ended = rng.integers(-3, 4, (9, 5)), rng.random((9, 5)) < 0.3
        tracker.add(fake(reward.tolist(), ended.tolist()))
        for r, e in zip(reward, ended):
            total, length = total + r, length + 1
            for row in np.flatnonzero(e):
                expected.append((total[row], length[row]))
                total[row] = length[row] = 0
    assert list(tracker.recent) == expected


def test_a_device_that_waits_brings_the_same_episodes(monkeypatch):
    """In order, over boundaries, with fillers, several actors, rows that start anew; the steps."""
    rng = np.random.default_rng(0)
    monkeypatch.setattr(devices, "synchronises", lambda where: where.shape[0] % 2 == 0)  # else as on a CPU
    got, want = EpisodeTracker(10, window=37), EpisodeTracker(10, window=37)
    for i in range(8):
        reward = rng.integers(-3, 4, (9, 10)) / 4
        ended, valid = rng.random((9, 10)) < 0.1 * i, rng.random((9, 10)) < (0.8 if i % 2 else 1.1)
        pairs = []
        for columns in (slice(0, 5), slice(5, 10)):
            numbers = [x[:, columns].tolist() for x in (reward, ended, valid)]
            plain = fake(*numbers)
            other = fake(*([*x, x[-1]] for x in numbers))  # a step more, which is a filler
            other.valid[-1] = False
            plain.actor = other.actor = columns.start // 5
            plain.first = other.first = torch.ones(1, 5, dtype=torch.bool)
            pairs.append((plain, other))
        plains, others = zip(*pairs)
        restarted = [1] if i == 5 else []
        a, b = got.add(*others, restarted=restarted), want.add(*plains, restarted=restarted)
        assert a.returns.tolist() == b.returns.tolist()
        assert a.lengths.tolist() == b.lengths.tolist()
        assert a.steps == b.steps == valid.sum()
        assert (a.returns.dtype, a.lengths.dtype) == (b.returns.dtype, b.lengths.dtype)
        if i == 3:
            fresh = EpisodeTracker(10, window=37)
            fresh.restore(got.snapshot())
            got = fresh
    assert list(got.recent) == list(want.recent)
    assert got.count == want.count > 100
    for name, value in want.snapshot().items():
        assert np.array_equal(got.snapshot()[name], value)
        assert got.snapshot()[name].dtype == value.dtype


def test_containers_stay_small():
    """S000-18: a million episodes and fifty thousand updates leave a window and a short history."""
    tracker = EpisodeTracker(100, window=50)
    rollout = fake(np.ones((100, 100)).tolist(), np.ones((100, 100)).tolist())
    for _ in range(100):
        tracker.add(rollout)
    assert tracker.count == 1_000_000
    assert len(tracker.recent) == 50
    sizes = [len(v) for v in vars(tracker).values() if hasattr(v, "__len__")]
    assert max(sizes) <= 100
    history = History(limit=100)
    for i in range(50_000):
        history.add({"steps": float(i), "x": float(i)})
    assert 40 <= len(history.rows) <= 100
    steps, values = history.column("x")
    gaps = {b - a for a, b in pairwise(steps)}
    assert steps == values
    assert len(gaps) == 1, "evenly thinned"
    assert steps[0] == 0
    assert steps[-1] > 49_000


def test_advice_state_stays_small():
    """S000-18: the advisor keeps counters, not a record."""
    advisor = Advisor(TrainConfig(), patience=5, settling=0)
    for i in range(1000):
        advisor.watch(healthy() | {"advantage/std": 10.0 ** (i % 3)})
    assert len(advisor._last) == 3
    assert len(advisor._said) <= 5


def test_forgetting_what_is_running():
    tracker = EpisodeTracker(1)
    tracker.add(fake([[5.0]], [[0]]))
    tracker.forget_running(slice(0, 1))
    assert tracker.add(fake([[1.0]], [[1]])).returns.tolist() == [1]
    assert tracker.metrics()["length"] == 1


def healthy() -> dict[str, float]:
    spreads = {"advantage/std": 1.0, "value/std": 1.0, "reward/std": 1.0}
    return {"grad_norm": 1.0, "grad_norm_max": 2.0, "grad_clip_rate": 0.5} | spreads


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"grad_clip_rate": 1.0, "grad_norm": 7.0}, r"clipped in every minibatch.*norm 7.*limit 0\.5.*lower"),
        ({"grad_norm_max": 0.05}, r"norm stayed below 0\.1.*raise learning_rate"),
    ],
)
def test_advice_about_gradients_needs_patience(bad, words):
    """S001-28: given once, after the patience, and only if it lasts."""
    advisor = Advisor(TrainConfig(), patience=4)
    said = [advisor.watch(healthy() | bad) for _ in range(3)]
    assert said == [[], [], []]
    advisor.watch(healthy())
    said = [advisor.watch(healthy() | bad) for _ in range(10)]
    assert [len(s) for s in said] == [0, 0, 0, 1, 0, 0, 0, 0, 0, 0]
    assert re.search(words, said[3][0])
    assert "4 updates" in said[3][0]


@pytest.mark.parametrize("name", ["advantage/std", "value/std"])
def test_advice_about_sudden_spread(name):
    """S001-28: a tenfold growth of a spread in one update is told, once, with both numbers."""
    advisor = Advisor(TrainConfig(), settling=1)
    advisor.watch(healthy())
    jump = advisor.watch(healthy() | {name: 20.0})
    assert len(jump) == 1
    assert name.split("/")[0] in jump[0]
    assert "from 1 to 20 in one update" in jump[0]
    assert advisor.watch(healthy()) == []
    assert advisor.watch(healthy() | {name: 20.0}) == []


def test_no_advice_for_a_healthy_run():
    """S001-28: no alarm while the critic settles, when rewards are found, when a task is solved."""
    settling = Advisor(TrainConfig(), settling=2)
    assert [settling.watch(healthy() | {"value/std": x}) for x in (0.01, 1.0)] == [[], []]
    advisor = Advisor(TrainConfig(), settling=0)
    for i in range(50):
        assert advisor.watch(healthy() | {"value/std": 1.2**i}) == []
    assert advisor.watch(healthy() | {"value/std": 0.0}) == []
    assert advisor.watch(healthy() | {"value/std": 1.0, "advantage/std": 0.01, "reward/std": 0.01}) == []
    assert advisor.watch(healthy()) == [], "as large as it was before"
    (text,) = advisor.watch(healthy() | {"advantage/std": 30.0, "reward/std": 30.0})
    assert "reward" in text, "rewards explain the advantages, and only they are told of"
    assert "found" in text
    assert advisor.watch(healthy() | {"reward/std": 0.0, "advantage/std": 0.01}) == []
    assert advisor.watch(healthy()) == []


RUNS = {
    "plain": {"core": LSTMConfig(hidden=8)},
    "gauged": {"core": LSTMConfig(hidden=8), "gauge_every": 1, "normalise_value": False, "epochs": 3},
    "memoryless": {"core": "none"},
    "stopped": {"core": "none", "target_kl": 1e-12},
    "saving": {"core": LSTMConfig(hidden=8), "accumulate": 2, "recompute_activations": True},
    "anchored": {"core": "none", "weight_clip": 2.0, "l2_init": 1e-3},
    "predicting": {"core": "none", "next_obs_coef": 0.1, "compile": True},
    "elsewhere": {"core": "none", "runtime": "processes", "num_envs": 4, "actors": 2},
    "corrected": {"core": LSTMConfig(hidden=8), "algo": "impala"},
}
REPLAY = {"core": LSTMConfig(hidden=8), "algo": "r2d2", "rollout": 8, "chunk": 8, "burn_in_steps": 4}
REPLAY |= {"replay_warmup": 0, "batch": 2, "gauge_every": 1, "threads": 1}


@pytest.mark.usefixtures("warm_children")
def test_every_metric_has_a_line_and_every_line_a_metric(monkeypatch):
    """S001-13: the glossary is complete, and nothing in it is a dead letter."""
    monkeypatch.setattr(compiled, "BACKEND", "eager")  # it compiles nothing, and counts
    emitted: set[str] = set()
    for settings in RUNS.values():
        small = {"rollout": 16, "chunk": 8, "epochs": 1, "minibatches": 1, "threads": 1} | settings
        look = [lambda _, metrics: emitted.update(metrics)]
        env = "delayed-cue" if "runtime" in settings else TensorWorld(3)
        rc.train(env, steps=96, progress=False, callbacks=look, **small).close()
    look = [lambda _, metrics: emitted.update(metrics)]
    rc.train(TensorWorld(3), steps=400, progress=False, callbacks=look, **REPLAY).close()
    emitted = {re.sub(r"^actor/\d+/", "actor/N/", name) for name in emitted}
    numbered = {re.sub(r"_\d+$", "_K", name) for name in emitted if name.startswith("staleness/")}
    assert numbered == {"staleness/epoch_K"}
    on_a_gpu = {"start_seconds"}  # tests/training/test_gpu_graphs.py
    assert {name for name in emitted if not name.startswith("staleness/")} == set(GLOSSARY) - on_a_gpu
    assert all(GLOSSARY.values())


def test_metrics_with_numbers_in_their_names_have_a_line():
    assert meaning("actor/12/speed") == GLOSSARY["actor/N/speed"]
    assert meaning("staleness/epoch_3") == "staleness after epoch 3"
    assert meaning("kl", {"kl": "mine"}) == "mine"
    assert meaning("nothing") == ""
