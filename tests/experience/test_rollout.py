"""Rollouts joined, moved and passed to another process: the same rows, the same learning."""

from __future__ import annotations

import pickle
from dataclasses import replace

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor, allocate
from recollect.base import tree
from recollect.envs import make_env
from recollect.errors import ConfigError, RecollectError
from recollect.experience.rollout import Acting, Finals, Rollout
from tests.support.helpers import assert_reproduced, deviation, keep, make_policy

STATE_STEPS = (0, 7, 14)


def make_actors(policy=None, seeds=(1, 2), env="position-pendulum", rows=3):
    envs = [make_env(env, rows) for _ in seeds]
    policy = policy or make_policy(envs[0])
    return [
        Actor(env, policy, rollout=20, state_steps=STATE_STEPS, seed=seed, index=i)
        for i, (env, seed) in enumerate(zip(envs, seeds))
    ]


def test_a_joined_rollout_has_every_row_in_its_place():
    """S000-15, S000-22: rows of actor 0, then of actor 1; nothing of one reaches the other."""
    policy = make_policy(make_env("position-pendulum", 1))
    alone = make_actors(policy)
    together = make_actors(policy)
    for _ in range(12):  # Pendulum is cut after 200 steps, so that some of these have final values
        whole = Rollout.join([actor.collect(version=3) for actor in together])
        for i, actor in enumerate(alone):
            part, rows = actor.collect(version=3), slice(3 * i, 3 * i + 3)
            for name in ("first", "reward", "truncated", "valid", "final_value", "action"):
                assert torch.equal(getattr(whole, name)[:, rows], getattr(part, name))
            assert torch.equal(whole.obs[:, rows], part.obs)
            assert torch.equal(whole.bootstrap[rows], part.bootstrap)
            for ours, theirs in zip(tree.leaves(whole.states), tree.leaves(part.states), strict=True):
                assert torch.equal(ours[:, rows], theirs)
            if part.finals is not None:
                assert whole.finals is not None
                mine = (whole.finals.row >= rows.start) & (whole.finals.row < rows.stop)
                assert torch.equal(whole.finals.row[mine] - rows.start, part.finals.row)
                assert torch.equal(whole.finals.obs[mine], part.finals.obs)
    assert whole.version == 3
    assert torch.equal(tree.leaves(together[1].state)[0], tree.leaves(alone[1].state)[0])


def test_finals_stay_in_order_of_time():
    together = make_actors(seeds=(1, 2, 3))
    found = [Rollout.join([actor.collect() for actor in together]).finals for _ in range(11)]
    (finals,) = [f for f in found if f is not None]
    assert len(finals.time) == 9
    assert (finals.time.diff() >= 0).all()


def test_actors_draw_from_streams_of_their_own():
    """S003-24: another seed, other episodes and other actions; the same seed, the same."""
    first, second, again = (keep(actor.collect()) for actor in make_actors(seeds=(1, 2, 1)))
    assert not torch.equal(first.obs[0], second.obs[0])
    assert not torch.equal(first.action, second.action)
    assert torch.equal(first.action, again.action)


def test_other_weights_are_not_joined():
    """S000-24: a rollout has one version, unless actors may run ahead; then the oldest counts."""
    parts = [keep(actor.collect(version=i)) for i, actor in enumerate(make_actors())]
    with pytest.raises(RecollectError, match="versions \\[0, 1\\]"):
        Rollout.join(parts)
    assert Rollout.join(parts[::-1], is_mixed=True).version == 0


def test_master_through_actors():
    """M, S000-8: what the learner recomputes of a joined rollout is what its actors recorded."""
    actors = make_actors(env="position-cartpole")
    for _ in range(3):
        seen = Rollout.join([actor.collect() for actor in actors])
        policy = actors[0].policy
        assert_reproduced(policy, seen, 7)
        assert max(deviation(policy, seen, 7, forget=True)) > 1e-3


def full_rollout(truncations: int) -> Rollout:
    """Six steps of two rows with so many finals, every number distinct."""
    policy = make_policy(make_env("position-cartpole", 1))
    empty = allocate(policy, 2, 6, Acting((0, 3), True), actor=4)
    tensors = tree.map(lambda leaf: torch.randn(leaf.shape).to(leaf.dtype), empty.tensors())
    time = torch.arange(truncations)
    finals = Finals(time // 2, time % 2, torch.randn(truncations, *empty.obs.shape[2:]))
    return replace(empty, **tensors, finals=finals if truncations else None, sequence=5, version=6)


def all_tensors(rollout: Rollout) -> list[torch.Tensor]:
    finals = rollout.finals
    return tree.leaves((rollout.tensors(), () if finals is None else (finals.time, finals.row, finals.obs)))


def test_a_rollout_moves_as_a_whole():
    rollout = full_rollout(3)
    moved = rollout.to("meta")
    assert {leaf.device.type for leaf in all_tensors(moved)} == {"meta"}
    assert [leaf.shape for leaf in all_tensors(moved)] == [leaf.shape for leaf in all_tensors(rollout)]
    assert (moved.actor, moved.sequence, moved.version, moved.state_steps) == (4, 5, 6, (0, 3))


@pytest.mark.parametrize("truncations", [0, 3, 4, 5])
def test_a_rollout_in_another_process_is_the_same(truncations):
    """S003-9: through a slot and a header, of which the slot has room for four finals."""
    rollout, before = full_rollout(truncations), full_rollout(4)
    memory = tree.clone(rollout.slot())
    before.write(memory)
    header = pickle.loads(pickle.dumps(rollout.write(memory)))
    assert isinstance(header.finals, Finals) == (truncations > 4)
    found = Rollout.read(memory, header)
    assert (found.finals is None) == (truncations == 0)
    for ours, theirs in zip(all_tensors(found), all_tensors(rollout), strict=True):
        assert torch.equal(ours, theirs)
    assert (found.actor, found.sequence, found.version, found.state_steps) == (4, 5, 6, (0, 3))


def settings(**more):
    return {"num_envs": 4, "actors": 2, "rollout": 16, "chunk": 8, "progress": False, "threads": 1} | more


def test_a_run_of_two_actors_resumes_bit_for_bit(tmp_path):
    """S002-7: every actor's envs, memories and random streams are in the checkpoint."""
    whole = rc.train("t-maze", steps=640, **settings())
    rc.train("t-maze", steps=640, run=str(tmp_path / "run"), checkpoint_every=320, **settings())
    half = rc.resume(tmp_path / "run", checkpoint=320, progress=False)
    for a, b in zip(whole.policy.parameters(), half.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    assert half._trainer.is_exact


def test_an_env_object_has_one_actor():
    env = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    with pytest.raises(ConfigError, match="its name or a function"):
        rc.train(env, steps=64, **settings())
    env.close()


def test_foreign_envs_are_split_as_well():
    agent = rc.train("CartPole-v1", steps=128, **settings())
    assert [env.num_envs for env in agent._trainer.collector.envs] == [2, 2]
    agent.close()
