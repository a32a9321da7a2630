"""Rows of many members in tiles of equal size: each is computed by its own member, with its own memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recollect.base import tree
from recollect.config.core_choice import core_config
from recollect.config.policy import PolicyConfig
from recollect.config.q_heads import QHeadConfig
from recollect.league.tiles import Tiles
from recollect.policy.noisy import NoisyLinear
from tests.support.leagues import network
from tests.support.reads import unread
from tests.support.two_sides import CUES, TwoSides

CERTAIN = 1e6
"""A gain with which an action has no chance beside the likeliest."""
MEMBERS = [network(seed, CERTAIN).eval().actor_only() for seed in range(5)]


def inputs(rows: int, seed: int = 0) -> tuple[torch.Tensor, Any, torch.Tensor]:
    """Observations, memories and starts."""
    generator = torch.Generator().manual_seed(seed)
    memory = tree.map(
        lambda leaf: torch.rand(leaf.shape, generator=generator) - 0.5, MEMBERS[0].initial_state(rows)
    )
    obs = torch.randn(rows, CUES + 2, generator=generator)
    return obs, memory, torch.rand(rows, generator=generator) < 0.3


def check(member: list[int], capacity: int, places: list[int]) -> None:
    """Each row as if its member computed it alone."""
    rows = len(member)
    tiles = Tiles(MEMBERS[0], capacity, rows)
    tiles.load({place: MEMBERS[place] for place in places})
    obs, memory, first = inputs(rows)
    with unread():
        actions, after, by = tiles.act(torch.tensor(member), obs, memory, first, torch.Generator())
    assert by.tolist() == member, "the member of the row"
    for row, place in enumerate(member):
        own = tree.index((obs, memory, first), slice(row, row + 1))
        acted, expected = MEMBERS[place].act(own[0], own[1], own[2], torch.Generator())
        assert actions[row] == acted.action[0], "the action of the member"
        for one, two in zip(tree.leaves(after), tree.leaves(expected), strict=True):
            torch.testing.assert_close(one[row], two[0], msg="the memory of the member")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=23), st.integers(4, 9))
def test_each_row_has_its_member(member: list[int], capacity: int) -> None:
    """S001-4: however the rows are divided, with more room than members."""
    check(member, capacity, [0, 1, 2, 3])


@pytest.mark.parametrize("member", [[2] * 16, [4] * 15 + [0], [0, 1, 2, 3, 4] * 5], ids=str)
def test_uneven_shares(member: list[int]) -> None:
    """S001-4: all rows of one member, all but one, as many of each; the tiles are full to the last."""
    check(member, 5, [4, 1, 0, 2, 3])


def test_members_act_without_noise() -> None:
    """S001-4: as in evaluations, although the network that they are made from is trained."""
    world, config = TwoSides(1), PolicyConfig(core=core_config("gru"), head=QHeadConfig(noisy=True))
    live = config.build(world.observation_space, world.action_space)
    for layer in live.modules():
        if isinstance(layer, NoisyLinear):
            layer.draw_noise()
            layer.weight_std.data.fill_(9.0)
    member = copy.deepcopy(live).eval()
    tiles = Tiles(live, 2, 20)
    tiles.load({0: member})
    obs, first = inputs(20)[::2]
    memory = live.initial_state(20)
    actions, _, _ = tiles.act(torch.zeros(20).long(), obs, memory, first, torch.Generator())
    quiet, loud = (one.act(obs, memory, first, torch.Generator())[0].action for one in (member, live))
    assert torch.equal(actions, quiet), "without noise"
    assert not torch.equal(quiet, loud)


def test_one_member_is_one_tile() -> None:
    tiles = Tiles(MEMBERS[0], 1, 640)
    assert (tiles.count, tiles.size) == (1, 640)


def test_rows_of_no_member() -> None:
    """A scripted player has them: they are computed by any network and stand in the way of no other row."""
    tiles = Tiles(MEMBERS[0], 2, 9)
    tiles.load({1: MEMBERS[1], 2: MEMBERS[2]})
    member = torch.tensor([0, 1, 2, 0, 0, 2, 1, 0, 2])
    _, _, by = tiles.act(member, *inputs(9), torch.Generator())
    assert all(one == two for one, two in zip(by.tolist(), member.tolist()) if two)


def test_new_members_in_the_same_tensors() -> None:
    """A CUDA graph refers to them by address; weights of earlier members are gone."""
    tiles = Tiles(MEMBERS[0], 2, 6)
    before = [tensor.data_ptr() for tensor in (tiles.places, *tiles._weights.values())]
    obs, memory, first = inputs(6)
    for places in ([0, 1], [3, 2], [4]):
        tiles.load({place: MEMBERS[place] for place in places})
        member = torch.tensor([places[row % len(places)] for row in range(6)])
        actions, _, by = tiles.act(member, obs, memory, first, torch.Generator())
        assert torch.equal(by, member)
        for row, place in enumerate(member.tolist()):
            acted, _ = MEMBERS[place].act(obs, memory, first, torch.Generator())
            assert actions[row] == acted.action[row], "the weights of the present members"
    assert [tensor.data_ptr() for tensor in (tiles.places, *tiles._weights.values())] == before


def test_weights_are_copies() -> None:
    """S001-4: a snapshot is not changed by tiles, nor by what becomes of the network that it came from."""
    live = network(0, CERTAIN).eval().actor_only()
    tiles = Tiles(live, 2, 4)
    tiles.load({0: live, 1: MEMBERS[1]})
    obs, memory, first = inputs(4)
    expected, _ = live.act(obs, memory, first, torch.Generator())
    with torch.no_grad():
        for weight in live.parameters():
            weight.zero_()
    member = torch.tensor([0, 0, 1, 0])
    actions, _, _ = tiles.act(member, obs, memory, first, torch.Generator())
    assert torch.equal(actions[member == 0], expected.action[member == 0]), "frozen"
    assert not any(weight.any() for weight in live.parameters())
