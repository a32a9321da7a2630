"""Copy and associative recall, one episode at a time, from their rules."""

from __future__ import annotations

from tests.reference.draws import Stream

Script = list[tuple[list[float], int | None]]
"""For every step what is seen and which action earns the points, None where nothing does."""


def one_hot(size: int, *ones: int) -> list[float]:
    return [float(i in ones) for i in range(size)]


def copy_script(stream: Stream, length: int, delay: int) -> Script:
    """The steps of an episode of copy."""
    symbols = [stream.below(i, 8) for i in range(length)]
    reading: Script = [(one_hot(9, symbol), None) for symbol in symbols]
    waiting: Script = [(one_hot(9), None)] * delay
    writing: Script = [(one_hot(9, 8), symbol) for symbol in symbols]
    return reading + waiting + writing


def recall_script(stream: Stream, pairs: int) -> Script:
    """The steps of an episode of associative recall."""
    keys, size = 2 * pairs, 2 * pairs + 9
    names = stream.order(0, keys)[:pairs]
    values = [stream.below(keys + i, 8) for i in range(pairs)]
    shown: Script = [(one_hot(size, name, keys + value), None) for name, value in zip(names, values)]
    asked = stream.order(keys + pairs, pairs)
    return shown + [(one_hot(size, names[i], size - 1), values[i]) for i in asked]
