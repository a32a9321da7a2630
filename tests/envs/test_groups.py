"""Groups of agents, and the views that make a BatchedEnv of each."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from gymnasium import spaces

from recollect.acting.actor import Actor, interleaved
from recollect.base import tree
from recollect.base.types import Step
from recollect.envs import BatchedEnv, GroupedEnv, Resumable, group_views, make_groups
from recollect.envs.contract import AsyncStep
from recollect.envs.groups import Group, OneGroup
from recollect.envs.on_device import HostEnv
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, EnvError, SpaceError
from tests.support.grouped_worlds import Duo
from tests.support.helpers import TensorWorld, keep, make_policy

A, B, TWO = spaces.Box(0, 1, (2,)), spaces.Box(0, 1, (3,)), spaces.Discrete(2)
CAST: dict[str, Any] = {"archer_0": (A, TWO), "knight_0": (B, TWO), "archer_1": (A, TWO)}


def test_groups_by_name_and_pattern() -> None:
    """Agents keep the order of the env, also if a mapping names them in another."""
    equal = dict.fromkeys(CAST, (A, TWO))
    assert make_groups("shared", equal) == {"agents": Group(tuple(CAST), A, TWO)}
    assert list(make_groups("independent", CAST)) == list(CAST)
    assert make_groups("independent", CAST)["knight_0"] == Group(("knight_0",), B, TWO)
    mapping = {"k": "knight_0", "bows": ["archer_1", "archer_*"]}
    assert make_groups(mapping, CAST) == {
        "k": Group(("knight_0",), B, TWO),
        "bows": Group(("archer_0", "archer_1"), A, TWO),
    }


@pytest.mark.parametrize(
    ("policies", "agents", "error", "words"),
    [
        ("shared", {}, ConfigError, "has no agents"),
        ("shared", CAST, SpaceError, "'archer_0' and 'knight_0' .*policies='independent', a mapping"),
        ("share", CAST, ConfigError, "did you mean 'shared'"),
        (3, CAST, ConfigError, "a mapping from each group"),
        ({"x": []}, CAST, ConfigError, "group 'x' has no agents"),
        (
            {"x": "archer_*", "y": ["knight_0", "archer_1"]},
            CAST,
            ConfigError,
            "'archer_1' is in the groups x and y",
        ),
        ({"x": "archer_*"}, CAST, ConfigError, "'knight_0' is in no group"),
        ({"x": "archer_*", "y": "knigth_0"}, CAST, ConfigError, "did you mean 'knight_0'"),
        ({"x": "archer_*", "y": "mage_*"}, CAST, ConfigError, r"'mage_\*', which is no agent"),
        ({"": "*"}, CAST, ConfigError, "cannot be the name of a group"),
        ({"x": "*"}, CAST, SpaceError, "'archer_0' and 'knight_0'"),
    ],
)
def test_bad_groups(policies: Any, agents: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make_groups(policies, agents)


class AsyncDuo(Duo):
    """A step that is made between ``send`` and ``receive``."""

    def send(self, action: Any) -> None:
        self.sent = tree.clone(action)

    def receive(self) -> dict[str, Step]:
        sent, self.sent = self.sent, None
        return self.step(sent)


def make_actor(env: BatchedEnv, seed: int = 0) -> Actor:
    return Actor(env, make_policy(env, "gru", seed=env.agents), rollout=7, state_steps=[0, 4], seed=seed)


def actors(env: GroupedEnv, seed: int = 5) -> list[Actor]:
    return [make_actor(view, seed) for view in group_views(env).values()]


def collect(acting: list[Actor]) -> list[Any]:
    return [keep(rollout) for rollout in interleaved([actor.collecting() for actor in acting])]


def assert_equal(one: Any, other: Any) -> None:
    for name in ("obs", "first", "action", "record", "reward", "terminated", "truncated", "valid"):
        for a, b in zip(tree.leaves(getattr(one, name)), tree.leaves(getattr(other, name)), strict=True):
            assert torch.equal(a, b), name
    assert torch.equal(one.final_value, other.final_value)
    assert torch.equal(one.bootstrap, other.bootstrap)


@pytest.mark.parametrize("world", [Duo, AsyncDuo])
def test_actors_of_two_groups_make_one_joint_step(world: type[Duo]) -> None:
    """The rollouts of both are those of the env stepped with both actions; with and without AsyncStep."""
    acting = actors(world())
    assert all(isinstance(actor.env, BatchedEnv) and isinstance(actor.env, AsyncStep) for actor in acting)
    env = Duo()
    obs = env.reset(5)
    first = {"big": torch.ones(6, dtype=torch.bool), "small": torch.ones(3, dtype=torch.bool)}
    for _ in range(2):
        rollouts = dict(zip(env.groups, collect(acting)))
        for t in range(7):
            for name, rollout in rollouts.items():
                assert torch.equal(rollout.obs[t], obs[name])
                assert torch.equal(rollout.first[t], first[name])
            steps = env.step({name: rollout.action[t] for name, rollout in rollouts.items()})
            for name, rollout in rollouts.items():
                for part in ("reward", "terminated", "truncated", "valid"):
                    assert torch.equal(getattr(rollout, part)[t], getattr(steps[name], part)), (name, part)
            obs = {name: step.obs for name, step in steps.items()}
            first = {name: step.first for name, step in steps.items()}
        assert not rollouts["big"].valid.all()
        assert rollouts["small"].valid.all()
    assert acting[0].info.keys() == {"info/sum"}


def test_one_group_is_the_batched_env() -> None:
    """Rollouts over the view of a single group equal those over the env, bit for bit; ``step`` works too."""
    plain, view = TensorWorld(), group_views(OneGroup(TensorWorld(), "all"))["all"]
    one, other = make_actor(plain), make_actor(view)
    for _ in range(3):
        assert_equal(one.collect(), other.collect())
    obs, same = plain.reset(1), view.reset(1)
    assert torch.equal(obs, same)
    for _ in range(9):
        step, other_step = (env.step(torch.zeros(3, dtype=torch.int64)) for env in (plain, view))
        assert torch.equal(step.obs, other_step.obs)
        assert torch.equal(step.first, other_step.first)


def test_views_resume() -> None:
    """The first view's snapshot is the env's; the actors continue from it bit for bit."""
    acting = actors(Duo())
    collect(acting)
    saved = [actor.snapshot() for actor in acting]
    assert {name for name in saved[0] or {} if name.startswith("env:")} == {"env:sum", "env:age"}
    assert not any(name.startswith("env:") for name in saved[1] or {})
    expected = collect(acting)
    again = actors(Duo(), seed=9)
    for actor, own in zip(again, saved):
        assert own is not None
        actor.restore(own)
    for one, other in zip(collect(again), expected):
        assert_equal(one, other)
    assert not isinstance(group_views(OneGroup(TensorWorld(), "all"))["all"], Resumable)


def test_views_are_reset_together() -> None:
    """The first resets the env, each other once with the same seed; a step waits for all of them."""
    env = Duo()
    big, small = group_views(env).values()
    action = torch.zeros(6, dtype=torch.int64)
    with pytest.raises(EnvError, match="call it of the view of 'big' first"):
        small.reset(1)
    with pytest.raises(EnvError, match="call reset of every view first"):
        big.send(action)  # pyright: ignore[reportAttributeAccessIssue]
    big.reset(1)
    with pytest.raises(EnvError, match=re.escape("call reset(seed=1) of the view of 'small'")):
        big.send(action)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(EnvError, match="with the same seed"):
        small.reset(2)
    assert small.reset(1)[:, 0].tolist() == [100, 101, 102]
    with pytest.raises(EnvError, match="once of every other"):
        small.reset(1)
    assert big.reset(2)[0, 0] == 200  # a new round, as after an error
    assert small.reset(2)[0, 0] == 200
    big.close()
    small.close()
    assert env.is_closed == 1


@pytest.mark.parametrize("world", [Duo, AsyncDuo])
def test_calls_out_of_turn(world: type[Duo]) -> None:
    big, small = (view for view in group_views(world()).values())
    views: Any = big, small
    actions = torch.zeros(6, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
    for view in views:
        view.reset(0)
    with pytest.raises(EnvError, match="cannot step alone"):
        views[0].step(actions[0])
    with pytest.raises(EnvError, match=r"send.action. of 'big', 'small' comes first"):
        views[0].receive()
    views[0].send(actions[0])
    with pytest.raises(EnvError, match=r"call receive\(\)"):
        views[0].send(actions[0])
    with pytest.raises(EnvError, match=r"send.action. of 'small' comes first.*interleaved"):
        views[0].receive()
    views[1].send(actions[1])
    with pytest.raises(EnvError, match=r"call receive\(\)"):
        views[0].send(actions[0])
    assert views[1].receive().reward.tolist() == [0, 1, 2]
    views[1].send(actions[1])  # the other group has not received yet
    assert views[0].receive().reward.tolist() == [0, 0, 1, 1, 2, 2]


def test_an_error_of_the_env_needs_a_reset() -> None:
    class Broken(Duo):
        def step(self, action: Any) -> Any:
            raise EnvError("the lights went out")

    views: Any = list(group_views(Broken()).values())
    for _ in range(2):
        for view in views:
            view.reset(0)
        views[0].send(torch.zeros(6, dtype=torch.int64))
        with pytest.raises(EnvError, match="the lights went out"):
            views[1].send(torch.zeros(3, dtype=torch.int64))
        with pytest.raises(EnvError, match="call reset of every view first"):
            views[0].send(torch.zeros(6, dtype=torch.int64))


def test_views_in_wrappers() -> None:
    """LastActionReward around each view: its keys are of the group's own actions."""
    views = [LastActionReward(view) for view in group_views(Duo()).values()]
    acting = [make_actor(view) for view in views]
    big, small = collect(acting)
    for rollout, count in ((big, 3), (small, 4)):
        inside = rollout.valid[:-1] & ~rollout.first[1:-1]
        last = rollout.obs["last_action"][1:-1][inside].argmax(-1)
        assert rollout.obs["last_action"].shape[-1] == count
        assert torch.equal(last, rollout.action[:-1][inside])


def test_views_on_a_device() -> None:
    """HostEnv around each view gives the rollouts of the views themselves."""
    expected = collect(actors(Duo()))
    hosted = [HostEnv(view, "cpu") for view in group_views(Duo()).values()]
    assert all(isinstance(view, Resumable) for view in hosted)
    for one, other in zip(collect([make_actor(view, 5) for view in hosted]), expected):
        assert_equal(one, other)
