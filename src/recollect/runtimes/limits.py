"""How long and how often actors are waited for, wherever they live."""

from __future__ import annotations

from recollect.errors import LostError

DEATHS = 3
"""Deaths of an actor in a row, without a finished rollout in between, that end the run."""
ATTEMPTS = 3
"""How often a rollout is begun anew after a worker of its env died."""
SILENCE = 15.0
"""Seconds beyond ``env_timeout`` after which an actor that gives no sign of life is taken for dead."""
START = 120.0
"""The same for one that is just starting: many at once on few cores take their time."""


def patience(env_timeout: float | None, *, is_begun: bool) -> float | None:
    """Seconds of silence after which an actor is taken for dead; None: never.

    Args:
        env_timeout: seconds that a step of its env may take; None: any time, but it has to start.
        is_begun: whether it has given a sign of life; else it is still starting.
    """
    if not is_begun:
        return START + (env_timeout or 0.0)
    return None if env_timeout is None else SILENCE + env_timeout


def check_deaths(deaths: int, error: LostError) -> None:
    """Raise if an actor that just died of ``error`` has died too often in a row: ``deaths`` times."""
    if deaths >= DEATHS:
        raise LostError(f"{error}. It died {DEATHS} times in a row without finishing a rollout") from error
