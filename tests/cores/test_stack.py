"""A stack of cores, cores inside cores, and the ways in which users write them."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.config.core_choice import as_config, known
from recollect.config.policy import PolicyConfig
from recollect.config.serialise import as_mapping, config_from_json, config_to_json, policy_config_from_json
from recollect.config.toml_yaml import config_text, read_config
from recollect.config.train import TrainConfig
from recollect.cores import CORES, PRESETS, GRUConfig, LSTMConfig, PMMConfig, StackConfig, make_core
from recollect.errors import ConfigError
from recollect.tasks import make_task
from recollect.training.parse_config import parse_config
from recollect.training.presets import preset
from tests.support.helpers import make_policy


def core_of(*flags: str):
    """The core that a command line asks for."""
    return parse_config(list(flags), env="t-maze").given["core"]


def test_the_stream_goes_past_every_core():
    """A core that answers nothing leaves the stream as it was; without residuals it blocks it."""
    core = StackConfig(cores=("gru", "gru"), hidden=6, layer_norm=False).build(6)
    for parameter in core.parameters():
        torch.nn.init.zeros_(parameter)
    x, first = torch.randn(4, 2, 6), torch.zeros(4, 2, dtype=torch.bool)
    assert torch.equal(core.unroll(x, core.initial_state(2), first)[0], x)
    blocked = StackConfig(cores=("gru", "gru"), hidden=6, layer_norm=False, residual=False).build(6)
    for parameter in blocked.parameters():
        torch.nn.init.zeros_(parameter)
    assert not blocked.unroll(x, blocked.initial_state(2), first)[0].any()


def test_names_take_the_width_of_the_stack():
    """A name is a kind; a config says more, and is taken as it is."""
    core = StackConfig(cores=("gru", LSTMConfig(hidden=5), "none"), hidden=7).build(3)
    assert [part.output_size for part in core.cores] == [7, 5, 7]
    assert core.output_size == 7
    assert tree.spec(core.initial_state(2)) == {
        "0": ((1, 7), torch.float32),
        "1.0": ((1, 5), torch.float32),
        "1.1": ((1, 5), torch.float32),
    }


def test_a_part_that_says_nothing_of_its_width_has_that_of_the_whole():
    """However it is written: as a name, a mapping, or by a flag of its own."""
    for cores in (("gru",), ({"name": "gru", "chrono": 10},)):
        assert StackConfig(cores=cores, hidden=7).parts()[0].hidden == 7
    assert PMMConfig(hidden=7, controller={"name": "gru", "chrono": 10}).part().hidden == 7
    assert PMMConfig(hidden=7, controller={"name": "gru", "hidden": 5}).part().hidden == 5
    core = core_of(
        "--core", "pmm", "--core.hidden", "7", "--core.controller", "gru", "--core.controller.chrono", "9"
    )
    assert core.controller == GRUConfig(hidden=7, chrono=9)


@pytest.mark.parametrize("part", [5, None, 1.5])
def test_a_part_that_is_no_core(part):
    for config in (PMMConfig(controller=part), StackConfig(cores=("gru", part))):
        with pytest.raises(ConfigError, match=r"core\.(controller|cores\[1\]) is .*needs a name"):
            make_core(config, 3)


def test_reaching_reaches_the_parts():
    far = StackConfig(cores=("gru", GRUConfig(hidden=5), "none"), hidden=7).reaching(50)
    assert far.cores[:2] == (GRUConfig(hidden=7, chrono=50), GRUConfig(hidden=5, chrono=50))
    assert (
        preset("delayed-cue", {"core": "stack", "env_kwargs": {"horizon": 200}})["core"].cores[0].chrono
        == 200
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_a_preset_is_a_name_for_settings(name):
    """It is made by its name as by its settings, alone and inside others."""
    core = make_core(name, 3)
    assert core.config == PRESETS[name]
    assert type(PRESETS[name]) in CORES.values()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"hidden": 3}, "needs a name"),
        ({"name": "grru"}, "'gru'"),
        ({"name": "gru", "hiden": 3}, "'hidden'"),
    ],
)
def test_mappings_that_cannot_be_meant(spec, words):
    with pytest.raises(ConfigError, match=words):
        as_config(spec)
    with pytest.raises(ConfigError, match=words):
        StackConfig(cores=(spec,))


def test_stacks_that_cannot_be_meant():
    for cores in ((), "gru"):
        with pytest.raises(ConfigError, match="list"):
            StackConfig(cores=cores)
    with pytest.raises(ConfigError, match="'mamba'"):
        make_core(StackConfig(cores=("mambo",)), 3)


NESTED = [
    "gru",
    GRUConfig(hidden=3),
    StackConfig(cores=("gru", LSTMConfig(hidden=3), StackConfig(cores=("none",), hidden=2))),
    *PRESETS.values(),
]


@pytest.mark.parametrize("core", NESTED, ids=str)
def test_saved_and_read_again(core, tmp_path):
    """Configs inside configs survive JSON and YAML."""
    assert as_config(as_mapping(core)) == core
    config = TrainConfig(policy=PolicyConfig(core=core))
    path = tmp_path / "config.yaml"
    path.write_text(config_text(config, "t-maze"))
    assert read_config(path)["core"] == core
    data = config_to_json(config, make_policy(make_task("t-maze", 1), core).config)
    again = policy_config_from_json(data, "here")
    assert config_from_json(data, again).policy.core == core


def test_code_inside_a_config_is_code():
    """A factory in a stack cannot be written down, and nothing pretends that it was."""
    core = StackConfig(cores=("gru", GRUConfig().build))
    assert as_mapping(core) is None
    config = TrainConfig(policy=PolicyConfig(core=core))
    assert "core: custom" in config_text(config, "t-maze")
    assert (
        config_to_json(config, make_policy(make_task("t-maze", 1), core).config)["policy"]["core"] == "custom"
    )


def test_flags_reach_the_cores_inside():
    """As ``--core.cores.1.hidden 64``, by number, with the name of the part in every error."""
    assert core_of("--core", "stack", "--core.cores", "gru,lstm").cores == ("gru", "lstm")
    core = core_of("--core", "stack", "--core.cores", "gru,lstm", "--core.cores.1.hidden", "64")
    assert core.parts() == [GRUConfig(), LSTMConfig(hidden=64)]
    inner = [name for name, kind in known.items() if "controller" in getattr(kind, "__slots__", ())]
    for name in inner:
        got = core_of("--core", name, "--core.controller", "gru", "--core.controller.hidden", "9")
        assert got.controller == GRUConfig(hidden=9)
    for flag, words in {
        "--core.cores.2.hidden": "0 to 1",
        "--core.cores.one.hidden": "0 to 1",
        "--core.cores.0.hiden": "'hidden'",
        "--core.coores.0.hidden": "'cores'",
        "--core.hidden.x": "no core",
    }.items():
        with pytest.raises(ConfigError, match=words):
            core_of("--core", "stack", flag, "3")
