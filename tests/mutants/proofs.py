"""What each bug must fail: plain functions that pass on healthy code and raise on a mutant.

Most are the tests themselves, on the case that shows the bug best; the rest are written out here.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from recollect.algos import ppo
from recollect.algos.catalog import make_learner
from recollect.config.ppo import PPOConfig
from recollect.cores import LSTMConfig
from recollect.errors import RecollectError
from recollect.experience.returns import gae
from recollect.policy.distributions import TanhGaussian
from tests.acting import test_actor
from tests.cores import test_conformance, test_mamba
from tests.experience import test_chunks, test_returns
from tests.kernels import test_linear_scan
from tests.learning import (
    test_accumulation,
    test_auxiliary_loss,
    test_gradients,
    test_master,
    test_refresh_rollout,
)
from tests.policy import test_zoo
from tests.support.helpers import (
    ScriptedEnv,
    TensorWorld,
    as_rows,
    assert_reproduced,
    make_actor,
    make_policy,
)

T = 23
LSTM = LSTMConfig(hidden=16)


def master(head: str = "discrete", world: str = "loop") -> None:
    """M: log-probs and values recomputed over chunks are those recorded, and nothing but."""
    env, squash = test_master.scripted(head, world)
    policy = make_policy(env, LSTM, squash=squash)
    actor = make_actor(env, policy, rollout=T, chunk=7)
    for _ in range(2):
        assert_reproduced(policy, actor.collect(), 7)


masked = functools.partial(master, "masked")
squashed = functools.partial(master, "squashed")
clipped = functools.partial(master, "clipped")


def counters(world: str = "loop") -> None:
    """Integers: every action on its own observation and memory, every real step recorded once."""
    test_actor.test_each_action_is_chosen_on_its_own_observation_and_memory(world)
    test_actor.test_the_rollout_is_what_the_envs_lived(world)
    test_actor.test_stored_states_are_raw_input_states(world)
    test_actor.test_the_learner_sees_the_same_numbers(world, 7)


fillers = functools.partial(counters, "next_step")


def run(env: Any = None, **config: Any) -> None:
    """Three updates of a real run, whose own gauge stops it when learner and actor disagree."""
    env = env or TensorWorld(3)
    policy = make_policy(env, LSTM, normalise_observations=True).to(env.device)
    settings = {"rollout": T, "chunk": 7, "minibatches": 1, "learning_rate": 0.01, **config}
    learner = make_learner(policy, PPOConfig(**settings))
    size = {"rollout": learner.config.rollout, "chunk": learner.config.chunk_length}
    actor = make_actor(env, policy, **size, burn_in=learner.config.burn_in_steps)
    for _ in range(3):
        learner.update(actor.collect())


burnt_run = functools.partial(run, recurrent_mode="burn_in", burn_in_steps=3)


def reused_tensors() -> None:
    """M on an env that overwrites its observations."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTM)
    assert_reproduced(policy, make_actor(env, policy, rollout=T, chunk=7).collect(), 7)


def own_gradients() -> None:
    """Every optimiser step applies the gradient of its own minibatch and no other."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTM)
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    learner = make_learner(policy, PPOConfig(rollout=T, chunk=7, epochs=2, minibatches=3, max_grad_norm=1e9))
    parameters, loss, expected, steps = list(policy.parameters()), ppo.loss, [], []

    def spy(*given):
        total, stats = loss(*given)
        if torch.is_grad_enabled():
            expected[:] = torch.autograd.grad(total, parameters, retain_graph=True)
        return total, stats

    def compare(*given) -> None:
        steps.append(1)
        for parameter, grad in zip(parameters, expected):
            torch.testing.assert_close(parameter.grad, grad)
        step(*given)

    step, learner.optimizer.step = learner.optimizer.step, compare
    ppo.loss = spy
    try:
        learner.update(rollout)
    finally:
        ppo.loss = loss
    assert len(steps) == 6


def entropy_rises() -> None:
    """Where nothing is to be gained, following the gradient of the loss makes the policy more random."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTM)
    chunks = test_gradients.learnable(make_actor(env, policy, rollout=T, chunk=7).collect(), 7)
    chunks.data["advantage"].zero_()
    config, count = PPOConfig(rollout=T, chunk=7, value_coef=0.0), chunks.valid.sum()
    total, before = ppo.loss(policy, chunks, config, 1.0, count)
    total.backward()
    with torch.no_grad():
        for parameter in policy.parameters():
            if parameter.grad is not None:
                parameter -= 0.01 * parameter.grad
    _, after = ppo.loss(policy, chunks, config, 1.0, count)
    assert after["entropy"] > before["entropy"]


def normalised_advantages() -> None:
    """Mean 0 and spread 1 over the valid steps, 0 elsewhere, whatever stood there."""
    advantage = torch.tensor([[1.0, 5.0, 0.0], [3.0, 7.0, 0.0]])
    valid = torch.tensor([[True, True, False], [True, True, False]])
    out = ppo.normalise(advantage, valid)
    torch.testing.assert_close(out[valid].mean(), torch.tensor(0.0))
    torch.testing.assert_close(out[valid].std(correction=0), torch.tensor(1.0))
    assert (out[~valid] == 0).all()


def squashed_density() -> None:
    """exp(log_prob) integrates to 1 over [-1, 1]; -E[log p] is the entropy; both finite at |u| = 20."""
    dist = TanhGaussian(torch.tensor([[0.3]]).double(), torch.tensor([0.0]).double())
    a = torch.linspace(-1, 1, 200_001, dtype=torch.float64)[1:-1]
    log_prob = dist.log_prob(a.atanh().view(-1, 1, 1)).squeeze(1)
    density, width = log_prob.exp(), a[1] - a[0]
    torch.testing.assert_close(density.sum() * width, torch.tensor(1.0).double(), atol=1e-4, rtol=0)
    entropy = -(density * log_prob).sum() * width
    torch.testing.assert_close(dist.entropy()[0], entropy, atol=1e-3, rtol=0)
    for u in (-20.0, 20.0):
        far = torch.tensor([[u]])
        truth = -0.5 * (u - 0.3) ** 2 - 0.918939 - 2 * (0.693147 - 20)  # 1 - tanh^2 -> 4 exp(-2 |u|)
        got = TanhGaussian(torch.tensor([[0.3]]), torch.tensor([0.0])).log_prob(far)
        torch.testing.assert_close(got, torch.tensor([truth]), atol=1e-3, rtol=0)


def preserved_values() -> None:
    """From the second rollout on, new statistics of the returns leave every value as it was."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTM)
    policy.value_norm.update(torch.tensor([1.0, 5.0]), policy.critic)
    obs, state, first = env.reset(0), policy.initial_state(3), torch.ones(3, dtype=torch.bool)
    before = policy.value(obs, state, first)
    policy.value_norm.update(torch.tensor([-300.0, 500.0]), policy.critic)
    torch.testing.assert_close(policy.value(obs, state, first), before, atol=1e-3, rtol=1e-5)


def statistics_of_the_living() -> None:
    """Observation statistics count valid steps alone."""
    env = as_rows([ScriptedEnv] * 3, "next_step")
    policy = make_policy(env, LSTM, normalise_observations=True)
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    assert not rollout.valid.all()
    make_learner(policy, PPOConfig(rollout=T, chunk=7)).update(rollout)
    moments = policy.obs_norm.scalings["obs"]
    assert int(moments.count) == int(rollout.valid.sum())
    torch.testing.assert_close(moments.offset, rollout.obs[:T][rollout.valid].mean(0))


def rollout_is_used_up() -> None:
    """The number of valid steps over all chunks is that of the rollout."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTM)
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    assert int(test_gradients.learnable(rollout, 7).valid.sum()) == int(rollout.valid.sum())


def no_bootstrap() -> None:
    """Without a bootstrap, GAE of an unfinished episode raises."""
    try:
        gae(**test_returns.trace(5, 3, ends=0.0, bootstrap=None))
    except RecollectError:
        return
    raise AssertionError("a missing bootstrap went unnoticed")


no_graph = test_actor.test_collecting_builds_no_graph
only_starts = test_gradients.test_a_learned_initial_state_learns_only_at_starts
unchanged_rows = test_actor.test_first_resets_only_its_row
fresh_episodes = functools.partial(test_actor.test_a_new_episode_remembers_nothing, LSTM)
copies = functools.partial(test_actor.test_stored_states_are_copies, T)
lent_env = test_actor.test_the_env_may_be_used_in_between
partition = functools.partial(test_chunks.test_chunks_partition_the_rollout.hypothesis.inner_test, (23, 3, 7))
starts = functools.partial(
    test_chunks.test_chunks_start_from_the_stored_state_of_their_first_step.hypothesis.inner_test, (23, 3, 7)
)
prefixes = functools.partial(
    test_chunks.test_prefixes_are_the_steps_before.hypothesis.inner_test, (23, 3, 7), 3
)
coverage = functools.partial(
    test_chunks.test_minibatches_cover_everything_once.hypothesis.inner_test, 11, 4, 0
)
dead_agents = functools.partial(test_gradients.test_dead_agents_are_not_learned_from, LSTM)
padding = functools.partial(test_gradients.test_padding_is_not_seen, LSTM)
burn_in = test_gradients.test_burn_in_replays_without_gradient
flow = functools.partial(test_gradients.test_gradients_flow_through_time_inside_chunk_and_episode, 7)
double_sum = functools.partial(
    test_returns.test_equals_the_double_sum.hypothesis.inner_test, 20, 3, 1, 0.3, 0.99, 0.95
)
constant_reward = functools.partial(
    test_returns.test_constant_reward_and_exact_value_leave_no_advantage, (4,)
)
both_flags = functools.partial(test_returns.test_edges, (0, 0, 1), (0, 0, 1), [1 + 7, 1 + 7, 1])
refreshed = functools.partial(
    test_refresh_rollout.test_refresh_equals_a_replay_from_scratch, LSTM, TensorWorld
)
recomputed = functools.partial(
    test_refresh_rollout.test_recomputed_advantages_equal_gae_from_scratch, TensorWorld
)
short_window = functools.partial(test_mamba.test_window_stops_at_a_reset, 1)
poisoned_scan = functools.partial(
    test_linear_scan.test_nothing_passes_a_wall, False, torch.float64, float("nan"), 4
)
parts = functools.partial(test_accumulation.test_parts_are_the_whole, "arena", "chunks", torch.float64, 1e-10)
predicted = functools.partial(test_auxiliary_loss.test_which_steps_predict, "tensors")


@functools.cache
def wall(core: str) -> functools.partial[None]:
    """Nothing crosses a reset of this core."""
    return functools.partial(test_conformance.test_nothing_crosses_a_reset, core)


@functools.cache
def poisoned(core: str, steps: int) -> functools.partial[None]:
    """A NaN that a reset of this core throws away stays there."""
    return functools.partial(test_conformance.test_nan_before_a_reset_stays_there, core, steps)


def pads() -> None:
    """A token policy says the same with more padding, whatever stands in it."""
    policy, obs = test_zoo.make("latent_attn_tiny").double(), test_zoo.batch(2)
    more = torch.cat([obs, torch.tensor([255, 3, 7], dtype=torch.uint8).expand(2, 5, 3)], 1)
    test_zoo.same(test_zoo.says(policy, more), test_zoo.says(policy, obs))
