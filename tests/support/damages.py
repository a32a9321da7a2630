"""Ways to damage a file; ``luck`` chooses the place."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path


def cut(file: Path, luck: random.Random) -> None:
    os.truncate(file, luck.randrange(file.stat().st_size))


def flip(file: Path, luck: random.Random) -> None:
    data = bytearray(file.read_bytes())
    data[luck.randrange(len(data))] ^= 1 << luck.randrange(8)
    file.write_bytes(data)


def garbage(file: Path, luck: random.Random) -> None:
    file.write_bytes(luck.randbytes(luck.choice([1, 8, 100, 5000])))


def nested(file: Path, luck: random.Random) -> None:
    file.write_bytes(b"[" * 200_000 + b"\n")


def digits(file: Path, luck: random.Random) -> None:
    file.write_bytes(b'{"format": ' + b"9" * 5000 + b"}\n")


def large(file: Path, luck: random.Random) -> None:
    """A hole of a terabyte takes no room on the disk."""
    os.truncate(file, 2**40 if file.suffix != ".safetensors" else 2**28)


def folder(file: Path, luck: random.Random) -> None:
    file.unlink()
    file.mkdir()


def pipe(file: Path, luck: random.Random) -> None:
    file.unlink()
    os.mkfifo(file)


def linked(target: str) -> Callable[[Path, random.Random], None]:
    def link(file: Path, luck: random.Random) -> None:
        file.unlink()
        file.symlink_to(target)

    return link


DAMAGES = {
    "cut": cut,
    "flipped": flip,
    "garbage": garbage,
    "nested": nested,
    "digits": digits,
    "large": large,
    "folder": folder,
    "pipe": pipe,
    "zeros": linked("/dev/zero"),
    "dangling": linked("nowhere"),
    "itself": linked("."),
}
