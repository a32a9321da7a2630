"""What the folder of somebody else may not choose: a cluster, a server, the options of a foreign env."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

import recollect as rc
from recollect import cli
from recollect.errors import ConfigError, RecollectError
from recollect.reports import write_report
from recollect.sweep import Sweep
from recollect.sweep.member import Member
from recollect.training.run_folder import Run
from tests.faults.test_damaged import changed
from tests.support.doomed import SMALL, UPDATE
from tests.sweep.test_foreign import FLAGS, write_sweep

ID = "tests/Marked-v0"


class Marked(CartPoleEnv):
    """Leaves a trace of what it was made with: what any env with a path among its options may do."""

    def __init__(self, mark: str | None = None, render_mode: str | None = None):
        super().__init__(render_mode=render_mode)
        if mark is not None:
            Path(mark).write_text("made")


@pytest.fixture(autouse=True, scope="module")
def _registered():
    gym.register(ID, Marked)
    yield
    del gym.registry[ID]


@pytest.fixture(scope="module")
def plain(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("plain") / "run"
    rc.train(ID, run=str(path), steps=UPDATE, **SMALL)
    return path


@pytest.fixture
def marked(plain, tmp_path) -> tuple[Path, Path]:
    """A run whose folder passes an option to a registered env, and the file that shows that it got there."""
    path, mark = shutil.copytree(plain, tmp_path / "run"), tmp_path / "mark"
    shutil.rmtree(path / "episodes")  # recorded by the training: a report has to play
    choose(path, env_kwargs={"mark": str(mark)})
    return path, mark


def choose(path: Path, **settings: Any) -> None:
    """Let the folder of a run choose settings, as somebody who knows its format would."""
    for checkpoint in Run(path).checkpoints():
        changed(checkpoint, **settings)
    description = json.loads((path / "run.json").read_text())
    description["config"] |= settings
    (path / "run.json").write_text(json.dumps(description))


def test_a_plain_run_needs_no_flags(plain):
    """An id without options."""
    assert rc.load(plain).evaluate(1).returns.size == 1


def test_options_of_a_task_need_no_repeating(tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", run=str(path), steps=UPDATE, env_kwargs={"horizon": 3}, **SMALL)
    assert rc.load(path).evaluate(1).lengths.tolist() == [5]
    assert rc.resume(path, steps=UPDATE, progress=False).config.env_kwargs == {"horizon": 3}
    assert cli.main(["eval", str(path), "--episodes", "1"]) == 0


def test_options_of_a_foreign_env_are_not_passed_on(marked, capsys):
    """Neither by a function nor by a command; the error shows them, and the flag to repeat."""
    path, mark = marked
    agent = rc.load(path)
    agent.session().act(agent.policy.observation_space.sample())
    for call in (
        lambda: agent.evaluate(1),
        lambda: agent.train(UPDATE, progress=False),
        lambda: rc.load(path, env=ID).evaluate(1),
        lambda: rc.load(path, env=Marked).evaluate(1),
        lambda: rc.resume(path, steps=UPDATE, progress=False),
    ):
        with pytest.raises(ConfigError, match=r"--task\.mark=.*env_kwargs=\{'mark': "):
            call()
    for words in (["eval"], ["play", "--text"], ["resume", "--steps", "48"]):
        assert cli.main([words[0], str(path), *words[1:]]) == 2
        assert f"--task.mark={mark}" in capsys.readouterr().err
    assert cli.main(["report", str(path)]) == 0
    assert "--task.mark=" in (path / "report.html").read_text()
    assert not mark.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "--episodes", "1"],
        ["play", "--text", "--episodes", "1", "--max-steps", "5"],
        ["resume", "--steps", "48", "--quiet", "--no-eval", "--no-report"],
        ["report"],
    ],
    ids=lambda words: words[0],
)
def test_options_that_the_user_names_again_are(marked, words):
    path, mark = marked
    assert cli.main([words[0], str(path), f"--task.mark={mark}", *words[1:]]) == 0
    assert mark.exists()


def test_options_named_in_python(marked):
    path, mark = marked
    for env in (None, ID, Marked):
        assert rc.load(path, env=env, env_kwargs={"mark": str(mark)}).evaluate(1)
        mark.unlink()
    rc.load(path, env_kwargs={"mark": None}).evaluate(1)
    assert not mark.exists(), "the user's value counts"
    assert rc.load(path, env=CartPoleEnv()).evaluate(1), "a made env gets no options"
    with pytest.raises(ConfigError, match="resume cannot change env_kwargs"):
        rc.resume(path, steps=UPDATE, env_kwargs={"mark": None}, progress=False)
    write_report(path, env_kwargs={"mark": str(mark)})
    assert mark.exists()


def test_the_command_that_trains_reports_by_itself(tmp_path, monkeypatch):
    """Whoever has just typed the options need not type them again."""
    monkeypatch.chdir(tmp_path)
    tiny = "--steps 48 --num-envs 4 --rollout 12 --chunk 4 --minibatches 1 --epochs 1 --core.hidden 8".split()
    assert cli.main(["train", ID, *tiny, "--task.mark", "mark", "--run", "run", "--quiet", "--no-eval"]) == 0
    assert (tmp_path / "run" / "episodes" / "report-0.json").is_file()


def test_options_with_several_runs_do_nothing_and_are_refused(marked, capsys):
    path, mark = marked
    for more in (["--no-play"], [str(path.parent)]):
        assert cli.main(["report", str(path), *more, f"--task.mark={mark}"]) == 2
        err = capsys.readouterr().err
        assert "--task.NAME" in err
        assert "leave them out" in err


# What leaves this machine ----------------------------------------------------------------------------------


class ReachedError(Exception):
    """Something was about to leave this machine."""


@pytest.fixture
def reached(monkeypatch) -> list[Any]:
    """What would have been joined or sent to."""
    seen: list[Any] = []

    def sinks(names: Any) -> list[Any]:
        seen.extend(names)
        return []

    def collector(self: Any, policy: Any) -> Any:
        seen.append(self._config.ray_address)
        raise ReachedError

    monkeypatch.setattr("recollect.agent.make_sinks", sinks)
    monkeypatch.setattr("recollect.runtimes.env_probe.EnvProbe.collector", collector)
    return seen


def test_the_folder_chooses_no_cluster(stopped, reached, capsys):
    """``resume`` and a loaded agent join the cluster that the user names, and no other."""
    choose(stopped, runtime="ray", ray_address="evil.example:6379")
    assert rc.load(stopped).evaluate(2), "evaluating needs no cluster"
    for call in (
        lambda: rc.resume(stopped, progress=False),
        lambda: rc.load(stopped).train(UPDATE, progress=False),
    ):
        with pytest.raises(ConfigError, match=r"evil\.example:6379.*--ray-address.*ray_address='evil"):
            call()
    assert cli.main(["resume", str(stopped)]) == 2
    assert "--ray-address evil.example:6379" in capsys.readouterr().err
    assert reached == []
    for settings, address in (
        ({"ray_address": "evil.example:6379"}, "evil.example:6379"),
        ({"ray_address": "auto"}, "auto"),
        ({"ray_address": None}, None),
        ({"runtime": "inline"}, None),
        ({"runtime": "processes"}, None),
    ):
        with pytest.raises(ReachedError):
            rc.resume(stopped, progress=False, **settings)
        with pytest.raises(ReachedError):
            rc.load(stopped, **settings).train(UPDATE, progress=False)
        assert reached == [address, address]
        reached.clear()


def test_the_folder_sends_no_metrics(stopped, monkeypatch, capsys):
    sent: list[Any] = []
    monkeypatch.setattr("recollect.agent.make_sinks", lambda names: sent.append(tuple(names)) or [])
    choose(stopped, sinks=["tensorboard", "wandb"])
    for call in (
        lambda: rc.resume(stopped, progress=False),
        lambda: rc.load(stopped).train(UPDATE, progress=False),
    ):
        with pytest.raises(ConfigError, match=r"wandb.*--sinks tensorboard,wandb.*--sinks tensorboard "):
            call()
    assert cli.main(["resume", str(stopped)]) == 2
    assert "--sinks tensorboard,wandb" in capsys.readouterr().err
    assert sent == []
    rc.load(stopped, sinks=("wandb",)).train(UPDATE, progress=False)
    rc.resume(stopped, progress=False, sinks=())
    assert sent == [("wandb",), ()]


def test_sinks_of_this_machine_need_no_repeating(stopped, monkeypatch):
    sent: list[Any] = []
    monkeypatch.setattr("recollect.agent.make_sinks", lambda names: sent.append(tuple(names)) or [])
    choose(stopped, sinks=["tensorboard"])
    rc.resume(stopped, progress=False)
    assert sent == [("tensorboard",)]


def test_load_takes_the_settings_of_resume_only(stopped):
    with pytest.raises(ConfigError, match="load cannot change learning_rate"):
        rc.load(stopped, learning_rate=1.0)


# Sweeps ----------------------------------------------------------------------------------------------------


ASKED = ["--sinks=wandb", "--ray-address=evil:1", "--task.mark=here"]


@pytest.mark.parametrize("flag", ASKED)
@pytest.mark.parametrize("in_file", [False, True], ids=["flag", "file"])
def test_the_folder_of_a_sweep_chooses_none_of_it(tmp_path, monkeypatch, capsys, flag, in_file):
    """The flags of its variants, and the config files that it keeps."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recollect.sweep.sweep_folder.run_members", lambda *_, **__: 0)
    monkeypatch.setattr(
        "recollect.sweep.sweep_folder.check", lambda variant, flags: cli_parsed(variant, flags)
    )
    ray = ["--runtime=ray"] if "ray" in flag else []
    more = [*ray, flag]
    if in_file:
        name, _, value = flag.removeprefix("--").partition("=")
        section, _, last = name.rpartition(".")
        text = f"{section}:\n  {last}: {value}\n" if section else f"{name.replace('-', '_')}: {value}\n"
        (tmp_path / "c.yaml").write_text(text)
        more = [*ray, "--config=c.yaml"]
    write_sweep(tmp_path / "x", [ID], [*FLAGS, *more])
    assert cli.main(["sweep", "--resume", "x", "--dry-run"]) == 2
    assert f"recollect sweep --resume x {flag}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"named=\["):
        Sweep.open("x").check()
    assert cli.main(["sweep", "--resume", "x", "--dry-run", flag]) == 0
    assert cli.main(["sweep", "--resume", "x", "--dry-run", "--sinks=other"]) == 2
    assert "would change it" in capsys.readouterr().err
    assert not (tmp_path / "here").exists()


def cli_parsed(variant: Any, flags: Any) -> Any:
    from recollect.training.parse_config import parse_config

    return parse_config(list(flags), env=variant.env)


def test_a_sweep_tells_its_runs_what_the_user_has_named(marked, monkeypatch):
    """Not what the folder of the run says: one that was tampered with is refused by the process."""
    path, mark = marked
    sweep = Sweep.plan(ID, [*FLAGS, "--task.mark=other", "--sinks=wandb"], out=path.parent / "sweep")
    (member,) = sweep.members
    named = ["--task.mark=other", "--sinks=wandb"]
    assert member.named() == named
    moved = Member(member.variant, 0, path, member.flags)
    (path / "status.json").write_text(json.dumps({"state": "stopped", "reason": "interrupt"}))
    assert named == [word for word in moved.command() or [] if word in named]
    (path / "status.json").write_text(json.dumps({"state": "finished", "reason": "steps", "steps": UPDATE}))
    assert "--task.mark=other" in (moved.command() or [])
    assert not mark.exists()


# Checkpoints of a saved agent ------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [["eval"], ["play", "--text"], ["export", "--format", "torch"]])
@pytest.mark.parametrize("which", ["best", "last", "48"])
def test_a_saved_agent_has_no_checkpoints_to_choose_from(stopped, tmp_path, capsys, command, which):
    agent = rc.load(stopped).save(tmp_path / "agent")
    assert cli.main([command[0], str(agent), *command[1:], "--checkpoint", which]) == 2
    assert "is not a run" in capsys.readouterr().err
    with pytest.raises(RecollectError, match=r"--checkpoint"):
        rc.load(agent, checkpoint=which)
    assert rc.load(agent).steps


def test_a_rollout_that_no_machine_has_memory_for_is_refused(stopped, monkeypatch):
    """Before a single env is opened."""
    monkeypatch.setattr("recollect.training.memory_check.free_memory", lambda _: 1000)
    monkeypatch.setattr("recollect.agent.env_probe", lambda *_, **__: pytest.fail("envs were opened"))
    with pytest.raises(ConfigError, match=r"a rollout of 12 steps x 4 rows takes .* smaller num_envs"):
        rc.resume(stopped, progress=False)
