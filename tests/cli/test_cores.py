"""``recollect cores``: every core with its size, and the story of each."""

from __future__ import annotations

import json

import pytest

from recollect.cli import main
from recollect.config.core_choice import core_config, known
from recollect.cores import make_core


def output(capsys, *args: str) -> str:
    assert main(["cores", *args]) == 0
    return capsys.readouterr().out


def test_the_table_has_every_core(capsys):
    """Name, weights and bytes of state, as they are."""
    text = output(capsys)
    lines = {line.split()[0]: line for line in text.splitlines() if line.split() and line[0] != " "}
    assert set(known) <= set(lines)
    for name in known:
        weights = sum(p.numel() for p in make_core(name, 64).parameters())
        assert f" {weights:,} " in lines[name]
    assert "1,024 B" in lines["lstm"]
    assert "A preset: stack with cores mamba and gru" in " ".join(text.split())
    assert "The GRU of Cho et al. (2014)" in " ".join(text.split())


def test_the_figures_for_programs(capsys):
    """S004-4: the leaves of every state, with shape and type; sizes follow the flags."""
    found = json.loads(output(capsys, "--json", "--hidden", "32", "--input-size", "8"))
    assert list(found) == list(known)
    assert found["gru"]["weights"] == 3 * 32 * (8 + 32 + 2)
    assert found["gru"]["state_bytes"] == 32 * 4
    assert found["none"]["state"] == {}
    assert found["window"]["state"]["count"] == [[], "int64"]
    assert all(size["output_size"] == (8 if name == "none" else 32) for name, size in found.items())


@pytest.mark.parametrize("name", list(known))
def test_a_core_tells_its_story(name, capsys):
    """Its paper or idea, every setting with its default, and the parts of its state."""
    text = output(capsys, name)
    words = text.replace("[no-]", "").split()
    config = core_config(name)
    for field in getattr(config, "__dataclass_fields__", {}):
        assert f"--core.{field.replace('_', '-')}" in words
    assert f"recollect train delayed-cue --core {name}" in text
    assert "``" not in text


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["mambo"], "did you mean 'mamba'"),
        (["--hidden", "0"], "--hidden 0: it must be at least 1"),
        (["--input-size", "-3"], "--input-size -3"),
        (["slstm", "--hidden", "30"], "core.hidden = 30 is no multiple of core.heads = 4"),
    ],
)
def test_a_wrong_call(args, words, capsys):
    assert main(["cores", *args]) == 2
    assert words in capsys.readouterr().err
