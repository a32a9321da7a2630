"""Replay against the slow truth: every window that can be drawn, with all its content."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.replay_streams import Streams, assert_same_windows, make

sizes = st.fixed_dictionaries(
    {
        "rows": st.integers(1, 5),
        "burn_in": st.integers(0, 5),
        "length": st.integers(1, 5),
        "n_step": st.integers(1, 4),
        "stride": st.integers(1, 5),
        "stores_states": st.booleans(),
    }
)


@given(
    size=sizes,
    room=st.integers(0, 25),
    rollouts=st.lists(st.integers(1, 14), min_size=1, max_size=12),
    seed=st.integers(0, 10**6),
    ends=st.sampled_from([0.0, 0.05, 0.3, 1.0]),
    dead=st.sampled_from([0.0, 0.3]),
    restarts=st.sampled_from([0.0, 0.1]),
    is_next_step=st.booleans(),
    starts=st.booleans(),
)
def test_every_window_is_that_of_the_slow_truth(
    size, room, rollouts, seed, ends, dead, restarts, is_next_step, starts
):
    """S003-2, S003-3, S003-4: no other episode, no unwritten or overwritten slot, after every rollout."""
    capacity = size["burn_in"] + size["length"] + size["n_step"] + room
    replay, truth = make(capacity=capacity, **size)
    streams = Streams(
        size["rows"], seed, ends=ends, dead=dead, restarts=restarts, is_next_step=is_next_step, starts=starts
    )
    for steps in rollouts:
        stored = tuple(range(0, steps, size["stride"]))[: max(1, steps // size["stride"])]
        if size["stores_states"] and size["stride"] > steps:
            steps = size["stride"]
        rollout = streams.rollout(steps, stored)
        replay.add(rollout)
        truth.add(rollout)
        assert_same_windows(replay, truth)
