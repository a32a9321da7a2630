"""Mutants in other processes: the edits travel with the work that a child is given, and are made before it.

All processes that the library starts (actors, env workers, learners, Ray actors) get their work as pickled
bytes, so that the library needs no hook for this.
"""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest

from tests.mutants.mutant import Edit, Mutant

SENDERS = ("recollect.base.child_process", "recollect.runtimes.ray.cluster")
"""The modules that pickle work for other processes."""


class ChildMutant(Mutant):
    """A bug in every process that this one starts, and in those that they start. This one stays healthy."""

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        """Let every process that is started while ``patch`` lasts have the bug."""
        _send_along(self.edits, patch)


class _Planted:
    """Work whose opening makes the edits first."""

    def __init__(self, edits: tuple[Edit, ...], work: bytes):
        self.edits, self.work = edits, work

    def __reduce__(self) -> Any:
        return _open, (self.edits, self.work)


def _send_along(edits: tuple[Edit, ...], patch: pytest.MonkeyPatch) -> None:
    sender = SimpleNamespace(dumps=lambda work: cloudpickle.dumps(_Planted(edits, cloudpickle.dumps(work))))
    for name in SENDERS:
        if name in sys.modules:
            patch.setattr(sys.modules[name], "cloudpickle", sender)


def _open(edits: tuple[Edit, ...], work: bytes) -> Any:
    """In the child: make the edits, which stay until its end, and return the work."""
    patch = pytest.MonkeyPatch()
    Mutant("in this process", lambda: None, edits, "").apply(patch)
    _send_along(edits, patch)
    return pickle.loads(work)
