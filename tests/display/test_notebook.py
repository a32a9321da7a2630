"""Notebooks: a bar that is updated in place, in a kernel that the tests make up."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from rich.console import Console

from recollect.display import make_display
from recollect.display.lines import Lines
from recollect.display.live import LivePanel
from recollect.display.notebook import Notebook, page
from recollect.display.state import State
from tests.support.display_fakes import INTERVAL, Clock, Tty, make_training, metrics_at, play


class Handle:
    def __init__(self) -> None:
        self.shown: list[dict[str, str]] = []

    def update(self, data: dict[str, str], *, raw: bool) -> None:
        assert raw
        self.shown.append(data)


def fake_ipython(monkeypatch: pytest.MonkeyPatch, shell: type | None) -> Handle:
    handle = Handle()

    def display(data: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        handle.shown.append(data)
        return handle

    package, sub = ModuleType("IPython"), ModuleType("IPython.display")
    package.get_ipython = lambda: None if shell is None else shell()  # type: ignore[attr-defined]
    sub.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", sub)
    return handle


ZMQ = type("ZMQInteractiveShell", (), {})
COLAB = type("Shell", (), {"__module__": "google.colab._shell"})
CONSOLE = type("TerminalInteractiveShell", (), {})


def test_a_notebook_updates_in_place(monkeypatch):
    handle = fake_ipython(monkeypatch, ZMQ)
    clock = Clock()
    display = Notebook(clock)
    training = make_training()
    training.agent.env = "<b>cue"
    play(display, training, clock=clock)
    assert len(handle.shown) == 12  # the start, ten updates, the end
    last = handle.shown[-1]["text/html"]
    assert "&lt;b&gt;cue" in last
    assert '<progress value="1.0000"' in last
    assert f"evaluation 0.600 ({INTERVAL})" in last
    assert "⚠ the gradient was clipped in [every]" in last
    assert "<b>finished</b>: all steps done" in last
    assert "<code>recollect report runs/cue-7</code>" in last
    assert "return    1.00" in handle.shown[-1]["text/plain"]
    assert "interrupt the kernel to save and stop" in handle.shown[-2]["text/html"]
    assert "interrupt the kernel" not in last


def test_a_notebook_is_not_flooded(monkeypatch):
    handle = fake_ipython(monkeypatch, ZMQ)
    clock = Clock()
    display = Notebook(clock)
    training = make_training()
    display.on_start(training)
    for i in range(75):
        clock.now += 0.01
        display.on_iteration(training, metrics_at(training, i))
    assert len(handle.shown) == 2


def test_html_of_a_run_that_has_not_begun():
    assert "return <b>-</b>" in page(State(make_training(run=None), Clock()))


def test_a_notebook_without_ipython_is_plain(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert isinstance(make_display("notebook"), Lines)
    assert "IPython" not in sys.modules


@pytest.mark.parametrize(
    ("shell", "kind"), [(ZMQ, Notebook), (COLAB, Notebook), (CONSOLE, LivePanel), (None, LivePanel)]
)
def test_auto_finds_notebooks(monkeypatch, shell, kind):
    monkeypatch.setenv("TERM", "xterm-256color")
    fake_ipython(monkeypatch, shell)
    assert isinstance(make_display("auto", Console(file=Tty())), kind)
