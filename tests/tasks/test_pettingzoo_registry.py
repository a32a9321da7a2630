"""Every task of several agents is in PettingZoo's registry and passes PettingZoo's own tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial

import pettingzoo
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.test import parallel_api_test, parallel_seed_test

from recollect.config.tasks import task_name
from recollect.tasks import TASKS, make_task
from tests.support.task_worlds import SMALL
from tests.support.team_world import Team

REGISTERED = sorted(task for task in pettingzoo.parallel_registry if task.startswith("recollect/"))
MADE: dict[str, Callable[[], ParallelEnv]] = {
    "tests/team": Team,  # so that the tests themselves are tested while there is no such task
    **{task: partial(pettingzoo.make, "parallel", task, **SMALL[task_name(task)]) for task in REGISTERED},
}


def test_all_are_registered() -> None:
    together = [task.id for name, task in TASKS.items() if make_task(name, 1).agents > 1]
    assert sorted(together) == REGISTERED


@pytest.mark.parametrize("task", MADE)
def test_pettingzoo_finds_nothing_to_say(task: str) -> None:
    """The interface in parallel steps, without a warning; and equal seeds give equal episodes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(MADE[task](), num_cycles=200)
        parallel_seed_test(MADE[task], num_cycles=200)


class Unseeded(Team):
    """Another episode with the same seed."""

    episodes = 0

    def reset(self, seed: int | None = None, options: None = None) -> tuple[dict, dict]:
        Unseeded.episodes += 1
        return super().reset(Unseeded.episodes)


def test_an_env_that_ignores_its_seed_is_found() -> None:
    with pytest.raises(AssertionError):
        parallel_seed_test(Unseeded, num_cycles=200)
