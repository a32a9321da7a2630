"""Notices: words about slow work before the display of a run opens, such as making thousands of envs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 1.0
"""Seconds before the first notice."""
EVERY = 5.0
"""Seconds between two notices."""

_listener: ContextVar[Callable[[str], None] | None] = ContextVar("listener", default=None)


@contextmanager
def heard_by(listener: Callable[[str], None]) -> Iterator[None]:
    """Pass notices to ``listener`` within the context. Without any listener they are dropped."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def counted(items: Sequence[T], what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """The items, with notices about the progress if they take long: "making 4,000 envs: 1,200 made"."""
    listener, due = _listener.get(), clock() + PATIENCE
    for done, item in enumerate(items):
        if listener is not None and done and clock() >= due:
            listener(f"making {len(items):,} {what}: {done:,} made")
            due = clock() + EVERY
        yield item
