"""Shared memory between processes, and trees of tensors in it.

The memory is anonymous: a memfd whose file descriptor a child inherits (``pass_fds``). A killed process
leaves nothing in /dev/shm, and the size of /dev/shm is no limit. All pages are reserved at creation: a
shortage is an error at the start instead of a SIGBUS during a rollout.

Nothing here orders reads and writes: the writer signals the reader through a pipe or a socket after each
write. Weights, which are read at any time, have their own protocol (``runtimes/process/weights.py``).
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from recollect.base import tree as trees
from recollect.base.files import anonymous_file
from recollect.base.formatting import digits
from recollect.base.system_limits import Places, read_limits
from recollect.base.types import Tree
from recollect.errors import ResourceError

ALIGNMENT = 64
"""Bytes: a cache line. Tensors of different processes never share one."""
_BLOCK = bytes(1 << 20)


class Segment:
    """Anonymous shared memory."""

    def __init__(self, fd: int, size: int):
        """Map the file descriptor; it is closed together with the segment."""
        self._buffer: mmap.mmap | None = mmap.mmap(fd, max(size, 1))
        self.fd, self.size = fd, size
        self._close = weakref.finalize(self, os.close, fd)

    @classmethod
    def create(
        cls, size: int, what: str, *, lower: str = "num_envs, rollout or actors", places: Places | None = None
    ) -> Segment:
        """New memory of ``size`` zeroed bytes, all of it reserved; ResourceError if there is not that much.

        The error names the content (``what``) and the settings that reduce it (``lower``). The memory limits
        are read from ``places``.
        """
        # Without this check the kernel would kill processes when memory runs out.
        limits = read_limits(places or Places())
        room = min((m for m in (limits.available, limits.memory_limit) if m is not None), default=None)
        if room is not None and size > room:
            raise _shortage(size, what, lower, f"{_amount(room)} are free")
        fd = None
        try:
            fd = anonymous_file()
            _reserve(fd, max(size, 1))
            return cls(fd, size)
        except OSError as error:
            if fd is not None:
                os.close(fd)
            raise _shortage(size, what, lower, str(error)) from error

    @classmethod
    def attach(cls, fd: int, size: int) -> Segment:
        """Map memory of another process by its inherited file descriptor, and take ownership of that.

        Raises:
            ResourceError: the descriptor is not open, or smaller than ``size``.
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
        """The mapped memory."""
        if self._buffer is None:
            raise ValueError("this shared memory is closed")
        return self._buffer

    def close(self) -> None:
        """Release this reference. Tensors in the memory stay usable; the last one frees it."""
        # Never mmap.close(): torch.frombuffer references the object but does not lock it.
        self._buffer = None
        self._close()


@dataclass(frozen=True, slots=True)
class Leaf:
    """Offset in bytes, shape and dtype of one tensor."""

    offset: int
    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class Layout:
    """Shapes, dtypes and offsets of a tree of tensors in a block of memory. Picklable."""

    leaves: Tree
    """A ``Leaf`` for every tensor."""
    size: int
    """Bytes, a multiple of ``ALIGNMENT``, so that consecutive layouts are aligned too."""

    @classmethod
    def of(cls, tree: Tree) -> Layout:
        """The layout for the shapes and dtypes of ``tree``, on any device; every leaf starts a cache line."""
        end = 0

        def place(tensor: torch.Tensor) -> Leaf:
            nonlocal end
            leaf = Leaf(end, tuple(tensor.shape), tensor.dtype)
            end += aligned(tensor.numel() * tensor.element_size())
            return leaf

        return cls(trees.map(place, tree), end)

    def view(self, segment: Segment, offset: int = 0) -> Tree:
        """Tensors in the memory of the segment, from ``offset`` on."""
        if offset % ALIGNMENT or offset + self.size > segment.size:
            raise ValueError(
                f"{self.size} bytes at offset {offset} do not fit into shared memory of {segment.size}, "
                f"or are not aligned to {ALIGNMENT}: the two processes disagree on the layout"
            )
        return self.over(segment.buffer, offset)

    def over(self, buffer: Any, offset: int = 0) -> Tree:
        """Tensors in the memory of ``buffer``, any object with the buffer protocol."""

        def tensor(leaf: Leaf) -> torch.Tensor:
            count = torch.Size(leaf.shape).numel()
            if count == 0:
                return torch.empty(leaf.shape, dtype=leaf.dtype)
            at = offset + leaf.offset
            return torch.frombuffer(buffer, dtype=leaf.dtype, count=count, offset=at).view(leaf.shape)

        return _map(tensor, self.leaves)

    def over_tensor(self, memory: torch.Tensor) -> Tree:
        """Views of ``memory``, a tensor of bytes on any device."""

        def view(leaf: Leaf) -> torch.Tensor:
            size = torch.Size(leaf.shape).numel() * leaf.dtype.itemsize
            return memory[leaf.offset : leaf.offset + size].view(leaf.dtype).view(leaf.shape)

        return _map(view, self.leaves)


def _map(fn: Callable[[Leaf], torch.Tensor], part: Tree) -> Tree:
    # Not nested in a method: a closure that calls itself is a reference cycle, which keeps the memory alive.
    if isinstance(part, dict):
        return {key: _map(fn, value) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(_map(fn, value) for value in part)
    return fn(part)


def aligned(size: int, to: int = ALIGNMENT) -> int:
    """``size`` rounded up to a multiple of ``to``."""
    return -(-size // to) * to


def _reserve(fd: int, size: int) -> None:
    """Extend the file to ``size`` bytes and reserve their pages."""
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
    return f"{digits(size / 2**30)} GiB"
