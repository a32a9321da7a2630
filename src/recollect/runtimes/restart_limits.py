"""Limits on waiting for actors and learner processes, and on restarting actors, in every runtime."""

from __future__ import annotations

from recollect.errors import LostError

DEATHS = 3
"""Deaths of an actor in a row, without a finished rollout in between, that end the run."""
ATTEMPTS = 3
"""Attempts at a rollout whose env workers die."""
SILENCE = 15.0
"""Seconds without a heartbeat, beyond ``env_timeout``, after which a process counts as dead."""
START = 120.0
"""The same for a process that is starting: many at once on few cores take long."""
STUCK = "it is stopped, or stuck in native code"
"""Why a process that runs has no heartbeats."""


def patience(env_timeout: float | None, *, is_started: bool) -> float | None:
    """Seconds without a heartbeat after which a process counts as dead; None: unlimited.

    ``env_timeout``: seconds that a step of an env may take; ``is_started``: whether the process is ready.
    """
    if not is_started:
        return START + (env_timeout or 0.0)
    return None if env_timeout is None else SILENCE + env_timeout


def check_deaths(deaths: int, error: LostError) -> None:
    """Raise if an actor that died of ``error`` has died too often in a row: ``deaths`` times."""
    if deaths >= DEATHS:
        raise LostError(f"{error}. It died {DEATHS} times in a row without finishing a rollout") from error
