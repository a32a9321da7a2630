"""Frames of an env stand at their steps and change nothing."""

from __future__ import annotations

import pytest

from recollect.errors import EnvError
from recollect.play import record_film
from recollect.play.trace import record
from tests.support.agents import AnySpace
from tests.support.drawing import Drawing, Misdrawn, Undrawn, new_agent


def test_frames_stand_at_their_steps():
    """One before every step, and the one after the last, which autoreset would swallow."""
    film = record_film(new_agent(Drawing), episodes=3)
    assert film.frames is not None
    assert film.fps == 50
    for trace, frames in zip(film.traces, film.frames, strict=True):
        assert len(trace) == 4
        assert [int(frame.image[0, 0, 0]) for frame in frames] == [0, 10, 20, 30, 40]
        assert frames[0].image.shape == (24, 48, 3)


def test_frames_change_nothing():
    """The filmed episodes are the recorded ones, with the env's options and the config's wrapper."""
    agent = new_agent(Drawing, last_action_reward=True, env_kwargs={"last_step": 6})
    film = record_film(agent, episodes=2, seed=3)
    assert [t.to_json() for t in film.traces] == [t.to_json() for t in record(agent, episodes=2, seed=3)]
    assert film.frames is not None
    assert len(film.frames[1]) == 7
    assert record_film(agent, frames=False).frames is None
    assert len(record_film(agent, env_kwargs={"last_step": 2}).traces[0]) == 2


def test_a_cut_episode_has_its_frames():
    film = record_film(new_agent(Drawing), episodes=2, max_steps=3)
    assert [len(trace) for trace in film.traces] == [3]
    assert film.frames is not None
    assert [len(frames) for frames in film.frames] == [4]


def test_envs_without_frames():
    assert record_film(new_agent("t-maze")).frames is None
    assert record_film(new_agent(AnySpace)).frames is None
    assert record_film(new_agent(Drawing(), num_envs=1, minibatches=1)).frames is None, (
        "an env object is in the mode it was made in"
    )


def test_frames_that_cannot_be_drawn():
    with pytest.raises(EnvError, match=r"^Undrawn cannot render its frames here: easel.*--text"):
        record_film(new_agent(Undrawn))
    with pytest.raises(EnvError, match=r"^render\(\) of Misdrawn returned float64 \[4, 4, 3\]"):
        record_film(new_agent(Misdrawn))
    assert record_film(new_agent(Undrawn), frames=False).traces
