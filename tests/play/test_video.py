"""Pictures show every step, and videos open."""

from __future__ import annotations

import functools
import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest

from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.play import Film, record_film, write_film
from recollect.play.trace import record
from tests.support.agents import ACTIONS, OBSERVATIONS, AnySpace
from tests.support.drawing import Drawing, new_agent

Image = pytest.importorskip("PIL.Image")


def test_gif_has_a_picture_for_every_step(tmp_path):
    film = record_film(new_agent(Drawing), episodes=2)
    path = write_film(film, tmp_path / "new" / "a.gif", fps=20)
    with Image.open(path) as gif:
        assert gif.n_frames == 10
        assert gif.size == (800, 460)
        durations, greys = [], []
        for i in range(gif.n_frames):
            gif.seek(i)
            durations.append(gif.info["duration"])
            greys.append(gif.convert("RGB").getpixel((200, 245))[0])
    assert durations == [50, 50, 50, 50, 1200] * 2
    assert np.abs(np.array(greys) - [0, 10, 20, 30, 40] * 2).max() <= 4, "the env's own frames"
    assert [p.name for p in path.parent.iterdir()] == ["a.gif"], "nothing is left beside it"


@pytest.mark.parametrize(
    "task", ["delayed-cue", "t-maze", "repeat-first", "position-cartpole", "position-pendulum"]
)
def test_gif_of_built_in_tasks(task, tmp_path):
    film = record_film(new_agent(task), max_steps=6)
    with Image.open(write_film(film, tmp_path / "a.gif")) as gif:
        assert gif.n_frames == len(film.traces[0]) + 1
        assert gif.info["duration"] == pytest.approx(1000 / 6, abs=10)


@pytest.mark.parametrize("observation", ["image", "dict"])
@pytest.mark.parametrize("action", ACTIONS)
def test_pictures_of_every_kind(action, observation):
    from recollect.play.draw import Painter

    settings = {"core": "none"} if action == "box" else {}
    agent = new_agent(functools.partial(AnySpace, OBSERVATIONS[observation], ACTIONS[action]), **settings)
    stage = Painter(Film(record(agent, deterministic=False)))
    pictures = [np.asarray(stage.picture(0, step)) for step in range(6)]
    for before, after in itertools.pairwise(pictures):
        assert (before != after).any()


def test_the_heatmap_has_the_present_at_the_right():
    from recollect.play.draw import NEGATIVE, POSITIVE, RIGHT, TOP, Painter

    trace = record(new_agent("delayed-cue"))[0]  # 12 steps, so that columns are 16 wide
    trace.memory[:] = -1
    trace.memory[5] = 1
    stage = Painter(Film([trace]))
    assert stage.column == 16
    rows = [np.asarray(stage.picture(0, step))[TOP + 20] for step in (4, 5, 7)]
    assert rows[0][783].tolist() == list(NEGATIVE)
    assert rows[1][783].tolist() == list(POSITIVE)
    assert rows[1][783 - 16].tolist() == list(NEGATIVE)
    assert rows[2][783].tolist() == list(NEGATIVE)
    assert rows[2][783 - 32].tolist() == list(POSITIVE)
    assert rows[2][RIGHT + 2].tolist() not in (list(POSITIVE), list(NEGATIVE)), "before the episode: nothing"


def test_an_episode_longer_than_the_heatmap():
    from recollect.play.draw import Painter

    film = Film(record(new_agent("delayed-cue", env_kwargs={"horizon": 150})))
    stage = Painter(film)
    assert stage.column == 4
    assert stage.picture(0, 151).size == stage.picture(0, 0).size


def test_mp4(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    import imageio_ffmpeg

    film = record_film(new_agent(Drawing), episodes=2)
    path = write_film(film, tmp_path / "a.mp4", fps=10)
    frames, seconds = imageio_ffmpeg.count_frames_and_secs(str(path))
    assert frames == 2 * (4 + 12), "the picture after an end stays for 1.2 seconds"
    assert seconds == pytest.approx(3.2, abs=0.2)


def test_a_video_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    film = record_film(new_agent(Drawing))
    path = write_film(film, tmp_path / "a.gif")
    before = path.read_bytes()
    monkeypatch.setattr("recollect.play.draw.Painter.picture", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_film(film, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["a.gif", "a.mp4"])
def test_a_video_that_cannot_be_written_is_told(name, tmp_path):
    film = Film(record(new_agent("t-maze")))
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=rf"{name} could not be written: .*writable folder"):
        write_film(film, tmp_path / "file" / name)
    if Path("/proc").is_dir():  # nobody can write there, also not who may write anywhere
        with pytest.raises(StorageError, match=rf"{name} could not be written: .*writable folder") as caught:
            write_film(film, Path("/proc") / name)
        assert "\n" not in str(caught.value), "no words of an encoder"
    (tmp_path / "b.gif").mkdir()
    with pytest.raises(ConfigError, match=r"b\.gif is a folder: name a file in it"):
        write_film(film, tmp_path / "b.gif")


def test_wrong_files_and_speeds(tmp_path):
    film = Film(record(new_agent("t-maze")))
    with pytest.raises(ConfigError, match=r"a\.avi: a video is a \.gif or an \.mp4 file; name it a\.gif"):
        write_film(film, "a.avi")
    for fps in (0, -1, 101, float("nan")):
        with pytest.raises(ConfigError, match="fps ="):
            write_film(film, tmp_path / "a.gif", fps=fps)


@pytest.mark.parametrize(
    ("module", "name", "package"), [("PIL", "a.gif", "pillow"), ("imageio_ffmpeg", "a.mp4", "imageio-ffmpeg")]
)
def test_a_missing_extra_is_named(module, name, package, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n, *a: None if n == module else find(n, *a))
    with pytest.raises(RecollectError, match=rf"need {package}.*recollect\[video\].*--text"):
        write_film(Film(record(new_agent("t-maze"))), tmp_path / name)


def test_a_gym_env_with_its_own_frames(tmp_path):
    """CartPole draws with pygame, which is not ours to demand."""
    pytest.importorskip("pygame")
    film = record_film(new_agent("CartPole-v1"), max_steps=5)
    with Image.open(write_film(film, tmp_path / "a.gif")) as gif:
        assert gif.n_frames == len(film.traces[0]) + 1
