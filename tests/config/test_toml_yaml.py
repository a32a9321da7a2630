"""Config files: what is written is read back; what is wrong is told with file and key."""

from __future__ import annotations

import dataclasses
import warnings

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from recollect.config.policy import EncoderConfig, HeadConfig
from recollect.config.toml_yaml import config_text, read_config, write_config
from recollect.config.train import TrainConfig
from recollect.cores import GRUConfig, LSTMConfig, NoneConfig
from recollect.errors import ConfigError
from tests.support.configs import configs


def read(tmp_path, text, suffix="yaml"):
    path = tmp_path / f"run.{suffix}"
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_config(path)


def refused(tmp_path, text, message, suffix="yaml"):
    with pytest.raises(ConfigError, match=message) as caught:
        read(tmp_path, text, suffix)
    assert f"run.{suffix}" in str(caught.value)


def back(path):
    found = read_config(path)
    assert found.pop("preset") is False, "a preset on top would change the run"
    return found.pop("env", None), TrainConfig().override(**found)


# There and back ------------------------------------------------------------------------------------------


@given(
    config=configs, options=st.dictionaries(st.text("abc", min_size=1), st.integers() | st.text(), max_size=2)
)
@hypothesis_settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
def test_what_is_written_is_read_back(tmp_path, config, options):
    """S000-26: every field of every part."""
    config = dataclasses.replace(config, env_kwargs=options)
    path = write_config(tmp_path / "config.yaml", config, "CartPole-v1")
    assert back(path) == ("CartPole-v1", config)
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), "for other readers too"


def test_every_field_is_written_with_what_it_means():
    """S000-26."""
    lines = config_text(TrainConfig().override(core=LSTMConfig(), encoder=EncoderConfig())).splitlines()
    for kind in (type(TrainConfig().algo), LSTMConfig, EncoderConfig, HeadConfig):
        for field in dataclasses.fields(kind):
            written = [line for line in lines if line.startswith(f"  {field.name}: ")]
            assert written, f"{kind.__name__}.{field.name}"
            assert all("  # " in line for line in written), written


def test_a_run_made_from_a_file_has_its_own_folder(tmp_path):
    path = write_config(tmp_path / "c.yaml", TrainConfig(run="runs/first"), "t-maze")
    assert back(path) == ("t-maze", TrainConfig())


@pytest.mark.parametrize("core", ["none", NoneConfig(), "lstm", LSTMConfig(chrono=100), GRUConfig(hidden=7)])
def test_a_core_stays_what_it_was(tmp_path, core):
    config = TrainConfig().override(core=core)
    assert back(write_config(tmp_path / "c.yaml", config, "t-maze"))[1].policy.core == core


@pytest.mark.parametrize(
    ("config", "what"),
    [
        (TrainConfig().override(core=lambda size: None), "core: custom stands for one made by Python"),
        (TrainConfig().override(encoder=lambda space: None), "encoder: custom stands for one made"),
        (TrainConfig(env_kwargs={"x": object()}), "task: custom stands for options made by Python code"),
    ],
)
def test_code_is_not_written(tmp_path, config, what):
    path = write_config(tmp_path / "c.yaml", config, "t-maze")
    with pytest.raises(ConfigError, match=what):
        read_config(path)


def test_a_policy_and_an_env_made_by_code(tmp_path):
    path = write_config(tmp_path / "c.yaml", TrainConfig(), object(), made_by="custom")
    with pytest.raises(ConfigError, match="policy: custom stands for"):
        read_config(path)
    path = write_config(tmp_path / "c.yaml", TrainConfig(), object())
    assert back(path) == (None, TrainConfig())


# Reading -------------------------------------------------------------------------------------------------

NESTED = """
env: delayed-cue
steps: 300k
task:
  horizon: 40
algo:
  learning-rate: 1e-4
  target_kl: null
  recurrent_mode: full
policy:
  normalise_value: off
core: {name: gru, hidden: 64}
encoder:
  hidden: [32, 16]
  activation: relu
head: {squash: yes}
"""
FLAT = """
env: delayed-cue
steps: 300_000
task: {horizon: "40"}
learning_rate: "1e-4"
target_kl: none
recurrent_mode: full
normalise_value: no
core.name: gru
core.hidden: 6.4e1
encoder.hidden: 32,16
encoder.activation: relu
head.squash: true
"""
TOML = """
env = "delayed-cue"
steps = 300_000
learning_rate = 1e-4
[task]
horizon = 40
[algo]
target_kl = "none"
recurrent_mode = "full"
[policy]
normalise_value = false
[core]
name = "gru"
hidden = 64
[encoder]
hidden = [32, 16]
activation = "relu"
[head]
squash = true
"""


@pytest.mark.parametrize(("text", "suffix"), [(NESTED, "yaml"), (FLAT, "yml"), (TOML, "toml")])
def test_nested_flat_yaml_toml(tmp_path, text, suffix):
    """S000-26: all of them say the same."""
    assert read(tmp_path, text, suffix) == {
        "env": "delayed-cue",
        "steps": 300_000,
        "env_kwargs": {"horizon": 40},
        "learning_rate": 1e-4,
        "target_kl": None,
        "recurrent_mode": "full",
        "normalise_value": False,
        "core": GRUConfig(hidden=64),
        "encoder": EncoderConfig(hidden=(32, 16), activation="relu"),
        "head": HeadConfig(squash=True),
    }


def test_options_of_other_envs_are_passed_on(tmp_path):
    found = read(
        tmp_path, "env: CartPole-v1\ntask: {g: 1e-2, my-key: on, deep: {a: [1]}, core: x, when: '1'}"
    )
    assert found["env_kwargs"] == {"g": 0.01, "my-key": "on", "deep": {"a": [1]}, "core": "x", "when": "1"}


def test_empty_files_and_sections(tmp_path):
    assert read(tmp_path, "") == {}
    assert read(tmp_path, "# nothing\nalgo:\ntask:\nencoder: null\n") == {"encoder": None}
    assert read(tmp_path, "\ufeffsteps: 5") == {"steps": 5}


def test_names_of_other_libraries(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("total_timesteps: 1m\nalgo: {lr: 1e-3}")
    with pytest.warns(UserWarning) as caught:  # noqa: PT030
        assert read_config(path) == {"steps": 1_000_000, "learning_rate": 1e-3}
    assert [str(warning.message) for warning in caught] == [
        f"{path}: total_timesteps is called steps here",
        f"{path}: algo.lr is called learning_rate here",
    ]


def test_a_name_alone_leaves_the_gates_to_the_preset(tmp_path):
    assert read(tmp_path, "core: gru")["core"] == "gru"
    assert read(tmp_path, "core: {name: gru}")["core"] == "gru"
    assert read(tmp_path, "core: null")["core"] == "none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lerning_rate: 1", r"lerning_rate: there is no such setting \(did you mean 'learning_rate'\?\)"),
        ("algo: {lerning_rate: 1}", r"algo.lerning_rate: .* \(did you mean 'learning_rate'\?\)"),
        ("algo: {steps: 1}", "algo.steps: algo has no setting 'steps': it belongs at the top"),
        ("policy: {gamma: 1}", "policy.gamma: policy has no setting 'gamma': it belongs in algo"),
        ("hidden: 5", r"hidden: .* \(did you mean core.hidden or encoder.hidden or head.hidden\?\)"),
        (
            "core: {name: gru, forget_bias: 1}",
            "the core gru has no setting 'forget_bias'; its settings are hidden, layers",
        ),
        ("core: {hiden: 4}", r"core.hiden: the core lstm has no setting 'hiden' \(did you mean 'hidden'\?\)"),
        (
            "core: lsmt",
            r"core lsmt: there is no such core \(did you mean 'lstm'\?\); choose ffm, frames, .*, mamba_gru; "
            r"if it is your own: --import MODULE",
        ),
        ("core: [lstm]", "there is no such core"),
        ("encoder: cnn", "there is no such encoder"),
        ("encoder: {hidden: wide}", "encoder.hidden wide: it needs a list"),
        ("head: {squash: perhaps}", "head.squash perhaps: choose one of auto, true, false"),
        ("steps: many", "steps many: it needs a whole number, such as"),
        ("steps: 1.5", "steps 1.5: it needs a whole number"),
        ("recurrent_mode: fulll", "choose one of none, stored_state, burn_in, full"),
        (
            "env: t-maze\ntask: {horizon: 5}",
            "task.horizon: t-maze has no option 'horizon'; its options are size",
        ),
        ("task: t-maze", "task is a section: give it names and values; the name of the env goes into env"),
        ("head: 5", "there is no such head"),
        ("head: {gian: 5}", "head has no setting 'gian'.*did you mean 'gain'"),
        ("ppo: {clip: 1}", "ppo is a section: .* such as algo.learning_rate"),
        ("batch_size: 5", "batch_size: batch_size is counted in other units here: use `minibatches`"),
        ("foo: {a: 1}", "foo: there is no such setting"),
        ("foo.bar: 1", "there is no section 'foo'"),
        ("steps: 1\nsteps: 2", "line 2: steps is given twice"),
        (
            "learning_rate: 1\nalgo: {learning_rate: 2}",
            "algo.learning_rate and learning_rate are the same setting",
        ),
        ("lr: 1\nlearning_rate: 2", "learning_rate and lr are the same"),
        ("- steps", "it needs names and values"),
        ("1: 2", "1 is no name of a setting"),
        ("steps: [", "line 1, column 9: this is no YAML"),
        ("steps: \x00", "this is no YAML"),
        ("steps: !!python/object/apply:os.getcwd []", "this is no YAML"),
        ("run: 5", "run 5: it needs text or none: put it in quotes"),
        ("env: 5", "env 5: it needs text"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_key(tmp_path, text, message):
    """S003-17: unknown keys are refused."""
    refused(tmp_path, text, message)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match=r"nope.yaml: there is no such file \(looked in"):
        read_config(tmp_path / "nope.yaml")
    refused(tmp_path, "{}", r"a config file ends in .toml, .yaml, .yml", suffix="json")
    refused(tmp_path, "steps = ", "this is no TOML", suffix="toml")
    (tmp_path / "run.yaml").write_bytes(b"steps: \xff")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config(tmp_path / "run.yaml")
