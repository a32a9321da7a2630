"""Every supported space goes through an adapter and back."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from recollect.base import spaces as rc_spaces
from recollect.base import tree
from recollect.envs import BatchedEnv, GymLoop, GymVector
from recollect.envs.checks import check_batched_env
from recollect.envs.space_values import env_seeds, to_batch, to_rows
from tests.support.worlds import Echo

BOX = spaces.Box(-3, 3, (3,), np.float32)
SPACES: dict[str, gym.Space] = {
    "discrete": spaces.Discrete(5),
    "discrete-start": spaces.Discrete(5, start=-2),
    "multi-discrete": spaces.MultiDiscrete([2, 7]),
    "multi-discrete-2d": spaces.MultiDiscrete(np.array([[2, 3], [4, 5]])),
    "multi-binary": spaces.MultiBinary(3),
    "multi-binary-2d": spaces.MultiBinary((2, 3)),
    "box": BOX,
    "box-one": spaces.Box(-2, 2, (1,), np.float32),
    "box-scalar": spaces.Box(-2, 2, (), np.float32),
    "box-float64": spaces.Box(-0.1, 0.1, (2,), np.float64),
    "box-unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "image": spaces.Box(0, 255, (9, 8, 3), np.uint8),
    "integers": spaces.Box(-5, 5, (2,), np.int16),
    "dict": spaces.Dict({"b": BOX, "a": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Discrete(3), BOX)),
    "nested": spaces.Dict(
        {"x": spaces.Tuple((spaces.MultiBinary(2), spaces.Dict({"y": BOX}))), "z": spaces.Discrete(2)}
    ),
}


def _adapt(space: gym.Space, kind: str) -> BatchedEnv:
    makers = [lambda: Echo(space)] * 3
    return GymLoop(makers) if kind == "loop" else GymVector(SyncVectorEnv(makers))


@pytest.mark.filterwarnings("ignore:.*Casting input x")  # SyncVectorEnv gives scalars to a Box ()
@pytest.mark.parametrize("kind", ["loop", "vector"])
@pytest.mark.parametrize("name", SPACES)
def test_round_trip(name: str, kind: str) -> None:
    """S003-7: dtype, shape and value of each action arrive, lie in the space and come back."""
    space = SPACES[name]
    env = _adapt(space, kind)
    obs = env.reset(0)
    assert tree.spec(obs) == tree.spec(rc_spaces.zeros(space, 3))
    rng = np.random.default_rng(0)
    for _ in range(5):
        action = rc_spaces.sample(space, 3, rng)
        step = env.step(action)
        assert tree.spec(step.obs) == tree.spec(action)
        for sent, seen in zip(tree.leaves(action), tree.leaves(step.obs)):
            assert torch.equal(sent, seen)


@pytest.mark.parametrize("name", SPACES)
def test_contract(name: str) -> None:
    check_batched_env(_adapt(SPACES[name], "loop"), steps=4)


def test_single_actions_look_like_samples() -> None:
    for name, space in SPACES.items():
        for action in to_rows(space, rc_spaces.sample(space, 3, np.random.default_rng(1)), 3):
            assert space.contains(action), name
            assert type(action) is type(space.sample()), name


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_rounded_bound_stays_within(sign: int) -> None:
    """float32(0.1) is more than 0.1, and an env may insist."""
    space = SPACES["box-float64"]
    action = torch.full((1, 2), sign * 0.1)
    (single,) = to_rows(space, action, 1)
    assert float(abs(action[0, 0].double())) > 0.1
    assert single.dtype == np.float64
    assert single.tolist() == [sign * 0.1] * 2


def test_float64_observations_become_float32() -> None:
    env = _adapt(SPACES["box-float64"], "loop")
    assert env.reset(0).dtype == torch.float32


def test_actions_with_gradients_and_lists_of_parts() -> None:
    assert to_batch(BOX, torch.ones(2, 3, requires_grad=True), 2).tolist() == [[1] * 3] * 2
    tuple_space = SPACES["tuple"]
    batch: Any = to_batch(tuple_space, [torch.tensor([1]), torch.zeros(1, 3)], 1)
    assert isinstance(batch, tuple)


def test_seeds() -> None:
    seeds = env_seeds(7, 500)
    assert len(set(seeds)) == 500
    assert seeds[:20] == env_seeds(7, 20)
    assert set(seeds).isdisjoint(env_seeds(8, 500))
    assert max(seeds) < 2**31
