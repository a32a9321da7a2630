"""The typed keywords of ``rc.train``, ``rc.load`` and ``rc.resume`` are those of the configs."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import recollect as rc
from recollect.api import CHANGEABLE
from recollect.config.keywords import ChangeableSettings, TrainSettings
from recollect.config.train import homes

ROOT = Path(__file__).parents[2]
CHECKER = Path(sys.executable).with_name("basedpyright")


def test_the_file_is_current():
    """After a change of a setting, `python docs/keywords.py` writes it again."""
    script = runpy.run_path(str(ROOT / "docs" / "keywords.py"))
    assert script["FILE"].read_text() == script["source"]()


def test_every_setting_is_a_keyword():
    """All but ``policy``, which is a parameter of its own."""
    assert set(TrainSettings.__annotations__) == homes().keys() - {"policy"}
    assert set(ChangeableSettings.__annotations__) == CHANGEABLE
    assert get_type_hints(rc.train)["settings"].__args__ == (TrainSettings,)
    for function in (rc.load, rc.resume):
        assert get_type_hints(function)["settings"].__args__ == (ChangeableSettings,)


RIGHT = """
rc.train("t-maze", steps=1000, core="gru", clip=None, runtime="ray", sinks=["wandb"], algo="impala")
rc.train("t-maze", run=Path("runs"), core=rc.LSTMConfig(hidden=8), learning_rate=1, policy="fast")
rc.train("t-maze", algo=rc.TrainConfig().algo, head=rc.HeadConfig(squash=True), env_kwargs={"size": "easy"})
rc.resume("runs/a", steps=100, max_seconds=3, sinks=("wandb",), env_workers=2)
rc.load("runs/a", threads=1).train(steps=100)
"""
WRONG = {
    'rc.train("t-maze", stepz=1000)': "stepz",
    'rc.train("t-maze", steps="many")': "int",
    'rc.train("t-maze", runtime="threads")': "processes",
    'rc.train("t-maze", algo="dqn")': "impala",
    'rc.train("t-maze", learning_rate=None)': "float",
    'rc.resume("runs/a", learning_rate=1e-3)': "learning_rate",
    'rc.load("runs/a", gamma=0.9)': "gamma",
}


@pytest.mark.skipif(not CHECKER.exists(), reason="basedpyright is not installed")
def test_a_type_checker_knows_the_keywords(tmp_path):
    """A right call passes, and each wrong keyword and each wrong type is an error on its line."""
    opening = "from pathlib import Path\nimport recollect as rc\n"
    (tmp_path / "right.py").write_text(opening + RIGHT)
    (tmp_path / "wrong.py").write_text(opening + "\n".join(WRONG))
    options = {"include": ["."], "extraPaths": [str(ROOT / "src")], "typeCheckingMode": "standard"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(options))
    command = [str(CHECKER), "--outputjson", "--pythonpath", sys.executable, "-p", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    errors = [(Path(one["file"]).name, one["range"]["start"]["line"] - 2, one["message"]) for one in found]
    assert [one for one in errors if one[0] == "right.py"] == []
    for line, words in enumerate(WRONG.values()):
        assert any(at == line and words in message for _, at, message in errors), (line, errors)
