"""A mutant: a healthy function with a line or two changed into a known bug."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Edit = tuple[Any, str, str, str]
"""(class or module, function, old text, new text); the old text stands in the function exactly once."""


@dataclass(frozen=True)
class Mutant:
    """One bug, and the proof that must see it."""

    name: str
    proof: Callable[[], None]
    edits: tuple[Edit, ...]
    known: str = ""
    """Who had it, where that is known."""

    def apply(self, patch: pytest.MonkeyPatch) -> None:
        """Put the bug into the library for as long as ``patch`` lasts."""
        for owner, name in dict.fromkeys((owner, name) for owner, name, _, _ in self.edits):
            changes = [edit[2:] for edit in self.edits if edit[:2] == (owner, name)]
            _swap(patch, owner, name, changes)


def _swap(patch: pytest.MonkeyPatch, owner: Any, name: str, changes: list[tuple[str, ...]]) -> None:
    healthy = getattr(owner, name)
    source = textwrap.dedent(inspect.getsource(healthy))
    for old, new in changes:
        if source.count(old) != 1:
            raise LookupError(f"{name} has {old!r} {source.count(old)} times: the mutant needs a new edit")
        source = source.replace(old, new)
    scope: dict[str, Any] = {}
    exec(compile(source, f"<mutant of {name}>", "exec"), inspect.unwrap(healthy).__globals__, scope)
    patch.setattr(owner, name, scope[name])
    for module in list(sys.modules.values()):  # wherever it was imported by name
        if getattr(module, "__name__", "").startswith(("recollect", "tests")):
            for alias, value in list(vars(module).items()):
                if value is healthy:
                    patch.setattr(module, alias, scope[name])
