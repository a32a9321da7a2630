"""Config flags: every setting, in every spelling; what is wrong is told; sweeps."""

from __future__ import annotations

import argparse
import dataclasses
import warnings

import pytest
from hypothesis import given

import recollect as rc
from recollect.config.algo_choice import algo_name
from recollect.config.flags import parse_repeated, parse_settings, split_argv, sweep_variants
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.config.train import ALIASES, TrainConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import ConfigError
from recollect.training.parse_config import parse_config
from recollect.training.presets import preset
from tests.support.configs import configs


def parsed_from(line, **more):
    return parse_config(line.split(), **more)


def given_by(line, **more):
    return parsed_from(line, **more).given


def refused(line, message, **more):
    with pytest.raises(ConfigError, match=message):
        parse_config(line.split(), **more)


# Every setting -------------------------------------------------------------------------------------------


def flags_of(config: TrainConfig) -> list[str]:
    """The config as flags, every field of it."""
    found: list[str] = []

    def add(section, part):
        for field in dataclasses.fields(part):
            value = getattr(part, field.name)
            if field.name in ("policy", "algo", "env_kwargs", "vs", "vs_kwargs", "core", "encoder", "head"):
                continue
            text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
            found.append(f"--{section}{field.name.replace('_', '-')}={text}")

    policy = config.policy
    add("", config)
    name = algo_name(config.algo)
    found.append(f"--algo={name}")
    add("algo.", config.algo)
    add("policy.", policy)
    add("head.", policy.head)
    if isinstance(policy.core, str):
        found.append(f"--core={policy.core}")
    else:
        name = type(policy.core).__name__.removesuffix("Config").lower()
        found.append(f"--core.name={name}")
        add("core.", policy.core)
    if isinstance(policy.encoder, EncoderConfig):
        add("encoder.", policy.encoder)
    else:
        found.append(f"--encoder={policy.encoder}")
    return found


@given(configs)
def test_any_config_can_be_given_by_flags(config):
    """S000-26: there and back, every field of every part."""
    assert parse_config(flags_of(config)[::-1]).config == config


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--learning-rate 3e-4", {"learning_rate": 3e-4}),
        ("--learning_rate=3e-4", {"learning_rate": 3e-4}),
        ("--algo.learning-rate 3e-4", {"learning_rate": 3e-4}),
        ("--steps 300k --num-envs 1_024", {"steps": 300_000, "num_envs": 1024}),
        ("--core lstm", {"core": "lstm"}),
        ("--core.hidden 256 --core lstm", {"core": LSTMConfig(hidden=256)}),
        ("--core.chrono none --core gru", {"core": GRUConfig()}),
        ("--core.hidden 8", {"core": LSTMConfig(hidden=8)}),
        ("--core none", {"core": "none"}),
        ("--encoder.hidden 128,64", {"encoder": EncoderConfig(hidden=(128, 64))}),
        (
            "--encoder mlp --encoder.hidden 8",
            {"encoder": EncoderConfig(hidden=(8,), images="never", symbols="never", tokens="never")},
        ),
        ("--encoder none", {"encoder": None}),
        ("--head none", {"head": None}),
        ("--head actor_critic", {"head": "actor_critic"}),
        ("--head actor_critic --head.gain 1", {"head": HeadConfig(gain=1.0)}),
        ("--head.squash true", {"head": HeadConfig(squash=True)}),
        ("--head.squash", {"head": HeadConfig(squash=True)}),
        ("--no-head.squash", {"head": HeadConfig(squash=False)}),
        ("--normalise-value", {"normalise_value": True}),
        ("--no-normalise-value", {"normalise_value": False}),
        ("--normalise-value off --seed 1", {"normalise_value": False, "seed": 1}),
        ("--target-return -200", {"target_return": -200.0}),
        ("--target-kl none", {"target_kl": None}),
        ("--sinks tensorboard,wandb", {"sinks": ("tensorboard", "wandb")}),
        ("--run 2026", {"run": "2026"}),
        ("--task.x -3 --task.y 1e-3", {"env_kwargs": {"x": -3, "y": 1e-3}}),
        ("--task.some-thing [1,2] --task.flag", {"env_kwargs": {"some_thing": [1, 2], "flag": True}}),
        ("--task.text on", {"env_kwargs": {"text": "on"}}),
    ],
)
def test_spellings(line, expected):
    parsed = parse_config(line.split(), env="CartPole-v1")
    assert parsed.given == expected
    assert parsed.config == TrainConfig().override(**expected)
    assert parsed.notes == []


def test_options_of_a_task_have_its_types():
    assert given_by("--task.horizon 1k", env="delayed-cue") == {"env_kwargs": {"horizon": 1000}}
    assert given_by("--task.size hard", env="recollect/TMaze-v0") == {"env_kwargs": {"size": "hard"}}
    refused("--task.horizon long", "--task.horizon long: it needs a whole number or none", env="delayed-cue")
    refused(
        "--task.horison 5",
        r"delayed-cue has no option 'horison' \(did you mean 'horizon'\?\)",
        env="delayed-cue",
    )
    refused(
        "--task.x 5", "position-cartpole has no option 'x'; its options are none", env="position-cartpole"
    )


@pytest.mark.parametrize(("theirs", "ours"), ALIASES.items())
def test_names_of_other_libraries_are_answered_with_ours(theirs, ours):
    """S000-26."""
    flag, name = (f"--{name.replace('_', '-')}" for name in (theirs, ours))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed = parse_config([flag, "1"], base=TrainConfig().override(chunk=1))
    assert list(parsed.given) == [ours]
    assert parsed.notes == [f"{flag} is called {name} here"]


def test_american_spelling():
    parsed = parse_config(["--normalize-value", "--seed", "1"])
    assert parsed.given == {"normalise_value": True, "seed": 1}
    assert parsed.notes == ["--normalize-value is called --normalise-value here"]


# What is wrong -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "--lerning-rate 1",
            r"--lerning-rate: .* \(did you mean --learning-rate\?\). recollect train --help",
        ),
        ("--zzz", "--zzz: there is no such flag. recollect train --help"),
        ("--algo.clp 1", r"\(did you mean --algo.clip\?\)"),
        ("--hidden 5", r"\(did you mean --core.hidden or --encoder.hidden or --head.hidden\?\)"),
        ("--horizon 5", r"\(did you mean --task.horizon\?\)"),
        (
            "--core gru --core.forget-bias 1",
            "the core gru has no setting 'forget_bias'; its settings are hidden",
        ),
        (
            "--core.hiden 1",
            r"the core lstm has no setting 'hiden' \(did you mean 'hidden'\?\); its settings are hidden",
        ),
        ("--core none --core.hidden 1", "the core none has no setting 'hidden'; its settings are none"),
        (
            "--core lsmt",
            r"no such core \(did you mean 'lstm'\?\); choose ffm, frames, gru, .*, mamba_gru; "
            r"if it is your own: --import MODULE",
        ),
        ("--core custom", "made by Python code"),
        ("--steps 1 --steps 2", "--steps is given twice"),
        ("--steps 1 --steps 1", "--steps is given twice"),
        ("--lr 1 --learning-rate 1", "--learning-rate and --lr are the same setting"),
        ("--clip 1 --algo.clip 1", "--algo.clip and --clip are the same setting"),
        ("--core lstm --core.name gru", "--core.name and --core are the same setting"),
        ("--normalise-value --no-normalise-value", "are the same setting"),
        ("--steps", "--steps needs a value"),
        ("--steps --seed 1", "--steps needs a value"),
        ("--no-steps", "--steps is no switch and needs a value"),
        ("--no-normalise-value=true", "takes no value: write --normalise-value true"),
        ("--normalise-value perhaps", "'perhaps' after --normalise-value is neither a flag nor the value"),
        ("-steps 4", r"did you mean --steps\?"),
        ("t-maze", "'t-maze' is neither a flag nor the value of one"),
        (
            "--recurrent-mode ful",
            r"choose one of none, stored_state, burn_in, full \(did you mean 'full'\?\)",
        ),
        ("--steps 1.5", "--steps 1.5: it needs a whole number, such as"),
        ("--steps 0", "steps = 0: it must be at least 1"),
        ("--batch-size 64", "--batch-size: batch_size is counted in other units here: use `minibatches`"),
        ("--ppo 5", "--ppo is a section: .* such as --algo.learning-rate"),
        ("--head 5", "--head 5: there is no such head; choose actor_critic"),
        ("--env-kwargs 5", "such as --task.horizon"),
        ("--ppo.clip 1", r"no section 'ppo' \(did you mean 'algo'\?\)"),
        ("--env-kwargs.x 1", r"no section 'env_kwargs' \(did you mean 'task'\?\)"),
        ("--policy.core gru", "--policy.core: there is no such flag"),
        ("--foo.bar 1", "there is no section 'foo'; the sections are"),
        ("--config", "--config needs a value"),
        ("--config nope.toml", "nope.toml: there is no such file"),
    ],
)
def test_what_is_wrong_is_told(line, message):
    """S003-17, S000-26: unknown flags, values that do not fit and doubles are refused."""
    refused(line, message)


# Files, env, presets -------------------------------------------------------------------------------------


def test_flags_go_on_top_of_files(tmp_path):
    first, second = tmp_path / "a.yaml", tmp_path / "b.toml"
    first.write_text("env: t-maze\nsteps: 5\ngamma: 0.5\ncore: {name: lstm, hidden: 8}\nlr: 1")
    second.write_text("steps = 6\n[task]\nlength = 7")
    line = f"--gamma 0.6 --config {first} --core.layers 2 --config={second}"
    parsed = parse_config(line.split())
    assert parsed.env == "t-maze"
    assert parsed.given == {
        "steps": 6,
        "gamma": 0.6,
        "learning_rate": 1.0,
        "core": LSTMConfig(hidden=8, layers=2),
        "env_kwargs": {"length": 7},
    }
    assert parsed.notes == [f"{first}: lr is called learning_rate here"]


def test_another_core_or_env_leaves_the_old_ones_settings_out(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("env: delayed-cue\ntask: {horizon: 5}\ncore: {name: lstm, forget_bias: 2}")
    parsed = parse_config(["--config", str(file), "--core", "gru", "--task.length", "9"], env="t-maze")
    assert parsed.given == {"core": "gru", "env_kwargs": {"length": 9}}
    assert parsed.notes == [
        f"core is gru: core.forget_bias of lstm ({file}) are left out",
        f"env is t-maze: task.horizon of delayed-cue ({file}) are left out",
    ]
    same = parse_config(["--config", str(file), "--env", "recollect/DelayedCue-v0", "--core=lstm"])
    assert same.given == {"core": LSTMConfig(forget_bias=2.0), "env_kwargs": {"horizon": 5}}


def test_the_env_is_named_once():
    assert parse_config(["--env", "t-maze"]).env == "t-maze"
    assert parse_config(["--env", "t-maze"], env="t-maze").env == "t-maze"
    refused("--env t-maze", "the env is delayed-cue, and --env says t-maze", env="delayed-cue")


@pytest.mark.parametrize(
    "line",
    ["", "--core gru", "--task.horizon 100", "--task.size hard --core.hidden 8", "--n-envs 4 --chunk 8"],
)
def test_presets_as_in_train(line):
    """What ``recollect.train`` chooses for the same settings."""
    parsed = parse_config(line.split(), env="delayed-cue")
    assert parsed.preset == preset("delayed-cue", parsed.given)
    assert parsed.config == TrainConfig().override(**parsed.given | parsed.preset)


def test_no_presets():
    long = ["--task.horizon", "100"]
    chosen = parse_config(long, env="delayed-cue").preset
    assert set(chosen) == {"recurrent_mode", "num_envs", "core", "steps"}
    assert parse_config(long, env="delayed-cue", presets=False).preset == {}
    assert parse_config([*long, "--no-preset"], env="delayed-cue").preset == {}
    assert parse_config([*long, "--preset", "false"], env="delayed-cue").preset == {}
    assert parse_config(long, env="delayed-cue", base=TrainConfig()).preset == {}


def test_a_file_of_a_run_makes_the_same_run(tmp_path):
    """The preset's choices are in the file; they are not made twice, nor for a core that was plain."""
    from recollect.config.toml_yaml import write_config

    plain = TrainConfig(env_kwargs={"horizon": 1000})
    file = write_config(tmp_path / "config.yaml", plain, "delayed-cue")
    assert parse_config(["--config", str(file)]).config == plain


def test_gates_that_the_preset_could_not_choose_are_named():
    parsed = parsed_from("--task.horizon 100 --core.hidden 8", env="delayed-cue")
    assert parsed.config.policy.core == LSTMConfig(hidden=8)
    assert any("--core.chrono 100" in note for note in parsed.notes)
    parsed = parsed_from("--task.horizon 100 --core.chrono none", env="delayed-cue")
    assert parsed.notes == []


def test_on_top_of_another_config():
    head, core = HeadConfig(gain=0.5), GRUConfig(hidden=8, layers=2)
    base = TrainConfig(env_kwargs={"a": 1}, policy=PolicyConfig(core=core, head=head, encoder="mlp"), seed=3)
    line = "--core.hidden 4 --head.squash false --encoder.hidden 5 --task.b 2 --steps 9"
    parsed = parsed_from(line, base=base)
    assert parsed.config.policy.core == GRUConfig(hidden=4, layers=2)
    assert parsed.config.policy.head == HeadConfig(gain=0.5, squash=False)
    flat = EncoderConfig(hidden=(5,), images="never", symbols="never", tokens="never")
    assert parsed.config.policy.encoder == flat
    assert (parsed.config.env_kwargs, parsed.config.steps, parsed.config.seed) == ({"a": 1, "b": 2}, 9, 3)
    made = TrainConfig().override(core=lambda size: None, encoder=lambda space: None)
    refused("--core.hidden 4", "the core is made by a factory", base=made)
    refused("--encoder.hidden 4", "the encoder is made by a factory", base=made)


def test_settings_alone():
    assert parse_settings(["--max-seconds", "60", "--sinks=wandb"]) == {
        "max_seconds": 60.0,
        "sinks": ("wandb",),
    }
    assert parse_repeated(["--task.horizon", "2k"], env="delayed-cue") == {"env_kwargs": {"horizon": 2000}}
    assert parse_repeated([]) == {"env_kwargs": {}}
    with pytest.raises(ConfigError, match="--steps: there is no such flag here"):
        parse_repeated(["--steps", "5"])


# The command line ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "rest", "flags"),
    [
        ("delayed-cue --steps 5", "delayed-cue", "--steps 5"),
        ("--learning-rate 3e-4 delayed-cue", "delayed-cue", "--learning-rate 3e-4"),
        ("--normalise-value delayed-cue --quiet", "delayed-cue --quiet", "--normalise-value"),
        ("--normalise-value false delayed-cue", "delayed-cue", "--normalise-value false"),
        ("--no-normalise-value delayed-cue", "delayed-cue", "--no-normalise-value"),
        ("--no-preset delayed-cue", "delayed-cue", "--no-preset"),
        ("--core.learned-initial-state t-maze", "t-maze", "--core.learned-initial-state"),
        ("--encoder.layer-norm t-maze", "t-maze", "--encoder.layer-norm"),
        ("--name n --task.x -3 t-maze", "--name n t-maze", "--task.x -3"),
        ("--name=n --steps=4 t-maze", "--name=n t-maze", "--steps=4"),
        ("--steps -- t-maze --x", "-- t-maze --x", "--steps"),
        ("--lerning-rate 5 t-maze -h", "t-maze -h", "--lerning-rate 5"),
    ],
)
def test_values_are_not_taken_for_arguments(argv, rest, flags):
    parser = argparse.ArgumentParser()
    parser.add_argument("env", nargs="?")
    parser.add_argument("--quiet", action="store_true")
    parser.add_argument("--name")
    assert split_argv(argv.split(), parser._option_string_actions) == (rest.split(), flags.split())


# Sweeps --------------------------------------------------------------------------------------------------


def test_sweep():
    line = "--core lstm,gru --lr 3e-4,1e-3 --encoder.hidden 64,64;128 --no-preset --sinks a,b"
    variants = sweep_variants(line.split())
    assert [label for label, _ in variants[:3]] == [
        "core=lstm,learning_rate=0.0003,encoder.hidden=64,64",
        "core=lstm,learning_rate=0.0003,encoder.hidden=128",
        "core=lstm,learning_rate=0.001,encoder.hidden=64,64",
    ]
    assert len(variants) == 8
    assert variants[1][1] == [
        "--core=lstm",
        "--lr=3e-4",
        "--encoder.hidden=128",
        "--no-preset",
        "--sinks=a,b",
    ]


def test_every_variant_is_a_command_line():
    line = "--task.horizon 5,1k --core.hidden 8,16 --normalise-value true,false --target-return -3,none"
    variants = sweep_variants(line.split())
    assert len({label for label, _ in variants}) == len(variants) == 16
    assert variants[-1][0] == "task.horizon=1000,core.hidden=16,normalise_value=false,target_return=none"
    parsed = parse_config(variants[-1][1], env="delayed-cue")
    assert parsed.given == {
        "env_kwargs": {"horizon": 1000},
        "core": LSTMConfig(hidden=16),
        "normalise_value": False,
        "target_return": None,
    }


def test_sweep_of_nothing_and_of_nonsense():
    assert sweep_variants([]) == [("", [])]
    assert sweep_variants(["--seed", "1"]) == [("", ["--seed=1"])]
    assert [flags for _, flags in sweep_variants(["--task.x", "[1,2],3"])] == [
        ["--task.x=[1,2]"],
        ["--task.x=3"],
    ]
    with pytest.raises(ConfigError, match="--steps 1k,1000: a value is listed twice"):
        sweep_variants(["--steps", "1k,1000"])
    with pytest.raises(ConfigError, match="there is nothing between two ','"):
        sweep_variants(["--steps", "1,,2"])


def test_flags_train_the_same_agent():
    """The flags of a run and its keywords give the same config to train with."""
    line = "--steps 1 --rollout 8 --minibatches 1 --task.horizon 40 --parallel rows"
    parsed = parse_config(line.split(), env="delayed-cue")
    agent = rc.train("delayed-cue", progress=False, **parsed.given)
    assert agent.config == parsed.config
