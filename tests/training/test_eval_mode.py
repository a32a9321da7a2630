"""``eval_mode``: greedy and sampled evaluations, told apart everywhere, in training and after it."""

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
from recollect.cli import main
from recollect.errors import ConfigError
from recollect.reports.compare import gather_comparison
from recollect.reports.data import gather_run
from recollect.reports.read_run import read_folder
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE

SETTINGS = SMALL | {"core": "none", "steps": 2 * UPDATE, "eval_every": UPDATE, "eval_episodes": 12}
FICKLE = """
import gymnasium as gym
import numpy as np

class Fickle(gym.Env):
    '''A step pays if its action is another than the last: the same action again and again earns nothing.'''
    observation_space = gym.spaces.Box(-1, 1, (3,))
    action_space = gym.spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age, self.last = 0, None
        return np.ones(3, np.float32), {}

    def step(self, action):
        pays = self.last is not None and action != self.last
        self.age, self.last = self.age + 1, action
        return np.ones(3, np.float32), float(pays), False, self.age == 8, {}
"""
space: dict[str, Any] = {}
exec(FICKLE, space)
Fickle: type[gym.Env] = space["Fickle"]


class Advice(rc.Callback):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def on_advice(self, training: Any, text: str) -> None:
        self.texts.append(text)


def scores(mean: float, spread: float = 0.1, count: int = 20, **more: Any) -> Evaluation:
    return Evaluation(mean + spread * np.linspace(-1, 1, count), np.full(count, 5), **more)


def test_both_are_what_each_is_alone():
    """S001-5: the same episodes as two evaluations of one mode each, every time."""
    with rc.train("delayed-cue", **SMALL | {"steps": UPDATE}) as agent:
        both, again = (agent.evaluate(6, eval_mode="both") for _ in range(2))
        greedy, sampled = (agent.evaluate(6, eval_mode=mode) for mode in ("greedy", "sampled"))
    assert both.sampled is not None
    assert (both.mode, both.sampled.mode, greedy.mode, sampled.mode) == ("greedy", "sampled") * 2
    assert both.returns.tolist() == greedy.returns.tolist() == again.returns.tolist()
    assert both.sampled.returns.tolist() == sampled.returns.tolist() != greedy.returns.tolist()
    assert sampled.sampled is None is greedy.sampled
    assert agent.evaluate(2).sampled is not None, "as the config says"


def test_the_spelling_of_other_libraries_is_answered_with_ours():
    with rc.train("delayed-cue", **SMALL | {"steps": UPDATE, "eval_mode": "greedy"}) as agent:
        assert agent.evaluate(2).sampled is None
        with pytest.raises(ConfigError, match="eval_mode='sampled'"):
            agent.evaluate(2, deterministic=False)
        with pytest.raises(ConfigError, match=r"eval_mode.*did you mean 'sampled'"):
            agent.evaluate(2, eval_mode="sample")  # type: ignore[arg-type]


def test_a_difference_is_told_if_the_intervals_are_apart():
    """In plain words, with what to do: for greedy actions that are worse, and for those that are better."""
    worse = scores(2, sampled=scores(3, mode="sampled")).difference
    assert worse is not None
    for words in (
        "greedy actions reach 2.00, sampled ones 3.00",
        "deterministic=False",
        "eval_mode=sampled",
        "entropy",
    ):
        assert words in worse
    better = scores(1, sampled=scores(0, mode="sampled")).difference
    assert better is not None
    assert "Act greedily" in better
    for close in (
        scores(1),
        scores(1, sampled=scores(1.01, mode="sampled")),
        scores(0, count=5, sampled=scores(1, count=5, mode="sampled")),
        scores(float("nan"), sampled=scores(1, mode="sampled")),
    ):
        assert close.difference is None


def test_a_training_says_which_and_tells_the_difference_once(tmp_path):
    heard, path = Advice(), tmp_path / "run"
    rc.train(Fickle, run=str(path), callbacks=[heard], **SETTINGS).close()
    run = Run(path)
    rows = run.evaluations()
    assert [(row["mode"], row["mean"], row["sampled"]["mode"]) for row in rows] == [
        ("greedy", 0, "sampled")
    ] * 2
    assert all(row["sampled"]["mean"] > 2 for row in rows)
    told = [text for text in heard.texts if "sampled ones" in text]
    assert len(told) == 1
    assert told[0] in [event["text"] for event in run.events() if event["kind"] == "advice"]
    assert run.status["best"]["mode"] == "greedy"
    page = gather_run(read_folder(path), [])
    assert page["run"]["evaluation"]["mode"] == "greedy"
    assert page["run"]["evaluation"]["sampled"]["mean"] > 2
    assert "session(deterministic=False)" in page["run"]["evaluation"]["difference"]
    assert page["evaluations"]["modes"] == ["greedy", "greedy"]
    assert len(page["evaluations"]["sampled"]["values"]) == 2


def evaluating(monkeypatch, *means: tuple[float, float]) -> None:
    """Evaluations with these (greedy, sampled) means."""
    left = iter(means)

    def evaluate(agent: rc.Agent, *_: Any, **__: Any) -> Evaluation:
        greedy, sampled = next(left)
        other = scores(sampled, mode="sampled")
        mode = agent.config.eval_mode
        return other if mode == "sampled" else scores(greedy, sampled=other if mode == "both" else None)

    monkeypatch.setattr(rc.Agent, "evaluate", evaluate)


@pytest.mark.parametrize(("mode", "best"), [("both", 2), ("greedy", 2), ("sampled", 1)])
def test_the_best_checkpoint_is_the_best_in_that_mode(mode, best, tmp_path, monkeypatch):
    evaluating(monkeypatch, (1, 5), (2, 3))
    rc.train("delayed-cue", run=str(tmp_path / "run"), **SETTINGS | {"eval_mode": mode}).close()
    kind = "sampled" if mode == "sampled" else "greedy"
    status = Run(tmp_path / "run").status
    assert (status["best"]["steps"], status["best"]["mode"]) == (best * UPDATE, kind)


def test_a_resume_may_change_the_mode(tmp_path, monkeypatch):
    """Greedy 9 is not better than sampled 3: they are two figures."""
    path = tmp_path / "run"
    evaluating(monkeypatch, (8, 1), (9, 2), (7, 3))
    rc.train("delayed-cue", run=str(path), **SETTINGS | {"eval_mode": "greedy"}).close()
    rc.resume(path, steps=UPDATE, eval_mode="sampled", progress=False).close()
    best = Run(path).status["best"]
    assert (best["steps"], best["mode"], best["mean"]) == (3 * UPDATE, "sampled", pytest.approx(3))
    Run(path).add_evaluation(3 * UPDATE, scores(2.5, mode="sampled"))
    assert Run(path).status["best"]["mean"] == pytest.approx(3), "nor by the rows of the file"
    page = gather_run(read_folder(path), [])
    assert page["evaluations"]["modes"] == ["greedy", "greedy", "sampled"]


def test_a_comparison_compares_like_with_like(tmp_path, monkeypatch):
    """Runs with both and with sampled actions only are compared by the sampled ones; else it is told."""
    paths = {}
    for mode in ("both", "sampled", "greedy"):
        evaluating(monkeypatch, (9, 3), (9, 3))
        paths[mode] = tmp_path / mode
        rc.train("delayed-cue", run=str(paths[mode]), **SETTINGS | {"eval_mode": mode}).close()

    def compared(*modes: str) -> dict[str, Any]:
        return gather_comparison([read_folder(paths[mode]) for mode in modes])

    same = compared("both", "sampled")
    assert same["mode"] == "sampled"
    assert [run["evaluation"]["mean"] for run in same["runs"]] == [pytest.approx(3)] * 2
    assert [group["runs"] for group in same["groups"]] == [2], "eval_mode makes no other experiment"
    assert any("differ by more than chance in 1 of 2 runs (both)" in text for text in same["problems"])
    assert compared("both", "greedy")["mode"] == "greedy"
    mixed = compared("sampled", "greedy")
    assert mixed["mode"] is None
    assert any("the same eval_mode" in text for text in mixed["problems"])


def test_the_command_line_says_which(tmp_path, capsys, monkeypatch):
    """Train, eval and their JSON name the actions; the difference is told; one spelling of the flag."""
    (tmp_path / "fickle.py").write_text(FICKLE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    flags = (
        "--core none --num-envs 4 --rollout 12 --chunk 4 --threads 1 --encoder.hidden 8 --steps 48".split()
    )
    code, _, err = run(
        *("train", "fickle:Fickle", *flags, "--run", "run", "--plain", "--no-report"),
        *("--eval-episodes", "12", "--eval-every", "48"),
    )
    assert code == 0, err
    assert "evaluation greedy 0 (95% interval" in err
    assert "sampled" in err[err.index("evaluation greedy") :]
    assert "advice: greedy actions reach 0, sampled ones" in err
    assert "  note        greedy actions reach 0" in err, "the summary"
    code, out, err = run("eval", "run", "--env", "fickle:Fickle", "--episodes", "12")
    assert "greedy return 0 (" in out
    assert "; sampled return " in out
    assert "note: greedy actions reach 0" in err
    code, out, _ = run(
        *("eval", "run", "--env", "fickle:Fickle", "--episodes", "12", "--json", "--eval-mode", "sampled")
    )
    read = json.loads(out)
    assert (code, read["mode"], "sampled" in read) == (0, "sampled", False)
    code, _, err = run("eval", "run", "--env", "fickle:Fickle", "--sample")
    assert (code, "--eval-mode sampled" in err) == (2, True)
    code, _, err = run("eval", "run", "--env", "fickle:Fickle", "--eval-mode", "sample")
    assert (code, "did you mean 'sampled'" in err) == (2, True)
    sys.modules.pop("fickle", None)


def test_old_runs_were_greedy(tmp_path):
    """Rows without a mode are those of runs before the setting; their agents still load."""
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), **SETTINGS).close()
    rows = Run(path).evaluations()
    old = [{k: v for k, v in row.items() if k not in ("mode", "sampled", "difference")} for row in rows]
    Path(path / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in old))
    page = gather_run(read_folder(path), [])
    assert page["evaluations"]["modes"] == ["greedy", "greedy"]
    assert page["evaluations"]["sampled"] is None
    assert page["run"]["evaluation"]["mode"] == "greedy"
