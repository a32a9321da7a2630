"""The board on which a learner publishes its weights for actors in other processes.

One process writes, any number read, whenever they like; nobody waits for anybody, and there is no lock that a
killed process could keep. Each version is written into the buffer that was left longest, marked as begun
before and as ended after, and only then named as the newest. A reader copies the newest to memory of its own
and takes it only if it was whole before and after: the marks of a buffer have not moved, and a 64-bit check
over the bytes and the version fits the copy. Else it begins again with what is the newest then. So a reader
loses its buffer only to a writer that publishes three times during one copy.

What this relies on: the marks settle it where stores become visible in order (x86). On processors that
reorder them (ARM) the marks can deceive, and Python has no fence between processes; there the check settles
it, up to a chance of 2^-64 for a torn copy. It covers the version as well, so that no version is believed of
weights that are not its own.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from recollect.base.shared_memory import Layout, Segment, aligned
from recollect.errors import WeightsError

BUFFERS = 3
_LINE = 8
"""Words of 8 bytes in a cache line. The first line names the newest; then each buffer has a line of marks."""
_BEGUN, _ENDED, _VERSION, _CHECK = range(4)
_COLUMNS = 512
_HEAD = aligned((1 + BUFFERS) * _LINE * 8, _COLUMNS * 8)
_KEYS = np.random.PCG64(20240229).random_raw(_COLUMNS + 1) | np.uint64(1)


class WeightBoard:
    """Versions of named tensors in shared memory: written whole, read whole."""

    def __init__(self, segment: Segment, handle: Layout):
        self._segment, self.handle = segment, handle
        self._stride = _stride(handle)
        self._head = np.frombuffer(segment.buffer, np.uint64, (1 + BUFFERS) * _LINE)
        offsets = [_HEAD + i * self._stride for i in range(BUFFERS)]
        self._words = [np.frombuffer(segment.buffer, np.uint64, self._stride // 8, at) for at in offsets]
        self._views: list[dict[str, Tensor]] = [handle.view(segment, at) for at in offsets]
        self._copy: np.ndarray | None = None
        self._copied: dict[str, Tensor] = {}

    @classmethod
    def create(cls, named: Mapping[str, Tensor]) -> WeightBoard:
        """An empty board for tensors of these names, shapes and dtypes, on any device."""
        handle = Layout.of(dict(named))
        size = _HEAD + BUFFERS * _stride(handle)
        segment = Segment.create(size, "the weights", lower="the sizes of the network")
        return cls(segment, handle)

    @classmethod
    def attach(cls, fd: int, handle: Layout) -> WeightBoard:
        """The board of another process, by an inherited descriptor and its ``handle``."""
        return cls(Segment.attach(fd, _HEAD + BUFFERS * _stride(handle)), handle)

    @property
    def fd(self) -> int:
        """The file descriptor that a child must inherit."""
        return self._segment.fd

    @property
    def version(self) -> int:
        """Of the newest weights; -1: none yet."""
        return (int(self._head[0]) >> 8) - 1

    def publish(self, version: int, named: Mapping[str, Tensor]) -> None:
        """Copy the tensors, and name them the newest once they are whole. They are only read.

        Args:
            version: 0 or more, never less than the last; the same once more replaces it.
            named: the tensors, of the names, shapes and dtypes that the board was made for.

        Raises:
            WeightsError: other tensors, or an older version.
        """
        self._require_fit(named, "publish")
        if version < max(self.version, 0):
            raise WeightsError(
                f"weights of version {version} cannot be published after version {self.version}: "
                "versions count the updates and only grow; was the board made before the run was resumed?"
            )
        buffer = (self._newest() + 1) % BUFFERS
        marks = self._marks(buffer)
        marks[_BEGUN] += 1
        for name, view in self._views[buffer].items():
            view.copy_(named[name].detach())
        marks[_VERSION] = version
        marks[_CHECK] = _check(self._words[buffer], version)
        marks[_ENDED] = marks[_BEGUN]
        self._head[0] = (version + 1) << 8 | buffer

    def read(self, into: Mapping[str, Tensor], *, version: int | None = None, patience: float = 30.0) -> int:
        """Copy the newest weights into the given tensors, which keep their place; returns their version.

        Nothing is written to ``into`` before the weights are known to be whole and wanted.

        Args:
            into: tensors of the names, shapes and dtypes that the board was made for, on any device.
            version: only exactly this one will do; None: the newest, whatever it is.
            patience: seconds after which weights that are never whole are an error.

        Raises:
            WeightsError: nothing is published, or not this version, or the tensors are others.
        """
        self._require_fit(into, "read")
        deadline = time.monotonic() + patience
        while (found := self._take(version)) is None:
            if time.monotonic() > deadline:
                raise WeightsError(
                    f"no whole weights within {patience:g} s (newest: version {self.version}): either "
                    "something else writes to this memory, or weights are published faster than read"
                )
            time.sleep(0)
        with torch.no_grad():
            for name, source in self._copied.items():
                into[name].copy_(source)
        return found

    def close(self) -> None:
        """Let go of the memory; it goes with the last process that has it. ``version`` stays known."""
        self._head = self._head.copy()
        self._words, self._views, self._copy, self._copied = [], [], None, {}
        self._segment.close()

    def _take(self, wanted: int | None) -> int | None:
        """Copy the newest to memory of our own; its version, or None if it was not whole."""
        if self.version < 0:
            raise WeightsError("no weights are published yet: publish before the actors begin")
        if wanted is not None and self.version != wanted:
            raise WeightsError(
                f"weights of version {wanted} are wanted, and the newest are version {self.version}: "
                "in lockstep an actor begins after its version is published and before the next is"
            )
        if self._copy is None:
            self._copy = np.empty(self._stride // 8, np.uint64)
            self._copied = self.handle.over(self._copy)
        buffer = self._newest()
        before = self._marks(buffer).tolist()
        np.copyto(self._copy, self._words[buffer])
        version = before[_VERSION]
        is_whole = (
            before == self._marks(buffer).tolist()
            and before[_BEGUN] == before[_ENDED]
            and before[_CHECK] == _check(self._copy, version)
        )
        return version if is_whole and wanted in (None, version) else None

    def _newest(self) -> int:
        """The number of its buffer."""
        return (int(self._head[0]) & 0xFF) % BUFFERS

    def _marks(self, buffer: int) -> np.ndarray:
        """The marks of a buffer, as they are in memory: begun, ended, version, check."""
        return self._head[(1 + buffer) * _LINE :][:4]

    def _require_fit(self, named: Mapping[str, Tensor], verb: str) -> None:
        leaves = self.handle.leaves
        if not self._views:
            raise WeightsError(f"cannot {verb} weights: the board is closed")
        if named.keys() != leaves.keys():
            missing, extra = sorted(leaves.keys() - named.keys()), sorted(named.keys() - leaves.keys())
            raise WeightsError(
                f"cannot {verb} weights: missing {missing}, unknown {extra}: "
                "the policies of actor and learner are not built alike"
            )
        for name, leaf in leaves.items():
            tensor = named[name]
            if tuple(tensor.shape) != leaf.shape or tensor.dtype != leaf.dtype:
                raise WeightsError(
                    f"cannot {verb} weights: {name} is {tuple(tensor.shape)} {tensor.dtype}, and the board "
                    f"has {leaf.shape} {leaf.dtype}: the policies of actor and learner are not built alike"
                )


def _stride(handle: Layout) -> int:
    """Bytes of one buffer: whole rows of the check."""
    return max(aligned(handle.size, _COLUMNS * 8), _COLUMNS * 8)


def _check(words: np.ndarray, version: int) -> int:
    """64 bits over all words and the version: sums of columns, each times its own odd number, modulo 2^64.

    At the speed of memory, and different for any mixture of two versions but by chance.
    """
    columns = words.reshape(-1, _COLUMNS).sum(axis=0)
    return int((columns * _KEYS[:-1]).sum()) + (version + 1) * int(_KEYS[-1]) & 2**64 - 1
