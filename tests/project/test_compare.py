"""bench/compare.py and the scripts in bench/others: the same work for all libraries, and honest limits."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.nn import functional as F

import recollect as rc
from recollect.policy.encoders import Encoder
from recollect.runtimes.actor_envs import open_env

ROOT = Path(__file__).resolve().parents[2]
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "bench")
    compare = importlib.import_module("compare")
    compare_plan = importlib.import_module("compare_plan")
    task = importlib.import_module("others.task")
    encoders = importlib.import_module("others.encoders")


def run(monkeypatch: pytest.MonkeyPatch, *options: str) -> None:
    """Run compare.py as from the command line."""
    monkeypatch.setattr(sys, "argv", ["compare.py", *options])
    compare.main()


@pytest.mark.usefixtures("warm_children")
def test_one_update_of_a_world(monkeypatch, tmp_path, capsys):
    """The whole way: options, the script in its own process, the table and the file."""
    out = tmp_path / "compare.json"
    options = ("--only", "recollect", "--steps", "9999", "recollect=300", "--threads", "1")
    run(monkeypatch, "--world", "count-recall", *options, "--out", str(out))
    results = json.loads(out.read_text())["results"]
    (row,) = results["runs"]["recollect"]
    assert row["world"] == results["world"] == "count-recall"
    assert row["steps"] == 32 * 102, "one update, which exceeds the cap of 300"
    assert row["steps_to_0.9"] is None
    assert row["seconds_to_0.9"] is None
    assert row["settings"]["set"]["last_action_reward"] is True
    assert row["popgym"]
    summary = results["summary"]["recollect"]
    assert (summary["reached"], summary["cap"]) == (0, 300)
    shown = capsys.readouterr().out
    assert "steps to 0.9" in shown
    assert "> 300" in shown


def test_limits_by_contender():
    """The longest start of a name counts; a cap on seconds also moves the time at which a run is killed."""
    plan = compare_plan.Plan(
        world_name="minigrid-memory",
        seeds=1,
        steps=compare_plan.Budgets([("sb3", 3e5), ("sb3-contrib-tuned", 2e5)]),
        max_seconds=compare_plan.Budgets([("", 600.0), ("sample-factory", 900.0)]),
        threads=None,
        timeout=None,
        is_quick=False,
    )
    steps = {name: plan.cap(name) for name in ("recollect", "sb3-contrib", "sb3-contrib-tuned")}
    assert steps == {"recollect": 1_000_000, "sb3-contrib": 300_000, "sb3-contrib-tuned": 200_000}
    expected = ["--world", "minigrid-memory", "--steps", "1000000", "--max-seconds", "900"]
    assert plan.options("sample-factory-tuned") == expected
    assert plan.time_limit("sample-factory") == 900 + compare_plan.GRACE_SECONDS


@pytest.mark.parametrize("wrong", ["sb4=100", "recollect=many", "-0", "inf"])
def test_a_wrong_limit_is_refused(wrong, monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, f"--steps={wrong}")
    assert "--steps" in capsys.readouterr().err


def test_a_missing_package_is_named(monkeypatch, capsys):
    monkeypatch.setattr(task, "find_spec", lambda name: None)
    monkeypatch.setattr(sys, "argv", ["recollect_run.py", "--world", "minigrid-memory"])
    with pytest.raises(SystemExit):
        task.parse(task.parser(None))
    error = capsys.readouterr().err
    assert "the package minigrid" in error
    assert "README.md" in error


def measured(monkeypatch: pytest.MonkeyPatch, means: list[float], **limits: float):
    """A meter after updates of 10 seconds with these mean returns, and after how many it said stop."""
    clock = iter(range(0, 10_000, 10))
    monkeypatch.setattr(task.time, "perf_counter", lambda: float(next(clock)))
    world = task.WORLDS["minigrid-memory"]
    args = {"world": world, "steps": 10**6, "max_seconds": None, "warmup_updates": 1, "window_updates": 2}
    meter = task.Meter(argparse.Namespace(**args | limits))
    meter.start()
    for update, mean in enumerate(means, start=1):
        for _ in range(world.episodes):
            meter.episode(mean)
        if meter.update(update * world.batch):
            return meter.result(), update
    return meter.result(), None


def test_a_run_ends_when_it_has_reached_the_target_and_measured_its_speed(monkeypatch):
    result, stopped = measured(monkeypatch, [0.5, 0.95, 0.7, 0.6])
    assert stopped == 3
    assert (result["steps_to_0.9"], result["seconds_to_0.9"]) == (2 * 4096, 20.0)
    assert result["steps_per_second"] == pytest.approx(4096 / 10, abs=0.1)
    assert (result["return_last_100"], result["best_return_last_100"]) == (0.7, 0.95)
    assert result["curve"] == [(4096, 10.0, 0.5), (8192, 20.0, 0.95), (12288, 30.0, 0.7)]


@pytest.mark.parametrize("limit", [{"max_seconds": 15}, {"steps": 4097}])
def test_a_budget_ends_a_run_before_its_target(limit, monkeypatch):
    result, stopped = measured(monkeypatch, [0.1] * 9, **limit)
    assert stopped == 2
    assert result["steps_to_0.9"] is None
    assert result["steps"] == 2 * 4096


def test_a_long_curve_is_thinned_and_keeps_its_end(monkeypatch):
    result, _ = measured(monkeypatch, [0.001 * update for update in range(200)])
    assert 20 <= len(result["curve"]) <= 40
    assert result["curve"][-1] == (200 * 4096, 2000.0, 0.199)


@pytest.mark.parametrize("shape", [(7, 7, 3), (3, 7, 7)])
def test_the_encoder_of_grids_is_that_of_recollect(shape):
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    ours = Encoder(space, rc.EncoderConfig(hidden=(64,)))
    theirs = encoders.Symbols(shape, 64)
    weights, copies = list(ours.parameters()), list(theirs.parameters())
    assert [w.shape for w in weights] == [c.shape for c in copies]
    with torch.no_grad():
        for weight, copy in zip(weights, copies):
            copy.copy_(weight)
        obs = torch.randint(0, 256, (5, *shape), dtype=torch.uint8)
        torch.testing.assert_close(theirs(obs.float()), ours(obs))


def test_the_last_action_and_reward_are_those_of_recollect():
    """Over the end of an episode, on cards that both are dealt alike."""
    world = task.WORLDS["count-recall"]
    ours = open_env(Cards, rc.TrainConfig(num_envs=1, last_action_reward=True))
    theirs = task.LastActionReward(Cards())
    assert world.make_flat().observation_space.shape == (2 + 2 + 27 + 1,)
    obs, (flat, _) = ours.reset(0), theirs.reset()
    for action in (1, 2, 0, 2, 1):
        expected = [F.one_hot(obs["obs"][0], 3).flatten(), obs["last_action"][0], obs["last_reward"][0]]
        np.testing.assert_array_equal(flat, torch.cat(expected).numpy())
        obs = ours.step(torch.tensor([action])).obs
        flat, _, terminated, _, _ = theirs.step(action)
        if terminated:
            flat, _ = theirs.reset()


class Cards(gym.Env):
    """Episodes of three steps with known cards; the reward tells the step."""

    observation_space = gym.spaces.MultiDiscrete([3, 3])
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return np.array([0, 2]), {}

    def step(self, action):
        self.time += 1
        return np.array([self.time % 3, 1]), 0.25 * self.time, self.time == 3, False, {}
