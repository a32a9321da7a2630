"""Replay against the slow truth: every window that can be drawn, with all its content."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.base import tree
from recollect.config.r2d2 import R2D2Config
from recollect.errors import RecollectError
from recollect.experience.replay import Replay
from recollect.experience.rollout import Finals
from tests.support.reads import unread
from tests.support.replay_streams import (
    ACTION,
    OBS,
    STATE,
    Streams,
    assert_same_windows,
    contents,
    make,
    played,
)

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
plays = st.fixed_dictionaries(
    {
        "ends": st.sampled_from([0.0, 0.05, 0.3, 1.0]),
        "dead": st.sampled_from([0.0, 0.3]),
        "restarts": st.sampled_from([0.0, 0.1]),
        "is_next_step": st.booleans(),
        "starts": st.booleans(),
    }
)


def compare(size, room, rollouts, play, seed) -> int:
    """The windows after every rollout; returns how many there were."""
    replay, truth = make(capacity=size["burn_in"] + size["length"] + size["n_step"] + room, **size)
    streams, found = Streams(size["rows"], seed, **play), 0
    for steps in rollouts:
        stored = tuple(range(0, steps, size["stride"]))[: steps // size["stride"]]
        rollout = streams.rollout(steps, stored)
        replay.add(rollout)
        truth.add(rollout)
        found += assert_same_windows(replay, truth)
    return found


@given(
    size=sizes,
    room=st.integers(0, 25),
    rollouts=st.lists(st.integers(1, 14), min_size=1, max_size=12),
    play=plays,
    seed=st.integers(0, 10**6),
)
def test_every_window_is_that_of_the_slow_truth(size, room, rollouts, play, seed):
    """S003-2, S003-3, S003-4: no other episode, no unwritten or overwritten slot, after every rollout."""
    compare(size, room, rollouts, play, seed)


SIZE = {"rows": 3, "burn_in": 3, "length": 4, "n_step": 2, "stride": 2}
CASES = {
    "long episodes": {"ends": 0.02},
    "ends": {"ends": 0.3},
    "an end at every step": {"ends": 1.0},
    "next-step autoreset": {"ends": 0.3, "is_next_step": True},
    "dead agents": {"ends": 0.3, "dead": 0.5},
    "restarted envs": {"ends": 0.05, "restarts": 0.15},
    "begun inside an episode": {"ends": 0.05, "starts": False},
}


@pytest.mark.parametrize("stores_states", [True, False], ids=["stored", "rebuilt"])
@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_end(case, stores_states):
    """S003-2, S003-3, S003-4: many rings full, in rollouts of odd lengths, each case by itself."""
    size = SIZE | {"stores_states": stores_states}
    assert compare(size, 11, [7, 1, 13, 2, 5] * 4, CASES[case], seed=5) > 100


@pytest.mark.parametrize("room", [0, 1])
def test_a_ring_of_hardly_more_than_a_window(room):
    """S003-4: long episodes, windows soon overwritten, rollouts longer than the ring."""
    for burn_in in (0, 3):
        size = SIZE | {"burn_in": burn_in, "stride": 1, "stores_states": True}
        assert compare(size, room, [1] * 15 + [3] * 5 + [25, 2], {"ends": 0.05}, seed=2) > 10


def test_states_are_overwritten_before_their_steps():
    """Agents that are dead for half of the time store states at twice the rate; their windows end earlier."""
    size = {"rows": 2, "capacity": 40, "burn_in": 1, "length": 1, "n_step": 1, "stride": 4}
    replay, truth = make(**size)
    streams, t = Streams(2, 0, ends=0.0), torch.arange(8) % 4
    for _ in range(20):
        rollout = streams.rollout(8, (0, 4))
        rollout.valid[:], rollout.terminated[-3] = (t < 2).unsqueeze(1), True
        rollout.first[:-1], rollout.first[0] = False, True
        replay.add(rollout)
        truth.add(rollout)
        assert_same_windows(replay, truth)
    assert replay.windows == 2 * (20 + 6)


@pytest.mark.parametrize("states", ["stored", "rebuilt"])
@pytest.mark.parametrize("burn_in", range(6))
def test_every_step_is_learned_from(burn_in, states):
    """S003-4: whatever the phase of episodes to rollouts, each step is learned in a window that can be drawn.

    Row p plays an episode of p + 1 steps, one of 17, and one that goes on.
    """
    for length, rollout in itertools.product(range(1, 5), (1, 2, 3, 5, 6)):
        for stride in range(1, length + 1):
            size = {"burn_in_steps": burn_in, "chunk": length, "n_step": 2, "stride": stride}
            config = R2D2Config(rollout=rollout, states=states, **size)
            learned = learned_steps(config, begins=[(0, p + 1, p + 18) for p in range(rollout)], steps=60)
            assert learned[:, : 60 - length - 2].all(), f"steps that are never learned from: {config}"


def learned_steps(config: R2D2Config, begins: list[tuple[int, ...]], steps: int) -> torch.Tensor:
    """[rows, steps] bool: which steps some window learns, if the episodes of each row begin at ``begins``."""
    rows, stored = len(begins), config.states == "stored"
    sizes = {"rows": rows, "capacity": steps, "burn_in": config.burn_in_steps, "length": config.chunk}
    replay, _ = make(**sizes, n_step=config.n_step, stride=config.spacing, stores_states=stored)
    starts = torch.zeros(steps + 1, rows, dtype=torch.bool)
    for row, times in enumerate(begins):
        starts[list(times), row] = True
    streams = Streams(rows, 0, ends=0.0)
    for t in range(0, steps, config.rollout):
        rollout = streams.rollout(config.rollout, config.state_steps if stored else ())
        rollout.first = starts[t : t + rollout.steps + 1]
        rollout.terminated = rollout.first[1:]
        replay.add(rollout)
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    drawn, learned = replay.read(slots), torch.zeros(rows, steps + config.chunk, dtype=torch.bool)
    for i, is_step in enumerate(drawn.is_step[config.burn_in_steps :][: config.chunk]):
        learned[drawn.entries % rows, drawn.entries // rows + i] |= is_step
    return learned[:, :steps]


def test_rows_are_added_by_themselves():
    """The rows of each actor go to their place, in any order."""
    replay, truth = make(rows=5, capacity=30)
    actors = {0: Streams(2, 1), 2: Streams(3, 2, is_next_step=True)}
    for row in (0, 2, 2, 0, 0, 0, 2, 2):
        rollout = actors[row].rollout(9, (0, 4))
        replay.add(rollout, row)
        truth.add(rollout, row)
        assert assert_same_windows(replay, truth)


def test_final_observations_are_those_before_the_reset():
    """S003-3: after a truncation at a rollout's end comes the final observation, not the reset one."""
    replay, _ = make(rows=1, burn_in=0, length=1, n_step=1, stride=1)
    rollout = Streams(1, 0, ends=0.0).rollout(4, (0, 1, 2, 3))
    rollout.truncated[3] = True
    seven = tree.map(lambda leaf: torch.full_like(leaf[:1, 0], 7), rollout.obs)
    rollout.finals = Finals(torch.tensor([3]), torch.tensor([0]), seven)
    replay.add(rollout)
    last = replay.read(torch.tensor([3]))
    assert last.is_step.flatten().tolist() == [True, False]
    assert last.exists.all()
    assert not last.terminated.any()
    assert (last.obs["x"][1] == 7).all()
    assert (last.obs["image"][1] == 7).all()


def test_a_sample_is_of_windows_that_exist():
    """S003-4: what is drawn is a window of the list, with its probability."""
    replay, truth, _ = played(rows=3, capacity=40)
    drawn = replay.sample(500, torch.Generator().manual_seed(0))
    keys = set(zip((drawn.entries % 3).tolist(), (drawn.entries // 3).tolist()))
    assert keys == set(truth.windows())
    assert drawn.exists[replay.burn_in].all()
    torch.testing.assert_close(drawn.probability, torch.full((500,), 1 / len(keys), dtype=torch.float64))


@pytest.mark.parametrize("size", range(4, 9))
def test_sizes_around_the_smallest(size):
    """S003-15: a window of 1 + 3 + 2 can be drawn as soon as its 5 steps are there, and never earlier."""
    replay, _ = make(rows=1, capacity=12, burn_in=1, length=3, n_step=2, stride=1)
    replay.add(Streams(1, 0, ends=0.0).rollout(size, tuple(range(size))))
    assert replay.windows == max(0, size - 4)
    if size == 4:
        with pytest.raises(RecollectError, match=r"4 steps stored, 0 windows sampleable.*longer warm-up"):
            replay.sample(1)
    else:
        drawn = replay.sample(64, torch.Generator().manual_seed(0))  # more than are stored
        assert drawn.is_step[1:4].all()
        assert set(drawn.age.tolist()) == set(range(5, size + 1))


def test_an_empty_replay_names_the_warm_up():
    """S003-15: nothing is drawn from nothing."""
    replay, _ = make()
    with pytest.raises(RecollectError, match=r"0 steps stored, 0 windows sampleable.*warm-up"):
        replay.sample(8)


def test_a_sample_outlives_one_more():
    """Two buffers take turns."""
    replay, _, _ = played()
    generator = torch.Generator().manual_seed(0)
    one = replay.sample(16, generator)
    copy = tree.clone((one.obs, one.action, one.state))
    two = replay.sample(16, generator)
    assert not torch.equal(one.obs["x"], two.obs["x"])
    for ours, theirs in zip(tree.leaves((one.obs, one.action, one.state)), tree.leaves(copy), strict=True):
        assert torch.equal(ours, theirs)


def test_no_row_of_a_sample_is_torn():
    """S003-10: observation, action, reward and state of a step have one number, in every sample."""
    replay, _, streams = played(rollouts=1, burn_in=0, stride=4, priority_exponent=0.5)
    generator = torch.Generator().manual_seed(0)
    for _ in range(40):
        replay.add(streams.rollout(9, (0, 4)))
        drawn = replay.sample(32, generator)
        number, steps = drawn.obs["x"][..., 0], drawn.is_step
        assert torch.equal(drawn.action, torch.where(steps, number, 0).long())
        assert torch.equal(drawn.reward, -torch.where(steps, number, 0))
        image = number.long().unsqueeze(-1) * torch.tensor([1, 3, 5, 7]) % 251
        assert torch.equal(drawn.obs["image"].flatten(2).long(), image * drawn.exists.unsqueeze(-1))
        given = drawn.state[1]["n"]
        assert ((given == drawn.action[0]) | (drawn.first[0] & (given == 0))).all()
        replay.update(drawn.entries, torch.rand(32, generator=generator))


def test_sampling_needs_no_host_reads():
    """S003-26: on a GPU only `add` and the first sample after it synchronise; the results are the same."""
    (one, _, streams), (two, _, _) = played(priority_exponent=0.5), played(priority_exponent=0.5)
    rollout = streams.rollout(11, (0, 4))
    for replay in (one, two):
        replay.add(rollout)
        replay.sample(4, torch.Generator().manual_seed(0))
    generators = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    for _ in range(3):
        wanted = one.sample(16, generators[0])
        with unread():
            found = two.sample(16, generators[1])
            two.update(found.entries, found.age.float())
        one.update(wanted.entries, wanted.age.float())
        for ours, theirs in zip(contents(found), contents(wanted), strict=True):
            assert torch.equal(ours, theirs)


def test_counts():
    replay, _ = make(rows=2, capacity=15, burn_in=0, length=1, n_step=1)
    assert (replay.steps, replay.windows, replay.is_full) == (0, 0, False)
    streams = Streams(2, 0, ends=0.0)
    replay.add(streams.rollout(14))
    assert (replay.steps, replay.is_full) == (28, False)
    replay.add(streams.rollout(4))
    assert (replay.steps, replay.is_full) == (30, True)


def test_its_memory_is_known_before_it_is_allocated():
    settings = {"capacity": 50, "burn_in": 2, "length": 3, "n_step": 1, "stride": 5, "rows": 4}
    trees = {"obs": OBS, "action": ACTION, "state": STATE}
    meta = Replay(**settings, **trees, device="meta")
    real = Replay(**settings, **trees, device="cpu")
    tensors = [leaf for name, leaf in real.state_dict().items() if name not in ("settings", "format")]
    assert meta.bytes == real.bytes == sum(leaf.nbytes for leaf in tensors)
    real.add(Streams(4, 0).rollout(20))
    one = real.sample(8)
    buffers = tree.size_bytes((one.obs, one.action, one.state)) + one.reward.numel() * 16
    assert real.sample_bytes(8) == 2 * buffers
