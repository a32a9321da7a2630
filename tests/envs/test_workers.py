"""WorkerEnv: slots in other processes give what they give in one."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor, interleaved
from recollect.base import spaces, tree
from recollect.config.policy import PolicyConfig
from recollect.config.train import TrainConfig
from recollect.envs import BatchedEnv, GymLoop, Resumable, make_env
from recollect.envs.checks import check_batched_env
from recollect.envs.contract import AsyncStep
from recollect.envs.env_names import portable, restored
from recollect.envs.workers import WorkerEnv, shares
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, EnvError, LostError, RecollectError, SpaceError
from recollect.policy.policy import Policy
from recollect.runtimes.actor_envs import open_actor_env
from recollect.tasks import TASKS
from tests.support.agents import SMALL
from tests.support.worker_worlds import (
    IMAGES,
    MIXED,
    Pairs,
    Trouble,
    assert_same,
    env_pids,
    in_workers,
    is_running,
    plain,
    seen,
    stream,
)
from tests.support.worlds import Counter, choose

pytestmark = pytest.mark.usefixtures("warm_children")


@pytest.mark.parametrize(
    ("env", "num_envs", "workers", "kwargs"),
    [
        ("CartPole-v1", 7, 3, {}),
        (IMAGES, 3, 2, {}),
        (MIXED, 3, 2, {}),
        ("t-maze", 5, 2, {"length": 3}),
    ],
)
def test_identical_to_one_process(env: Any, num_envs: int, workers: int, kwargs: dict) -> None:
    """S003-9, S003-16: observations, rewards, flags and final observations, bit for bit; and again after
    a reset in the middle of episodes."""
    elsewhere = in_workers(env, num_envs, workers, **kwargs)
    here = plain(env, num_envs, **kwargs)
    try:
        assert elsewhere.observation_space == here.observation_space
        assert elsewhere.action_space == here.action_space
        for seed in (3, 4):
            expected = stream(here, 60, seed)
            assert any(step["first"].any() for step in expected[1:])
            assert_same(stream(elsewhere, 60, seed), expected)
    finally:
        elsewhere.close()


def test_keeps_the_contract_and_goes_on_from_snapshots() -> None:
    """A snapshot is the same tensors under the same names however many workers there are."""
    env = in_workers("delayed-cue", 5, 2)
    here = make_env("delayed-cue", 5)
    try:
        assert isinstance(env, BatchedEnv)
        assert isinstance(env, AsyncStep)
        assert isinstance(env, Resumable)
        assert check_batched_env(env, steps=60).terminated > 3
        assert_same(stream(env, 9, 1), stream(here, 9, 1))
        saved = env.snapshot()
        assert_same([saved], [here.snapshot()])  # pyright: ignore[reportAttributeAccessIssue]
        expected = [seen(here.step(torch.zeros(5, dtype=torch.int64))) for _ in range(20)]
        env.reset(8)
        env.restore(saved)
        assert_same([seen(env.step(torch.zeros(5, dtype=torch.int64))) for _ in range(20)], expected)
        with pytest.raises(EnvError, match="another num_envs"):
            env.restore({name: leaf[:3] for name, leaf in saved.items()})
    finally:
        env.close()


def test_agents_and_infos() -> None:
    """Rows of several agents, the numbers that an env reports, and a step that outlives the next."""
    env = WorkerEnv(Pairs, 3, workers=2)
    try:
        assert env.agents == 2
        assert not isinstance(env, Resumable)
        assert env.reset(1)[:, 0].tolist() == [1000, 1001, 1010, 1011, 1020, 1021]
        action = torch.tensor([0, 1, 2, 0, 1, 2])
        step = env.step(action)
        kept = tree.clone(step.obs)
        assert step.reward.tolist() == [1000, 1002, 1012, 1011, 1021, 1023]
        assert step.info.keys() == {"speed"}  # "late" is known of some rows only
        assert step.info["speed"].tolist() == action.tolist()
        assert step.info["speed"].dtype == torch.float64
        env.send(action)
        assert torch.equal(step.obs, kept)
        env.receive()
        assert torch.equal(step.obs, kept)
    finally:
        env.close()


@pytest.mark.parametrize("name", [*TASKS, "CartPole-v1"])
def test_a_slot_does_not_depend_on_the_others(name: str) -> None:
    """S002-2, S003-24: slots 2 and 3 of six, made alone, give their rows; all rows have other streams."""
    whole, part = make_env(name, 6), make_env(name, 2, first_slot=2)
    rng, mine = np.random.default_rng(0), slice(2 * whole.agents, 4 * whole.agents)
    obs, some = whole.reset(5), part.reset(5)
    for _ in range(30):
        assert_same([dict(tree.named_leaves(some))], [dict(tree.named_leaves(tree.index(obs, mine)))])
        action = spaces.sample(whole.action_space, 6 * whole.agents, rng)
        obs, some = whole.step(action).obs, part.step(tree.index(action, mine)).obs
    one, other = (tree.leaves(env.reset(5)) for env in (make_env(name, 2), part))
    assert not all(map(torch.equal, one, other)) or name in ("delayed-cue", "t-maze")


def test_made_envs_begin_at_slot_0() -> None:
    with pytest.raises(ConfigError, match="first_slot is 2"):
        make_env(GymLoop([Counter]), 1, first_slot=2)


def test_shares() -> None:
    """As even as can be, and in order."""
    assert shares(7, 3) == [range(0, 3), range(3, 5), range(5, 7)]
    assert shares(4, 4) == [range(i, i + 1) for i in range(4)]
    with pytest.raises(ConfigError, match="workers = 3 for 2 env slots: choose 1 to 2"):
        WorkerEnv(Pairs, 2, workers=3)


def test_what_an_env_raises_arrives() -> None:
    """The error of the env, with its number among all slots and the traceback; a reset goes on."""
    env = in_workers(Trouble, 5, 2, what="raise", number=2)  # the second worker has no third env
    action = torch.zeros(5, dtype=torch.int64)
    try:
        for _ in range(2):
            env.reset(0)
            env.step(action)
            env.step(action)
            with pytest.raises(EnvError, match=r"env 2 \(Trouble\), step 3: .*the lights went out") as error:
                env.step(action)
            assert "in misbehave" in error.value.__notes__[0]
            assert "env slots 0 to 2" in error.value.__notes__[0]
            with pytest.raises(EnvError, match=r"step cannot be called now: call reset\(seed\)"):
                env.step(action)
    finally:
        env.close()


def test_calls_out_of_turn() -> None:
    """What is not possible now is said, with what is; a reset in mid-step leaves no trace."""
    env = in_workers(Counter, 3, 2)
    try:
        with pytest.raises(EnvError, match="call reset"):
            env.step(torch.zeros(3, dtype=torch.int64))
        obs = env.reset(0)
        with pytest.raises(EnvError, match=r"receive cannot be called now: call send\(action\)"):
            env.receive()
        obs = env.reset(0)
        env.send(choose(obs))
        with pytest.raises(EnvError, match=r"step cannot be called now: call receive\(\)"):
            env.send(choose(obs))
        expected = GymLoop([Counter] * 3)
        # An action of the step under way would be refused: Counter knows which one belongs to what it shows.
        for seed in (7, 8):
            obs, other = env.reset(seed), expected.reset(seed)
            assert torch.equal(obs, other)
            for _ in range(5):
                step = env.step(choose(obs))
                assert_same([seen(step)], [seen(expected.step(choose(other)))])
                obs, other = step.obs, expected._now.step.obs
            env.send(choose(obs))
        obs = env.reset(9)
        with pytest.raises(SpaceError, match="the action"):
            env.step(torch.zeros(2, dtype=torch.int64))  # and no silent broadcast
        env.step(choose(obs))  # nothing was begun with it
    finally:
        pids = env.pids
        env.close()
        env.close()
    assert not any(map(is_running, pids))
    with pytest.raises(EnvError, match=r"ended by close\(\)"):
        env.reset(0)


def test_actions_in_other_forms() -> None:
    """Arrays and other integer dtypes are taken as GymLoop takes them."""
    env, here = in_workers("CartPole-v1", 2, 1), make_env("CartPole-v1", 2)
    try:
        assert torch.equal(env.reset(0), here.reset(0))
        for action in (np.array([1, 0]), torch.tensor([1, 1], dtype=torch.int32)):
            assert_same([seen(env.step(action))], [seen(here.step(action))])
    finally:
        env.close()


def test_what_cannot_be_made_is_an_error() -> None:
    """The worker's own words, and nothing is left running."""
    with pytest.raises(ConfigError, match=r"no env is registered as 'CartPoll-v1' .*did you mean 'CartPole"):
        in_workers("CartPoll-v1", 2, 1)
    with pytest.raises(RecollectError, match="cannot be sent to another process"):
        in_workers(functools.partial(Trouble, lock=threading.Lock()), 1, 1)  # pyright: ignore[reportCallIssue]
    assert env_pids() == []


def test_async_steps_pass_through_wrappers() -> None:
    """LastActionReward has AsyncStep exactly if its env has, with the same results."""
    plain_env = LastActionReward(make_env("t-maze", 3))
    assert not isinstance(plain_env, AsyncStep)
    inner = in_workers("t-maze", 3, 1)
    env = LastActionReward(inner)
    try:
        assert isinstance(env, AsyncStep)
        rng = np.random.default_rng(1)
        assert_same([env.reset(2)], [plain_env.reset(2)])
        for _ in range(30):
            action = spaces.sample(env.action_space, 3, rng)
            env.send(action)
            assert_same([seen(env.receive())], [seen(plain_env.step(action))])
    finally:
        env.close()


def test_envs_registered_by_a_script_are_known(tmp_path: Path) -> None:
    """An id that only the parent registered, a class of the script itself, and no ``__main__`` guard."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import gymnasium as gym
            import recollect as rc
            from gymnasium.envs.classic_control import CartPoleEnv

            class Mine(CartPoleEnv):
                pass

            gym.register("mine/Pole-v3", entry_point="__main__:Mine", max_episode_steps=20)
            settings = dict(num_envs=2, rollout=8, chunk=4, epochs=1, minibatches=1, threads=1)
            agent = rc.train("mine/Pole", steps=16, env_workers=2, progress=False, **settings)
            print("steps", agent.steps)
            agent.close()
            """
        )
    )
    run = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    assert "steps 16" in run.stdout, run.stdout + run.stderr


def test_portable_envs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name takes its registrations along, a file its place; a callable goes as it is."""
    monkeypatch.chdir(tmp_path)
    assert restored(portable(Counter)) is Counter
    assert portable("worlds.py:World").env == f"{tmp_path / 'worlds.py'}:World"
    assert portable("my.worlds:World").specs == ()
    assert portable("t-maze").env == "t-maze"
    sent = portable("CartPole")
    assert "CartPole-v1" in [spec.id for spec in sent.specs]
    monkeypatch.setattr(gym, "registry", {})
    assert restored(sent) == "CartPole"
    assert "CartPole-v1" in gym.registry


def test_opened_as_the_config_says() -> None:
    config = TrainConfig().override(num_envs=4, actors=2, env_workers=2, last_action_reward=True)
    env = open_actor_env("delayed-cue", config, 1)
    try:
        assert isinstance(env, LastActionReward)
        assert isinstance(env.env, WorkerEnv)
        assert env.num_envs == 2
        env.reset(0)
        os.kill(env.env.pids[1], signal.SIGKILL)
        with pytest.raises(LostError, match=r"actor 1, env worker 1 \(env slot 1\) .* was killed by SIGKILL"):
            env.step(torch.zeros(2, dtype=torch.int64))
    finally:
        env.close()


@pytest.mark.parametrize("actors", [1, 2])
def test_training_is_identical(actors: int) -> None:
    """S003-16: the weights after three updates do not depend on where the envs step."""
    settings = SMALL | {"num_envs": 4, "actors": actors, "last_action_reward": True}
    weights = []
    for env_workers in (0, 2):
        agent = rc.train("CartPole-v1", steps=96, env_workers=env_workers, progress=False, **settings)
        weights.append(tree.clone(dict(agent.policy.state_dict())))
        agent.close()
    assert_same(weights[:1], weights[1:])
    assert env_pids() == []


class Gate(gym.Env):
    """Its step comes back only when the env of the other actor has begun a step as well."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, mine: str, other: str):
        self.mine, self.other = Path(mine), Path(other)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.t += 1
        Path(f"{self.mine}{self.t}").touch()
        while not Path(f"{self.other}{self.t}").exists():
            time.sleep(0.001)
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_one_acts_while_the_other_steps(tmp_path: Path) -> None:
    """With two actors the steps of both are under way at once: each waits for the other to have begun."""
    a, b = str(tmp_path / "a"), str(tmp_path / "b")
    envs: list[WorkerEnv] = []
    try:
        for mine, other in ((a, b), (b, a)):
            envs.append(in_workers(Gate, 1, 1, mine=mine, other=other, timeout=60.0))
        policy = Policy(envs[0].observation_space, envs[0].action_space, PolicyConfig())
        actors = [Actor(env, policy, rollout=4, state_steps=(0,), seed=i) for i, env in enumerate(envs)]
        rollouts = interleaved([actor.collecting() for actor in actors])
        assert all(rollout.valid.all() for rollout in rollouts)
    finally:
        for env in envs:
            env.close()
