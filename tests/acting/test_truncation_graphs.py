"""Tasks on a GPU whose episodes are cut several times inside a rollout that is a CUDA graph."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.acting.truncation import DeferredFinalValues
from recollect.base import devices, tree
from recollect.base.cuda_graphs import Graphs
from recollect.experience.rollout import Rollout
from recollect.learning.refresh_rollout import recorded, refresh
from recollect.tasks import Task, make_task, random
from tests.mutants.mutant import Mutant
from tests.support.captured import make_policy

ROWS, T, SEED = 6, 30, 3
LIMITS = {"forage": 7, "position-cartpole": 12}
"""A rollout has several cuts of every row; in position-cartpole some rows fall before."""


def make(name: str, device: str, rows: int = ROWS) -> Task:
    task = make_task(name, rows, device)
    task.max_episode_steps = LIMITS[name]
    task._limit = random.constant(LIMITS[name])
    return task


def begin(task: Task) -> None:
    """Every row is cut at another step."""
    task.age.copy_(torch.arange(ROWS) % LIMITS[task.name])


def check_cuts(name: str, device: str) -> Actor:
    """M, and the final observations, against a task of the same seed on the CPU."""
    twin, count = make(name, "cpu"), 0
    policy = make_policy(twin.observation_space, twin.action_space)
    obs = twin.reset(SEED)
    begin(twin)
    acting = deepcopy(policy).to(device)
    with pytest.MonkeyPatch.context() as patch:
        if device == "cpu":
            patch.setattr(devices, "synchronises", lambda where: True)  # the path of a GPU
        task = make(name, device)
        graphs = Graphs(task.device)
        actor = Actor(task, acting, rollout=T, state_steps=(0, 15), seed=SEED, graphs=graphs)
        begin(task)
        rollouts = [deepcopy(actor.collect()).to("cpu") for _ in range(5)]
    for rollout in rollouts:
        cuts = rollout.truncated & ~rollout.terminated
        assert (cuts.sum(0) >= 2).any(), "several cuts of one row"
        assert len(cuts.nonzero()[:, 0].unique()) > 3, "at several steps"
        count += int(cuts.sum())
        assert rollout.finals is not None
        final_obs = dict(
            zip(zip(rollout.finals.time.tolist(), rollout.finals.row.tolist()), rollout.finals.obs)
        )
        assert final_obs.keys() == {(t, row) for t, row in cuts.nonzero().tolist()}
        for t in range(T):
            close(obs, rollout.obs[t], f"obs of step {t}")
            step = twin.step(rollout.action[t])
            obs = step.obs
            assert torch.equal(step.truncated, rollout.truncated[t]), t
            assert torch.equal(step.terminated, rollout.terminated[t]), t
            assert torch.equal(step.first, rollout.first[t + 1]), t
            for row in cuts[t].nonzero().flatten().tolist():
                close(final_obs[t, row], step.final_obs[row], f"final_obs of step {t}, row {row}")
        assert_replayed(policy, rollout)
    return actor


def assert_replayed(policy, rollout: Rollout) -> None:
    """On the CPU, with the path of the CPU."""
    found, expected = refresh(policy, rollout), recorded(rollout)
    for name in ("record", "final_value", "bootstrap", "states"):
        close(getattr(found, name), getattr(expected, name), name)


def close(one, other, what: str) -> None:
    for a, b in zip(tree.leaves(one), tree.leaves(other), strict=True):
        assert torch.allclose(a.float(), b.float(), rtol=0, atol=2e-4), what


@pytest.mark.parametrize("name", LIMITS)
def test_cuts_on_the_path_of_a_gpu(name):
    """M, S000-8, S004-1: acting without a look, on the CPU."""
    check_cuts(name, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", LIMITS)
def test_cuts_inside_a_graph(name):
    """M, S000-8, S004-1, S002-14: the rollouts are replays of a CUDA graph, from the third on."""
    actor = check_cuts(name, "cuda")
    assert all(buffer.play_all.is_graph for buffer in actor._buffers)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_graphs_learn_the_same_from_cut_episodes(algo):
    """M, S002-14: rollouts with cuts and updates as graphs end with the weights of those without."""

    def train(is_graphed: bool) -> rc.Agent:
        settings = {"num_envs": 64, "rollout": T, "chunk": 10, "minibatches": 2, "steps": 7 * 64 * T}
        env = make("position-cartpole", "cuda", 64)
        return rc.train(env, algo=algo, graphs=is_graphed, device="cuda", progress=False, **settings)

    graphed, plain = train(True), train(False)
    actors = graphed._trainer.collector.actors
    assert all(buffer.play_all.is_graph for actor in actors for buffer in actor._buffers)
    for agent in (graphed, plain):
        assert agent.history.rows[-1]["length"] <= LIMITS["position-cartpole"]
        assert agent.history.rows[-1]["episodes"] > 64
    for (name, one), two in zip(graphed.policy.state_dict().items(), plain.policy.state_dict().values()):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


cut = partial(check_cuts, "forage", "cpu")
MUTANTS = [
    Mutant(
        "a second cut takes the place of the first",
        cut,
        (
            (
                DeferredFinalValues,
                "add",
                "truncated if self._slots == 1 else truncated & ~self._is_used[slot]",
                "truncated",
            ),
        ),
        "assert final_obs.keys() ==",
    ),
    Mutant(
        "cuts of the rollout before are kept",
        cut,
        ((DeferredFinalValues, "begin", "self._is_used.zero_()", "pass"),),
        "assert final_obs.keys() ==",
    ),
    Mutant(
        "the observation after the reset",
        cut,
        ((DeferredFinalValues, "add", "here, step.final_obs", "here, step.obs"),),
        "final_obs of step",
    ),
    Mutant(
        "the memory of the first cut for all of a row",
        cut,
        (
            (
                DeferredFinalValues,
                "add",
                "tree.index(self._state, slot), here",
                "tree.index(self._state, 0), here",
            ),
        ),
        "final_value",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_proof_catches_its_mutant(mutant: Mutant):
    mutant.assert_caught()
