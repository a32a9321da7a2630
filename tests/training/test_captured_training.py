"""Whole rollouts and updates on the path of a GPU, on the CPU: nothing is read, and the numbers are the same.

What a GPU runs is the same code; here it is proved free of reads.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.algos import ppo
from recollect.base import devices, tree
from recollect.config.impala import ImpalaConfig
from recollect.config.policy import PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.config.train import TrainConfig
from recollect.errors import AlignmentError, DivergedError, EnvError
from recollect.learning.captured_update import CapturedUpdate
from recollect.policy.policy import Policy
from recollect.runtimes.inline_collector import InlineCollector
from recollect.tasks import make_task
from recollect.training.trainer import Trainer
from tests.support.reads import unread

SMALL = {"rollout": 12, "chunk": 6, "minibatches": 2, "epochs": 2}


@pytest.fixture
def waiting(monkeypatch):
    """The path of a GPU, reads allowed."""
    monkeypatch.setattr(devices, "synchronises", lambda where: True)


def make_policy(env, **config) -> Policy:
    torch.manual_seed(0)
    core = config.pop("core", rc.GRUConfig(hidden=8))
    return PolicyConfig(core=core, **config).build(env.observation_space, env.action_space)


def make_trainer(task="position-cartpole", env=None, algo=None, rows=6, **policy) -> Trainer:
    config = TrainConfig(num_envs=rows, algo=algo or PPOConfig(**SMALL), steps=10_000)
    env = env or make_task(task, rows)
    trainer = Trainer(InlineCollector([env], made := make_policy(env, **policy), config), made, config)
    trainer.begin(10_000)
    return trainer


@pytest.mark.parametrize(
    "task", ["position-cartpole", "position-pendulum", "repeat-previous", "forage", "treasure-hunt"]
)
def test_a_rollout_is_the_same(task):
    """S001-1: with episodes cut in the midst, several times in a rollout."""

    def collected(context) -> list:
        env = make_task(task, 5)
        if env.truncation_gap is not None:
            env.max_episode_steps = limit = 7
            env._limit = torch.tensor(limit)
        policy = make_policy(env, normalise_observations=task != "forage")
        with context():
            actor = Actor(env, policy, rollout=24, state_steps=(0, 12), seed=3, keeps_finals=False)
            return [tree.clone(_tensors(actor.collect())) for _ in range(3)]

    plain = collected(contextlib.nullcontext)
    for one, other in zip(plain, collected(unread), strict=True):
        for (name, a), (_, b) in zip(tree.named_leaves(one), tree.named_leaves(other), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")


def _tensors(rollout) -> dict:
    names = ("obs", "first", "action", "reward", "terminated", "truncated", "valid", "final_value")
    return {name: getattr(rollout, name) for name in names} | {
        "bootstrap": rollout.bootstrap,
        "states": rollout.states,
        **rollout.record,
    }


ALGOS = {
    "plain": PPOConfig(**SMALL),
    "full": PPOConfig(**SMALL | {"recurrent_mode": "full"}),
    "burn in": PPOConfig(**SMALL, recurrent_mode="burn_in", burn_in_steps=3),
    "kl": PPOConfig(**SMALL, target_kl=1e-4),
    "clipped": PPOConfig(**SMALL, max_grad_norm=0.01, value_clip=0.2, weight_clip=1.5, l2_init=0.01),
    "parts": PPOConfig(**SMALL | {"minibatches": 3}, accumulate=2, next_obs_coef=0.1),
    "uneven": PPOConfig(**SMALL | {"rollout": 14, "minibatches": 4}),
    "refreshed": PPOConfig(**SMALL, refresh_states=True, recompute_advantages=True),
    "recomputed": PPOConfig(**SMALL, recompute_activations=True, gauge_every=1),
    "impala": ImpalaConfig(**SMALL),
}


SEPARATE = ("plain", "refreshed", "recomputed")
"""The algorithms that are tried with a critic of its own, too."""


@pytest.mark.parametrize(
    ("name", "critic"), [*((name, "shared") for name in ALGOS), *((name, "separate") for name in SEPARATE)]
)
def test_updates_are_the_same(name, critic, waiting, monkeypatch):
    """S002-14: three updates, the weights, and every metric but the speeds."""
    trainer = make_trainer(algo=ALGOS[name], critic=critic)
    found = [trainer.iterate().metrics for _ in range(3)]
    monkeypatch.undo()
    plain = make_trainer(algo=ALGOS[name], critic=critic)
    expected = [plain.iterate().metrics for _ in range(3)]
    for (key, a), b in zip(trainer.policy.state_dict().items(), plain.policy.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5, msg=lambda m, key=key: f"{key}: {m}")
    for metrics, wanted in zip(found, expected):
        kept = {k: v for k, v in metrics.items() if not k.startswith(("speed/", "deviation/"))}
        assert kept == pytest.approx(
            {k: v for k, v in wanted.items() if k in kept}, rel=2e-3, abs=1e-5, nan_ok=True
        )
        assert {k for k in wanted if not k.startswith("speed/")} == {
            k for k in metrics if not k.startswith("speed/")
        }


@pytest.mark.parametrize("critic", ["shared", "separate"])
@pytest.mark.parametrize("name", [n for n in ALGOS if n not in ("refreshed", "impala")])
def test_an_update_reads_once(name, critic):
    """S001-1, S000-19: from the rollout to the last optimiser step nothing is read, with all that can be
    measured; then everything, at once."""
    core = rc.MinGRUConfig(hidden=8)  # the GRU needs its kernel for it
    trainer = make_trainer(algo=replace(ALGOS[name], gauge_every=1), core=core, critic=critic)
    reads = []

    def read(self, metrics, stale):
        reads.append(len(metrics))
        assert len(stale) == trainer.config.algo.epochs, "memory was measured after each epoch"
        raise _ReadError

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(devices, "synchronises", lambda where: True)
        trainer.iterate()  # the first one checks the whole rollout
        patched.setattr(CapturedUpdate, "finish", read)
        with pytest.raises(_ReadError), unread():
            trainer.iterate()
    assert len(reads) == 1


class _ReadError(Exception):
    pass


def test_a_nan_of_the_env_is_never_learned_from(waiting):
    """Nothing moves: weights, statistics, Adam; and the error says which row."""
    trainer = make_trainer()
    trainer.iterate()
    before = tree.clone(dict(trainer.policy.state_dict()))
    env = trainer.collector.envs[0]  # pyright: ignore[reportAttributeAccessIssue]
    env._advance_plain = env._advance

    def poisoned(action):
        reward, terminated = env._advance_plain(action)
        reward = reward.clone()
        reward[2] = torch.nan
        return reward, terminated

    env._advance = poisoned
    with pytest.raises(EnvError, match="reward of row 2 is nan"):
        trainer.iterate()
    for key, value in trainer.policy.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_a_wrong_state_stops_the_run_before_a_step(waiting):
    """The weights are those of before, although nobody looked."""
    trainer = make_trainer()
    trainer.iterate()
    batch = trainer.collector.collect(1)
    (rollout,) = batch.rollouts
    rollout.states.add_(1.0)  # pyright: ignore[reportAttributeAccessIssue]
    before = [p.detach().clone() for p in trainer.policy.core.parameters()]
    with pytest.raises(AlignmentError, match="the record is wrong"):
        trainer.learner.update(rollout)
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.core.parameters()))


@pytest.mark.parametrize("is_gpu", [False, True])
@pytest.mark.parametrize("minibatch", [1, 3, 4])
def test_a_gradient_that_is_not_finite_is_named(is_gpu, minibatch, monkeypatch):
    """S002-13: the parameters of the minibatch that ended the update, although others came after it."""
    monkeypatch.setattr(devices, "synchronises", lambda where: is_gpu)
    trainer = make_trainer()
    trainer.iterate()
    (rollout,) = trainer.collector.collect(1).rollouts
    learner, wrong = trainer.learner, []
    backward = learner.backward

    def poisoned(sequences, which, entropy_coef):
        """The chunks of one minibatch have a NaN in the gradient of the action head, later ones elsewhere."""
        stats = backward(sequences, which, entropy_coef)
        batch = sequences.whole() if which is None else sequences.take(which)
        key = float(batch.data["advantage"].sum())
        if key not in wrong:
            wrong.append(key)
        if wrong.index(key) == minibatch - 1:
            learner.policy.head.linear.weight.grad[0, 0] = torch.nan
        elif wrong.index(key) > minibatch - 1:
            learner.policy.critic.weight.grad[0, 0] = torch.nan
        return stats

    monkeypatch.setattr(learner, "backward", poisoned)
    with pytest.raises(DivergedError, match=rf"minibatch {minibatch}: .* first in head\.linear\.weight"):
        learner.update(rollout)


@pytest.mark.parametrize("lag", [0, 1])
def test_a_loss_that_is_not_finite_is_no_silence(lag, waiting, monkeypatch):
    """S002-13: NaN in a later minibatch, or in any of a rollout that lags, is a divergence, as on the CPU."""
    trainer = make_trainer()
    trainer.iterate()
    (rollout,) = trainer.collector.collect(1).rollouts
    learner, calls = trainer.learner, []
    loss = ppo.loss

    def wrong(*args):
        total, stats = loss(*args)
        calls.append(1)
        factor = torch.nan if len(calls) > 1 - lag else 1.0
        return total * factor, {name: value * factor for name, value in stats.items()}

    monkeypatch.setattr(ppo, "loss", wrong)
    with pytest.raises(DivergedError, match="gradient is not finite"):
        learner.update(rollout, lag=lag)


def test_a_gradient_that_is_not_finite_changes_nothing(waiting, monkeypatch):
    """As on the CPU: the step is not applied, and the error names the minibatch."""
    trainer = make_trainer()
    trainer.iterate()
    before = [p.detach().clone() for p in trainer.policy.core.parameters()]
    monkeypatch.setattr(trainer.learner.optimizer, "norm", lambda: torch.tensor(torch.nan))
    with pytest.raises(DivergedError, match="minibatch 1: the gradient is not finite"):
        trainer.iterate()
    assert all(torch.equal(a, b) for a, b in zip(before, trainer.policy.core.parameters()))


@pytest.mark.parametrize("stop", [0, 1, 3])
def test_the_kl_ends_an_update_where_it_would(stop, monkeypatch):
    """Halting on the device and on the host ends with the same weights and counts the same minibatches."""
    kl = iter(())

    def run(waits: bool) -> tuple[dict[str, float], list]:
        nonlocal kl
        with monkeypatch.context() as patched:
            patched.setattr(devices, "synchronises", lambda where: waits)
            trainer = make_trainer(algo=PPOConfig(**SMALL, target_kl=0.5))
            trainer.iterate()
            backward = trainer.learner.backward
            kl = iter([0.0] * stop + [1.0] + [0.0] * 8)

            def lying(*args):
                return backward(*args) | {"kl": torch.tensor(next(kl))}

            patched.setattr(trainer.learner, "backward", lying)
            metrics = trainer.iterate().metrics
            return metrics, [p.detach().clone() for p in trainer.policy.parameters()]

    (found, weights), (expected, wanted) = run(True), run(False)
    assert found["minibatches"] == expected["minibatches"] == stop
    assert found["kl_last"] == expected["kl_last"] == 1.0
    for a, b in zip(weights, wanted):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
