"""A replay saved and loaded, and what it does not take: other settings, damaged state, other spaces."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.errors import ConfigError, RecollectError, StateError
from recollect.experience.replay import Replay
from tests.support.replay_streams import ACTION, OBS, STATE, Streams, make, played


def saved(replay) -> dict[str, torch.Tensor]:
    return {name: leaf.clone() for name, leaf in replay.state_dict().items()}


def assert_unchanged(replay, before) -> None:
    for name, leaf in replay.state_dict().items():
        torch.testing.assert_close(leaf, before[name], rtol=0, atol=0, equal_nan=True)


def life(replay, streams) -> list[torch.Tensor]:
    """All that is drawn over some rollouts and updates."""
    generator, found = torch.Generator().manual_seed(4), []
    for _ in range(5):
        replay.add(streams.rollout(11, (0, 4)))
        drawn = replay.sample(32, generator)
        found += [
            leaf.clone() for leaf in tree.leaves((drawn.obs, drawn.state, drawn.entries, drawn.probability))
        ]
        replay.update(drawn.entries, torch.rand(32, generator=generator))
    return found


def test_a_loaded_replay_continues_bit_for_bit():
    replay, _, streams = played(priority_exponent=0.6)
    life(replay, streams)
    again, _ = make(rows=3, priority_exponent=0.6)
    again.load_state_dict(saved(replay))
    same = Streams(3, 9, ends=0.15)
    other = Streams(3, 9, ends=0.15)
    for ours, theirs in zip(life(replay, same), life(again, other), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    "other",
    [
        {"capacity": 21},
        {"burn_in": 1},
        {"length": 2},
        {"n_step": 1},
        {"stride": 3},
        {"priority_exponent": 0.5},
    ],
    ids=str,
)
def test_a_replay_of_other_settings_is_not_loaded(other):
    replay, _, _ = played()
    fresh, _ = make(**{"rows": 3} | other)
    before = saved(fresh)
    name, value = next(iter(other.items()))
    with pytest.raises(StateError, match=f"{name}=.*, this one {name}={value}"):
        fresh.load_state_dict(saved(replay))
    assert_unchanged(fresh, before)


def test_a_replay_of_other_spaces_is_not_loaded():
    sizes = {"rows": 1, "capacity": 9, "burn_in": 1, "length": 2, "n_step": 1, "stride": 2, "device": "cpu"}
    given = Replay(**sizes, obs=OBS, action=ACTION, state=STATE)
    for other, words in (
        ({"obs": OBS | {"x": torch.zeros(1, 4)}}, r"obs.x .*shape \[11, 3\].*shape \[11, 4\]"),
        ({"action": torch.zeros(1)}, "action .*int64.*float32"),
        ({"obs": OBS["x"]}, r"lacks \['obs'\] and has unknown \['obs.image', 'obs.x'\]"),
        ({"state": STATE[0]}, r"lacks \['state'\]"),
    ):
        own = Replay(**sizes, **{"obs": OBS, "action": ACTION, "state": STATE} | other)
        before = saved(own)
        with pytest.raises(StateError, match=words):
            own.load_state_dict(saved(given))
        assert_unchanged(own, before)


DAMAGES = {
    "head": ("number of written slots", lambda leaf: leaf.sub_(1000)),
    "open_start": ("number of written slots", lambda leaf: leaf.fill_(10**6)),
    "record": ("episodes", lambda leaf: leaf.fill_(10**9)),
    "ready": ("list of windows", lambda leaf: leaf[3:4].logical_not_()),
    "state_position": ("list of windows", lambda leaf: leaf.sub_(1)),
    "state_slot": ("stored states", lambda leaf: leaf.fill_(-1)),
    "state_head": ("stored states", lambda leaf: leaf.add_(1000)),
    "weights.0": ("priorities", lambda leaf: leaf.fill_(torch.nan)),
    "largest": ("priorities", lambda leaf: leaf.fill_(torch.inf)),
    "weights.1": ("sums of the priorities", lambda leaf: leaf.add_(1)),
}


def test_a_replay_of_the_first_format_is_not_loaded():
    """It had no number of its format; whatever else differs, the message names the version."""
    replay, _, _ = played()
    state = saved(replay)
    del state["format"]
    state["word"] = state.pop("record")
    before = saved(replay)
    with pytest.raises(StateError, match=r"format 1, .* reads format 2: resume with the version"):
        replay.load_state_dict(state)
    assert_unchanged(replay, before)


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_replay_is_not_loaded(name):
    """Nothing is half applied."""
    replay, _, _ = played()
    words, damage = DAMAGES[name]
    state = saved(replay)
    damage(state[name])
    fresh, _ = make(rows=3)
    before = saved(fresh)
    with pytest.raises(StateError, match=f"damaged: the {words}"):
        fresh.load_state_dict(state)
    assert_unchanged(fresh, before)


# Settings and rollouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"capacity": 6}, r"capacity=6 .*burn_in \+ length \+ n_step = 7"),
        ({"rows": 0}, "rows=0, but it must be at least 1"),
        ({"length": 0}, "length=0"),
        ({"n_step": 0}, "n_step=0"),
        ({"stride": 0}, "stride=0"),
        ({"burn_in": -1}, "burn_in=-1, but it must be at least 0"),
        ({"priority_exponent": -0.5}, "priority_exponent=-0.5"),
        ({"priority_exponent": float("nan")}, "priority_exponent=nan"),
    ],
)
def test_settings_that_make_no_sense(wrong, words):
    with pytest.raises(ConfigError, match=words):
        make(**wrong)


def test_stored_states_need_an_example():
    with pytest.raises(ConfigError, match="stores_states=True, but state is None"):
        Replay(
            rows=1, capacity=9, burn_in=1, length=2, n_step=1, stride=2, obs=OBS, action=ACTION, state=None,
            device="cpu",
        )  # fmt: skip


def change(rollout, what):
    if what == "shape":
        rollout.obs["x"] = rollout.obs["x"][..., :2]
    elif what == "singleton":
        rollout.obs["x"] = rollout.obs["x"].unsqueeze(-1)
    elif what == "dtype":
        rollout.obs["image"] = rollout.obs["image"].float()
    elif what == "key":
        del rollout.obs["image"]
    elif what == "action":
        rollout.action = rollout.action.unsqueeze(-1)
    elif what == "reward":
        rollout.reward = rollout.reward.double()
    elif what == "state":
        rollout.states = rollout.states[:1]
    elif what == "final":
        rollout.finals.obs["x"] = rollout.finals.obs["x"].double()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("shape", r"obs.x .*shape \[2\] and dtype torch.float32, of the replay shape \[3\]"),
        ("singleton", r"obs.x .*shape \[3, 1\].* shape \[3\]"),
        ("dtype", "obs.image .*float32, .*uint8"),
        ("key", "obs.image of the rollout has no such part"),
        ("action", r"action .*shape \[1\].*shape \[\]"),
        ("reward", "reward .*float64.*float32"),
        ("state", "state.1.n of the rollout has no such part"),
        ("final", "final obs.x .*float64.*float32"),
    ],
)
def test_rollouts_of_other_spaces_are_not_added(what, words):
    """S003-7: shapes and dtypes are checked before anything is written."""
    replay, _, streams = played()
    streams.ends = 0.5
    rollout = streams.rollout(11, (0, 4))
    assert rollout.finals is not None
    change(rollout, what)
    before = saved(replay)
    with pytest.raises(RecollectError, match=words):
        replay.add(rollout)
    assert_unchanged(replay, before)


def test_rows_that_are_not_there():
    replay, _, streams = played()
    with pytest.raises(RecollectError, match="rows 1 to 3, and there are rows 0 to 2"):
        replay.add(streams.rollout(11, (0, 4)), row=1)


def test_more_states_than_there_is_room_for():
    replay, _, streams = played()
    with pytest.raises(RecollectError, match=r"3 states in 11 steps.* stride=4 steps: use stride=3"):
        replay.add(streams.rollout(11, (0, 4, 8)))


def test_a_truncation_without_its_final_observation():
    replay, _, streams = played()
    streams.ends = 0.5
    rollout = streams.rollout(11, (0, 4))
    t, b = rollout.finals.time[0], rollout.finals.row[0]
    rollout.finals = None
    before = saved(replay)
    with pytest.raises(RecollectError, match=f"step {t} of row {b} was truncated.*keeps_finals=True"):
        replay.add(rollout)
    assert_unchanged(replay, before)
