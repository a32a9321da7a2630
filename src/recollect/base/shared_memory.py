"""Memory that several processes share, and trees of tensors that lie in it.

The memory has no name: it is a memfd, known by a file descriptor that a child inherits (``pass_fds``). So
nothing is left in /dev/shm, whoever is killed and how, and the size of /dev/shm is no limit. It is reserved
when it is made: a shortage is an error at the start, and not a SIGBUS in the middle of a rollout.

Nothing here orders reads and writes: who reads must have been told by the writer, through a pipe or a
socket, after the data was written. ``weights.py`` has what can be read at any time.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from dataclasses import dataclass
from typing import Any

import torch

from recollect.base.limits import Places, read_limits
from recollect.base.types import Tree
from recollect.errors import ResourceError

ALIGNMENT = 64
"""Bytes: a cache line. Tensors of different processes never share one."""
_BLOCK = bytes(1 << 20)


class Segment:
    """Anonymous shared memory."""

    def __init__(self, fd: int, size: int):
        """Map what ``create`` made or ``attach`` was given; the descriptor is closed with the segment."""
        self._buffer: mmap.mmap | None = mmap.mmap(fd, max(size, 1))
        self.fd, self.size = fd, size
        self._close = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(
        cls, size: int, what: str, *, lower: str = "num_envs, rollout or actors", places: Places | None = None
    ) -> Segment:
        """New memory of ``size`` zeroed bytes, all of it reserved.

        Args:
            size: in bytes.
            what: what it is for, for the error.
            lower: the settings that make it smaller, for the error.
            places: where to read what memory there is.

        Raises:
            ResourceError: there is not so much memory.
        """
        # The kernel would try, and end processes when nothing is left.
        limits = read_limits(places or Places())
        room = min((m for m in (limits.available, limits.memory_limit) if m is not None), default=None)
        if room is not None and size > room:
            raise _shortage(size, what, lower, f"{_amount(room)} are free")
        try:
            fd = _anonymous_file()
        except OSError as error:
            raise _shortage(size, what, lower, str(error)) from error
        try:
            _reserve(fd, max(size, 1))
            return cls(fd, size)
        except OSError as error:
            os.close(fd)
            raise _shortage(size, what, lower, str(error)) from error

    @classmethod
    def attach(cls, fd: int, size: int) -> Segment:
        """The memory that another process made, by the descriptor that was inherited; owns it from now on.

        Raises:
            ResourceError: the descriptor is not that memory.
        """
        try:
            found = os.fstat(fd).st_size
        except OSError as error:
            raise ResourceError(
                f"shared memory cannot be attached: file descriptor {fd} is not open here ({error}): "
                "was it passed to this process (fds)?"
            ) from error
        if found < size:
            raise ResourceError(
                f"shared memory cannot be attached: file descriptor {fd} has {found} bytes, and {size} are "
                "expected: it is another descriptor, or the two processes disagree on the layout"
            )
        os.set_inheritable(fd, False)
        return cls(fd, size)

    @property
    def buffer(self) -> mmap.mmap:
        """The memory itself."""
        if self._buffer is None:
            raise ValueError("this shared memory is closed")
        return self._buffer

    def close(self) -> None:
        """Let go of it. Tensors that lie in it stay usable: it goes with the last of them."""
        # Never mmap.close(): torch.frombuffer keeps the object but does not lock it.
        self._buffer = None
        self._close()


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where one tensor lies."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Layout:
    """How a tree of tensors lies in memory: shapes, dtypes and places, without the memory. Picklable."""

    leaves: Tree
    """A ``Leaf`` for every tensor."""
    size: int
    """Bytes, a multiple of ``ALIGNMENT``: layouts one after another are aligned too."""

    @classmethod
    def of(cls, tree: Tree) -> Layout:
        """For a tree of these shapes and dtypes, on any device; every leaf begins a cache line."""
        end = 0

        def place(part: Tree) -> Tree:
            nonlocal end
            if isinstance(part, dict):
                return {key: place(value) for key, value in part.items()}
            if isinstance(part, tuple):
                return tuple(place(value) for value in part)
            if not isinstance(part, torch.Tensor):
                raise TypeError(
                    f"a {type(part).__name__} cannot lie in shared memory: "
                    "a tree is a tensor, a tuple or a dict of trees"
                )
            leaf = Leaf(end, tuple(part.shape), part.dtype)
            end += aligned(part.numel() * part.element_size())
            return leaf

        return cls(place(tree), end)

    def view(self, segment: Segment, offset: int = 0) -> Tree:
        """Tensors that are the memory of the segment from ``offset`` on."""
        if offset % ALIGNMENT or offset + self.size > segment.size:
            raise ValueError(
                f"{self.size} bytes at offset {offset} do not fit into shared memory of {segment.size}, "
                f"or are not aligned to {ALIGNMENT}: the two processes disagree on the layout"
            )
        return self.over(segment.buffer, offset)

    def over(self, buffer: Any, offset: int = 0) -> Tree:
        """Tensors that are the memory of ``buffer``, anything with the buffer protocol."""
        return _lay(self.leaves, buffer, offset)


def _lay(part: Tree, buffer: Any, offset: int) -> Tree:
    # Not a function inside ``over``: one that calls itself is a cycle, which would hold on to the memory.
    if isinstance(part, dict):
        return {key: _lay(value, buffer, offset) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_lay(value, buffer, offset) for value in part)
    count = torch.Size(part.shape).numel()
    if count == 0:
        return torch.empty(part.shape, dtype=part.dtype)
    flat = torch.frombuffer(buffer, dtype=part.dtype, count=count, offset=offset + part.offset)
    return flat.view(part.shape)


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """``size`` rounded up to a multiple of ``to``."""
    return -(-size // to) * to


def _anonymous_file() -> int:
    """A file descriptor without a name; children inherit it only if it is passed to them."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("recollect")
    fd, path = tempfile.mkstemp(prefix="recollect")
    os.unlink(path)
    return fd


def _reserve(fd: int, size: int) -> None:
    """Give the file ``size`` bytes that are really there."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(fd, 0, size)
        return
    done = 0
    while done < size:
        done += os.pwrite(fd, _BLOCK[: size - done], done)


def _shortage(size: int, what: str, lower: str, reason: str) -> ResourceError:
    return ResourceError(
        f"no shared memory for {what}: {_amount(size)} wanted ({size} bytes), {reason}: lower {lower}"
    )


def _amount(size: int) -> str:
    return f"{size / 2**30:.3g} GiB"
