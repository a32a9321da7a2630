"""Minibatches learned from in parts: the same update as in one piece, in less memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import ConfigError
from recollect.experience.chunks import shares
from recollect.experience.rollout import Rollout
from recollect.learning.learner import Learner
from tests.support.helpers import ArenaWorld, ScriptedEnv, TensorWorld, as_rows, keep
from tests.support.peak import Peak
from tests.support.ppo_setup import gradients, learner, nudge, same, weights

WORLDS = {
    "tensors": lambda: TensorWorld(4),
    "arena": lambda: ArenaWorld(3),  # dead agents: parts with few valid steps, or none
    "fillers": lambda: as_rows([ScriptedEnv] * 4, "next_step"),
}


def double(ppo: Learner, rollout: Rollout) -> Rollout:
    """Policy and rollout in float64, in place."""
    ppo.policy.double()
    ppo.optimizer.state.clear()
    for name in ("obs", "reward", "final_value", "bootstrap", "states", "record"):
        value = getattr(rollout, name)
        setattr(rollout, name, _double(value))
    if rollout.finals is not None:
        rollout.finals.obs = _double(rollout.finals.obs)
    return rollout


def _double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {key: _double(part) for key, part in value.items()}
    return tuple(_double(part) for part in value)


def one_backward(dtype: torch.dtype, accumulate: int, **settings: Any) -> tuple[dict, dict]:
    """The gradient and the numbers of a whole rollout in one minibatch, after the weights have moved."""
    ppo, actor = learner(minibatches=1, accumulate=accumulate, **settings)
    rollout = keep(actor.collect())
    if dtype == torch.float64:
        double(ppo, rollout)
    _, data, _ = ppo.targets(rollout)
    sequences = ppo.sequences(rollout, data)
    nudge(ppo)
    ppo.optimizer.zero_grad()
    order = torch.randperm(sequences.count, generator=torch.Generator().manual_seed(3))
    stats = ppo.backward(sequences, order, 0.1)
    return gradients(ppo), stats


@pytest.mark.parametrize("batching", ["chunks", "episodes"])
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-6)])
def test_parts_are_the_whole(world, batching, dtype, tolerance):
    """S001-3, S002-22: unequal parts, padding and invalid steps in them: one gradient, one KL, one loss."""
    settings = {"env": WORLDS[world](), "value_clip": 0.2, "batching": batching}
    whole, numbers = one_backward(dtype, 1, **settings)
    for accumulate in (2, 3):
        settings["env"] = WORLDS[world]()
        parts, again = one_backward(dtype, accumulate, **settings)
        for name, grad in whole.items():
            scale = max(1.0, float(grad.abs().max()))
            torch.testing.assert_close(parts[name], grad, rtol=0, atol=tolerance * scale)
        assert int(again.pop("passes")) == accumulate
        assert again.keys() == numbers.keys()
        for name in numbers.keys() - {"padding"}:  # smaller batches of episodes are packed otherwise
            torch.testing.assert_close(again[name], numbers[name], rtol=10 * tolerance, atol=10 * tolerance)
    assert max(float(grad.abs().max()) for grad in whole.values()) > 1e-3


def test_the_parts_are_unequal():
    """The comparison above can fail: parts that divide by their own counts give another gradient."""
    ppo, actor = learner(ArenaWorld(3), minibatches=1, accumulate=3)
    sequences = ppo.sequences(
        actor.collect(), {"advantage": torch.zeros(23, 6), "return": torch.zeros(23, 6)}
    )
    counts = [int(sequences.valid_steps(part)) for part in shares(torch.arange(sequences.count), 3)]
    assert len(set(counts)) == 3
    assert sum(counts) == int(sequences.valid.sum())


@pytest.mark.parametrize("core", [LSTMConfig(hidden=12), GRUConfig(hidden=12), "none"], ids=str)
def test_an_update_is_the_same_in_parts(core):
    """S001-3: several updates of two epochs end at the same weights but for rounding."""
    found = []
    for accumulate in (1, 3):
        ppo, actor = learner(core=core, accumulate=accumulate, learning_rate=1e-3)
        metrics = [ppo.update(actor.collect()) for _ in range(2)]
        found.append((weights(ppo), metrics))
        assert all(m["deviation/log_prob"] <= 1e-5 for m in metrics), "M"
    (plain, one), (parts, two) = found
    for name, value in plain.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-3, atol=1e-4)
    assert two[1]["passes"] == 3
    assert "passes" not in one[1]
    assert two[1]["minibatches"] == one[1]["minibatches"] == 6
    assert two[0]["kl"] == pytest.approx(one[0]["kl"], rel=1e-3, abs=1e-6)
    assert two[0]["grad_norm"] == pytest.approx(one[0]["grad_norm"], rel=1e-4)


def test_gradients_are_zeroed_once_for_each_step():
    """S001-3: left-over gradients have no effect; parts do not zero what the parts before have left."""
    clean, actor = learner(accumulate=2)
    rollout = keep(actor.collect())
    dirty, _ = learner(accumulate=2)
    for parameter in dirty.policy.parameters():
        parameter.grad = torch.full_like(parameter, 1e3)
    calls = []
    zero, step = dirty.optimizer.zero_grad, dirty.optimizer.step
    dirty.optimizer.zero_grad = lambda **kw: (calls.append("zero"), zero(**kw))
    dirty.optimizer.step = lambda *a: (calls.append("step"), step(*a))
    clean.update(rollout)
    dirty.update(rollout)
    assert calls == ["zero", "step"] * 6
    assert same(weights(clean), weights(dirty))


def test_the_kl_of_the_whole_minibatch_ends_an_update():
    """S001-18: not that of a part, and without the optimiser step of that minibatch."""
    counts = []
    for accumulate in (1, 4):
        settings = {"learning_rate": 1e-2, "epochs": 4, "target_kl": 1e-3, "accumulate": accumulate}
        ppo, actor = learner(**settings)
        metrics = ppo.update(actor.collect())
        counts.append((metrics["minibatches"], round(metrics["kl_last"], 5)))
        assert metrics["kl_last"] > 1e-3
    assert counts[0] == counts[1]
    assert counts[0][0] < 12


def test_parts_take_less_memory():
    """S002-22: with four parts the activations of one at a time are alive."""
    peaks = []
    for accumulate in (1, 4):
        ppo, actor = learner(TensorWorld(32), LSTMConfig(hidden=32), minibatches=1, accumulate=accumulate)
        _, data, _ = ppo.targets(rollout := actor.collect())
        sequences = ppo.sequences(rollout, data)
        with Peak() as peak:
            ppo.backward(sequences, torch.arange(sequences.count), 0.1)
        peaks.append(peak.most)
    assert peaks[1] < 0.5 * peaks[0]


def test_more_parts_than_chunks_are_refused():
    """S000-26: said before anything runs, with what would do."""
    learner(minibatches=4, accumulate=4)  # 16 chunks
    with pytest.raises(ConfigError, match=r"16 chunks in 4 minibatches are only 4 .* lower accumulate to 4"):
        learner(minibatches=4, accumulate=5)
    with pytest.raises(ConfigError, match=r"4 chunks in 2 minibatches are only 2"):
        learner(minibatches=2, accumulate=3, batching="episodes")
    with pytest.raises(ConfigError, match="accumulate = 0: it must be at least 1"):
        learner(accumulate=0)
