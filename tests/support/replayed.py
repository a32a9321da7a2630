"""M for rollouts of other processes: each is what the weights of its version do, cuts included."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

import recollect as rc
from recollect.base import tree
from recollect.experience.rollout import Rollout
from recollect.learning.refresh_rollout import recorded, refresh
from recollect.policy.policy import Policy
from recollect.runtimes.collector import Batch
from tests.support.doomed import UPDATE
from tests.support.helpers import ScriptedEnv
from tests.support.process_runs import TINY, kept, run_ahead


def assert_replayed(policy: Policy, rollout: Rollout) -> None:
    """Log-probs, values, values at cuts, bootstraps and stored states, from the first stored state on."""
    cuts = rollout.truncated & ~rollout.terminated
    finals = 0 if rollout.finals is None else len(rollout.finals.time)
    assert finals == int(cuts.sum()), "a final observation for every cut"
    found, expected = (
        made.record | {name: getattr(made, name) for name in ("final_value", "bootstrap", "states")}
        for made in (refresh(policy, rollout), recorded(rollout))
    )
    for name in expected:
        for again, once in zip(tree.leaves(found[name]), tree.leaves(expected[name])):
            gap = float((again - once).abs().max())
            who = f"{name} of actor {rollout.actor}, version {rollout.version}"
            assert gap <= 1e-5, f"{who}, deviates by {gap}"


class Replays:
    """Keeps the weights of every version, and replays rollouts with those that they name."""

    def __init__(self, policy: Policy):
        self._twin, self._past = copy.deepcopy(policy), dict[int, dict[str, torch.Tensor]]()
        self._last: dict[int, Rollout] = {}
        """Of every actor."""
        self._copies: list[Rollout] = []
        self.cuts = 0
        self.lags: list[int] = []

    def keep(self, policy: Policy, version: int) -> None:
        """``policy`` has the weights of this version now."""
        self._past[version] = tree.clone(dict(policy.state_dict()))

    def check(self, rollouts: Sequence[Rollout], version: int) -> None:
        """Those that update ``version`` is given: nothing is lost, doubled, out of order or misnamed."""
        self._copies = [kept(rollout) for rollout in rollouts]
        for rollout in self._copies:
            last = self._last.get(rollout.actor)
            assert rollout.sequence == (0 if last is None else last.sequence + 1), "the next of its actor"
            assert last is None or torch.equal(rollout.obs[0], last.obs[-1]), (
                "it goes on where the last ended"
            )
            self._last[rollout.actor] = rollout
            self._twin.load_state_dict(self._past[rollout.version])
            assert_replayed(self._twin, rollout)
            self.cuts += 0 if rollout.finals is None else len(rollout.finals.time)
            self.lags.append(version - rollout.version)

    def check_again(self, rollouts: Sequence[Rollout]) -> None:
        """The same rollouts, which hold until the next ``collect``."""
        for rollout, copied in zip(rollouts, self._copies):
            assert torch.equal(rollout.obs, copied.obs), "it was overwritten"


def play(collector: Any, policy: Policy, updates: int) -> None:
    """So many updates of a collector without a learner; the weights move between them as by a learner.

    In async mode actors run as far ahead as they may before a batch is looked at again: a slot that is given
    out too early is overwritten by then.
    """
    replays = Replays(policy)
    for version in range(updates):
        replays.keep(policy, version)
        batch: Batch = collector.collect(version)
        replays.check(batch.rollouts, version)
        run_ahead(collector)
        replays.check_again(batch.rollouts)
        move(policy, version)
        collector.publish(version + 1)
        run_ahead(collector)
        replays.check_again(batch.rollouts)
    _assert_telling(replays, updates, collector.is_exact)


def train(algo: str, updates: int = 5, **settings: Any) -> None:
    """A run whose every rollout is replayed, and whose learner is given just these rollouts."""
    settings = TINY | {"algo": algo, "gauge_every": 1, "learning_rate": 0.01, "actors": 2} | settings
    rows: list[dict[str, float]] = []
    with rc.Agent.create(ScriptedEnv, rc.TrainConfig().override(**settings)) as agent:
        trainer = agent._trainer
        assert trainer is not None
        collector, policy, learner = trainer.collector, agent.policy, trainer.learner
        collect, update, replays = collector.collect, learner.update, Replays(policy)
        batches: list[list[Rollout]] = []

        def collected(version: int) -> Batch:
            replays.keep(policy, version)
            batch = collect(version)
            replays.check(batch.rollouts, version)
            run_ahead(collector)
            replays.check_again(batch.rollouts)
            batches.append(batch.rollouts)
            return batch

        def learned(whole: Rollout, progress: float, *, lag: int) -> dict[str, float]:
            parts = [refresh(policy, rollout) for rollout in batches[-1]]
            joined = refresh(policy, whole)
            for name in ("log_prob", "value", "final_value"):
                found, *each = (one.record.get(name, one.final_value) for one in (joined, *parts))
                expected = torch.cat(each, 1)
                assert torch.allclose(found, expected, rtol=0, atol=1e-5), f"{name} of the rows as one"
            return update(whole, progress, lag=lag)

        collector.collect, learner.update = collected, learned
        agent.train(updates * UPDATE, progress=False, callbacks=[lambda _, metrics: rows.append(metrics)])
    assert len(rows) == len(batches) == updates
    _assert_telling(replays, updates, collector.is_exact)
    for number, row in enumerate(rows):
        lags = replays.lags[2 * number :][:2]
        assert (row["lag"], row["lag/max"]) == (sum(lags) / 2, max(lags)), "the lag that is told"
    checked = [row["deviation/log_prob"] for row in rows if "deviation/log_prob" in row]
    assert len(checked) == updates, "the learner compares, too"
    assert max(checked) < 1e-4


def _assert_telling(replays: Replays, updates: int, is_exact: bool) -> None:
    assert replays.cuts > updates, "episodes are cut in the rollouts"
    assert (max(replays.lags) == 0) == is_exact, "actors run ahead in async mode, and only there"


@torch.no_grad()
def move(policy: Policy, seed: int) -> None:
    """All weights, as an update does."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in policy.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
