"""On a GPU: nothing makes the host wait, all can be recorded in a CUDA graph, and numbers are the CPU's.

Torch itself raises where the host waits (``set_sync_debug_mode``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym_spaces

from recollect.base import tree
from recollect.config.policy import EncoderConfig
from recollect.experience.chunks import make_chunks
from recollect.experience.returns import gae, vtrace
from recollect.experience.rollout import Rollout
from recollect.learning import auxiliary_loss, diagnostics
from recollect.learning.refresh_rollout import refresh
from recollect.learning.regularise_weights import Origin
from recollect.policy.policy import Policy
from recollect.training.episodes import EpisodeTracker
from tests.learning.test_captured_algos import NEXT_OBS
from tests.policy.test_heads import SPACES
from tests.support import dtypes
from tests.support.captured import (
    BURN_IN,
    CHUNK,
    FLOATS,
    KINDS,
    B,
    T,
    assert_same,
    draw,
    make_policy,
    make_rollout,
)
from tests.support.recorded import recorded, silence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def replayed(fn: Callable[[], Any]) -> Any:
    """What ``fn`` returns: called twice, the second time without a wait, then recorded and replayed."""
    graph, found = recorded(fn, is_silent=True)
    graph.replay()
    torch.cuda.synchronize()
    return tree.to(found, "cpu")


@pytest.mark.parametrize("kind", KINDS)
def test_from_a_rollout_to_sequences(kind):
    """S002-14: targets, gauges and chunks with burn-in."""
    policy = make_policy()
    rollout = make_rollout(policy, kind)

    def made(rollout: Rollout, policy: Policy) -> dict[str, Any]:
        given = {name: getattr(rollout, name) for name in ("reward", "terminated", "truncated", "valid")}
        given |= {"final_value": rollout.final_value, "bootstrap": rollout.bootstrap}
        given |= {"value": rollout.record["value"], "gamma": 0.9, "gae_lambda": 0.8}
        advantage, returns = gae(**given)
        traced = vtrace(log_ratio=torch.zeros_like(advantage), **given)
        chunks = make_chunks(rollout, CHUNK, {"advantage": advantage, "return": returns}, BURN_IN)
        assert chunks.prefix is not None
        described = diagnostics.describe(rollout, advantage, returns)
        described.pop("valid", None)
        return {
            "traced": traced,
            "described": described,
            "norms": diagnostics.state_norms(rollout),
            "staleness": diagnostics.staleness(policy, rollout),
            "finite": diagnostics.rollout_is_finite(rollout),
            "chunks": (chunks.obs, chunks.first, chunks.action, chunks.valid, chunks.data, chunks.state),
            "prefix": (chunks.prefix.obs, chunks.prefix.state, chunks.prefix.exists),
        }

    want = made(rollout, policy)
    far, policy = rollout.to("cuda"), policy.cuda()
    assert_same(replayed(lambda: made(far, policy)), want, rtol=1e-4)


def test_statistics_move_in_place():
    """S002-14: normalisers of observations and values, recorded."""
    policy = make_policy()
    rollout = make_rollout(policy, "fillers")
    twin = make_policy()

    def moved(policy: Policy, rollout: Rollout) -> dict[str, Any]:
        assert policy.obs_norm is not None
        assert policy.value_norm is not None
        scale, shift = policy.value_norm.update(rollout.reward, policy.critic, rollout.valid)
        seen = tree.index(rollout.obs, slice(T))
        policy.obs_norm.update(seen, rollout.valid)
        scaled = policy.obs_norm(seen).masked_fill(~rollout.valid.unsqueeze(2), 0)
        return {"scale": scale, "shift": shift, "scaled": scaled, "critic": policy.critic.weight.detach()}

    for _ in range(3):  # twice as it is, once recorded and replayed
        want = moved(twin, rollout)
    far, policy = rollout.to("cuda"), policy.cuda()
    got = replayed(lambda: moved(policy, far))
    assert_same(got, want, rtol=1e-4)
    assert_same(tree.to(dict(policy.named_buffers()), "cpu"), dict(twin.named_buffers()), rtol=1e-5)


def test_refreshed_without_a_wait():
    """S002-14: values at cuts, at whatever steps those are."""
    policy = make_policy()
    rollout = make_rollout(policy, "all valid")
    names = ("record", "final_value", "bootstrap", "states")
    want = refresh(policy, rollout)
    far, policy = rollout.to("cuda"), policy.cuda()

    def made() -> dict[str, Any]:
        found = refresh(policy, far)
        return {name: getattr(found, name) for name in names}

    assert_same(replayed(made), {name: getattr(want, name) for name in names}, rtol=1e-4)


def test_the_next_observation_and_the_start():
    """S002-14: targets of every kind of leaf, and weights held near their start."""
    policy = make_policy(NEXT_OBS)
    predictor = auxiliary_loss.NextObs(policy, 0)
    rollout = make_rollout(policy, "fillers")
    y = torch.randn(CHUNK, 4 * B, policy.core.output_size)

    def made(
        policy: Policy, predictor: auxiliary_loss.NextObs, rollout: Rollout, y: torch.Tensor, origin: Origin
    ):
        chunks = make_chunks(rollout, CHUNK, predictor.targets(policy, rollout))
        loss = predictor.loss(y, chunks, chunks.data[auxiliary_loss.KNOWN].sum().clamp(min=1))
        pull = origin.squared_distance()
        grads = torch.autograd.grad(loss + 0 * pull, list(predictor.parameters()))
        return {"loss": loss.detach(), "grads": grads, "pull": pull.detach(), "clipped": origin.clip_(2.0)}

    want = made(policy, predictor, rollout, y, Origin(policy))
    far, policy, predictor = rollout.to("cuda"), policy.cuda(), predictor.cuda()
    origin, y = Origin(policy), y.cuda()
    assert_same(replayed(lambda: made(policy, predictor, far, y, origin)), want, rtol=1e-4)


@pytest.mark.parametrize("name", SPACES)
def test_any_action_is_chosen_and_evaluated_without_a_wait(name):
    """S002-14: sampling by a generator, log-probs, entropies and their gradients."""
    policy = make_policy(actions=SPACES[name])
    torch.manual_seed(1)
    obs, first = draw(FLOATS, (4, 6)), torch.rand(4, 6) < 0.3
    acted, _ = policy.act(obs[0], policy.initial_state(6), first[0])
    action = tree.map(lambda leaf: leaf.expand(4, *leaf.shape).clone(), acted.action)
    parameters = list(policy.parameters())

    def evaluated(obs, action, state, first, generator):
        chosen, _ = policy.act(obs[0], state, first[0], generator)
        policy.to_env(chosen.action)
        found = policy.evaluate_actions(obs, action, state, first)
        total = found[0].sum() + found[1].sum() + found[2].sum()
        grads = torch.autograd.grad(total, parameters, materialize_grads=True, allow_unused=True)
        return {"found": tuple(one.detach() for one in found), "grads": grads}

    want = evaluated(obs, action, policy.initial_state(6), first, torch.Generator())
    policy = policy.cuda()
    parameters = list(policy.parameters())
    generator = torch.Generator("cuda")
    given = (obs.cuda(), tree.to(action, "cuda"), policy.initial_state(6), first.cuda(), generator)
    evaluated(*given)
    with silence():
        got = evaluated(*given)
    assert_same(tree.to(got, "cpu"), want, rtol=1e-3)


def test_episodes_of_a_gpu():
    """S002-14: the same episodes, in the same order, whichever device has the rollouts."""
    policy = make_policy(FLOATS, gym_spaces.Discrete(2))
    here, far = EpisodeTracker(B), EpisodeTracker(B)
    for seed in range(4):
        rollout = make_rollout(policy, KINDS[seed % 3], seed)
        rollout.reward.nan_to_num_().round_()
        want, got = here.add(rollout), far.add(rollout.to("cuda"))
        assert np.array_equal(got.returns, want.returns)
        assert np.array_equal(got.lengths, want.lengths)
        assert got.steps == want.steps
    for name, value in here.snapshot().items():
        assert np.array_equal(far.snapshot()[name], value)


@pytest.mark.parametrize("own", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("core", ["lstm", "gru", "mamba"])
@pytest.mark.parametrize("algo", dtypes.CONFIGS)
def test_ratios_targets_and_losses_are_float32(algo, core, own):
    """S001-22: whatever the network computes in, also inside of somebody's own autocast."""
    kind: dict[str, Any] = {"core": {"name": core, "hidden": 32}, "encoder": EncoderConfig(hidden=(32, 32))}
    rollout = make_rollout(make_policy(**kind), "all valid").to("cuda")
    policy = make_policy(**kind | {"precision": "bf16"}).cuda()
    with torch.autocast("cuda", torch.bfloat16, enabled=own), policy.computing():
        dtypes.assert_single(policy, rollout, algo)
