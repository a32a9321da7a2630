"""Runs whose own code the user trusts on this machine (decision 028).

A run folder names code: its env, wrappers, core, encoder, head and policy, and options for them. It is
imported only if the user names it again, or trusts the run: by ``--trust`` (``trust=True``), or by training
it here with ``recollect train``. Trust is one small file for each run, outside of the run::

    $XDG_STATE_HOME/recollect/trusted/<sha256 of the run's path>.json     (default ~/.local/state)

It holds a digest of the run's real path, of these settings, and of the places that the code is imported from.
A run that was moved, copied or edited, or whose names lead to other files, is not trusted any more.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recollect.base import files
from recollect.base.import_code import is_importing, place
from recollect.base.run_files import CHECKPOINTS
from recollect.config.own_code import code_flags, code_name, option_flags
from recollect.config.tasks import task_name
from recollect.errors import RecollectError
from recollect.training.callbacks import Callback

if TYPE_CHECKING:
    from recollect.training.run_loop import Training

FORMAT = 1


def required(description: Any) -> dict[str, Any]:
    """The settings that need trust, from the JSON of an agent or a run, by the names of ``recollect.load``.

    Parts made by code without a name ("custom") are left out: they cannot be imported.
    """
    description = description if isinstance(description, dict) else {}
    env, config = description.get("env"), _mapping(description.get("config"))
    network, options, wrap = _mapping(config.get("policy")), config.get("env_kwargs"), config.get("wrap")
    found: dict[str, Any] = {"env": env} if is_importing(env) else {}
    if env is not None and options and isinstance(options, dict) and not task_name(env):
        found["env_kwargs"] = options
    if wrap and isinstance(wrap, list) and all(code_name(spec) for spec in wrap):
        found["wrap"] = wrap
    imports = config.get("imports")
    if imports and isinstance(imports, list) and all(isinstance(source, str) for source in imports):
        found["imports"] = imports
    return found | {
        part: network[part]
        for part in ("policy", "core", "encoder", "head")
        if code_name(network.get(part)) is not None
    }


def flags(settings: dict[str, Any]) -> list[str]:
    """The settings that need trust as command-line flags."""
    words = [f"--import={source}" for source in settings.get("imports", ())]
    words += [f"--env={settings['env']}"] if "env" in settings else []
    words += option_flags("task", settings.get("env_kwargs", {}))
    words += [word for spec in settings.get("wrap", ()) for word in code_flags("wrap", spec)]
    parts = [part for part in ("policy", "core", "encoder", "head") if part in settings]
    return words + [word for part in parts for word in code_flags(part, settings[part])]


def hint(description: Any, init_from: str | None = None) -> str:
    """The end of an error about code that is not trusted: how to trust it, and all of it.

    ``init_from``: the run as the user named it, if a new run starts from its weights: ``recollect train`` has
    no ``--trust``.
    """
    words = files.short(shlex.join(flags(required(description))))
    how = "with --trust (trust=True)"
    if init_from is not None:
        command = shlex.join(["recollect", "eval", init_from, "--trust"])
        how = f"beforehand with {command} (recollect.load({init_from!r}, trust=True))"
    return f"; or trust all code of this run, {words}, {how}"


def remembered(folder: Path) -> list[str]:
    """The flags that are trusted in this run or saved agent, now or before it was changed; for messages."""
    with contextlib.suppress(RecollectError):
        words = files.read_json(_file(_run_of(folder))).get("trusted")
        return [str(word) for word in words] if isinstance(words, list) else []
    return []


def remember(folder: Path, description: dict[str, Any]) -> bool:
    """Trust the code that this run or saved agent names, on this machine. Returns whether it was stored."""
    settings, run = required(description), _run_of(folder)
    if not settings:
        return True
    data = {"format": FORMAT, "run": str(run), "trusted": flags(settings), "digest": _digest(run, settings)}
    file = _file(run)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with files.replacing(file) as beside:
            beside.touch(0o600, exist_ok=False)
            beside.write_text(json.dumps(data, indent=2) + "\n")
    except (OSError, RecollectError):
        return False
    return True


class TrustsOwnRun(Callback):
    """Trusts a run that starts here: the user has just named all of its code."""

    def on_start(self, training: Training) -> None:
        """Remember it, as far as the state folder can be written."""
        if training.run is not None:
            remember(training.run.path, training.run.description)


def is_trusted(folder: Path, description: dict[str, Any]) -> bool:
    """Whether the user trusts exactly this code of this run or saved agent."""
    settings, run = required(description), _run_of(folder)
    if not settings or not os.path.lexists(_file(run)):
        return False
    try:
        data = files.read_json(_file(run))
    except RecollectError:  # a damaged file trusts nothing
        return False
    return data.get("format") == FORMAT and data.get("digest") == _digest(run, settings)


def _digest(run: Path, settings: dict[str, Any]) -> str:
    names = [settings.get("env"), *(code_name(spec) for spec in settings.get("wrap", ()))]
    names += [code_name(settings.get(part)) for part in ("policy", "core", "encoder", "head")]
    names += [f"{source}:" for source in settings.get("imports", ())]
    places = {name: place(name) for name in names if name is not None}
    text = json.dumps([FORMAT, str(run), settings, places], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _run_of(folder: Path) -> Path:
    """The real path of the run that a checkpoint belongs to, or of the folder itself."""
    real = folder.resolve()
    is_checkpoint = real.parent.name == CHECKPOINTS and (real.parent.parent / "run.json").is_file()
    return real.parent.parent if is_checkpoint else real


def _file(run: Path) -> Path:
    base = os.environ.get("XDG_STATE_HOME", "")
    state = (
        Path(base) if os.path.isabs(base) else Path.home() / ".local" / "state"
    )  # as the XDG standard has it
    return state / "recollect" / "trusted" / f"{hashlib.sha256(str(run).encode()).hexdigest()}.json"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
