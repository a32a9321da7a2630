"""M where episodes are cut in the middle of rollouts that actors in other processes record."""

from __future__ import annotations

import pytest

from tests.support.replayed import train

pytestmark = pytest.mark.usefixtures("warm_children")


@pytest.mark.parametrize("algo", ["ppo", "impala"])
@pytest.mark.parametrize("mode", ["lockstep", "async"])
def test_rollouts_that_are_cut_in_processes(algo, mode):
    """M, S000-8, S004-1, S003-19: recorded with the state, resets and weights that the learner replays them
    with; the lag that is logged is that of these weights, which in async mode is not always the same."""
    train(algo, runtime="processes", mode=mode)
