"""Actors on the CPU in processes of their own, learners on the GPU."""

from __future__ import annotations

import pytest
import torch

import recollect as rc

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def train(task="delayed-cue", **more):
    settings = {"num_envs": 8, "rollout": 32, "chunk": 16, "steps": 256 * 6, "progress": False, "threads": 1}
    rows: list[dict[str, float]] = []
    keep = [lambda _, metrics: rows.append(metrics)]
    agent = rc.train(task, device="cuda", callbacks=keep, **settings | more)
    weights = {name: value.detach().cpu().clone() for name, value in agent.policy.state_dict().items()}
    places = {parameter.device.type for parameter in agent.policy.parameters()}
    agent.close()
    assert places == {"cuda"}
    return weights, rows


@pytest.mark.parametrize("algo", ["ppo", "impala"])
@pytest.mark.parametrize("mode", ["lockstep", "async"])
def test_actors_on_the_cpu_feed_a_learner_on_the_gpu(algo, mode):
    """M, S003-12: what the GPU recomputes is what the CPU recorded, within the stated tolerance."""
    _, rows = train(runtime="processes", actors=2, mode=mode, algo=algo)
    checked = [row["deviation/log_prob"] for row in rows if "deviation/log_prob" in row]
    assert checked
    assert max(checked) < 1e-4
    assert rows[-1]["steps"] >= 256 * 6


@pytest.mark.parametrize("task", ["delayed-cue", "position-cartpole"])
def test_two_learners_on_one_gpu_are_one(task):
    """S002-15, S001-20: gradients summed, and statistics merged, over two learners that share a GPU."""
    (one, _), (two, _) = train(task), train(task, learners=2)
    assert one["obs_norm.scalings.obs.count"] == two["obs_norm.scalings.obs.count"] == 256 * 6
    for name, value in one.items():
        assert torch.allclose(value, two[name], rtol=1e-3, atol=1e-4), name
