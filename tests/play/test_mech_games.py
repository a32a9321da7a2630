"""Games of trained runs in the mech arena: recorded, checked, shown and linked by the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recollect.acting.mech_games import record_games, side_of
from recollect.acting.recording import record_env
from recollect.cli import main
from recollect.envs.versus import Versus
from recollect.errors import ConfigError
from recollect.reports import write_report
from recollect.tasks import make_task
from recollect.tasks.mech import MechArena
from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.recording import play_again
from recollect.tasks.mech.replays import load
from tests.support.agents import small_agent

SMALL: dict[str, Any] = {"mechs": 2, "limit": 4, "maps": 1}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "mechs"
    small_agent("mech", run=str(path), env_kwargs=SMALL)
    return path


@pytest.fixture(scope="module")
def agent() -> Any:
    return small_agent("mech", env_kwargs=SMALL, last_action_reward=True)


def test_a_run_is_recorded_checked_and_shown(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "game.json"
    assert main(["play", str(run), "--replay", str(file), "--episodes", "2", "--seed", "7"]) == 0
    assert "game-2.json" in capsys.readouterr().out
    first, second = load(file), load(tmp_path / "game-2.json")
    assert [(r.seed, r.episode, r.decisions) for r in (first, second)] == [(7, 0, 16), (7, 1, 16)]
    assert first.players == ("mechs, 64 steps", "mechs, 64 steps")
    assert main(["play", str(file), "--check"]) == 0
    assert "reproduced" in capsys.readouterr().out
    assert main(["play", str(file)]) == 0
    assert "<title>" in (tmp_path / "game.html").read_text()
    assert main(["play", str(file), "--out", str(tmp_path / "new" / "page.html")]) == 0
    assert (tmp_path / "new" / "page.html").is_file()
    changed = json.loads(file.read_text())
    changed["marks"] = changed["marks"][: 8 * 5] + "0" * 8 + changed["marks"][8 * 6 :]
    file.write_text(json.dumps(changed))
    assert main(["play", str(file), "--check"]) == 1
    assert "from decision 5 of 16" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["RUN", "--check"], "is for a replay"),
        (["RUN", "--replay", "game.txt"], "name it game.json"),
        (["RUN", "--replay", "game.json", "--episodes", "0"], "games = 0"),
        (["missing.json"], "cannot be read"),
        (["missing.json", "--replay", "other.json"], "leave it out"),
        (["missing.json", "--task.mechs", "3"], "leave it out"),
    ],
)
def test_wrong_calls_are_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert main(["play", *(str(run) if flag == "RUN" else flag for flag in flags)]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.iterdir())


def test_another_env_has_no_replays(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    small_agent("delayed-cue", run=str(tmp_path / "cue"))
    assert main(["play", str(tmp_path / "cue"), "--replay", str(tmp_path / "game.json")]) == 2
    assert "mech arena" in capsys.readouterr().err


def test_the_memory_norms_are_those_of_the_recorded_states(agent: Any):
    """Of the state that each decision starts from, as in a trace; NaN once a mech is dead."""
    with agent.opened(1) as env:
        (replay,) = record_games(agent.network, env, seed=4)
        traces = record_env(agent.network, env, seed=4)
    play_again(replay)
    assert [trace.agent for trace in traces] == ["blue_0", "blue_1", "red_0", "red_1"]
    for row, trace in enumerate(traces):
        lived = len(trace)
        expected = np.linalg.norm(trace.memory, axis=1)
        np.testing.assert_allclose(replay.extras["memory"][:lived, row], expected, rtol=1e-5)
        np.testing.assert_allclose(replay.extras["value"][:lived, row], trace.value, rtol=1e-4, atol=1e-5)
        assert np.isnan(replay.extras["memory"][lived:, row]).all()
    assert replay.extras["memory"][0].max() == 0
    assert replay.extras["memory"][1:].max() > 0


def test_one_side_of_a_game_against_a_player():
    """All actions are recorded, and the numbers of the policy are on its side."""
    agent = small_agent("mech", env_kwargs=SMALL)
    whole = make_task("mech", 1, **SMALL)
    assert isinstance(whole, MechArena)
    env = Versus(whole, whole.opponent("bot"), first_slot=1)
    assert side_of(env) == "red"
    assert side_of(MechArena(1, **SMALL)) is None
    (replay,) = record_games(agent.network, env, seed=2, names=("bot", "policy"))
    play_again(replay)
    assert replay.players == ("bot", "policy")
    assert np.isnan(replay.extras["memory"][:, :2]).all()
    assert np.isfinite(replay.extras["memory"][:, 2:]).all()
    arena = MechArena(1, **SMALL)
    arena.reset(2)
    assert torch.equal(torch.from_numpy(replay.actions["ewar"][0, :2]), MechBot(arena).play()["ewar"][:2])


def test_several_policies_are_refused():
    policies = {"blue": "blue_*", "red": "red_*"}
    agent = small_agent("mech", env_kwargs=SMALL, policies=policies)
    with agent.opened(1) as env, pytest.raises(ConfigError, match="policies='shared'"):
        record_games(agent.network, env)


def test_the_report_keeps_games_and_links_their_viewers(run: Path, tmp_path: Path):
    page = write_report(run)
    names = sorted(path.name for path in (run / "replays").iterdir())
    assert names == ["game-1.html", "game-1.json", "game-2.html", "game-2.json", "index.json"]
    for name in ("game-1", "game-2"):
        play_again(load(run / "replays" / f"{name}.json"))
        assert f'"href":"replays/{name}.html"' in page.read_text()
    before = {path: path.stat().st_mtime_ns for path in (run / "replays").iterdir()}
    elsewhere = write_report(run, tmp_path / "a b" / "report.html")
    assert before == {path: path.stat().st_mtime_ns for path in (run / "replays").iterdir()}  # kept
    href = json.loads(elsewhere.read_text().split('id="data">')[1].split("</script>")[0])["replays"][0][
        "href"
    ]
    assert (elsewhere.parent / href).resolve() == run / "replays" / "game-1.html"
    # A link in place of a file is refused, and a damaged index names nothing.
    (run / "replays" / "index.json").write_text('{"format": 1, "files": ["../../x.json"]}')
    assert '"replays":[]' in write_report(run, tmp_path / "c.html", play=False).read_text()


def test_the_picture_has_both_sides_and_the_places():
    """Blue starts at the bottom left; the picture is as small as a trace needs it."""
    arena = MechArena(1, mechs=5, maps=1)
    arena.reset(0)
    image = arena.picture()
    assert image.shape == (400, 400, 3)
    assert image.dtype == np.uint8
    is_blue = (image[..., 2].astype(int) - image[..., 0]) > 100
    is_red = (image[..., 0].astype(int) - image[..., 2]) > 100
    assert is_blue[200:, :200].sum() == is_blue.sum() > 100
    assert is_red[:200, 200:].sum() == is_red.sum() > 100
    x, y = float(arena.x[0, 0, 0]), float(arena.y[0, 0, 0])
    row, column = int((50 - y) * 4), int((x + 50) * 4)
    assert is_blue[row - 3 : row + 4, column - 3 : column + 4].sum() > 20
