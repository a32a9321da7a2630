"""A user's own head: its record goes from the actor to the learner, and nobody asks it for a value."""

from __future__ import annotations

import io
import json
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from recollect.acting.actor import Actor
from recollect.acting.recording import record_env
from recollect.acting.trace import Trace
from recollect.base import devices, tree
from recollect.base.shared_memory import Layout
from recollect.config.serialise import config_to_json
from recollect.config.train import TrainConfig
from recollect.errors import AlignmentError, ConfigError, EnvError, RecollectError
from recollect.experience.returns import gae
from recollect.experience.rollout import Acting, Header, Rollout, rollout_size
from recollect.export.step import StepModule
from recollect.learning import diagnostics
from recollect.learning.refresh_rollout import refresh
from recollect.play.text import show
from recollect.policy.head_contract import Field
from recollect.policy.policy import Policy
from tests.acting.test_truncation_graphs import LIMITS, begin, make
from tests.support.helpers import TensorWorld, keep, make_policy
from tests.support.own_head import ACTIONS, ROWS, QHead, QLearning, T, q_learner, q_policy

WAYS: dict[str, dict[str, Any]] = {
    "chunks": {},
    "burn-in": {"recurrent_mode": "burn_in", "burn_in_steps": 3},
    "episodes": {"batching": "episodes"},
    "refreshed": {"refresh_states": True, "epochs": 2},
    "recomputed": {"recompute_activations": True, "accumulate": 2},
}


def forbid_values(patch: pytest.MonkeyPatch) -> None:
    """A policy without a critic must not be asked for a value."""
    value = Policy.value

    def only_with_a_critic(self, *given: Any) -> torch.Tensor:
        assert self.has_critic, "a value was asked of a Q head"
        return value(self, *given)

    patch.setattr(Policy, "value", only_with_a_critic)


@pytest.fixture(autouse=True)
def _no_value(monkeypatch):
    forbid_values(monkeypatch)


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_q_learning_learns(way, is_gpu, monkeypatch):
    """Actor, rollout and learner with a head that has neither log-prob nor value, by every kind of update."""
    monkeypatch.setattr(devices, "synchronises", lambda where: is_gpu)
    learner, actor = q_learner(**WAYS[way])
    losses = []
    for _ in range(30):
        metrics = learner.update(actor.collect())
        losses.append(metrics["loss/q"])
        found = diagnostics.deviations(metrics, learner.compared)
        assert found.keys() == {"q", "every_q"}
        assert max(found.values()) < 1e-5
        assert not {"valid", "kl", "value/max", "deviation/is_greedy"} & metrics.keys()
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_the_record_is_what_the_head_gave():
    """All fields in their shapes and dtypes; no values, but the final observations."""
    learner, actor = q_learner()
    rollout = keep(actor.collect())
    assert rollout.final_value is None
    assert rollout.bootstrap is None
    assert len(rollout.finals.time) == int((rollout.truncated & ~rollout.terminated).sum()) > 0
    q, _ = learner.policy.unroll(rollout.obs, rollout.state_at(0), rollout.first)
    torch.testing.assert_close(rollout.record["every_q"], q[:T], rtol=0, atol=1e-5)
    chosen = rollout.record["every_q"].gather(-1, rollout.action.unsqueeze(-1)).squeeze(-1)
    assert torch.equal(rollout.record["q"], chosen)
    assert rollout.record["is_greedy"].dtype == torch.bool
    fresh = refresh(learner.policy, rollout)
    torch.testing.assert_close(fresh.record["every_q"], q[:T], rtol=0, atol=1e-5)
    assert fresh.final_value is fresh.bootstrap is None


def test_only_named_fields_are_stored():
    learner, actor = q_learner(record=("q",))
    assert actor.collect().record.keys() == {"q"}
    assert learner.compared.keys() == {"q"}
    metrics = learner.update(actor.collect())
    assert {name for name in metrics if name.startswith("deviation/")} == {"deviation/q"}


def test_nothing_to_compare():
    """An algorithm that stores no field learns; the run is not compared with anything."""
    learner, actor = q_learner(record=())
    rollout = actor.collect()
    assert rollout.record == {}
    metrics = learner.update(rollout)
    assert not any(name.startswith("deviation/") for name in metrics)


def test_the_size_is_known_before():
    wide, narrow = Acting((0, 8), True, needs_values=False), Acting((0, 8), True, ("q",), False)
    policy, steps = q_policy(), {"steps": T}
    valued = narrow._replace(needs_values=True)
    few, more, most = (rollout_size(policy, ROWS, one, **steps).total for one in (narrow, wide, valued))
    assert more - few == T * ROWS * (4 * ACTIONS + 1)
    assert most - few == 4 * ROWS * (T + 1)


def test_a_rollout_without_values_travels():
    """Rows are selected and joined, and a slot of shared memory holds the rollout."""
    _, actor = q_learner()
    rollout = keep(actor.collect())
    halves = [rollout.select_rows(0, 1), rollout.select_rows(1, ROWS)]
    slot = tree.map(torch.zeros_like, rollout.slot())
    assert Layout.of(slot).size > 0
    header = rollout.write(slot)
    assert isinstance(header, Header)
    for other in (Rollout.join(halves), Rollout.read(slot, header)):
        assert other.tensors().keys() == rollout.tensors().keys()
        assert other.bootstrap is None
        for one, two in zip(tree.leaves(other.tensors()), tree.leaves(rollout.tensors()), strict=True):
            assert torch.equal(one, two)


def test_rows_explore_as_the_algorithm_says():
    """Epsilon 0 is always greedy, epsilon 1 in a third of the steps; it may change between rollouts."""
    _, actor = q_learner(rollout=240)
    greedy = actor.collect().record["is_greedy"].float().mean(0)
    assert greedy[0] == 1
    assert greedy[-1] < 0.6
    actor.exploration.zero_()
    assert actor.collect().record["is_greedy"].all()


def test_exploration_is_part_of_a_snapshot(monkeypatch):
    _, actor = q_learner()
    # Of the instance: a protocol remembers for ever which classes have its methods.
    monkeypatch.setattr(actor.env, "snapshot", lambda: {}, raising=False)
    monkeypatch.setattr(actor.env, "restore", lambda found: actor.env.obs, raising=False)
    actor.exploration.fill_(0.3)
    saved = actor.snapshot()
    actor.exploration.zero_()
    actor.restore(saved)
    assert actor.exploration.tolist() == pytest.approx([0.3] * ROWS)


class Lying(QHead):
    """One number of an acting step is not the one that the learner finds."""

    field, place, by = "q", ..., 0.05

    def record(self, outputs, action):
        made = super().record(outputs, action)
        if action.dim() == 1 and torch.is_grad_enabled() is False and outputs[0].dtype == torch.float32:
            made[self.field] = made[self.field].clone()
            made[self.field][self.place] += self.by
        return made


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize(("field", "place"), [("q", ...), ("every_q", ...), ("every_q", (..., ACTIONS - 1))])
def test_a_head_that_lies_stops_the_run(field, place, is_gpu, monkeypatch):
    """S001-28: in any field of the record, also in its last number; the error names the field."""
    monkeypatch.setattr(devices, "synchronises", lambda where: is_gpu)
    learner, actor = q_learner(type("Liar", (Lying,), {"field": field, "place": place}))
    before = deepcopy(learner.policy.state_dict())
    with pytest.raises(AlignmentError, match=rf"{field}.*the record is wrong"):
        learner.update(actor.collect())
    assert all(torch.equal(value, before[name]) for name, value in learner.policy.state_dict().items())


@pytest.mark.parametrize("is_gpu", [False, True])
def test_a_lie_is_found_in_a_later_update_too(is_gpu, monkeypatch):
    """S001-28: by the check of the first minibatch, which uses the deviations of the algorithm's loss."""
    monkeypatch.setattr(devices, "synchronises", lambda where: is_gpu)
    learner, actor = q_learner(type("Liar", (Lying,), {"field": "every_q"}))
    monkeypatch.setattr(type(learner.policy.head), "by", 0.0, raising=False)
    learner.update(actor.collect())
    monkeypatch.setattr(type(learner.policy.head), "by", 0.05)
    with pytest.raises(AlignmentError, match=r"every_q.* of row"):
        learner.update(actor.collect())


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize(("unit", "is_right"), [(1.0, False), (1000.0, True), (None, False)])
def test_every_field_has_its_unit(unit, is_right, is_gpu, monkeypatch):
    """A deviation of 0.05 is within a tolerance of 1e-4 units of 1000."""
    monkeypatch.setattr(devices, "synchronises", lambda where: is_gpu)
    spec = {**QHead.record_spec, "q": Field(unit=unit)}
    learner, actor = q_learner(type("Liar", (Lying,), {"record_spec": spec}))
    if is_right:
        assert learner.update(actor.collect())["deviation/q"] == pytest.approx(0.05, abs=1e-4)
    else:
        with pytest.raises(AlignmentError):
            learner.update(actor.collect())


def test_the_scale_of_a_field_is_its_unit():
    """Numbers of a million are compared as far as float32 has digits."""

    class Huge(QHead):
        def forward(self, y, mask=None):
            return (1e6 * (self.linear(y) + 5),)

    learner, actor = q_learner(Huge)
    metrics = learner.update(actor.collect())
    assert metrics["q/max"] > 1e6
    assert diagnostics.deviations(metrics, learner.compared)["q"] < 1e-5


# Errors ----------------------------------------------------------------------------------------------------


def test_an_algorithm_for_another_head_is_refused():
    with pytest.raises(ConfigError, match=r"log_prob.*QHead records q, every_q, is_greedy"):
        q_learner(record=("log_prob", "q"))


def test_a_head_without_critic_has_no_value(monkeypatch):
    monkeypatch.undo()
    with pytest.raises(ConfigError, match=r"QHead has no critic.*needs_values"):
        Actor(TensorWorld(ROWS), q_policy(), rollout=4, state_steps=(0,), seed=0).collect()


def test_a_learning_rate_without_its_critic_is_refused():
    with pytest.raises(ConfigError, match="critic_learning_rate"):
        q_learner(critic_learning_rate=1e-3)


def test_a_loss_without_its_deviation_is_refused(monkeypatch):
    monkeypatch.setattr(diagnostics, "deviation", lambda record, batch: {})
    learner, actor = q_learner(record=("q",))
    learner.deviation_check.is_checked = True
    with pytest.raises(ConfigError, match=r"no deviation of q.*diagnostics\.deviation"):
        learner.update(actor.collect())


@pytest.mark.parametrize(
    "field", [Field((2,)), Field(dtype=torch.float64), Field(dtype=torch.int64, is_compared=False)], ids=str
)
def test_a_record_unlike_its_spec_is_refused(field):
    head = type("Wrong", (QHead,), {"record_spec": {"q": field}})
    with pytest.raises(ConfigError, match=r"Wrong declares q.*record_spec"):
        q_learner(head)[1].collect()


def test_only_floating_point_numbers_are_compared():
    head = type("Wrong", (QHead,), {"record_spec": {"is_greedy": Field(dtype=torch.bool)}})
    with pytest.raises(ConfigError, match=r"is_greedy.*is_compared=False"):
        q_learner(head)


def test_exploration_is_of_rows_and_of_heads_that_use_it():
    env = TensorWorld(ROWS)
    given: dict[str, Any] = {"rollout": 4, "state_steps": (0,), "seed": 0}
    with pytest.raises(ConfigError, match=r"exploration has shape \(3,\).*4 rows"):
        Actor(env, q_policy(), needs_values=False, exploration=torch.zeros(3), **given)
    with pytest.raises(ConfigError, match=r"actor-critic head.*entropy"):
        Actor(env, make_policy(env), exploration=torch.zeros(ROWS), **given).collect()


def test_advantages_without_final_values_are_refused():
    rollout = keep(q_learner()[1].collect())
    given = {name: getattr(rollout, name) for name in ("reward", "terminated", "truncated", "final_value")}
    value, last = torch.zeros_like(rollout.reward), torch.zeros(ROWS)
    with pytest.raises(RecollectError, match=r"no final values.*needs_values"):
        gae(**given, value=value, bootstrap=last, gamma=0.9, gae_lambda=0.9)


@pytest.mark.parametrize("name", LIMITS)
def test_final_observations_without_values_on_the_path_of_a_gpu(name, monkeypatch):
    """They equal those that are kept with their values; a truncation without a slot is an error."""
    monkeypatch.setattr(devices, "synchronises", lambda where: True)
    found = []
    for needs_values in (True, False):
        task = make(name, "cpu")
        policy = make_policy(task)
        actor = Actor(task, policy, rollout=30, state_steps=(0,), seed=0, needs_values=needs_values)
        begin(task)
        rollout = keep(actor.collect())
        assert (rollout.final_value is not None) is needs_values
        found.append(rollout.finals)
    with_values, without = found
    assert torch.equal(with_values.time, without.time)
    assert torch.equal(with_values.row, without.row)
    assert all(map(torch.equal, tree.leaves(with_values.obs), tree.leaves(without.obs)))
    monkeypatch.setattr(type(task), "truncation_gap", property(lambda self: 1000))
    actor = Actor(task, policy, rollout=30, state_steps=(0,), seed=0, needs_values=False)
    with pytest.raises(EnvError, match="truncation_gap"):
        actor.collect()


def test_a_policy_with_its_own_head_says_so():
    policy = q_policy()
    assert policy.config.head is QHead
    assert config_to_json(TrainConfig(), policy.config)["policy"]["head"] == "custom"
    assert not policy.has_critic
    assert QLearning().acting(q_learner()[0].config).needs_values is False


# Around the agent ------------------------------------------------------------------------------------------


def test_an_episode_is_recorded_and_shown_without_value_and_log_prob():
    """The numbers that the head does not record are missing, in the file too; its q stands for the value."""
    trace = record_env(q_policy(), TensorWorld(ROWS), max_steps=5)[0]
    again = Trace.from_json(json.loads(json.dumps(trace.to_json())))
    assert np.isfinite(again.value).all()
    assert np.isnan(again.log_prob).all()
    assert again.distribution == [[]] * len(trace)
    console = Console(file=io.StringIO(), width=100)
    show([again], console)
    assert str(again.action[-1]) in console.file.getvalue()


def test_only_actor_critics_are_exported():
    with pytest.raises(ConfigError, match=r"QHead.*agent\.session"):
        StepModule(q_policy())
