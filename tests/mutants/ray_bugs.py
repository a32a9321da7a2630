"""Bugs of the Ray runtime, for tests that have a cluster."""

from __future__ import annotations

from recollect.runtimes.ray import server
from recollect.runtimes.ray.collector import RayCrew
from tests.mutants.mutant import Mutant
from tests.mutants.planted import ChildMutant
from tests.mutants.process_bugs import OLD_WEIGHTS
from tests.support.helpers import ScriptedEnv
from tests.support.ray_runs import Crew
from tests.support.replayed import play


def on_ray() -> None:
    """What Ray actors bring is what the weights of the version that they name do."""
    with Crew(ScriptedEnv, actors=2, mode="async") as crew:
        play(crew.crew, crew.policy, 3)


MUTANTS = [
    ChildMutant(
        "weights of a Ray actor are older than the version named", on_ray, OLD_WEIGHTS, "log_prob of actor"
    ),
    ChildMutant(
        "a Ray actor sends no final observations",
        on_ray,
        ((server, "pack_finals", "None if found is None else", "None and"),),
        "a final observation for every cut",
    ),
    Mutant(
        "the newest rollouts, whatever their tickets",
        on_ray,
        (
            (
                RayCrew,
                "_collect",
                "for ticket in self._tickets.wanted(version)]",
                "for ticket in sorted(self._brought)[-2:]]",
            ),
        ),
        "the next of its actor",
    ),
]
