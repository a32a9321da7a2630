"""Priorities of windows: who is drawn how often, and which updates count."""

from __future__ import annotations

import pytest
import torch

from recollect.errors import RecollectError
from tests.support.reads import unread
from tests.support.replay_streams import Streams, assert_same_windows, make, played


def weights(replay) -> dict[int, float]:
    """The weight of every window, by its entry."""
    (slots,) = replay.ready[:-1].nonzero(as_tuple=True)
    return dict(zip(replay.read(slots).entries.tolist(), replay.tree.weights[slots].tolist()))


def entries(replay) -> torch.Tensor:
    return torch.tensor(list(weights(replay)))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("exponent", [0.5, 1.0])
def test_windows_are_drawn_by_their_priorities(exponent):
    """Each with probability p^exponent / sum: chi-square of 100,000 draws, at five standard deviations."""
    replay, _, _ = played(priority_exponent=exponent)
    every, draws = entries(replay), 100_000
    priority = 0.3 + torch.rand(len(every), generator=seeded())
    replay.update(every, priority)
    wanted = priority.double() ** exponent
    wanted /= wanted.sum()
    drawn = replay.sample(draws, seeded(1))
    which = (drawn.entries.unsqueeze(1) == every).long().argmax(1)
    torch.testing.assert_close(drawn.probability, wanted[which])
    expected = draws * wanted
    chi_square = ((which.bincount(minlength=len(every)) - expected) ** 2 / expected).sum()
    freedom = len(every) - 1
    assert expected.min() > 50
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_windows_of_priority_zero_are_never_drawn():
    replay, _, _ = played(priority_exponent=0.7)
    every = entries(replay)
    priority = torch.rand(len(every), generator=seeded()).masked_fill(torch.arange(len(every)) % 3 > 0, 0)
    replay.update(every, priority)
    drawn = replay.sample(10_000, seeded())
    assert set(drawn.entries.tolist()) == set(every[priority > 0].tolist())
    replay.update(every, torch.zeros(len(every)))
    with pytest.raises(RecollectError, match="a priority above 0"):
        replay.sample(1)
    assert replay.windows == len(every)


def test_without_host_reads_bad_priorities_change_nothing():
    """And if all are 0, a sample has nothing to learn from, in place of a window that was not drawn."""
    replay, _, _ = played(priority_exponent=1.0)
    replay.sample(1, seeded())
    before, every = weights(replay), entries(replay)
    with unread():
        replay.update(every[:3], torch.tensor([-1.0, torch.nan, torch.inf]))
    assert weights(replay) == before
    assert replay.largest == 1
    with unread():
        replay.update(every, torch.zeros(len(every)))
        drawn = replay.sample(32, seeded())
    assert not drawn.exists.any()
    assert not drawn.is_step.any()
    assert (drawn.obs["x"] == 0).all()


def test_new_windows_get_the_largest_priority_so_far():
    """And those that stay keep their own, whatever is added; the slow truth says which stay."""
    replay, truth, streams = played(priority_exponent=1.0, rollouts=3)
    assert set(weights(replay).values()) == {1.0}
    every = entries(replay)
    priority = torch.rand(len(every), generator=seeded())
    priority[5] = 7.0
    replay.update(every, priority)
    replay.update(every[5:6], torch.tensor([0.5]))  # the largest so far is still 7
    priority[5] = 0.5
    own = dict(zip(every.tolist(), priority.tolist()))
    for _ in range(6):
        rollout = streams.rollout(11, (0, 4))
        replay.add(rollout)
        truth.add(rollout)
        assert_same_windows(replay, truth)
        for entry, weight in weights(replay).items():
            assert weight == pytest.approx(own.get(entry, 7.0))
        own = {entry: own.get(entry, 7.0) for entry in weights(replay)}


def test_priorities_of_overwritten_windows_are_ignored():
    """The slots hold other windows by now, or none; the largest priority stays as it was too."""
    replay, _, streams = played(priority_exponent=1.0, rollouts=4, stores_states=False, stride=1)
    stale, slots = entries(replay), replay.ready.clone()
    for _ in range(3):
        replay.add(streams.rollout(20))
    assert (slots & replay.ready).any()
    before = weights(replay)
    assert not before.keys() & set(stale.tolist())
    replay.update(stale, torch.full((len(stale),), 1000.0))
    assert weights(replay) == before
    assert replay.largest == 1
    mixed = torch.cat([stale[:3], entries(replay)[:2]])
    replay.update(mixed, torch.full((5,), 9.0))
    assert weights(replay) == before | dict.fromkeys(mixed[3:].tolist(), 9.0)


def test_of_a_window_drawn_twice_the_larger_priority_counts():
    replay, _, _ = played(priority_exponent=1.0)
    one = int(entries(replay)[0])
    replay.update(torch.tensor([one, one, one]), torch.tensor([0.5, 3.0, 2.0]))
    assert weights(replay)[one] == 3


def test_without_an_exponent_all_windows_are_alike():
    replay, _, _ = played()
    before = weights(replay)
    replay.update(entries(replay), torch.rand(len(before)))
    assert weights(replay) == before
    assert set(before.values()) == {1.0}


@pytest.mark.parametrize("bad", [-1.0, torch.nan, torch.inf])
def test_priorities_are_finite_numbers_from_zero_on(bad):
    replay, _, _ = played(priority_exponent=1.0)
    before = weights(replay)
    priority = torch.ones(4)
    priority[2] = bad
    with pytest.raises(
        RecollectError, match="1 priorities are negative, NaN or infinite: has the loss diverged"
    ):
        replay.update(entries(replay)[:4], priority)
    assert weights(replay) == before


def test_one_priority_for_each_entry():
    replay, _, _ = played(priority_exponent=1.0)
    with pytest.raises(RecollectError, match="one priority for each entry"):
        replay.update(entries(replay)[:4], torch.ones(3))


def test_ages_count_from_the_first_learned_step():
    replay, _ = make(rows=1, capacity=20, burn_in=2, length=2, n_step=1, stride=1)
    replay.add(Streams(1, 0, ends=0.0).rollout(9, tuple(range(9))))
    drawn = replay.sample(200, seeded())
    assert set(zip(drawn.entries.tolist(), drawn.age.tolist())) == {(w, 9 - w) for w in (0, 2, 3, 4, 5, 6)}
