"""The fields of the configs, and the help that is made of them."""

from __future__ import annotations

import argparse
import dataclasses
import io
import re
import subprocess
import sys

import pytest
from rich.console import Console

from recollect.cli import help as fields_help
from recollect.cli.help_texts import EXAMPLES, MOST_USED, TOPICS
from recollect.config.algo_choice import ALGOS
from recollect.config.core_choice import CORES, PRESETS, known
from recollect.config.fields import field_names, fields_of
from recollect.config.flags import parse_settings
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.config.settings import CLASSES
from recollect.config.tasks import TASKS
from recollect.config.train import TrainConfig
from recollect.errors import ConfigError
from recollect.training.parse_config import parse_config

PARTS_OF_A_RUN = CLASSES | dict(ALGOS)


def test_a_field_is_described_by_its_class():
    """S000-26: name, type, default and docstring, base classes included; a field written again replaces."""
    for kind in (*PARTS_OF_A_RUN.values(), *CORES.values(), *TASKS.values()):
        described, made = fields_of(kind), kind()
        assert [field.name for field in described] == [field.name for field in dataclasses.fields(kind)]
        for field in described:
            assert field.doc, f"{kind.__name__}.{field.name} has no docstring"
            if field.name != "policy":  # that of a run gets the algorithm's head
                assert field.default == getattr(made, field.name)
    epochs = {
        name: next(f for f in fields_of(ALGOS[name]) if f.name == "epochs") for name in ("ppo", "impala")
    }
    assert (epochs["ppo"].default, epochs["impala"].default) == (4, 1)
    assert "clip" in epochs["impala"].doc
    assert "clip" not in epochs["ppo"].doc
    (cores, *_) = fields_of(PRESETS["mamba_gru"])
    assert cores.default == ("mamba", "gru"), "the values of a config are its defaults"


def test_the_types_of_fields():
    fields = {field.name: field for kind in PARTS_OF_A_RUN.values() for field in fields_of(kind)}
    assert fields["recurrent_mode"].choices == ["none", "stored_state", "burn_in", "full"]
    assert fields["entropy_schedule"].choices == ["constant", "linear", "cosine"]
    assert fields["normalise_value"].is_switch
    assert not fields["squash"].is_switch
    assert fields["hidden"].is_list


# Help ----------------------------------------------------------------------------------------------------


def shown(*topics, width=80, options=(), chosen=()):
    out = io.StringIO()
    fields_help.render_help(Console(file=out, width=width), topics, options, chosen=chosen)
    return out.getvalue()


def flags_of_everything():
    names = [
        field.name for kind in (TrainConfig, PPOConfig, PolicyConfig) for field in dataclasses.fields(kind)
    ]
    found = [name for name in names if name not in ("policy", "algo", "env_kwargs", "vs_kwargs")]
    found += [f"encoder.{field.name}" for field in dataclasses.fields(EncoderConfig)]
    found += [f"head.{field.name}" for field in dataclasses.fields(HeadConfig)]
    found += [f"core.{field.name}" for kind in CORES.values() for field in dataclasses.fields(kind)]
    found += [f"task.{option}" for task in TASKS.values() for option in field_names(task)]
    return [name.replace("_", "-") for name in found]


def test_every_flag_is_in_the_help():
    """S000-26: nothing is hidden."""
    words = shown("all").replace("[no-]", "").split()
    assert [name for name in flags_of_everything() if f"--{name}" not in words] == []


@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_fits(width):
    text = shown(width=width) + shown("all", width=width)
    wide = [line for line in text.splitlines() if len(line) > width]
    assert wide == [], "no line is cut or wrapped by the terminal"
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_the_first_page_teaches():
    text = shown(options=[("--quiet", "show nothing but errors")])
    assert [example for example, _ in EXAMPLES if example not in text] == []
    assert text.startswith("Examples\n")
    assert "--learning-rate X" in text
    assert "[ppo," in text
    assert "impala: 0.001;" in text, "algorithms with other defaults are named"
    assert "--quiet" in text
    assert len(text.splitlines()) < 60


def test_the_examples_are_right():
    """Every example is parsed as the command line does it."""
    for example, _ in EXAMPLES:
        words = [word for word in example.split()[2:] if "config" not in word]
        env = None if words[0].startswith("--") else words.pop(0)
        assert parse_config(words, env=env).config


@pytest.mark.parametrize("path", MOST_USED)
def test_the_first_flags_exist(path):
    assert path in [entry.path for entry in fields_help.entries()]


def test_topics():
    for topic in TOPICS:
        assert shown(topic)
    assert "--core.forget-bias" in shown("lstm")
    assert "--core.forget-bias" not in shown("gru")
    assert "It has no settings." in shown("none")
    assert "--task.length" in shown("t-maze")
    assert "hard: length 250" in shown("t-maze")
    assert "lr is called --learning-rate here." in shown("lr")
    assert "--core.hidden" in shown("hidden")
    assert "--encoder.hidden" in shown("--hidden")
    assert "--clip" in shown("clip")
    with pytest.raises(ConfigError, match=r"there is no help about 'memry' \(did you mean 'memory'\?\)"):
        shown("memry")


def test_every_field_is_in_one_group():
    found = [entry.path for group in fields_help.groups(fields_help.entries()).values() for entry in group]
    assert sorted(found) == sorted(entry.path for entry in fields_help.entries())
    assert len(found) == len(set(found))


def test_help_about_an_algorithm():
    """Its settings with its own defaults."""
    assert "--rho-clip X" in shown("impala")
    assert "--rho-clip" not in shown("ppo")
    assert "--rho-clip" in shown("algo")
    assert default_in(shown("impala"), "epochs", "impala") == "1"


PARTS = [("core", name) for name in known] + [("algo", name) for name in ALGOS]


def default_in(text: str, flag: str, part: str) -> str | None:
    """What a help text says: the bracket that ends the flag's row, or in it what is said of the part."""
    rows = [" ".join(row.split()) for row in re.split(r"\n\n|\n  (?=\S)", text.replace("[no-]", ""))]
    brackets = [re.search(r"\[([^]]*)\]$", row) for row in rows if row.startswith(f"--{flag} ")]
    if not brackets or brackets[0] is None:
        return None
    said = [words.rpartition(": ") for words in brackets[0][1].split("; ")]
    return next((value for names, _, value in said if names == "" or part in names.split(", ")), None)


@pytest.mark.parametrize(("kind", "name"), PARTS)
def test_the_default_that_help_shows_is_the_one_that_applies(kind, name):
    """Given as a flag, what help says about a part's field changes nothing. On every page."""
    real = known[name]() if kind == "core" else ALGOS[name]()
    pages = {
        "--help": shown(width=200),
        "--help all": shown("all", width=200),
        f"--help {name}": shown(name, width=200),
        f"--{kind} {name} --help": shown(width=200, chosen=[name]),
        f"--{kind} {name} --help all": shown("all", width=200, chosen=[name]),
    }
    for field in dataclasses.fields(real):
        flag = ("core." if kind == "core" else "") + field.name.replace("_", "-")
        found = {page: default_in(text, flag, name) for page, text in pages.items()}
        assert found["--help all"] is not None, flag
        assert found[f"--help {name}"] is not None, flag
        for page, said in found.items():
            if said is not None:
                given = parse_settings([f"--{kind}", name, f"--{flag}={said}"])
                value = given["core"] if kind == "core" else given[field.name]
                value = getattr(value, field.name) if kind == "core" else value
                assert value == getattr(real, field.name), f"{page}: {flag} [{said}]"


def test_the_defaults_of_other_parts_are_said_as_they_are():
    """Of the run, encoder, head and tasks, too."""
    text = shown("all", width=200) + "".join(f"\n\n{shown(name, width=200)}" for name in TASKS)
    for section in ("", "policy", "encoder", "head"):
        made = CLASSES[section]()
        for field in dataclasses.fields(made):
            path = f"{section}." * (section in ("encoder", "head")) + field.name
            said = default_in(text, path.replace("_", "-"), "")
            if said is None:
                assert getattr(made, field.name) in (None, (), {}) or field.name in ("policy", "algo", "head")
            elif path not in ("core", "encoder", "algo"):  # names of parts; the others change nothing
                given = parse_settings([f"--{path.replace('_', '-')}={said}"])
                value = given[section or field.name] if "." in path else given[field.name]
                value = getattr(value, field.name) if "." in path else value
                assert value == getattr(made, field.name), path
    for part in ("core", "algo"):
        said = default_in(text, part, "")
        assert TrainConfig().override(**{part: said}) == TrainConfig(), f"{part} [{said}]"
    assert default_in(text, "encoder", "") == "auto"  # which None means (policy.encoders.make_encoder)
    for name, task in TASKS.items():
        for option in field_names(task):
            said = default_in(shown(name, width=200), f"task.{option.replace('_', '-')}", "")
            if said is not None:
                given = parse_settings([f"--task.{option}={said}"], env=name)["env_kwargs"]
                assert given[option] == getattr(task(), option), f"{name}: {option}"


def test_asking_for_help():
    assert fields_help.wants_help(["delayed-cue", "--steps", "5"]) is None
    assert fields_help.wants_help(["delayed-cue", "--help"]) == ([], [])
    assert fields_help.wants_help(["-h", "core", "t-maze"]) == (["core", "t-maze"], [])
    assert fields_help.wants_help(["--help-all"]) == (["all"], [])
    chosen = ["--core", "lstm,gru", "--algo=impala", "--help", "memory"]
    assert fields_help.wants_help(chosen) == (["memory"], ["lstm", "gru", "impala"])
    with pytest.raises(ConfigError, match=r"--core lsmt: .* \(did you mean 'lstm'\?\)"):
        fields_help.wants_help(["--core", "lsmt", "--help"])


def test_the_commands_own_options():
    parser = argparse.ArgumentParser()
    parser.add_argument("env", help="a task")
    parser.add_argument("--quiet", action="store_true", help="say nothing")
    parser.add_argument("--name", help="of the run")
    parser.add_argument("--secret", help=argparse.SUPPRESS)
    expected = [("ENV", "a task"), ("--quiet", "say nothing"), ("--name NAME", "of the run")]
    assert fields_help.own_options(parser) == expected


def test_help_imports_neither_torch_nor_gymnasium():
    """Neither the help nor splitting a command line imports torch or Gymnasium."""
    code = (
        "import sys\n"
        "from rich.console import Console\n"
        "from recollect.cli.help import render_help\n"
        "from recollect.config import flags\n"
        "render_help(Console(), ['all'])\n"
        "flags.split_argv(['--steps', '5', 't-maze'], [])\n"
        "flags.sweep_variants(['--core', 'lstm,gru'])\n"
        "names = ('torch', 'gymnasium', 'numpy', 'recollect.tasks')\n"
        "heavy = [name for name in names if name in sys.modules]\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
