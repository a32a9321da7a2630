"""Counter-based randomness: known answers and statistics."""

from __future__ import annotations

import pytest
import torch

from recollect.tasks import random

WORD = (1 << 64) - 1


def reference(key: int, counter: int) -> int:
    """splitmix64, as published, in unbounded integers."""
    z = (key + counter * 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def unsigned(words: torch.Tensor) -> list[int]:
    return [word & WORD for word in words.tolist()]


def chi_square(counts: torch.Tensor) -> float:
    """Chi-square against equal counts, as standard deviations from its mean (df, variance 2 df)."""
    expected = counts.double().mean()
    free = counts.numel() - 1
    return float((((counts - expected) ** 2 / expected).sum() - free) / (2 * free) ** 0.5)


def test_the_published_stream_of_seed_zero() -> None:
    words = random.bits(torch.zeros(3, dtype=torch.int64), torch.tensor([1, 2, 3]))
    assert unsigned(words) == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_bits_equal_the_reference_for_tensor_and_integer_counters() -> None:
    keys = [0, 1, WORD, 1 << 63, 0x0123456789ABCDEF, 42]
    tensor = torch.tensor([random.as_int64(key) for key in keys])
    for counter in (0, 1, 7, 51, 10**9):
        expected = [reference(key, counter) for key in keys]
        assert unsigned(random.bits(tensor, counter)) == expected
        assert unsigned(random.bits(tensor, torch.full_like(tensor, counter))) == expected


def test_uniform_and_integers_are_taken_from_the_top_bits() -> None:
    words = torch.tensor([0, -1, random.as_int64(1 << 63), (1 << 40) - 1])
    assert random.uniform(words).tolist() == [0.0, 1.0 - 2.0**-24, 0.5, 0.0]
    assert random.uniform(words).dtype == torch.float32
    assert random.integers(words, 10).tolist() == [0, 9, 5, 0]
    assert random.integers(words, torch.tensor([1, 7, 3, 2])).tolist() == [0, 6, 1, 0]


def test_row_keys_depend_on_seed_and_row_only() -> None:
    rows = torch.arange(64)
    assert torch.equal(random.row_keys(5, rows)[:8], random.row_keys(5, torch.arange(8)))
    seeds = torch.arange(64)
    assert random.row_keys(seeds, torch.zeros_like(seeds))[5] == random.row_keys(5, rows)[0]
    assert random.row_keys(-1, rows)[0] == random.row_keys(WORD, rows)[0]
    grid = random.row_keys(seeds.repeat_interleave(64), rows.repeat(64))
    assert grid.unique().numel() == 64 * 64
    assert (grid != 0).all()


def draws() -> dict[str, torch.Tensor]:
    """The same 2**16 numbers of draws, each with another of the four counters moving."""
    n = torch.arange(1 << 16)
    zero = torch.zeros_like(n)

    def word(seed: torch.Tensor, row: torch.Tensor, episode: torch.Tensor, step: torch.Tensor):
        return random.bits(random.episode_keys(random.row_keys(seed, row), episode), step)

    return {
        "seed": word(n, zero, zero, zero),
        "row": word(zero, n, zero, zero),
        "episode": word(zero, zero, n, zero),
        "step": word(zero, zero, zero, n),
        "row and step": word(zero, n >> 8, zero, n & 255),
        "episode and step": word(zero, zero, n >> 8, n & 255),
    }


@pytest.mark.parametrize("moving", list(draws()))
def test_numbers_are_uniform_and_neighbours_independent(moving: str) -> None:
    words = draws()[moving]
    assert words.unique().numel() == words.numel()
    uniform = random.uniform(words).double()
    assert abs(chi_square(torch.histc(uniform, 256, 0, 1))) < 5
    for below in (2, 3, 7, 52):
        assert abs(chi_square(random.integers(words, below).bincount(minlength=below))) < 5
    # Neighbours, and neighbours of the grids above: serial correlation and joint uniformity.
    for lag in (1, 2, 256):
        a, b = uniform[:-lag], uniform[lag:]
        correlation = torch.corrcoef(torch.stack((a, b)))[0, 1]
        assert abs(correlation) < 5 / len(a) ** 0.5
        pairs = (a * 16).long() * 16 + (b * 16).long()
        assert abs(chi_square(pairs.bincount(minlength=256))) < 5


def test_every_bit_is_balanced_and_flips_with_every_counter() -> None:
    for words in draws().values():
        ones = torch.stack([(words >> bit) & 1 for bit in range(64)]).double()
        flips = (ones[:, 1:] != ones[:, :-1]).double()
        for frequency in (ones.mean(1), flips.mean(1)):
            assert ((frequency - 0.5).abs() < 5 * 0.5 / words.numel() ** 0.5).all()
