"""Bugs of the Ray runtime, for tests that have a cluster."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recollect.experience.rollout import Rollout
from recollect.runtimes.ray import transport
from recollect.runtimes.ray.server import Location
from recollect.runtimes.ray.transport import RayChannel
from recollect.runtimes.remote_collector import RemoteCollector
from tests.mutants.mutant import Mutant
from tests.mutants.planted import ChildMutant
from tests.mutants.process_bugs import OLD_WEIGHTS
from tests.support import ray_runs
from tests.support.helpers import ScriptedEnv
from tests.support.ray_runs import RayTurns
from tests.support.replayed import play


def on_ray() -> None:
    """What Ray actors bring is what the weights of the version that they name do."""
    with RayTurns(ScriptedEnv, actors=2, mode="async") as turns:
        play(turns.collector, turns.policy, 3)


def elsewhere() -> None:
    """A restarted actor avoids the node of the last one, which Ray may still take for alive."""
    avoided: list[Any] = []

    def remote(*_: Any, avoid: str | None, **__: Any) -> Any:
        avoided.append(avoid)
        return SimpleNamespace(started="", location=None, receive=lambda _: Location(1, "here", "a node"))

    owner: Any = SimpleNamespace(
        cpus=1,
        rows_per_actor=4,
        cluster=SimpleNamespace(has_cpus=bool),
        heartbeats=SimpleNamespace(handle=None),
    )
    channel = RayChannel(0, owner)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transport, "Remote", remote)
        for restarts in range(2):
            blueprint: Any = SimpleNamespace(restarts=restarts)
            channel.start(blueprint)
            channel.receive()
    assert avoided == [None, "a node"]


def league() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ray_runs.league(Path(folder))


MUTANTS = [
    Mutant(
        "a relative path of a run is another folder for an actor",
        league,
        ((RemoteCollector, "_start_server", "str(Path(run).absolute())", "run"),),
        "is not the folder that the training uses",
    ),
    Mutant(
        "a restarted actor goes to the node that it was lost with",
        elsewhere,
        ((RayChannel, "start", "avoid = self._last_node", "pass"),),
        "assert avoided ==",
    ),
    ChildMutant(
        "weights of a Ray actor are older than the version named", on_ray, OLD_WEIGHTS, "log_prob of actor"
    ),
    ChildMutant(
        "a Ray actor sends no final observations",
        on_ray,
        ((Rollout, "write_finals", "self.finals, slot", "None, slot"),),
        "a final observation for every cut",
    ),
    Mutant(
        "the newest rollouts, whatever their tickets",
        on_ray,
        (
            (
                RemoteCollector,
                "_collect",
                "for ticket in self._tickets.wanted(version)]",
                "for ticket in sorted(self._delivered)[-2:]]",
            ),
        ),
        "the next of its actor",
    ),
]
