"""The results of checks, and the exceptions that a check reports a finding with."""

from __future__ import annotations

import textwrap
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from recollect.base import tracebacks
from recollect.base.files import finite
from recollect.base.formatting import tiny
from recollect.errors import RecollectError

Status = Literal["ok", "warning", "failed", "skipped", "not checked"]

PARTS = {
    "env": "env",
    "buffer": "buffer size",
    "state": "storage and retrieval of state",
    "returns": "advantages and returns",
    "head": "distributions of actions",
    "training": "training loop",
    "gradient": "gradient flow",
}
"""The titles of the parts, in order."""
NAME_WIDTH, STATUS_WIDTH = 24, 12
CAUSE, FIX = "Likely cause: ", "Fix: "
"""How the advice begins that names the cause and the fix."""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of a verification."""

    part: str
    """The part of the audit, a key of ``PARTS``."""
    name: str
    """The name of the check."""
    status: Status
    """A warning is no failure. "skipped": does not apply; "not checked": the trainer offers no way to."""
    found: str
    """The finding, with its numbers."""
    advice: tuple[str, ...] = ()
    """The likely cause and the fix; for a warning, its meaning."""
    frames: str = ""
    """The frames of the user's code, if it raised an error."""
    group: str = ""
    """The group of agents whose policy was checked, if the env has several."""
    measured: float | None = None
    """The number that decided, where there is one."""
    tolerance: float | None = None
    """The largest number that passes."""

    @property
    def cause(self) -> str:
        """The likely cause, for a check that did not pass."""
        return self._said(CAUSE)

    @property
    def fix(self) -> str:
        """The fix, for a check that did not pass."""
        return self._said(FIX)

    def _said(self, begin: str) -> str:
        return " ".join(text.removeprefix(begin) for text in self.advice if text.startswith(begin))

    @property
    def ok(self) -> bool:
        """Whether the check did not fail."""
        return self.status != "failed"

    def lines(self, width: int = 80) -> list[str]:
        """The check as text: status, name and numbers, then the advice, wrapped to ``width``; the frames."""
        word = "FAILED" if self.status == "failed" else self.status
        head = f"  {word:<{STATUS_WIDTH}}{self.name:<{NAME_WIDTH}}"
        indent = " " * len(head)
        room = max(width, len(head) + 20)
        group = f"group {self.group}: " if self.group else ""
        said = self.found
        if self.tolerance is not None and "tolerance" not in said:
            said += f" (tolerance {tiny(self.tolerance)})"
        lines = textwrap.wrap(head + group + said, room, subsequent_indent=indent, break_on_hyphens=False)
        for text in self.advice:
            lines += textwrap.wrap(
                f"{indent}- {text}", room, subsequent_indent=f"{indent}  ", break_on_hyphens=False
            )
        return [*lines, *textwrap.indent(self.frames, indent).splitlines()]


@dataclass(frozen=True, slots=True)
class Verification:
    """The results of ``verify``."""

    env: str
    """The name of the env."""
    checks: list[Check]
    notes: tuple[str, ...] = ()
    """The settings that are smaller than in the config, so that it takes seconds."""

    @property
    def ok(self) -> bool:
        """Whether no check failed."""
        return all(check.ok for check in self.checks)

    @property
    def failed(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if not check.ok]

    def __getitem__(self, name: str) -> Check:
        """The check of this name, such as "stored states"; of several groups, the first that failed."""
        found = [check for check in self.checks if check.name == name]
        return next((check for check in found if not check.ok), found[0])

    def of(self, group: str) -> Verification:
        """The checks of one group of agents."""
        return Verification(self.env, [check for check in self.checks if check.group == group], self.notes)

    def __str__(self) -> str:
        lines = [self.summary]
        if self.notes:
            lines.append(f"reduced: {', '.join(self.notes)}")
        for part, title in PARTS.items():
            found = [line for check in self.checks if check.part == part for line in check.lines()]
            lines += [title, *found] if found else []
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """For programs: a check has part, name, status, found, measured, tolerance, cause, fix and advice."""
        checks = [
            asdict(check) | {"advice": list(check.advice), "cause": check.cause, "fix": check.fix}
            for check in self.checks
        ]
        return finite({"env": self.env, "ok": self.ok, "notes": list(self.notes), "checks": checks})

    @property
    def summary(self) -> str:
        """One line."""
        words = {"ok": "ok", "failed": "FAILED", "warning": "with a warning", "skipped": "skipped"}
        words["not checked"] = "not checked"
        counts = Counter(check.status for check in self.checks)
        said = ", ".join(f"{counts[status]} {word}" for status, word in words.items() if counts[status])
        return f"{self.env}: {said}"


class Problem(Exception):  # noqa: N818 (a result, not an error of the program)
    """A check fails: the finding, then the likely cause and the fix."""

    def __init__(
        self, found: str, *advice: str, measured: float | None = None, tolerance: float | None = None
    ):
        super().__init__(found)
        self.found, self.advice, self.measured, self.tolerance = found, advice, measured, tolerance


class Doubt(Problem):
    """A check has no certain result, or a finding that is no failure: a warning."""


class Skip(Problem):
    """A check does not apply."""


class NotOffered(Skip):
    """A check cannot run, because the trainer does not offer what it needs."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A check passes: the finding, and the number that was compared."""

    found: str
    measured: float
    tolerance: float


_STATUS: dict[type[Problem], Status] = {
    NotOffered: "not checked",
    Skip: "skipped",
    Doubt: "warning",
    Problem: "failed",
}


def checked(part: str, name: str, look: Callable[[], str | Passed], group: str = "") -> Check:
    """The result of ``look``, which returns its finding or raises any exception."""
    try:
        found = look()
        if isinstance(found, str):
            return Check(part, name, "ok", found, group=group)
        return Check(
            part, name, "ok", found.found, group=group, measured=found.measured, tolerance=found.tolerance
        )
    except Problem as problem:
        return Check(
            part,
            name,
            _STATUS[type(problem)],
            problem.found,
            problem.advice,
            group=group,
            measured=problem.measured,
            tolerance=problem.tolerance,
        )
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = (f"raised in {last.filename}, line {last.lineno}, {last.name}",)
        frames = tracebacks.user_frames(error)
        is_explained = isinstance(error, RecollectError) or frames  # a text of ours has cause and fix
        advice = () if is_explained else place
        return Check(part, name, "failed", f"{type(error).__name__}: {error}", advice, frames, group)
