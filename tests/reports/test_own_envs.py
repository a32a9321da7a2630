"""Reports of runs whose env a report cannot make: the training records episodes for them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recollect as rc
from recollect.acting.evaluate import Evaluation
from recollect.acting.trace import Trace
from recollect.cli import main
from recollect.errors import RecollectError
from recollect.play.trace import record
from recollect.reports import write_report
from recollect.training import recorded_episodes
from recollect.training.recorded_episodes import SEED, is_makeable
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE
from tests.support.report_runs import data_of

OWN = """
import gymnasium as gym
import numpy as np

class Coin(gym.Env):
    observation_space = gym.spaces.Discrete(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return 0, {}

    def step(self, action):
        self.age += 1
        return int(action), float(action), False, self.age == 7, {}
"""
FLAGS = "--num-envs 4 --rollout 12 --chunk 4 --core.hidden 8 --encoder.hidden 8 --threads 1 --quiet".split()


class Noise(gym.Env):
    """A camera that no PNG makes smaller."""

    observation_space = gym.spaces.Box(0, 255, (32, 32, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)
    broken = False

    def __init__(self) -> None:
        if Noise.broken:
            raise RuntimeError("one camera, one process")

    def _seen(self) -> np.ndarray:
        return self.np_random.integers(0, 256, (32, 32, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.age = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.age += 1
        return self._seen(), float(action), False, self.age == 9, {}


def trained(path: Path, env: Any = Noise, **settings: Any) -> Run:
    rc.train(env, run=str(path), **SMALL | {"steps": UPDATE} | settings).close()
    return Run(path)


def test_own_code_from_the_command_line(tmp_path, capsys, monkeypatch):
    """A run of module:Env has "Inside an episode"; a report imports its code if it is named or trusted."""
    (tmp_path / "owncoin.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert main(["train", "owncoin:Coin", *FLAGS, "--steps", "48", "--run", "run", "--no-eval"]) == 0
    page = data_of(tmp_path / "run" / "report.html")
    assert [episode["steps"] for episode in page["episodes"]] == [7, 7, 7]
    assert {episode["mode"] for episode in page["episodes"]} == {"greedy"}
    assert page["episode_notes"] == []
    sys.modules.pop("owncoin")
    assert main(["report", "run"]) == 0
    assert "owncoin" not in sys.modules
    assert len(data_of(tmp_path / "run" / "report.html")["episodes"]) == 3
    for file in (tmp_path / "run" / "episodes").iterdir():
        file.unlink()
    (tmp_path / "run").rename(tmp_path / "moved")  # no longer the folder that was trained and is trusted
    assert main(["report", "moved"]) == 0
    assert "owncoin" not in sys.modules
    page = data_of(tmp_path / "moved" / "report.html")
    assert page["episodes"] == []
    assert "recollect report moved --env=owncoin:Coin" in page["episode_notes"][0]
    for named in (["--env", "owncoin:Coin"], ["--trust"]):
        for file in (tmp_path / "moved" / "episodes").iterdir():
            file.unlink()
        assert main(["report", "moved", *named]) == 0
        assert len(data_of(tmp_path / "moved" / "report.html")["episodes"]) == 3
    capsys.readouterr()
    assert main(["report", "moved", "moved", "--env", "owncoin:Coin", "--no-play"]) == 2
    assert "are for a single run that plays" in capsys.readouterr().err
    sys.modules.pop("owncoin")


@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_a_callable_in_every_runtime(runtime, tmp_path, warm_children):
    run = trained(tmp_path / "run", runtime=runtime, actors=2)
    page = data_of(write_report(run))
    assert [episode["steps"] for episode in page["episodes"]] == [9, 9, 9]
    assert page["episodes"][0]["obs"][0]["kind"] == "image"


def test_the_episodes_are_those_of_the_best_checkpoint(tmp_path, monkeypatch):
    """Not of the weights at the end."""
    left = iter([5.0, 1.0])
    monkeypatch.setattr(rc.Agent, "evaluate", lambda *_, **__: Evaluation(np.full(3, next(left)), np.ones(3)))
    settings = {"steps": 2 * UPDATE, "eval_every": UPDATE, "learning_rate": 0.1, "eval_mode": "sampled"}
    path = trained(tmp_path / "run", **settings).path
    traces = [Trace.load(path / "episodes" / f"report-{i}.json") for i in range(3)]
    agent = rc.load(path, checkpoint=UPDATE, env=Noise)
    again = record(agent, episodes=3, seed=SEED, deterministic=False)
    for trace, want in zip(traces, again, strict=True):
        assert (trace.checkpoint_steps, trace.mode) == (UPDATE, "sampled")
        np.testing.assert_allclose(trace.value, want.value, rtol=1e-5)
        assert trace.action == want.action


def test_files_are_bounded(tmp_path, monkeypatch):
    """Pictures of any size make no giant file: the recording of an episode stops."""
    monkeypatch.setattr(recorded_episodes, "SIZE", 20_000)
    run = trained(tmp_path / "run")
    files = sorted((run.path / "episodes").glob("report-*.json"))
    assert len(files) == 1
    trace = Trace.load(files[0])
    assert (trace.cut, 2 <= len(trace) < 9) == (True, True)
    assert files[0].stat().st_size < 30_000
    assert data_of(write_report(run))["episodes"][0]["ended"] == "cut"


def test_a_slow_env_does_not_delay_the_end(tmp_path, monkeypatch):
    """After its time the recording stops, with the steps that it has."""
    monkeypatch.setattr(recorded_episodes, "SECONDS", 0.0)
    run = trained(tmp_path / "run")
    assert len(Trace.load(run.path / "episodes" / "report-0.json")) == 1


def test_a_failed_recording_is_told_and_fails_nothing(tmp_path, monkeypatch):
    class Breaks(rc.Callback):
        def on_checkpoint(self, training, path):
            monkeypatch.setattr(Noise, "broken", training.steps > 0)

    run = trained(tmp_path / "run", callbacks=[Breaks()])
    assert run.status["state"] == "finished"
    (told,) = [event["text"] for event in run.events() if event["kind"] == "advice"]
    assert "no episodes were recorded" in told
    assert "one camera, one process" in told
    assert "write_report(run, env=...)" in data_of(write_report(run))["episode_notes"][0]
    with pytest.raises(RuntimeError, match="one camera"):
        write_report(run, env=Noise)
    monkeypatch.setattr(Noise, "broken", False)
    assert len(data_of(write_report(run, env=Noise))["episodes"]) == 3
    with pytest.raises(RecollectError, match="a single run"):
        write_report([run, tmp_path], env=Noise)


def test_an_index_names_no_other_files(tmp_path):
    """The folder may be a stranger's: its index reads and deletes nothing outside of it."""
    run = trained(tmp_path / "run")
    index = run.path / "episodes" / "report.json"
    found = json.loads(index.read_text())
    assert found["files"] == ["report-0.json", "report-1.json", "report-2.json"]
    index.write_text(json.dumps(found | {"files": ["../run.json"]}))
    assert recorded_episodes.read_index(run.path) == {"files": []}
    write_report(run, env=Noise)
    assert (run.path / "run.json").is_file()


def test_what_a_report_can_make_is_left_to_it(tmp_path):
    """No time at the end of a training on a built-in task or an env of Gymnasium."""
    assert is_makeable("delayed-cue", {"horizon": 3})
    assert is_makeable("CartPole-v1", {})
    assert not is_makeable("CartPole-v1", {"sutton_barto_reward": True}), "options must be repeated"
    assert not is_makeable("my:Env", {})
    assert not is_makeable("NotHere-v0", {})
    assert not is_makeable(Noise, {})
    assert not (trained(tmp_path / "task", "delayed-cue").path / "episodes").exists()
    made = trained(tmp_path / "made", gym.vector.SyncVectorEnv([Noise] * 4))
    assert not (made.path / "episodes").exists(), "an instance is the training's own"
