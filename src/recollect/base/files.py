"""Files that one process writes while others read: atomic writes, JSON, JSON lines, a lock.

A reader always finds a complete file and complete lines, also after the writer was killed. A failed write is
a StorageError.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

from recollect.errors import RecollectError, StorageError

LARGEST = 64 * 2**20
"""Size limit in bytes of a JSON file or line. Ours have a few thousand; a foreign file may have any size."""


def write_atomically(file: Path, text: str) -> None:
    """Write a text file beside its destination, flush it to disk, and rename it into place."""
    with replacing(file) as beside:
        beside.write_text(text, encoding="utf-8")
        sync(beside)


@contextmanager
def replacing(file: Path, suffix: str = "") -> Iterator[Path]:
    """A temporary path beside ``file``, which replaces ``file`` at the end of the context."""
    check_replaceable(file)
    with writing(f"{file} could not be written"):
        beside = file.with_name(f".{file.name}-{uuid.uuid4().hex[:8]}{suffix}")
        try:
            yield beside
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


def append_whole(file: Path, text: str) -> None:
    """Append all of the text or none of it: a partial line would damage the next one."""
    with file.open("a+b", buffering=0) as handle:
        size = _after_newline(handle, handle.seek(0, os.SEEK_END))
        handle.truncate(size)  # removes the partial line of a killed process
        try:
            data = text.encode()
            if handle.write(data) != len(data):
                raise OSError(ENOSPC, "No space left on device")
        except OSError:
            handle.truncate(size)
            raise


def read_lines(file: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, without a partial last line."""
    if not os.path.lexists(file):
        return
    with opened(file) as handle:
        while line := handle.readline(LARGEST + 1):
            if len(line) > LARGEST:
                raise RecollectError(f"{file} is damaged: a line is longer than {LARGEST >> 20} MB")
            if not line.endswith(b"\n"):
                return
            yield _object(line, file)


def last_row(file: Path) -> Any:
    """The last complete row of a file of JSON lines, without reading all of it; empty if there is none."""
    try:
        with opened(file) as handle:
            end = _after_newline(handle, handle.seek(0, os.SEEK_END), LARGEST)
            start = handle.seek(_after_newline(handle, max(0, end - 1), LARGEST))
            return json.loads(handle.read(end - start))
    except (RecollectError, ValueError, RecursionError):
        return {}


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    return _object(read_whole(file), file)


def read_whole(file: Path) -> bytes:
    """The content of a regular file of at most ``LARGEST`` bytes."""
    with opened(file) as handle:
        data = handle.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise RecollectError(f"{file} is damaged: it is larger than {LARGEST >> 20} MB")
    return data


@contextmanager
def opened(file: Path) -> Iterator[BinaryIO]:
    """Open a regular file only: opening a pipe blocks until it has a writer, and a device has no end."""
    try:
        if os.path.lexists(file) and not file.is_file():
            raise OSError("it is no file")
        with file.open("rb") as handle:
            yield handle
    except OSError as error:
        raise RecollectError(f"{file} cannot be read: {error}") from None


def refuse_links(paths: Iterable[Path]) -> None:
    """Raise if a path is a symbolic link: a write would reach any file or folder of this machine."""
    for path in paths:
        if path.is_symlink():
            raise RecollectError(
                f"{path} is a link to {path.readlink()}: nothing is written through a link in a run or "
                "sweep. Put the file or folder itself in its place, or link the whole folder"
            )


def check_replaceable(file: Path) -> None:
    """Raise if ``file`` is a link, a folder, a device or a pipe, which a rename would replace."""
    if file.is_symlink():
        raise RecollectError(f"{file} is a link: name the file itself")
    if file.exists() and not file.is_file():
        raise RecollectError(
            f"{file} is {'a folder' if file.is_dir() else 'a device or a pipe'}: name a file"
        )


def check_format(file: Path, found: Any, reads: int) -> None:
    """Raise if the file was written in another format."""
    if found != reads:
        raise RecollectError(
            f"{file} has format {short(found)}, this Recollect reads {reads}: update Recollect"
        )


def short(value: Any) -> str:
    """A value from a file as text of at most 400 characters, for messages."""
    text = str(value)
    return text if len(text) <= 400 else f"{text[:400]} ..."


def is_number(value: Any) -> bool:
    """Whether ``value`` is a finite number below 2^63: JSON also has larger integers, and NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**63 if isinstance(value, int) else math.isfinite(value)


def finite(value: Any) -> Any:
    """The value with None in place of NaN and Inf, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextmanager
def locked(file: Path, in_use: str) -> Iterator[None]:
    """Hold the lock of ``file``; RecollectError(``in_use``) if another process holds it."""
    with writing(f"{file} cannot be locked"):
        handle = file.open("a")
    with handle:
        attempts = 20
        while not _try_lock(handle):
            attempts -= 1
            if attempts == 0:
                raise RecollectError(in_use)
            time.sleep(0.05)  # ``is_locked`` holds the lock for a moment
        yield


def is_locked(file: Path) -> bool:
    """Whether a process holds the lock."""
    if not file.is_file():
        return False
    with file.open() as handle:
        return not _try_lock(handle, is_shared=True)  # several processes may test it at the same time


def _try_lock(handle: Any, *, is_shared: bool = False) -> bool:
    try:
        import fcntl

        fcntl.flock(handle, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # Windows, or a file system without locks
        return True
    return True


def _object(text: bytes, file: Path) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise RecollectError(f"{file} is damaged ({error}): {text[:40]!r}; take another copy") from None
    if not isinstance(found, dict):
        raise RecollectError(f"{file} is damaged (it holds a {type(found).__name__}); take another copy")
    return found


def _after_newline(handle: Any, end: int, most: int | None = None) -> int:
    """Offset after the last newline before ``end``, or 0; it goes back about ``most`` bytes."""
    least = 0 if most is None else max(0, end - most)
    while end > least:
        start = handle.seek(max(0, end - 65536))
        found = handle.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return end


def anonymous_file() -> int:
    """An open file without a name; children inherit it only through ``pass_fds``."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("recollect")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
