"""``recollect audit`` of envs, runs and foreign trainers; its JSON and page; the pytest plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

import recollect as rc
from recollect.audit import Trainer, assert_honest, audit_trainer, env_checks, of_module
from recollect.audit.results import PARTS, Check, Verification
from recollect.cli import main
from recollect.config.policy import EncoderConfig
from recollect.reports.audit_page import render
from tests.audit.scripts import make
from tests.support.helpers import ScriptedEnv

pytest_plugins = ["pytester"]

SCRIPTS = """
import torch
from tests.audit.scripts import make
def healthy(): return make()
def broken(): return make("no reset")
def lstm(): return torch.nn.LSTM(3, 8)
def batch_first(): return torch.nn.GRU(3, 8, num_layers=2, batch_first=True)
def both_ways(): return torch.nn.GRU(3, 8, bidirectional=True)
def linear(): return torch.nn.Linear(3, 8)
def nothing(): return None
"""
TINY = ["--rollout", "23", "--chunk", "7", "--num-envs", "3", "--minibatches", "2", "--core.hidden", "8"]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(env_checks, "STEPS", 10)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "their_scripts.py").write_text(SCRIPTS)


def test_a_trainer_by_name(capsys: pytest.CaptureFixture[str]):
    """Exit code, table, JSON file and page; a bug with cause, fix, number and tolerance."""
    assert main(["audit", "--policy", "their_scripts.py:healthy"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "script: 27 ok"
    named = ["audit", "--policy", "their_scripts.py:broken", "--json", "a.json", "--html", "a.html"]
    assert main(named) == 1
    assert "FAILED" in capsys.readouterr().out
    data = json.loads(Path("a.json").read_text())
    check = next(check for check in data["checks"] if check["name"] == "resets in acting")
    assert check["status"] == "failed"
    assert "not reset" in check["cause"]
    assert "initial state" in check["fix"]
    assert check["measured"] > check["tolerance"] > 0
    page = Path("a.html").read_text()
    assert "resets in acting" in page
    assert "<script" not in page


@pytest.mark.parametrize(("name", "code"), [("lstm", 0), ("batch_first", 0), ("both_ways", 1)])
def test_a_module_by_name(name: str, code: int, capsys: pytest.CaptureFixture[str]):
    """A module of torch's own; one that reads later steps fails. Resets are not checked, never passed."""
    assert main(["audit", "--policy", f"their_scripts.py:{name}", "--json", "-"]) == code
    status = {check["name"]: check["status"] for check in json.loads(capsys.readouterr().out)["checks"]}
    assert status["rows reset"] == status["truncation"] == status["recorded flags"] == "not checked"
    assert (status["resets in learning"] == "failed") == (code == 1)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "their_scripts.py:linear"], "obs_shape"),
        (["--policy", "their_scripts.py:nothing"], "NoneType"),
        (["--policy", "their_scripts.py:absent"], "has no 'absent'"),
        (["--policy", "their_scripts.py:lstm", "--epochs", "2"], "which env?"),
        (["t-maze", "--trace", "a.npz"], "leave out the env"),
        (["t-maze", "--trust"], "--trust belongs to a RUN"),
        ([], "which env?"),
    ],
)
def test_wrong_calls(words: list[str], said: str, capsys: pytest.CaptureFixture[str]):
    assert main(["audit", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """With its own weights, settings and recorded metrics; a damaged number in these is found."""
    settings = {"rollout": 23, "chunk": 7, "num_envs": 3, "minibatches": 2, "normalise_observations": True}
    encoder = EncoderConfig(hidden=(8,))
    agent = rc.train(
        "t-maze", steps=207, progress=False, run=str(tmp_path / "run"), threads=1, encoder=encoder, **settings
    )
    agent.close()
    assert main(["audit", str(tmp_path / "run"), "--json", "-"]) == 0
    data = json.loads(capsys.readouterr().out)
    found = {check["name"]: check for check in data["checks"]}
    assert found["run metrics"]["found"].startswith("3 updates, ")
    file = tmp_path / "run" / "metrics.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1]["deviation/log_prob"] = 0.5
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["audit", str(tmp_path / "run"), "--json", "-"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in data["checks"] if check["status"] == "failed"] == ["run metrics"]


def test_verify_is_another_name(capsys: pytest.CaptureFixture[str]):
    """One engine: the same checks, in the same order."""
    Path("worlds.py").write_text("from tests.support.helpers import ScriptedEnv\n")
    assert main(["verify", "worlds.py:ScriptedEnv", "--json", *TINY]) == 0
    one = json.loads(capsys.readouterr().out)
    assert main(["audit", "worlds.py:ScriptedEnv", "--json", "-", *TINY]) == 0
    two = json.loads(capsys.readouterr().out)
    assert [check["name"] for check in one["checks"]] == [check["name"] for check in two["checks"]]


def test_what_is_not_offered_is_not_checked():
    """Never passed: an empty trainer has no check that is ok, and no test may call it honest."""
    result = audit_trainer(Trainer("nothing"))
    assert {check.status for check in result.checks} == {"not checked"}
    with pytest.raises(AssertionError, match="offers nothing"):
        assert_honest(Trainer("nothing"))
    offered = make()
    only = Trainer("only", obs_shape=(3,), initial_state=offered.initial_state, act=offered.act)
    status = {check.name: check.status for check in audit_trainer(only).checks}
    assert status["resets in acting"] == "ok"
    assert status["acting is training"] == status["gradient reach"] == "not checked"


def test_an_ability_that_raises_is_a_failure():
    def act(obs: torch.Tensor, state: torch.Tensor, first: torch.Tensor) -> None:
        raise ValueError("the lights went out")

    result = audit_trainer(Trainer("dark", obs_shape=(3,), initial_state=make().initial_state, act=act))
    assert "the lights went out" in result["resets in acting"].found
    assert not result.ok


def test_wrong_shapes_are_named():
    """A state with the layers first, as torch has it, and outputs that are not time-major."""
    lstm = nn.LSTM(3, 8)

    def start(rows: int) -> tuple[torch.Tensor, ...]:
        return (torch.zeros(1, rows, 8), torch.zeros(1, rows, 8))

    result = audit_trainer(of_module(lstm, obs_shape=(3,), initial_state=start))
    assert "rows first" in " ".join(result["initial state"].advice)


def test_the_plugin(pytester: pytest.Pytester):
    """A fixture whose failure is the report."""
    pytester.makeconftest('pytest_plugins = ["recollect.audit.pytest_plugin"]')
    pytester.makepyfile(
        """
        from tests.audit.scripts import make

        def test_good(assert_honest):
            assert assert_honest(make).ok

        def test_bad(assert_honest):
            assert_honest(lambda: make("no reset"))
        """
    )
    result = pytester.runpytest("-p", "no:cacheprovider")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*resets in acting*"])


def test_the_page_escapes_and_has_every_check():
    """S004-19: what a trainer is called, or says, is text."""
    advice = ("Likely cause: a & b", "Fix: <c>", "more")
    check = Check("state", "acting", "failed", "<b>x</b>", advice, group="<g>")
    others = [Check(part, f"check of {part}", "ok", "fine", measured=1e-7, tolerance=1e-4) for part in PARTS]
    page = render(Verification("<script>alert(1)</script>", [check, *others], ("a -> b",)))
    assert "<script" not in page
    assert "<b>" not in page
    assert "&lt;g&gt;" in page
    assert all(f"check of {part}" in page for part in PARTS)
    assert page.count("1e-07") == len(PARTS)


def test_an_object_is_audited_as_it_is():
    """S004-19: an env instance, with the checks of evaluations and of one engine."""
    result = rc.verify(ScriptedEnv, rollout=23, chunk=7, num_envs=3, minibatches=2, threads=1)
    assert result["evaluations"].status == "ok"
    assert result.to_json()["ok"]
