"""``recollect verify`` with several groups of agents: each policy is checked, a failure names its group."""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect.audit import env_checks, run
from recollect.audit.results import Verification
from recollect.base.types import Step
from recollect.cli import main
from recollect.config.policy import PolicyConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.policy.policy import Policy
from tests.support.grouped_worlds import LATE, Camp, Duo

SPEAKER = "pettingzoo/simple_speaker_listener_v4"
SMALL: dict[str, Any] = {
    "rollout": 23,
    "chunk": 7,
    "epochs": 1,
    "minibatches": 2,
    "num_envs": 3,
    "threads": 1,
    "normalise_observations": True,
}
BURN_IN = {"recurrent_mode": "burn_in", "burn_in_steps": 3}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_checks, "STEPS", 30)


def late() -> Camp:
    return Camp(LATE)


def duo() -> Verification:
    """Of the healthy ``Duo``; "big" has two agents, of which one dies early."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(env_checks, "STEPS", 30)
        patch.setattr(run, "SECONDS", 1e9)  # a slow machine would have shorter rollouts, and other failures
        return rc.verify(Duo, core=GRUConfig(hidden=8), **SMALL)


def test_two_healthy_groups_pass():
    """S004-19, S001-29: each group has all checks. Planted bugs in one of them make this proof fail."""
    result = duo()
    assert [check.name for check in result.checks if not check.group] == [
        "contract",
        "random numbers",
        "evaluations",
        "versions",
        "processes",
        "flat training",
        "resumed",
        "evaluated",
    ]
    assert {check.group for check in result.checks} == {"", "big", "small"}
    names = [check.name for check in result.of("big").checks]
    assert names == [check.name for check in result.of("small").checks]
    assert len(names) == 38
    assert result.of("big").ok, str(result.of("big"))
    assert result.ok, str(result)


@pytest.mark.parametrize(
    ("env", "settings"),
    [
        (late, {"policies": "independent", "last_action_reward": True}),
        (
            late,
            {"policies": {"x": ["ann", "cat"], "y": "bob"}, "recurrent_mode": "burn_in", "burn_in_steps": 3},
        ),
        (SPEAKER, {"policies": "independent", "recurrent_mode": "full"}),
        (Duo, {"last_action_reward": True, "algo": "impala"}),
    ],
    ids=["independent", "a mapping", "by name", "resumable"],
)
def test_healthy_groups_of_every_kind_pass(env: Any, settings: dict[str, Any]):
    """S004-19, S001-29: agents that appear late or die, and groups of different spaces and sizes."""
    result = rc.verify(env, core=LSTMConfig(hidden=8), **SMALL | settings)
    assert result.ok, str(result)
    assert result["learner"].status == "ok"


def test_a_policy_that_is_wrong_in_one_group_only():
    """S004-19: dropout in the policy of one group: its checks fail, those of the other pass."""

    def dropping(observation_space: gym.Space, action_space: gym.Space) -> Policy:
        policy = PolicyConfig(core=LSTMConfig(8)).build(observation_space, action_space)
        if action_space == gym.spaces.Discrete(4):
            policy.encoder = torch.nn.Sequential(policy.encoder, torch.nn.Dropout(0.5))
        return policy

    settings = {name: value for name, value in SMALL.items() if name != "normalise_observations"}
    result = rc.verify(Duo, policy=dropping, **settings)
    assert result.of("big").ok, str(result)
    assert {check.name for check in result.of("small").failed} >= {"acting", "learner"}
    assert result["learner"].group == "small", "of all, the one that failed"
    assert "group small: recorded and recomputed differ" in " ".join(str(result).split())


class LeapingRewards(Duo):
    """The rewards of one group are NaN from some step on."""

    def step(self, action: Any) -> dict[str, Step]:
        made = super().step(action)
        made["small"].reward.fill_(torch.nan)
        return made


def test_the_env_breaks_its_contract_in_one_group():
    result = rc.verify(LeapingRewards, core=GRUConfig(hidden=8), **SMALL)
    assert [check.name for check in result.failed] == ["contract"]
    assert "group 'small', row 0: the reward is NaN" in result["contract"].found


class Unseeded(Duo):
    """Starts at random, whatever the seed."""

    def reset(self, seed: int) -> dict[str, torch.Tensor]:
        return super().reset(int(torch.randint(1000, ())))


def test_an_env_that_ignores_its_seed_is_a_warning():
    result = rc.verify(Unseeded, core=GRUConfig(hidden=8), **SMALL)
    assert result.ok, str(result)
    assert result["contract"].status == "warning"
    assert {check.status for check in result.checks if check.name == "same seed"} == {"skipped"}


def test_the_command_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """The group of a failure is in its line, and in the JSON."""
    monkeypatch.setenv("COLUMNS", "80")
    flags = ["--rollout", "23", "--chunk", "7", "--num-envs", "3", "--minibatches", "2", "--core", "gru"]
    assert main(["verify", SPEAKER, "--policies", "independent", *flags, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"]
    assert {check["group"] for check in data["checks"]} == {"", "speaker_0", "listener_0"}
    assert main(["verify", SPEAKER, "--policies", "independent", *flags]) == 0
    out = capsys.readouterr().out
    assert out.count("group listener_0: ") == 38
    assert max(map(len, out.splitlines())) <= 80
    assert main(["verify", "tests.audit.test_verify_groups:LeapingRewards", *flags]) == 1
    assert "group 'small'" in capsys.readouterr().out
