"""The Ray runtime against a real cluster of this machine: the numbers of inline, and tickets that add up."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

import recollect as rc  # noqa: E402
from recollect.errors import ConfigError  # noqa: E402
from recollect.league.check import check_league  # noqa: E402
from recollect.runtimes.ray import cluster as ray_cluster  # noqa: E402
from recollect.runtimes.ray.cluster import Cluster  # noqa: E402
from recollect.training.run_folder import Run  # noqa: E402
from tests.mutants import ray_bugs  # noqa: E402
from tests.mutants.mutant import Mutant  # noqa: E402
from tests.support import ray_runs, replayed  # noqa: E402
from tests.support.batch_worlds import Recall  # noqa: E402
from tests.support.doomed import SMALL, UPDATE, differing, rows, weights  # noqa: E402
from tests.support.grouped_worlds import Duo  # noqa: E402
from tests.support.ray_runs import RayTurns, trained  # noqa: E402
from tests.support.two_sides import TwoSides  # noqa: E402
from tests.training.test_league import SMALL as LEAGUE  # noqa: E402
from tests.training.test_opponents import STAGES  # noqa: E402

MAMBA = rc.MambaConfig(hidden=8)
SPEAKER = "pettingzoo/simple_speaker_listener_v4"


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[str]:
    """One for all tests here: a run uses what its program is connected to."""
    folder = tempfile.mkdtemp(prefix="ray-test-", dir="/tmp")
    with ray_cluster.on_loopback(), ray_cluster.signals_kept():
        ray.init("local", num_cpus=2, include_dashboard=False, logging_level="ERROR", _temp_dir=folder)
    yield ray.get_runtime_context().gcs_address
    assert ray.is_initialized(), "a run has ended a cluster that it did not start"
    ray.shutdown()
    shutil.rmtree(folder, ignore_errors=True)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("env", "core", "actors"),
    [
        ("delayed-cue", SMALL["core"], 2),
        slow("delayed-cue", SMALL["core"], 4),
        slow("CartPole-v1", MAMBA, 1),
        slow("delayed-cue", MAMBA, 4),
        slow("delayed-cue", SMALL["core"], 1),
        slow("CartPole-v1", SMALL["core"], 1),
        slow("CartPole-v1", MAMBA, 4),
        slow(Recall, SMALL["core"], 2),  # a class of a batched env
    ],
    ids=lambda value: getattr(value, "__name__", str(value).partition("(")[0]),
)
def test_lockstep_is_inline_bit_for_bit(env, core, actors):
    """S003-16, S003-24: after 20 updates, with the same seed and actors, wherever they live."""
    settings = {"core": core, "actors": actors}
    inline = trained(env, 20, **settings)
    assert differing(inline, trained(env, 20, runtime="ray", **settings)) == []
    assert differing(inline, trained(env, 20, seed=1, **settings)) != []


def test_two_groups_are_those_of_one_process():
    """S003-16, S001-29: the policies of an env with two groups of agents, bit for bit."""
    settings = {"policies": "independent", "actors": 2}
    inline = trained(SPEAKER, 5, **settings)
    assert differing(inline, trained(SPEAKER, 5, runtime="ray", **settings)) == []
    assert any(name.startswith("_parts.group/listener_0.") for name in inline)


def test_an_opponent_and_a_curriculum_are_those_of_one_process():
    """S001-21: whose stages change over the updates, bit for bit."""
    settings = {"vs": "echo", "vs_kwargs": {"error": 0.5}, "actors": 2, "curriculum": STAGES}
    inline = trained(TwoSides, 8, **settings)
    assert differing(inline, trained(TwoSides, 8, runtime="ray", **settings)) == []
    without_stages = {**settings, "curriculum": {}}
    assert differing(inline, trained(TwoSides, 8, **without_stages)) != []


def test_a_league_is_that_of_one_process(tmp_path: Path):
    """S001-4, S001-21, S003-16: weights, members, rosters and games, also from a checkpoint of one process;
    the run's path is relative."""
    ray_runs.league(tmp_path)
    assert check_league(tmp_path / "ray").faults == []


def test_a_league_whose_folder_an_actor_does_not_see(tmp_path: Path):
    """S001-4: a clear error with the next roster, as from a node that has another file system."""

    def replace(training: Any, metrics: dict[str, float]) -> None:
        (tmp_path / "run" / "league" / "owner").write_text("another")

    settings = LEAGUE | {"actors": 2, "runtime": "ray", "callbacks": [replace]}
    with pytest.raises(ConfigError, match="all nodes mount"):
        rc.train(TwoSides, steps=300, run=str(tmp_path / "run"), **settings)


def test_a_league_goes_on_after_an_actor_was_killed(tmp_path: Path):
    """S001-4: the restarted actor has the present roster and other draws, and continues the log."""
    killed: list[int] = []

    def kill(training: Any, metrics: dict[str, float]) -> None:
        if training.updates == 3:
            killed.append(training.agent._trainer.collector.pids[0])
            os.kill(killed[0], signal.SIGKILL)

    settings = LEAGUE | {"actors": 2, "runtime": "ray", "callbacks": [kill]}
    with rc.train(TwoSides, steps=600, run=str(tmp_path / "run"), **settings) as agent:
        assert agent.history.last["restarts"] == 1
    found = check_league(tmp_path / "run")
    assert found.faults == []
    assert found.redrawn == found.games > 20


def test_two_groups_with_actors_that_run_ahead():
    """S000-24: lags are bounded, and each group is checked against the weights that acted."""
    more = {"runtime": "ray", "mode": "async", "max_lag": 2, "gauge_every": 1, "actors": 2}
    with rc.train(Duo, **SMALL | more | {"steps": 40 * UPDATE}) as agent:
        rows = agent.history.rows
    assert max(row["lag/max"] for row in rows) in (1, 2)
    for group in ("big", "small"):
        found = [row[f"group/{group}/deviation/log_prob"] for row in rows if row["lag/max"] > 0]
        assert found
        assert max(found) < 1e-4


@pytest.mark.parametrize(
    ("algo", "mode"),
    [("impala", "async"), ("ppo", "lockstep"), slow("impala", "lockstep"), slow("ppo", "async")],
)
def test_rollouts_that_are_cut(algo, mode):
    """M, S000-8, S004-1: recorded with the state, resets and weights that the learner replays them with."""
    replayed.train(algo, runtime="ray", mode=mode)


@pytest.mark.parametrize("mutant", ray_bugs.MUTANTS, ids=lambda mutant: mutant.name)
def test_the_proof_catches_its_mutant(mutant: Mutant):
    mutant.assert_caught()


@pytest.mark.parametrize(("first", "second"), [("inline", "ray"), ("ray", "inline")])
def test_a_run_goes_on_in_another_runtime_bit_for_bit(first, second, tmp_path):
    """S003-16: a checkpoint holds the same in every runtime."""
    settings = SMALL | {"steps": 6 * UPDATE, "actors": 2}
    whole = rc.train("delayed-cue", run=str(tmp_path / "whole"), **settings)
    path = tmp_path / "run"

    def stop(training, metrics):
        if training.updates == 3:
            training.stop("enough")

    with rc.train("delayed-cue", run=str(path), runtime=first, callbacks=[stop], **settings) as agent:
        assert agent.steps == 3 * UPDATE
    with rc.resume(path, runtime=second, progress=False) as agent:
        assert differing(weights(whole), weights(agent)) == []
    own = {"time", "queue", "actors", "actor", "restarts", "speed"}  # of runtimes with actors elsewhere

    def common(path):
        return [{k: v for k, v in row.items() if k.split("/")[0] not in own} for row in rows(path)]

    assert common(path) == common(tmp_path / "whole")
    assert Run(path).status["reason"] == "steps"


@pytest.mark.parametrize(("env", "groups"), [("delayed-cue", 1), (Duo, 2)], ids=["one group", "two groups"])
def test_learners_on_the_cluster_are_those_of_this_machine(env, groups):
    """S003-16: the second learner of each group in a Ray actor takes the same steps as in a process."""
    made = []
    settings = {"learners": 2, "actors": 2}
    here = trained(env, 5, **settings)

    def look(training, metrics):
        made[:] = [peer for group in training.agent._trainer._updaters.values() for peer in group._peers]

    there = trained(env, 5, runtime="ray", callbacks=[look], **settings)
    assert [type(peer).__name__ for peer in made] == ["RayPeer"] * groups
    assert differing(here, there) == []


@pytest.mark.parametrize("max_lag", [slow(0), 2])
def test_async_keeps_the_lag_and_every_ticket(max_lag):
    """S000-24: every rollout was acted by the version it names; none is lost, doubled or too old."""
    with RayTurns("delayed-cue", mode="async", max_lag=max_lag, actors=4) as turns:
        for _ in range(12):
            turns.turn()
        found = [rollout for batch in turns.rollouts for rollout in batch]
        lags = {k - rollout.version for k, batch in enumerate(turns.rollouts) for rollout in batch}
        assert min(lags) >= 0
        assert max(lags) <= max_lag
        assert max_lag == 0 or max(lags) > 0, "nobody ran ahead"
        for actor in range(4):  # those that are still under way come later
            mine = sorted(rollout.sequence for rollout in found if rollout.actor == actor)
            assert len(mine) == len(set(mine))
            assert len(set(range(max(mine) + 1)) - set(mine)) <= max_lag + 1
        assert any("fewer than 4 free CPUs" in note for note in turns.notes)


def test_lockstep_acts_with_exactly_the_version_asked_for():
    """S000-24: rollout k of every actor with version k; new episodes when they are asked for."""
    with RayTurns("delayed-cue", actors=2) as turns:
        for _ in range(3):
            turns.turn()
        assert [[r.version for r in batch] for batch in turns.rollouts] == [[0, 0], [1, 1], [2, 2]]
        assert [[r.actor for r in batch] for batch in turns.rollouts] == [[0, 1]] * 3
        before = turns.pids
        turns.collector.restart_episodes()
        turns.turn()
        assert all(bool(rollout.first[0].all()) for rollout in turns.rollouts[-1])
        assert turns.pids == before, "the same actors begin new episodes"


def test_addresses_that_cannot_be_meant(cluster):
    """A Ray Client, another cluster than the one connected to."""
    assert not Cluster(cluster, cpus=1, store=0).is_own
    assert not Cluster("auto", cpus=1, store=0).is_own
    with pytest.raises(ConfigError, match=r"connected to the Ray cluster at .*: leave ray_address out"):
        Cluster("127.0.0.1:1", cpus=1, store=0)
    with pytest.raises(ConfigError, match="Ray Client is not supported"):
        Cluster(f"ray://{cluster}", cpus=1, store=0)
    for nobody in ("127.0.0.1:1", "[::1]:1", "127.0.0.1:99999"):
        with pytest.raises(ConfigError, match=r"there is no Ray cluster at .*: start one with `ray start"):
            ray_cluster.check_reachable(nobody)


def test_without_ray_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("recollect.runtimes.ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'recollect\[ray\]'"):
        importlib.import_module("recollect.runtimes.ray.transport")


SHARED = """
import ray
from recollect.runtimes.ray.cluster import Cluster
from tests.support.ray_runs import RayTurns
with RayTurns("delayed-cue") as first:
    first.turn()
    assert first.notes == [], first.notes
    second = RayTurns("delayed-cue", actors=2)
    second.turn()
second.turn()  # the cluster of the first serves until the last has left
assert ray.is_initialized()
second.collector.close()
assert not ray.is_initialized()
with RayTurns("delayed-cue") as third:
    third.turn()
    third.collector.close()
    assert not ray.is_initialized()
    third.rollouts.clear()
    third._say(0)
    third.turn()  # a new cluster, new episodes
"""


@pytest.mark.slow
def test_runs_of_one_program_share_a_cluster():
    """S003-18: who leaves last ends it; a turns that was closed can begin again."""
    subprocess.run([sys.executable, "-c", SHARED], check=True, timeout=240)
