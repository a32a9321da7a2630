"""Envs on the CPU for a policy elsewhere: the same numbers, in one transfer each way per step.

Here both sides are the CPU, which takes the very same way; ``test_gpu.py`` has what only a GPU can show.
"""

from __future__ import annotations

import functools
from dataclasses import fields
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from recollect.acting.actor import interleaved
from recollect.base import spaces, tree
from recollect.base.types import Step
from recollect.config.train import TrainConfig
from recollect.envs import BatchedEnv, GymLoop, GymVector, Resumable, make_env
from recollect.envs.checks import check_batched_env
from recollect.envs.contract import AsyncStep, ReportsTruncation
from recollect.envs.on_device import HostEnv, on_device
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, EnvError, SpaceError
from recollect.runtimes import actor_envs
from tests.support.helpers import GYM_WORLDS, CounterEnv, as_rows, counting_policy, keep, make_actor
from tests.support.worker_worlds import IMAGES, MIXED, Pairs, assert_same, in_workers, seen, stream
from tests.support.worlds import Scripted

pytestmark = pytest.mark.usefixtures("warm_children")


def vector(make: Any, mode: AutoresetMode) -> GymVector:
    return GymVector(SyncVectorEnv([make] * 3, autoreset_mode=mode))


WORLDS: dict[str, Any] = {
    "loop": lambda: make_env("CartPole-v1", 3),
    "images": lambda: make_env(IMAGES, 3),
    "mixed": lambda: make_env(MIXED, 3),
    "next step": lambda: vector(MIXED, AutoresetMode.NEXT_STEP),
    "same step": lambda: vector(IMAGES, AutoresetMode.SAME_STEP),
    "agents and info": lambda: Pairs(0, 3),
    "task": lambda: make_env("delayed-cue", 3),
}


class Counted(HostEnv):
    """Counts transfers, and their bytes."""

    def __init__(self, env: Any) -> None:
        self.ups: list[int] = []
        self.downs: list[int] = []
        super().__init__(env, "cpu")

    def _copy_up(self, there: torch.Tensor, here: torch.Tensor) -> None:
        self.ups.append(here.nbytes)
        super()._copy_up(there, here)

    def _copy_down(self, here: torch.Tensor, there: torch.Tensor) -> None:
        self.downs.append(there.nbytes)
        super()._copy_down(here, there)


@pytest.mark.parametrize("world", WORLDS)
def test_identical_to_the_env_inside(world: str) -> None:
    """S001-1: all that a step says, bit for bit; and again after a reset in the middle of episodes."""
    env, plain = HostEnv(WORLDS[world](), "cpu"), WORLDS[world]()
    for seed in (3, 4):
        assert_same(stream(env, 60, seed), stream(plain, 60, seed))


@pytest.mark.parametrize("world", ["loop", "mixed", "next step", "task"])
def test_keeps_the_contract(world: str) -> None:
    env = HostEnv(WORLDS[world](), "cpu")
    assert isinstance(env, BatchedEnv)
    assert isinstance(env, AsyncStep)
    assert isinstance(env, ReportsTruncation)
    assert isinstance(env, Resumable) == (world == "task")
    check_batched_env(env, steps=60)


@pytest.mark.parametrize("world", GYM_WORLDS)
def test_the_same_rollouts(world: str) -> None:
    """S001-1, M: what is learned from does not depend on the way that it came."""
    found = []
    for wrap in (lambda env: env, lambda env: HostEnv(env, "cpu")):
        env = wrap(as_rows([functools.partial(CounterEnv, row) for row in range(4)], world))
        actor = make_actor(env, counting_policy(env), rollout=23, chunk=7)
        found.append([keep(actor.collect(version)) for version in range(2)])
    for plain, moved in zip(*found):
        assert plain.finals is not None
        assert moved.finals is not None
        for field in fields(plain):
            one, other = getattr(plain, field.name), getattr(moved, field.name)
            if field.name == "finals":
                one, other = ((f.time, f.row, f.obs) for f in (one, other))
            if isinstance(one, torch.Tensor | dict | tuple) and field.name != "state_steps":
                assert all(map(torch.equal, tree.leaves(one), tree.leaves(other))), field.name


@pytest.mark.parametrize("world", WORLDS)
def test_one_transfer_each_way(world: str) -> None:
    """S001-1: however many tensors a step and an action have; final_obs travels only when episodes ended."""
    env = Counted(WORLDS[world]())
    env.reset(0)
    rng, rows = np.random.default_rng(0), env.num_envs * env.agents
    ended, sizes = [], set()
    assert (len(env.ups), len(env.downs)) == (1, 0)
    for t in range(30):
        action = spaces.sample(env.action_space, rows, rng)
        step = env.step(action)
        assert (len(env.ups), len(env.downs)) == (t + 2, t + 1)
        assert env.downs[-1] >= tree.size_bytes(action)
        parts = [step.obs, step.reward, step.info, *(getattr(step, name) for name in ("first", "valid"))]
        places = {leaf.untyped_storage().data_ptr() for part in parts for leaf in tree.leaves(part)}
        assert len(places) == 1  # views of one piece of memory
        ended.append(bool((step.terminated | step.truncated).any()))
        sizes.add((ended[-1], env.ups[-1]))
        assert (step.final_obs is step.obs) == (not ended[-1])
    assert len(sizes) == len(set(ended))
    if len(sizes) == 2:
        final = tree.size_bytes(env.reset(0))
        assert dict(sizes)[True] - dict(sizes)[False] >= final


def test_a_step_outlives_the_next() -> None:
    """While the next step is made and learned from, a step stays what it was."""
    env = HostEnv(make_env(MIXED, 3), "cpu")
    env.reset(1)
    rng = np.random.default_rng(1)
    last, kept = None, {}
    for _ in range(20):
        step = env.step(spaces.sample(env.action_space, 3, rng))
        if last is not None:
            assert_same([seen(last)], [kept])
        last, kept = step, seen(step)


def test_reports_truncated_rows() -> None:
    """The host knows which rows were truncated and not terminated; the device has them already."""
    env = HostEnv(make_env(IMAGES, 4), "cpu")
    env.reset(2)
    rng, met = np.random.default_rng(2), set()
    for _ in range(60):
        step = env.step(spaces.sample(env.action_space, 4, rng))
        expected = (step.truncated & ~step.terminated).nonzero().squeeze(1)
        rows = env.truncated_rows()
        met.add(rows is not None)
        assert (rows is not None) == (len(expected) > 0)
        if rows is not None:
            assert torch.equal(rows, expected)
            env.reset(3)
            assert env.truncated_rows() is None
    assert met == {True, False}


class Noted:
    """A BatchedEnv that writes down what is done to it; with ``send`` and ``receive`` if it is split."""

    num_envs, agents, device = 2, 1, torch.device("cpu")
    observation_space: Any = gym_spaces.Box(-1, 100, (1,), np.float32)
    action_space: Any = gym_spaces.Discrete(2)

    def __init__(self, log: list[str], name: str = "", *, split: bool = False):
        self.log, self.name, self.actions = log, name, []
        if split:
            self.send, self.receive = self._send, self._receive

    def reset(self, seed: int) -> torch.Tensor:
        return torch.zeros(2, 1)

    def step(self, action: Any) -> Step:
        self.log.append(f"{self.name} steps")
        self.actions.append(action)
        return self._result()

    def _send(self, action: Any) -> None:
        self.log.append(f"{self.name} begins")
        self.actions.append(action)

    def _receive(self) -> Step:
        self.log.append(f"{self.name} ends")
        return self._result()

    def _result(self) -> Step:
        none = torch.zeros(2, dtype=torch.bool)
        return Step(torch.ones(2, 1), none, torch.ones(2), none, none, torch.ones(2, 1), ~none)

    def close(self) -> None:
        self.log.append(f"{self.name} closed")


@pytest.mark.parametrize("split", [False, True])
def test_when_the_env_steps(split: bool) -> None:
    """By itself in ``receive``; one that steps elsewhere begins in ``send``, as early as can be."""
    log: list[str] = []
    env = HostEnv(Noted(log, "env", split=split), "cpu")
    env.reset(0)
    env.send(torch.tensor([0, 1]))
    assert log == (["env begins"] if split else [])
    env.receive()
    assert log == (["env begins", "env ends"] if split else ["env steps"])


@pytest.mark.parametrize("split", [False, True])
def test_two_actors_take_turns(split: bool) -> None:
    """Double buffering: when the env of one actor steps, the action of the other is on its way."""
    log: list[str] = []

    class Logged(HostEnv):
        def send(self, action: Any) -> None:
            log.append(f"{self.env.name} acts")  # pyright: ignore[reportAttributeAccessIssue]
            super().send(action)

    envs = [Logged(Noted(log, name, split=split), "cpu") for name in "ab"]
    actors = [make_actor(env, counting_policy(env), rollout=3, chunk=3) for env in envs]
    interleaved([actor.collecting() for actor in actors])
    begins = {name: [f"{name} acts", f"{name} begins"] if split else [f"{name} acts"] for name in "ab"}
    ends = {name: [f"{name} ends" if split else f"{name} steps"] for name in "ab"}
    turn = [*ends["a"], *begins["a"], *ends["b"], *begins["b"]]
    assert log == [*begins["a"], *begins["b"], *turn, *turn, *ends["a"], *ends["b"]]


def test_the_action_is_the_envs_own() -> None:
    """An env may keep or change it: neither the policy's tensor nor the next action is touched."""
    inner = Noted([])
    env = HostEnv(inner, "cpu")
    env.reset(0)
    action = torch.tensor([0, 1])
    env.step(action)
    inner.actions[0].zero_()
    assert action.tolist() == [0, 1]
    env.step(torch.tensor([1, 1]))
    assert [kept.tolist() for kept in inner.actions] == [[0, 0], [1, 1]]


def test_actions_in_other_forms() -> None:
    """Arrays, lists, other dtypes and strides are taken as the env inside takes them."""
    for make, forms in (
        ("CartPole-v1", [np.array([1, 0]), torch.tensor([1, 0], dtype=torch.int32), [1, 0]]),
        ("CartPole-v1", [torch.tensor([[1, 0], [1, 1]])[:, 0], torch.tensor([[1], [1]])]),
        ("Pendulum-v1", [torch.ones(2, 1, requires_grad=True), torch.ones(1, 2).t()]),
    ):
        env, plain = HostEnv(make_env(make, 2), "cpu"), make_env(make, 2)
        assert_same([{"obs": env.reset(0)}], [{"obs": plain.reset(0)}])
        for action in forms:
            step = env.step(action)
            assert_same([seen(step)], [seen(plain.step(action))])
            assert not step.obs.requires_grad


def test_wrong_calls_and_errors() -> None:
    """What the env inside says comes through, and ``reset`` is always a way on."""
    env = HostEnv(make_env("CartPole-v1", 2), "cpu")
    action = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(EnvError, match=r"GymLoop\.step before GymLoop\.reset"):
        env.step(action)
    env.reset(0)
    with pytest.raises(EnvError, match=r"receive cannot be called now: call send\(action\)"):
        env.receive()
    env.send(action)
    with pytest.raises(EnvError, match=r"send cannot be called now: call receive\(\)"):
        env.send(action)
    assert torch.equal(env.reset(5), make_env("CartPole-v1", 2).reset(5))
    with pytest.raises(SpaceError, match="the action"):
        env.step(torch.zeros(3, dtype=torch.int64))  # and no silent broadcast
    env.step(action)
    broken = HostEnv(GymLoop([lambda: Scripted(fail=ValueError("the arm broke"))]), "cpu")
    broken.reset(0)
    with pytest.raises(EnvError, match="the arm broke"):
        broken.step(torch.zeros(1, dtype=torch.int64))


def test_goes_on_from_a_snapshot() -> None:
    env, plain = HostEnv(make_env("delayed-cue", 3), "cpu"), make_env("delayed-cue", 3)
    assert isinstance(env, Resumable)
    stream(env, 7, 1)
    saved = env.snapshot()
    action = torch.zeros(3, dtype=torch.int64)
    expected = [seen(env.step(action)) for _ in range(20)]
    env.reset(4)
    env.send(action)
    assert isinstance(plain, Resumable)
    assert torch.equal(env.restore(saved), plain.restore(saved))
    assert_same([seen(env.step(action)) for _ in range(20)], expected)


def test_made_in_inference_mode() -> None:
    """What is allocated there can be written outside of it."""
    env = HostEnv(Pairs(0, 2), "cpu")
    with torch.inference_mode():
        env.reset(0)
        env.step(torch.zeros(4, dtype=torch.int64))
        env.step(torch.zeros(4, dtype=torch.int32))
    expected = stream(Pairs(0, 2), 5, 1)
    assert_same(stream(env, 5, 1), expected)


def test_over_workers() -> None:
    """Worker processes inside: the same numbers, one transfer each way, a reset also in the middle."""
    inner = in_workers(MIXED, 3, 2)
    env = Counted(inner)
    try:
        assert not isinstance(env, Resumable)
        assert_same(stream(env, 20, 3), stream(make_env(MIXED, 3), 20, 3))
        assert (len(env.ups), len(env.downs)) == (21, 20)
        env.send(spaces.sample(env.action_space, 3, np.random.default_rng(0)))
        assert_same(stream(env, 5, 4), stream(make_env(MIXED, 3), 5, 4))
        assert check_batched_env(LastActionReward(env), steps=20).steps > 0
    finally:
        env.close()
    with pytest.raises(EnvError, match=r"ended by close\(\)"):
        env.reset(0)


@pytest.mark.parametrize(
    ("env", "inside"),
    [
        ("CartPole-v1", GymLoop),
        (MIXED, GymLoop),
        (lambda: gym.make("CartPole-v1"), GymLoop),
        (SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2), GymVector),
    ],
    ids=["name", "partial", "callable", "vector"],
)
def test_every_foreign_env_on_another_device(env: Any, inside: type) -> None:
    """``make_env`` puts it around whatever Gymnasium makes; built-in tasks are on the device themselves."""
    made = make_env(env, 2, device="meta")
    assert isinstance(made, HostEnv)
    assert isinstance(made.env, inside)
    assert made.env.device.type == "cpu"
    made.reset(0)
    step = made.step(spaces.sample(made.action_space, 2, np.random.default_rng(0)))
    parts = tree.leaves(made.reset(0)) + tree.leaves(step.obs) + [step.reward, step.first, step.valid]
    assert {leaf.device for leaf in parts} == {made.device} == {torch.device("meta")}


def test_workers_of_an_actor_are_put_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The config's device is that of what is handed out, around the workers and inside of the wrappers."""
    moved = []

    def noted(env: BatchedEnv, device: Any) -> BatchedEnv:
        moved.append((type(env).__name__, str(device)))
        return HostEnv(env, device)

    monkeypatch.setattr(actor_envs, "on_device", noted)
    config = TrainConfig().override(num_envs=2, env_workers=1, last_action_reward=True)
    env = actor_envs.open_actor_env("CartPole-v1", config)
    try:
        assert moved == [("WorkerEnv", "cpu")]
        assert isinstance(env, LastActionReward)
        assert isinstance(env.env, HostEnv)
    finally:
        env.close()


def test_what_cannot_be_put_on_a_device() -> None:
    log: list[str] = []
    inner = Noted(log, "env")
    assert on_device(inner, "cpu") is inner
    with pytest.raises((RuntimeError, AssertionError)):
        on_device(inner, "cuda:99")
    assert log == ["env closed"]
    meta = make_env("delayed-cue", 1)
    meta.device = torch.device("meta")  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ConfigError, match="HostEnv is for an env on the CPU"):
        HostEnv(meta, "cpu")
    with pytest.raises(ConfigError, match=r"wrap it: recollect.envs.on_device.HostEnv\(env, 'cuda'\)"):
        make_env(GymLoop([Scripted]), 1, device="cuda")
