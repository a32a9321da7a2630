"""Regularisers, the prediction of observations and recomputation on the path of a GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from recollect.base import tree
from recollect.experience.chunks import make_chunks
from recollect.learning import auxiliary_loss, recompute_activations
from recollect.learning.regularise_weights import Origin
from tests.support.captured import (
    CHUNK,
    FLOATS,
    B,
    Settled,
    assert_same,
    every_kind,
    make_policy,
    make_rollout,
)
from tests.support.token_worlds import token_space

NEXT_OBS = gym_spaces.Dict(
    number=FLOATS,
    kind=gym_spaces.Discrete(4, start=2),
    kinds=gym_spaces.MultiDiscrete([2, 3]),
    bits=gym_spaces.MultiBinary(3),
    image=gym_spaces.Box(0, 255, (12, 12, 3), np.uint8),
    tokens=token_space(),
)


@every_kind
def test_the_next_observation_is_predicted_without_a_read(kind, unread):
    """S002-14: targets, loss and gradients, for every kind of leaf."""
    policy = make_policy(NEXT_OBS, gym_spaces.Dict(a=gym_spaces.Discrete(2), b=gym_spaces.Box(-1, 1, (2,))))
    predictor = auxiliary_loss.NextObs(policy, 0)
    rollout = make_rollout(policy, kind)
    y = torch.randn(CHUNK, 4 * B, policy.core.output_size)

    def learned():
        predictor.zero_grad()
        targets = predictor.targets(policy, rollout)
        chunks = make_chunks(rollout, CHUNK, targets)
        loss = predictor.loss(y, chunks, chunks.data[auxiliary_loss.KNOWN].sum().clamp(min=1))
        loss.backward()
        return {"targets": targets, "loss": loss.detach(), "grads": tuple(grads(predictor))}

    want = learned()
    with unread():
        learned()
        with Settled():
            got = learned()
    assert_same(got, want)


def grads(module: torch.nn.Module) -> list[Tensor]:
    return [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in module.parameters()]


def test_weights_are_held_without_a_read(unread):
    """S002-14: clipping, and the pull towards the start."""
    policy, other = make_policy(), make_policy()
    origins = Origin(policy), Origin(other)
    found = []
    for network, origin, is_unread in ((policy, origins[0], True), (other, origins[1], False)):
        for parameter in network.parameters():
            parameter.data += 0.4

        def held(origin=origin):
            distance = origin.squared_distance()
            distance.backward()
            return {"distance": distance.detach(), "clipped": origin.clip_(1.1)}

        if is_unread:
            with unread(), Settled():
                found.append(held())
        else:
            found.append(held())
    assert_same(found[0], found[1], rtol=0)
    assert 0 < found[0]["clipped"] < 1
    assert_same(tuple(grads(policy)), tuple(grads(other)), rtol=0)
    assert_same(tuple(policy.parameters()), tuple(other.parameters()), rtol=0)


def test_activations_are_recomputed_without_a_read(unread):
    """S002-14: log-probs, values and gradients."""
    policy = make_policy()
    chunks = make_chunks(make_rollout(policy, "fillers"), CHUNK, {})
    policy.double()
    chunks = replace(chunks, state=tree.map(lambda leaf: leaf.double(), chunks.state))

    def evaluated():
        policy.zero_grad()
        found = recompute_activations.evaluate(policy, chunks, True)
        sum(one.sum() for one in found).backward()
        return tuple(one.detach() for one in found), tuple(grads(policy))

    want = evaluated()
    with unread():
        evaluated()
        with Settled():
            got = evaluated()
    assert_same(got, want, rtol=1e-9)
