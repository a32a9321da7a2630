"""The result of a check, and the probes that make one result out of several measurements."""

from __future__ import annotations

import textwrap
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from recollect.errors import RecollectError

Status = Literal["ok", "warning", "failed", "skipped"]

PARTS = {
    "env": "env",
    "buffer": "buffer size",
    "state": "storage and retrieval of state",
    "training": "training loop",
    "gradient": "gradient flow",
}
"""The parts in their order, in words."""
NAME_WIDTH, STATUS_WIDTH = 16, 9


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a verification."""

    part: str
    """The group of the check: env, buffer, state, training or gradient."""
    name: str
    """The name of the check."""
    status: Status
    """A warning is worth a look and fails nothing."""
    found: str
    """The finding, with its numbers."""
    advice: tuple[str, ...] = ()
    """The likely cause and the fix, if it failed; what to look at, if it is a warning."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.status != "failed"

    def lines(self, width: int = 80) -> list[str]:
        """The check as text: status, name and numbers, then the advice, wrapped to ``width``."""
        word = "FAILED" if self.status == "failed" else self.status
        head = f"  {word:<{STATUS_WIDTH}}{self.name:<{NAME_WIDTH}}"
        indent = " " * len(head)
        room = max(width, len(head) + 20)
        lines = textwrap.wrap(head + self.found, room, subsequent_indent=indent, break_on_hyphens=False)
        for text in self.advice:
            lines += textwrap.wrap(
                text,
                room,
                initial_indent=f"{indent}- ",
                subsequent_indent=f"{indent}  ",
                break_on_hyphens=False,
            )
        return lines


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of ``verify``."""

    env: str
    """The env in a word."""
    checks: list[Check]
    notes: tuple[str, ...] = field(default=())
    """The settings that were made smaller than in the config, to take seconds."""

    @property
    def ok(self) -> bool:
        """Whether no check failed. Warnings fail nothing."""
        return all(check.ok for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.ok]

    def __getitem__(self, name: str) -> Check:
        """The check of this name, such as "stored states"."""
        return next(check for check in self.checks if check.name == name)

    def __str__(self) -> str:
        lines = [self.summary]
        if self.notes:
            lines.append(f"made smaller: {', '.join(self.notes)}")
        for part, title in PARTS.items():
            lines += [title, *(line for check in self.checks if check.part == part for line in check.lines())]
        return "\n".join(lines)

    @property
    def summary(self) -> str:
        """One line."""
        counts = {status: sum(check.status == status for check in self.checks) for status in _WORDS}
        said = ", ".join(f"{count} {_WORDS[status]}" for status, count in counts.items() if count)
        return f"{self.env}: {said}"


_WORDS = {"ok": "ok", "failed": "FAILED", "warning": "to look at", "skipped": "not tried"}


def small(x: float) -> str:
    """A deviation in few signs."""
    return "0" if x == 0 else f"{x:.0e}"


class Problem(Exception):  # noqa: N818 (a result, not an error of the program)
    """Raised by a check that fails: what was found, then the likely cause and the fix."""

    def __init__(self, found: str, *advice: str):
        super().__init__(found)
        self.found, self.advice = found, advice


class Doubt(Problem):
    """Raised by a check that could not tell, or found something that is no failure: a warning."""


class Skip(Problem):
    """Raised by a check that does not apply."""


def checked(part: str, name: str, look: Callable[[], str]) -> Check:
    """Run ``look``, which returns what it found or raises; whatever it raises becomes a result."""
    try:
        return Check(part, name, "ok", look())
    except Skip as skip:
        return Check(part, name, "skipped", skip.found, skip.advice)
    except Doubt as doubt:
        return Check(part, name, "warning", doubt.found, doubt.advice)
    except Problem as problem:
        return Check(part, name, "failed", problem.found, problem.advice)
    except RecollectError as error:
        return Check(part, name, "failed", f"{type(error).__name__}: {error}")  # says cause and fix itself
    except Exception as error:
        return Check(part, name, "failed", f"{type(error).__name__}: {error}", (_blame(error),))


def _blame(error: Exception) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"raised in {last.filename}, line {last.lineno}, {last.name}"
