"""Child processes: what goes in, what comes back, and that nothing of them stays."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from recollect.base import child_process
from recollect.base.child_process import Child, HungUpError, Line, stop_all
from recollect.errors import ChildError, EnvError, LostError, RecollectError

PATIENCE = 60.0


class OwnError(Exception):
    """Can be pickled, but not read back: its __init__ wants something else than its text."""

    def __init__(self, what: str, *, code: int):
        super().__init__(f"{what} {code}")


class StuckError(Exception):
    """Cannot be pickled at all."""

    def __init__(self) -> None:
        super().__init__("stuck")
        self.held = lambda: None


def serve(line: Line) -> None:
    """Does what it is told."""
    while True:
        kind, *rest = line.recv()
        if kind == "echo":
            line.send(rest[0])
        elif kind == "flood":
            for i in range(rest[0]):
                line.send((i, b"x" * rest[1]))
        elif kind == "raise":
            _fail(rest[0])
        elif kind == "exit":
            os._exit(rest[0])
        elif kind == "die":
            os.kill(os.getpid(), rest[0])
        elif kind == "say":
            print(rest[0], flush=True)
            print(rest[1], file=sys.stderr, flush=True)
            line.send("said")
        elif kind == "group":
            line.send((os.getpid(), os.getsid(0), os.getppid(), sorted(os.listdir("/proc/self/fd"))))
        elif kind == "start":  # a program of its own, as an env may
            line.send(subprocess.Popen(["sleep", "1000"]).pid)


def _fail(kind: str) -> None:
    if kind == "own":
        raise EnvError("the world is flat")
    if kind == "stuck":
        raise StuckError
    if kind == "odd":
        raise OwnError("odd", code=3)
    raise ValueError("a plain one")


def ignore_the_end(line: Line) -> None:
    """Does not go when it is hung up on."""
    line.send("here")
    while True:
        with contextlib.suppress(HungUpError):
            line.recv()
        time.sleep(0.05)


def return_at_once(line: Line) -> None:
    line.send("done")


def have_a_child(line: Line) -> None:
    """A child with a child."""
    inner = Child(serve, name="inner")
    inner.send(("group",))
    line.send((os.getpid(), inner.receive(PATIENCE)[0]))
    line.recv()


@pytest.fixture
def child() -> Iterator[Child]:
    made = Child(serve, name="helper 7")
    yield made
    made.stop()


def is_gone(pid: int) -> bool:
    """Whether there is no such process, or only its entry in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until(condition, what: str) -> None:
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, what
        time.sleep(0.02)


def test_messages_both_ways(child):
    """Small and large ones, in order, however many wait."""
    child.send(("echo", {"a": 1}))
    assert child.receive(PATIENCE) == {"a": 1}
    big = os.urandom(8 << 20)
    child.send(("echo", big))
    assert child.receive(PATIENCE) == big
    child.send(("flood", 20, 1 << 18))
    assert [child.receive(PATIENCE)[0] for _ in range(20)] == list(range(20))
    with pytest.raises(TimeoutError, match=r"helper 7 has not answered for 0\.05 seconds"):
        child.receive(0.05)
    assert child.is_alive


def test_a_session_of_its_own(child):
    """S003-18: Ctrl-C reaches the foreground group only; and it inherits what it was given, no more."""
    child.send(("group",))
    pid, session, parent, fds = child.receive(PATIENCE)
    assert (pid, session, parent) == (child.pid, child.pid, os.getpid())
    assert os.getsid(0) != session
    assert len(fds) <= 6, f"0, 1, 2, the line, the lifeline, the listing: {fds}"


def test_signals_are_left_to_the_parent(child):
    """S003-18: a job system sends them to all processes at once."""
    child.send(("echo", 1))
    child.receive(PATIENCE)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(child.pid, number)
    child.send(("start",))
    started = child.receive(PATIENCE)
    os.kill(started, signal.SIGTERM)  # what it starts itself heeds them
    wait_until(lambda: is_gone(started), "a program started by a child took no notice of SIGTERM")
    child.send(("echo", 2))
    assert child.receive(PATIENCE) == 2


def test_what_it_raises_arrives():
    """S000-25: Recollect's own errors as they are, others in a ChildError; always with the traceback."""
    made = {kind: Child(serve, name=f"helper {kind}") for kind in ("own", "plain", "odd", "stuck")}
    for kind, one in made.items():
        one.send(("raise", kind))
    with pytest.raises(EnvError, match="the world is flat") as own:
        made["own"].receive(PATIENCE)
    (note,) = own.value.__notes__
    assert "in helper own:" in note
    assert "in _fail" in note
    for kind, text in {
        "plain": "ValueError: a plain one",
        "odd": "OwnError: odd 3",
        "stuck": "StuckError: stuck",
    }.items():
        with pytest.raises(ChildError, match=f"helper {kind} failed:") as raised:
            made[kind].receive(PATIENCE)
        assert "in _fail" in str(raised.value)
        assert text in str(raised.value)
        assert isinstance(raised.value.__cause__, ValueError) == (kind == "plain")
    for kind, one in made.items():
        assert one._group.end(PATIENCE) == 1
        with pytest.raises(LostError, match=rf"helper {kind} \(process \d+\) ended with exit code 1"):
            one.send(("echo", "late"))
    stop_all(list(made.values()))


def test_what_it_raised_before_it_went_is_told_to_who_sends():
    one = Child(serve, name="helper")
    one.send(("raise", "own"))
    one._group.end(PATIENCE)
    with pytest.raises(EnvError, match="the world is flat"):
        one.send(("echo", 1))
    one.stop()


@pytest.mark.parametrize(
    ("order", "words"),
    [
        (("exit", 7), "ended with exit code 7"),
        (("die", signal.SIGKILL), r"was killed by SIGKILL \(.*memory"),
        (("die", signal.SIGSEGV), "was killed by SIGSEGV"),
        (("die", signal.SIGRTMIN + 1), r"was killed by signal \d+"),
    ],
    ids=["exit", "kill", "segv", "realtime"],
)
def test_how_it_died_is_told(order, words, tmp_path):
    """S000-25: as LostError, for whoever waits and for whoever sends."""
    log = tmp_path / "logs" / "helper.log"
    one = Child(serve, name="helper", log=log)
    one.send(order)
    with pytest.raises(LostError, match=rf"helper \(process \d+\) {words}.*; its output is in {log}"):
        one.receive(PATIENCE)
    with pytest.raises(LostError, match=words):
        one.send(("echo", 1))
    assert not one.is_alive
    one.stop()


def test_output_goes_to_the_log(tmp_path):
    """Appended, so that the log of a life before stays."""
    log = tmp_path / "logs" / "helper.log"
    for number in (1, 2):
        one = Child(serve, name="helper", log=log)
        one.send(("say", f"out {number}", f"err {number}"))
        assert one.receive(PATIENCE) == "said"
        one.stop()
    assert log.read_text().split("\n")[:-1] == ["out 1", "err 1", "out 2", "err 2"]


def test_stopping_leaves_nothing():
    """S003-18: no process and no file descriptor; twice is as good as once."""
    children_before, before = _own_children(), len(os.listdir("/proc/self/fd"))
    made = [Child(serve, name="willing"), Child(return_at_once, name="done"), Child(serve, name="dead")]
    stubborn = Child(ignore_the_end, name="stubborn")
    assert stubborn.receive(PATIENCE) == "here"
    assert made[1].receive(PATIENCE) == "done"
    os.kill(made[2].pid, signal.SIGKILL)
    made[0].send(("start",))
    stop_all(made[1:], grace=PATIENCE)
    stubborn.stop(grace=0.1)
    assert stubborn._group.end() == -signal.SIGKILL
    started = made[0].receive(PATIENCE)
    os.kill(made[0].pid, signal.SIGSTOP)
    made[0].stop(grace=0.1)
    wait_until(lambda: is_gone(started), "what a child has started outlived it")
    for one in (*made, stubborn):
        one.stop()
        assert not one.is_alive
    assert _own_children() <= children_before
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_child_that_cannot_be_started_leaves_nothing(monkeypatch):
    """S003-18: neither do arguments that cannot be sent."""
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(child_process.sys, "executable", "/nowhere/python")
    with pytest.raises(FileNotFoundError):
        Child(serve, name="helper")
    with pytest.raises(RecollectError, match=r"helper cannot be started.*cannot be sent to another process"):
        Child(serve, threading.Lock(), name="helper")
    assert len(os.listdir("/proc/self/fd")) == before


def test_large_arguments_do_not_wait_for_the_child():
    """Many children start side by side: nobody waits until one has imported everything."""
    one = Child(_measure, os.urandom(4 << 20), name="helper")
    os.kill(one.pid, signal.SIGSTOP)  # it can read nothing, and the constructor came back all the same
    two = Child(_measure, os.urandom(1 << 20), name="helper")
    os.kill(one.pid, signal.SIGCONT)
    assert (one.receive(PATIENCE), two.receive(PATIENCE)) == (4 << 20, 1 << 20)
    stop_all([one, two])


def _measure(line: Line, data: bytes) -> None:
    line.send(len(data))


def test_children_end_with_their_parent(tmp_path):
    """S003-18: when it is killed with SIGKILL, theirs too. And a script needs no ``if __name__``."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            from recollect.base.child_process import Child
            from tests.base.test_child_process import have_a_child, PATIENCE

            GREETING = "hello"

            class Word:
                def __init__(self, text):
                    self.text = text

            def greet(line, name, count):
                line.send(f"{GREETING} {Word(name).text}" * count)
                line.recv()

            one = Child(greet, "you", 2, name="greeter")
            two = Child(have_a_child, name="outer")
            three = Child(lambda line: line.send(Word("lambda").text), name="lambda")
            print(one.receive(PATIENCE), three.receive(PATIENCE), one.pid, *two.receive(PATIENCE), flush=True)
            input()
            """
        )
    )
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        words = process.stdout.readline().split()
        assert words[:4] == ["hello", "youhello", "you", "lambda"]
        pids = [int(word) for word in words[4:]]
        assert len(pids) == 3
        assert not any(is_gone(pid) for pid in pids)
        process.kill()
    for pid in pids:
        wait_until(lambda pid=pid: is_gone(pid), f"process {pid} outlived its parent")


def _own_children() -> set[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(os.getpid())], capture_output=True, check=False)
    pids = {int(pid) for pid in found.stdout.split()}
    return {pid for pid in pids if Path(f"/proc/{pid}").exists()}
