"""The verdict on a suspicion: a measurement against the right closed form and against the suspected one.

A suspicion is confirmed only if the measured numbers equal what the suspected formula gives, and acquitted
only if they equal what the right one gives. Anything else is unclear: then the script itself is in doubt.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np

Verdict = Literal["confirmed", "acquitted", "unclear"]
TOLERANCE = 1e-4


@dataclass(frozen=True)
class Suspicion:
    """One suspicion about a package and the numbers that decide it."""

    name: str
    """The suspicion in one sentence."""
    configuration: str
    """The settings in which it was measured."""
    default: str
    """Whether these are the package's defaults."""
    expected: list[float]
    """By the right closed form."""
    suspected: list[float]
    """By the suspected formula."""
    measured: list[float]
    verdict: Verdict
    note: str = ""


def judge(
    name: str,
    *,
    configuration: str,
    default: str,
    expected: Sequence[float] | np.ndarray,
    suspected: Sequence[float] | np.ndarray,
    measured: Sequence[float] | np.ndarray,
    note: str = "",
) -> Suspicion:
    """Compare the measured numbers with both formulas; NaN equals NaN."""
    right, wrong, found = (np.asarray(numbers, float).ravel() for numbers in (expected, suspected, measured))
    if right.shape != found.shape or wrong.shape != found.shape:
        raise ValueError(
            f"{len(found)} numbers measured, {len(right)} expected, {len(wrong)} suspected ({name})"
        )
    if _equal(right, wrong):
        raise ValueError(f"both formulas give the same numbers, so nothing can be decided ({name})")
    verdict: Verdict = "unclear"
    if _equal(found, right):
        verdict = "acquitted"
    elif _equal(found, wrong):
        verdict = "confirmed"
    numbers = ([round(number, 6) for number in column.tolist()] for column in (right, wrong, found))
    return Suspicion(name, configuration, default, *numbers, verdict, note)


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return np.allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)


def gae(reward, value, next_value, cut, *, gamma: float, lambda_: float) -> np.ndarray:
    """Advantages [T]; ``next_value`` [T] has its zeros at terminations already, ``cut`` [T] ends the sum."""
    advantage, running = np.zeros(len(reward)), 0.0
    for t in reversed(range(len(reward))):
        delta = reward[t] + gamma * next_value[t] - value[t]
        running = delta + (0.0 if cut[t] else gamma * lambda_ * running)
        advantage[t] = running
    return advantage


def report(package: str, suspicions: Sequence[Suspicion]) -> None:
    """Print the verdicts; with ``--json FILE`` write them, too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"{package} {version(package)}, torch {version('torch')}")
    for one in suspicions:
        print(f"\n{one.verdict.upper()}: {one.name}")
        print(f"  configuration  {one.configuration} ({one.default})")
        for label in ("expected", "suspected", "measured"):
            print(f"  {label:<14} {' '.join(f'{number:.6g}' for number in getattr(one, label))}")
        if one.note:
            print(f"  {one.note}")
    if args.json:
        found = {
            "package": package,
            "version": version(package),
            "torch": version("torch"),
            "suspicions": [asdict(one) for one in suspicions],
        }
        args.json.write_text(json.dumps(found, indent=1) + "\n")
