"""Wrappers, cores, encoders and policies of the user's own, by name: from flags, files and Python."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

import recollect as rc
from recollect import cli
from recollect.config.flags import build_flags
from recollect.config.own_code import OwnCode
from recollect.errors import ConfigError
from recollect.sweep import Sweep
from recollect.training.run_folder import Run
from tests.support.own_parts import FLAGS, HERE, TINY, Average, Flat, Own, Sharp, Shifted, Wide, World

ENV, CORE, ENCODER, POLICY = (f"{HERE}:{name}" for name in ("World", "Average", "Wide", "Own"))
HEAD = f"{HERE}:Sharp"
NETWORK = [f"--core={CORE}", "--core.hidden=6", f"--encoder={ENCODER}", "--encoder.width=5"]
NETWORK += [f"--head={HEAD}", "--head.sharpness=2.0"]
WRAP = [f"--wrap={HERE}:Flat", f"--wrap={HERE}:Shifted"]
AGAIN = [f"--env={ENV}", *WRAP, *NETWORK]


def recollect(*words: str | Path) -> int:
    return cli.main([str(word) for word in words])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("own") / "run"
    assert recollect("train", ENV, *FLAGS, *WRAP, *NETWORK, f"--run={path}", "--quiet", "--no-report") == 0
    return path


@pytest.fixture
def foreign(trained, tmp_path) -> Path:
    """A copy, which is not trusted."""
    return shutil.copytree(trained, tmp_path / "copy")


def test_a_run_records_its_code_by_name(trained):
    saved = Run(trained).description["config"]
    assert saved["policy"]["core"] == {"name": CORE, "hidden": 6}
    assert saved["policy"]["encoder"] == {"name": ENCODER, "width": 5}
    assert saved["policy"]["head"] == {"name": HEAD, "sharpness": 2.0}
    assert saved["wrap"] == [f"{HERE}:Flat", f"{HERE}:Shifted"]
    built = build_flags([f"--config={trained / 'config.yaml'}"])
    assert built.given["core"] == OwnCode("core", CORE, {"hidden": 6})
    assert built.given["head"] == OwnCode("head", HEAD, {"sharpness": 2.0})
    assert built.given["wrap"] == (f"{HERE}:Flat", f"{HERE}:Shifted")


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "--episodes=1"],
        ["play", "--text", "--episodes=1"],
        ["resume", "--steps=16", "--quiet", "--no-eval", "--no-report"],
        ["report"],
        ["export", "--format=torch", "--no-check"],
    ],
    ids=lambda words: words[0],
)
def test_code_is_named_again_on_every_command(foreign, words, capsys):
    """Without its names a command fails with an error that shows them all; with them it works."""
    command, *more = words
    if command == "report":
        shutil.rmtree(foreign / "episodes")  # recorded by the training: they need no code
        assert recollect(command, foreign, *more) == 0
        failed = (foreign / "report.html").read_text()
    else:
        assert recollect(command, foreign, *more) == 2
        failed = capsys.readouterr().err
    for word in (*NETWORK, "--trust"):
        assert word in failed
    own = [*WRAP, *NETWORK] if command in ("export", "report") else AGAIN
    assert recollect(command, foreign, *more, *own) == 0


def test_options_are_named_again_too(foreign, capsys):
    assert recollect("export", foreign, f"--core={CORE}", f"--encoder={ENCODER}", f"--head={HEAD}") == 2
    assert "--encoder.width=5" in capsys.readouterr().err
    other = [word if word != "--encoder.width=5" else "--encoder.width=6" for word in NETWORK]
    assert recollect("export", foreign, *other) == 2
    assert "does not fit this policy" in capsys.readouterr().err


def test_a_built_in_core_is_not_replaced(tmp_path, capsys):
    path = rc.train("delayed-cue", progress=False, core="gru", **TINY).save(tmp_path / "agent")
    assert recollect("eval", path, f"--core={CORE}") == 2
    assert "leave core (--core) out" in capsys.readouterr().err


def test_a_policy_by_name(tmp_path):
    path = tmp_path / "run"
    words = [ENV, *FLAGS, *WRAP, f"--policy={POLICY}", f"--run={path}", "--quiet", "--no-report", "--no-eval"]
    assert recollect("train", *words) == 0
    assert Run(path).description["config"]["policy"]["policy"] == POLICY
    assert f"policy: {POLICY}" in (path / "config.yaml").read_text()
    copy = shutil.copytree(path, tmp_path / "copy")
    with pytest.raises(ConfigError, match=f"--policy={POLICY}.*--trust"):
        rc.load(copy)
    for policy in (POLICY, Own):
        assert isinstance(rc.load(copy, policy=policy).policy, Own)
    with pytest.raises(ConfigError, match="policy is a factory"):
        rc.train(World, wrap=Flat, policy=POLICY, core="gru", **TINY)


def test_python_takes_names_and_classes(tmp_path):
    """Names are saved; classes are given again with ``core=``, ``encoder=``, ``head=`` and ``wrap=``."""
    names = {"core": {"name": CORE, "hidden": 6}, "encoder": ENCODER, "head": HEAD}
    code = {"core": lambda n: Average(n, 6), "encoder": Wide, "head": Sharp}
    named = rc.train(ENV, progress=False, wrap=[f"{HERE}:Flat"], **names, **TINY)
    path = named.save(tmp_path / "named")
    back = rc.load(path, env=World, wrap=Flat, core=names["core"], encoder=Wide, head=Sharp)
    assert back.evaluate(1).lengths.tolist() == [4]
    made = rc.train(ENV, progress=False, wrap=[Flat, Shifted], **code, **TINY)
    path = made.save(tmp_path / "made")
    assert json.loads((path / "agent.json").read_text())["config"]["wrap"] == ["custom", "custom"]
    with pytest.raises(ConfigError, match=r"custom encoder and core and head.*core=\.\.\. and head=\.\.\."):
        rc.load(path, env=ENV)
    agent = rc.load(path, env=ENV, **code)
    with pytest.raises(ConfigError, match=r"wrap=\[\.\.\.\]"):
        agent.evaluate(1)
    again = rc.load(path, env=ENV, wrap=[Flat, Shifted], **code)
    assert again.evaluate(1).lengths.tolist() == [4]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([f"--core={CORE}", "--core.hiden=4"], "--core.hiden: .*did you mean 'hidden'"),
        ([f"--core={CORE}", "--core.hidden=many"], "--core.hidden many: it needs a whole number"),
        ([f"--core={HERE}:Averge"], "has no 'Averge'.*Average"),
        (["--core=no_such_module:Core"], "there is no module 'no_such_module'"),
        ([f"--core={HERE}:HERE"], "is of type str: it must be a class or function that takes input_size"),
        ([f"--core={HERE}:not_an_env"], "must make a Core"),
        ([f"--head={HERE}:Sharp", "--head.sharpnes=2"], "--head.sharpnes: .*did you mean 'sharpness'"),
        ([f"--head={HERE}:head_of_none"], r"head .*head_of_none made a int: it must be a .*Head"),
        ([f"--wrap={HERE}:not_an_env"], "made a int, not a gymnasium.Env"),
        (["--wrap=Flat"], "wrap has 'Flat': give 'module:Wrapper'"),
        ([f"--wrap={{name: {HERE}:Flat, skale: 2}}"], "skale.*did you mean 'scale'"),
    ],
)
def test_wrong_names_and_options_are_told(flags, words, capsys):
    own = WRAP[:1] if not flags[0].startswith("--wrap") else []
    assert recollect("train", ENV, *FLAGS, *own, *flags, "--quiet") == 2
    assert re.search(words, capsys.readouterr().err)


def test_wrappers_have_options_and_an_order():
    scaled = {"name": f"{HERE}:Flat", "scale": 10}
    for wrap, want in (([scaled, Shifted], 1.0), ([scaled, f"{HERE}:Shifted", Shifted], 2.0)):
        with rc.train(World, progress=False, wrap=wrap, **TINY) as agent, agent.opened(1) as env:
            assert env.reset(0).tolist() == [[want]]
    flags = ["--wrap", f"{{name: {HERE}:Flat, scale: 3}}", "--wrap", f"{HERE}:Shifted,{HERE}:Shifted"]
    given = build_flags(flags).given["wrap"]
    assert given == ({"name": f"{HERE}:Flat", "scale": 3}, f"{HERE}:Shifted", f"{HERE}:Shifted")
    assert build_flags(["--wrap=none"]).given["wrap"] == ()


@pytest.mark.parametrize("env", ["delayed-cue", "recollect/DelayedCue-v0"])
def test_wrappers_are_for_single_envs(env):
    with pytest.raises(ConfigError, match="wrap is for single Gymnasium envs"):
        rc.train(env, wrap=[Flat], **TINY)
    with pytest.raises(ConfigError, match="drop_obs is for single Gymnasium envs"):
        rc.train(env, drop_obs=["x"], **TINY)


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize(
    "more", [["--env-workers=2"], ["--runtime=processes", "--actors=2"]], ids=["workers", "processes"]
)
def test_own_code_in_other_processes(more, tmp_path):
    """Every runtime learns the same as one process does."""
    path, actors = tmp_path / "run", [word for word in more if word.startswith("--actors")]
    words = [ENV, *FLAGS, *WRAP, *NETWORK, "--quiet", "--no-report", "--no-eval"]
    assert recollect("train", *words, *more, f"--run={path}") == 0
    assert recollect("train", *words, *actors, f"--run={path}-inline") == 0
    runs = [Run(path), Run(f"{path}-inline")]
    first, second = (run.metrics()[-1] for run in runs)
    assert first["loss/policy"] == second["loss/policy"]


def test_a_sweep_over_own_cores(tmp_path, capsys):
    """The folder of a sweep names code; resuming it asks for the names, or for --trust."""
    out = tmp_path / "sweep"
    flags = [*FLAGS, "--drop-obs=mission", f"--core={CORE},gru", f"--out={out}"]
    assert recollect("sweep", ENV, *flags, "--dry-run") == 0
    sweep = Sweep.plan(ENV, flags[:-1], out=out)
    sweep.path.mkdir()
    sweep._save()
    capsys.readouterr()
    assert recollect("sweep", f"--env={ENV}", f"--resume={out}", "--dry-run") == 2
    error = capsys.readouterr().err
    assert f"--core={CORE}" in error
    assert "--trust" in error
    for again in ([f"--env={ENV}", f"--core={CORE}"], ["--trust"]):
        assert recollect("sweep", f"--resume={out}", *again, "--dry-run") == 0
