"""Slow: no policy, core, head, algorithm or precision of ours fails the audit, also at long sequences."""

from __future__ import annotations

from typing import Any

import pytest

import recollect as rc
from recollect.audit import env_checks, own_trainer
from recollect.config.core_choice import CORES
from recollect.config.policy import EncoderConfig
from recollect.policy.precision import probe
from tests.audit.mutant_cases import CASES, REPLAY, device_of, made
from tests.support.helpers import ScriptedEnv

SMALL: dict[str, Any] = {
    **{"rollout": 23, "chunk": 7, "epochs": 1, "minibatches": 2, "num_envs": 3, "threads": 1},
    "encoder": EncoderConfig(hidden=(8,)),
}
LONG = 1000


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env_checks, "STEPS", 10)


def assert_clean(env: Any, **settings: Any) -> None:
    result = rc.verify(env, **settings)
    assert result.ok, str(result)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("core", sorted(CORES))
def test_every_core_and_precision_at_a_thousand_steps(
    core: str, precision: str, monkeypatch: pytest.MonkeyPatch
):
    """S004-19: rounding and long sequences are no bug."""
    if precision == "bf16" and probe() != "ok":
        pytest.skip(f"bf16 does not work on this CPU: {probe()}")
    monkeypatch.setattr(own_trainer, "LENGTH", LONG)
    more = {"recurrent_mode": "none"} if core == "none" else {}
    assert_clean(ScriptedEnv, core=core, precision=precision, **SMALL, **more)


STATELESS = {"frames": {"states": "rebuilt"}, "none": {"states": "rebuilt", "burn_in_steps": 0}}


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("core", sorted(CORES))
def test_every_core_and_precision_with_a_replay(core: str, precision: str):
    """S004-19: errors, losses and checkpoints of replayed sequences, for every core."""
    if precision == "bf16" and probe() != "ok":
        pytest.skip(f"bf16 does not work on this CPU: {probe()}")
    settings = REPLAY | STATELESS.get(core, {})
    assert_clean(ScriptedEnv, **settings | {"core": core, "precision": precision})


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["r2d2", "iqn", "impala"])
def test_every_algorithm_at_a_thousand_steps(algo: str, monkeypatch: pytest.MonkeyPatch):
    """S004-19: the algorithms beside PPO, with long sequences."""
    monkeypatch.setattr(own_trainer, "LENGTH", LONG)
    assert_clean(ScriptedEnv, **(SMALL if algo == "impala" else REPLAY) | {"algo": algo})


@pytest.mark.slow
@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("training", CASES)
def test_the_trainings_of_the_table_are_healthy(training: str):
    """S004-19: all checks of every training that mutants are planted in, those in processes too."""
    env, settings = made(training)
    with device_of(training):
        assert_clean(env, **settings)
