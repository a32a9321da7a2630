"""What all tests share: one thread, so that small tensors are fast and results do not depend on cores."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.support import interpreted, reads, warm
from tests.support.registered import forgetting

LONG = Path(__file__).with_name("long.txt")
"""Test functions of which a case takes 0.1 seconds or more, and whole files where setting up takes that long:
what tests share is set up for the first that is left. `make durations` writes it, without folders: a file may
move."""
TIMEOUT, SLOW_TIMEOUT = 600, 3600
"""Seconds after which a test that hangs fails, and a slow one: several times what they take on busy cores."""

settings.register_profile("few", max_examples=8, deadline=None)
settings.register_profile("many", max_examples=100, deadline=None)  # of `make test-slow`
settings.load_profile("few")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts background jobs like this, and programs that tests start would ignore Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when a kernel is defined


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="leave out the tests listed in tests/long.txt")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out long tests with ``--fast``, and give every other its timeout.

    (In pyproject.toml a timeout would be an error where the plugin is missing.)
    """
    if config.getoption("fast"):
        names, kept, left_out = set(LONG.read_text().split()), list[pytest.Item](), list[pytest.Item]()
        for item in items:
            function = item.nodeid.partition("[")[0].rpartition("/")[2]
            is_long = not names.isdisjoint((function, function.partition("::")[0]))
            (left_out if is_long else kept).append(item)
        items[:] = kept
        config.hook.pytest_deselected(items=left_out)
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            seconds = SLOW_TIMEOUT if item.get_closest_marker("slow") else TIMEOUT
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(seconds))


def pytest_collection_finish() -> None:
    """Take thousands of tests and imports out of garbage collection: each would look at them all again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Remove runs that the cases of settings share: workers of xdist end without a clean-up."""
    if cases := sys.modules.get("tests.support.config_cases"):
        cases.RUNS.cleanup()


@pytest.fixture(autouse=True)
def _own_parts() -> Iterator[None]:
    """Parts that a test registers are forgotten at its end."""
    with forgetting():
        yield


@pytest.fixture(autouse=True, scope="session")
def _quick_disk() -> Iterator[None]:
    """Skip fsync, which protects against a power cut and makes every checkpoint wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust in runs is kept in a folder of the tests, not in the home of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def unread() -> Callable[[], AbstractContextManager[None]]:
    """``with unread():`` code takes the path of a GPU, and whatever reads a number on the host raises."""
    return reads.unread


@pytest.fixture
def fused_on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels in Triton's interpreter, wherever they suit; skips where there is no Triton."""
    interpreted.on_cpu(monkeypatch)


@pytest.fixture
def warm_children() -> Iterator[None]:
    """Python processes are forked with everything imported, not started as fresh interpreters."""
    with warm.used():
        yield
