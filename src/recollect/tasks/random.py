"""Counter-based random numbers: each is a pure function of its key and its counter.

``bits(key, counter)`` is the splitmix64 stream of ``key`` at position ``counter`` (Steele, Lea, Flood 2014).
The key is derived from (seed, row, episode), the counter is the step, or the step and a lane. So a number
depends on (seed, row, episode, step) only: it is equal on CPU and GPU, in any batch, and after a resume.

All arithmetic is on int64 tensors, whose multiplication and addition wrap around modulo 2**64.
"""

from __future__ import annotations

import torch
from torch import Tensor


def as_int64(word: int) -> int:
    """The int64 with the same 64 bits as the unsigned ``word``."""
    word &= (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def constant(number: int | float) -> Tensor:
    """A number as a 0-d int64 or float32 CPU tensor, which torch accepts with tensors on any device.

    An operation with it costs half of one with a Python number, which torch converts in every call.
    """
    return torch.tensor(number, dtype=torch.int64 if isinstance(number, int) else torch.float32)


ZERO, ONE = constant(0), constant(1)
_GOLDEN = as_int64(0x9E3779B97F4A7C15)
_EPISODE = as_int64(0xD1342543DE82EF95)
_MIX_1 = constant(as_int64(0xBF58476D1CE4E5B9))
_MIX_2 = constant(as_int64(0x94D049BB133111EB))
_SHIFTS = {n: (constant(n), constant((1 << (64 - n)) - 1)) for n in (30, 27, 31, 32, 40)}
_TO_UNIT = constant(2.0**-24)


def bits(key: Tensor, counter: Tensor | int) -> Tensor:
    """64 random bits as int64, for every ``key`` (int64) and ``counter`` (int64), broadcast."""
    if isinstance(counter, Tensor):
        z = torch.add(key, counter, alpha=_GOLDEN)
    else:
        z = key + as_int64(counter * _GOLDEN)
    z.bitwise_xor_(_shift(z, 30)).mul_(_MIX_1)
    z.bitwise_xor_(_shift(z, 27)).mul_(_MIX_2)
    return z.bitwise_xor_(_shift(z, 31))


def uniform(word: Tensor) -> Tensor:
    """float32 in [0, 1), from the top 24 bits of ``word``: exact on every device."""
    return _shift(word, 40) * _TO_UNIT


def integers(word: Tensor, below: Tensor | int) -> Tensor:
    """int64 in [0, below), ``below`` < 2**31: multiply and shift of the top 32 bits of ``word``.

    The bias is at most below / 2**32, one in five million for a deck of 832 cards.
    """
    return _shift(word, 32).mul_(below).bitwise_right_shift_(_SHIFTS[32][0])


def choice(allowed: Tensor, word: Tensor) -> Tensor:
    """[B]: the index of a random true entry of ``allowed`` [B, n] in each row, by the random ``word`` [B]."""
    rank = allowed.cumsum(1)
    chosen = integers(word, rank[:, -1])
    return (rank <= chosen.unsqueeze(1)).sum(1)


def ahead(key: Tensor, counter: Tensor) -> Tensor:
    """The key whose stream is that of ``key`` from position ``counter`` on."""
    return torch.add(key, counter, alpha=_GOLDEN)


def row_keys(seed: int | Tensor, row: Tensor) -> Tensor:
    """The key of each ``row`` (int64) under ``seed``: an integer modulo 2**64, or int64 for each row."""
    if not isinstance(seed, Tensor):
        seed = torch.full_like(row, as_int64(seed))
    return bits(bits(seed, 1), row)  # counter 1: bits(0, 0) would be 0


def episode_keys(row_key: Tensor, episode: Tensor) -> Tensor:
    """The key of each row's ``episode`` (int64).

    Without another mix, which would double the cost of a reset: an odd step that differs from that of the
    counter keeps (episode, counter) distinct, and ``bits`` mixes every number drawn.
    """
    return torch.add(row_key, episode, alpha=_EPISODE)


def _shift(z: Tensor, distance: int) -> Tensor:
    """Logical shift ``z >> distance``, which int64 lacks: the copied sign bits are masked."""
    places, mask = _SHIFTS[distance]
    return torch.bitwise_right_shift(z, places).bitwise_and_(mask)
