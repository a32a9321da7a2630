"""Replays: a game of the mech arena as JSON, from which it can be played again exactly.

A file holds how the game starts (options, seed, slot, episode), every action, and a chain of hashes of the
state after each decision. It is read as untrusted data: all sizes follow from options in their bounds and
are checked before anything is unpacked.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

import gymnasium as gym
import numpy as np

from recollect.base import files, spaces
from recollect.config.convert import convert
from recollect.config.tasks import MechOptions
from recollect.errors import RecollectError, nearest
from recollect.tasks.mech import actions
from recollect.tasks.mech.rules import DECISION

FORMAT = "recollect mech replay"
VERSION = 1
ENDS = ("terminated", "truncated", "cut")
"""How a game ends: decided by the rules, by the time limit, or not at all, because the recording stops."""
EXTRAS = ("memory", "value")
"""Numbers of each mech and decision that a recording may add: norm of the memory, expected return."""
MOST_EPISODES = 10_000
"""Games that are started before the recorded one, at most."""
MARK = 8
"""Hexadecimal digits that are kept of the hash after each decision."""
NAME = 200
"""Longest name of a player."""
_HEX = re.compile(r"[0-9a-f]*")


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """A recorded game of T decisions, with R rows: those of blue, then those of red."""

    options: dict[str, Any]
    """The options of the task, ``team`` as it was in this game."""
    seed: int
    slot: int
    episode: int
    """The game is number ``episode`` of slot ``slot`` after ``reset(seed)``."""
    players: tuple[str, str]
    """The names of those who play blue and red."""
    actions: dict[str, np.ndarray]
    """The parts of the action, [T, R, ...] each, by name; "action" if the action has no parts."""
    won: int
    """1 if blue won, -1 if red did, 0 for a draw or a game without its end."""
    score: tuple[float, float]
    ended: str
    """One of ``ENDS``."""
    marks: tuple[str, ...]
    """The first digits of the chain of hashes at the start and after every decision, T + 1 of them."""
    sha256: str
    """The chain of hashes after the last decision."""
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    """[T, R] float32, by names in ``EXTRAS``; NaN where there is none."""

    @property
    def decisions(self) -> int:
        """The number T of decisions."""
        return len(self.marks) - 1

    def save(self, file: Path) -> Path:
        """Write the file; an existing one is replaced when the new one is complete."""
        text = json.dumps(
            {
                "format": FORMAT,
                "version": VERSION,
                **{name: getattr(self, name) for name in ("options", "seed", "slot", "episode", "players")},
                "decisions": self.decisions,
                **{name: getattr(self, name) for name in ("won", "score", "ended", "sha256")},
                "marks": "".join(self.marks),
                "actions": {name: _pack(values) for name, values in self.actions.items()},
                "extras": {name: _pack(values) for name, values in self.extras.items()},
            }
        )
        if len(text) > files.LARGEST:
            raise RecollectError(
                f"{file}: a replay of {self.decisions:,} decisions has {len(text) >> 20} MB, and a file may "
                f"have {files.LARGEST >> 20}: record a game with a lower limit or fewer mechs"
            )
        with files.writing(f"{file.parent} could not be made"):
            file.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomically(file, text)
        return file


def parts_of(space: gym.Space) -> dict[str, gym.Space]:
    """The parts of an action space by the names that a replay gives them."""
    return {name or "action": leaf for name, leaf in spaces.walk(space)}


def is_replay(file: Path) -> bool:
    """Whether a path names a file, and so no folder of a run."""
    return file.suffix.lower() == ".json" or file.is_file()


def load(file: Path) -> Replay:
    """Read and validate a replay. Raises RecollectError with what is wrong and the fix."""
    data = files.read_json(file)
    if data.get("format") != FORMAT:
        raise RecollectError(
            f"{file} is no replay of the mech arena, whose format is {FORMAT!r}: "
            "recollect play RUN --replay FILE records one"
        )
    files.check_format(file, data.get("version"), VERSION)
    return _Reader(file, data).replay()


class _Reader:
    """Reads the parts of one file."""

    def __init__(self, file: Path, data: dict[str, Any]):
        self.file, self.data = file, data

    def wrong(self, what: str) -> RecollectError:
        """The error for a part that is not as it was written."""
        return RecollectError(
            f"{self.file} is damaged ({what}): take another copy, or record the game again with "
            "recollect play RUN --replay FILE"
        )

    def replay(self) -> Replay:
        """The replay."""
        options = self._options()
        chosen = MechOptions(**options)
        try:
            mechs, limit, _ = chosen.numbers()
            for option in ("sensing", "spaces"):
                chosen.choice(option)
        except RecollectError as error:
            raise self.wrong(str(error)) from None
        if options.get("team") is not None and not 1 <= options["team"] <= mechs:
            raise self.wrong(f"options: team is {options['team']}, and a team has {mechs} mechs")
        steps, rows = round(limit / DECISION), 2 * mechs
        count = self._whole("decisions", 1, steps)
        marks, sha256 = self._hex("marks", MARK * (count + 1)), self._hex("sha256", 64)
        shapes = {
            name: ((count, rows, *(leaf.shape or ())), spaces.numpy_dtype(leaf))
            for name, leaf in parts_of(actions.space(chosen.spaces)).items()
        }
        ended = self.data.get("ended")
        if ended not in ENDS:
            raise self.wrong(f"ended is {files.short(repr(ended))}, not one of {', '.join(ENDS)}")
        found = self._table("actions")
        if found.keys() != shapes.keys():
            raise self.wrong(f"actions has the parts {files.short(list(found))}, not {', '.join(shapes)}")
        extras = self._table("extras")
        if unknown := [name for name in extras if name not in EXTRAS]:
            raise self.wrong(f"extras has {files.short(unknown)}, and there is only {', '.join(EXTRAS)}")
        number = np.dtype(np.float32)
        return Replay(
            options=options,
            seed=self._whole("seed", -(2**63), 2**63 - 1),
            slot=self._whole("slot", 0, 2**31),
            episode=self._whole("episode", 0, MOST_EPISODES),
            players=self._players(),
            actions={name: self._array(f"actions.{name}", found[name], *how) for name, how in shapes.items()},
            won=self._whole("won", -1, 1),
            score=self._score(),
            ended=ended,
            marks=tuple(marks[i : i + MARK] for i in range(0, len(marks), MARK)),
            sha256=sha256,
            extras={
                name: self._array(f"extras.{name}", text, (count, rows), number)
                for name, text in extras.items()
            },
        )

    def _options(self) -> dict[str, Any]:
        given, hints = self._table("options"), get_type_hints(MechOptions)
        for name, value in given.items():
            if name not in hints:
                raise RecollectError(
                    f"{self.file}: mech has no option {files.short(name)!r}{nearest(name, hints)}: was the "
                    "replay made by a newer Recollect? Then update this one"
                )
            if isinstance(value, int | float) and not isinstance(value, bool) and not files.is_number(value):
                raise self.wrong(f"options: {name} is {files.short(value)}")
        try:
            return {name: convert(value, hints[name], f"option {name}") for name, value in given.items()}
        except RecollectError as error:
            raise self.wrong(files.short(error)) from None

    def _table(self, name: str) -> dict[str, Any]:
        value = self.data.get(name)
        if not isinstance(value, dict):
            raise self.wrong(f"{name} is missing" if value is None else f"{name} is no mapping")
        return value

    def _whole(self, name: str, least: int, most: int) -> int:
        value = self.data.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(
                f"{name} is {files.short(repr(value))}; it must be a whole number from {least} to {most}"
            )
        return value

    def _hex(self, name: str, digits: int) -> str:
        value = self.data.get(name)
        if not isinstance(value, str) or len(value) != digits or not _HEX.fullmatch(value):
            raise self.wrong(f"{name} is missing or is not {digits} hexadecimal digits")
        return value

    def _players(self) -> tuple[str, str]:
        names = self.data.get("players")
        if isinstance(names, list) and len(names) == 2:
            blue, red = names
            if isinstance(blue, str) and isinstance(red, str) and max(len(blue), len(red)) <= NAME:
                return blue, red
        raise self.wrong(f"players are not two names of at most {NAME} characters")

    def _score(self) -> tuple[float, float]:
        score = self.data.get("score")
        if isinstance(score, list) and len(score) == 2 and all(map(files.is_number, score)):
            return float(score[0]), float(score[1])
        raise self.wrong("score is not two numbers")

    def _array(self, name: str, text: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        size = math.prod(shape) * dtype.itemsize
        if not isinstance(text, str):
            raise self.wrong(f"{name} is no text")
        try:
            packed = base64.b64decode(text, validate=True)
            unpacking = zlib.decompressobj()
            data = unpacking.decompress(packed, size + 1)  # never more, whatever the file holds
        except (binascii.Error, ValueError, zlib.error) as error:
            raise self.wrong(f"{name}: {error}") from None
        if len(data) != size or not unpacking.eof or unpacking.unused_data:
            raise self.wrong(f"{name} has not the {size:,} bytes of {list(shape)} {dtype}")
        return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape).astype(dtype)


def _pack(values: np.ndarray) -> str:
    """The bytes of an array, little-endian, compressed, as text."""
    ordered = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return base64.b64encode(zlib.compress(ordered.tobytes(), 9)).decode()
