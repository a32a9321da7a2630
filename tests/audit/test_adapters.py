"""The adapters with the real packages: ``make test-adapters`` runs this in an environment of each package.

Each example's verdicts are known, and a bug that is planted in the package is caught by the check that names
it. Where a package is missing, its tests are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recollect.audit import audit_trainer

Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Example:
    """An adapter's example, and what the auditor finds in the package as it is."""

    package: str
    module: str
    function: str = "example"
    failed: tuple[str, ...] = ()
    not_checked: tuple[str, ...] = ()


NO_WEIGHTS = ("step is unroll", "padding in update")
NO_UPDATES = ("step is unroll", "advantage statistics")
NO_STATISTICS = (*NO_WEIGHTS, "advantage statistics")
LIMITS = ("truncation", "both ends")
EXAMPLES = {
    "sb3-": Example(
        "sb3_contrib",
        "sb3",
        failed=("advantage statistics",),
        not_checked=("step is unroll",),
    ),
    "sb3-plain": Example("sb3_contrib", "sb3", "example_plain", not_checked=NO_UPDATES),
    "skrl-": Example(
        "skrl",
        "skrl_rnn",
        failed=(*LIMITS, "recorded chunk states", "recorded ratios", "recorded advantages"),
        not_checked=NO_STATISTICS,
    ),
    "torchrl-lstm": Example("torchrl", "torchrl_gae", not_checked=NO_STATISTICS),
    "torchrl-gru": Example("torchrl", "torchrl_gae", "example_gru", not_checked=NO_STATISTICS),
    "rsl-rl-": Example("rsl_rl", "rsl", failed=(*LIMITS, "recorded advantages"), not_checked=NO_STATISTICS),
    "tianshou-": Example(
        "tianshou",
        "tianshou_ppo",
        failed=(
            "acting is training",
            "chunk start",
            "gradient reach",
            "recorded ratios",
            "recorded advantages",
        ),
        not_checked=(*NO_STATISTICS, "recorded contiguity", "recorded chunk states", "recorded values"),
    ),
    "rllib-": Example("ray.rllib", "rllib", failed=("advantage statistics",), not_checked=NO_WEIGHTS),
    "sample-factory-": Example(
        "sample_factory",
        "samplefactory",
        failed=(*LIMITS, "advantage statistics", "recorded ratios", "recorded values"),
        not_checked=(
            *NO_WEIGHTS,
            *("recorded memory advances", "recorded chunk states", "recorded states"),
            *("recorded bootstraps", "recorded advantages"),
        ),
    ),
    "sample-factory-plain": Example(
        "sample_factory",
        "samplefactory",
        "example_plain",
        failed=(*LIMITS, "advantage statistics"),
        not_checked=(*NO_WEIGHTS, "recorded bootstraps", "recorded advantages"),
    ),
}


def statuses(name: str) -> dict[str, str]:
    """The status of each check of an example."""
    example = EXAMPLES[name]
    if not _is_installed(example.package):
        pytest.skip(f"{example.package} is not installed")
    adapter = import_module(f"recollect.audit.adapters.{example.module}")
    result = audit_trainer(getattr(adapter, example.function))
    print(result)
    return {check.name: check.status for check in result.checks}


def _is_installed(package: str) -> bool:
    try:
        import_module(package)
    except ImportError:  # the package, or a requirement of it
        return False
    return True


@pytest.mark.parametrize("name", EXAMPLES)
def test_verdicts(name: str) -> None:
    found, example = statuses(name), EXAMPLES[name]
    assert {check for check, status in found.items() if status == "failed"} == set(example.failed)
    assert {check for check, status in found.items() if status == "not checked"} == set(example.not_checked)


def repaired_skrl(patch: pytest.MonkeyPatch) -> None:
    """Two dicts, where the package keeps one under both names."""
    from skrl.agents.torch.ppo import PPO_RNN

    record = PPO_RNN.record_transition

    def apart(self: Any, **keywords: Any) -> None:
        record(self, **keywords)
        self._rnn_initial_states = dict(self._rnn_final_states)

    patch.setattr(PPO_RNN, "record_transition", apart)


def test_skrl_honest_with_repaired_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two findings about states have the cause that is named, and go with it."""
    if not _is_installed("skrl"):
        pytest.skip("skrl is not installed")
    repaired_skrl(monkeypatch)
    found = statuses("skrl-")
    assert found["recorded chunk states"] == found["recorded ratios"] == "ok"


def forgotten_states(patch: pytest.MonkeyPatch) -> None:
    from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
    from sb3_contrib.common.recurrent.type_aliases import RNNStates

    add = RecurrentRolloutBuffer.add

    def zeros(self: Any, *args: Any, lstm_states: Any, **keywords: Any) -> None:
        empty = RNNStates(*(tuple(map(torch.zeros_like, part)) for part in lstm_states))
        add(self, *args, lstm_states=empty, **keywords)

    patch.setattr(RecurrentRolloutBuffer, "add", zeros)


def time_limits_as_terminations(patch: pytest.MonkeyPatch) -> None:
    from stable_baselines3.common.vec_env import DummyVecEnv

    step = DummyVecEnv.step_wait

    def unannounced(self: Any) -> Any:
        obs, rewards, dones, infos = step(self)
        return obs, rewards, dones, [{**info, "TimeLimit.truncated": False} for info in infos]

    patch.setattr(DummyVecEnv, "step_wait", unannounced)


def no_resets_in_rsl(patch: pytest.MonkeyPatch) -> None:
    from rsl_rl.modules import RNN

    reset = RNN.reset
    patch.setattr(
        RNN,
        "reset",
        lambda self, dones=None, hidden_state=None: dones is None and reset(self, None, hidden_state),
    )


def late_states_in_rsl(patch: pytest.MonkeyPatch) -> None:
    """Stored after the step."""
    from rsl_rl.algorithms import PPO

    act = PPO.act

    def late(self: Any, obs: Any) -> Any:
        actions = act(self, obs)
        self.transition.hidden_states = (self.actor.get_hidden_state(), self.critic.get_hidden_state())
        return actions

    patch.setattr(PPO, "act", late)


def no_resets_in_torchrl(patch: pytest.MonkeyPatch) -> None:
    from torchrl.modules.tensordict_module import rnn

    expand = rnn.expand_as_right
    patch.setattr(rnn, "expand_as_right", lambda mask, like: torch.zeros_like(expand(mask, like)))


def joined_episodes_in_torchrl(patch: pytest.MonkeyPatch) -> None:
    """The learner unrolls through the ends of episodes."""
    from torchrl.modules.tensordict_module import rnn

    patch.setattr(rnn, "_split_and_pad_for_reset", lambda data, keys: (None, None, None))


def no_resets_in_tianshou(patch: pytest.MonkeyPatch) -> None:
    from tianshou.data import Collector

    patch.setattr(Collector, "_reset_hidden_state_based_on_type", lambda *_: None)


def zero_states_in_rllib(patch: pytest.MonkeyPatch) -> None:
    """Sequences that continue an episode start from the initial state."""
    from ray.rllib.connectors.common.add_states_from_episodes_to_batch import AddStatesFromEpisodesToBatch
    from ray.rllib.core.columns import Columns

    add = AddStatesFromEpisodesToBatch.add_n_batch_items

    def zeros(batch: Any, column: str, items_to_add: Any, *args: Any, **keywords: Any) -> None:
        if column == Columns.STATE_IN:
            items_to_add = {name: 0 * leaf for name, leaf in items_to_add.items()}
        add(batch, column, items_to_add, *args, **keywords)

    patch.setattr(AddStatesFromEpisodesToBatch, "add_n_batch_items", staticmethod(zeros))


def zero_states_in_sample_factory(patch: pytest.MonkeyPatch) -> None:
    from recollect.audit.adapters import samplefactory

    build = samplefactory.build_rnn_inputs
    from sample_factory.algo.learning import learner

    def zeros(x: Any, dones: Any, states: Any, T: int) -> Any:
        return build(x, dones, 0 * states, T)

    patch.setattr(learner, "build_rnn_inputs", zeros)


def padding_in_the_loss_of_sb3(patch: pytest.MonkeyPatch) -> None:
    """Every step of a padded batch counts as valid."""
    from recollect.audit.adapters import sb3

    train = sb3._train_once
    patch.setattr(
        sb3,
        "_train_once",
        lambda model, sample: train(model, SimpleNamespace(**vars(sample) | {"mask": 0 * sample.mask + 1})),
    )


PLANTED: dict[str, tuple[str, Plant, str]] = {
    "sb3-forgotten states": ("sb3-", forgotten_states, "recorded chunk states"),
    "sb3-time limits": ("sb3-", time_limits_as_terminations, "truncation"),
    "sb3-padding": ("sb3-plain", padding_in_the_loss_of_sb3, "padding in update"),
    "rsl-rl-no resets": ("rsl-rl-", no_resets_in_rsl, "resets in acting"),
    "rsl-rl-late states": ("rsl-rl-", late_states_in_rsl, "recorded chunk states"),
    "torchrl-no resets": ("torchrl-lstm", no_resets_in_torchrl, "resets in acting"),
    "torchrl-joined episodes": ("torchrl-lstm", joined_episodes_in_torchrl, "resets in learning"),
    "tianshou-no resets": ("tianshou-", no_resets_in_tianshou, "recorded states"),
    "rllib-zero states": ("rllib-", zero_states_in_rllib, "recorded chunk states"),
    "sample-factory-zero states": (
        "sample-factory-plain",
        zero_states_in_sample_factory,
        "recorded ratios",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bug_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    example, plant, check = PLANTED[name]
    if not _is_installed(EXAMPLES[example].package):
        pytest.skip(f"{EXAMPLES[example].package} is not installed")
    assert check not in EXAMPLES[example].failed
    plant(monkeypatch)
    assert statuses(example)[check] == "failed"
