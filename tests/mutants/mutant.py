"""A mutant: a healthy function with a line or two changed into a known bug, and what must notice it."""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import recollect
from recollect.errors import RecollectError

FAILURES = (AssertionError, RecollectError, pytest.fail.Exception)
"""How a proof may fail; the last is how ``pytest.raises`` does. Anything else tells of an accident."""
TESTS, LIBRARY = str(Path(__file__).parents[1]), str(Path(recollect.__file__).parent)

Edit = tuple[Any, str, str, str]
"""(class or module, function, old text, new text); the old text stands in the function exactly once."""


@dataclass(frozen=True)
class Mutant:
    """One bug, and the proof that must see it."""

    name: str
    proof: Callable[[], None]
    edits: tuple[Edit, ...]
    by: str
    """What must notice it: a part of the line that fails, of the lines that led there, or of the error."""
    known: str = ""
    """Who had it, where that is known."""

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        """Put the bug into the library for as long as ``patch`` lasts."""
        for owner, name in dict.fromkeys((owner, name) for owner, name, _, _ in self.edits):
            changes = [edit[2:] for edit in self.edits if edit[:2] == (owner, name)]
            _swap(patch, owner, name, changes)

    def assert_caught(self) -> None:
        """The proof passes on healthy code, and fails on the bug where it is meant to and nowhere else."""
        _passes(self.proof)
        with pytest.MonkeyPatch.context() as patch:
            self.apply(patch)
            with pytest.raises(FAILURES) as noticed:
                self.proof()
        found = _evidence(noticed.value)
        assert self.by, "a mutant names what must notice it"
        assert self.by in found, f"{self.name}: not noticed by {self.by!r}, but:\n{found}"


@functools.cache
def _passes(proof: Callable[[], None]) -> None:
    """Run it, once for all the mutants that it has to catch."""
    proof()


def _evidence(error: BaseException) -> str:
    """The lines of the tests that led to an error, and its class and text.

    Raises it again if it is an assertion of the library's own, which tells of an accident and not of a bug.
    """
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, AssertionError) and frames[-1].filename.startswith((LIBRARY, "<mutant")):
        raise error
    lines = [f"{frame.name}: {frame.line}" for frame in frames if frame.filename.startswith(TESTS)]
    return "\n".join([*lines, f"{type(error).__name__}: {error}"])


def _swap(patch: pytest.MonkeyPatch, owner: Any, name: str, changes: list[tuple[str, ...]]) -> None:
    healthy = getattr(owner, name)
    function = inspect.unwrap(getattr(healthy, "fn", healthy))  # ``fn`` of a Triton kernel
    source = textwrap.dedent(inspect.getsource(function))
    for old, new in changes:
        if source.count(old) != 1:
            raise LookupError(f"{name} has {old!r} {source.count(old)} times: the mutant needs a new edit")
        source = source.replace(old, new)
    scope: dict[str, Any] = {}
    file = f"<mutant of {name}>"
    # Triton's interpreter reads the source again.
    patch.setitem(linecache.cache, file, (len(source), None, source.splitlines(True), file))
    exec(compile(source, file, "exec"), function.__globals__, scope)
    patch.setattr(owner, name, scope[name])
    for module in list(sys.modules.values()):  # wherever it was imported by name
        if getattr(module, "__name__", "").startswith(("recollect", "tests")):
            for alias, value in list(vars(module).items()):
                if value is healthy:
                    patch.setattr(module, alias, scope[name])
