"""The acting loop: whose state, which observation, which step; in whole numbers where it can be."""

from __future__ import annotations

import functools
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from recollect.acting.actor import STACKED, Actor
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.config.ppo import PPOConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.cores.contract import Core
from recollect.learning.refresh_rollout import refresh
from recollect.tasks import make_task
from tests.support.helpers import (
    GYM_WORLDS,
    LENGTHS,
    ArenaWorld,
    CounterEnv,
    TensorWorld,
    as_rows,
    counting_policy,
    deviation,
    ends,
    keep,
    make_actor,
    make_policy,
)

T, ROWS = 23, 4


def collect_counters(world: str, chunk: int = 7) -> tuple[Any, Any, list]:
    """Two rollouts of counters, the policy that tells what it saw, and the envs."""
    env = as_rows([functools.partial(CounterEnv, row) for row in range(ROWS)], world)
    policy = counting_policy(env)
    actor = make_actor(env, policy, rollout=T, chunk=chunk)
    rollouts = [keep(actor.collect(version)) for version in range(2)]
    return policy, rollouts, env.envs if world == "loop" else env.env.envs


@pytest.mark.parametrize("world", GYM_WORLDS)
def test_each_action_is_chosen_on_its_own_observation_and_memory(world):
    """S000-4, S000-8, S002-3, S002-6, S002-21, S004-1: value[t] names what was seen at t and before it."""
    _, rollouts, _ = collect_counters(world)
    for rollout in rollouts:
        seen = rollout.obs.squeeze(-1)
        before = torch.where(rollout.first, -1, seen - 1)
        expected = 4096 * seen + before
        valid = rollout.valid
        assert torch.equal(rollout.record["value"][valid], expected[:T][valid])
        cut = rollout.truncated & ~rollout.terminated
        assert cut.any()
        after = 4096 * (seen[:T] + 1) + seen[:T]  # the observation before the reset, the state after t
        assert torch.equal(rollout.final_value[cut], after[cut])
        ended = (rollout.terminated | rollout.truncated)[-1]
        inside = rollout.first[T] | (valid[-1] & ~ended)
        assert torch.equal(rollout.bootstrap[inside], expected[T][inside])
        assert (rollout.first[1:] & ~valid).any() == (world == "next_step")


@pytest.mark.parametrize("world", GYM_WORLDS)
def test_the_rollout_is_what_the_envs_lived(world):
    """S002-21: every real step once and in order, no action across episodes, ends as scripted."""
    _, rollouts, envs = collect_counters(world)
    for row in range(ROWS):
        recorded = []
        for rollout in rollouts:
            for t in rollout.valid[:, row].nonzero().flatten().tolist():
                number, action = int(rollout.obs[t, row]), int(rollout.action[t, row])
                recorded.append((number, action, number + 1))
                assert rollout.reward[t, row] == action
                episode, step = number % 512 // 16, number % 16
                over = step + 1 == LENGTHS[(episode + row) % len(LENGTHS)]
                flags = (bool(rollout.terminated[t, row]), bool(rollout.truncated[t, row]))
                assert flags == (ends(episode) if over else (False, False))
                assert bool(rollout.first[t, row]) == (step == 0)
        assert recorded == envs[row].unwrapped.made


@pytest.mark.parametrize("world", GYM_WORLDS)
def test_stored_states_are_raw_input_states(world):
    """S000-11, S002-6: the state at step s is what step s - 1 left, before ``first`` applies."""
    _, rollouts, _ = collect_counters(world)
    assert rollouts[0].state_steps == (0, 7, 14, 21)
    for rollout, before in zip(rollouts, [torch.full((ROWS, 1), -1.0), rollouts[0].obs[T - 1]]):
        left = torch.cat([before.unsqueeze(0), rollout.obs[: T - 1]])
        assert torch.equal(rollout.states["last"], left[list(rollout.state_steps)])


@pytest.mark.parametrize("chunk", [1, 7, T])
@pytest.mark.parametrize("world", GYM_WORLDS)
def test_the_learner_sees_the_same_numbers(world, chunk):
    """M, S002-4, S004-13: replayed in chunks, or as a whole, every value is the recorded one, to the bit."""
    policy, rollouts, _ = collect_counters(world, chunk)
    for rollout in rollouts:
        assert deviation(policy, rollout, chunk) == (0, 0)
        fresh = refresh(policy, rollout)
        assert torch.equal(fresh.record["value"], rollout.record["value"])
        assert torch.equal(fresh.final_value, rollout.final_value)
        assert torch.equal(fresh.bootstrap, rollout.bootstrap)
        assert torch.equal(fresh.states["last"], rollout.states["last"])


def test_rollouts_are_numbered():
    """S000-22, S000-24: actor, sequence and version say which rollout it is; no two are alike."""
    env = TensorWorld(2)
    policy = make_policy(env)
    actors = [Actor(TensorWorld(2), policy, rollout=5, state_steps=(0,), seed=i, index=i) for i in range(2)]
    rollouts = [keep(actor.collect(version=k)) for k in (3, 4) for actor in actors]
    assert len({(r.actor, r.sequence) for r in rollouts}) == 4
    assert [(r.actor, r.sequence, r.version) for r in rollouts] == [
        (0, 0, 3),
        (1, 0, 3),
        (0, 1, 4),
        (1, 1, 4),
    ]


@pytest.mark.parametrize(
    "config", [LSTMConfig(8), GRUConfig(8, learned_initial_state=True)], ids=["lstm", "gru"]
)
def test_a_new_episode_remembers_nothing(config):
    """S000-7: whatever the old state, also NaN, the first step of an episode is that of a fresh env."""
    env = TensorWorld(3)
    policy = make_policy(env, config)
    obs, first = env.reset(0), torch.tensor([True, False, True])
    used = tree.map(lambda leaf: torch.randn_like(leaf) * 5, policy.initial_state(3))
    broken = tree.map(lambda leaf: torch.full_like(leaf, torch.nan), used)
    fresh = policy.value(obs, policy.initial_state(3), torch.zeros(3, dtype=torch.bool))
    carried = policy.value(obs, used, torch.zeros(3, dtype=torch.bool))
    for old in (used, tree.select(first, broken, used)):
        acted, state = policy.act(obs, old, first)
        torch.testing.assert_close(acted.record["value"], torch.where(first, fresh, carried))
        assert all(torch.isfinite(leaf).all() for leaf in tree.leaves(state))
    assert (fresh - carried).abs().min() > 1e-3


def test_first_resets_only_its_row():
    """S001-26, S002-3: the other rows' states are untouched, to the bit."""
    env = TensorWorld(4)
    policy = make_policy(env)
    state = tree.map(torch.randn_like, policy.initial_state(4))
    reset = policy.core.reset(state, torch.tensor([False, False, True, False]))
    for before, after in zip(tree.leaves(state), tree.leaves(reset)):
        assert torch.equal(before[[0, 1, 3]], after[[0, 1, 3]])
        assert (after[2] == 0).all()


def test_collecting_builds_no_graph():
    """S000-23, S001-2, S002-1: nothing that is recorded or carried has a gradient, asked for or not."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTMConfig(8, learned_initial_state=True))
    actor = make_actor(env, policy, rollout=T, chunk=7)
    with torch.enable_grad():
        rollout = actor.collect()
    held = [rollout.obs, rollout.action, rollout.record, rollout.final_value, rollout.bootstrap]
    for leaf in tree.leaves((*held, rollout.states, actor.state, actor.obs, refresh(policy, rollout).states)):
        assert leaf.grad_fn is None
        assert not leaf.requires_grad


def test_learning_leaves_the_memory_alone():
    """S002-5: an update neither reads nor writes the live state, and leaves the rollout as it was."""
    env = TensorWorld(3)
    policy = make_policy(env)
    actor = make_actor(env, policy, rollout=T, chunk=7)
    rollout = actor.collect()
    before, live = keep(rollout), tree.clone((actor.state, actor.obs, actor.first))
    config = {"refresh_states": True, "recompute_advantages": True, "learning_rate": 0.01}
    make_learner(policy, PPOConfig(rollout=T, chunk=7, minibatches=2, **config)).update(rollout)
    for name in ("obs", "first", "action", "record", "reward", "valid", "final_value", "bootstrap", "states"):
        for a, b in zip(tree.leaves(getattr(before, name)), tree.leaves(getattr(rollout, name))):
            assert torch.equal(a, b), name
    for a, b in zip(tree.leaves(live), tree.leaves((actor.state, actor.obs, actor.first))):
        assert torch.equal(a, b)


class InPlace(Core):
    """Adds up its inputs in the tensor of its state: rude, and allowed."""

    def initial_state(self, batch: int) -> Tensor:
        return torch.zeros(1, self.input_size).expand(batch, -1)

    def _step(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        state += x
        return state.clone(), state

    def _unroll(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for x_t, first_t in zip(x, first):
            state = self.reset(state, first_t) + x_t
            outputs.append(state)
        return torch.stack(outputs), state


@pytest.mark.parametrize("chunk", [7, T])
def test_stored_states_are_copies(chunk):
    """S004-5: a core that changes its state in place, and anyone who changes the live one, harms nothing."""
    env = TensorWorld(3, lengths=(9, 30))
    policy = make_policy(env, lambda n: InPlace(n, n))
    actor = make_actor(env, policy, rollout=T, chunk=chunk)
    for _ in range(2):
        rollout = actor.collect()
        actor.state.add_(100)
        assert max(deviation(policy, rollout, chunk)) < 1e-5
        actor.state.sub_(100)


def test_the_env_may_be_used_in_between():
    """The live observation is the actor's own: an env that overwrites its tensors cannot change it."""
    env = TensorWorld(3)
    actor = make_actor(env, make_policy(env), rollout=5, chunk=5)
    last = actor.collect().obs[5].clone()
    env.step(torch.zeros(3, dtype=torch.int64))
    assert torch.equal(actor.collect().obs[0], last)


@given(st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=8), st.randoms())
def test_any_subset_of_rows_in_any_order(schedule, random):
    """S002-2: rows that step in subsets, reordered and at different times, each live their own life."""
    env = TensorWorld(4)
    policy = make_policy(env, GRUConfig(8))
    stream = torch.randn(len(schedule), 4, 3, generator=torch.Generator().manual_seed(1))
    state = policy.initial_state(4)
    age, values = [0] * 4, {}
    for rows in schedule:
        order = sorted(rows)
        random.shuffle(order)
        which = torch.tensor(order)
        obs = torch.stack([stream[age[row], row] for row in order])
        first = torch.tensor([age[row] == 0 for row in order])
        acted, after = policy.act(obs, tree.index(state, which), first, deterministic=True)
        state = tree.put(state, which, after)
        for i, row in enumerate(order):
            values[row, age[row]] = acted.record["value"][i]
            age[row] += 1
    first = torch.zeros(len(schedule), 4, dtype=torch.bool)
    first[0] = True
    with torch.no_grad():
        _, alone, _ = policy.unroll(stream, policy.initial_state(4), first)
    for (row, t), value in values.items():
        torch.testing.assert_close(value, alone[t, row], atol=1e-6, rtol=1e-5)


def test_every_tensor_is_read_once():
    """S001-1: one step of the env and one pass of the encoder a step, one more at each cut and at the end."""
    env = TensorWorld(3)
    policy = make_policy(env)
    actor = make_actor(env, policy, rollout=T, chunk=7)
    calls = []
    policy.encoder.register_forward_hook(lambda module, given, out: calls.append(len(out)))
    env.steps = 0
    rollout = actor.collect()
    cuts = (rollout.truncated & ~rollout.terminated).any(1).sum()
    assert env.steps == T
    assert len(calls) == T + 1 + cuts
    assert sum(calls) == 3 * (T + 1) + len(rollout.finals.time)


class Mixed(Core):
    """A state with leaves of several dtypes and ranks."""

    def initial_state(self, batch: int) -> dict[str, Any]:
        return {
            "half": torch.zeros(batch, 2, 3, dtype=torch.bfloat16),
            "wide": (torch.zeros(batch, dtype=torch.float64), torch.zeros(batch, 1, dtype=torch.int64)),
            "flag": torch.ones(batch, dtype=torch.bool),
        }

    def _step(self, x: Tensor, state: dict[str, Any]) -> tuple[Tensor, dict[str, Any]]:
        wide, count = state["wide"]
        return x + count, {**state, "wide": (wide + 1, count + 1), "flag": ~state["flag"]}

    def _unroll(self, x: Tensor, state: Any, first: Tensor) -> tuple[Tensor, Any]:
        outputs = []
        for x_t, first_t in zip(x, first):
            y, state = self._step(x_t, self.reset(state, first_t))
            outputs.append(y)
        return torch.stack(outputs), state


def test_states_of_any_dtype_and_rank():
    """S004-4, S004-20: dtype, device and shape of every leaf survive acting, storage, cutting and refresh."""
    env = TensorWorld(3)
    policy = make_policy(env, lambda n: Mixed(n, n))
    actor = make_actor(env, policy, rollout=T, chunk=7)
    expected = tree.spec(policy.initial_state(3))
    for _ in range(2):
        rollout = actor.collect()
        assert tree.spec(actor.state) == expected
        assert tree.spec(rollout.states, lead=2) == expected
        assert tree.spec(refresh(policy, rollout).states, lead=2) == expected
        assert max(deviation(policy, rollout, 7)) < 1e-5
    make_learner(policy, PPOConfig(rollout=T, chunk=7, minibatches=2)).update(rollout)


def test_agents_are_rows():
    """S001-29: row = slot * agents + agent; each has its own flags, and only the living count."""
    env = ArenaWorld(3)
    rollout = make_actor(env, make_policy(env), rollout=T, chunk=7).collect()
    assert rollout.rows == 6
    died, dead = rollout.terminated, ~rollout.valid
    assert died[:, 1::2].any()
    assert not died[:, ::2].any()
    assert dead[:, 1::2].any()
    assert not dead[:, ::2].any()
    assert torch.equal(dead[1:] & ~dead[:-1], (died[:-1] & ~rollout.first[1:T]))  # dead from the step after
    assert not (dead[:-1] & ~dead[1:] & ~rollout.first[1:T]).any()  # back only at a start
    assert rollout.obs[:T][dead].isnan().all()
    assert torch.isfinite(rollout.obs[:T][rollout.valid]).all()


def test_numbers_in_info_reach_the_metrics():
    """S001-13: the mean over the rollout, by the name that the env gave."""

    class Logging(TensorWorld):
        def step(self, action):
            step = super().step(action)
            return replace(step, info={"fuel": torch.full((self.num_envs,), float(self.told))})

        @property
        def told(self) -> int:
            self.count = getattr(self, "count", -1) + 1
            return self.count

    env = Logging(3)
    actor = make_actor(env, make_policy(env), rollout=5, chunk=5)
    actor.collect()
    assert actor.info == {"info/fuel": 2.0}
    actor.collect()
    assert actor.info == {"info/fuel": 7.0}


def test_a_snapshot_stays_what_it_was():
    """S004-20: of memories and flags that go on in place; going back to it gives the same rollout again."""
    env = make_task("repeat-previous", 3)
    actor = make_actor(env, make_policy(env, GRUConfig(hidden=4)), rollout=9, chunk=9)
    actor.collect()
    saved = actor.snapshot()
    assert saved is not None
    kept = tree.clone(saved)
    one = keep(actor.collect())
    assert all(torch.equal(saved[name], kept[name]) for name in kept)
    actor.restore(saved)
    two = keep(actor.collect())
    assert torch.equal(one.record["value"], two.record["value"])
    assert torch.equal(one.obs, two.obs)


def test_actions_are_not_kept_until_the_rollout_ends():
    """Between the temporary tensors of many rows they would keep the allocator from reusing those."""
    env = TensorWorld(2)
    actor = make_actor(env, make_policy(env), rollout=3 * STACKED, chunk=STACKED)
    act, made, alive = actor._act, [], []

    def watched(obs: Any, state: Any, first: Tensor) -> Any:
        acted, state = act(obs, state, first)
        made.append(weakref.ref(acted.record["log_prob"]))
        alive.append(sum(ref() is not None for ref in made))
        return acted, state

    actor._act = watched
    actor.collect()
    assert max(alive) <= STACKED + 1
