"""The policy: state in, state out, the same in acting and learning."""

from __future__ import annotations

import inspect

import gymnasium as gym
import pytest
import torch

from recollect.base import tree
from recollect.cores import GRUConfig, LSTMConfig
from recollect.cores.contract import Core
from recollect.errors import StateError
from recollect.policy.policy import Policy
from tests.support.helpers import LastSeen, ScriptedEnv, TensorWorld, as_rows, make_policy

CORES = {
    "lstm": LSTMConfig(hidden=8, layers=2),
    "gru": GRUConfig(hidden=8, layers=2),
    "custom": lambda size: LastSeen(size),
    "none": "none",
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def batch(rows: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 3), torch.zeros(rows, dtype=torch.bool)


@pytest.fixture(params=CORES)
def policy(request) -> Policy:
    return make_policy(TensorWorld(5), CORES[request.param])


def test_no_state_is_an_error(policy):
    """S004-8, S002-9: every way in refuses a missing state and says how to begin."""
    obs, first = batch()
    calls = [
        lambda: policy.act(obs, None, first),
        lambda: policy.value(obs, None, first),
        lambda: policy.unroll(obs[None], None, first[None]),
        lambda: policy.evaluate_actions(obs[None], torch.zeros(1, 5, dtype=torch.int64), None, first[None]),
        lambda: policy.unroll_with_states(obs[None], None, first[None], [0]),
    ]
    for call in calls:
        with pytest.raises(StateError, match=r"no state was given.*initial_state\(5\)"):
            call()


def test_wrong_states_are_errors(policy):
    """S000-12, S002-7: other rows, another size or another structure raise, never zeros instead."""
    if not policy.has_memory:
        pytest.skip("has no state to be wrong")
    obs, first = batch()
    with pytest.raises(StateError, match="has 4 rows, the input 5: was the state cut with the minibatch"):
        policy.act(obs, policy.initial_state(4), first)
    wider = tree.map(lambda leaf: torch.cat([leaf, leaf], -1), policy.initial_state(5))
    for wrong in (wider, (), (policy.initial_state(5), policy.initial_state(5))):
        with pytest.raises(StateError, match="this core needs"):
            policy.act(obs, wrong, first)
    with pytest.raises(StateError, match="a tree is a tensor, a tuple or a dict"):
        policy.act(obs, [1, 2], first)


def test_time_and_rows_are_not_guessed(policy):
    """S002-10: a transposed or flattened input raises."""
    obs, first = torch.randn(7, 5, 3), torch.zeros(7, 5, dtype=torch.bool)
    state = policy.initial_state(5)
    policy.unroll(obs, state, first)
    for wrong_obs, wrong_first in ((obs.transpose(0, 1), first), (obs, first.T), (obs[0], first)):
        with pytest.raises(StateError, match=r"\[T, B\].*transposed"):
            policy.unroll(wrong_obs, state, wrong_first)
    if policy.has_memory:  # without it any [T, B] is as good as another
        with pytest.raises(StateError, match="has 5 rows, the input 7"):
            policy.unroll(obs.transpose(0, 1), state, first.T)
    with pytest.raises(StateError, match=r"first has shape \(4,\)"):
        policy.act(obs[0], state, first[0, :4])


def test_given_actions_are_evaluated():
    """S002-18: evaluate_actions draws nothing; act draws from the distribution, its generator only."""
    policy = make_policy(TensorWorld(4), CORES["lstm"])
    obs, first = torch.randn(1, 3).expand(4000, 3), torch.ones(4000, dtype=torch.bool)
    state = policy.initial_state(4000)
    rng = torch.random.get_rng_state()
    acted, _ = policy.act(obs, state, first, torch.Generator().manual_seed(1))
    again, _ = policy.act(obs, state, first, torch.Generator().manual_seed(1))
    log_prob, _, value = policy.evaluate_actions(obs[None], acted.action[None], state, first[None])
    assert torch.equal(torch.random.get_rng_state(), rng)
    assert torch.equal(acted.action, again.action)
    torch.testing.assert_close(log_prob[0], acted.record["log_prob"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(value[0], acted.record["value"], rtol=1e-5, atol=1e-5)
    for action in range(3):
        share = (acted.action == action).float().mean()
        expected = acted.record["log_prob"][acted.action == action][0].exp()
        assert share == pytest.approx(float(expected), abs=0.03)
    mode, _ = policy.act(obs[:1], policy.initial_state(1), first[:1], deterministic=True)
    assert mode.record["log_prob"] >= acted.record["log_prob"].max() - 1e-6


def test_joint_log_prob_is_the_sum_of_its_heads():
    """S002-18: over a Dict of actions."""
    space = gym.spaces.Dict(fire=gym.spaces.Discrete(2), move=gym.spaces.Box(-1, 1, (2,)))
    policy = make_policy(as_rows([lambda: ScriptedEnv(space)] * 2, "loop"), CORES["gru"])
    obs, first = batch(2)
    dist, _, _ = policy.unroll(obs[None], policy.initial_state(2), first[None])
    action = tree.map(lambda leaf: leaf[None], policy.act(obs, policy.initial_state(2), first)[0].action)
    parts = [part.log_prob(action[key]) for key, part in zip(space.spaces, dist.parts)]
    torch.testing.assert_close(dist.log_prob(action), parts[0] + parts[1])


def test_acting_builds_no_graph(policy):
    """S000-23, S002-1: action, log-prob, value and state of an acting step are plain tensors."""
    obs, first = batch()
    acted, state = policy.act(obs, policy.initial_state(5), first)
    value = policy.value(obs, state, first)
    for leaf in (
        *tree.leaves(tuple(acted)),
        *tree.leaves(state),
        value,
        *tree.leaves(policy.initial_state(2)),
    ):
        assert leaf.grad_fn is None
        assert not leaf.requires_grad


def test_asking_for_a_value_changes_nothing(policy):
    """S002-5: no state, no RNG, and the state that was passed in stays as it is."""
    obs, first = batch()
    _, state = policy.act(obs, policy.initial_state(5), first)
    kept, rng = tree.clone(state), torch.random.get_rng_state()
    policy.value(obs, state, ~first)
    policy.unroll(obs[None], state, ~first[None])
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(kept), tree.leaves(state)))
    assert torch.equal(torch.random.get_rng_state(), rng)


def test_rows_do_not_touch_each_other(policy):
    """S002-2: any order and any subset of rows gives each row what it gets alone."""
    obs, _ = batch(6)
    first = torch.tensor([True, False, False, True, False, False])
    _, state = policy.act(torch.randn(6, 3), policy.initial_state(6), torch.ones(6, dtype=torch.bool))
    whole, after = policy.act(obs, state, first, deterministic=True)
    for rows in (torch.tensor([5, 0, 3]), torch.tensor([2]), torch.randperm(6)):
        part, part_after = policy.act(obs[rows], tree.index(state, rows), first[rows], deterministic=True)
        torch.testing.assert_close(part.record["value"], whole.record["value"][rows], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            part.record["log_prob"], whole.record["log_prob"][rows], rtol=1e-5, atol=1e-6
        )
        for a, b in zip(tree.leaves(part_after), tree.leaves(after)):
            torch.testing.assert_close(a, b[rows], rtol=1e-5, atol=1e-6)


def test_initial_state_is_a_copy():
    """S004-5: writing into it does not reach the policy's own."""
    policy = make_policy(TensorWorld(2), LSTMConfig(hidden=4, learned_initial_state=True))
    before = tree.clone(policy.initial_state(2))
    tree.map(lambda leaf: leaf.add_(1), policy.initial_state(2))
    for a, b in zip(tree.leaves(before), tree.leaves(policy.initial_state(2))):
        assert torch.equal(a, b)


def test_state_handling_is_the_base_class_s():
    """S002-9: a core writes _step and _unroll; step and unroll, with reset and checks, are inherited."""
    for core in (make_policy(TensorWorld(2), spec).core for spec in CORES.values()):
        own = {name for klass in type(core).__mro__ if klass is not Core for name in vars(klass)}
        kept = {"step", "unroll", "_check", "_check_state"}
        assert not kept & (own - {n for k in Core.__mro__[1:] for n in vars(k)})
    assert inspect.isabstract(Core)
    half = type("Half", (Core,), {"initial_state": lambda self, batch: ()})
    with pytest.raises(TypeError, match="abstract"):
        half(3, 3)


def test_custom_core_forgets_at_first():
    """S002-9, S001-26: a core of the user's own is reset for it, in just the rows that are first."""
    policy = make_policy(TensorWorld(3), CORES["custom"])
    obs, _ = batch(3)
    _, state = policy.act(obs, policy.initial_state(3), torch.ones(3, dtype=torch.bool))
    seen = []
    step = policy.core._step
    policy.core._step = lambda x, s: (seen.append(tree.clone(s)), step(x, s))[1]
    policy.act(obs, state, torch.tensor([False, True, False]))
    last = seen[0]["last"]
    assert (last[1] == -1).all()
    assert torch.equal(last[[0, 2]], state["last"][[0, 2]])
