"""Parts of observations that are left out, and errors for those that cannot be learned from."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import recollect as rc
from recollect import cli
from recollect.config.own_code import OwnCode
from recollect.envs import make_env
from recollect.envs.user_wrappers import DropObservations
from recollect.errors import ConfigError, SpaceError
from tests.support.own_parts import FLAGS, HERE, TINY, Flat, Shifted, World

NESTED = spaces.Dict(
    {
        "a": spaces.Discrete(3),
        "b": spaces.Dict({"text": spaces.Text(4), "x": spaces.Box(0, 1, (2,))}),
        "c": spaces.Tuple([spaces.Text(2), spaces.MultiBinary(2), spaces.Dict({"deep": spaces.Text(3)})]),
    }
)


class Nested(gym.Env):
    """Every kind of space inside of another."""

    observation_space, action_space = NESTED, spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("drop", "left"),
    [
        (
            ["b.text", "c.0", "c.2"],
            {"a": NESTED["a"], "b": {"x": NESTED["b"]["x"]}, "c": (spaces.MultiBinary(2),)},
        ),
        (["b", "c"], {"a": NESTED["a"]}),
        (["b.text", "b.x", "c.0", "c.1", "c.2.deep"], {"a": NESTED["a"]}),  # what is empty goes, too
    ],
)
def test_parts_are_left_out(drop, left):
    def space(tree):
        if isinstance(tree, dict):
            return spaces.Dict({key: space(sub) for key, sub in tree.items()})
        return spaces.Tuple([space(sub) for sub in tree]) if isinstance(tree, tuple) else tree

    env = DropObservations(Nested(), drop)
    assert env.observation_space == space(left)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    assert env.observation_space.contains(env.step(0)[0])
    batched = make_env(Nested, 2, drop_obs=drop)
    assert batched.observation_space == env.observation_space
    assert batched.reset(0)["a"].shape == (2,)


@pytest.mark.parametrize(
    ("drop", "words"),
    [
        (["misson"], "no part 'misson' .did you mean 'mission'.*direction, image, mission"),
        (["direction", "image", "mission"], "leaves nothing of the observation"),
    ],
)
def test_wrong_parts(drop, words):
    with pytest.raises(ConfigError, match=words):
        make_env(World, 1, drop_obs=drop)
    with pytest.raises(ConfigError, match="it is no Dict or Tuple"):
        make_env("CartPole-v1", 1, drop_obs=drop)


def test_the_error_names_the_parts_and_the_flag(capsys):
    assert cli.main(["train", f"{HERE}:World", *FLAGS]) == 2
    error = capsys.readouterr().err
    assert "mission (a Text) is not supported" in error
    assert "--drop-obs mission" in error
    assert "--wrap module:Wrapper" in error
    with pytest.raises(
        SpaceError, match=r"b\.text .*c\.0 .*c\.2\.deep .*--drop-obs b\.text,c\.0,c\.2\.deep "
    ):
        make_env(Nested, 1)


def test_one_space_that_is_not_supported_has_nothing_to_drop():
    class Only(World):
        observation_space = spaces.Text(20)

    with pytest.raises(SpaceError, match="is a Text, which is not supported: wrap the env") as found:
        make_env(Only, 1)
    assert "--drop-obs" not in str(found.value)


def test_a_training_says_how_it_encodes(tmp_path, capsys):
    """One line for each part, those that were dropped among them."""
    words = [*FLAGS, "--drop-obs=mission", "--drop-obs=direction", f"--run={tmp_path / 'run'}", "--plain"]
    assert cli.main(["train", f"{HERE}:World", *words, "--no-report"]) == 0
    told = capsys.readouterr()
    lines = (told.out + told.err).splitlines()
    assert [line for line in lines if line.startswith("image 7x7x3 uint8: ")]
    assert "mission: dropped (drop_obs)" in lines
    assert "direction: dropped (drop_obs)" in lines
    with rc.load(tmp_path / "run", env=World) as agent:
        assert list(agent.policy.observation_space.spaces) == ["image"]
        assert agent.evaluate(1).lengths.tolist() == [4]


def test_wrappers_come_before_what_is_dropped():
    """A wrapper may need the part."""
    with pytest.raises(ConfigError, match="it is no Dict or Tuple"):
        rc.train(World, wrap=[Flat], drop_obs=["mission"], **TINY)
    env = make_env(World, 1, wrap=[lambda env: DropObservations(env, ["mission"])], drop_obs=["image"])
    assert env.observation_space == spaces.Dict({"direction": spaces.Discrete(4)})


def test_wrappers_are_applied_in_order():
    double = OwnCode("wrap", f"{HERE}:Flat", {"scale": 2.0})
    env = make_env(World, 2, wrap=[double, Shifted, Shifted])
    assert env.reset(0).tolist() == [[2.0]] * 2
    assert env.step(torch.zeros(2, dtype=torch.int64)).obs.tolist() == [[4.0]] * 2


def test_an_env_instance_is_wrapped():
    env = make_env(World(), 1, wrap=[Flat])
    assert env.reset(0).numpy().tolist() == np.zeros((1, 1)).tolist()
