"""How long and how often actors are waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recollect.errors import LostError
from recollect.runtimes import restart_limits
from recollect.runtimes.process.transport import ProcessChannel
from recollect.runtimes.remote_collector import ActorHandle


def test_the_start_is_bounded_whatever_the_env_may_take():
    """S000-25: without ``env_timeout`` a step may take for ever, the start may not."""
    assert restart_limits.patience(None, is_started=False) == restart_limits.START
    assert restart_limits.patience(7.0, is_started=False) == restart_limits.START + 7
    assert restart_limits.patience(None, is_started=True) is None
    assert restart_limits.patience(7.0, is_started=True) == restart_limits.SILENCE + 7


def test_the_third_death_in_a_row_ends_the_run():
    """S000-25: with what it died of."""
    error = LostError("actor 0 is gone")
    restart_limits.check_deaths(restart_limits.DEATHS - 1, error)
    with pytest.raises(LostError, match=r"actor 0 is gone\. It died 3 times in a row") as raised:
        restart_limits.check_deaths(restart_limits.DEATHS, error)
    assert raised.value.__cause__ is error


def _process_channel(waited: float, is_started: bool) -> Any:
    channel: Any = object.__new__(ProcessChannel)
    channel.child, channel._started = "actor 0", 1000.0 - waited - is_started
    heartbeat = 1000.0 - waited if is_started else 0.0
    channel._slots = [{"heartbeat": torch.tensor(heartbeat, dtype=torch.float64)}]
    return channel


def _ray_channel(waited: float, is_started: bool) -> Any:
    pytest.importorskip("ray")
    from recollect.runtimes.ray.transport import RayChannel

    heartbeats = SimpleNamespace(look=lambda key: (waited, None))
    channel: Any = RayChannel(0, SimpleNamespace(heartbeats=heartbeats))  # pyright: ignore
    channel.remote = SimpleNamespace(location="there" if is_started else None)
    return channel


@pytest.mark.parametrize("channel", [_process_channel, _ray_channel])
def test_one_that_never_starts_is_given_up(channel, monkeypatch):
    """S000-25: in both runtimes alike."""
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    for waited, is_started, limit, is_lost in [
        (restart_limits.START - 1, False, None, False),
        (restart_limits.START + 1, False, None, True),
        (restart_limits.START + 1, False, 60.0, False),
        (restart_limits.START + 61, False, 60.0, True),
        (10_000.0, True, None, False),
        (restart_limits.SILENCE + 59, True, 60.0, False),
        (restart_limits.SILENCE + 61, True, 60.0, True),
    ]:
        handle = ActorHandle(0, channel(waited, is_started), since=1000.0 - waited)
        found = handle.silence(limit)
        assert (found is not None) == is_lost, (waited, is_started, limit)
        if found is not None:
            assert ("while its env is made" in str(found)) == (not is_started)


def test_one_whose_heart_beats_is_not_given_up(monkeypatch):
    """S000-25: however long its rollout takes."""
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    handle = ActorHandle(0, _process_channel(1.0, True), since=0.0)
    assert handle.silence(60.0) is None
