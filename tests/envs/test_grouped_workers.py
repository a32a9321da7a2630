"""GroupedWorkerEnv: slots of several agents in other processes give what they give in one."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import pytest
import torch

from recollect.acting.actor import Actor, interleaved
from recollect.envs import GroupedEnv, PettingZooLoop, Resumable, group_views, make_grouped_env
from recollect.envs.contract import AsyncStep, BatchedEnv
from recollect.envs.workers import GroupedWorkerEnv
from recollect.errors import EnvError, LostError, SpaceError
from tests.support.grouped_worlds import EARLY, LATE, Camp, Duo, Lives, duo_slots, grouped_stream
from tests.support.helpers import keep, make_policy
from tests.support.worker_worlds import assert_same, env_pids, is_running, seen

pytestmark = pytest.mark.usefixtures("warm_children")
PAIRS = {"girls": ["cat", "ann"], "boys": "b*"}


def camp_slots(lives: Lives, first_slot: int, count: int) -> GroupedEnv:
    return PettingZooLoop(
        [functools.partial(Camp, lives, wide=("bob",))] * count, PAIRS, first_slot=first_slot
    )


def speaker_slots(first_slot: int, count: int) -> GroupedEnv:
    name = "pettingzoo/simple_speaker_listener_v4"
    return make_grouped_env(name, count, policies="independent", first_slot=first_slot)


@pytest.mark.parametrize(
    "make",
    [functools.partial(camp_slots, EARLY), functools.partial(camp_slots, LATE), speaker_slots, duo_slots],
    ids="early late speaker-listener tensors".split(),
)
def test_identical_to_one_process(make: Any) -> None:
    """Five slots in two workers, bit for bit with infos, and again after a reset amid episodes."""
    here, elsewhere = make(0, 5), GroupedWorkerEnv(make, 5, workers=2)
    try:
        assert isinstance(elsewhere, GroupedEnv)
        assert isinstance(elsewhere, AsyncStep)
        assert not isinstance(elsewhere, BatchedEnv)
        assert isinstance(elsewhere, Resumable) == isinstance(here, Resumable)
        assert elsewhere.groups == here.groups
        for seed in (3, 4):
            assert_same(grouped_stream(elsewhere, 30, seed), grouped_stream(here, 30, seed))
    finally:
        elsewhere.close()
    assert env_pids() == []


def test_actors_over_workers() -> None:
    """The rollouts of both groups, over views of the workers, are those over views of one process."""
    rollouts = []
    for env in (Duo(4), GroupedWorkerEnv(duo_slots, 4, workers=2)):
        acting = [
            Actor(view, make_policy(view, "gru", seed=i), rollout=9, state_steps=(0,), seed=5)
            for i, view in enumerate(group_views(env).values())
        ]
        rollouts.append([keep(one) for one in interleaved([actor.collecting() for actor in acting])])
        acting[1].env.close()
        acting[0].env.close()
    for one, other in zip(*rollouts):
        for name in ("obs", "first", "action", "reward", "terminated", "truncated", "valid"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_snapshots() -> None:
    """A snapshot is the same with any number of workers, and continues bit for bit."""
    here, env = Duo(5), GroupedWorkerEnv(duo_slots, 5, workers=2)
    try:
        for one in (here, env):
            grouped_stream(one, 7, 1)
        saved = env.snapshot()
        assert_same([saved], [here.snapshot()])
        env.reset(9)
        obs = env.restore(saved)
        assert_same([obs], [here.restore(saved)])
        actions = {"big": torch.arange(10) % 3, "small": torch.arange(5) % 4}
        steps, expected = env.step(actions), here.step(actions)
        assert_same([seen(step) for step in steps.values()], [seen(step) for step in expected.values()])
        with pytest.raises(EnvError, match="another num_envs"):
            env.restore({name: leaf[:3] for name, leaf in saved.items()})
    finally:
        env.close()


def test_errors_and_deaths() -> None:
    """A wrong action begins nothing; an error of the env arrives; a killed worker is restarted by a reset."""
    env = GroupedWorkerEnv(functools.partial(camp_slots, EARLY), 3, workers=2)
    expected = grouped_stream(camp_slots(EARLY, 0, 3), 8, 6)
    boys, girls = torch.zeros(3, dtype=torch.int64), torch.zeros(6, dtype=torch.int64)
    try:
        with pytest.raises(EnvError, match=r"GroupedWorkerEnv.step cannot be called now: call reset"):
            env.step({"boys": boys, "girls": girls})
        env.reset(0)
        with pytest.raises(SpaceError, match="the action"):
            env.step({"boys": boys, "girls": boys})
        with pytest.raises(EnvError, match="give those of girls, boys"):
            env.step({"boys": boys})
        env.step({"boys": boys, "girls": girls})
        with pytest.raises(EnvError, match=r"env 0 \(camp_v0\), step 2.*actions of|raised AssertionError"):
            env.step({"boys": boys + 9, "girls": girls})
        assert_same(grouped_stream(env, 8, 6), expected)
        os.kill(env.pids[1], signal.SIGKILL)
        with pytest.raises(LostError, match="was killed by SIGKILL"):
            env.step({"boys": boys, "girls": girls})
        assert_same(grouped_stream(env, 8, 6), expected)
    finally:
        pids = env.pids
        env.close()
    assert not any(map(is_running, pids))


def unequal_slots(first_slot: int, count: int) -> GroupedEnv:
    policies = "independent" if first_slot else "shared"
    return PettingZooLoop([Camp] * count, policies, first_slot=first_slot)


def test_workers_with_other_groups() -> None:
    with pytest.raises(SpaceError, match=r"the groups in .*elsewhere \['agents'\]"):
        GroupedWorkerEnv(unequal_slots, 2, workers=2)
    assert env_pids() == []
