"""How long and how often actors are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recollect.errors import LostError
from recollect.runtimes import limits
from recollect.runtimes.process.collector import Seat


def test_the_start_is_bounded_whatever_the_env_may_take():
    """S000-25: without ``env_timeout`` a step may take for ever, the start may not."""
    assert limits.patience(None, is_begun=False) == limits.START
    assert limits.patience(7.0, is_begun=False) == limits.START + 7
    assert limits.patience(None, is_begun=True) is None
    assert limits.patience(7.0, is_begun=True) == limits.SILENCE + 7


def test_the_third_death_in_a_row_ends_the_run():
    """S000-25: with what it died of."""
    error = LostError("actor 0 is gone")
    limits.check_deaths(limits.DEATHS - 1, error)
    with pytest.raises(LostError, match=r"actor 0 is gone\. It died 3 times in a row") as raised:
        limits.check_deaths(limits.DEATHS, error)
    assert raised.value.__cause__ is error


def _process_seat(waited: float, is_begun: bool) -> Any:
    seat: Any = Seat(0, SimpleNamespace(), [{"pulse": torch.zeros((), dtype=torch.float64)}])  # pyright: ignore
    seat.child, seat.started = "actor 0", 1000.0 - waited - is_begun
    seat.memory[0]["pulse"].fill_(1000.0 - waited if is_begun else 0.0)
    return seat.silence


def _ray_seat(waited: float, is_begun: bool) -> Any:
    pytest.importorskip("ray")
    from recollect.runtimes.ray.handles import Call
    from recollect.runtimes.ray.handles import Seat as RaySeat

    seat: Any = RaySeat(0, since=1000.0 - waited)
    seat.remote = "actor 0"
    seat.calls.append(Call("collect" if is_begun else "begin", None))
    lookout = SimpleNamespace(look=lambda key: (waited, None))
    return lambda limit: seat.silence(limit, lookout)


@pytest.mark.parametrize("seat", [_process_seat, _ray_seat])
def test_one_that_never_starts_is_given_up(seat, monkeypatch):
    """S000-25: in both runtimes alike."""
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    for waited, is_begun, limit, is_lost in [
        (limits.START - 1, False, None, False),
        (limits.START + 1, False, None, True),
        (limits.START + 1, False, 60.0, False),
        (limits.START + 61, False, 60.0, True),
        (10_000.0, True, None, False),
        (limits.SILENCE + 59, True, 60.0, False),
        (limits.SILENCE + 61, True, 60.0, True),
    ]:
        found = seat(waited, is_begun)(limit)
        assert (found is not None) == is_lost, (waited, is_begun, limit)
        if found is not None:
            assert ("where its env is made" in str(found)) == (not is_begun)
