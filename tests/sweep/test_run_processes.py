"""Processes, a few at a time: none is lost, none is left behind, and a Ctrl-C reaches each once."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from recollect.errors import RecollectError
from recollect.sweep import run_processes as module
from recollect.sweep.run_processes import run_members

TIMEOUT = 60.0


@dataclass(eq=False)
class Script:
    """A task that runs a few lines of Python; ``here`` is its folder, and ``wait(name)`` waits for a file."""

    here: Path
    name: str
    code: str
    busy: Callable[[], bool] = lambda: False
    commands: int = field(default=0)

    @property
    def log(self) -> Path:
        return self.here / f"{self.name}.log"

    def is_busy(self) -> bool:
        return self.busy()

    def command(self) -> list[str] | None:
        self.commands += 1
        if not self.code:
            return None
        head = (
            "import os, signal, subprocess, sys, time\nfrom pathlib import Path\n"
            f"here, name = Path({str(self.here)!r}), {self.name!r}\n"
            "def wait(name):\n"
            f"    limit = time.monotonic() + {TIMEOUT}\n"
            "    while not (here / name).exists() and time.monotonic() < limit: time.sleep(0.01)\n"
        )
        return [sys.executable, "-c", head + self.code]


class Told:
    """What ``run_members`` told, in order; with ``when`` something happens in answer."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []
        self.texts: dict[str, str] = {}
        self.most = 0

    def __call__(self, task: Any, state: str, text: str) -> None:
        self.events.append((task.name, state))
        if text:
            self.texts[task.name] = text
        states = dict(self.events)
        self.most = max(self.most, sum(state == "running" for state in states.values()))

    @property
    def last(self) -> dict[str, str]:
        return dict(self.events)


def wait_for(condition: Callable[[], Any]) -> None:
    limit = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < limit, "it has not happened"
        time.sleep(0.01)


def in_thread(*actions: Callable[[], Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: [action() for action in actions], daemon=True)
    thread.start()
    return thread


def is_alive(pid: int) -> bool:
    """A zombie, which nobody has reaped yet, is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def quiet(_: int) -> None:
    pass


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_all_are_done_a_few_at_a_time(tmp_path):
    tasks = [Script(tmp_path, f"t{i}", "print('said by', name)") for i in range(5)]
    told = Told()
    assert run_members(tasks, 2, on_change=told, tick=quiet) == 0
    assert told.last == dict.fromkeys((task.name for task in tasks), "finished")
    assert [name for name, state in told.events if state == "running"] == ["t0", "t1", "t2", "t3", "t4"]
    assert told.most <= 2
    assert "said by t3" in tasks[3].log.read_text()
    assert tasks[3].log.read_text().startswith("$ ")


def test_as_many_run_as_may(tmp_path):
    """Each of two waits for the other, which one at a time never could."""
    code = "(here / name).touch(); wait('a' if name == 'b' else 'b')"
    told = Told()
    assert (
        run_members([Script(tmp_path, "a", code), Script(tmp_path, "b", code)], 2, on_change=told, tick=quiet)
        == 0
    )
    assert set(told.last.values()) == {"finished"}


def test_one_that_fails_stops_no_other(tmp_path):
    tasks = [
        Script(tmp_path, "bad", "print('first'); sys.exit('error: no such thing')"),
        Script(tmp_path, "killed", "os.kill(os.getpid(), signal.SIGKILL)"),
        Script(tmp_path, "good", "pass"),
        Script(tmp_path, "nothing", ""),
    ]
    tasks[0].log.write_text("of an earlier time\n")
    told = Told()
    assert run_members(tasks, 1, on_change=told, tick=quiet) == 0
    assert told.last == {"bad": "failed", "killed": "failed", "good": "finished", "nothing": "finished"}
    assert told.texts["bad"].splitlines() == ["first", "error: no such thing", "ended with exit code 1"]
    assert "SIGKILL" in told.texts["killed"]
    assert "memory" in told.texts["killed"]
    assert tasks[0].log.read_text().startswith("of an earlier time\n$ ")


def test_what_cannot_be_started_fails(tmp_path):
    class Broken(Script):
        def command(self) -> list[str] | None:
            raise RecollectError("the folder is damaged")

    class Absent(Script):
        def command(self) -> list[str] | None:
            return [str(tmp_path / "absent")]

    told = Told()
    tasks = [Broken(tmp_path, "broken", ""), Absent(tmp_path, "absent", ""), Script(tmp_path, "good", "pass")]
    run_members(tasks, 1, on_change=told, tick=quiet)
    assert told.last == {"broken": "failed", "absent": "failed", "good": "finished"}
    assert told.texts["broken"] == "the folder is damaged"


COUNTS = """
count = 0
def handle(*_):
    global count
    count += 1
signal.signal(signal.SIGINT, handle)
(here / f'{name}-ready').touch()
wait('go')
(here / f'{name}-count').write_text(str(count))
sys.exit(130 if count else 0)
"""


def test_ctrl_c_reaches_each_once_and_they_save(tmp_path):
    tasks = [Script(tmp_path, name, COUNTS) for name in ("a", "b", "c")]
    told, seen = Told(), []
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    helper = in_thread(
        lambda: wait_for(lambda: (tmp_path / "a-ready").exists() and (tmp_path / "b-ready").exists()),
        interrupt,
        lambda: wait_for(lambda: len([n for n in seen if n == 1]) > 5),  # long after they got theirs
        (tmp_path / "go").touch,
    )
    assert run_members(tasks, 2, on_change=told, tick=seen.append) == signal.SIGINT
    helper.join(TIMEOUT)
    assert told.last == {"a": "stopped", "b": "stopped"}
    assert [(tmp_path / f"{name}-count").read_text() for name in "ab"] == ["1", "1"]
    assert tasks[2].commands == 0
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_several_words_of_the_system_are_no_second_ctrl_c():
    asked = [signal.SIGHUP, signal.SIGTERM, signal.SIGINT]
    assert [module._urgency(asked[:count]) for count in range(4)] == [0, 1, 1, 1]
    assert module._urgency([*asked, signal.SIGINT]) == 2


STUBBORN = """
signal.signal(signal.SIGINT, signal.SIG_IGN)
below = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
(here / 'pids').write_text(f'{os.getpid()} {below.pid}')
(here / 'ready').touch()
wait('never')
"""


def test_a_second_ctrl_c_kills_with_all_that_was_started(tmp_path):
    told, seen = Told(), []
    helper = in_thread(
        lambda: wait_for((tmp_path / "ready").exists),
        interrupt,
        lambda: wait_for(lambda: 1 in seen),
        interrupt,
    )
    assert (
        run_members([Script(tmp_path, "a", STUBBORN)], 1, on_change=told, tick=seen.append) == signal.SIGINT
    )
    helper.join(TIMEOUT)
    assert told.last == {"a": "stopped"}
    for pid in (tmp_path / "pids").read_text().split():
        wait_for(lambda pid=pid: not is_alive(int(pid)))


def test_who_does_not_save_in_time_is_killed(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "GRACE", 0.2)
    told = Told()
    helper = in_thread(lambda: wait_for((tmp_path / "ready").exists), interrupt)
    assert run_members([Script(tmp_path, "a", STUBBORN)], 1, on_change=told, tick=quiet) == signal.SIGINT
    helper.join(TIMEOUT)
    assert told.last == {"a": "stopped"}


def test_an_error_leaves_nobody_behind(tmp_path):
    """The processes are asked to save, and waited for."""
    until_asked = "while not count and time.monotonic() < limit: time.sleep(0.01)"
    code = COUNTS.replace("wait('go')", f"limit = time.monotonic() + {TIMEOUT}\n{until_asked}")
    task = Script(tmp_path, "a", code)

    def tick(_: int) -> None:
        if (tmp_path / "a-ready").exists():
            raise RuntimeError("the display broke")

    with pytest.raises(RuntimeError, match="the display broke"):
        run_members([task], 1, on_change=Told(), tick=tick)
    assert (tmp_path / "a-count").read_text() == "1"


def test_what_a_process_leaves_behind_ends_with_it(tmp_path):
    code = "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    told = Told()
    run_members(
        [Script(tmp_path, "a", code + "(here / 'pid').write_text(str(p.pid))")], 1, on_change=told, tick=quiet
    )
    assert told.last == {"a": "finished"}
    wait_for(lambda: not is_alive(int((tmp_path / "pid").read_text())))


def test_who_has_to_wait_lets_the_others_go_first(tmp_path):
    second = Script(tmp_path, "second", "(here / 'free').touch()")
    first = Script(tmp_path, "first", "pass", busy=lambda: not (tmp_path / "free").exists())
    told = Told()
    run_members([first, second], 2, on_change=told, tick=quiet)
    assert [name for name, state in told.events if state == "running"] == ["second", "first"]


def test_nobody_waits_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "BUSY", 0.2)
    told = Told()
    run_members([Script(tmp_path, "a", "pass", busy=lambda: True)], 1, on_change=told, tick=quiet)
    assert told.last == {"a": "finished"}


def test_in_a_thread_no_signal_is_taken(tmp_path):
    told, before = Told(), signal.getsignal(signal.SIGINT)
    thread = in_thread(lambda: run_members([Script(tmp_path, "a", "pass")], 1, on_change=told, tick=quiet))
    thread.join(TIMEOUT)
    assert told.last == {"a": "finished"}
    assert signal.getsignal(signal.SIGINT) == before
