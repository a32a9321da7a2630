"""The examples run from beginning to end."""

from __future__ import annotations

import runpy
from pathlib import Path

import recollect as rc

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def test_the_demo_runs_to_its_end(monkeypatch, tmp_path):
    """With few steps: the table, the episode, the picture and the saved agent."""
    train = rc.train
    monkeypatch.setattr(rc, "train", lambda env, **kw: train(env, **kw | {"steps": 4096, "progress": False}))
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")
    assert (tmp_path / "runs/demo/report.png").stat().st_size > 10_000
    assert rc.load(tmp_path / "runs/demo/agent").steps >= 4096
