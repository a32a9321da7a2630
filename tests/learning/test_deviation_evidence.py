"""What a deviation above the tolerance leads to: a replay that tells rounding from a wrong state."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from recollect.algos import ppo
from recollect.algos.catalog import make_learner
from recollect.base import devices, tree
from recollect.config.algo_choice import ALGOS
from recollect.config.core_choice import known, reaching
from recollect.config.policy import PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.errors import AlignmentError, RecollectError
from recollect.learning import deviation_check, deviation_evidence, diagnostics
from recollect.learning.deviation_check import Record
from recollect.learning.learner import Learner
from recollect.learning.ranks import Group, shards
from recollect.tasks import make_task
from tests.learning.test_master import scripted
from tests.support.helpers import ScriptedEnv, TensorWorld, as_rows, make_actor, make_policy
from tests.support.ranked import groups

SUSPICIOUS = 1e-12
"""A tolerance that every rounding exceeds."""


@pytest.fixture
def replays(monkeypatch) -> list[list[deviation_evidence.Finding]]:
    """What every replay found. None is spared because of the one before it."""
    found, examine = [], deviation_evidence.examine

    def spy(*args, **kwargs):
        found.append(examine(*args, **kwargs))
        return found[-1]

    monkeypatch.setattr(deviation_evidence, "examine", spy)
    monkeypatch.setattr(deviation_check, "ACCEPTED_FOR", 1)
    return found


def train(core, *, horizon: int, updates: int, rows: int = 4, **settings) -> Learner:
    """Updates of a delayed cue with sequences of whole episodes."""
    env = make_task("delayed-cue", rows, horizon=horizon, cues=4)
    mode = "none" if core == "none" else "full"
    policy = make_policy(env, reaching(core, horizon))
    settings = {"learning_rate": 3e-3, "epochs": 2, "minibatches": 2, "tolerance": SUSPICIOUS} | settings
    learner = make_learner(policy, PPOConfig(rollout=horizon + 2, recurrent_mode=mode, **settings))
    actor = make_actor(env, policy, rollout=horizon + 2, chunk=horizon + 2)
    for _ in range(updates):
        learner.update(actor.collect())
    return learner


@pytest.mark.parametrize("core", known)
def test_rounding_stops_no_core(core, replays):
    """S002-23: every deviation is replayed, and each is rounding."""
    train(core, horizon=30, updates=3)
    assert replays


@pytest.mark.parametrize("core", ["mamba", "mlstm", "mingru"])
def test_rounding_over_a_thousand_steps_stops_no_run(core, replays):
    """S004-1: the cores whose deviations over a thousand steps exceeded a fixed tolerance."""
    train(core, horizon=1000, updates=1, rows=2, epochs=1)
    assert replays


WORLDS = {
    "fillers": lambda: as_rows([ScriptedEnv] * 3, "next_step"),
    "reused tensors": lambda: TensorWorld(3),
}
SHAPES = {
    "chunks": {"chunk": 7},
    "burn-in": {"chunk": 7, "recurrent_mode": "burn_in", "burn_in_steps": 3},
    "episodes": {"batching": "episodes"},
    "parts": {"chunk": 7, "accumulate": 2},
    "again": {"chunk": 7, "recompute_activations": True},
}


@pytest.mark.parametrize("algo", ["ppo", "impala"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("world", WORLDS)
def test_rounding_stops_no_shape_of_sequences(world, shape, algo, replays):
    """S000-8: whatever sequences are cut from a rollout, the replay finds the place of every step."""
    env = WORLDS[world]()
    policy = make_policy(env, "gru", normalise_observations=True)
    config = ALGOS[algo](rollout=23, minibatches=2, epochs=2, tolerance=SUSPICIOUS, **SHAPES[shape])
    learner = make_learner(policy, config)
    actor = make_actor(env, policy, rollout=23, chunk=config.chunk_length, burn_in=config.burn_in_steps)
    for _ in range(3):
        learner.update(actor.collect())
    assert len(replays) >= 3


@pytest.mark.parametrize("is_gpu", [False, True])
def test_the_replay_changes_nothing(is_gpu):
    """S000-19: with a replay in every update the weights are bit for bit those without, on both paths."""

    def weights(tolerance: float) -> dict[str, torch.Tensor]:
        return train("mingru", horizon=20, updates=3, tolerance=tolerance).policy.state_dict()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deviation_check, "ACCEPTED_FOR", 1)
        patch.setattr(devices, "synchronises", lambda where: is_gpu)
        plain = weights(1e9)
        for name, value in weights(SUSPICIOUS).items():
            assert torch.equal(value, plain[name]), name


def update_by_two(wrong_rank: int | None) -> list[Any]:
    """What two learners make of one rollout, the record of one of whom may be wrong: weights or an error."""
    env = TensorWorld(4)
    policy = make_policy(env, "gru")
    rollout = make_actor(env, policy, rollout=23, chunk=7).collect()
    config = PPOConfig(rollout=23, chunk=7, minibatches=2, epochs=1, tolerance=SUSPICIOUS)

    def update(group: Group) -> Any:
        learner = make_learner(copy.deepcopy(policy), config)
        learner.ranks = group
        part = copy.deepcopy(shards(rollout, group.rows)[group.rank])
        if group.rank == wrong_rank:
            part.record["log_prob"] += 0.1
        try:
            learner.update(part)
        except RecollectError as error:
            group.close()
            return error
        return learner.policy.state_dict()

    with groups(2, 2) as run:
        return run(update)


def test_learners_go_on_together(replays):
    """S002-15: each replays rows of its own, and rounding stops none."""
    one, other = update_by_two(None)
    assert replays
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_learners_stop_together():
    """S002-15: what one of them finds wrong stops all, with an error that says so."""
    errors = update_by_two(1)
    assert all(isinstance(error, AlignmentError) for error in errors)
    assert "Another learner" in str(errors[0])


def test_a_finding_names_the_row_the_step_and_the_tensor():
    """S002-13: where it went wrong, on which side."""
    env = TensorWorld(3)
    policy = make_policy(env, "gru")
    rollout = make_actor(env, policy, rollout=23, chunk=7).collect()
    rollout.record["value"][11, 1] += 0.5
    learner = make_learner(policy, PPOConfig(rollout=23, chunk=7, normalise_advantages=False))
    with pytest.raises(AlignmentError, match=r"value of row 1 at step 11.*the record is wrong"):
        learner.update(rollout)


def test_a_deviation_that_is_rounding_is_told_once_and_accepted_for_a_while():
    """S001-28: advice once, a higher limit for some updates, then another replay."""
    learner = train("mingru", horizon=10, updates=1)
    checks = learner.deviation_check
    (note,) = checks.notes
    assert "rounding explains it" in note
    assert "precision" in note
    assert checks.limits(learner.updates) == checks.accepted[1:] > (checks.tolerance, checks.tolerance)
    learner.updates += deviation_check.ACCEPTED_FOR
    assert checks.limits(learner.updates) == (checks.tolerance, checks.tolerance)
    env = make_task("delayed-cue", 4, horizon=10, cues=4)
    rollout = make_actor(env, learner.policy, rollout=12, chunk=12).collect()
    record = Record(rollout, {}, learner.updates)
    numbers = diagnostics.read(checks.deviation(record)) | {"value/max": 1.0, "value/min": 0.0}
    checks.check(numbers, record)
    assert checks.limits(learner.updates) == tuple(
        max(checks.tolerance, 2 * found)
        for found in diagnostics.deviations(numbers, learner.compared).values()
    )
    assert checks.notes == [note]
    checks.accepted = deviation_check.NOTHING
    checks.check_late(rollout, learner.policy, learner.updates)
    assert checks.accepted == deviation_check.NOTHING, "other ranks know nothing of a late check"


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize("reported", [0.7, torch.inf, torch.nan])
def test_a_fault_of_the_optimiser_step_alone_stops_the_run(is_gpu, reported):
    """S000-8: what the step computes is compared, not only what the same code computes outside of it."""
    env = TensorWorld(3)
    policy = make_policy(env, "gru")
    learner = make_learner(policy, PPOConfig(rollout=23, chunk=7))
    actor = make_actor(env, policy, rollout=23, chunk=7)
    learner.update(actor.collect())
    loss = ppo.loss

    def wrong(*args):
        total, stats = loss(*args)
        return total, stats | {"deviation/log_prob": torch.full_like(stats["deviation/log_prob"], reported)}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ppo, "loss", wrong)
        patch.setattr(devices, "synchronises", lambda where: is_gpu)
        with pytest.raises(AlignmentError, match=r"outside of the optimiser step|computes something else"):
            learner.update(actor.collect())


def test_rounding_at_fillers_excuses_nothing():
    """S000-13: a narrow Gaussian far from 0, to which the zeroed actions of fillers are very unlikely."""
    env, squash = scripted("clipped", "next_step")
    policy = make_policy(env, "gru", squash=squash)
    with torch.no_grad():
        policy.head.root.log_std.fill_(-5.0)
        policy.head.linear.bias.fill_(5.0)
    rollout = make_actor(env, policy, rollout=23, chunk=7).collect()
    assert not rollout.valid.all()
    t, row = rollout.valid.nonzero()[-1].tolist()
    rollout.record["log_prob"][t, row] += 0.5
    with pytest.raises(AlignmentError, match=rf"log_prob of row {row} at step {t}"):
        make_learner(policy, PPOConfig(rollout=23, chunk=7)).update(rollout)


class OneDtype(nn.Module):
    """A custom encoder that computes in float32 whatever its weights are."""

    output_size = 8

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 8)

    def forward(self, obs):
        return torch.nn.functional.linear(obs.float(), self.layer.weight.float() + 0, self.layer.bias.float())


def test_a_network_that_cannot_be_replayed_is_said_to_be_one():
    """S002-13: the error names what to do."""
    env = TensorWorld(3)
    policy = PolicyConfig(encoder=lambda space: OneDtype(), core="gru", normalise_observations=False).build(
        env.observation_space, env.action_space
    )
    learner = make_learner(policy, PPOConfig(rollout=23, chunk=7, tolerance=SUSPICIOUS))
    with pytest.raises(AlignmentError, match=r"dtype of its weights, or raise `tolerance`"):
        learner.update(make_actor(env, policy, rollout=23, chunk=7).collect())


def test_what_rounding_explains_grows_with_the_precision():
    """S001-22: a policy in bf16 is judged by the roundings of bf16, in its encoder alone on a CPU."""
    env = TensorWorld(3)
    policy = make_policy(env, "gru")
    rollout = make_actor(env, policy, rollout=23, chunk=23).collect()
    rows = torch.arange(3)

    def rounding(precision: str) -> float:
        policy.config = replace(policy.config, precision=precision)
        return float(deviation_evidence._replays(policy, rollout, rows)[1]["log_prob"].max())

    assert rounding("bf16") > 1e3 * rounding("fp32")
    assert rounding("tf32") == rounding("fp32")


@pytest.mark.parametrize("side", ["recorded", "recomputed"])
def test_one_side_is_not_excused_by_the_rounding_of_a_coarse_precision(side):
    """S000-8: what ten roundings of bf16 would explain is a bug where the other side is exact."""
    env = TensorWorld(3)
    policy = make_policy(env, "gru")
    rollout = make_actor(env, policy, rollout=23, chunk=23).collect()
    policy.config = replace(policy.config, precision="bf16")
    exact, rounding = deviation_evidence._replays(policy, rollout, torch.arange(3))
    sides = {"recorded": exact, "recomputed": exact}
    sides[side] = {name: value + 5 * rounding[name] for name, value in exact.items()}
    flat = {kind: {name: x.flatten() for name, x in found.items()} for kind, found in sides.items()}
    seen = [deviation_evidence.Compared(deviation_evidence.places(rollout).flatten(), **flat)]
    findings = deviation_evidence.examine(
        policy, rollout, seen, units={"log_prob": 1.0, "value": 1.0}, tolerance=1e-4
    )
    wrong = "record" if side == "recorded" else "learner"
    assert f"the {wrong} is wrong" in (deviation_evidence.verdict(findings) or "")


def test_the_replay_starts_at_every_stored_state():
    """S000-11: a wrong state that a chunk starts from moves the replay from there on, and not before."""
    env = TensorWorld(3, lengths=(100,))
    policy = make_policy(env, "gru")
    rollout = make_actor(env, policy, rollout=23, chunk=7).collect()
    exact, rows = deviation_evidence.in_float64(policy), torch.arange(3)
    before = deviation_evidence.replay(exact, rollout, rows)["value"]
    rollout.states[2] += 0.5  # pyright: ignore[reportIndexIssue, reportOperatorIssue]
    gap = (deviation_evidence.replay(exact, rollout, rows)["value"] - before).abs().amax(1)
    assert gap[:14].max() == 0
    moved = gap[14]
    assert moved > 1e-3


def test_the_replay_is_the_policy_in_float64():
    """S004-18: from each stored state to the next, on every row that is asked for."""
    env = TensorWorld(3)
    policy = make_policy(env, "lstm", normalise_observations=True)
    rollout = make_actor(env, policy, rollout=23, chunk=7).collect()
    rows = torch.tensor([2, 0])
    exact = deviation_evidence.in_float64(policy)
    found = deviation_evidence.replay(exact, rollout, rows)
    obs = tree.map(lambda leaf: leaf[:23].double(), rollout.obs)
    state = tree.map(lambda leaf: leaf.double(), rollout.state_at(0))
    dist, value, _ = exact.unroll(obs, state, rollout.first[:23])
    torch.testing.assert_close(found["value"], value[:, rows], atol=1e-6, rtol=0)
    torch.testing.assert_close(found["log_prob"], dist.log_prob(rollout.action)[:, rows], atol=1e-6, rtol=0)
