"""Env workers that die, hang or are left alone: told with names, mended, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import recollect as rc
from recollect.envs.workers import WorkerEnv
from recollect.errors import EnvError, LostError
from tests.support.agents import SMALL
from tests.support.doomed import ends_soon
from tests.support.worker_worlds import (
    Trouble,
    assert_same,
    env_pids,
    in_workers,
    is_running,
    plain,
    stream,
    wait_for,
)

ACTION = torch.zeros(4, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _nothing_left(warm_children) -> Iterator[None]:
    """No process, no shared memory, no open file."""
    memory, files = set(os.listdir("/dev/shm")), len(os.listdir("/proc/self/fd"))
    yield
    assert env_pids() == []
    wait_for(lambda: set(os.listdir("/dev/shm")) <= memory)  # other tests have theirs for a moment
    assert len(os.listdir("/proc/self/fd")) <= files + 1  # a device of random numbers may have been opened


@pytest.fixture
def opened() -> Iterator[Callable[..., WorkerEnv]]:
    envs: list[WorkerEnv] = []

    def make(*arguments, **kwargs) -> WorkerEnv:
        envs.append(in_workers(*arguments, **kwargs))
        return envs[-1]

    yield make
    for env in envs:
        pids = env.pids
        env.close()
        assert not any(map(is_running, pids))


def test_killed(opened) -> None:
    """``kill -9`` of a worker in a step, then of both between steps: each time the next reset gives what a
    new env gives, also in the rows of the other worker, which had gone on."""
    env = opened("CartPole-v1", 4, 2)
    expected = stream(plain("CartPole-v1", 4), 20, 5)
    env.reset(0)
    env.send(ACTION)
    os.kill(env.pids[1], signal.SIGKILL)
    with pytest.raises(LostError, match=r"env worker 1 \(env slots 2 to 3\) .*was killed by SIGKILL"):
        _go_on(env)
    with pytest.raises(EnvError, match=r"call reset\(seed\) first, also after an error"):
        env.step(ACTION)
    assert_same(stream(env, 20, 5), expected)
    for pid in env.pids:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(map(is_running, env.pids)))
    with pytest.raises(LostError, match=r"env worker (0 \(env slots 0 to 1\)|1 \(env slots 2 to 3\))"):
        env.step(ACTION)
    before = env.pids
    assert_same(stream(env, 20, 5), expected)
    assert not set(before) & set(env.pids)


def _go_on(env: WorkerEnv) -> None:
    """With a step that was sent, and more: a worker may have answered before it died."""
    for _ in range(3):
        env.receive()
        env.send(ACTION)


@pytest.mark.parametrize("how", [pytest.param("sleep", marks=pytest.mark.slow), "hold the interpreter"])
def test_an_env_that_hangs_is_named(opened, how: str, tmp_path: Path) -> None:
    """A worker without an answer is ended, and the error shows the slots and where it hangs, even if that
    is in code that keeps the interpreter to itself."""
    env = opened(Trouble, 3, 2, timeout=5.0, what=how, number=1, once=str(tmp_path / "once"))
    env.reset(0)
    env.step(ACTION[:3])
    env.step(ACTION[:3])
    with pytest.raises(LostError, match=r"slots 0 to 1\) .*not answered for 5 seconds \(env_t") as error:
        env.step(ACTION[:3])
    assert "in misbehave" in str(error.value)
    assert "worker_worlds.py" in str(error.value)
    assert_same(stream(env, 8, 3), stream(plain(Trouble, 3), 8, 3))


def test_an_env_that_ends_its_process(opened, tmp_path: Path) -> None:
    env = opened(Trouble, 4, 1, what="exit", once=str(tmp_path / "once"))
    env.reset(0)
    env.step(ACTION)
    env.step(ACTION)
    with pytest.raises(LostError, match=r"env slots 0 to 3\) .*ended with exit code 7"):
        env.step(ACTION)
    assert_same(stream(env, 8, 3), stream(plain(Trouble, 4), 8, 3))


def test_interrupted_while_waiting(opened, tmp_path: Path) -> None:
    """Ctrl-C in the middle of a wait: the answer that was not read does not become that of the reset."""
    env = opened(Trouble, 4, 1, what="sleep", once=str(tmp_path / "once"))
    env.reset(0)
    env.step(ACTION)
    env.step(ACTION)
    with pytest.raises(AssertionError, match="has not ended"), ends_soon((tmp_path / "once").exists, 0.3):
        env.step(ACTION)
    assert_same(stream(env, 8, 3), stream(plain(Trouble, 4), 8, 3))


class Killer(rc.Callback):
    """Kills an env worker after the second update, and keeps what is said about it."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_iteration(self, training, metrics) -> None:
        if metrics["updates"] == 2:
            os.kill(env_pids()[0], signal.SIGKILL)

    def on_warning(self, training, text) -> None:
        self.said.append(text)


def test_training_goes_on(tmp_path: Path) -> None:
    """A killed worker costs a rollout that had begun, and the run says so."""
    killer = Killer()
    settings = SMALL | {"num_envs": 4, "actors": 2, "env_workers": 1, "progress": False}
    agent = rc.train("CartPole-v1", steps=160, callbacks=[killer], **settings)
    agent.close()
    assert agent.steps == 160
    assert len([text for text in killer.said if "was killed by SIGKILL" in text]) == 1
    assert "env slots 0 to 1" in " ".join(killer.said)


def test_training_ends_with_the_error_of_the_env(tmp_path: Path) -> None:
    """What an env raises ends the run, with the env's number and traceback, and all workers with it."""
    marker = tmp_path / "once"
    settings = SMALL | {"num_envs": 3, "minibatches": 1, "env_workers": 2, "progress": False}
    kwargs = {"what": "raise", "at": 12, "number": 1, "once": str(marker)}
    error = pytest.raises(EnvError, match=r"env 1 \(Trouble\), step 12: .*the lights went out")
    with ends_soon(marker.exists), error:
        rc.train(Trouble, steps=160, env_kwargs=kwargs, **settings)


LONELY = """
import os, sys, time
from recollect.base.child_process import Child
from tests.support.worker_worlds import in_workers

def host(line):
    env = in_workers("CartPole-v1", 2, 2)
    env.reset(0)
    line.send(env.pids)
    line.recv()

if sys.argv[1] == "grandchildren":
    child = Child(host, name="host")
    pids = [child.pid, *child.receive(100)]
else:
    env = in_workers("CartPole-v1", 2, 2)
    pids = env.pids
print(*pids, flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("who", ["children", "grandchildren"])
def test_workers_end_with_their_parent(who: str) -> None:
    """S003-18: the parent, or its parent, is killed with SIGKILL, and no worker stays."""
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(LONELY), who], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 2 + (who == "grandchildren")
        assert all(map(is_running, pids))
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    wait_for(lambda: not any(map(is_running, pids)))
