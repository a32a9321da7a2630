"""The tasks on the path of a GPU: a step reads no number, and the stream is the same."""

from __future__ import annotations

import pytest
import torch

from tests.support.captured import Settled
from tests.support.task_worlds import NAMES, copied, enough, random_actions, record, same, small


@pytest.mark.parametrize("name", NAMES)
def test_a_step_reads_nothing(name, unread):
    """S002-14: resets by selection give what resets of a few rows give."""
    plain, task = small(name, 7), small(name, 7)
    actions = random_actions(plain, min(enough(plain), 120))
    assert same(plain.reset(3), task.reset(3))
    want = record(plain, actions)
    got = []
    with unread():
        for action in actions:
            with Settled():
                got.append(copied(task.step(action)))
    assert same(got, want)
    assert any(step["first"].any() for step in want) or plain.max_episode_steps > 120


@pytest.mark.parametrize("name", NAMES)
def test_no_row_is_cut_twice_within_the_gap(name):
    """What ``truncation_gap`` says holds, and without one nothing is cut."""
    task = small(name, 16)
    task.reset(0)
    steps = 60 if task.truncation_gap is None else 3 * task.truncation_gap + 5
    last = torch.full((16 * task.agents,), -1)
    closest = None
    for t, action in enumerate(random_actions(task, min(steps, 1600))):
        cut = task.step(action).truncated
        if task.truncation_gap is None:
            assert not cut.any()
            continue
        for row in cut.nonzero().flatten().tolist():
            if last[row] >= 0:
                closest = min(closest or 10**9, t - int(last[row]))
            last[row] = t
    assert closest is None or closest >= (task.truncation_gap or 0)
    if name in ("position-pendulum", "forage", "t-maze", "treasure-hunt", "mech"):
        assert closest == task.truncation_gap, "and no larger number would do"
