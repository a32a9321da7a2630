"""``recollect.register``: parts of the user's own, by name, with flags, help, files and errors."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from torch import nn

import recollect as rc
from recollect import cli
from recollect.algos import ppo, r2d2
from recollect.base.parts import PARTS, import_parts
from recollect.config.flags import build_flags, import_named, sweep_variants
from recollect.config.ppo import PPOConfig
from recollect.config.toml_yaml import read_config, write_config
from recollect.errors import ConfigError
from recollect.policy.heads import ActionHead
from recollect.runtimes.inline_collector import InlineCollector
from tests.support.own_parts import TINY, Average
from tests.support.registered import FILE, NAME, forgetting, place

NETWORK = ["--core=average", "--core.width=6", "--encoder=wide", "--encoder.width=5"]
HEAD = ["--head=sharp", "--head.sharpness=3"]
ALGO = ["--algo=cautious", "--caution=3"]


@pytest.fixture
def here(tmp_path):
    with place(tmp_path) as folder:
        yield folder


@pytest.fixture
def registered(here):
    import_parts([FILE])
    return here


def own(name: str):
    """A class of the module."""
    import my_own_parts  # pyright: ignore[reportMissingImports]

    return getattr(my_own_parts, name)


def test_flags_choose_and_set_registered_parts(registered):
    given = build_flags([*NETWORK, *HEAD, *ALGO, "--task.wait", "7"], env="levels/delayed-cue").given
    assert given["core"] == own("AverageConfig")(6)
    assert given["encoder"] == own("WideConfig")(5)
    assert given["head"] == own("SharpConfig")(3.0)
    assert (given["algo"], given["caution"], given["env_kwargs"]) == ("cautious", 3.0, {"wait": 7})
    for flags, words in {
        "--core average --core.width many": "--core.width many: it needs a whole number",
        "--core average --core.width 0": "core.width = 0: it must be at least 1",
        "--core average --core.widht 3": "did you mean 'width'",
        "--encoder wide --encoder.hidden 3": "has no setting 'hidden'",
        "--head sharp --head.sharpness x": "--head.sharpness x: it needs a number",
        "--head sharp --head.gain 3": "head has no setting 'gain'",
        "--caution 3": "ppo has no such setting, cautious has",
        "--algo cautious --caution x": "--caution x: it needs a number",
        "--task.wait x": "--task.wait x: it needs a whole number",
        "--task.weight 3": "levels has no option 'weight'.*did you mean 'wait'",
    }.items():
        with pytest.raises(ConfigError, match=words):
            rc.TrainConfig().override(**build_flags(flags.split(), env="levels/delayed-cue").given)


def test_a_registered_part_has_help(registered, capsys):
    for words, shown in {
        ("average",): "--core.width N .*Number of averages. .*8",
        ("wide",): "--encoder.width N .*Features of the encoder. .*4",
        ("sharp",): "--head.sharpness X .*Multiplies the logits. .*1.0",
        ("cautious",): "--caution X .*Divides the loss. .*2.0",
        ("levels",): "--task.wait N .*Steps to wait. .*5",
        ("all",): "--caution X .*Divides the loss",
    }.items():
        assert cli.main(["train", "--help", *words]) == 0
        assert re.search(shown, " ".join(capsys.readouterr().out.split())), words
    assert cli.main(["train", "--core", "average", "--help", "memory"]) == 0
    out = capsys.readouterr().out
    assert "--core.width" in out
    assert "--core.hidden N" not in out
    assert cli.main(["train", "--head", "sharp", "--help", "network"]) == 0
    out = capsys.readouterr().out
    assert "--head.sharpness" in out
    assert "--head.gain" not in out
    assert cli.main(["cores", "average"]) == 0
    assert "Number of averages" in capsys.readouterr().out


def test_files_keywords_and_json_take_them(registered):
    """A config that is written and read is the same config."""
    algo = own("CautiousConfig")(caution=4.0)
    core, encoder, head = own("AverageConfig")(3), own("WideConfig")(2), own("SharpConfig")(2.0)
    network = rc.PolicyConfig(core=core, encoder=encoder, head=head)
    config = rc.TrainConfig(algo=algo, policy=network, imports=(FILE,))
    assert rc.TrainConfig().override(algo="cautious", caution=4.0).algo == algo
    given = read_config(write_config("written.yaml", config, "t-maze"))
    assert given.pop("env") == "t-maze"
    given.pop("preset")
    assert rc.TrainConfig().override(**given) == config
    assert rc.TrainConfig().override(core={"name": "average", "width": 3}).policy.core["width"] == 3
    nested = build_flags(["--core=stack", "--core.cores=[average, gru]", "--core.cores.0.width=7"]).given
    assert nested["core"].cores[0] == own("AverageConfig")(7)


def test_an_algorithm_names_the_head_of_its_policies(registered):
    """Its settings need no name."""
    given = build_flags(["--algo=cautious", "--head.sharpness=2"]).given
    assert given["head"] == own("SharpConfig")(2.0)
    agent = rc.train("delayed-cue", progress=False, algo="cautious", **TINY)
    assert type(agent.policy.head).__name__ == "Sharp"
    assert agent.policy.config.head == own("SharpConfig")()


def test_a_file_names_its_imports(here):
    """The module is imported before the other settings of the file are read."""
    (here / "run.yaml").write_text(f"imports: {NAME}\nalgo: {{name: cautious, caution: 5}}\n")
    assert read_config("run.yaml")["caution"] == 5
    assert not import_named(["--import", "json"])


def test_an_import_is_no_value_to_compare():
    (variant,) = sweep_variants(["--import=a.py,b.py", "--gamma=0.9"])
    assert variant == ("", ["--import=a.py,b.py", "--gamma=0.9"])


def test_registered_envs_and_runtimes(registered):
    agent = rc.train("levels/delayed-cue", progress=False, env_kwargs={"wait": 3}, **TINY)
    assert agent.evaluate(2).lengths.tolist() == [5, 5]
    usual = rc.train(own("Level")(), progress=False, **TINY)
    assert usual.evaluate(1).lengths.tolist() == [7], "the default of the registered options"
    single = rc.train("single/any", progress=False, env_workers=1, env_kwargs={"length": 3}, **TINY)
    with single:
        assert single.evaluate(1).lengths.tolist() == [3]
    config = rc.TrainConfig(runtime="here", **{key: TINY[key] for key in ("steps", "num_envs", "threads")})
    agent = rc.train("delayed-cue", config=config, progress=False)
    assert isinstance(agent._trainer.collector, InlineCollector)
    with pytest.raises(ConfigError, match=r"levels.*failed.*--task\.NAME"):
        rc.train("levels/delayed-cue", env_kwargs={"weight": 3}, **TINY)


def test_a_loss_of_ones_own_is_what_is_learned(registered):
    """With a caution of 1 it is PPO, to the bit; with another it is not."""

    def weights(algo):
        agent = rc.train("delayed-cue", progress=False, algo=algo, **TINY)
        return [p.sum().item() for p in agent.policy.parameters()]

    assert weights("ppo") == weights(own("CautiousConfig")(caution=1.0))
    assert weights("ppo") != weights(own("CautiousConfig")(caution=1e6))


@dataclass(frozen=True)
class Fine(rc.CoreConfig):
    width: int = 2


@dataclass(frozen=True, kw_only=True)
class Headed(rc.LearnerConfig):
    default_head = "mine"


@dataclass(frozen=True)
class NoDefault(rc.CoreConfig):
    width: int


@dataclass(frozen=True, kw_only=True)
class Clashing(rc.LearnerConfig):
    steps: int = 3


@dataclass(frozen=True, kw_only=True)
class Plain(rc.LearnerConfig):
    pass


@dataclass(frozen=True, kw_only=True)
class Replays(rc.ReplayConfig):
    pass


class NoDataclass(rc.LearnerConfig):
    pass


class Made(Average):
    """Averages of the input."""

    def __init__(self, input_size, config):
        super().__init__(input_size, config.width)


WRONG = [
    (("body", "mine"), {}, Made, "no kind 'body'.*choose core, algo, encoder, head, env, runtime"),
    (("head", "actor_critic"), {"config": Fine}, ActionHead, "'actor_critic' is built in"),
    (("head", "mine"), {}, ActionHead, "is missing: it must be a dataclass"),
    (("head", "mine"), {"config": Fine}, nn.Linear, r"is 'Linear': it must be class Mine\(.*Head\)"),
    (("head", "mine"), {"config": Fine}, lambda space: None, r"called with \(action_space, features, config"),
    (("core", "gru"), {"config": Fine}, Made, "'gru' is built in: choose another name"),
    (("algo", "ppo"), {"config": Plain}, ppo, "'ppo' is built in"),
    (("runtime", "ray"), {}, lambda env, policy, config, rows: None, "'ray' is built in"),
    (("env", "t-maze"), {}, lambda source: None, "'t-maze' has a meaning"),
    (("core", "my core"), {"config": Fine}, Made, "letters, digits"),
    (("core", "mine"), {}, Made, r"is missing: it must be a dataclass.*recollect\.CoreConfig"),
    (("core", "mine"), {"config": dict}, Made, r"is dict: it must be a dataclass"),
    (("core", "mine"), {"config": Plain}, Made, r"is Plain: .*recollect\.CoreConfig"),
    (("core", "mine"), {"config": NoDefault}, Made, "give every field a default"),
    (("core", "mine"), {"config": Fine}, nn.Linear, r"is 'Linear': it must be class Mine\(recollect\.Core\)"),
    (("core", "mine"), {"config": Fine}, lambda x: x, r"cannot be called with \(input_size, config\)"),
    (("algo", "mine"), {"config": NoDataclass}, ppo, "is NoDataclass: it must be a dataclass"),
    (("algo", "mine"), {"config": Clashing}, ppo, "has steps, which is another setting"),
    (("algo", "mine"), {"config": Plain}, nn.Linear(1, 1), "lacks acting, targets, loss"),
    (
        ("algo", "mine"),
        {"config": Replays},
        nn.Linear(1, 1),
        "lacks acting, loss: .* such as recollect.algos.r2d2",
    ),
    (
        ("algo", "mine"),
        {"config": PPOConfig},
        ppo,
        "of the algo 'ppo': give 'mine' one of its own",
    ),
    (("runtime", "mine"), {"config": Fine}, Made, "none of its own"),
    (("runtime", "mine"), {}, lambda env: None, r"cannot be called with \(env, policy, config, rows\)"),
    (("env", "mine"), {"config": Fine}, lambda source, num_envs: None, "cannot be called.*width"),
    (("core", "mine"), {"config": Fine, "accepts": int}, Made, "accepts = .*env adapter"),
]


@pytest.mark.parametrize(("names", "options", "code", "words"), WRONG, ids=[row[3] for row in WRONG])
def test_what_cannot_be_registered_is_told(names, options, code, words):
    with forgetting(), pytest.raises(ConfigError, match=words):
        rc.register(*names, **options)(code)


def test_an_algorithm_on_replay_needs_no_targets():
    with forgetting():
        rc.register("algo", "mine", config=Replays)(r2d2)
        assert rc.TrainConfig().override(algo="mine").algo == Replays()


def test_a_name_is_taken_once_and_a_cell_may_run_again():
    with forgetting():
        rc.register("core", "mine", config=Fine)(Made)
        rc.register("core", "mine", config=Fine)(Made)
        with pytest.raises(ConfigError, match=f"'mine' is registered by {__name__}: choose another name"):
            rc.register("core", "mine", config=Fine)(lambda input_size, config: None)
        assert PARTS["core"]["mine"].code is Made


def test_another_algorithm_may_have_another_head():
    """The default follows the algorithm; a head that was chosen stays."""
    with forgetting():
        rc.register("head", "mine", config=Fine)(ActionHead)
        rc.register("algo", "mine", config=Headed)(ppo)
        headed, usual = rc.TrainConfig(algo="mine"), rc.TrainConfig()
        assert usual.policy.head == rc.HeadConfig()
        assert headed.policy.head == Fine()
        assert usual.override(algo="mine").policy.head == Fine()
        assert headed.override(gamma=0.9).policy.head == Fine()
        assert headed.override(algo="ppo").policy.head == rc.HeadConfig()
        assert usual.override(head="mine").override(gamma=0.9).policy.head == Fine()
        for chosen in (usual.override(head=rc.HeadConfig(gain=0.5)), headed.override(head="actor_critic")):
            assert chosen.override(algo="mine").policy.head == chosen.policy.head
        flags = ["--algo=mine", "--head.width=3"]
        assert build_flags(flags, base=usual).given["head"] == Fine(3)
        assert build_flags(["--head.width=4"], base=headed.override(head=Fine(3))).given["head"] == Fine(4)


def test_unknown_names_are_told():
    """The error lists the known names and says how a part of one's own is found."""
    hint = "if it is your own: --import MODULE"
    known_names = {"algo": "ppo", "core": "lstm", "encoder": "mlp", "head": "actor_critic"}
    for setting, known in (known_names | {"runtime": "processes"}).items():
        with pytest.raises(ConfigError, match=f"{known}.*{hint}"):
            rc.train("delayed-cue", progress=False, **{setting: "my_own"}, **TINY)
    with pytest.raises(ConfigError, match="--import MODULE"):
        rc.train("my_own/env", progress=False, **TINY)
    with pytest.raises(ConfigError, match="there is no module 'no_such'"):
        import_parts(["no_such"])
    with pytest.raises(ConfigError, match="give a module or a file"):
        import_parts(["module:attribute"])


def test_a_runtime_that_makes_no_collector_is_told():
    with forgetting():
        rc.register("runtime", "broken")(lambda env, policy, config, rows: nn.Linear(1, 1))
        config = rc.TrainConfig(runtime="broken")
        with pytest.raises(ConfigError, match=r"made a Linear, which lacks collect, .*Collector"):
            rc.train("delayed-cue", config=config, progress=False)


@pytest.mark.parametrize("name", ["imports", "drop_obs"])
def test_names_are_text(name):
    """A list within the list, as a damaged config may have it, is told."""
    with pytest.raises(ConfigError, match=rf"{name} = \(\['x'\],\): it is a list of names"):
        rc.TrainConfig(**{name: (["x"],)})
