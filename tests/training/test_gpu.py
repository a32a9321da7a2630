"""The engine on a CUDA device: the same code, the same numbers within float32 rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.acting.session import Session
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.impala import ImpalaConfig
from recollect.config.ppo import PPOConfig
from recollect.envs.factory import make_env
from recollect.errors import StateError
from recollect.experience.chunks import make_chunks
from recollect.learning.learner_state import learner_tensors
from tests.support.captured import CHUNK, T, assert_near, make_policy, make_rollout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CORES = ["lstm", "gru", rc.LSTMConfig(hidden=32, layers=2, learned_initial_state=True), "none"]


UPDATES = {
    "ppo": PPOConfig(rollout=T, chunk=CHUNK, epochs=2, minibatches=1),
    "impala": ImpalaConfig(rollout=T, chunk=CHUNK, epochs=2, minibatches=1),
}
"""One minibatch: their order is drawn by a generator of the device."""
LIMITS = {"fp32": 1e-4, "tf32": 5e-3, "bf16": 5e-2}


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("core", CORES, ids=str)
@pytest.mark.parametrize("task", ["delayed-cue", "position-pendulum", "position-cartpole"])
def test_training_runs_and_reproduces_what_was_recorded(core, task, precision):
    """S002-14, S000-8, S001-22, M: to the stated tolerances; the deviation gauge would stop the run."""
    mode = "none" if core == "none" else "stored_state"
    rows = []
    agent = rc.train(
        task,
        core=core,
        recurrent_mode=mode,
        device="cuda",
        num_envs=16,
        rollout=40,
        chunk=7,
        steps=16 * 40 * 4,
        precision=precision,
        progress=False,
        callbacks=[lambda _, metrics: rows.append(metrics)],
    )
    assert len(rows) == 4
    assert max(row["deviation/log_prob"] for row in rows) < LIMITS[precision]
    assert next(agent.policy.parameters()).is_cuda
    assert len(agent.evaluate(episodes=8).returns) == 8


@pytest.mark.parametrize("core", CORES, ids=str)
def test_gpu_and_cpu_agree(core):
    """S002-14, S003-26: one rollout, its values and the gradient of its loss on both devices."""
    torch.manual_seed(0)
    config = PPOConfig(rollout=23, chunk=7, recurrent_mode="none" if core == "none" else "stored_state")
    env = make_env("position-cartpole", 8)
    made = rc.PolicyConfig(core=core, precision="fp32")
    policy = made.build(env.observation_space, env.action_space)
    rollout = Actor(env, policy, rollout=23, state_steps=config.state_steps, seed=0).collect()
    learner = make_learner(policy, config)
    _, data, _ = learner.targets(rollout)
    chunks = make_chunks(rollout, 7, data)
    found = {}
    for device in ("cpu", "cuda"):
        policy = policy.to(device)
        batch = [tree.to(part, device) for part in (chunks.obs, chunks.action, chunks.state, chunks.first)]
        log_prob, entropy, value = policy.evaluate_actions(*batch)
        loss = (log_prob + entropy + value).mean()
        grads = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
        found[device] = [t.detach().cpu() for t in (log_prob, entropy, value, *grads) if t is not None]
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("algo", ["ppo", "impala"])
@pytest.mark.parametrize("core", ["lstm", "gru", "mamba", "mlstm", "window", "none"])
def test_an_update_is_that_of_the_cpu(core, algo):
    """S003-26: the same code, from the rollout to the optimiser, on both devices: metrics, statistics,
    gradients and Adam's moments after two epochs."""
    found = {}
    for device in ("cpu", "cuda"):
        learner = make_learner(make_policy(core=core).to(device), UPDATES[algo])
        rollout = make_rollout(make_policy(core=core), "all valid").to(device)
        metrics = learner.update(rollout, 0.5)
        grads = {name: p.grad for name, p in learner.named_parameters() if p.grad is not None}
        moments = {name: leaf for name, leaf in learner_tensors(learner).items() if "rng" not in name}
        statistics = dict(learner.policy.named_buffers())
        found[device] = metrics, *tree.to((statistics, (grads, moments)), "cpu")
    (wanted, moved, want), (metrics, counted, got) = found.values()
    assert_near(counted, moved, 1e-4)
    assert_near(got, want, 1e-2)  # of the second epoch: Adam's first step makes much of next to nothing
    assert metrics.keys() == wanted.keys()
    known = {name: value for name, value in wanted.items() if not name.startswith("deviation/")}
    same = {name: metrics[name] for name in known}
    assert same == pytest.approx(known, rel=2e-3, abs=1e-4, nan_ok=True)


def test_a_run_goes_on_where_it_was(tmp_path):
    """S004-20, S002-14: memories, env and random streams come back to the device; on a CPU, new episodes."""
    path = tmp_path / "run"
    settings = {"num_envs": 16, "rollout": 16, "chunk": 8, "device": "cuda", "progress": False}
    stop = [lambda training, _: training.stop("half") if training.steps >= 512 else None]
    whole = rc.train("delayed-cue", steps=1024, run=str(tmp_path / "whole"), **settings)
    rc.train("delayed-cue", steps=1024, run=str(path), callbacks=stop, **settings)
    halves = rc.resume(path, progress=False)
    assert halves._trainer.is_exact
    assert all(leaf.is_cuda for leaf in tree.leaves(halves._trainer.collector.actors[0].state))
    one, two = whole.policy.state_dict(), halves.policy.state_dict()
    assert all(torch.allclose(one[name].double(), two[name].double(), atol=1e-3) for name in one)
    assert [row["episodes"] for row in rc.Run(path).metrics()] == [
        row["episodes"] for row in rc.Run(tmp_path / "whole").metrics()
    ]
    moved = rc.resume(path, steps=256, device="cpu", progress=False)
    assert moved.steps == 1280
    assert not next(moved.policy.parameters()).is_cuda


def test_a_session_is_that_of_the_cpu():
    """S002-7: slices, resets by a mask on the GPU, and a memory that moves on; one of a CPU is refused."""
    obs = np.random.default_rng(0).normal(size=(6, 4, 3)).astype(np.float32)
    memories = []
    for device in ("cpu", "cuda"):
        policy = make_policy().to(device)
        session = Session(policy, 4)
        session.act(obs[0])
        session.reset(torch.tensor([False, True, False, True], device=device))
        session.act(obs[1, [2, 0]], rows=[2, 0])
        other = Session(policy, 4, seed=1)
        other.set_memory(session.get_memory())
        assert other.get_memory()["first"].tolist() == [False, True, False, True]
        other.act(obs[2, [3]], rows=torch.tensor([3], device=device))
        memories.append(other.get_memory())
    here, far = (tree.to({name: one[name] for name in ("state", "first")}, "cpu") for one in memories)
    assert here["first"].tolist() == far["first"].tolist() == [False, True, False, False]
    assert_near(far["state"], here["state"], 1e-4)
    with pytest.raises(StateError, match="of another kind of device"):
        other.set_memory(memories[0])


@pytest.mark.slow
def test_a_cue_over_a_thousand_steps_is_remembered():
    """S004-17: with the task's preset, every answer of 200 episodes but two at most."""
    agent = rc.train("delayed-cue", env_kwargs={"cues": 4, "horizon": 1000}, device="cuda", progress=False)
    assert agent.evaluate(200, num_envs=200).mean >= 0.99
