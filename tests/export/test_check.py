"""What the check of an export must catch, and what it must let pass."""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from torch import nn

import recollect as rc
from recollect.config.policy import HeadConfig
from recollect.cores.contract import Core
from recollect.errors import RecollectError
from recollect.export.check import check
from recollect.export.files import export_agent
from recollect.export.step import StepModule, Tensors
from tests.export.test_files import BOX, THREE, assert_acts_alike, make_agent
from tests.support.agents import ACTIONS, small_agent
from tests.support.grouped_worlds import Duo


class Plain(nn.Module):
    """An encoder of one's own."""

    output_size = 3

    def __init__(self, space: gym.Space):
        super().__init__()

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs


class Noisy(Plain):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs + torch.rand_like(obs)


class Branching(Plain):
    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return obs if obs.sum() > 0 else -obs


def assert_refused(agent: rc.Agent, folder: Path, match: str) -> None:
    """No file is left, and one that was there before stays."""
    old = folder / "agent.pt2"
    old.write_text("the good one")
    with pytest.raises(RecollectError, match=match):
        export_agent(agent, old, "torch")
    assert old.read_text() == "the good one"
    assert list(folder.iterdir()) == [old]


def test_an_encoder_of_ones_own_is_exported(tmp_path: Path) -> None:
    agent = make_agent(BOX, THREE, encoder=Plain)
    assert_acts_alike(agent, export_agent(agent, tmp_path / "agent.pt2", "torch"))


def test_randomness_is_caught(tmp_path: Path) -> None:
    assert_refused(make_agent(BOX, THREE, encoder=Noisy), tmp_path, "deviates by .* random numbers")


def test_a_branch_on_values_is_refused(tmp_path: Path) -> None:
    assert_refused(make_agent(BOX, THREE, encoder=Branching), tmp_path, "cannot trace .* torch.where")


def test_a_lost_reset_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reset = Core.reset

    def forgetful(self: Core, state: Any, first: torch.Tensor) -> Any:
        return state if torch.compiler.is_exporting() else reset(self, state, first)

    monkeypatch.setattr(Core, "reset", forgetful)
    assert_refused(make_agent(BOX, THREE), tmp_path, "deviates")


def test_a_lost_reset_in_one_group_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S001-29: each group is checked by itself, and the error names the file."""
    agent, reset = small_agent(Duo), Core.reset
    agent["small"].policy.core.forgets = True  # pyright: ignore[reportArgumentType]

    def forgetful(self: Any, state: Any, first: torch.Tensor) -> Any:
        is_lost = torch.compiler.is_exporting() and getattr(self, "forgets", False)
        return state if is_lost else reset(self, state, first)

    monkeypatch.setattr(Core, "reset", forgetful)
    with pytest.raises(RecollectError, match=r"small\.pt2, step .* deviates"):
        export_agent(agent, tmp_path / "all", "torch")
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["big.pt2", "big.pt2.json"]


def step_of(agent: rc.Agent) -> StepModule:
    return StepModule(deepcopy(agent.policy).eval())


def test_the_check_passes_what_is_right_and_catches_a_lost_normalisation() -> None:
    agent = make_agent(BOX, THREE)
    step = step_of(agent)
    check(step, agent.policy, deterministic=True, name="file")
    step.policy.obs_norm = None
    with pytest.raises(RecollectError, match="file, step 0 of 1 rows: logits deviates"):
        check(step, agent.policy, deterministic=True, name="file")


@pytest.mark.parametrize("name", ["action", "mean", "log_std", "value", "next_state.1"])
def test_the_check_looks_at_every_output(name: str) -> None:
    agent = make_agent(BOX, ACTIONS["open_box"])
    step = step_of(agent)

    def off(inputs: Tensors) -> Tensors:
        return (outputs := step(inputs)) | {name: outputs[name] * 1.01 + 0.01}

    def missing(inputs: Tensors) -> Tensors:
        return {key: tensor for key, tensor in step(inputs).items() if key != name}

    def wide(inputs: Tensors) -> Tensors:
        return (outputs := step(inputs)) | {name: outputs[name].double()}

    for wrong, match in ((off, "deviates"), (missing, "is missing"), (wide, "float64")):
        with pytest.raises(RecollectError, match=rf"{re.escape(name)} .*{match}"):
            check(wrong, agent.policy, deterministic=True, name="file")


@pytest.mark.parametrize("action", ["discrete", "multidiscrete", "multibinary"])
def test_a_tie_is_no_deviation(action: str) -> None:
    """Of two choices that are equally likely rounding may take either; else it is a deviation."""

    def other(inputs: Tensors) -> Tensors:
        outputs = step(inputs)
        start = 5 if action == "discrete" else 0
        return outputs | {"action": (1 - (outputs["action"] - start).clamp(0, 1)) + start}

    agent = make_agent(BOX, ACTIONS[action], head=HeadConfig(gain=0.0))
    step = step_of(agent)
    check(other, agent.policy, deterministic=True, name="file")
    agent = make_agent(BOX, ACTIONS[action])
    step = step_of(agent)
    with pytest.raises(RecollectError, match="action deviates"):
        check(other, agent.policy, deterministic=True, name="file")
