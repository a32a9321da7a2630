"""Actions, distributions and observations of every kind as plain values; PNG."""

from __future__ import annotations

import base64
import functools
import io
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from recollect.acting.recording import record_env
from recollect.acting.trace_values import png, value_parts
from recollect.play.trace import record
from tests.play.test_trace import new_agent, of_spaces
from tests.support.agents import ACTIONS, OBSERVATIONS, AnySpace
from tests.support.helpers import ScriptedEnv, as_rows, make_policy


def test_values_of_actions_by_part():
    """One part for each choice, with its start; masked actions have none."""
    q = torch.tensor([[1.0, -torch.inf, 0.5, 2.0, 3.0]])
    assert value_parts(gym.spaces.Discrete(5, start=2), q) == [
        {"part": "", "kind": "values", "q": [1.0, None, 0.5, 2.0, 3.0], "start": 2}
    ]
    assert value_parts(gym.spaces.MultiDiscrete([3, 2]), q) == [
        {"part": "0", "kind": "values", "q": [1.0, None, 0.5]},
        {"part": "1", "kind": "values", "q": [2.0, 3.0]},
    ]


@pytest.mark.parametrize("action", ACTIONS)
def test_actions_are_those_of_the_env(action):
    """What is recorded lies in the action space, and the parts of the distribution are the space's."""
    made: list[Any] = []

    class Listening(AnySpace):
        def step(self, action: Any) -> Any:
            made.append(action)
            return super().step(action)

    agent = new_agent(functools.partial(Listening, None, ACTIONS[action]))
    trace = record(agent, deterministic=False)[0]
    assert len(trace.action) == len(trace) == 5
    for recorded, real in zip(trace.action, made):
        assert np.allclose(flat(recorded), flat(real), rtol=1e-5)
    kinds = [(part["part"], part["kind"]) for part in trace.distribution[0]]
    assert (
        kinds
        == {
            "discrete": [("", "categorical")],
            "box": [("", "normal")],
            "open_box": [("", "normal")],
            "scalar": [("", "normal")],
            "multidiscrete": [("0", "categorical"), ("1", "categorical")],
            "multibinary": [("", "bernoulli")],
            "dict": [("move", "normal"), ("fire", "categorical"), ("b", "bernoulli")],
            "tuple": [("0", "categorical"), ("1", "normal")],
        }[action]
    )


def flat(action: Any) -> list[float]:
    if isinstance(action, dict):
        return [x for part in action.values() for x in flat(part)]
    if isinstance(action, list | tuple):
        return [x for part in action for x in flat(part)]
    return np.asarray(action, dtype=float).reshape(-1).tolist()


def test_probabilities_are_those_of_the_log_prob():
    agent = new_agent(functools.partial(AnySpace, None, gym.spaces.MultiDiscrete([2, 3], start=[4, 0])))
    trace = record(agent, deterministic=False)[0]
    for parts, action, log_prob in zip(trace.distribution, trace.action, trace.log_prob):
        assert [len(part["probs"]) for part in parts] == [2, 3], "padding is not shown"
        assert [part.get("start", 0) for part in parts] == [4, 0]
        chances = [part["probs"][a - part.get("start", 0)] for part, a in zip(parts, action)]
        assert np.log(np.prod(chances)) == pytest.approx(log_prob, abs=1e-4)


def test_masked_actions_have_no_probability():
    space = gym.spaces.Dict(pick=gym.spaces.Discrete(4), move=gym.spaces.Box(-1, 1, (2,)))
    env = as_rows([lambda: ScriptedEnv(space, masked=True)], "loop")
    traces = record_env(make_policy(env), env, episodes=3, deterministic=False)
    masks = [
        part["values"]
        for trace in traces
        for step in trace.obs
        for part in step
        if part["name"] == "action_mask.pick"
    ]
    probs = [
        part["probs"] for t in traces for step in t.distribution for part in step if part["part"] == "pick"
    ]
    assert [[p > 0 for p in row] for row in probs] == [[m > 0 for m in row] for row in masks]
    assert any(0 in mask for mask in masks)


def test_a_squashed_normal_is_told_in_units_of_the_env():
    """Where the mean lands, and half the way between where one deviation below and above land."""
    env = as_rows([of_spaces(action="box")], "loop")  # bounds -2 and 1
    policy = make_policy(env)
    trace = record_env(policy, env)[0]
    dist, _, _ = policy.step(env.reset(0), policy.initial_state(1), torch.ones(1, dtype=torch.bool))
    u, std = (getattr(dist, name).detach().numpy() for name in ("mean", "std"))
    low, mean, high = (-0.5 + 1.5 * np.tanh(u + k * std)[0] for k in (-1, 0, 1))
    part = trace.distribution[0][0]
    assert part["mean"] == pytest.approx(mean, rel=1e-4)
    assert part["mean"] == pytest.approx(trace.action[0], rel=1e-4), "greedy takes the mean"
    assert part["std"] == pytest.approx((high - low) / 2, rel=1e-4)


def test_an_open_normal_is_told_as_it_is():
    env = as_rows([of_spaces(action="open_box")], "loop")
    policy = make_policy(env)
    trace = record_env(policy, env)[0]
    dist, _, _ = policy.step(env.reset(0), policy.initial_state(1), torch.ones(1, dtype=torch.bool))
    part = trace.distribution[0][0]
    assert part["mean"] == pytest.approx(dist.mean[0].tolist(), rel=1e-4)  # type: ignore[attr-defined]
    assert part["std"] == pytest.approx(dist.std.tolist(), rel=1e-4)  # type: ignore[attr-defined]


@pytest.mark.parametrize("observation", OBSERVATIONS)
def test_observations_of_every_kind(observation):
    agent = new_agent(of_spaces(observation))
    parts = record(agent)[0].obs[0]
    kinds = {part["name"]: part["kind"] for part in parts}
    expected = {
        "image": {"": "image"},
        "discrete": {"": "discrete"},
        "dict": {"a": "discrete", "m": "vector", "z": "vector"},
        "tuple": {"0": "discrete", "1": "vector"},
    }
    assert kinds == expected.get(observation, {"": "vector"})
    for part in parts:
        if part["kind"] == "discrete":
            assert 0 <= part["value"] < part["n"]
        elif part["kind"] == "vector":
            assert all(isinstance(x, float) for x in part["values"])


@pytest.mark.parametrize(
    ("shape", "dtype", "high"),
    [((9, 12, 3), np.uint8, 255), ((1, 9, 12), np.float32, 1), ((9, 12, 4), np.uint8, 255)],
)
def test_images_are_png(shape, dtype, high):
    """Channels last or first, bytes or floats; other numbers of channels stand side by side in grey."""
    image = pytest.importorskip("PIL.Image")
    space = gym.spaces.Box(0, high, shape, dtype)
    env = as_rows([lambda: AnySpace(space)], "loop")
    policy = make_policy(env, encoder=None)
    first_seen = env.reset(0)[0].numpy().copy()
    part = record_env(policy, env)[0].obs[0][0]
    picture = np.asarray(image.open(io.BytesIO(base64.b64decode(part["png"]))))
    assert part["shape"] == [9, 12, {3: 3, 1: 1, 4: 4}[min(shape)]]
    if min(shape) == 3:
        assert np.array_equal(picture, first_seen)
    elif min(shape) == 1:
        assert np.abs(picture / 255 - first_seen[0]).max() <= 0.5 / 255 + 1e-6
    else:
        assert np.array_equal(picture, np.concatenate([first_seen[..., c] for c in range(4)], 1))


def test_png_of_one_pixel():
    image = pytest.importorskip("PIL.Image")
    data = png(np.array([[[10, 20, 30]]], np.uint8))
    assert image.open(io.BytesIO(data)).getpixel((0, 0)) == (10, 20, 30)
