"""Envs on the CPU, the policy on a GPU: pinned memory, and a host that waits for its own action only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.base import spaces, tree
from recollect.base.types import Tree
from recollect.envs import make_env
from recollect.envs.on_device import HostEnv
from recollect.envs.wrappers import LastActionReward
from tests.support.batch_worlds import Recall, make_recall
from tests.support.helpers import make_actor, make_policy
from tests.support.recorded import silence
from tests.support.worker_worlds import IMAGES, MIXED, Pairs, assert_same, in_workers, seen, stream

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

Seen = list[dict[str, torch.Tensor]]
ROWS = 3
WORLDS: dict[str, Any] = {
    "loop": lambda: make_env("CartPole-v1", ROWS),
    "images": lambda: make_env(IMAGES, ROWS),
    "mixed": lambda: make_env(MIXED, ROWS),
    "info": lambda: Pairs(0, ROWS),
    "workers": lambda: in_workers(MIXED, ROWS, 2),
    "task in workers": lambda: in_workers("delayed-cue", ROWS, 2),
}


def played(env: HostEnv, steps: int, seed: int, *, on: str = "cuda", late: int = 0) -> Seen:
    """As ``stream``, with actions on a device; ``late``: cycles that the device is busy before each step."""
    actions = sampled(env, steps, seed, on)
    found = [dict(tree.named_leaves(tree.clone(env.reset(seed)), "obs"))]
    for action in actions:
        if late:
            torch.cuda._sleep(late)
        found.append(seen(env.step(action)))
    return on_cpu(found)


def sampled(env: Any, count: int, seed: int = 0, on: str = "cuda") -> list[Tree]:
    """The actions of ``stream``, made before: to bring one up waits for the device."""
    rng, rows = np.random.default_rng(seed), env.num_envs * env.agents
    return [tree.to(spaces.sample(env.action_space, rows, rng), on) for _ in range(count)]


def on_cpu(found: Seen) -> Seen:
    return [{name: leaf.cpu() for name, leaf in one.items()} for one in found]


@pytest.mark.parametrize("world", WORLDS)
def test_identical_to_the_env_inside(world: str) -> None:
    """S001-1: bit for bit, also while the device lags behind the host."""
    env, plain = HostEnv(WORLDS[world](), "cuda"), WORLDS[world]()
    try:
        assert {leaf.device for leaf in tree.leaves(env.reset(0))} == {env.device}
        assert_same(played(env, 40, 3), stream(plain, 40, 3))
        assert_same(played(env, 20, 4, late=1_000_000), stream(plain, 20, 4))
    finally:
        env.close()
        plain.close()


@pytest.mark.parametrize("world", ["loop", "images", "mixed", "info"])
def test_a_host_that_runs_ahead_overwrites_nothing(world: str) -> None:
    """With actions that are on the host already nothing but the memory itself can hold it back."""
    env = HostEnv(WORLDS[world](), "cuda")
    env.reset(0)
    assert_same(played(env, 30, 5, on="cpu", late=5_000_000), stream(WORLDS[world](), 30, 5))


@pytest.mark.parametrize("world", ["loop", "mixed", "info", "workers"])
def test_nothing_waits_for_the_device(world: str) -> None:
    """S001-1: no operation that makes the host wait; while the device is busy the step is there."""
    env = HostEnv(WORLDS[world](), "cuda")
    try:
        env.reset(0)
        actions = sampled(env, 12)
        for action in actions[:2]:  # what is allocated once may wait
            env.step(action)
        with silence():
            for action in actions[2:]:
                env.send(action)
                step = env.receive()
                env.truncated_rows()
        torch.cuda.synchronize()
        env.send(actions[0])
        torch.cuda._sleep(4_000_000_000)  # seconds; a step takes milliseconds
        step = env.receive()
        assert not torch.cuda.current_stream().query(), "receive() waited for more than the action"
        assert step.reward.is_cuda
        torch.cuda.synchronize()
    finally:
        env.close()


def test_the_memory_is_pinned() -> None:
    env = HostEnv(make_env(MIXED, 2), "cuda")
    env.reset(0)
    for up in env._next_upload({}), env._next_upload({}):
        assert up.long[0].is_cuda
        assert up.long[1].is_pinned()
        assert up.short[1].is_pinned()
    assert all(leaf.is_pinned() for leaf in tree.leaves(env._download.host))


def test_rollouts_are_those_of_an_actor_on_the_cpu() -> None:
    """M: observations, rewards and flags of the same actions, and V where an episode was cut."""
    torch.manual_seed(0)
    rollouts = []
    for device in ("cpu", "cuda"):
        env = make_env("CartPole-v1", 4, device=device, env_kwargs={"max_episode_steps": 7})
        policy = make_policy(env).to(device)
        with torch.no_grad():  # one action only: the two devices draw different random numbers
            policy.head.linear.weight.zero_()
            policy.head.linear.bias.copy_(torch.tensor([50.0, -50.0]))
        rollouts.append(make_actor(env, policy, rollout=23, chunk=7).collect())
    plain, moved = rollouts
    assert plain.truncated.any()
    for name in ("obs", "first", "reward", "terminated", "truncated", "valid", "action"):
        one, other = getattr(plain, name), getattr(moved, name)
        assert other.is_cuda
        assert torch.equal(one, other.cpu()), name
    torch.testing.assert_close(moved.final_value.cpu(), plain.final_value, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(moved.record["value"].cpu(), plain.record["value"], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "how",
    [
        {"actors": 1},
        {"actors": 2},
        {"actors": 2, "env_workers": 2},
        {"actors": 2, "last_action_reward": True},
    ],
    ids=str,
)
def test_training(how: dict[str, Any]) -> None:
    """A foreign env on the CPU trains a policy on the GPU, however it is stepped."""
    rows: list[dict[str, float]] = []
    settings = {"num_envs": 8, "rollout": 32, "chunk": 16, "steps": 256 * 4, "progress": False}
    keep = [lambda _, metrics: rows.append(metrics)]
    agent = rc.train("CartPole-v1", device="cuda", callbacks=keep, **settings | how)
    try:
        env = agent.need_trainer().collector.envs[0]  # pyright: ignore[reportAttributeAccessIssue]
        env = env.env if isinstance(env, LastActionReward) else env
        assert isinstance(env, HostEnv)
        assert next(agent.policy.parameters()).is_cuda
        assert rows[-1]["steps"] == 1024
        checked = [row["deviation/log_prob"] for row in rows if "deviation/log_prob" in row]
        assert checked  # too large a one would have stopped the run
        assert agent.evaluate(episodes=4).returns.shape == (4,)
    finally:
        agent.close()


def test_goes_on_from_a_snapshot() -> None:
    """S004-20: a task in workers on the CPU, whose snapshot comes back from the device."""
    env = HostEnv(in_workers("delayed-cue", ROWS, 2), "cuda")
    try:
        env.reset(1)
        actions = sampled(env, 20)
        saved = {name: leaf.to("cuda") for name, leaf in env.snapshot().items()}
        expected = on_cpu([seen(env.step(action)) for action in actions])
        env.reset(2)
        assert tree.leaves(env.restore(saved))[0].is_cuda
        assert_same(on_cpu([seen(env.step(action)) for action in actions]), expected)
    finally:
        env.close()


def test_a_callable_that_makes_a_batch() -> None:
    """With a parameter ``device`` its rows are on the GPU; without one they are on the CPU, and travel."""
    there, carried = (make_env(make, ROWS, device="cuda") for make in (Recall, make_recall))
    assert isinstance(there, Recall)
    assert there.reset(0).device.type == "cuda"
    assert isinstance(carried, HostEnv)
    assert_same(played(carried, 12, 5), stream(Recall(ROWS), 12, 5))
    small = {"num_envs": 4, "rollout": 8, "chunk": 4, "steps": 64, "core": rc.LSTMConfig(hidden=8)}
    for make in (Recall, make_recall):
        with rc.train(make, device="cuda", progress=False, **small) as agent:
            assert agent.evaluate(2).returns.shape == (2,)
