"""How much memory a run takes: known before it starts."""

from __future__ import annotations

import gc
import itertools
import re
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.acting.truncation import truncation_slots
from recollect.base import devices, tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.experience.rollout import Acting, rollout_size
from recollect.policy.policy import Policy
from recollect.tasks import make_task
from tests.support.agents import ACTIONS, OBSERVATIONS, AnySpace, small_agent
from tests.support.helpers import as_rows, make_policy

T = TypeVar("T")


@pytest.fixture(autouse=True, scope="module")
def _few_objects() -> None:
    """What is there before these tests is not looked through again and again."""
    gc.collect()
    gc.freeze()


def live_bytes() -> int:
    """Of all tensors of this process, each piece of memory once. (Fake ones of a compiler have none.)"""
    gc.collect()
    found = [thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, torch.nn.Parameter)]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in found}
    return sum(storages.values())


def allocated(make: Callable[[], T]) -> tuple[T, int]:
    """What ``make`` makes, and how many bytes of tensors it leaves."""
    before = live_bytes()
    made = make()
    return made, live_bytes() - before


def assert_known(env: Any, policy: Policy, stored: tuple[int, ...], measure: Callable[..., Any]) -> None:
    """An actor takes what was estimated, within 5%."""
    env.reset(0)  # what an env allocates is its own
    kept = truncation_slots(env, 25)
    actor, measured = measure(lambda: Actor(env, policy, rollout=25, state_steps=stored, seed=0))
    size = rollout_size(policy, actor.rows, Acting(stored, True), steps=25, slots=kept)
    assert size.total == pytest.approx(measured, rel=0.05)
    rollout = actor.collect()
    assert size.states == tree.size_bytes(rollout.states)
    assert tree.spec(rollout.states, 2) == tree.spec(actor.state), "in the dtype that acts"
    assert tree.spec(rollout.obs, 2) == tree.spec(actor.obs)


CORES = {
    "lstm": (LSTMConfig(hidden=32, layers=2), (0, 10, 20)),
    "gru": (GRUConfig(hidden=8), (0,)),
    "window": ({"name": "window", "hidden": 8, "window": 4}, (0, 12)),
    "none": ("none", (0,)),
}


TASKS = {"position-cartpole": 1, "position-pendulum": 1, "delayed-cue": 0}
"""How many truncations of a row a rollout of 25 steps can have, by task."""


@pytest.mark.parametrize(
    ("observation", "action", "core"),
    list(zip(OBSERVATIONS, itertools.cycle(ACTIONS), itertools.cycle(CORES))),
)
def test_memory_use_is_known_before(observation, action, core):
    """S004-10: the estimate is within 5% of what acting allocates; states and observations as they are."""
    env = as_rows([lambda: AnySpace(OBSERVATIONS[observation], ACTIONS[action])] * 3, "loop")
    assert_known(env, make_policy(env, CORES[core][0]), CORES[core][1], allocated)


@pytest.mark.parametrize(("task", "core"), list(zip(TASKS, CORES)))
def test_memory_use_is_known_on_the_path_of_a_gpu(task, core, monkeypatch):
    """S004-10: where truncated rows have places for their observation and memory."""
    monkeypatch.setattr(devices, "synchronises", lambda where: True)
    env = make_task(task, 7)
    assert truncation_slots(env, 25) == TASKS[task]
    assert_known(env, make_policy(env, CORES[core][0]), CORES[core][1], allocated)


@pytest.mark.parametrize("actors", [1, 2])
def test_what_is_said_is_what_is_taken(actors, capsys):
    """S004-10: the number that stands before the first step, against the memory of the actors that ran."""
    settings: dict[str, Any] = {"rollout": 64, "chunk": 16, "num_envs": 8, "core": LSTMConfig(hidden=16)}
    with rc.Agent.create("delayed-cue", rc.TrainConfig().override(actors=actors, **settings)) as agent:
        assert agent._trainer is not None
        collector: Any = agent._trainer.collector
        [env.reset(0) for env in collector.envs]
        _, measured = allocated(lambda: collector._ready_actors(0))
        agent.train(8 * 64, progress="plain")
    said = " ".join(capsys.readouterr().err.split())
    total, share = re.findall(r"takes ([\d.]+) MB, (\d+)% of it stored states", said)[0]
    assert float(total) * 1e6 == pytest.approx(measured, rel=0.05)
    assert int(share) / 100 * measured == pytest.approx(8 * 4 * 2 * 16 * 4, rel=0.05)


def test_only_chunk_starts_are_stored():
    """S004-10: a state for each chunk, not for each step."""
    agent = small_agent(rollout=32, chunk=8)
    assert agent.config.algo.state_steps == (0, 8, 16, 24)
    assert agent._trainer.collector.actors[0].collect().states[0].shape[:2] == (4, 2)


def test_the_opening_says_sizes_and_horizon(capsys):
    """S004-10, S001-24: memory use, weights and effective horizon stand before the first step."""
    agent = small_agent(gamma=0.95)
    agent.train(16, progress="plain")
    said = " ".join(capsys.readouterr().err.split())
    weights = sum(p.numel() for p in agent.policy.parameters())
    assert f"{weights:,} weights; a rollout of 8 steps x 2 rows takes 0.00" in said
    assert "of it stored states; effective horizon 20 steps" in said


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("task", TASKS)
def test_memory_use_is_known_on_a_gpu(task, core):
    """S004-10: by torch's own count of the GPU's memory, with rows enough that its rounding is small."""

    def measure(make: Callable[[], Actor]) -> tuple[Actor, int]:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        made = make()
        return made, torch.cuda.memory_allocated() - before

    env = make_task(task, 2048, "cuda")
    assert_known(env, make_policy(env, CORES[core][0]).cuda(), CORES[core][1], measure)
