"""Atomic writes: a file appears complete or not at all, and a failed write is a StorageError."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from recollect.base.files import check_replaceable
from recollect.errors import StorageError


def write_atomically(file: Path, text: str) -> None:
    """Write a text file beside its destination, flush it to disk, and rename it into place."""
    check_replaceable(file)
    with writing(f"{file} could not be written"):
        beside = file.with_name(f".{file.name}-{uuid.uuid4().hex[:8]}")
        try:
            beside.write_text(text, encoding="utf-8")
            sync(beside)
            os.replace(beside, file)
        finally:
            beside.unlink(missing_ok=True)


@contextmanager
def writing(failure: str) -> Iterator[None]:
    """Turn an error of the disk into a StorageError: ``failure``, the cause and the fix."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise StorageError(
            f"{failure}: {reason}. Free some space or choose a writable folder; earlier saves are intact"
        ) from error


def sync(path: Path) -> None:
    """Flush a file or folder to the disk (fsync), so that a power failure cannot lose it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
