"""Rows dealt out to learners: every one to one of them, and minibatches that do not depend on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recollect.base import tree
from recollect.errors import ConfigError
from recollect.learning.ranks import Group, even_rows, shards
from tests.support.helpers import TensorWorld
from tests.support.ppo_setup import learner
from tests.support.ranked import groups


def test_rows_are_dealt_out_evenly():
    assert even_rows(7, 3) == (3, 2, 2)
    with pytest.raises(ConfigError, match="learners = 3, but a rollout has only 2 rows"):
        even_rows(2, 3)


def test_shards_partition_a_rollout():
    """S002-15: state local per rank; every row, and every final observation, goes to one rank."""
    _, actor = learner(env=TensorWorld(5))
    rollout = actor.collect()
    assert rollout.finals is not None
    parts = shards(rollout, (2, 3))
    for name in ("obs", "first", "action", "reward", "truncated", "valid", "final_value"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts], 1), getattr(rollout, name))
    assert torch.equal(torch.cat([part.bootstrap for part in parts]), rollout.bootstrap)
    for whole, *cut in zip(tree.leaves(rollout.states), *(tree.leaves(part.states) for part in parts)):
        assert torch.equal(torch.cat(cut, 1), whole)
    finals = [(part.finals, begin) for part, begin in zip(parts, (0, 2)) if part.finals is not None]
    there = {(int(t), int(r) + begin) for f, begin in finals for t, r in zip(f.time, f.row)}
    assert there == {(int(t), int(r)) for t, r in zip(rollout.finals.time, rollout.finals.row)}
    assert sum(len(f.row) for f, _ in finals) == len(rollout.finals.row)
    quiet = replace(rollout, finals=None)
    assert quiet.select_rows(1, 3).finals is None


def test_sequences_of_all_ranks_are_numbered_as_those_of_one():
    """S002-15: a minibatch is the same chunks, whoever holds them."""
    one, actor = learner(env=TensorWorld(5))
    many = [learner(env=TensorWorld(5))[0] for _ in range(2)]
    rollout = actor.collect()
    whole = one.sequences(rollout, {})
    parts = shards(rollout, (3, 2))

    def take(group: Group) -> tuple[int, Tensor, list[Tensor]]:
        many[group.rank].ranks = group
        own = many[group.rank].sequences(parts[group.rank], {})
        steps = torch.stack([own.valid_steps(torch.tensor([n])) for n in range(own.count)])
        taken = [own.take(torch.tensor([n])) for n in range(own.count)]
        return own.count, steps, [chunk.obs.masked_fill(~chunk.valid.any(), 0) for chunk in taken]

    with groups(3, 2) as run:
        found = run(take)
    for count, steps, _ in found:
        assert count == whole.count
        assert steps.tolist() == [int(whole.valid_steps(torch.tensor([n]))) for n in range(count)]
    for n, (a, b) in enumerate(zip(found[0][2], found[1][2])):
        assert torch.equal(a + b, whole.take(torch.tensor([n])).obs)
