"""Files of recorded rollouts, which can be written from any language: ``.npz``, or JSON lines.

``.npz`` has an array for each part of ``TracedRollout``, by its name; a tree has one for each leaf, such as
``obs.image`` or ``state.0``. JSON lines (``.jsonl``)::

    {"format": "recollect-trace", "version": 1, "gamma": 0.99, "gae_lambda": 0.95}
    {"first": [true, true], "terminated": [false, false], "truncated": ..., "reward": [0.5, -1.0], ...}
    ...                                                        one line for each step; a list has B rows
    {"end": {"bootstrap": [0.1, 0.2], "state": [[...], [...]], "chunk_index": [[...]], ...}}

``state`` of a step is the memory before it; that of ``end`` the memory after the last step.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.audit.trace import FLAGS, TIMED, TracedRollout
from recollect.base import tree
from recollect.base.types import Tree
from recollect.errors import ConfigError, nearest

FORMAT, VERSION = "recollect-trace", 1
SCALARS = ("gamma", "gae_lambda")
NAMES = tuple(field.name for field in fields(TracedRollout))
REQUIRED = ("first", "terminated", "truncated")
LARGEST = 2**31
"""Size limit in bytes of a file."""


def save_trace(trace: TracedRollout, file: str | Path) -> None:
    """Write a ``.npz`` file."""
    arrays: dict[str, Any] = {}
    for name in trace.parts:
        value = getattr(trace, name)
        if name in SCALARS:
            arrays[name] = np.float64(value)
        else:
            arrays |= {path: leaf.detach().cpu().numpy() for path, leaf in tree.named_leaves(value, name)}
    np.savez_compressed(Path(file), **arrays)


def load_trace(file: str | Path) -> TracedRollout:
    """Read a file. Raises ConfigError with the line or the part that is wrong."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"{path}: there is no such file; --trace needs a .npz or .jsonl file")
    if path.stat().st_size > LARGEST:
        raise ConfigError(
            f"{path} has more than {LARGEST:,} bytes: record fewer steps, a few hundred are enough"
        )
    if path.suffix == ".npz":
        named = _read_npz(path)
    elif path.suffix in (".jsonl", ".json"):
        named = _read_lines(path)
    else:
        raise ConfigError(f"{path}: a trace is a .npz or a .jsonl file (docs/audit.md describes both)")
    return _made(path, named)


def _read_npz(path: Path) -> dict[str, Any]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(
            f"{path} is no readable .npz file of plain arrays: {error}. Write it with numpy.savez, without "
            "object arrays"
        ) from None


def _read_lines(path: Path) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    named: dict[str, Any] = {}
    end: dict[str, Any] | None = None
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, text in enumerate(lines, 1):
            if not text.strip():
                continue
            where = f"{path}, line {number}"
            try:
                line = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where}: not JSON: {error}") from None
            if not isinstance(line, dict):
                raise ConfigError(f"{where}: a {type(line).__name__}; every line is one JSON object")
            if not named:
                named = _header(line, where)
            elif end is not None:
                raise ConfigError(f'{where}: nothing may follow the line with "end"')
            elif set(line) == {"end"}:
                if not isinstance(line["end"], dict):
                    raise ConfigError(f'{where}: "end" must be an object, such as {{"bootstrap": [...]}}')
                end = line["end"]
            else:
                steps.append(_step(line, steps, where))
    if not steps:
        raise ConfigError(f"{path} has no steps: after the header comes one line for each step")
    end = {} if end is None else end
    for name in steps[0]:
        columns = [step[name] for step in steps]
        if name == "state":
            if "state" not in end:
                raise ConfigError(
                    f'{path}: the steps have a state, and "end" has none: it needs the memory after the last '
                    "step, too"
                )
            columns.append(end["state"])
        named |= _leaves(name, columns, str(path))
    for name, value in end.items():
        if name not in NAMES or name in TIMED or name in SCALARS:
            raise ConfigError(f'{path}: "end" may not hold {name!r}{nearest(name, NAMES)}')
        if name != "state":
            named |= _leaves(name, value, str(path), is_list=False)
    return {name: value for name, value in named.items() if name not in ("format", "version")}


def _header(line: dict[str, Any], where: str) -> dict[str, Any]:
    if line.get("format") != FORMAT or line.get("version") != VERSION:
        raise ConfigError(
            f'{where}: the first line must be {{"format": "{FORMAT}", "version": {VERSION}}}, with gamma and '
            "gae_lambda if advantages are to be checked"
        )
    for name in line:
        if name not in (*SCALARS, "format", "version"):
            raise ConfigError(f"{where}: the header has no {name!r}{nearest(name, SCALARS)}")
    return dict(line)


def _step(line: dict[str, Any], steps: list[dict[str, Any]], where: str) -> dict[str, Any]:
    for name in line:
        if name not in TIMED and name != "state":
            raise ConfigError(f"{where}: a step has no {name!r}{nearest(name, (*TIMED, 'state'))}")
    if steps and line.keys() != steps[0].keys():
        differing = sorted(line.keys() ^ steps[0].keys())
        raise ConfigError(f"{where}: {', '.join(differing)} is in some steps and not in others")
    return line


def _leaves(name: str, value: Any, where: str, *, is_list: bool = True) -> dict[str, Any]:
    """Arrays by path. ``value``: of all steps if ``is_list``; an object has a leaf for each of its keys."""
    sample = value[0] if is_list else value
    if isinstance(sample, dict):
        found = {}
        for key in sample:
            try:
                inner = [one[key] for one in value] if is_list else value[key]
            except (KeyError, TypeError):
                raise ConfigError(f"{where}: {name} has no {key!r} in every step") from None
            found |= _leaves(f"{name}.{key}", inner, where, is_list=is_list)
        return found
    try:
        return {name: np.array(value)}
    except ValueError:
        raise ConfigError(f"{where}: {name} has not the same number of rows everywhere") from None


def _made(path: Path, named: Mapping[str, Any]) -> TracedRollout:
    parts: dict[str, Any] = {}
    for name, value in named.items():
        top = name.split(".")[0]
        if top not in NAMES:
            raise ConfigError(f"{path} has an unknown part {name!r}{nearest(top, NAMES)}")
        if top in SCALARS:
            parts[top] = _number(path, top, value)
            continue
        _put(parts, name.split("."), _tensor(path, name, top, value))
    missing = [name for name in REQUIRED if name not in parts]
    if missing:
        raise ConfigError(
            f"{path} has no {', '.join(missing)}: first, terminated and truncated [T, B] are required, "
            "booleans that are kept apart"
        )
    try:
        return TracedRollout(**{name: _tuples(value) for name, value in parts.items()})
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def _number(path: Path, name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{path}: {name} must be one number, not {str(value)[:60]}") from None


def _tensor(path: Path, name: str, top: str, value: Any) -> Tensor:
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ConfigError(
            f"{path}: {name} holds {array.dtype}, not numbers or booleans (has every step the same shape?)"
        )
    if top in FLAGS and array.dtype.kind != "b":
        if not np.isin(array, (0, 1)).all():
            raise ConfigError(f"{path}: {name} must hold true and false, or 1 and 0")
        array = array.astype(bool)
    if array.dtype.kind == "u" or array.dtype == np.float16:
        array = array.astype(np.int64 if array.dtype.kind == "u" else np.float32)
    return torch.from_numpy(np.ascontiguousarray(array))


def _put(parts: dict[str, Any], keys: list[str], leaf: Tensor) -> None:
    for key in keys[:-1]:
        inner = parts.setdefault(key, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{'.'.join(keys)}: {key} is an array and a tree at once")
        parts = inner
    parts[keys[-1]] = leaf


def _tuples(value: Tree) -> Tree:
    """Objects with the keys 0, 1, ... as tuples."""
    if not isinstance(value, dict):
        return value
    inner = {key: _tuples(sub) for key, sub in value.items()}
    if set(inner) == {str(i) for i in range(len(inner))}:
        return tuple(inner[str(i)] for i in range(len(inner)))
    return inner
