"""Actors in processes that are killed, stopped, hang or fail: the run goes on or ends as promised."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest
import torch
from gymnasium.wrappers import TimeLimit

import recollect as rc
from recollect.base import shared_memory
from recollect.errors import EnvError, LostError, ResourceError
from recollect.runtimes import restart_limits
from recollect.runtimes.process import transport
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE, differing, ends_soon, wait_for, weights
from tests.support.process_runs import (
    Turns,
    claimed,
    common_rows,
    descendants,
    process_collector,
    wait_until_gone,
)

PROCESSES: dict[str, Any] = SMALL | {"runtime": "processes", "actors": 2}


@pytest.fixture(autouse=True)
def _nothing_is_left(warm_children) -> Iterator[None]:
    """No process, no file descriptor, nothing in /dev/shm."""

    gc.collect()
    memory, fds, children = set(os.listdir("/dev/shm")), os.listdir("/proc/self/fd"), descendants(os.getpid())
    yield
    wait_until_gone(descendants(os.getpid()) - children)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= len(fds)
    wait_for(lambda: set(os.listdir("/dev/shm")) <= memory)  # other tests have theirs for a moment


class Failing(gym.Wrapper):
    """Does something else once it has made some steps: in the first ``count`` processes that come to it."""

    def __init__(self, how: str, folder: Path, count: int = 1, steps: int = 30):
        super().__init__(TimeLimit(gym.make("CartPole-v1").unwrapped, 20))
        self.how, self.folder, self.count, self.left = how, folder, count, steps

    def reset(self, **options: Any) -> Any:
        if self.how == "hang in reset" and self.left < 0 and claimed(self.folder, self.count):
            wait_for(lambda: False)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.left -= 1
        if self.left < 0 and self.how != "hang in reset" and claimed(self.folder, self.count):
            self.fail()
        return super().step(action)

    def fail(self) -> None:
        if self.how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "hang in step":
            wait_for(lambda: False)
        elif self.how == "raise":
            raise KeyError("the rotor is gone")


class Advice(rc.Callback):
    """Keeps what the user is told; ``at[updates]`` is called after that update."""

    def __init__(self, **at: Any):
        self.at, self.told = {int(name[1:]): call for name, call in at.items()}, list[str]()

    def on_iteration(self, training, metrics):
        if training.updates in self.at:
            self.at[training.updates](training.agent._trainer.collector)

    def on_warning(self, training, text):
        self.told.append(text)


# Killed, stopped -----------------------------------------------------------------------------------------


def test_killed_and_stopped_in_lockstep(tmp_path, monkeypatch):
    """S000-25: in mid-rollout, between two, before a checkpoint, stopped: each is begun anew and told."""
    monkeypatch.setattr(restart_limits, "SILENCE", 2.0)

    def kill(collector):
        os.kill(collector.pids[1], signal.SIGKILL)
        wait_until_gone({collector.pids[1]})

    advice = Advice(u2=kill, u4=lambda collector: os.kill(collector.pids[0], signal.SIGSTOP))
    settings = PROCESSES | {"steps": 8 * UPDATE, "checkpoint_every": 1, "env_timeout": 3.0}
    path = tmp_path / "run"
    with rc.train(lambda: Failing("die", tmp_path), run=str(path), callbacks=[advice], **settings) as agent:
        assert agent.steps == 8 * UPDATE
        assert agent.history.rows[-1]["restarts"] >= 3
    told = "\n".join(advice.told)
    assert told.count("was killed by SIGKILL") == 2
    assert "gave no sign of life" in told
    assert told.count("it was restarted in new episodes") >= 3
    kinds = [event["kind"] for event in Run(path).events()]
    assert (kinds.count("warning"), kinds.count("advice")) == (len(advice.told), 0)
    assert [row["updates"] for row in Run(path).metrics()] == list(range(1, 9))
    assert max(row["length"] for row in Run(path).metrics() if "length" in row) <= 20, (
        "no two episodes joined"
    )


def test_killed_in_async_mode(tmp_path):
    """S000-22, S000-25: what the dead had is collected anew: no rollout is lost, doubled or out of order."""
    make = lambda: Failing("die", tmp_path, steps=25)  # noqa: E731
    with process_collector(make, actors=2, mode="async", max_lag=1) as (collector, policy):
        turns, life = Turns(collector, policy), [0, 0]
        for number in range(16):
            if number == 8:
                os.kill(collector.pids[1], signal.SIGKILL)
            batch = turns.turn()
            life = [life[0] + (0 in batch.restarted), life[1] + (1 in batch.restarted)]
        turns.check(1)
        assert batch.metrics["restarts"] == 2
        assert sum(life) == 4, "each begins once, and once again"
        assert sum("was killed by SIGKILL" in note for note in turns.notes) == 2


def test_three_deaths_in_a_row_end_the_run(tmp_path):
    """S000-25: what cannot go well is not tried for ever; and the run folder says why it ended."""
    path = tmp_path / "run"
    settings = PROCESSES | {"steps": 50 * UPDATE, "actors": 1}
    third = tmp_path / "claim-2"
    with (
        ends_soon(third.exists),
        pytest.raises(LostError, match=r"actor 0.*SIGKILL.*It died 3 times in a row without finishing"),
    ):
        rc.train(lambda: Failing("die", tmp_path, count=9, steps=5), run=str(path), **settings)
    assert Run(path).status["reason"].startswith("error: actor 0")


# Hanging -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "steps"), [("hang in step", 10), pytest.param("hang in reset", -1, marks=pytest.mark.slow)]
)
def test_an_env_that_hangs_is_named_with_its_stack(how, steps, tmp_path):
    """S000-25: noticed by env_timeout, begun anew, and told with the line that it hangs in."""
    make = lambda: Failing(how, tmp_path, steps=steps)  # noqa: E731
    with process_collector(make, env_timeout=2.0) as (collector, policy):
        turns = Turns(collector, policy)
        for _ in range(5):
            turns.turn()
        turns.check(0)
    (note,) = turns.notes
    kind = how.split()[-1]
    assert f"actor 0 hangs: a {kind} of the env of actor 0 has not returned for" in note
    assert f"in {kind}" in note
    assert "wait_for(lambda: False)" in note


@pytest.mark.slow
def test_an_env_that_hangs_while_it_is_made(tmp_path, monkeypatch):
    """S000-25: where not even the watchdog runs yet."""
    monkeypatch.setattr(restart_limits, "START", 15.0)
    here = os.getpid()

    def make() -> gym.Env:
        if os.getpid() != here and claimed(tmp_path, 1):
            wait_for(lambda: False)
        return gym.make("CartPole-v1")

    with process_collector(make, env_timeout=1.0) as (collector, policy):
        turns = Turns(collector, policy)
        turns.turn()
    assert "gave no sign of life" in turns.notes[0]
    assert "it hangs while its env is made" in turns.notes[0]


def test_an_env_worker_of_an_actor_is_killed():
    """S000-25: the actor mends it by itself; its rollouts are still numbered without a gap."""
    with process_collector("CartPole-v1", env_workers=1) as (collector, policy):
        turns = Turns(collector, policy)
        for number in range(6):
            if number == 3:
                (worker,) = descendants(collector.pids[0])
                os.kill(worker, signal.SIGKILL)
            batch = turns.turn()
            assert batch.restarted == ({0} if number in (0, 3) else set())
        turns.check(0)
        assert batch.metrics["restarts"] == 0
    (note,) = turns.notes
    assert "env worker 0" in note
    assert "SIGKILL" in note
    assert "new episodes were started" in note


# Failing -------------------------------------------------------------------------------------------------


def test_an_env_that_raises_ends_the_run_with_its_traceback(tmp_path):
    """S000-25: within seconds, with what was learned so far in a checkpoint that goes on."""
    path = tmp_path / "run"
    settings = PROCESSES | {"steps": 20 * UPDATE, "num_envs": 6, "actors": 3, "checkpoint_every": 10**6}
    text = r"step 31: step\(.*raised KeyError: 'the rotor is gone'"
    with ends_soon((tmp_path / "claim-0").exists), pytest.raises(EnvError, match=text) as raised:
        rc.train(lambda: Failing("raise", tmp_path), run=str(path), **settings)
    (note,) = raised.value.__notes__
    assert re.match(r"in actor [012]:\nTraceback", note)
    assert 'raise KeyError("the rotor is gone")' in note
    done = Run(path).metrics()[-1]["updates"]
    assert done == 2, "30 steps go well, and a rollout has 12"
    assert Run(path).status["reason"].startswith("error: ")
    healthy = lambda: Failing("nothing", tmp_path)  # noqa: E731
    with rc.resume(path, env=healthy, runtime="inline", steps=72, progress=False) as agent:
        assert agent.steps == 72 * done + 72


# Memory --------------------------------------------------------------------------------------------------


def test_a_shortage_of_memory_is_told_before_anything_starts(monkeypatch):
    """S003-18: no SIGBUS in the middle of a rollout; and nothing is started for nothing."""
    monkeypatch.setattr(transport, "Child", lambda *_, **__: pytest.fail("a process was started"))
    with monkeypatch.context() as patch:
        patch.setattr(shared_memory.os, "posix_fallocate", _no_space)
        with pytest.raises(ResourceError, match=r"no shared memory for .*lower"):
            rc.train("delayed-cue", **PROCESSES)
    monkeypatch.setattr(transport, "allocate_all", lambda *_: SimpleNamespace(slot=_huge))
    with (
        process_collector("delayed-cue") as (collector, _),
        pytest.raises(ResourceError, match=r"no shared memory for the rollouts of actor 0.*num_envs"),
    ):
        collector.collect(0)


def _no_space(fd: int, offset: int, size: int) -> None:
    raise OSError(28, "No space left on device")


def _huge() -> Any:
    return {"rollout": torch.empty(2**44, device="meta")}


def test_a_full_dev_shm_does_not_matter(tmp_path):
    """S003-18: shared memory here has no name, and is not counted there."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os
            import recollect as rc
            from tests.support.doomed import SMALL, UPDATE

            assert os.statvfs("/dev/shm").f_bfree == 0, "it is not full"
            agent = rc.train("delayed-cue", **SMALL | {"steps": 2 * UPDATE, "runtime": "processes"})
            print(agent.steps, os.listdir("/dev/shm"))
            """
        )
    )
    fill = "mount -t tmpfs -o size=64k tmpfs /dev/shm && (cat /dev/zero > /dev/shm/full 2> /dev/null; true)"
    command = ["unshare", "-rm", "sh", "-c", f'{fill} && exec "$0" "$1"', sys.executable, str(script)]
    if subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=False
    ).returncode:
        pytest.skip("needs a /dev/shm of its own, and mounting one is not allowed here")
    path = f"{Path(__file__).parents[2]}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False, timeout=300
    )
    assert done.stdout == f"{2 * UPDATE} ['full']\n", done.stderr


# Signals -------------------------------------------------------------------------------------------------


class Command:
    """``recollect train`` in a process of its own, with a temporary folder of its own."""

    def __init__(self, folder: Path, env: str, *more: str):
        self.path, self.temporary = folder / "run", folder / "tmp"
        self.temporary.mkdir()
        text = (
            "--runtime processes --actors 2 --num-envs 4 --rollout 12 --chunk 4 --epochs 1 --minibatches 2 "
        )
        text += "--encoder.hidden 8 --core lstm --core.hidden 8 --threads 1"
        words = ["train", env, *text.split(), "--run", str(self.path), *more]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "recollect", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env={**os.environ, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"},
        )
        self.pids: set[int] = set()

    def wait_for_updates(self, count: int) -> None:
        file = self.path / "metrics.jsonl"
        limit = time.monotonic() + 120
        while not (file.exists() and file.read_bytes().count(b"\n") >= count):
            assert self.process.poll() is None, self.process.communicate()[0]
            assert time.monotonic() < limit
            time.sleep(0.01)
        self.pids = descendants(self.process.pid)
        assert len(self.pids) == 2

    def end(self) -> tuple[int, str]:
        """Its exit code and what it said, once all of it is gone."""
        said, _ = self.process.communicate(timeout=120)
        wait_until_gone(self.pids)
        assert os.listdir(self.temporary) == []
        return self.process.returncode, said


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)], ids=["TERM", "INT"]
)
def test_a_signal_to_the_command_saves_and_resumes(number, tmp_path):
    """S000-25, S000-30, S003-18: all of its processes get it; the run then goes on bit for bit, elsewhere."""
    steps = 40 * UPDATE
    command = Command(tmp_path, "delayed-cue", "--steps", str(steps), "--checkpoint-every", "100000")
    command.wait_for_updates(3)
    for pid in (command.process.pid, *command.pids):
        os.kill(pid, number)
    code, said = command.end()
    assert code == 128 + number, said
    status = Run(command.path).status
    assert (status["state"], status["reason"]) == ("stopped", "interrupt")
    assert 3 * UPDATE <= status["steps"] < steps
    settings = SMALL | {"actors": 2, "steps": steps, "checkpoint_every": 100_000}
    whole = rc.train("delayed-cue", run=str(tmp_path / "whole"), **settings)
    with rc.resume(command.path, runtime="inline", progress=False) as agent:
        assert differing(weights(whole), weights(agent)) == []
    assert common_rows(command.path) == common_rows(tmp_path / "whole")


HANGS = """
import time
import gymnasium as gym

class Env(gym.Wrapper):
    left = 40

    def __init__(self):
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action):
        self.left -= 1
        if self.left < 0:
            open("hangs", "w").close()
            time.sleep(1000)
        return super().step(action)
"""


def test_a_second_ctrl_c_ends_at_once(tmp_path):
    """S003-18: an env that never answers does not keep the run alive, and neither do its processes."""
    (tmp_path / "hangs.py").write_text(HANGS)
    command = Command(tmp_path, "hangs.py:Env", "--steps", "100000", "--checkpoint-every", "1")
    command.wait_for_updates(3)
    wait_for((tmp_path / "hangs").exists)
    command.process.send_signal(signal.SIGINT)
    time.sleep(1.2)
    assert command.process.poll() is None, "the first lets the update end, which never comes"
    command.process.send_signal(signal.SIGINT)
    code, said = command.end()
    assert code == 128 + signal.SIGINT, said
    assert Run(command.path).status["reason"] == "interrupt"
    assert Run(command.path).checkpoints()


def test_killing_the_main_process_ends_its_actors(tmp_path):
    """S003-18: nobody was left to tell them; the run goes on from its last checkpoint."""
    command = Command(tmp_path, "delayed-cue", "--steps", str(4000 * UPDATE), "--checkpoint-every", "1")
    command.wait_for_updates(3)
    command.process.kill()
    assert command.end()[0] == -signal.SIGKILL
    assert Run(command.path).status["state"] == "killed"
    with rc.resume(command.path, runtime="inline", steps=UPDATE, progress=False) as agent:
        assert agent._trainer.is_exact
