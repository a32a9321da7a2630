"""Weights near their start: clipped to the bounds of their initialisation, or pulled back by L2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import recollect as rc
from recollect.envs import make_env
from recollect.errors import ConfigError
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.learning.regularise_weights import Origin, anchored, bounds
from recollect.training.run_folder import Run
from tests.support.helpers import keep, make_policy
from tests.support.ppo_setup import gradients, learner, nudge, run, same, weights
from tests.support.resumed import SMALL, Stop, assert_equal, rows, twice
from tests.support.resumed import weights as agent_weights

ON: dict[str, Any] = {"weight_clip": 1.0, "l2_init": 1e-3}
QUICK: dict[str, Any] = SMALL | {"epochs": 2, "minibatches": 2}
NET: dict[str, Any] = {"core": rc.LSTMConfig(hidden=8)}


class Layers(nn.Module):
    """One of each kind of parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(16, 3)
        self.small = nn.Linear(4, 2)
        self.conv = nn.Conv2d(2, 5, 3)
        self.norm = nn.LayerNorm(4)
        self.alone = nn.ParameterList([nn.Parameter(torch.zeros(3)), nn.Parameter(torch.full((2,), -0.5))])
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        with torch.no_grad():
            self.wide.weight.fill_(0.7)
            self.wide.bias.zero_()
            self.small.weight.fill_(0.001)
            self.small.bias.fill_(-3.0)
            self.conv.weight.fill_(0.0)
            self.conv.bias.fill_(0.0)


def test_the_bounds_by_hand():
    """S002-24: 1 / sqrt(fan-in) or what was there; biases as their layer; 1 where nothing is known."""
    layers = Layers()
    found = bounds(layers, Origin(layers).start)
    expected = {
        "wide.weight": 0.7,
        "wide.bias": 0.7,
        "small.weight": 0.5,
        "small.bias": 3.0,
        "conv.weight": 18**-0.5,
        "conv.bias": 18**-0.5,
        "norm.weight": 1.0,
        "norm.bias": 1.0,
        "alone.0": 1.0,  # a vector of zeros without a matrix beside it
        "alone.1": 0.5,
    }
    assert found == pytest.approx(expected)


def test_clipping_by_hand():
    """S002-24: what is outside of +- kappa s comes to the limit, all else stays; the share is told."""
    layers = Layers()
    origin = Origin(layers)
    before = [p.clone() for p in layers.parameters()]
    assert float(origin.clip_(1.0)) == 0
    assert all(torch.equal(a, b) for a, b in zip(before, layers.parameters())), "the start is inside"
    with torch.no_grad():
        layers.small.weight[0, 0], layers.small.weight[1, 1], layers.small.weight[0, 1] = 1.2, -9.0, 0.9
        layers.frozen.weight.fill_(100.0)
    count = sum(p.numel() for p in layers.parameters() if p.requires_grad)
    assert float(origin.clip_(2.0)) == pytest.approx(2 / count)
    assert layers.small.weight[0, 0] == 1.0
    assert layers.small.weight[1, 1] == -1.0
    assert layers.small.weight[0, 1].item() == pytest.approx(0.9)
    assert (layers.frozen.weight == 100).all()


def test_an_update_keeps_the_weights_inside():
    """S002-24: after every optimiser step; without the clip some leave."""
    free, _ = run(3, learning_rate=3e-2)
    ppo, actor = learner(learning_rate=3e-2, weight_clip=1.0)
    limits = bounds(ppo.policy, Origin(ppo.policy).start)
    outside = []
    step = ppo.optimizer.step
    ppo.optimizer.step = lambda *given: (outside.append(_outside(ppo, limits)), step(*given))
    metrics = [ppo.update(actor.collect(), i / 3) for i in range(3)]
    outside.append(_outside(ppo, limits))
    assert _outside(free, limits) > 0
    assert max(outside) == 0
    assert all(0 < m["weights/clipped"] < 0.5 for m in metrics)
    assert all(m["deviation/log_prob"] <= 1e-5 for m in metrics), "M"
    assert not same(weights(free), weights(ppo))


def _outside(ppo: Any, limits: dict[str, float]) -> int:
    named = dict(ppo.policy.named_parameters())
    return sum(int((named[name].abs() > limit * (1 + 1e-6)).sum()) for name, limit in limits.items())


def test_a_critic_in_moving_units_is_left_alone():
    """S002-24, S001-6: PopArt rescales the last layer; to clip or pull it would throw its values away."""
    for normalised in (True, False):
        policy = make_policy(make_env("t-maze", 2), normalise_value=normalised)
        origin = Origin(policy)
        assert ("critic.weight" in origin.start) != normalised
        with torch.no_grad():
            policy.critic.bias.fill_(-500.0)
        origin.clip_(2.0)
        assert (policy.critic.bias.item() == -500.0) == normalised
        assert (origin.squared_distance().item() < 1e-6) == normalised


def test_l2_is_part_of_the_gradient():
    """S002-24: 2 l2_init (w - w0) beside the gradient of the loss, once a minibatch however many parts."""
    found = []
    for settings in ({}, {"l2_init": 0.3}, {"l2_init": 0.3, "accumulate": 3}):
        ppo, actor = learner(minibatches=1, **settings)
        ppo.origin = Origin(ppo.policy)
        rollout = keep(actor.collect())
        _, data, _ = ppo.targets(rollout)
        nudge(ppo)
        ppo.optimizer.zero_grad()
        sequences = ppo.sequences(rollout, data)
        stats = ppo.backward(sequences, torch.arange(sequences.count), 0.1)
        found.append((gradients(ppo), stats))
    (plain, _), (pulled, stats), (parts, _) = found
    distance = 0.0
    now = dict(ppo.policy.named_parameters())
    for name, start in ppo.origin.start.items():
        gap = now[name].detach() - start
        distance += float(gap.square().sum())
        torch.testing.assert_close(pulled[name], plain[name] + 0.6 * gap, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(parts[name], pulled[name], rtol=1e-4, atol=1e-5)
    assert float(stats["loss/l2_init"]) == pytest.approx(0.3 * distance, rel=1e-4)
    assert distance > 1


def test_l2_keeps_the_weights_near():
    """S002-24: the distance is told, and grows less the stronger the pull."""
    distances = []
    for l2_init in (1e-6, 1e-2, 1.0):
        _, metrics = run(3, learning_rate=1e-2, l2_init=l2_init)
        distances.append([m["weights/distance"] for m in metrics])
        assert all(m["loss/l2_init"] >= 0 for m in metrics)
    assert distances[0][0] < distances[0][2]
    assert distances[0][2] > distances[1][2] > distances[2][2] > 0


def test_off_is_off():
    """S000-26: nothing is kept, measured or changed, and what cannot be meant is refused."""
    ppo, metrics = run(1)
    assert ppo.origin is None
    assert not [name for name in metrics[0] if name.startswith("weights/") or name == "loss/l2_init"]
    assert not [name for name in learner_tensors(ppo) if name.endswith(":start")]
    with pytest.raises(ConfigError, match=r"weight_clip = 0\.5: .* use 1 or more"):
        learner(weight_clip=0.5)
    with pytest.raises(ConfigError, match="l2_init = -1: it must not be negative"):
        learner(l2_init=-1)


def test_the_start_is_saved_and_loaded():
    """S002-24: bit for bit, from the first update on; before it there is nothing to save."""
    ppo, actor = learner(**ON)
    initial = {name: p.detach().clone() for name, p in anchored(ppo.policy).items()}
    assert ppo.origin is None
    ppo.update(actor.collect())
    saved = learner_tensors(ppo)
    other, _ = learner(seed=7, **ON)
    load_learner(other, Learned(updates=1, optimizer=saved))
    assert_equal(other.origin.start, initial)
    assert other.origin._bounds == ppo.origin._bounds
    name = "core.rnn.weight_ih_l0"
    assert other.origin.start[name].data_ptr() != saved[f"{name}:start"].data_ptr()
    with pytest.raises(ConfigError, match=rf"initial weights do not fit this policy: {name}"):
        load_learner(other, Learned(optimizer=saved | {f"{name}:start": torch.zeros(1, 3)}))


def test_a_resumed_run_goes_on_bit_for_bit(tmp_path):
    """S002-24, S002-7: weights, metrics and the start itself."""
    whole, halves = twice(tmp_path, "delayed-cue", QUICK | NET | ON | {"learning_rate": 1e-2})
    assert_equal(agent_weights(whole), agent_weights(halves))
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")
    assert_equal(*(agent._trainer.learner.origin.start for agent in (whole, halves)))
    assert max(row["weights/clipped"] for row in rows(tmp_path / "whole")) > 0


def test_a_resume_that_forgets_the_start_is_found(tmp_path, monkeypatch):
    """The comparison above can fail."""
    monkeypatch.setattr(Origin, "tensors", lambda self: {})
    whole, halves = twice(tmp_path, "delayed-cue", QUICK | NET | ON | {"learning_rate": 1e-2})
    assert any(not torch.equal(a, b) for a, b in zip(*(agent_weights(x).values() for x in (whole, halves))))


def test_fine_tuning_starts_at_the_loaded_weights(tmp_path):
    """S002-24: ``init_from`` is a new training: its start are the weights that it was given."""
    path = tmp_path / "run"
    first = rc.train("delayed-cue", steps=96, run=str(path), **QUICK, **NET, **ON)
    plain = {name: value for name, value in QUICK.items() if name != "encoder"}
    again = rc.train("delayed-cue", steps=48, init_from=str(path), **plain, **ON)
    start = again._trainer.learner.origin.start
    loaded = dict(rc.load(path, checkpoint="last").policy.named_parameters())
    assert all(torch.equal(value, loaded[name]) for name, value in start.items())
    assert any(
        not torch.equal(value, first._trainer.learner.origin.start[name]) for name, value in start.items()
    )


def test_a_run_of_before_trains_on_from_where_it_is(tmp_path):
    """A checkpoint without a start, as before the first update, begins with the weights in it."""
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), callbacks=[Stop(48)], **QUICK, **NET, **ON)
    opening = Run(path).checkpoints()[0]
    assert int(opening.name) == 0
    again = rc.resume(path, checkpoint=0, progress=False)
    start = again._trainer.learner.origin.start
    loaded = dict(rc.load(opening).policy.named_parameters())
    assert all(torch.equal(value, loaded[name]) for name, value in start.items())
