"""What bugs between processes must fail: real actors, env workers and learners in processes of their own."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.base import devices
from recollect.config.impala import ImpalaConfig
from recollect.cores import LSTMConfig
from recollect.errors import AlignmentError, EnvError
from tests.learning import test_ranks
from tests.runtimes import test_learner_group, test_tickets
from tests.support.doomed import differing, ends_soon
from tests.support.helpers import ScriptedEnv
from tests.support.ppo_setup import nudge
from tests.support.process_runs import TINY, process_collector, trained
from tests.support.replayed import play, train
from tests.support.worker_worlds import MIXED, assert_same, in_workers, plain, stream


def in_lockstep() -> None:
    """Actors in processes: what they record is what the weights of the version that they name do."""
    with process_collector(ScriptedEnv, actors=2) as (collector, policy):
        play(collector, policy, 4)


def in_async() -> None:
    """The same where actors run ahead. One does the work of both, so that it needs all of its slots."""
    with process_collector(ScriptedEnv, actors=2, mode="async") as (collector, policy):
        assign = collector._assign
        collector._assign = lambda depth, handles=None: assign(depth, collector._handles[:1])
        play(collector, policy, 4)


def workers_of_actors() -> None:
    """A run whose envs are in processes of actors in processes is that of one process, bit for bit."""
    here = trained(ScriptedEnv, 2)
    assert differing(here, trained(ScriptedEnv, 2, runtime="processes", env_workers=2)) == []


class Broken(ScriptedEnv):
    """Raises in its fifth step, and leaves a file just before."""

    def __init__(self, marker: Path):
        super().__init__()
        self.marker, self.steps = marker, 0

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 5:
            self.marker.touch()
            raise ValueError("the lights went out")
        return super().step(action)


def raised_at_once() -> None:
    """What an env raises elsewhere arrives within seconds."""
    with tempfile.TemporaryDirectory() as folder:
        marker = Path(folder) / "raised"
        with (
            process_collector(functools.partial(Broken, marker)) as (collector, _),
            ends_soon(marker.exists, 10.0),
            pytest.raises(EnvError, match="the lights went out"),
        ):
            collector.collect(0)


run_in_async = functools.partial(train, "impala", 2, runtime="processes", mode="async")


def env_workers() -> None:
    """Slots in two processes give what they give in one, final observations included."""
    here, elsewhere = plain(MIXED, 4), in_workers(MIXED, 4, 2)
    try:
        for seed in (3, 4):
            assert_same(stream(elsewhere, 24, seed), stream(here, 24, seed))
    finally:
        elsewhere.close()


def learners() -> None:
    """Updates of two learners, one of them in a process, are those of one, also from other weights on."""
    algo = ImpalaConfig(rollout=12, chunk=4, minibatches=2, learning_rate=0.01)
    core = LSTMConfig(hidden=8)
    one, actor = test_learner_group.make(algo, core, normalise_observations=True)
    many, _ = test_learner_group.make(algo, core, normalise_observations=True)
    with test_learner_group.group_of(many) as group:
        for update in range(3):
            if update == 2:  # as after a restore
                nudge(one)
                nudge(many)
                group.forget()
            rollout = actor.collect(version=update)
            assert rollout.finals is not None
            found, alone = group.update(rollout, update / 3), one.update(rollout, update / 3)
            for name in alone.keys() - {"padding"}:
                assert found[name] == pytest.approx(alone[name], rel=2e-3, abs=2e-4, nan_ok=True), name
    test_learner_group.close_to(one.policy.state_dict(), many.policy.state_dict())


def async_trainer(max_lag: int) -> Any:
    """The trainer of an async run whose actors were never started."""
    settings = TINY | {"runtime": "processes", "mode": "async", "max_lag": max_lag}
    return rc.Agent.create("delayed-cue", rc.TrainConfig().override(**settings))._trainer


def remembered() -> None:
    """The weights of the versions that rollouts may still come from are kept, and no others."""
    trainer = async_trainer(2)
    for updates in range(7):
        trainer.learner.updates = updates
        with torch.no_grad():
            trainer.policy.critic.bias.fill_(float(updates))
        trainer._remember()
        kept = {version: float(weights["critic.bias"]) for version, weights in trainer._past.items()}
        assert kept == {version: float(version) for version in range(max(0, updates - 2), updates + 1)}


def lags() -> None:
    """Rollouts may lag by ``max_lag`` updates, not by one more, and never come from the future."""
    trainer = async_trainer(2)
    trainer.learner.updates = 5

    def lags_of(*versions: int) -> list[int] | None:
        try:
            return trainer._lags([SimpleNamespace(version=version) for version in versions])
        except AlignmentError:
            return None

    assert lags_of(5, 3, 4) == [0, 2, 1]
    assert lags_of(5, 2) is None, "too old"
    assert lags_of(6, 5) is None, "too new"


run_ahead = test_tickets.test_the_run_ahead_is_bounded


def ranks_on_a_gpu() -> None:
    """Two learners on the path of a GPU learn what one does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "synchronises", lambda where: True)
        test_ranks.check_same_learning(3, 1, policy={"normalise_observations": True})
