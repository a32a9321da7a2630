"""Bugs of the Ray runtime, for tests that have a cluster."""

from __future__ import annotations

from recollect.experience.rollout import Rollout
from recollect.runtimes.remote_collector import RemoteCollector
from tests.mutants.mutant import Mutant
from tests.mutants.planted import ChildMutant
from tests.mutants.process_bugs import OLD_WEIGHTS
from tests.support.helpers import ScriptedEnv
from tests.support.ray_runs import RayTurns
from tests.support.replayed import play


def on_ray() -> None:
    """What Ray actors bring is what the weights of the version that they name do."""
    with RayTurns(ScriptedEnv, actors=2, mode="async") as turns:
        play(turns.collector, turns.policy, 3)


MUTANTS = [
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
