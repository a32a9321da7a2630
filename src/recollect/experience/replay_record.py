"""What is small of a slot of a replay, in 16 bytes: one gather reads them, instead of one for each field."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from recollect.base.types import State, Tree

UNWRITTEN = -1 << 62
"""The word of a slot without a step."""
FLAGS = 12
"""The byte of a record where the flags begin, one byte each."""


class Fields(NamedTuple):
    """Views of records [..., 2] int64."""

    word: Tensor
    """[...] int64: the position of the slot and of the first slot of its episode."""
    rest: Tensor
    """[...] int64: all other fields, to clear them at once."""
    reward: Tensor
    """[...] float32"""
    first: Tensor
    """[...] bool, like the others"""
    terminated: Tensor
    is_step: Tensor
    is_marked: Tensor
    """A window may start here, if no states are stored."""

    @classmethod
    def of(cls, record: Tensor) -> Fields:
        """The fields of records."""
        flags = record.view(torch.bool)[..., FLAGS:].unbind(-1)
        return cls(record[..., 0], record[..., 1], record.view(torch.float32)[..., 2], *flags)


def whole(record: Tensor) -> Tensor:
    """Records [..., 2] as one number each, [N]: such gathers are much faster than those of rows of two."""
    return record.view(torch.complex128).flatten()


class Buffers(NamedTuple):
    """What a sample is read into."""

    obs: Tree
    action: Tree
    state: State | None
    record: Tensor
    """[W * M]"""
    fields: Fields
    """Of the records, [W, M]."""
