"""The engine on a CUDA device: the same code, the same numbers within float32 rounding."""

from __future__ import annotations

import pytest
import torch

import recollect as rc
from recollect import tree
from recollect.actor import Actor
from recollect.algos.ppo import PPO, PPOConfig
from recollect.envs.gym import make_env
from recollect.rollout import make_chunks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

CORES = ["lstm", "gru", rc.LSTMConfig(hidden=32, layers=2, learned_initial_state=True), "none"]


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
    learner = PPO(policy, config)
    data, _ = learner._targets(rollout)
    chunks = make_chunks(rollout, 7, data)
    found = {}
    for device in ("cpu", "cuda"):
        policy = policy.to(device)
        batch = [_to(part, device) for part in (chunks.obs, chunks.action, chunks.state, chunks.first)]
        log_prob, entropy, value = policy.evaluate_actions(*batch)
        loss = (log_prob + entropy + value).mean()
        grads = torch.autograd.grad(loss, list(policy.parameters()), allow_unused=True)
        found[device] = [t.detach().cpu() for t in (log_prob, entropy, value, *grads) if t is not None]
    for a, b in zip(*found.values(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


def _to(value, device):
    from recollect import tree

    return tree.to(value, device)


def test_a_run_goes_on_where_it_was(tmp_path):
    """S004-20, S002-14: memories, env and random streams come back to the device; on a CPU, new episodes."""
    path = tmp_path / "run"
    settings = {"num_envs": 16, "rollout": 16, "chunk": 8, "device": "cuda", "progress": False}
    stop = [lambda training, _: training.stop("half") if training.steps >= 512 else None]
    whole = rc.train("delayed-cue", steps=1024, run=str(tmp_path / "whole"), **settings)
    rc.train("delayed-cue", steps=1024, run=str(path), callbacks=stop, **settings)
    halves = rc.resume(path, progress=False)
    assert halves._trainer.is_exact
    assert all(leaf.is_cuda for leaf in tree.leaves(halves._trainer.crew.state))
    one, two = whole.policy.state_dict(), halves.policy.state_dict()
    assert all(torch.allclose(one[name].double(), two[name].double(), atol=1e-3) for name in one)
    assert [row["episodes"] for row in rc.Run(path).metrics()] == [
        row["episodes"] for row in rc.Run(tmp_path / "whole").metrics()
    ]
    moved = rc.resume(path, steps=256, device="cpu", progress=False)
    assert moved.steps == 1280
    assert not next(moved.policy.parameters()).is_cuda
