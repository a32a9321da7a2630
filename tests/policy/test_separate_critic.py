"""A critic with an encoder and a core of its own, and with keys that only it sees."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from recollect.base import tree
from recollect.config.core_choice import widened
from recollect.config.policy import PolicyConfig
from recollect.cores import LSTMConfig
from recollect.errors import ConfigError, StateError
from recollect.experience.rollout import Rollout
from recollect.policy.policy import Policy
from tests.learning.test_master import check
from tests.support.core_cases import CASES
from tests.support.helpers import GYM_WORLDS, make_actor, make_policy
from tests.support.own_head import QHead
from tests.support.secret_world import SEPARATE, secret_rows

T, ROWS = 23, 3
LSTM = LSTMConfig(hidden=16)
PLAIN: dict[str, Any] = {"normalise_observations": False, "normalise_value": False}


def separate(env: Any, core: Any = LSTM, **settings: Any) -> Policy:
    return make_policy(env, core, **SEPARATE | settings)


def recorded(policy: Policy, env: Any) -> Rollout:
    return make_actor(env, policy, rollout=T, chunk=7).collect()


@pytest.mark.parametrize("name", [name for name in CASES if name != "none"])
def test_every_core(name):
    """M, S004-1: acting equals learning, with resets and truncations in every place."""
    env = secret_rows()
    check(env, separate(env, widened(CASES[name], 16)), chunk=7)


@pytest.mark.parametrize("world", GYM_WORLDS)
@pytest.mark.parametrize("settings", [{}, {"critic": "memoryless"}, {"critic_obs": ()}], ids=str)
def test_every_autoreset_mode(settings, world):
    """M, S004-1: also for a critic without memory, and for one that sees no more than the actor."""
    env = secret_rows(world=world)
    check(env, separate(env, **settings), chunk=7)


def by_hand(policy: Policy, rollout: Rollout) -> dict[str, Tensor]:
    """Log-probs, values and final values from two networks that know nothing of each other."""
    trunk, rows = policy.critic_trunk, rollout.rows
    assert trunk is not None
    actor, critic = policy.core.initial_state(rows), trunk.core.initial_state(rows)
    log_probs, values, final = [], [], torch.zeros(T, rows)
    never = torch.zeros(rows, dtype=torch.bool)
    for t in range(T):
        obs, first = tree.index(rollout.obs, t), rollout.first[t]
        actor = tree.select(first, policy.core.initial_state(rows), actor)
        critic = tree.select(first, trunk.core.initial_state(rows), critic)
        y, actor = policy.core.step(policy.encoder({"seen": obs["seen"]}), actor, never)
        log_probs.append(policy.head(y).log_prob(rollout.action[t]))
        z, critic = trunk.core.step(trunk.encoder(obs), critic, never)
        values.append(policy.critic(z).squeeze(-1))
        for k in (rollout.finals.time == t).nonzero().flatten().tolist():
            row = int(rollout.finals.row[k])
            after = tree.index(critic, slice(row, row + 1))
            z, _ = trunk.core.step(
                trunk.encoder(tree.index(rollout.finals.obs, slice(k, k + 1))), after, never[:1]
            )
            final[t, row] = policy.critic(z)
    return {"log_prob": torch.stack(log_probs), "value": torch.stack(values), "final_value": final}


@torch.no_grad()
def test_each_network_has_its_own_memory():
    """S000-4, S002-21: the record is that of two networks, each with its own state, reset at ``first``."""
    env = secret_rows()
    policy = separate(env, **PLAIN)
    rollout = recorded(policy, env)
    truth = by_hand(policy, rollout)
    cut = rollout.truncated & ~rollout.terminated
    assert cut.any()
    assert rollout.first[1:].any()
    torch.testing.assert_close(rollout.record["log_prob"], truth["log_prob"], atol=1e-5, rtol=0)
    torch.testing.assert_close(rollout.record["value"], truth["value"], atol=1e-5, rtol=0)
    torch.testing.assert_close(rollout.final_value[cut], truth["final_value"][cut], atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_actor_does_not_see_the_critics_keys():
    """Its log-probs and actions are the same bits whatever stands there; values are not."""
    env = secret_rows()
    policy = separate(env)
    rollout = recorded(policy, env)
    policy.obs_norm.update(tree.index(rollout.obs, slice(T)), rollout.valid)
    obs = tree.index(rollout.obs, slice(T))
    garbage = obs | {"secret": torch.full_like(obs["secret"], torch.nan)}
    start, first = rollout.state_at(0), rollout.first[:T]
    (dist, value, _), (again, other, _) = (policy.unroll(seen, start, first) for seen in (obs, garbage))
    assert torch.equal(dist.log_probs, again.log_probs)
    assert not torch.equal(value, other)
    assert other.isnan().all(), "the critic sees it"
    here = tree.index(obs, 0)
    acted, state = policy.act(here, start, first[0], deterministic=True)
    actor = policy.actor_only()
    for seen in (here, {"seen": here["seen"]}, tree.index(garbage, 0)):
        alone, after = actor.act(seen, policy.actor_state(start), first[0], deterministic=True)
        assert torch.equal(alone.action, acted.action)
        assert all(map(torch.equal, tree.leaves(after), tree.leaves(state["actor"])))
        assert alone.record == {}


def moved(policy: Policy, loss: Tensor) -> set[str]:
    """The parts of the policy that have a gradient of ``loss``."""
    policy.zero_grad()
    loss.backward()
    return {n.split(".")[0] for n, p in policy.named_parameters() if p.grad is not None and p.grad.any()}


def test_no_gradient_crosses():
    """Log-probs move the actor's network alone, values the critic's."""
    env = secret_rows()
    policy = separate(env)
    rollout = recorded(policy, env)
    given = tree.index(rollout.obs, slice(T)), rollout.action, rollout.state_at(0), rollout.first[:T]
    log_prob, entropy, _ = policy.evaluate_actions(*given)
    assert moved(policy, log_prob.sum() + entropy.sum()) == {"encoder", "core", "head"}
    assert moved(policy, policy.evaluate_actions(*given)[2].sum()) == {"critic_trunk", "critic"}


def test_off_is_the_policy_as_it_was():
    """No new weight, and the actor begins with the same weights with and without a critic of its own."""
    env = secret_rows()
    shared, own = make_policy(env, LSTM), separate(env, critic_obs=())
    assert shared.actor_only() is shared
    assert not any("trunk" in name for name in shared.state_dict())
    for name, weight in shared.named_parameters():
        assert name.startswith("critic") or torch.equal(weight, own.get_parameter(name)), name


def test_the_actor_alone_shares_its_weights():
    policy = separate(secret_rows())
    actor = policy.actor_only()
    assert {name.split(".")[0] for name in actor.state_dict()} == {
        "encoder",
        "core",
        "head",
        "obs_norm",
        "value_norm",
    }
    with torch.no_grad():
        policy.head.linear.weight.fill_(3.0)
    assert (actor.head.linear.weight == 3).all()
    assert policy.critic_trunk is not None, "the policy itself is unchanged"
    assert list(actor.observation_space.spaces) == ["seen"]
    with pytest.raises(ConfigError, match="no critic"):
        actor.value({"seen": torch.zeros(2, 3)}, actor.initial_state(2), torch.ones(2, dtype=torch.bool))


@pytest.mark.parametrize("state", [None, (), {"actor": ()}], ids=str)
def test_a_state_without_both_parts_is_an_error(state):
    policy = separate(secret_rows())
    obs = {"secret": torch.zeros(2, 2), "seen": torch.zeros(2, 3)}
    with pytest.raises(StateError, match=r"actor and critic.*initial_state"):
        policy.act(obs, state, torch.ones(2, dtype=torch.bool))


BOX = spaces.Box(-1, 1, (2,), np.float32)
MASKED = spaces.Dict(action_mask=spaces.MultiBinary(2), seen=BOX)


@pytest.mark.parametrize(
    ("space", "settings", "words"),
    [
        (BOX, {"critic_obs": ("secret",)}, "Dict"),
        (spaces.Dict(seen=BOX), {"critic_obs": ("sen",)}, r"no key 'sen'.*'?seen"),
        (spaces.Dict(seen=BOX, other=BOX), {"critic_obs": ("seen", "other")}, "leaves nothing"),
        (MASKED, {"critic_obs": ("seen",)}, "leaves nothing"),
        (MASKED, {"critic_obs": ("action_mask",)}, "the actor needs action_mask"),
        (
            spaces.Dict(seen=BOX, other=BOX),
            {"critic": "shared", "critic_obs": ("seen",)},
            "critic='separate'",
        ),
    ],
    ids=["no dict", "no key", "nothing left", "only a mask left", "the mask", "shared"],
)
def test_mistakes(space, settings, words):
    with pytest.raises(ConfigError, match=f"critic_obs.*{words}"):
        PolicyConfig(**{"critic": "separate"} | settings).build(space, spaces.Discrete(2))


def test_a_head_without_a_critic_takes_none():
    with pytest.raises(ConfigError, match="leave critic out"):
        Policy(BOX, spaces.Discrete(2), PolicyConfig(critic="separate"), head=QHead)


def test_masks_reach_the_actor():
    """The key ``action_mask`` is the actor's, with and without a critic of its own."""
    space = spaces.Dict(action_mask=spaces.MultiBinary(2), secret=BOX, seen=BOX)
    policy = PolicyConfig(**SEPARATE).build(space, spaces.Discrete(2)).actor_only()
    obs = {"action_mask": torch.tensor([[0, 1]] * 9), "seen": torch.randn(9, 2)}
    acted, _ = policy.act(obs, policy.initial_state(9), torch.ones(9, dtype=torch.bool))
    assert (acted.action == 1).all()
