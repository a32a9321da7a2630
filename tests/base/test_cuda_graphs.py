"""Rollouts and optimiser steps as graphs, recorded on tapes: a replay does what a call would have done.

What the GPU runs, without one. The real graphs are in tests/training/test_gpu_graphs.py.
"""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import recollect as rc
from recollect.acting.actor import CapturedAct
from recollect.base import devices, tree
from recollect.base.cuda_graphs import Graphs
from recollect.config.impala import ImpalaConfig
from recollect.config.policy import PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.config.train import TrainConfig
from recollect.cores import CORES
from recollect.cores.pmm import PMMConfig
from recollect.cores.stack import StackConfig
from recollect.envs.wrappers import LastActionReward
from recollect.errors import DivergedError
from recollect.learning import learner
from recollect.runtimes import inline_collector
from recollect.tasks import TASKS, make_task
from recollect.training.trainer import Trainer
from tests.support.tape import TapeGraphs

SMALL = {"rollout": 8, "chunk": 4, "minibatches": 2, "epochs": 2}
UPDATES = 6


@pytest.fixture
def taped(monkeypatch):
    """The path of a GPU, with tapes for graphs."""
    monkeypatch.setattr(devices, "synchronises", lambda where: True)
    monkeypatch.setattr(inline_collector, "Graphs", TapeGraphs)
    monkeypatch.setattr(learner, "Graphs", TapeGraphs)


def make_trainer(task="position-cartpole", algo=None, graphs=True, wrap=False, rows=4, **policy) -> Trainer:
    config = TrainConfig(num_envs=rows, algo=algo or PPOConfig(**SMALL), steps=10_000, graphs=graphs)
    env = make_task(task, rows)
    if env.truncation_gap is not None:
        env._limit, env.max_episode_steps = torch.tensor(5), 5
    if wrap:
        env = LastActionReward(env)
    torch.manual_seed(0)
    core = policy.pop("core", rc.MinGRUConfig(hidden=8))
    made = PolicyConfig(core=core, **policy).build(env.observation_space, env.action_space)
    found = Trainer(inline_collector.InlineCollector([env], made, config), made, config)
    found.begin(10_000)
    return found


def compare(**settings) -> Trainer:
    """Train with tapes and without: the same weights, metrics, memories and env."""
    graphed, plain = make_trainer(**settings), make_trainer(graphs=False, **settings)
    for _ in range(UPDATES):
        found, wanted = graphed.iterate(), plain.iterate()
        assert not found.warnings
    collector = graphed.collector
    assert isinstance(collector, inline_collector.InlineCollector)
    assert all(buffer.play_all.is_graph for actor in collector.actors for buffer in actor._buffers)
    steps = [one.step.is_graph for one in graphed.learner.make_update()._minibatches.values()]
    assert steps
    assert all(steps)
    for (name, a), b in zip(graphed.policy.state_dict().items(), plain.policy.state_dict().values()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=lambda m, name=name: f"{name}: {m}")
    skipped = ("speed/", "start_seconds")
    kept = {k: v for k, v in wanted.metrics.items() if not k.startswith(skipped)}
    assert {k: v for k, v in found.metrics.items() if not k.startswith(skipped)} == pytest.approx(
        kept, rel=1e-5, abs=1e-6, nan_ok=True
    )
    for (name, a), (_, b) in zip(_live(graphed).items(), _live(plain).items(), strict=True):
        torch.testing.assert_close(a, b, msg=lambda m, name=name: f"{name}: {m}")
    tapes = [*collector._graphs.tapes, *graphed.learner.graphs.tapes]  # pyright: ignore[reportAttributeAccessIssue]
    assert not [dead for tape in tapes for dead in tape.dead()]
    return graphed


def _live(found: Trainer) -> dict[str, torch.Tensor]:
    return found.collector.snapshot() or {}


@pytest.mark.parametrize("task", list(TASKS))
def test_every_task(task, taped):
    """With resets and cuts inside of a rollout."""
    compare(task=task, normalise_observations=task != "forage")


INSIDE = {"pmm": PMMConfig(controller="mingru"), "stack": StackConfig(cores=("mingru", "mingru"))}
"""In place of an LSTM or GRU."""


@pytest.mark.parametrize("core", [c for c in CORES if c not in ("lstm", "gru", "none")])
def test_every_core(core, taped):
    """But for LSTM and GRU, whose path on a GPU is a kernel, which no tape shows."""
    compare(core=INSIDE.get(core, core))


@pytest.mark.parametrize(
    "algo",
    [
        PPOConfig(**SMALL, recurrent_mode="burn_in", burn_in_steps=2),
        PPOConfig(**SMALL, accumulate=2, target_kl=1e-3, next_obs_coef=0.1),
        PPOConfig(**SMALL, weight_clip=1.2, l2_init=0.01, value_clip=0.2, gauge_every=2),
        PPOConfig(**SMALL, recompute_activations=True, refresh_states=True, recompute_advantages=True),
        PPOConfig(**SMALL | {"minibatches": 3}),
        ImpalaConfig(**SMALL, clip=0.2),
    ],
    ids=["burn in", "parts", "anchored", "refreshed", "uneven", "impala"],
)
def test_every_option(algo, taped):
    """Schedules of the learning rate and the entropy move on while Python no longer runs."""
    compare(algo=algo, wrap=True)


def test_a_restored_trainer_records_anew(taped):
    """The optimiser's tensors are others then; what was recorded would write to the old ones."""
    one, two = make_trainer(), make_trainer()
    for _ in range(UPDATES):
        one.iterate()
    saved = one.learned(live=True)
    weights = tree.clone(dict(one.policy.state_dict()))
    for _ in range(4):
        two.iterate()
    two.policy.load_state_dict(weights)
    two.restore(saved)
    assert two.is_exact
    for _ in range(UPDATES):
        one.iterate()
        two.iterate()
    for a, b in zip(one.policy.parameters(), two.policy.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_act_alone(taped):
    """For envs that live elsewhere: actions, records and memories of a graph are those of the policy."""
    env = make_task("repeat-previous", 3)
    torch.manual_seed(0)
    policy = PolicyConfig(core=rc.MinGRUConfig(hidden=8)).build(env.observation_space, env.action_space)
    obs, first, state = env.reset(0), torch.ones(3, dtype=torch.bool), policy.initial_state(3)
    mine, its = (torch.Generator().manual_seed(1) for _ in range(2))
    choose = CapturedAct(policy, obs, state, first, its, TapeGraphs(env.device))
    own, theirs, kept = state, state, []
    for _ in range(8):
        acted, own = policy.act(obs, own, first, mine)
        chosen, theirs = choose(obs, theirs, first)
        kept.append((acted, chosen))
        step = env.step(acted.action)
        obs, first = step.obs, step.first
        torch.testing.assert_close(own, theirs)
    for acted, chosen in kept:  # also the early ones, which later calls must not have written over
        torch.testing.assert_close(tuple(acted), tuple(chosen))


class Refusing(TapeGraphs):
    """Every capture fails."""

    def capture(self, fn, generators):
        """Fails as a GPU does."""
        raise RuntimeError("operation not permitted when stream is capturing\nand more")


class Watching(TapeGraphs):
    """Finds a read."""

    def watched(self, fn):
        """Says where."""
        return fn(), "encoder.py:12"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (Refusing, "capturing it failed with RuntimeError: operation not permitted when stream is capturing"),
        (Watching, r"it reads numbers on the host \(at encoder.py:12\)"),
    ],
)
def test_what_cannot_be_recorded_runs_and_is_said_once(kind, why):
    calls = []
    graphs = kind(torch.device("cpu"))
    fn = graphs.captured(lambda: calls.append(1) or len(calls), "acting", nn.Linear(1, 1))
    assert [fn() for _ in range(5)] == [1, 2, 3, 4, 5]
    assert not fn.is_graph
    (note,) = graphs.taken_notes()
    assert re.fullmatch(f"acting runs without a CUDA graph, .*: {why}", note)
    assert graphs.taken_notes() == []


def test_weights_that_move_are_recorded_anew(taped):
    """A callback that gives the policy other tensors: a graph would go on with the old ones."""
    graphed, plain = make_trainer(), make_trainer(graphs=False)
    for update in range(10):
        for found in (graphed, plain):
            if update == 5:
                for parameter in found.policy.core.parameters():
                    parameter.data = parameter.data.clone() * 1.1
            found.iterate()
    for a, b in zip(graphed.policy.parameters(), plain.policy.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_an_env_that_cuts_more_often_than_it_said_is_found_out(taped):
    """There is no place for the second cut of a row: the run ends."""
    found = make_trainer()
    found.iterate()
    env = found.collector.envs[0]  # pyright: ignore[reportAttributeAccessIssue]
    env._limit = torch.tensor(2)
    with pytest.raises(DivergedError, match="final_value"):
        _ = [found.iterate() for _ in range(3)]


def test_off_is_off():
    """Without a GPU, or where the settings say so, a function stays a function."""
    graphs = Graphs(torch.device("cpu"))
    calls = []
    fn = graphs.captured(lambda: calls.append(1), "acting", nn.Linear(1, 1))
    for _ in range(4):
        fn()
    assert len(calls) == 4
    assert not graphs.is_on
    assert graphs.seconds == 0
