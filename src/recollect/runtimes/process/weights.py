"""The weight board: shared memory in which the learner publishes weights for actors in other processes.

One process writes and any number read, at any time, without locks: a killed process can block no other. Each
version is written to the buffer that was unused longest, with a mark before and one after the data, and only
then becomes the newest. A reader copies the newest buffer to private memory. It accepts the copy only if the
marks before and after it agree and a 64-bit checksum over the bytes and the version matches; else it retries
with the newest buffer. So a copy fails only if the writer publishes three times during it.

The marks are sufficient where stores become visible in order (x86). On processors that reorder stores (ARM)
the marks can be wrong, and Python has no memory fence between processes; there the checksum decides, with a
chance of 2^-64 that a torn copy passes. It covers the version, so that weights never get another version.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from recollect.base.shared_memory import Layout, Segment, aligned
from recollect.errors import WeightsError

BUFFERS = 3
BEAT_SECONDS = 1.0
_LINE = 8
"""8-byte words in a cache line. The first holds the newest buffer and the heartbeats; each buffer has one."""
_BEGUN, _ENDED, _VERSION, _CHECK = range(4)
_COLUMNS = 512
_HEAD = aligned((1 + BUFFERS) * _LINE * 8, _COLUMNS * 8)
_KEYS = np.random.PCG64(20240229).random_raw(_COLUMNS + 1) | np.uint64(1)


class WeightBoard:
    """Versions of named tensors in shared memory, written and read as a whole."""

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
        """The version of the newest weights; -1: there are none."""
        return (int(self._head[0]) >> 8) - 1

    @property
    def heartbeats(self) -> int:
        """How often the process that writes has shown that it runs."""
        return int(self._head[1])

    def keep_beating(self) -> None:
        """Count heartbeats, one about every second, in a thread of the process that writes."""

        def beat() -> None:
            while True:
                self._head[1] += np.uint64(1)
                time.sleep(BEAT_SECONDS)

        threading.Thread(target=beat, daemon=True, name="heartbeats").start()

    def publish(self, version: int, named: Mapping[str, Tensor]) -> None:
        """Copy the tensors to the board, then make them the newest.

        ``version``: 0 or more, never less than the last; an equal one replaces it. Raises WeightsError if it
        is older, or if the tensors differ from the board in names, shapes or dtypes.
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
        """Copy the newest weights to the given tensors, on any device, and return their version.

        ``into`` is written only after the weights are known to be whole and of the right version.
        ``version``: the only one to accept; None: any. ``patience``: seconds of retrying. Raises WeightsError
        if nothing is published, or another version, or if the tensors differ from the board.
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
        """Release the memory, which is freed with its last user. ``version`` stays valid."""
        self._head = self._head.copy()
        self._words, self._views, self._copy, self._copied = [], [], None, {}
        self._segment.close()

    def _take(self, wanted: int | None) -> int | None:
        """Copy the newest weights to private memory. Returns their version, or None if the copy failed."""
        if self.version < 0:
            raise WeightsError("no weights are published yet: publish before the actors start")
        if wanted is not None and self.version != wanted:
            raise WeightsError(
                f"version {wanted} of the weights is requested, the newest is {self.version}: in lockstep "
                "an actor starts after its version is published and before the next is"
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
        return (int(self._head[0]) & 0xFF) % BUFFERS

    def _marks(self, buffer: int) -> np.ndarray:
        """The marks of a buffer: write started, write finished, version, checksum."""
        return self._head[(1 + buffer) * _LINE :][:4]

    def _require_fit(self, named: Mapping[str, Tensor], verb: str) -> None:
        leaves, alike = self.handle.leaves, "the policies of actor and learner are not built alike"
        if not self._views:
            raise WeightsError(f"cannot {verb} weights: the board is closed")
        if named.keys() != leaves.keys():
            missing, extra = sorted(leaves.keys() - named.keys()), sorted(named.keys() - leaves.keys())
            raise WeightsError(f"cannot {verb} weights: missing {missing}, unknown {extra}: {alike}")
        for name, leaf in leaves.items():
            shape, dtype = tuple(named[name].shape), named[name].dtype
            if shape != leaf.shape or dtype != leaf.dtype:
                raise WeightsError(
                    f"cannot {verb} weights: {name} is {shape} {dtype}, and the board has {leaf.shape} "
                    f"{leaf.dtype}: {alike}"
                )


def _stride(handle: Layout) -> int:
    """Bytes of one buffer: whole rows of the checksum."""
    return max(aligned(handle.size, _COLUMNS * 8), _COLUMNS * 8)


def _check(words: np.ndarray, version: int) -> int:
    """A 64-bit checksum of all words and the version: sums of columns times odd numbers, modulo 2^64.

    It runs at the speed of memory, and mixtures of two versions have another one except by chance.
    """
    columns = words.reshape(-1, _COLUMNS).sum(axis=0)
    return int((columns * _KEYS[:-1]).sum()) + (version + 1) * int(_KEYS[-1]) & 2**64 - 1
