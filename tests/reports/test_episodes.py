"""Episodes in reports: how they are packed, and how a report plays them."""

from __future__ import annotations

import base64
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import recollect as rc
from recollect.reports import play_episodes, write_report
from recollect.reports.episodes import CELLS, pack, read_episodes
from recollect.reports.task_facts import FACTORS, known_task, memory_lengths
from recollect.training.run_folder import Run
from tests.support.report_runs import data_of, make_config, make_run, make_trace, write

# Episodes --------------------------------------------------------------------------------------------


def _memory(packed: dict[str, Any]) -> np.ndarray:
    """The memory [T, U] that the page will show."""
    memory = packed["memory"]
    cells = np.frombuffer(base64.b64decode(memory["data"]), "<i2").reshape(memory["units"], packed["steps"])
    return (cells / 32767 * np.array(memory["peak"])[:, None]).T


def test_the_memory_survives_packing():
    trace = make_trace()
    packed = pack(trace)
    np.testing.assert_allclose(_memory(packed), trace["memory"], atol=1e-4)
    assert packed["memory"]["names"][3:5] == ["h[3]", "c[0]"]
    assert packed["words"]["texts"] == ["cue 1", "blank", "query"]
    assert packed["first"] == [0]


def test_a_huge_memory_keeps_its_most_active_units():
    steps, units = 500, 1000
    values = np.random.default_rng(0).normal(size=(steps, units)) * np.linspace(2, 1, units)
    packed = pack(make_trace(steps, units, memory=values.tolist()))
    assert packed["memory"]["units"] == CELLS // steps
    assert packed["memory"]["names"][0] == "h[0]"
    assert any("most active" in note for note in packed["notes"])


def test_pictures_and_wide_vectors_are_thinned():
    picture = {"name": "camera", "kind": "image", "shape": [8, 8, 3], "png": "x" * 40_000}
    wide = {"name": "wide", "kind": "vector", "values": [0.5] * 10_000}
    one = {"name": "one", "kind": "discrete", "value": 3, "n": 8}
    packed = pack(make_trace(20, obs=[[picture, wide, one]] * 20))
    camera, vector, discrete = packed["obs"]
    assert (camera["every"], len(camera["pngs"])) == (2, 10)
    assert len(vector["values"][0]) == 3000
    assert discrete["values"] == [3] * 20


def test_files_that_are_no_episodes_are_told_not_raised(tmp_path: Path):
    folder = make_run(tmp_path / "run", traces=[make_trace()]) / "episodes"
    (folder / "half.json").write_text('{"format": 1, "rew')
    write(folder / "other.json", {"format": 99})
    write(folder / "broken.json", {"format": 1, "reward": [1.0]})
    episodes, problems = read_episodes(folder)
    assert len(episodes) == 1
    assert len(problems) == 3
    assert any("broken.json cannot be shown" in text for text in problems)


@pytest.mark.parametrize("steps", ["abc", [], {}, math.inf, math.nan, -1])
def test_an_episode_of_no_checkpoint_is_told_not_raised(tmp_path: Path, steps: Any):
    folder = make_run(tmp_path / "run", traces=[make_trace(), make_trace(checkpoint_steps=steps)])
    data = data_of(write_report(folder, play=False))
    assert len(data["episodes"]) == 1
    (note,) = data["episode_notes"]
    assert note.startswith("1.json cannot be shown")


def test_episodes_nested_too_deep_or_of_overflowing_numbers_are_told_not_raised(tmp_path: Path):
    folder = make_run(tmp_path / "run", traces=[make_trace() | {"units": 10**400}]) / "episodes"
    (folder / "deep.json").write_text('{"format": 1, "reward": ' + "[" * 200_000 + "]" * 200_000 + "}")
    episodes, problems = read_episodes(folder)
    assert episodes == []
    assert len(problems) == 2


def test_lists_of_numbers_are_no_words():
    trace = make_trace(60, words=[f"[{t} 0.5]" for t in range(60)])
    assert pack(trace)["words"] is None


def test_agents_of_one_episode_share_its_number_and_its_limits(tmp_path: Path):
    """In the order of their files, by number; the limits of an episode hold for all of its agents."""
    units = CELLS // 100
    traces = [
        make_trace(100, units, agent=f"a{i % 12}", episode=i // 12, memory=np.eye(100, units).tolist())
        for i in range(24)
    ]
    traces += [make_trace(agent=None), make_trace(agent=None)]
    for i, trace in enumerate(traces):
        write(tmp_path / f"report-{i}.json", trace)
    episodes, problems = read_episodes(tmp_path)
    assert problems == []
    assert [one["number"] for one in episodes] == [0] * 12 + [1] * 12 + [2, 3]
    assert [one["agent"] for one in episodes] == [f"a{i}" for i in range(12)] * 2 + [None] * 2
    assert episodes[0]["memory"]["units"] == units // 12


# Playing ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "tiny"
    settings: dict[str, Any] = {"num_envs": 4, "rollout": 16, "chunk": 16, "epochs": 1, "threads": 1}
    rc.train("delayed-cue", steps=64, env_kwargs={"horizon": 4}, run=str(path), progress=False, **settings)
    return path


def test_a_report_plays_once_and_reports_success_by_memory_length(
    trained: Path, monkeypatch: pytest.MonkeyPatch
):
    data = data_of(write_report(trained))
    assert [episode["steps"] for episode in data["episodes"]] == [6, 6, 6]
    assert data["episodes"][0]["words"]["texts"][1:] == ["blank", "query"]
    lengths = data["lengths"]
    assert (lengths["option"], lengths["trained"], lengths["episodes"]) == ("horizon", 4, 100)
    assert lengths["length"] == [1, 2, 4, 6, 8, 12, 16]
    assert lengths["memoryless"] == [0.5] * 7
    assert all(
        low <= mean <= high for low, mean, high in zip(lengths["low"], lengths["mean"], lengths["high"])
    )

    monkeypatch.setattr(play_episodes, "load", lambda *_, **__: pytest.fail("it played again"))
    again = data_of(write_report(trained))
    assert again["lengths"] == lengths
    assert again["episode_notes"] == []


def test_another_checkpoint_is_played_anew(trained: Path, monkeypatch: pytest.MonkeyPatch):
    write_report(trained)
    for path in (trained / "episodes").iterdir():
        write(path, json.loads(path.read_text()) | {"checkpoint_steps": 1})
    loaded = []
    monkeypatch.setattr(
        play_episodes, "load", lambda path, **_: loaded.append(path) or pytest.fail("stop here")
    )
    with pytest.raises(pytest.fail.Exception):
        write_report(trained)
    assert loaded


def _twice(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the page of a run shows, and then, after the run went back and made its last steps again."""
    settings: dict[str, Any] = {"num_envs": 4, "rollout": 16, "chunk": 16, "epochs": 1, "threads": 1}
    settings |= {"learning_rate": 0.1, "checkpoint_every": 64, "run": str(path), "progress": False}
    rc.train("CartPole-v1", steps=192, **settings)
    before = data_of(write_report(path))
    rc.resume(path, checkpoint=64, progress=False)
    return before, data_of(write_report(path, play=False))


def test_episodes_of_weights_that_are_no_more_are_neither_shown_nor_kept(tmp_path: Path):
    """A run that went back comes to the same steps with other weights, on an env with episodes of its own."""
    run = tmp_path / "run"
    before, between = _twice(run)
    assert Run(run).checkpoint("last").name == "000000000192"
    assert len(before["episodes"]) == 3
    assert before["episode_notes"] == []
    assert between["episodes"] == []
    assert "deleted" in between["episode_notes"][0]
    after = data_of(write_report(run))
    assert [episode["checkpoint_steps"] for episode in after["episodes"]] == [192] * 3
    assert after["episode_notes"] == []
    assert [e["value"] for e in after["episodes"]] != [e["value"] for e in before["episodes"]]


def test_success_by_memory_length_belongs_to_the_weights(trained: Path):
    write_report(trained)
    file = trained / play_episodes.LENGTHS
    kept = file.read_text()
    assert data_of(write_report(trained, play=False))["lengths"] is not None
    write(file, json.loads(kept) | {"weights": "those of another day"})
    assert data_of(write_report(trained, play=False))["lengths"] is None
    write(file, json.loads(kept) | {"checkpoint_steps": 10**6})  # it was dropped
    assert data_of(write_report(trained, play=False))["lengths"] is None
    assert data_of(write_report(trained))["lengths"] is not None
    assert file.read_text() == kept


def test_of_fewer_episodes_than_before_none_is_left_over(trained: Path, monkeypatch: pytest.MonkeyPatch):
    write_report(trained)
    (trained / "episodes" / "report.json").unlink()
    record = play_episodes.record
    monkeypatch.setattr(play_episodes, "record", lambda *args, **named: record(*args, **named)[:1])
    assert len(data_of(write_report(trained))["episodes"]) == 1


def test_what_cannot_be_played_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = make_run(tmp_path / "code", env="my_module:Env")
    (code / "checkpoints" / "000000000005").mkdir(parents=True)
    assert f"recollect report {code} --env=my_module:Env" in data_of(write_report(code))["episode_notes"][0]
    bare = make_run(tmp_path / "bare")
    data = data_of(write_report(bare))
    assert "no checkpoint" in data["episode_notes"][0]
    assert data["length_notes"] == data["episode_notes"]
    (bare / "checkpoints" / "000000000005").mkdir(parents=True)
    note = data_of(write_report(bare))["episode_notes"][0]
    assert note.startswith("Playing with checkpoint 5 failed")
    monkeypatch.setattr(play_episodes, "play", lambda _: pytest.fail("it played"))
    data = data_of(write_report(bare, play=False))
    assert data["episode_notes"] == []
    assert "without --no-play" in data["length_notes"][0]
    pole = make_run(tmp_path / "pole", env="position-cartpole", config=make_config(env_kwargs={}))
    assert data_of(write_report(pole))["length_notes"] == []  # it has no length of memory


@pytest.mark.parametrize(
    ("env", "option"), [("t-maze", "length"), ("repeat-previous", "k"), ("delayed-cue", "horizon")]
)
def test_the_lengths_of_memory_surround_the_trained_one(env: str, option: str):
    task = known_task(env, {})
    assert task is not None
    found, trained, lengths = memory_lengths(task)
    assert found == option
    assert trained in lengths
    assert max(lengths) == FACTORS[-1] * trained
    assert memory_lengths(known_task("position-cartpole", {}))[2] == []  # pyright: ignore[reportArgumentType]
