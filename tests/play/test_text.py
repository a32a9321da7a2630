"""Episodes as text: stretches fold, no step is lost, every kind of action fits the terminal."""

from __future__ import annotations

import functools
import io
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from rich.console import Console

from recollect.agent import Agent
from recollect.base.formatting import percent, short
from recollect.config.train import TrainConfig
from recollect.play import show
from recollect.play.text import Line, MemoryBar, folded, lines_of, without_middle
from recollect.play.trace import Trace, record
from recollect.play.words import choices, ending, most_active
from tests.support.agents import ACTIONS, OBSERVATIONS, AnySpace
from tests.support.drawing import new_agent


def printed(traces: list[Trace], width: int = 80, **kwargs: Any) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False)
    show(traces, console, **kwargs)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_stretches_are_folded_and_no_step_is_lost():
    keys = "a" + "b" * 5 + "c" * 4 + "b" * 9
    lines = [Line(step, key=(key,)) for step, key in enumerate(keys)]
    short_lines = folded(lines)
    shown = [(line.step, line.count) for line in short_lines]
    assert shown == [
        (0, 0),
        (1, 0),
        (2, 3),
        (5, 0),
        (6, 0),
        (7, 0),
        (8, 0),
        (9, 0),
        (10, 0),
        (11, 7),
        (18, 0),
    ]
    assert sum(line.count or 1 for line in short_lines) == len(keys)


def test_the_middle_of_a_long_episode_is_left_out():
    lines = folded([Line(step, key=(step if step < 90 else 90,)) for step in range(100)])
    cut = without_middle(lines, most=20)
    assert sum(line.count or 1 for line in cut) == 100
    assert len(cut) == 21
    assert [line.alike for line in cut if line.count] == [False, True]
    assert without_middle(lines, most=len(lines)) == lines


def test_text_of_a_built_in_task():
    agent = new_agent("delayed-cue", env_kwargs={"horizon": 40})
    traces = record(agent, episodes=2)
    text = printed(traces)
    assert max(map(len, text.splitlines())) <= 80
    assert "Episode 2 of 2" in text
    assert "steps like this" in text
    assert text.count("query") == 2
    for trace in traces:
        assert ending(trace) in text
        last = next(line for line in text.splitlines() if "query" in line)
        assert percent(np.exp(traces[0].log_prob[-1])) in last
        assert f"{traces[0].value[-1]:.2f}" in last
    everything = printed(traces, fold=False)
    assert "like this" not in everything
    assert sum(line.strip().split(" ")[0].isdigit() for line in everything.splitlines()) == 84


def test_steps_fold_only_if_they_saw_did_and_earned_the_same():
    trace = record(new_agent("delayed-cue", env_kwargs={"horizon": 20}))[0]
    same = lines_of(trace)[1:21]
    assert len({line.key[0] for line in same}) == 1
    trace.reward[10] = 0.5
    assert [line.step for line in folded(lines_of(trace)) if not line.count].count(10) == 1


def test_without_memory_no_bar():
    text = printed(record(new_agent("delayed-cue", core="none")))
    assert "memory" not in text
    assert "▁" not in text


def test_memory_bar_shows_size_and_sign():
    trace = record(new_agent("delayed-cue"))[0]
    trace.memory[:] = 0
    trace.memory[:, 3] = np.linspace(-1, 2, len(trace))
    trace.memory[1, 5] = 0.1
    assert most_active([trace], 2)[0].tolist() == [3, 5]
    bar = MemoryBar([trace], 2)
    assert bar.text(trace, 0).plain == "▅▁"
    assert bar.text(trace, 1).plain[1] == "█", "every unit is shown against its own largest"
    assert bar.text(trace, len(trace) - 1).plain == "█▁"
    assert [str(span.style) for span in bar.text(trace, 0).spans] == ["bright_blue", "dim"]
    assert str(bar.text(trace, len(trace) - 1).spans[0].style) == "dark_orange"


def test_colours_only_in_a_terminal():
    traces = record(new_agent("delayed-cue"))
    plain, coloured = (io.StringIO() for _ in range(2))
    show(traces, Console(file=plain, width=80))
    show(traces, Console(file=coloured, width=80, force_terminal=True, color_system="standard"))
    assert "\x1b" not in plain.getvalue()
    assert "\x1b[94m" in coloured.getvalue()
    assert "orange is" in coloured.getvalue()
    assert "orange is" not in plain.getvalue()


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("action", ACTIONS)
def test_text_of_every_kind_of_action(action, width):
    agent = new_agent(functools.partial(AnySpace, OBSERVATIONS["dict"], ACTIONS[action]))
    text = printed(record(agent), width)
    assert max(map(len, text.splitlines())) <= width
    assert "return" in text


def test_large_values_and_rewards_fit_80_columns():
    """The columns stay aligned, and the memory is whole."""
    trace = record(new_agent("delayed-cue", env_kwargs={"horizon": 3}))[0]
    trace.value[:] = [-1_312_297.1, 785_011.4, 0.5, 12.0, -9_999.5]
    trace.reward[:] = [-43_210.0, 1e7, 0, 1, -123_456.0]
    rows = [line for line in printed([trace]).splitlines() if line.strip()[:1].isdigit()]
    assert len(rows) == 5
    assert len({len(row) for row in rows}) == 1, "aligned"
    assert len(rows[0]) <= 80
    assert all("…" not in row and row[-1] in "▁▂▃▄▅▆▇█" for row in rows)
    assert "-43,210" in rows[0]
    assert "785,011" in rows[1]


def test_choices_name_what_the_env_got():
    space = gym.spaces.Tuple([gym.spaces.Discrete(3, start=7), gym.spaces.MultiDiscrete([2, 4])])
    trace = record(new_agent(functools.partial(AnySpace, None, space)), deterministic=False)[0]
    for step in range(len(trace)):
        pick, one, two = choices(trace, step)
        assert pick.labels == ["7", "8", "9"]
        assert [pick.labels[pick.index], [one.index, two.index]] == [
            str(trace.action[step][0]),
            trace.action[step][1],
        ]
    assert str(choices(record(new_agent("t-maze"))[0], 0)[0]).split()[0] in "forward left back right"


@pytest.mark.parametrize("algo", ["r2d2", "iqn"])
def test_the_values_of_all_actions_are_shown(algo):
    """In place of the chosen one's probability; of a single part the text ranks them."""
    for space, count in ((gym.spaces.Discrete(3, start=7), 1), (gym.spaces.MultiDiscrete([2, 4]), 2)):
        config = TrainConfig().override(algo=algo, core="gru", num_envs=2, threads=1)
        agent = Agent.create(functools.partial(AnySpace, None, space), config)
        trace = record(agent)[0]
        for step in range(len(trace)):
            made = choices(trace, step)
            assert [choice.kind for choice in made] == ["values"] * count
            taken = sum(choice.numbers[choice.index] for choice in made)
            assert np.isclose(taken, trace.value[step], atol=1e-5), "the value of the action"
            assert all(choice.numbers[choice.index] == max(choice.numbers) for choice in made), "greedy"
        text = printed([trace], width=120)
        if count == 1:
            best = max(range(3), key=lambda i: choices(trace, 0)[0].numbers[i])
            assert f"{best + 7}: {best + 7} {short(trace.value[0])}, " in text
        else:
            assert "(value " in text


def test_numbers_in_few_letters():
    assert [short(x) for x in (0, 1, -0.5, 0.021, 12.345, 416.2, 3e7)] == [
        "0",
        "1",
        "-0.5",
        "0.021",
        "12.35",
        "416",
        "3.00e+07",
    ]
    assert [percent(p) for p in (0, 0.001, 0.5, 0.999, 1)] == ["0%", "<1%", "50%", "100%", "100%"]
