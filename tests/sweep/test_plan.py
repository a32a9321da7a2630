"""What a sweep is to do: combinations, seeds, folders; what cannot be meant is refused."""

from __future__ import annotations

import json

import pytest

from recollect.cores import GRUConfig
from recollect.errors import ConfigError, RecollectError
from recollect.sweep.plan import Plan, check, make_plan


def labels(plan: Plan) -> list[str]:
    return [variant.label for variant in plan.variants]


def test_every_combination_with_the_same_seeds():
    flags = "--core lstm,gru --algo.learning-rate 1e-4,3e-4 --steps 1k".split()
    plan = make_plan("delayed-cue", flags, 3)
    assert labels(plan) == [
        "core=lstm,learning_rate=0.0001",
        "core=lstm,learning_rate=0.0003",
        "core=gru,learning_rate=0.0001",
        "core=gru,learning_rate=0.0003",
    ]
    assert plan.seeds == (0, 1, 2)
    assert {variant.env for variant in plan.variants} == {"delayed-cue"}
    assert plan.variants[2].flags == ("--core=gru", "--algo.learning-rate=1e-4", "--steps=1k")


def test_settings_of_python_and_flags_are_the_same():
    settings = {
        "core": ["lstm", "gru"],
        "core.hidden": 8,
        "encoder.hidden": [(8, 8), (16,)],
        "normalise_value": [True, False],
        "target_return": None,
        "task.horizon": 5,
    }
    flags = (
        "--core=lstm,gru --core.hidden=8 --encoder.hidden=8,8;16 --normalise-value=true,false "
        "--target-return=none --task.horizon=5"
    )
    assert make_plan("delayed-cue", settings) == make_plan("delayed-cue", flags.split())
    with pytest.raises(ConfigError, match="core holds a GRUConfig"):
        make_plan("delayed-cue", {"core": [GRUConfig()]})
    with pytest.raises(ConfigError, match=r"core = \[\]: list at least one"):
        make_plan("delayed-cue", {"core": []})


@pytest.mark.parametrize(
    ("flags", "seeds", "want"),
    [
        ([], None, (0,)),
        ([], 2, (0, 1)),
        (["--seed", "5"], None, (5,)),
        (["--seed=5"], 3, (5, 6, 7)),
        (["--seed", "7,3,1k"], None, (7, 3, 1000)),
        ([], (4, 2), (4, 2)),
    ],
)
def test_seeds(flags, seeds, want):
    plan = make_plan("delayed-cue", [*flags, "--core", "lstm,gru"], seeds)
    assert plan.seeds == want
    assert labels(plan) == ["core=lstm", "core=gru"]
    assert not any("seed" in flag for variant in plan.variants for flag in variant.flags)


def test_seeds_of_a_config_file(tmp_path):
    file = tmp_path / "base.yaml"
    file.write_text("seed: 9\n")
    assert make_plan("delayed-cue", [f"--config={file}"], 2).seeds == (9, 10)


@pytest.mark.parametrize(
    ("flags", "seeds", "message"),
    [
        (["--seed=1,2"], 3, "seed lists 1,2, and seeds says 3: keep one"),
        (["--seed=1,1"], None, "without duplicates"),
        ([], 0, "at least one"),
        ([], (-1,), "from 0 up"),
        (["--seed=1", "--seed=2"], None, "--seed is given twice: list the values, --seed 1,2"),
        (["--run=runs/x"], None, "--out"),
        (["--core=lstm,gur"], None, "core=gur: .*did you mean 'gru'"),
        (["--num-envs=0,2"], None, "num_envs=0: num_envs = 0: it must be at least 1"),
        (["--leraning-rate=1,2"], None, "did you mean"),
        (["--task.horizon=5,-1"], None, "task.horizon=-1: delayed-cue: horizon is -1"),
        (["--env=t-maze"], None, "the env is delayed-cue, and --env says t-maze"),
        (["--config=absent.yaml"], None, "absent.yaml: there is no such file"),
    ],
)
def test_what_cannot_be_meant(flags, seeds, message):
    with pytest.raises(ConfigError, match=message):
        make_plan("delayed-cue", flags, seeds)


def test_no_env():
    with pytest.raises(ConfigError, match="which env"):
        make_plan(None, ["--core=lstm,gru"])


def test_several_envs():
    plan = make_plan("delayed-cue,t-maze", ["--core=lstm,gru"])
    assert [(v.env, v.folder) for v in plan.variants] == [
        ("delayed-cue", "env=delayed-cue,core=lstm"),
        ("delayed-cue", "env=delayed-cue,core=gru"),
        ("t-maze", "env=t-maze,core=lstm"),
        ("t-maze", "env=t-maze,core=gru"),
    ]
    assert plan.variants[3].flags == ("--core=gru",)


def test_folders_can_be_made_and_told_apart():
    plan = make_plan("delayed-cue", ["--init-from", "../a/b,..-a-b,x y,X-y,.."])
    folders = [variant.folder for variant in plan.variants]
    assert folders == [
        "init_from=..-a-b",
        "init_from=..-a-b-2",
        "init_from=x-y",
        "init_from=X-y-2",
        "init_from=",
    ]
    assert make_plan("delayed-cue", []).variants[0].folder == "runs"
    long = make_plan("delayed-cue", ["--init-from", f"{'a' * 300},{'a' * 301}"])
    assert len({variant.folder for variant in long.variants}) == 2
    assert max(len(variant.folder) for variant in long.variants) < 200


def test_the_plan_as_json_and_its_folder():
    plan = make_plan("delayed-cue", ["--core=lstm,gru"], 2)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    again = make_plan("delayed-cue", ["--core=lstm,gru"], 2)
    assert plan.default_folder == again.default_folder
    assert plan.default_folder.as_posix().startswith("runs/sweep-delayed-cue-")
    other = make_plan("delayed-cue", ["--core=lstm,gru"], 3)
    assert other.default_folder != plan.default_folder
    for folder in ("..", "a/b", ""):
        data = plan.to_json()
        data["variants"][0]["folder"] = folder
        with pytest.raises(ValueError, match="name of a folder"):
            Plan.from_json(data)


def test_config_files_belong_to_the_plan(tmp_path):
    file = tmp_path / "base.yaml"
    file.write_text("env: delayed-cue\nsteps: 100\n")
    plan = make_plan(None, [f"--config={file}", "--core=lstm,gru"])
    assert plan.variants[0].env == "delayed-cue"
    assert plan.files == {str(file): "env: delayed-cue\nsteps: 100\n"}
    file.write_text("env: delayed-cue\nsteps: 200\n")
    assert make_plan(None, [f"--config={file}", "--core=lstm,gru"]) != plan


@pytest.mark.parametrize(
    ("env", "flags", "message"),
    [
        ("delayed-queue", [], "delayed-queue"),
        ("absent_module:Env", [], "there is no module 'absent_module'"),
        ("delayed-cue", ["--minibatches=1,9999"], "minibatches=9999: "),
        ("delayed-cue", ["--init-from=absent"], "absent"),
    ],
)
def test_the_check_makes_every_agent(env, flags, message):
    """What no parser can know is known before the first run starts, too."""
    *good, bad = make_plan(env, [*flags, "--num-envs=2", "--rollout=8", "--chunk=8"]).variants
    for variant in good:
        check(variant, variant.flags)
    with pytest.raises(RecollectError, match=message):
        check(bad, bad.flags)


def test_the_check_tells_what_was_given():
    (variant,) = make_plan("delayed-cue", ["--threads=1", "--num-envs=2"]).variants
    assert check(variant, variant.flags).given.keys() == {"threads", "num_envs"}
