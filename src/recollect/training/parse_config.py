"""The config of a command line: its flags and files, and the preset of the task."""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

from recollect.base.import_code import is_importing
from recollect.config.core_choice import name_of
from recollect.config.flags import build_flags
from recollect.config.own_code import OwnCode, as_own_code
from recollect.config.settings import Built
from recollect.config.train import TrainConfig
from recollect.training.presets import preset


@dataclass(frozen=True, slots=True)
class Parsed:
    """The result of a command line."""

    env: str | None
    """The env's name, from the command line or a file."""
    config: TrainConfig
    policy: OwnCode | None
    """The factory of the policy, if the user names one."""
    given: dict[str, Any]
    """The user's settings, as keywords of ``recollect.train``."""
    preset: dict[str, Any]
    """The settings that the preset chose beside them."""
    notes: list[str]
    """Notes for the user, each a line."""


def parse_config(
    flags: list[str], *, env: str | None = None, base: TrainConfig | None = None, presets: bool = True
) -> Parsed:
    """The config that ``flags`` describe.

    Args:
        flags: the words of the command line that are config flags (see ``config.flags.split_argv``).
        env: the env as named outside of the flags; it wins over that of a file.
        base: settings to start from, such as those of a run to resume; then no preset is applied.
        presets: whether to start from the preset of a built-in task, as ``recollect.train`` does.
    """
    built = build_flags(flags, env=env, base=base)
    chosen = _preset(built) if presets and base is None else {}
    settings, policy = built.given | chosen, as_own_code("policy", built.given.get("policy"))
    if isinstance(policy, OwnCode):
        del settings["policy"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        config = (base or TrainConfig()).override(**settings)
    notes = built.notes + [str(warning.message) for warning in caught]
    factory = policy if isinstance(policy, OwnCode) else None
    return Parsed(built.env, config, factory, built.given, chosen, notes)


def _preset(built: Built) -> dict[str, Any]:
    """The preset's choices beside the given settings, as in ``recollect.train``.

    The preset does not change the gates of a core with given settings; a note names those it would choose.
    """
    if built.env is None or not built.use_preset:
        return {}
    # The name of a policy leaves the core open, a factory does not.
    is_open = not is_importing(built.given.get("policy"))
    asked = {name: value for name, value in built.given.items() if name != "policy" or not is_open}
    core = asked.get("core")
    if dataclasses.is_dataclass(core) and not isinstance(core, type):
        suits = preset(built.env, asked | {"core": name_of(core)}).get("core")
        fields = [] if suits is None else dataclasses.fields(suits)
        other = [
            f"--core.{field.name.replace('_', '-')} {value}"
            for field in fields
            if f"core.{field.name}" not in built.paths
            and isinstance(value := getattr(suits, field.name), int | float)
            and value != getattr(core, field.name)
        ]
        if other:
            built.notes.append(
                f"this task would suit {' '.join(other)}: a preset changes no core with given settings"
            )
    return preset(built.env, asked)
