"""The checker passes a healthy env and names what is wrong with each broken one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from recollect.base.types import Step
from recollect.envs.checks import check_batched_env
from recollect.errors import ConfigError, EnvError
from tests.support.worlds import TwoAgents


class Saved(TwoAgents):
    def snapshot(self) -> dict[str, torch.Tensor]:
        return {"t": self.t.clone(), "draws": torch.tensor(self.draws)}

    def restore(self, snapshot: dict[str, torch.Tensor]) -> Any:
        self.t, self.draws = snapshot["t"].clone(), int(snapshot["draws"]) - 1
        return self._see()

    def reset(self, seed: int) -> Any:
        self.draws = 0
        return super().reset(seed)

    def _see(self) -> Any:
        self.random = np.random.default_rng(self.draws)
        self.draws += 1
        return super()._see()


def test_healthy() -> None:
    """S001-29: agents of a slot are rows of their own; a dead one is not valid until it starts anew."""
    seen = check_batched_env(TwoAgents(), steps=40)
    assert (seen.truncated, seen.terminated) == (20, 20)
    assert seen.invalid == 40
    assert check_batched_env(Saved(), steps=40) == seen


def _mutant(change: Callable[[Step], Any], at: int = 5) -> TwoAgents:
    """TwoAgents, with the step ``at`` (and every 8th after it) replaced."""

    class Mutant(TwoAgents):
        def reset(self, seed: int) -> Any:
            self.count = -1
            return super().reset(seed)

        def step(self, action: Any) -> Any:
            self.count += 1
            step = super().step(action)
            return change(step) if self.count % 8 == at else step

    return Mutant()


def _at(tensor: torch.Tensor, row: int, value: Any) -> torch.Tensor:
    tensor = tensor.clone()
    tensor[row] = value
    return tensor


def _obs(step: Step, **parts: Any) -> Step:
    return replace(step, obs=step.obs | parts)


# In TwoAgents the steps 1, 5, .. kill agent 1 (rows 1 and 3), the steps 3, 7, .. cut agent 0 (rows 0, 2)
# and start all rows anew; in 2, 3, 6, 7, .. rows 1 and 3 are not valid.
BROKEN: dict[str, tuple[Callable[[Step], Any], int, str]] = {
    "tuple": (lambda s: (s.obs, s.reward), 0, r"step returned a tuple, not a recollect\.Step"),
    "reward dtype": (lambda s: replace(s, reward=s.reward.double()), 0, r"reward is torch.float64 \(4,\)"),
    "reward nan": (
        lambda s: replace(s, reward=_at(s.reward, 2, torch.nan)),
        0,
        r"step 0, row 2: the reward is NaN",
    ),
    "reward idle": (
        lambda s: replace(s, reward=_at(s.reward, 1, 1)),
        2,
        r"step 2, row 1: the reward is not zero, but valid is false",
    ),
    "flag int": (lambda s: replace(s, terminated=s.terminated.int()), 0, r"terminated is torch.int32"),
    "flag shape": (lambda s: replace(s, truncated=s.truncated[:, None]), 0, r"truncated is .*\(4, 1\)"),
    "flag idle": (
        lambda s: replace(s, truncated=_at(s.truncated, 3, True)),
        3,
        r"step 3, row 3: a flag is set, but valid is false",
    ),
    "end forgotten": (
        lambda s: replace(s, terminated=_at(s.terminated, 1, False)),
        1,
        r"step 2, row 1: valid is false inside an episode: was terminated or truncated",
    ),
    "first forgotten": (
        lambda s: replace(s, first=_at(s.first, 0, False)),
        3,
        r"step 4, row 0: valid is true after an end that no first followed",
    ),
    "first from nowhere": (
        lambda s: replace(s, first=_at(s.first, 0, True)),
        0,
        r"step 0, row 0: first is true, but no episode ended before",
    ),
    "idle too soon": (
        lambda s: replace(s, valid=_at(s.valid, 0, False), reward=_at(s.reward, 0, 0)),
        4,
        r"step 4, row 0: valid is false inside an episode",
    ),
    "missing part": (lambda s: replace(s, obs={"x": s.obs["x"]}), 0, r"obs has the parts \['x'\]"),
    "number in obs": (lambda s: _obs(s, x=3.0), 0, r"obs: x holds a float"),
    "obs dtype": (lambda s: _obs(s, x=s.obs["x"].double()), 0, r"obs\.x is torch.float64 \(4, 2\), expected"),
    "obs shape": (lambda s: _obs(s, x=s.obs["x"][:2]), 0, r"obs\.x is torch.float32 \(2, 2\), expected"),
    "obs device": (lambda s: _obs(s, x=s.obs["x"].to("meta")), 0, r"obs\.x is on meta, and env.device"),
    "obs outside": (lambda s: _obs(s, x=s.obs["x"] - 50), 0, r"row 0 of obs\.x lies outside Box"),
    "obs nan": (lambda s: _obs(s, x=_at(s.obs["x"], 2, torch.nan)), 0, r"row 2 of obs\.x .* not finite"),
    "final nan": (
        lambda s: replace(s, final_obs=s.final_obs | {"x": _at(s.final_obs["x"], 0, torch.nan)}),
        3,
        r"row 0 of final_obs\.x lies outside",
    ),
    "final is obs": (lambda s: replace(s, final_obs=s.obs), 3, r"final_obs is the same memory as obs"),
    "info": (lambda s: replace(s, info={"age": 3}), 0, r"info\['age'\] must be a tensor \(4,\)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_steps(name: str) -> None:
    change, at, pattern = BROKEN[name]
    with pytest.raises(EnvError, match=pattern):
        check_batched_env(_mutant(change, at), steps=12)


def test_rows_that_may_hold_anything() -> None:
    """What is seen by a dead agent, and final_obs where nothing ended, are nobody's business."""

    def spoil(step: Step) -> Step:
        nobody = _at(_at(step.obs["x"], 1, torch.nan), 3, torch.nan)
        alive = torch.full_like(step.final_obs["x"], torch.nan)
        return replace(step, obs=step.obs | {"x": nobody}, final_obs=step.final_obs | {"x": alive})

    check_batched_env(_mutant(spoil, at=2), steps=12)


def test_random_streams_that_no_seed_sets() -> None:
    class Loose(TwoAgents):
        def _see(self) -> Any:
            return super()._see() | {"x": torch.rand(4, 2)}

    with pytest.raises(EnvError, match=r"reset\(seed=0\) .* another obs\.x after 0 steps, row 0.*np\.random"):
        check_batched_env(Loose(), steps=4)


def test_snapshots_that_miss_something() -> None:
    class Forgetful(Saved):
        def restore(self, snapshot: dict[str, torch.Tensor]) -> Any:
            t = self.t.clone()
            obs = super().restore(snapshot)
            self.t = t
            return obs

    class Late(Saved):
        def restore(self, snapshot: dict[str, torch.Tensor]) -> Any:
            super().restore(snapshot)
            return self._see()

    with pytest.raises(EnvError, match=r"restore\(snapshot\(\)\).*missing in snapshot"):
        check_batched_env(Forgetful(), steps=6)
    with pytest.raises(EnvError, match=r"restore must return the obs to act on next"):
        check_batched_env(Late(), steps=7)


def test_actions_changed_in_place() -> None:
    class Greedy(TwoAgents):
        def step(self, action: Any) -> Any:
            step = super().step(action)
            action += 1
            return step

    with pytest.raises(EnvError, match="step 0: the env changed the action tensor in place"):
        check_batched_env(Greedy(), steps=4)


@pytest.mark.parametrize(
    ("name", "value", "pattern"),
    [
        ("num_envs", 0, "num_envs is 0: it must be an integer"),
        ("agents", None, "agents is None"),
        ("device", "cpu", r"device must be a torch\.device"),
        ("action_space", None, r"action_space is None: it must be the gymnasium\.Space of one row"),
        ("observation_space", spaces.Text(3), "observation_space is a Text, which is not supported"),
    ],
)
def test_attributes(name: str, value: Any, pattern: str) -> None:
    env = TwoAgents()
    setattr(env, name, value)
    with pytest.raises(EnvError, match=pattern):
        check_batched_env(env, steps=4)


def test_too_few_steps() -> None:
    with pytest.raises(ConfigError, match="at least 2"):
        check_batched_env(TwoAgents(), steps=1)
