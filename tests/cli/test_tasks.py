"""``recollect tasks``: the table and the stories, true and within 80 columns."""

from __future__ import annotations

import re

import pytest

from recollect.base.formatting import short_count
from recollect.cli import main
from recollect.cli import tasks as command
from recollect.tasks import TASKS, make_task, task_options
from recollect.training.presets import preset


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def shown(capsys, *args: str) -> str:
    assert main(["tasks", *args]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    return out


def test_the_table_has_every_task(capsys):
    """Name, id, sizes with their options, how far to remember, best and memoryless return, preset."""
    out = shown(capsys)
    for task in TASKS.values():
        assert f"{task.name}  ({task.id})" in out
    rows = [line.split() for line in out.splitlines()]
    assert ["medium", "cues", "4", "horizon", "100", "100", "1", "0.25"] in [row[:8] for row in rows]
    assert ["easy*", "length", "10", "10", "1", "0.5"] in [row[:6] for row in rows]
    assert ["-", "none", "1", "500", "?"] in [row[:5] for row in rows]


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("which", [0, -1])
def test_the_preset_is_told_in_words(name, which):
    """All of it, and nothing else, for the first size and the last one."""
    size = [*TASKS[name].Options.sizes][which] if "size" in task_options(TASKS[name]) else ""
    chosen = preset(name, {"env_kwargs": {"size": size}} if size else {})
    words = command._preset(TASKS[name], size)
    assert ("whole rollouts" in words) == (chosen.get("recurrent_mode") == "full")
    assert ("open gates" in words) == ("core" in chosen)
    for key, value in chosen.items():
        if key == "steps":
            assert f"{short_count(value)} steps" in words
        elif key not in ("recurrent_mode", "core"):
            assert str(value) in words
    assert (words == "defaults") == (not chosen)


@pytest.mark.parametrize(
    ("number", "words"), [(100_000, "100k"), (1_000_000, "1m"), (1500, "1,500"), (7, "7")]
)
def test_counts_are_short(number, words):
    assert short_count(number) == words


@pytest.mark.parametrize("name", TASKS)
def test_a_task_tells_its_story(name, capsys):
    """Rules, spaces, options, an episode in words, and the command that trains it."""
    out = shown(capsys, name)
    made = make_task(name, 1)
    assert "Rules" in out
    assert "".join(str(made.observation_space).split()) in "".join(out.split())
    assert f"at most {made.max_episode_steps} steps" in out
    for option in task_options(TASKS[name]):
        assert f"task.{option.replace('_', '-')}" in out
    assert f"recollect train {name}" in out
    assert re.search(r"its return is -?[\d.,]+\.", out)
    assert shown(capsys, TASKS[name].id) == out


def test_the_episode_is_a_real_one():
    """As many steps as it takes, folded where they repeat, with the sum of the rewards."""
    lines = list(command._episode(make_task("delayed-cue", 1, horizon=30)))
    assert lines[0].split()[:4] == ["0", "sees", "cue", lines[0].split()[3].rstrip(";") + ";"]
    assert any("sees query" in line for line in lines)
    assert len(lines) <= command.SHOWN_STEPS + 2
    assert "The episode terminates" in lines[-1]
    cut = list(command._episode(make_task("t-maze", 1, length=3)))
    assert "time limit" in cut[-1] or "terminates" in cut[-1]
    long = list(command._episode(make_task("position-pendulum", 1)))
    assert any("more like these" in line for line in long)
    assert long[-2].split()[0] == "199"


def test_an_unknown_task_is_a_wrong_call(capsys):
    assert main(["tasks", "tmaze"]) == 2
    assert "did you mean 't-maze'?" in capsys.readouterr().err


def test_letters_that_cannot_be_shown_have_names(capsys, monkeypatch):
    """A terminal without Unicode gets the names of the suits."""
    monkeypatch.setattr("rich.console.Console.encoding", "ascii")
    assert "SUIT}" in shown(capsys, "repeat-first")
