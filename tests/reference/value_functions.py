"""The slow truth about values on replay: the papers' formulas, number by number."""

from __future__ import annotations

import math


def h(x: float, epsilon: float) -> float:
    return math.copysign(math.sqrt(abs(x) + 1) - 1, x) + epsilon * x


def inverse_h(x: float, epsilon: float) -> float:
    root = math.sqrt(1 + 4 * epsilon * (abs(x) + 1 + epsilon))
    return math.copysign(((root - 1) / (2 * epsilon)) ** 2 - 1, x)


def quantile_huber(
    predicted: list[float], target: list[float], fractions: list[float], kappa: float
) -> float:
    total = 0.0
    for value, fraction in zip(predicted, fractions):
        for wanted in target:
            delta = wanted - value
            huber = delta**2 / 2 if abs(delta) <= kappa else kappa * (abs(delta) - kappa / 2)
            total += abs(fraction - (1 if delta < 0 else 0)) * huber / kappa
    return total / len(target)


def mixed_priority(errors: list[float], eta: float) -> float:
    """Of the steps of one sequence."""
    sizes = [abs(error) for error in errors]
    return eta * max(sizes) + (1 - eta) * sum(sizes) / len(sizes) if sizes else 0.0
