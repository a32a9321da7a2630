"""GymVector: VectorEnvs in every autoreset mode are the same experience."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from recollect.envs import GymLoop, GymVector
from recollect.envs.checks import check_batched_env
from recollect.errors import EnvError, SpaceError
from tests.support.worlds import Counter, Scripted, by_batch, by_hand, choose

MODES = list(AutoresetMode)


def _vector(mode: AutoresetMode, rows: int = 3, **how: Any) -> GymVector:
    return GymVector(SyncVectorEnv([lambda: Counter(**how)] * rows, autoreset_mode=mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("as_dict", [False, True])
@pytest.mark.parametrize("length", [None, 1])
def test_equals_stepping_by_hand(mode: AutoresetMode, as_dict: bool, length: int | None) -> None:
    """S002-21: all modes give the valid experience of single envs; no action crosses episodes."""
    env = _vector(mode, as_dict=as_dict, length=length)
    assert by_batch(env, 30, seed=5) == by_hand(lambda: Counter(as_dict, length), 3, 30, seed=5)


@pytest.mark.parametrize("mode", MODES)
def test_without_copies(mode: AutoresetMode) -> None:
    """SyncVectorEnv(copy=False) hands out its own buffer, which the next call overwrites."""
    env = GymVector(SyncVectorEnv([Counter] * 3, copy=False, autoreset_mode=mode))
    assert by_batch(env, 30, seed=5) == by_hand(Counter, 3, 30, seed=5)


@pytest.mark.parametrize("mode", MODES)
def test_keeps_the_contract(mode: AutoresetMode) -> None:
    env = GymVector(SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 3, autoreset_mode=mode))
    seen = check_batched_env(env, steps=80)
    assert seen.terminated > 3
    assert (seen.invalid > 3) == (mode == AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("mode", MODES)
def test_async(mode: AutoresetMode) -> None:
    env = GymVector(AsyncVectorEnv([Counter] * 2, autoreset_mode=mode, context="spawn"))
    try:
        assert by_batch(env, 12, seed=5) == by_hand(Counter, 2, 12, seed=5)
        assert by_batch(env, 5, seed=6) == by_hand(Counter, 2, 5, seed=6)
    finally:
        env.close()


def test_next_step_shows_a_filler() -> None:
    """S002-21: final observation, then a filler whose action is not used, then the first."""
    env = _vector(AutoresetMode.NEXT_STEP, rows=1, length=1)
    ended = env.step(choose(env.reset(0)))
    assert ended.valid[0]
    assert bool(ended.terminated[0] | ended.truncated[0])
    assert not ended.first[0]
    assert ended.obs[0, :2].tolist() == ended.final_obs[0, :2].tolist() == [0, 1]
    filler = env.step(torch.tensor([999]))  # Counter would raise if it were given this
    assert not filler.valid[0]
    assert not (filler.terminated[0] | filler.truncated[0])
    assert filler.reward[0] == 0
    assert filler.first[0]
    assert filler.obs[0, :2].tolist() == [1, 0]
    assert env.step(choose(filler.obs)).valid[0]


def test_a_reset_right_after_an_end() -> None:
    """The pending autoreset is dropped: the next step is real."""
    env = _vector(AutoresetMode.NEXT_STEP, rows=1, length=1)
    env.step(choose(env.reset(0)))
    step = env.step(choose(env.reset(0)))
    assert step.valid[0]
    assert not step.first[0]
    assert step.reward[0] > 0


def test_wrappers_keep_the_mode() -> None:
    vector = SyncVectorEnv([Counter] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymVector(gym.wrappers.vector.RecordEpisodeStatistics(vector))
    assert by_batch(env, 20, seed=5) == by_hand(Counter, 3, 20, seed=5)


def test_loop_and_vector_see_the_same() -> None:
    """One seed means the same envs, whatever steps them."""
    make = [lambda: gym.make("CartPole-v1")] * 3
    assert torch.equal(GymLoop(make).reset(9), GymVector(SyncVectorEnv(make)).reset(9))


class _Batch(VectorEnv):
    """A VectorEnv of its own kind: a batched final_obs, one seed, and whatever mode it claims."""

    single_observation_space = spaces.Dict({"x": spaces.Box(-9, 9, (2,), np.float32)})
    single_action_space = spaces.Discrete(2)
    num_envs = 2

    def __init__(self, mode: Any = None, ended: Any = (False, False), **parts: Any) -> None:
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.ended, self.parts = np.array(ended), parts

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict]:
        assert seed is None or isinstance(seed, int)
        return {"x": np.zeros((2, 2), np.float32)}, {}

    def step(self, actions: Any) -> Any:
        parts = {
            "obs": {"x": np.ones((2, 2), np.float32)},
            "reward": np.ones(2),
            "terminated": self.ended,
            "truncated": np.zeros(2, bool),
            "info": {"final_obs": {"x": np.full((2, 2), 5.0)}},
        }
        return tuple((parts | self.parts).values())


def test_a_batched_final_obs() -> None:
    env = GymVector(_Batch(AutoresetMode.SAME_STEP, (False, True)))
    env.reset(0)
    step = env.step(torch.zeros(2, dtype=torch.int64))
    assert step.final_obs["x"][1].tolist() == [5, 5]
    assert step.obs["x"][1].tolist() == [1, 1]


@pytest.mark.parametrize("mode", ["SAME_STEP", "SameStep", AutoresetMode.SAME_STEP])
def test_the_mode_may_be_given(mode: Any) -> None:
    assert GymVector(_Batch(), autoreset_mode=mode).autoreset_mode is AutoresetMode.SAME_STEP


def test_the_mode_is_never_guessed() -> None:
    with pytest.raises(EnvError, match=r"does not say in metadata.*autoreset_mode=.*NEXT_STEP"):
        GymVector(_Batch())
    with pytest.raises(EnvError, match=r"autoreset_mode of .* is 'sometimes': it must be one of"):
        GymVector(_Batch("sometimes"))


@pytest.mark.parametrize(
    ("mode", "parts", "pattern"),
    [
        ("SAME_STEP", {"ended": (True, False), "info": {"x": 1}}, r"no 'final_obs'.*info has \['x'\]"),
        ("SAME_STEP", {"obs": {"x": np.zeros((2, 3))}}, r"\['x'\] has shape \(2, 3\)"),
        ("SAME_STEP", {"obs": {"y": 0}}, r"keys \['y'\], and its space says a dict with the keys \['x'\]"),
        ("SAME_STEP", {"reward": np.array([0, np.nan])}, r"step 1: the reward of env 1 is nan"),
        ("SAME_STEP", {"reward": np.zeros(3)}, r"rewards have dtype float64 and shape \(3,\)"),
        ("SAME_STEP", {"reward": ["a", "b"]}, r"rewards have dtype <U1"),
        ("SAME_STEP", {"truncated": None}, r"truncations have dtype object"),
        ("SAME_STEP", {"extra": 1}, r"step does not return .*a lone done is not accepted"),
        (
            "SAME_STEP",
            {"ended": (True, False), "info": {"final_obs": np.array([{"x": [1]}, None])}},
            r"env 0, info\['final_obs'\]: the observation\['x'\] has shape \(1,\)",
        ),
    ],
)
def test_broken_vector_envs_are_named(mode: str, parts: dict, pattern: str) -> None:
    """S000-1, S003-7: what is wrong, and at which step."""
    env = GymVector(_Batch(mode, **parts))
    env.reset(0)
    with pytest.raises(EnvError, match=pattern):
        env.step(torch.zeros(2, dtype=torch.int64))


def test_a_false_mode_is_found_out() -> None:
    env = GymVector(_Batch("NEXT_STEP", (True, False)))
    env.reset(0)
    env.step(torch.zeros(2, dtype=torch.int64))
    with pytest.raises(EnvError, match="env 0 ended in the step that should have reset it"):
        env.step(torch.zeros(2, dtype=torch.int64))


def test_errors_inside_are_chained() -> None:
    env = GymVector(SyncVectorEnv([lambda: Scripted(fail=ValueError("the arm broke"))]))
    with pytest.raises(EnvError, match=r"before GymVector\.reset"):
        env.step(torch.zeros(1, dtype=torch.int64))
    env.reset(0)
    with pytest.raises(EnvError, match="step 1: step raised ValueError: the arm broke") as error:
        env.step(torch.zeros(1, dtype=torch.int64))
    assert isinstance(error.value.__cause__, ValueError)


def test_unsupported_space() -> None:
    class Words(Scripted):
        observation_space = spaces.Text(5)  # pyright: ignore[reportAssignmentType]

    with pytest.raises(SpaceError, match=r"single_observation_space of .* is a Text"):
        GymVector(SyncVectorEnv([Words]))


def test_async_without_shared_memory() -> None:
    """Gymnasium's worker keeps a pending autoreset over ``reset`` there, so NEXT_STEP is refused."""
    vector = AsyncVectorEnv([Counter], shared_memory=False, context="spawn")
    try:
        with pytest.raises(EnvError, match=r"use shared_memory=True"):
            GymVector(vector)
    finally:
        vector.close()
