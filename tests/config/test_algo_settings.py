"""The setting ``algo``: by flags, files and keywords, and whose settings are whose."""

from __future__ import annotations

import pytest

from recollect.config.impala import ImpalaConfig
from recollect.config.ppo import PPOConfig
from recollect.config.settings import build
from recollect.config.toml_yaml import config_text, read_config, read_layer
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError
from recollect.training.parse_config import parse_config


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", PPOConfig()),
        ("--algo impala", ImpalaConfig()),
        ("--algo impala --rho-clip 2 --gamma 0.9", ImpalaConfig(rho_clip=2.0, gamma=0.9)),
        ("--rho-clip=2 --algo=impala", ImpalaConfig(rho_clip=2.0)),
        ("--algo.name impala --algo.rho-clip 2", ImpalaConfig(rho_clip=2.0)),
        ("--algo impala --algo.clip 0.1", ImpalaConfig(clip=0.1)),
        ("--algo impala --clip none", ImpalaConfig()),
        ("--algo ppo --algo.lr 1e-4", PPOConfig(learning_rate=1e-4)),
        ("--algo.value-clip 0.2", PPOConfig(value_clip=0.2)),
    ],
)
def test_by_flags(line, expected):
    """S000-26: every spelling leads to the algorithm's own config."""
    assert parse_config(line.split(), env="CartPole-v1").config.algo == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("algo: impala\nrho_clip: 2", ImpalaConfig(rho_clip=2.0)),
        ("algo: {name: impala, rho_clip: 2}", ImpalaConfig(rho_clip=2.0)),
        ("algo.name: impala\nalgo: {clip: 0.1}", ImpalaConfig(clip=0.1)),
        ("algo:", PPOConfig()),
    ],
)
def test_by_files(tmp_path, text, expected):
    """S000-26: a name, a section, or both."""
    path = tmp_path / "run.yaml"
    path.write_text(text)
    assert TrainConfig().override(**read_config(path)).algo == expected
    if text == "algo: impala\nrho_clip: 2":
        toml = tmp_path / "run.toml"
        toml.write_text('algo = "impala"\nrho_clip = 2')
        assert read_config(toml) == read_config(path)


@pytest.mark.parametrize("algo", [PPOConfig(value_clip=0.3), ImpalaConfig(rho_clip=3.0, clip=0.1)])
def test_what_is_written_is_read_back(tmp_path, algo):
    """S000-26."""
    path = tmp_path / "config.yaml"
    path.write_text(config_text(TrainConfig(algo=algo), "t-maze"))
    settings = {name: value for name, value in read_config(path).items() if name not in ("env", "preset")}
    assert TrainConfig().override(**settings).algo == algo


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--rho-clip 1", "--rho-clip: ppo has no such setting, impala has: .* choose --algo impala"),
        ("--algo impala --value-clip 1", "--value-clip: impala has no such .*, ppo has: .* --algo ppo"),
        ("--algo imapla", r"there is no such algorithm \(did you mean 'impala'\?\); choose ppo, impala"),
        ("--algo.rho 1", r"--algo.rho: there is no such flag"),
    ],
)
def test_what_is_wrong_is_told(line, words):
    """S000-26: whose a setting is, and how to choose that one."""
    with pytest.raises(ConfigError, match=words):
        parse_config(line.split(), env="CartPole-v1")


def test_a_file_s_setting_of_another_algorithm(tmp_path):
    """The file and the key are named, and the fix is written as files have it."""
    path = tmp_path / "run.yaml"
    path.write_text("rho_clip: 2")
    with pytest.raises(ConfigError, match=r"run\.yaml: rho_clip: ppo has .* choose algo: impala"):
        read_config(path)


def test_another_algorithm_takes_the_old_one_s_settings_along(tmp_path):
    """As another core does: what was written for PPO is no choice for IMPALA."""
    path = tmp_path / "run.yaml"
    path.write_text("algo: {name: ppo, epochs: 8, value_clip: 0.2}\nsteps: 5")
    parsed = parse_config(["--config", str(path), "--algo", "impala"], env="CartPole-v1")
    assert (parsed.config.algo, parsed.config.steps) == (ImpalaConfig(), 5)
    assert any("algo is impala" in note for note in parsed.notes)
    assert build([read_layer(path)]).given["epochs"] == 8
