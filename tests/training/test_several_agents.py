"""PettingZoo envs whose agents die and appear late, trained with one policy for all agents."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import recollect as rc
from recollect.cores import GRUConfig
from tests.support.grouped_worlds import EARLY, LATE, Camp, Lives

pytestmark = pytest.mark.usefixtures("warm_children")

LAYOUTS: dict[str, dict[str, Any]] = {
    "env workers": {"env_workers": 2},
    "processes": {"runtime": "processes"},
}


def early() -> Camp:
    return Camp(EARLY)


def late() -> Camp:
    return Camp(LATE)


def trained(env: Any, algo: str, **settings: Any) -> tuple[dict[str, torch.Tensor], dict[str, float]]:
    """Weights and last metrics after four updates of two actors with two slots each."""
    small = {"rollout": 8, "chunk": 4, "minibatches": 2, "core": GRUConfig(hidden=8), "steps": 4 * 8 * 12}
    given = small | {"num_envs": 4, "actors": 2, "normalise_observations": True, "algo": algo} | settings
    agent = rc.train(env, progress=False, **given)
    with agent:
        assert agent.steps < given["steps"] + 8 * 12  # the dead make no steps
        weights = {name: leaf.clone() for name, leaf in agent.policy.state_dict().items()}
        return weights, {"steps": float(agent.steps)}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_every_runtime_gives_the_same_bits(algo: str, layout: str):
    """S001-29, S002-2: agents die and appear late in lockstep, inline, in env workers and in processes."""
    for env in (early, late):
        weights, numbers = trained(env, algo)
        again, others = trained(env, algo, **LAYOUTS[layout])
        assert numbers == others
        assert weights.keys() == again.keys()
        for name, leaf in weights.items():
            assert torch.equal(again[name], leaf), name


@pytest.mark.parametrize("lives", [EARLY, LATE], ids=["early", "late"])
def test_only_the_living_are_counted(lives: Lives):
    """S001-29: steps, episodes, their lengths, padding and infos of rollouts that hold two whole episodes."""
    found: list[dict[str, float]] = []
    spans = [last - enters for enters, last, _ in lives.values()]
    whole = max(last for _, last, _ in lives.values())
    each = 2 * 2 * sum(spans)  # slots, episodes
    size = {"steps": 2 * each, "num_envs": 2, "rollout": 2 * whole, "chunk": whole, "minibatches": 1}
    agent = rc.train(
        lambda: Camp(lives),
        progress=False,
        callbacks=[lambda _, metrics: found.append(dict(metrics))],
        **size,
    )
    agent.close()
    assert agent.steps == 2 * each
    assert len(found) == 2
    last = found[-1]
    assert last["episodes"] == 2 * 2 * 2 * 3
    assert last["length"] == pytest.approx(sum(spans) / 3)
    assert last["padding"] == pytest.approx(1 - sum(spans) / (3 * whole))
    assert last["info/step"] == pytest.approx((whole + 1) / 2)
