"""No help text names a flag that its command refuses."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from importlib import import_module

import pytest

from recollect.api import CHANGEABLE
from recollect.cli import COMMANDS, main
from recollect.cli.help import entries, written
from recollect.cli.help_texts import TOPICS
from recollect.config.algo_choice import ALGOS
from recollect.config.core_choice import known
from recollect.config.fields import fields_of
from recollect.config.flags import parse_repeated, parse_settings
from recollect.config.own_code import INPUTS
from recollect.config.tasks import TASKS
from recollect.config.train import ALIASES
from recollect.errors import ConfigError
from recollect.sweep.plan import make_plan
from recollect.training.parse_config import parse_config

ENV = "delayed-cue"
VALUES = {
    "ray_address": ["--ray-address=auto", "--runtime=ray"],
    "run": ["--run=folder"],
    "init_from": ["--init-from=folder"],
    "sinks": ["--sinks=tensorboard"],
    "policy": ["--policy=fast"],
    "import": ["--import=json"],
    "vs.lethality": ["--vs.lethality=0.5", "--vs=bot"],
}
"""Settings whose default cannot be given, or would say nothing."""
PLACEHOLDERS = ("--task.NAME", "--vs.NAME", "--vs.OPTION", "--task.OPTION", "--preset", "--config", "--env")
"""No flags by themselves, and settings that every command with settings takes."""


def changeable(words: list[str], env: str) -> None:
    """As ``recollect resume`` takes settings."""
    if fixed := parse_settings(words).keys() - {*CHANGEABLE, "env_kwargs", "imports", *INPUTS}:
        raise ConfigError(f"resume cannot change {fixed}")


TAKES: dict[str, Callable[[list[str], str], object]] = {
    "train": lambda words, env: parse_config(words, env=env),
    "audit": lambda words, env: parse_config(words, env=env),
    "verify": lambda words, env: parse_config(words, env=env),
    "sweep": lambda words, env: make_plan(env, words),
    "resume": changeable,
    "eval": lambda words, env: parse_repeated(words, env=env),
    "play": lambda words, env: parse_repeated(words, env=env),
    "report": lambda words, env: parse_repeated(words),
    "export": lambda words, env: parse_repeated(words),
}
"""How each command reads the flags that its own parser does not know."""


def refusal(command: str, flag: str, env: str = ENV) -> str | None:
    """Why the command does not accept the flag, given with a value that suits it; None if it does."""
    name, _, action = command.partition(" ")
    parser = parser_of(name)
    if action:
        parser = actions_of(name)[action]
    if flag in parser._option_string_actions or flag == "--help":
        return None
    if command not in TAKES:
        return "argparse does not know it"
    try:
        TAKES[command](typed(flag, env), env)
    except ConfigError as error:
        return str(error)
    return None


def parser_of(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    import_module(f"recollect.cli.{command}").configure(parser)
    return parser


def actions_of(command: str) -> dict[str, argparse.ArgumentParser]:
    """The parser of each action of a command that has some, such as ``league show``."""
    found = [one for one in parser_of(command)._actions if isinstance(one, argparse._SubParsersAction)]
    return dict(found[0].choices) if found else {}


CALLS = [*(f"{name} {action}" for name in COMMANDS for action in actions_of(name)), *COMMANDS]
"""The commands, with their actions: these come first, as the longer ones."""


def typed(flag: str, env: str) -> list[str]:
    """The flag with a value, and with the core or algorithm that has it."""
    if flag in PLACEHOLDERS:
        return []
    name = flag.removeprefix("--").replace("-", "_")
    path = ALIASES.get(name, name)
    if path.startswith("task."):
        default = {f"task.{field.name}": written(field.default) for field in fields_of(TASKS[env])}
        return [f"{flag}={default.get(path, '5')}"]  # an example's env may be a foreign one
    if path in VALUES:
        return [VALUES[path][0].replace(path.replace("_", "-"), flag.removeprefix("--")), *VALUES[path][1:]]
    entry = next((entry for entry in entries() if path in (entry.path, f"no_{entry.path}")), None)
    if entry is None:
        return [flag]
    section = path.partition(".")[0]
    kind = f"--{section}" if section in ("core", "encoder", "head", "vs") else "--algo"
    parts = [f"{kind}={entry.owned[0][0]}"] if entry.owned else []
    value = entry.default.split("; ")[0].rpartition(": ")[2]
    return [*parts, flag] if entry.field.is_switch else [*parts, f"{flag}={value}"]


def named_flags(command: str, text: str) -> set[tuple[str, str]]:
    """(command, flag) of every flag in a help text; what follows "recollect NAME" is about that command."""
    found: set[tuple[str, str]] = set()
    for line in text.replace("[no-]", "").splitlines():
        owner = re.search(rf"recollect ({'|'.join(CALLS)})\b", line)
        flags = re.findall(r"(?<![\w-])--[a-z][\w.-]*[\w]", line)
        found |= {(command if owner is None else owner[1], flag) for flag in flags}
    return found


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    assert main(args) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", CALLS)
def test_every_flag_in_a_help_text_is_taken(command, capsys, monkeypatch):
    """On all of its pages, in examples and in texts."""
    monkeypatch.setenv("COLUMNS", "200")
    first = printed(capsys, *command.split(), "--help")
    pages = [(ENV, first)]
    if getattr(import_module(f"recollect.cli.{command.split()[0]}"), "SETTINGS_IN_HELP", False):
        about = [topic for topic in TOPICS if topic != "all"]  # which is all of these
        about += [*known, *ALGOS]
        pages += [(ENV, printed(capsys, command, "--help", topic)) for topic in about]
        pages += [(task, printed(capsys, command, "--help", task)) for task in TASKS]
    named = {
        (owner, flag, task_of(flag, text, env))
        for env, text in pages
        for owner, flag in named_flags(command, text)
    }
    assert len(named) >= first.count("\n  --")
    refused = {(owner, flag): refusal(owner, flag, env) for owner, flag, env in named}
    assert {call: why for call, why in refused.items() if why is not None} == {}


def task_of(flag: str, text: str, env: str) -> str:
    """The env to try a flag with: the one that an example names beside an option of its own."""
    if not flag.startswith("--task."):
        return ENV
    return next((task for task in TASKS if re.search(rf"{task}\b.* {flag} ", text)), env)


def test_a_flag_that_is_refused_is_found():
    """The walk can fail: where a flag is another command's, of no command, or not for a sweep."""
    assert refusal("sweep", "--run") is not None
    assert refusal("resume", "--gamma") is not None
    assert refusal("eval", "--rollout") is not None
    assert refusal("cores", "--steps") is not None
    assert refusal("train", "--learning-speed") is not None
    assert refusal("train", "--run") is None
    text = "  recollect eval RUN --episodes 5\n  --[no-]compile  see recollect train --gamma"
    assert named_flags("sweep", text) == {
        ("eval", "--episodes"),
        ("train", "--compile"),
        ("train", "--gamma"),
    }
