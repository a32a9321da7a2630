"""``recollect verify``: every planted bug fails the right check, and healthy twins of every kind pass."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import recollect as rc
from recollect.audit import env_checks, loop_checks, resume_checks
from recollect.audit.results import PARTS, Check, Verification
from recollect.audit.setup import prepare
from recollect.cli import main
from recollect.config.policy import EncoderConfig, PolicyConfig
from recollect.config.q_heads import QHeadConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import ConfigError
from recollect.policy.policy import Policy
from tests.audit import mutant_cases
from tests.mutants.memory_bugs import RESETS
from tests.mutants.mutant import Mutant
from tests.mutants.verify_bugs import FOUND_BY, FOUND_IN_REPLAY, Planted
from tests.support.agents import AnySpace
from tests.support.helpers import ArenaWorld, LastSeen, ScriptedEnv, TensorWorld

SMALL = mutant_cases.SMALL | {"minibatches": 2}
"""Odd lengths: 23 steps are three chunks of 7 and one of 2."""
DICT = gym_spaces.Dict({"a": gym_spaces.Box(-1, 1, (2,)), "b": gym_spaces.Discrete(3)})
BOX = gym_spaces.Box(-1.0, 2.0, (2,), np.float32)


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(env_checks, "STEPS", 30)


def verified(env: Any = ScriptedEnv, **settings: Any) -> Verification:
    return rc.verify(env, **SMALL | settings)


def failed(result: Verification) -> set[str]:
    return {check.name for check in result.failed}


HEALTHY = {
    "lstm": (ScriptedEnv, {}),
    "two layers, learned start": (
        ScriptedEnv,
        {"core": LSTMConfig(hidden=8, layers=2, learned_initial_state=True)},
    ),
    "gru": (ScriptedEnv, {"core": GRUConfig(hidden=8)}),
    "no memory": (ScriptedEnv, {"core": "none", "recurrent_mode": "none"}),
    "a count in the state": (ScriptedEnv, {"core": {"name": "window", "hidden": 8, "window": 6}}),
    "cores in a core": (ScriptedEnv, {"core": {"name": "pmm", "hidden": 8, "controller": "mamba"}}),
    "tokens": ("forage", {"encoder": EncoderConfig(tokens="latent_attn_tiny"), "env_kwargs": {"limit": 6}}),
    "a core of one's own": (ScriptedEnv, {"core": lambda size: LastSeen(size)}),
    "burn-in": (ScriptedEnv, {"recurrent_mode": "burn_in", "burn_in_steps": 3}),
    "whole rollouts": (ScriptedEnv, {"recurrent_mode": "full"}),
    "last action and reward": (ScriptedEnv, {"last_action_reward": True}),
    "action mask": (lambda: ScriptedEnv(masked=True), {}),
    "built-in task": ("t-maze", {}),
    "Gymnasium id": ("CartPole-v1", {}),
    "Dict observations": (lambda: AnySpace(DICT), {}),
    "Box actions": (lambda: ScriptedEnv(BOX), {}),
    "next-step autoreset": (lambda: SyncVectorEnv([ScriptedEnv] * 3), {}),
    "same-step autoreset": (
        lambda: SyncVectorEnv([ScriptedEnv] * 3, autoreset_mode=AutoresetMode.SAME_STEP),
        {},
    ),
    "one env object": (ScriptedEnv, {"minibatches": 1}),
    "tensors reused": (TensorWorld, {}),
    "agents that die": (ArenaWorld, {}),
}
OBJECTS = {
    "next-step autoreset",
    "same-step autoreset",
    "one env object",
    "tensors reused",
    "agents that die",
}


OF_MEMORY = {"stored states", "step is unroll", "initial state"}
OF_MEMORY |= {"resets in acting", "resets in learning", "rows reset", "broken states"}
MAY_BE_LACKING = {"normalisers", "priorities", "evaluations", "versions", "noise drawn", "staleness"}
MAY_BE_LACKING |= {"processes", "resumed", "evaluated", "flat training", "predictions"}
LACKING = {"no memory": OF_MEMORY, "burn-in": {"slopes"}}


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_trainer_passes(name):
    """S004-19: buffer size, storage and retrieval, training loop and gradient flow, for every kind of env."""
    env, settings = HEALTHY[name]
    result = verified(env() if name in OBJECTS else env, **settings)
    assert result.ok, str(result)
    assert {check.part for check in result.checks} == set(PARTS)
    assert doubtful(result) == LACKING.get(name, set()), str(result)


def doubtful(result: Verification) -> set[str]:
    """The checks without a verdict, except those of parts that a training may lack."""
    return {check.name for check in result.checks if check.status in ("warning", "skipped")} - MAY_BE_LACKING


@functools.cache
def sound_training() -> loop_checks.Trained:
    """In place of a training wherever another check is the point, which saves half the time."""
    return loop_checks.short_training(prepare(ScriptedEnv, None, None, SMALL), rows=3)


@functools.cache
def passes(check: str) -> Callable[[], None]:
    """This check finds nothing to blame. Made once, so that it is tried once on healthy code."""

    def proof() -> None:
        with pytest.MonkeyPatch.context() as patch:
            if check not in ("updates", "same seed"):
                trained = sound_training()
                patch.setattr(loop_checks, "short_training", lambda setup, rows: trained)
                for owner, name in (
                    (loop_checks, "flat_training"),
                    (resume_checks, "resumed"),
                    (resume_checks, "evaluated"),
                ):
                    patch.setattr(owner, name, lambda *args: "")
            result = verified(minibatches=5)
        assert "contract" not in failed(result)
        assert result.ok == (not failed(result))
        assert result[check].ok, " ".join((result[check].found, *result[check].advice))

    return proof


@pytest.mark.parametrize("bug", FOUND_BY, ids=lambda bug: bug.name)
def test_a_planted_bug_fails_its_check(bug: Planted):
    """S004-19: the right check fails, with numbers and with what to do; without the bug it passes."""
    Mutant(bug.name, passes(bug.check), bug.edits, bug.by).assert_caught()


# Algorithms that replay ------------------------------------------------------------------------------------

REPLAY = mutant_cases.REPLAY
FRAMES: dict[str, Any] = {"core": "frames", "states": "rebuilt", "burn_in_steps": 3}
HEALTHY_REPLAY = {
    "r2d2": (ScriptedEnv, {}),
    "iqn": (ScriptedEnv, {"algo": "iqn"}),
    "frames": (ScriptedEnv, {"algo": "iqn", **FRAMES}),
    "noisy": (ScriptedEnv, {"head": QHeadConfig(noisy=True)}),
    "a target that follows slowly": (ScriptedEnv, {"target_every": None, "target_rate": 0.1}),
    "no memory": (ScriptedEnv, {"core": "none", "burn_in_steps": 0}),
    "action mask": (lambda: ScriptedEnv(masked=True), {}),
    "next-step autoreset": (lambda: SyncVectorEnv([ScriptedEnv] * 3), {}),
    "agents that die": (ArenaWorld, {}),
    "short rollouts": (ScriptedEnv, {"rollout": 2}),
    "several groups": ("treasure-hunt", {"policies": "independent", "env_kwargs": {"length": 8}}),
}


def verified_replay(env: Any = ScriptedEnv, **settings: Any) -> Verification:
    return rc.verify(env, **REPLAY | settings)


@pytest.mark.parametrize("name", HEALTHY_REPLAY)
def test_a_healthy_replay_passes(name):
    """S004-19: the checks of replayed sequences, burn-in and target network, for every kind of env."""
    env, settings = HEALTHY_REPLAY[name]
    result = verified_replay(env() if name in OBJECTS else env, **settings)
    assert result.ok, str(result)
    assert {check.part for check in result.checks} == set(PARTS)
    assert doubtful(result) == LACKING.get(name, set()), str(result)


@functools.cache
def passes_replay(check: str) -> Callable[[], None]:
    """This check finds nothing to blame, with ``algo="r2d2"``."""

    def proof() -> None:
        result = verified_replay()
        assert result[check].ok, " ".join((result[check].found, *result[check].advice))

    return proof


@pytest.mark.parametrize("bug", FOUND_IN_REPLAY, ids=lambda bug: bug.name)
def test_a_planted_bug_in_a_replay_fails_its_check(bug: Planted):
    """S004-19: the right check fails; without the bug it passes."""
    Mutant(bug.name, passes_replay(bug.check), bug.edits, bug.by).assert_caught()


def test_memory_that_is_never_reset_is_found(monkeypatch):
    """S004-19: also if actor and learner forget the reset alike, so that they agree."""
    next(m for m in RESETS if m.name == "memory is never reset, on either side").apply(monkeypatch)
    result = verified(core=lambda size: LastSeen(size))
    assert failed(result) >= {"acting", "through time"}
    assert "not reset" in result["acting"].advice[0]


class NeverResets(gym.Env):
    """Says that it ended, and goes on from where it was."""

    observation_space = gym_spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = gym_spaces.Discrete(2)
    place = 0.0

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return np.array([self.place], np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        self.place += 1.0
        return np.array([self.place], np.float32), 0.0, self.place % 9 == 0, False, {}


class StuckClock(AnySpace):
    """Starts anew but for its clock: one episode, and then it ends at every step."""

    def __init__(self):
        super().__init__()
        self.clock = 0

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.clock += 1
        return self.observation_space.sample(), 0.0, False, self.clock >= 6, {}


class NoFirst(TensorWorld):
    """Ends episodes, and does not tell that the next one begins."""

    def step(self, action):
        step = super().step(action)
        return rc.Step(
            step.obs,
            torch.zeros_like(step.first),
            step.reward,
            step.terminated,
            step.truncated,
            step.final_obs,
            step.valid,
        )


class Unseeded(AnySpace):
    """Draws from a stream that no seed sets."""

    random = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self._look(), *super().step(action)[1:]

    def _look(self) -> np.ndarray:
        return self.random.uniform(-1, 1, 3).astype(np.float32)


class Raises(AnySpace):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        raise ValueError("the motor is off")


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (NeverResets, "reset(seed) changes nothing"),
        (StuckClock, "every episode ends after 1 step"),
        (NoFirst, "no first followed"),
        (Raises, "the motor is off"),
    ],
)
def test_an_env_that_breaks_its_contract_fails(env, words):
    """Then nothing else is tried: it would blame the trainer for the env."""
    result = verified(env() if env is NoFirst else env)
    assert failed(result) == {"contract"}
    assert words in " ".join((result["contract"].found, *result["contract"].advice))
    assert {check.status for check in result.checks if check.part not in ("env",)} == {"skipped"}


def test_an_env_without_a_seed_is_a_warning():
    """Everything else is checked; only that two trainings are equal cannot be."""
    result = verified(Unseeded)
    assert result.ok, str(result)
    assert result["contract"].status == "warning"
    assert "not repeatable" in result["contract"].found
    assert result["same seed"].status == "skipped"
    assert result["gymnasium"].status == "warning"


class Endless(AnySpace):
    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        return self.observation_space.sample(), 0.0, False, False, {}


def test_what_was_not_met_is_said():
    """Without an end no reset was tried; with a constant observation part of the weights gets no gradient."""
    result = verified(Endless)
    assert result.ok, str(result)
    assert result["acting"].status == "warning"
    assert "a reset was never tried" in result["acting"].advice[0]

    class Blank(AnySpace):
        def reset(self, **how: Any) -> tuple[Any, dict]:
            return 0 * super().reset(**how)[0], {}

        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            obs, *rest = super().step(action)
            return 0 * obs, *rest

    result = verified(Blank)
    assert result.ok, str(result)
    assert result["parameters"].status == "warning"
    assert "zero or constant" in result["parameters"].advice[0]


def test_a_network_of_ones_own_is_looked_at():
    """A factory's policy: dropout makes learner and actor disagree; frozen weights are no failure."""

    def dropping(observation_space: gym.Space, action_space: gym.Space) -> Policy:
        policy = PolicyConfig(core=LSTMConfig(8)).build(observation_space, action_space)
        policy.encoder = torch.nn.Sequential(policy.encoder, torch.nn.Dropout(0.5))
        return policy

    settings = {key: value for key, value in SMALL.items() if key not in ("core", "encoder")}
    result = rc.verify(ScriptedEnv, policy=dropping, **settings)
    assert failed(result) >= {"acting", "learner"}
    assert "dropout" in result["learner"].advice[0]

    def frozen(observation_space: gym.Space, action_space: gym.Space) -> Policy:
        policy = PolicyConfig(core=LSTMConfig(8)).build(observation_space, action_space)
        policy.encoder.requires_grad_(False)
        return policy

    result = rc.verify(ScriptedEnv, policy=frozen, **settings)
    assert result.ok, str(result)
    assert "are frozen" in result["parameters"].found


def test_the_config_is_the_users_own_made_smaller():
    """Several chunks, a short last one where there was one; what was changed is said."""
    setup = prepare("CartPole-v1", None, None, {"rollout": 2055, "chunk": 50, "num_envs": 64, "gamma": 0.9})
    small = setup.sized(rows=8, most_steps=128)
    ppo = small.config.algo
    assert (small.config.num_envs, ppo.rollout, ppo.chunk, ppo.gamma) == (4, 105, 50, 0.9)
    assert ppo.rollout % ppo.chunk == 2055 % 50
    assert small.notes == ("num_envs 64 -> 4", "rollout 2055 -> 105", "epochs 4 -> 2")
    slow = setup.sized(rows=8, most_steps=16).config.algo
    assert slow.rollout <= 16
    assert slow.rollout > slow.chunk
    long = prepare("t-maze", None, None, {"env_kwargs": {"size": "hard"}})  # its preset: whole rollouts
    assert long.config.algo.recurrent_mode == "full"
    assert long.asked_envs == 32


def test_what_cannot_begin_is_an_error():
    """The same errors that a training would raise, and none of the checks."""
    for env, settings, words in (
        ("nope-v7", {}, "no env is registered"),
        (ScriptedEnv, {"core": "lstm", "recurrent_mode": "none"}, "carries memory"),
        (ScriptedEnv, {"minibatches": 99}, "too few for 99 minibatches"),
        (ScriptedEnv, {"corx": 1}, "no setting 'corx'"),
        (ScriptedEnv, {"config": 3}, "config is a int"),
    ):
        with pytest.raises(ConfigError, match=words):
            verified(env, **settings)


def test_the_result_reads_well():
    """One line a check, its numbers, cause and fix, within 80 columns; the caller's random stream is left."""
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    seen: list[Check] = []
    result = rc.verify(ScriptedEnv, watch=seen.append, **SMALL)
    assert torch.equal(torch.rand(1), expected)
    assert seen == result.checks
    text = str(result)
    assert max(map(len, text.splitlines())) <= 80
    assert "storage and retrieval of state" in text
    check = Check("state", "acting", "failed", "found " * 30, ("Likely cause: " + "x " * 60, "Fix: y"))
    lines = check.lines(80)
    assert lines[0].split()[:2] == ["FAILED", "acting"]
    assert max(map(len, lines)) <= 80
    assert "Fix: y" in lines[-1]


WORLD = """
import gymnasium as gym
import numpy as np
from tests.audit.test_verify import NeverResets, ScriptedEnv
"""
FLAGS = ["--rollout", "23", "--chunk", "7", "--num-envs", "3", "--minibatches", "2", "--core.hidden", "8"]


def test_the_command_line(tmp_path, monkeypatch, capsys):
    """Exit code 0 if all is well, 1 if a check failed, 2 for a wrong call; --json for programs."""
    (tmp_path / "verify_worlds.py").write_text(WORLD)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["verify", "verify_worlds.py:ScriptedEnv", *FLAGS]) == 0
    out = capsys.readouterr().out
    assert "gradient flow" in out
    assert out.splitlines()[-1] == "ScriptedEnv: 44 ok, 3 skipped"
    assert max(map(len, out.splitlines())) <= 80
    assert main(["verify", "verify_worlds.py:NeverResets", *FLAGS]) == 1
    out = capsys.readouterr().out
    assert "FAILED" in out
    assert "Fix: " in out
    assert main(["verify", "verify_worlds.py:ScriptedEnv", "--json", *FLAGS]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"]
    assert {check["status"] for check in data["checks"]} == {"ok", "skipped"}
    for wrong in (["verify"], ["verify", "nope-v3"], ["verify", "t-maze", "--corx", "3"]):
        assert main(wrong) == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "verify_worlds.py"]
