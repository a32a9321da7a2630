"""The examples run from beginning to end."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

import recollect as rc

pytestmark = pytest.mark.usefixtures("warm_children")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LITTLE = ["--steps", "2048"]
SHORT = {
    "audit_script": ["--steps", "8"],
    "callbacks_early_stopping": LITTLE,
    "compare_memory": [*LITTLE, "--seeds", "1"],
    "dict_image": LITTLE,
    "hybrid_action": LITTLE,
    "long_episodes": ["--steps", "512", "--rollout", "128", "--limit", "160"],
    "many_processes": ["--steps", "1024"],
    "mujoco_positions": LITTLE,
    "own_algorithm": LITTLE,
    "own_env": LITTLE,
    "own_pettingzoo_env": LITTLE,
    "own_policy": LITTLE,
    "popgym_env": LITTLE,
    "serve_session": [*LITTLE, "--demo"],
}
"""The arguments with which each is over in seconds."""
SAYS = {
    "audit_script": "Likely cause: a time limit counts as a termination",
    "callbacks_early_stopping": "the end: steps",
    "compare_memory": "The comparison is in",
    "dict_image": "with memory: the gem is found",
    "hybrid_action": "poured bottle",
    "long_episodes": "An episode of 160 steps earns",
    "many_processes": "processes, async: ",
    "mujoco_positions": "without velocities, core none: greedy return",
    "own_algorithm": "REINFORCE: greedy return",
    "own_env": "One game: the lights were",
    "own_pettingzoo_env": "the answer earned",
    "own_policy": "Untrained: sampled return",
    "popgym_env": "with memory: greedy return",
    "serve_session": "After an idle time: HTTP 409",
}
"""What the last part of each prints."""


def load(name: str) -> dict:
    """The functions and classes of an example."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name=name)


def test_the_demo_runs_to_its_end(monkeypatch, tmp_path):
    """With few steps: the table, the episode, both reports and the runs, which no busy machine changes."""
    train, asked = rc.train, []

    def briefly(env: str, **settings: Any) -> rc.Agent:
        asked.append(settings.get("parallel"))
        return train(env, **settings | {"steps": 4096, "progress": False})

    monkeypatch.setattr(rc, "train", briefly)
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "demo.py"), run_name="__main__")
    for report in ("with-memory/report.html", "comparison.html"):
        assert (tmp_path / "runs/demo" / report).stat().st_size > 10_000
    assert rc.load(tmp_path / "runs/demo/with-memory").steps >= 4096
    assert asked == ["rows", "rows"]


@pytest.mark.parametrize("name", sorted(SHORT))
def test_an_example_runs_to_its_end_and_leaves_nothing_behind(name, monkeypatch, tmp_path, capsys):
    """With few steps; what it leaves is the report that it names, and nothing else."""
    if name == "mujoco_positions":
        pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    load(name)["main"](SHORT[name])
    assert SAYS[name] in capsys.readouterr().out
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == (["runs/compare_memory.html"] if name == "compare_memory" else [])


def test_every_example_is_tested_and_documented():
    """A new script in examples/ is run here and shown on the page of examples."""
    found = {path.stem for path in EXAMPLES.glob("*.py")}
    assert found == SHORT.keys() | {"demo"}
    page = (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert [name for name in sorted(found) if f"examples/{name}.py" not in page] == []


@pytest.mark.parametrize("name", sorted(SHORT))
def test_an_example_says_how_to_run_it(name, monkeypatch, capsys):
    """A docstring with the command, and --steps with a default in its help."""
    text = (EXAMPLES / f"{name}.py").read_text()
    assert f"python examples/{name}.py" in text
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    with pytest.raises(SystemExit) as stop:
        load(name)["main"](["--help"])
    assert stop.value.code == 0
    assert "--steps" in capsys.readouterr().out


@pytest.fixture(scope="module")
def server_example():
    """The example, and an agent that has learned nothing."""
    agent = rc.train("delayed-cue", steps=1, rollout=8, chunk=8, num_envs=4, progress=False)
    return load("serve_session"), agent


def test_the_server_keeps_memories_apart(server_example):
    """Interleaved clients get what each would get alone."""
    example, agent = server_example
    obs = agent.make_env(8).reset(3).numpy()
    shared = example["Sessions"](agent, idle_seconds=60, limit=10)
    alone = [agent.session() for _ in range(2)]
    for step, row in enumerate([0, 5, 2, 7]):
        for client in range(2):
            expected = alone[client].act(obs[row + client - 1])
            assert shared.act(str(client), obs[row + client - 1], step == 0) == expected
    memories = [shared._live[str(client)][0].get_memory()["state"] for client in range(2)]
    assert not (memories[0][0] == memories[1][0]).all()


def test_the_server_makes_up_no_memory(server_example):
    """A step in mid-episode needs an episode: unknown, closed, idle and evicted clients are refused."""
    example, agent = server_example
    refused, obs = example["RefusedError"], agent.make_env(1).reset(0)[0].numpy()
    sessions = example["Sessions"](agent, idle_seconds=60, limit=2)
    with pytest.raises(refused) as error:
        sessions.act("a", obs, False)
    assert error.value.status == 409
    for client in "abc":
        sessions.act(client, obs, True)
    with pytest.raises(refused):  # the limit is two: a is gone
        sessions.act("a", obs, False)
    assert sessions.close("b")
    with pytest.raises(refused):
        sessions.act("b", obs, False)
    sessions.idle_seconds = -1.0
    with pytest.raises(refused):
        sessions.act("c", obs, False)
    assert sessions.count() == 0


def test_an_episode_that_failed_to_open_is_not_open(server_example):
    """A bad first observation leaves no session that a later step could go on with."""
    example, agent = server_example
    refused, obs = example["RefusedError"], agent.make_env(1).reset(0)[0].numpy()
    sessions = example["Sessions"](agent, idle_seconds=60, limit=2)
    with pytest.raises(refused) as error:
        sessions.act("a", obs[:1], True)
    assert error.value.status == 400
    with pytest.raises(refused) as error:
        sessions.act("a", obs, False)
    assert error.value.status == 409


def test_the_server_answers_nonsense_with_an_error(server_example):
    """A wrong path, no JSON, a missing key: 404 and 400, and the server lives on."""
    import threading
    import urllib.error
    import urllib.request

    example, agent = server_example
    with example["make_server"](agent, 0, idle_seconds=60, limit=2) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            for path, body, status in (("/x", b"{}", 404), ("/act", b"no", 400), ("/act", b"{}", 400)):
                with pytest.raises(urllib.error.HTTPError) as error:
                    urllib.request.urlopen(urllib.request.Request(url + path, body), timeout=10)
                error.value.close()
                assert error.value.code == status
            client = example["Client"](url, "a")
            obs = agent.make_env(1).reset(0)[0].numpy()
            assert client.act(obs, first=True) in (0, 1)
            with urllib.request.urlopen(url, timeout=10) as reply:
                assert b'"sessions": 1' in reply.read()
        finally:
            server.shutdown()
            thread.join(timeout=10)
