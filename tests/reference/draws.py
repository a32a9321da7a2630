"""The randomness of the tasks in unbounded integers: one stream for each (seed, row, episode)."""

from __future__ import annotations

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
EPISODE = 0xD1342543DE82EF95


def splitmix(key: int, counter: int) -> int:
    """Word number ``counter`` of the splitmix64 stream of ``key``."""
    z = (key + counter * GOLDEN) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


class Stream:
    """The random numbers of one episode, by counter."""

    def __init__(self, seed: int, row: int, episode: int):
        self.key = splitmix(splitmix(seed & WORD, 1), row) + episode * EPISODE

    def word(self, counter: int) -> int:
        """64 bits."""
        return splitmix(self.key, counter)

    def below(self, counter: int, end: int) -> int:
        """An integer from 0 to ``end`` - 1."""
        return (self.word(counter) >> 32) * end >> 32

    def order(self, begin: int, count: int) -> list[int]:
        """0 to ``count`` - 1 in a random order: by their words (as signed numbers) from ``begin`` on."""
        signed = [(word ^ 1 << 63, i) for i, word in enumerate(map(self.word, range(begin, begin + count)))]
        return [i for _, i in sorted(signed)]
