"""The setting ``curriculum``: settings of the env that change with the env steps done, at resets only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recollect.config.convert import number, plain_value
from recollect.errors import ConfigError

Stages = dict[int, dict[str, Any]]
"""Settings by the env steps from which on they hold, in order."""
EXAMPLE = "{0: {team: 1}, 500k: {team: 3}}"


def as_stages(value: Any) -> Stages:
    """``curriculum`` with numbers as its keys; a text is YAML or JSON, for the command line."""
    found = plain_value(value) if isinstance(value, str) else value
    if found in (None, "", {}):
        return {}
    if not isinstance(found, Mapping) or not all(isinstance(stage, Mapping) for stage in found.values()):
        raise ConfigError(
            f"curriculum = {value!r}: give a mapping from env steps to settings of the env, such as {EXAMPLE}"
        )
    stages = {
        _steps(key): {str(name): setting for name, setting in stage.items()} for key, stage in found.items()
    }
    if len(stages) < len(found):
        raise ConfigError(f"curriculum = {value!r}: a number of env steps is there twice")
    return dict(sorted(stages.items()))


def settings_at(stages: Stages, steps: int | None = None) -> dict[str, Any]:
    """The settings after ``steps`` env steps; None: those of the last stage.

    A setting that a stage does not name stays as in the stage before.
    """
    found: dict[str, Any] = {}
    for start, stage in stages.items():
        if steps is None or start <= steps:
            found |= stage
    return found


def _steps(key: Any) -> int:
    try:
        found = number(key) if isinstance(key, str) else key
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 0 or found != int(found):
        raise ConfigError(
            f"curriculum has the key {key!r}: its keys are env steps from 0 on, such as 0 or 500k: {EXAMPLE}"
        )
    return int(found)
