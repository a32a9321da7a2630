"""Ray actors that die, nodes that leave, envs that raise or hang, and what a run leaves of its cluster."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray")

from ray._private.utils import get_ray_address_file  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import recollect as rc  # noqa: E402
from recollect.base.tracebacks import user_frames  # noqa: E402
from recollect.errors import ChildError, EnvError, LostError, RecollectError  # noqa: E402
from recollect.runtimes import restart_limits  # noqa: E402
from recollect.runtimes.ray import cluster as ray_cluster  # noqa: E402
from recollect.runtimes.ray import transport as ray_transport  # noqa: E402
from recollect.training.run_folder import Run  # noqa: E402
from tests.support.doomed import SMALL, UPDATE, ends_soon, wait_for  # noqa: E402
from tests.support.process_runs import descendants, parents  # noqa: E402
from tests.support.ray_runs import RayTurns, failing, listening, trained, wait_until_gone  # noqa: E402

HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 12,
}
"""Ray finds out after six seconds that a node is gone, not after a quarter of a minute: later than an actor
that was there is missed, as usual."""
LOOPBACK = {"0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F"}
"""127.0.0.1, ::1 and ::ffff:127.0.0.1."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head with one CPU, which the learner is connected to. Tests add nodes."""
    folder = tempfile.mkdtemp(prefix="ray-test-", dir="/tmp")
    head = {"num_cpus": 1, "include_dashboard": False, "temp_dir": folder, "_system_config": HEALTH}
    usual = Path(get_ray_address_file(None)).parent  # where the cluster's address is also written to
    is_new = not usual.exists()
    usual.mkdir(exist_ok=True)
    with ray_cluster.on_loopback(), ray_cluster.signals_kept():
        made = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    for path in (folder, usual) if is_new else (folder,):
        shutil.rmtree(path, ignore_errors=True)


# The collector is that of processes, whose tests are in every run.
@pytest.mark.parametrize("mode", [pytest.param("lockstep", marks=pytest.mark.slow), "async"])
def test_a_killed_actor_is_replaced(cluster, mode):
    """S000-24, S000-25: kill -9 of a Ray worker; no ticket is lost, no rollout doubled, the other acts on."""
    with RayTurns("delayed-cue", mode=mode, actors=2) as turns:
        for _ in range(3):
            turns.turn()
        before = turns.pids
        os.kill(before[1], signal.SIGKILL)
        metrics = [turns.turn() for _ in range(6)][-1]
        assert metrics["restarts"] == 1
        assert any("actor 1 (process" in note and "was killed or crashed" in note for note in turns.notes)
        assert turns.pids[0] == before[0]
        assert turns.pids[1] != before[1]
        for actor in (0, 1):
            mine = [r for batch in turns.rollouts for r in batch if r.actor == actor]
            assert len({r.sequence for r in mine}) == len(mine)
            assert all(k - r.version <= 1 for k, batch in enumerate(turns.rollouts) for r in batch)
        assert [len(batch) for batch in turns.rollouts] == [2] * 9


def test_a_node_that_leaves_costs_only_its_actors(cluster, monkeypatch):
    """S000-25: kill -9 of a whole node: its actor goes on elsewhere at once, even where no CPU is free.

    Not on the same node, which Ray still takes for alive: the actor would be lost, and counted, twice.
    """
    avoided: list[str | None] = []

    def remote(*args: Any, **options: Any) -> ray_cluster.Remote:
        avoided.append(options["avoid"])
        return ray_cluster.Remote(*args, **options)

    monkeypatch.setattr(ray_transport, "Remote", remote)
    node = cluster.add_node(num_cpus=1)
    raylet = node.all_processes["raylet"][0].process.pid
    wait_for(lambda: ray.available_resources().get("CPU") == 2)
    with RayTurns("delayed-cue", actors=2) as turns:
        turns.turn()
        (lost,) = [index for index, pid in enumerate(turns.pids) if parents()[pid] == raylet]
        before = turns.pids
        cluster.remove_node(node, allow_graceful=False)  # kill -9 of all that it consists of
        metrics = [turns.turn() for _ in range(3)][-1]
        assert avoided == [None, None, node.node_id]
        assert metrics["restarts"] == 1
        # Ray hears of the process first or of the node first.
        (note,) = [note for note in turns.notes if f"actor {lost} " in note]
        assert "died with its node" in note or "was killed or crashed" in note
        assert turns.pids[1 - lost] == before[1 - lost]
        assert [[r.version for r in batch] for batch in turns.rollouts] == [[k, k] for k in range(4)]
        wait_until_gone({before[lost]})


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("raise", "the rotor is gone"),
        pytest.param("nan", r"is nan", marks=pytest.mark.slow),
        pytest.param("make", "no such world", marks=pytest.mark.slow),
    ],
)
def test_an_env_that_raises_ends_the_run_as_inline(cluster, how, text, tmp_path):
    """S000-25: with the same error, and the traceback of where it was, within seconds."""
    marker = tmp_path / "failed"
    env = partial(_impossible, marker) if how == "make" else failing(how)
    if how != "make":
        with pytest.raises(EnvError, match=text) as inline:
            trained(env, 20)
    env = env if how == "make" else failing(how, marker)
    with ends_soon(marker.exists), pytest.raises(RecollectError, match=text) as raised:
        trained(env, 20, runtime="ray", actors=2)
    if how != "make":
        # Which actor comes first is a matter of time, and so are the action and the row.
        theirs = r"(?<=step)\(.*?\)\)|(?<=row )\d"
        said, expected = (re.sub(theirs, "", str(e)) for e in (raised.value, inline.value))
        assert (type(raised.value), said) == (inline.type, expected)
    if how == "nan":
        return  # the learner found it
    notes = "".join(getattr(raised.value, "__notes__", [])) + str(raised.value)
    assert "Traceback" in notes
    assert "actor" in notes
    shown = user_frames(raised.value)
    assert text in shown
    assert "src/recollect" not in shown
    assert ray.is_initialized(), "the cluster is not ours"


def _impossible(marker: Path) -> Any:
    if ray.get_runtime_context().get_actor_id() is not None:
        marker.touch()
        raise ValueError("no such world")
    return failing("never", steps=10**6)()


class Thing:
    """Something in a Ray actor."""

    def __init__(self, _: Any = None):
        pass

    def location(self) -> None:
        raise KeyError("inside")


def _ask_until_lost(remote: ray_cluster.Remote) -> None:
    """Ray ends an actor a little after it was told to: until then it may answer."""
    while True:
        with contextlib.suppress(ChildError):
            remote.receive(remote.call("location"))


def test_what_is_raised_elsewhere_keeps_its_cause_and_traceback(cluster):
    """S000-25."""
    remote = ray_cluster.Remote("thing 3", Thing, (), cpus=0)
    with pytest.raises(
        ChildError, match=r"thing 3 failed:\nTraceback(.|\n)*in location(.|\n)*inside"
    ) as raised:
        remote.receive(remote.started)
    assert isinstance(raised.value.__cause__, KeyError)
    remote.kill()
    with pytest.raises(LostError, match="thing 3 was killed or crashed"):
        _ask_until_lost(remote)
    with pytest.raises(RecollectError, match="cannot be sent to another process"):
        ray_cluster.Remote("thing 4", Thing, (threading.Lock(),), cpus=0)


def test_an_env_that_hangs_is_named_and_begun_anew(cluster, tmp_path):
    """S000-25: with the line where it hangs."""
    marker = tmp_path / "hung"
    with RayTurns(failing("hang", marker), actors=2, env_timeout=1.0) as turns:
        metrics = [turns.turn() for _ in range(4)][-1]
        assert marker.exists()
        assert metrics["restarts"] == 1
        (note,) = [note for note in turns.notes if "hangs" in note]
        assert "a step of the env of actor" in note
        assert "ray_runs.py" in note


@pytest.mark.slow
def test_an_actor_that_always_dies_ends_the_run(cluster):
    """S000-25: it is not tried forever."""
    with (
        RayTurns(failing("die", steps=0), actors=1) as turns,
        pytest.raises(LostError, match="died 3 times in a row without finishing a rollout"),
    ):
        turns.turn()
    assert turns.pids == []


@pytest.mark.slow
def test_an_actor_that_gives_no_sign_of_life_is_replaced(cluster, monkeypatch):
    """S000-25: stopped, so that not even its watchdog runs."""
    monkeypatch.setattr(restart_limits, "SILENCE", 7.0)
    with RayTurns("delayed-cue", actors=2, env_timeout=1.0) as turns:
        turns.turn()
        os.kill(turns.pids[0], signal.SIGSTOP)
        assert [turns.turn() for _ in range(3)][-1]["restarts"] == 1
        assert any("gave no sign of life" in note for note in turns.notes)


# A cluster of its own --------------------------------------------------------------------------------------

SCRIPT = """
import json, os, signal, sys
from pathlib import Path
import recollect as rc
from tests.support.doomed import SMALL, WaitForSignal
path, ready, what = sys.argv[1:]
def fail(training, metrics):
    if metrics["updates"] == 2:
        Path(ready).touch()
        sys.stdin.readline()
        raise RuntimeError("a callback failed")
told = fail if what == "raise" else WaitForSignal(2, ready)
rc.train("delayed-cue", run=path, runtime="ray", actors=2, callbacks=[told], **SMALL | {"steps": 480})
"""


slow = pytest.mark.slow  # Ray's own agents notice after a minute that their node was killed


@pytest.mark.parametrize(
    "what", ["TERM", pytest.param("KILL", marks=slow), pytest.param("raise", marks=slow)]
)
def test_a_run_leaves_nothing_of_its_cluster(what, tmp_path):
    """S003-18, S000-30: no process, no shared memory; and nobody on the network could have talked to it."""
    before, memory = set(Path("/tmp").glob("recollect-ray-*")), set(os.listdir("/dev/shm"))
    ready, path = tmp_path / "ready", tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(ready), what],
        cwd=Path(__file__).parent.parent.parent,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_for(lambda: ready.exists() or process.poll() is not None)
        assert ready.exists(), process.stderr and process.stderr.read()
        started = descendants(process.pid)
        assert len(started) > 3
        assert listening(started | {process.pid}) <= LOOPBACK
        if what == "raise":
            _, said = process.communicate("\n", timeout=120)
            assert "a callback failed" in said
        else:
            process.send_signal(signal.Signals[f"SIG{what}"])
            _, said = process.communicate(timeout=120)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0
    wait_until_gone(started)
    left = set(Path("/tmp").glob("recollect-ray-*")) - before
    if what == "KILL":  # logs, which tell what happened
        for folder in left:
            shutil.rmtree(folder)
    else:
        assert left == set()
    wait_for(lambda: set(os.listdir("/dev/shm")) <= memory)  # other tests have theirs for a moment
    if what == "TERM":
        assert f"stopped at step {2 * UPDATE} and saved" in said
        assert (Run(path).status["state"], Run(path).status["reason"]) == ("stopped", "interrupt")
        assert json.loads((path / "status.json").read_text())["steps"] == 2 * UPDATE
    assert rc.load(path, checkpoint="last").steps in (UPDATE, 2 * UPDATE)
    assert SMALL["checkpoint_every"] == UPDATE
