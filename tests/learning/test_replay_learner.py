"""The learner of algorithms on replay: what it adds, when it learns, what it moves and what it reports."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, cast

import pytest
import torch
from gymnasium import spaces

from recollect.acting.actor import Actor
from recollect.algos.catalog import acting, make_learner
from recollect.base import tree
from recollect.config.policy import EncoderConfig
from recollect.config.q_heads import QHeadConfig
from recollect.config.r2d2 import R2D2Config
from recollect.config.replay import ReplayConfig
from recollect.cores import FramesConfig, GRUConfig, LSTMConfig
from recollect.errors import AlignmentError, ConfigError, StateError
from recollect.experience.rollout import Rollout
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.learning.replay_learner import ReplayLearner, add, epsilon, make_replay, staleness
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead
from tests.support.helpers import (
    ArenaWorld,
    ScriptedEnv,
    TensorWorld,
    as_rows,
    keep,
    make_policy,
)
from tests.support.replay_setup import DEFAULTS, HEADS, SMALL, learner, nudge, same, weights

ALGOS = ("r2d2", "iqn")

# Exploration ---------------------------------------------------------------------------------------------


def test_epsilon_falls_along_its_schedule():
    """S003-14: from epsilon to its floor over a share of the run, linearly, and never below."""
    config = ReplayConfig(epsilon=0.8, epsilon_end=0.2, epsilon_decay=0.5)
    found = [epsilon(config, progress) for progress in (0, 0.25, 0.5, 0.75, 1.0, 1.5)]
    assert found == pytest.approx([0.8, 0.5, 0.2, 0.2, 0.2, 0.2])
    assert epsilon(ReplayConfig(epsilon_decay=0.0), 0.0) == pytest.approx(ReplayConfig().epsilon_end)


def test_rows_explore_as_the_paper_says():
    """S003-14: epsilon_i = 0.4^(1 + 7 i / (N - 1)) over all rows; 1 without a ladder, and for one row."""
    config, head = R2D2Config(), 0.4
    found = [head * share for share in config.exploration(5)]
    assert found == pytest.approx([0.4 ** (1 + 7 * i / 4) for i in range(5)])
    assert ReplayConfig().exploration(3) == [1.0, 1.0, 1.0]
    assert config.exploration(1) == [1.0]


@pytest.mark.parametrize("actors", [1, 2])
def test_actors_explore_at_what_is_logged(actors):
    """S003-14: the head's epsilon, owned by the learner, times the share of the row. The metric is what the
    rollout was recorded with; the rates of random actions show it."""
    rows, steps = 8, 400
    config = R2D2Config(**DEFAULTS | {"rollout": steps, "replay_capacity": 10_000, "epsilon_end": 0.1})
    policy = make_policy(TensorWorld(rows), SMALL, head=HEADS["r2d2"])
    head = cast(QHead, policy.head)
    ours = make_learner(policy, config, rows=rows)
    ours.step = dict  # no learning: greedy actions stay comparable
    ours._described = lambda steps, collected: {}
    each = rows // actors
    made = [
        Actor(
            TensorWorld(each),
            policy,
            rollout=steps,
            seed=i,
            index=i,
            actors=actors,
            **acting(config).keywords(),
        )
        for i in range(actors)
    ]
    used = []
    for update in range(3):
        rollouts = [keep(actor.collect()) for actor in made]
        whole = Rollout.join(rollouts)
        with torch.no_grad():
            q, _ = policy.unroll(whole.obs[:-1], whole.state_at(0), whole.first[:-1])
        greedy = head.greedy(q)
        differs = (whole.action != greedy).double().mean(0)
        used.append(float(head.epsilon))
        expected = used[-1] * torch.tensor(config.exploration(rows)) * 2 / 3  # one of three is the greedy one
        assert (differs - expected).abs().max() < 0.08, (differs, expected)
        assert ours.update(whole, update * 0.05)["epsilon"] == used[-1]
    assert used == pytest.approx([epsilon(config, 0), epsilon(config, 0), epsilon(config, 0.05)])
    assert used[2] < used[0]


def test_the_metric_is_the_epsilon_of_the_actors():
    """S003-14: over a whole run."""
    ours, actor = learner(epsilon=0.9, epsilon_end=0.1, epsilon_decay=0.5)
    for update in range(6):
        used = float(ours.head.epsilon)
        assert ours.update(actor.collect(), update / 6)["epsilon"] == used
    assert float(ours.head.epsilon) == pytest.approx(0.1)


# The target network --------------------------------------------------------------------------------------


def watched(ours: ReplayLearner) -> list[dict[str, torch.Tensor]]:
    """The weights after every optimiser step."""
    seen, follow = [], ours._follow

    def spy() -> None:
        seen.append(weights(ours.policy))
        follow()

    ours._follow = spy
    return seen


@pytest.mark.parametrize("algo", ALGOS)
def test_the_target_is_copied_every_so_many_steps(algo):
    """S003-6: and only then, bit for bit."""
    ours, actor = learner(algo, target_every=3, target_rate=None)
    start, seen, copied = weights(ours.target), watched(ours), []
    for _ in range(8):
        before = weights(ours.target)
        ours.update(actor.collect())
        last = len(seen) // 3 * 3
        copied.append(not same(before, weights(ours.target)))
        assert same(weights(ours.target), seen[last - 1] if last else start)
    assert len(seen) == ours.gradient_steps > 9
    assert not all(copied)


def test_the_target_follows_softly():
    """S003-6: theta' <- theta' + rate (theta - theta') after every step, exactly, k times."""
    ours, actor = learner(target_every=None, target_rate=0.2)
    target, seen = weights(ours.target), watched(ours)
    for _ in range(6):
        ours.update(actor.collect())
    assert len(seen) > 9
    for step in seen:
        for name, value in step.items():
            target[name].lerp_(value, 0.2)
    assert same(weights(ours.target), target)
    assert not same(target, seen[-1])


def test_the_target_shares_the_statistics():
    ours, actor = learner(policy={"normalise_observations": True})
    for _ in range(3):
        ours.update(actor.collect())
    statistics = ours.policy.obs_norm
    assert statistics is not None
    assert ours.target.obs_norm is statistics
    assert any(float(b.abs().sum()) > 0 for b in statistics.buffers())


# Replay ratio --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "batch", "chunk"), [(4.0, 6, 5), (0.25, 6, 5), (0.1, 3, 5), (1 / 3, 7, 4), (2.7, 32, 5)]
)
def test_the_replay_ratio_is_exact(ratio, batch, chunk):
    """S003-15: after any update, ratio * collected / (batch * chunk) optimiser steps, rounded down."""
    ours, actor = learner(replay_ratio=ratio, batch=batch, chunk=chunk, rollout=7, gauge_every=0)
    made: list[int] = []
    ours.step = lambda: made.append(1) or {}
    ours._described = lambda steps, collected: {}
    collected = 0
    for _ in range(150):
        rollout = actor.collect()
        ours.update(rollout)
        collected += rollout.valid_steps if ours.replay.windows else 0
        exact = Fraction(ratio) * collected / (batch * chunk)
        if ratio in (4.0, 0.25):  # floats that have no rounding
            assert len(made) == int(exact)
        assert -1e-9 < exact - len(made) < 1 + 1e-9
    assert len(made) > 5


@pytest.mark.parametrize("warmup", [0, 1, 31, 32, 33, 63, 64, 65, 69])
def test_the_warm_up_ends_exactly(warmup):
    """S003-15: no step before so many steps are collected, and none fails at any boundary."""
    ours, actor = learner(replay_warmup=warmup, batch=64, replay_ratio=100.0, n_step=3)
    counts = []
    for update in range(1, 5):
        ours.update(actor.collect())
        counts.append(ours.gradient_steps > 0)
        assert counts[-1] == (32 * update >= warmup and ours.replay.windows > 0)
    assert counts[-1]


def test_a_warm_up_of_the_whole_capacity_ends():
    """S003-15: final observations take slots, so the steps in memory never are as many."""
    ours, actor = learner(replay_warmup=400, replay_capacity=400, env=TensorWorld(3))
    for _ in range(30):
        ours.update(actor.collect())
    assert ours.replay.steps < 400
    assert ours.gradient_steps > 0


def test_steps_of_dead_agents_earn_nothing():
    """S003-15, S003-21: only valid steps count."""
    ours, actor = learner(env=ArenaWorld(3), replay_ratio=1.0, batch=2, chunk=5)
    ours.step = dict
    ours._described = lambda steps, collected: {}
    rollout = actor.collect()
    rollout.valid[:, 1::2] = False
    rollout.valid[1:, :] = False
    valid = rollout.valid_steps
    assert 0 < valid < 10
    ours._learn(valid)
    assert ours._owed in (0.0, float(valid))


# Priorities ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
def test_priorities_are_those_of_the_drawn_windows(algo):
    """Every window that was drawn gets the mix of its own errors, and no other changes."""
    ours, actor = learner(algo, priority_exponent=0.6, priority_eta=0.7, replay_ratio=1.0, batch=20)
    for _ in range(4):
        ours.update(actor.collect())
    module, samples, losses = ours.algorithm, [], []
    sample, loss = ours.replay.sample, module.loss

    class Spy:
        @staticmethod
        def loss(*given: Any) -> Any:
            losses.append((loss(*given), given[2]))
            return losses[-1][0]

    ours.algorithm = Spy  # type: ignore[assignment]
    ours.replay.sample = lambda *given: samples.append(sample(*given)) or samples[-1]  # type: ignore[method-assign]
    before = ours.replay.tree.levels[0].clone()
    ours.step()
    (drawn,), ((found, batch),) = samples, losses
    after, rows, capacity = ours.replay.tree.levels[0], ours.rows, ours.replay.capacity
    slots = (drawn.entries % rows) * capacity + drawn.entries // rows % capacity
    for m, slot in enumerate(slots.tolist()):
        own = [float(found.error[j, m]) for j in range(5) if batch.is_step[j, m]]
        priority = 0.7 * max(own) + 0.3 * sum(own) / len(own)
        if algo == "r2d2" or (slots == slot).sum() == 1:  # IQN draws other fractions for a second time
            assert float(after[slot]) == pytest.approx(priority**0.6, rel=1e-5)
    others = torch.ones_like(after, dtype=torch.bool)
    others[slots] = False
    others[-1] = False  # the spare entry
    assert torch.equal(after[others], before[others])
    assert min(float(after[slot]) for slot in slots.tolist()) > 0


# The optimiser -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
def test_the_optimiser_moves_the_live_weights(algo):
    """S003-13: also after loading and sharing; and it never holds those of the target network."""
    ours, actor = learner(algo)
    ours.policy.share_memory()
    for _ in range(3):
        ours.update(actor.collect())
    load_learner(ours, Learned(optimizer=tree.clone(learner_tensors(ours))))
    held = [p for group in ours.optimizer.param_groups for p in group["params"]]
    assert [id(p) for p in held] == [id(p) for p in ours.policy.parameters()]
    assert not {id(p) for p in held} & {id(p) for p in ours.target.parameters()}
    before = weights(ours.policy)
    ours.update(actor.collect())
    after = weights(ours.policy)
    assert [name for name in before if torch.equal(before[name], after[name])] == []


# Master test M -------------------------------------------------------------------------------------------

CORES: dict[str, Any] = {
    "lstm": (LSTMConfig(hidden=16, learned_initial_state=True), {}),
    "gru": (GRUConfig(hidden=16), {}),
    "frames": (FramesConfig(frames=4), {"states": "rebuilt"}),
    "none": ("none", {"states": "rebuilt", "burn_in_steps": 0}),
}


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("world", ["loop", "next_step", "tensors"])
def test_recorded_values_are_reproduced(algo, core, world):
    """M, S004-1: Q of every recorded action, over updates, episodes of odd lengths and all kinds of ends."""
    env: Any = TensorWorld(3) if world == "tensors" else as_rows([ScriptedEnv] * 3, world)
    config, settings = CORES[core]
    noisy = QHeadConfig(hidden=(8,), gain=1.0, noisy=True) if algo == "r2d2" else None
    ours, actor = learner(
        algo,
        env,
        config,
        head=noisy,
        rollout=11,
        gauge_every=1,
        policy={"normalise_observations": core != "frames"},
        **settings,
    )
    for _ in range(6):
        assert ours.update(actor.collect())["deviation/q"] < 1e-5
    assert ours.gradient_steps > 3


@pytest.mark.parametrize("algo", ALGOS)
def test_a_wrong_state_stops_the_run(algo):
    """M: states of another row are no rounding."""
    ours, actor = learner(algo)
    rollout = actor.collect()
    ours.update(rollout)
    rollout = actor.collect()
    rollout.states = tree.map(lambda leaf: leaf.roll(1, 1), rollout.states)
    with pytest.raises(AlignmentError, match="deviate from the recorded ones"):
        ours.update(rollout)


@pytest.mark.parametrize(("rollout", "stride"), [(8, 4), (10, 4), (10, 6), (7, 5), (6, 7)])
def test_staleness_is_measured_at_every_stride(rollout, stride):
    """S004-13: also where rollouts are no multiple of it, so that not all stored states have one distance."""
    settings = {"rollout": rollout, "stride": stride, "chunk": 7, "gauge_every": 1}
    ours, actor = learner(env=TensorWorld(4, (500,)), **settings)
    for _ in range(12):
        ours.replay.add(keep(actor.collect()))
    distance = ours.config.state_distance
    assert float(staleness(ours.policy, ours.replay, 0, distance)) == pytest.approx(0, abs=1e-5)
    nudge(ours.policy)
    actor.collect()
    stale = ours.update(actor.collect())["replay/staleness"]
    assert 0.01 < stale < 10


@pytest.mark.parametrize("frames", [1, 3, 4])
def test_sampled_stacks_are_those_of_the_actor(frames):
    """S003-1, S003-2: bitwise, after the ring has wrapped, at the start of episodes and across rollouts."""
    env = as_rows([ScriptedEnv] * 3, "loop")
    settings = {"states": "rebuilt", "burn_in_steps": max(3, frames - 1), "replay_capacity": 150}
    plain = {"encoder": EncoderConfig(hidden=())}
    ours, actor = learner("iqn", env, FramesConfig(frames=frames), policy=plain, stride=1, **settings)
    acted: dict[tuple[float, ...], torch.Tensor] = {}

    def note(head: Any, given: Any) -> None:
        for row in given[0]:
            acted[tuple(row[-3:].tolist())] = row.clone()

    hook = ours.policy.head.register_forward_pre_hook(note)
    rollouts = [keep(actor.collect()) for _ in range(25)]
    hook.remove()
    for rollout in rollouts:
        ours.replay.add(rollout)
    assert ours.replay.is_full
    K, checked = ours.config.burn_in_steps, 0
    sample = ours.replay.sample(200)
    state = ours.policy.initial_state(200)
    y, _ = ours.policy.unroll_core(sample.obs, state, sample.first)
    for p, m in sample.is_step.nonzero().tolist():
        if p >= K:
            assert torch.equal(y[p, m], acted[tuple(sample.obs[p, m].tolist())])
            checked += 1
    assert checked > 500


# Rows of several actors ----------------------------------------------------------------------------------


def test_rollouts_of_actors_that_run_ahead_go_to_their_own_rows():
    """An actor may deliver twice, another not at all; every row's stream stays that of its env."""
    policy = make_policy(TensorWorld(2), SMALL, head=HEADS["r2d2"])
    config = R2D2Config(**DEFAULTS)
    actors = [
        Actor(TensorWorld(2), policy, rollout=8, seed=i, index=i, actors=3, **acting(config).keywords())
        for i in range(3)
    ]
    orders = [(2, 0, 2), (0,), (1, 1, 0), (2,), (0, 1, 2), (1, 0)]
    mixed, sorted_ = make_replay(policy, config, 6), make_replay(policy, config, 6)
    for order in orders:
        rollouts = [keep(actors[i].collect()) for i in order]
        whole = Rollout.join(rollouts, is_mixed=True)
        assert whole.actors == order
        add(mixed, whole)
        for rollout in rollouts:
            sorted_.add(rollout, row=rollout.actor * 2)
    found, expected = mixed.state_dict(), sorted_.state_dict()
    spare = 6 * mixed.capacity
    for name, value in expected.items():
        if name.startswith(("obs", "action", "reward", "word")):
            assert torch.equal(found[name][:spare], value[:spare]), name
    assert torch.equal(found["head"], expected["head"])
    assert mixed.windows == sorted_.windows > 0


# Noise ---------------------------------------------------------------------------------------------------


def test_noise_is_drawn_for_every_rollout_and_every_step():
    """It travels with the weights, so what acted can be reproduced."""
    head = QHeadConfig(hidden=(8,), gain=1.0, noisy=True)
    ours, actor = learner(head=head, gauge_every=1)

    def noise(policy: Policy) -> tuple[float, ...]:
        buffers = dict(policy.named_buffers())
        assert {n for n in buffers if "noise" in n} <= policy.state_dict().keys()
        return tuple(float(b.sum()) for n, b in buffers.items() if "noise" in n)

    seen, learned, targets = [], [], []

    class Spy:
        @staticmethod
        def loss(policy: Any, target: Any, *given: Any) -> Any:
            learned.append(noise(policy))
            targets.append(noise(target))
            return loss(policy, target, *given)

    loss, ours.algorithm = ours.algorithm.loss, Spy  # type: ignore[assignment]
    for _ in range(5):
        before = noise(ours.policy)
        rollout = actor.collect()
        assert noise(ours.policy) == before
        ours.update(rollout)
        seen.append(noise(ours.policy))
    assert len(set(seen)) == 5
    assert len(set(learned)) == len(set(targets)) == ours.gradient_steps == len(learned)
    assert not set(seen) & set(learned)
    assert not set(learned) & set(targets)


# Random streams ------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same_sequences_and_another_does_not():
    """S003-24."""
    found = []
    for seed in (0, 0, 1):
        _, actor = learner()
        ours = make_learner(actor.policy, R2D2Config(**DEFAULTS), rows=4, seed=seed)
        for _ in range(3):
            ours.update(actor.collect())
        found.append(weights(ours.policy))
    assert same(found[0], found[1])
    assert not same(found[0], found[2])


# What is reported ----------------------------------------------------------------------------------------


def test_constant_observations_and_rewards_are_reported_once():
    """S003-20: by name, zeros and other constants, and the run goes on."""
    ours, actor = learner()
    said = []
    for _ in range(6):
        rollout = actor.collect()
        rollout.reward.zero_()
        ours.update(rollout)
        said += ours.deviation_check.notes
        ours.deviation_check.notes.clear()
    assert len(said) == 1
    assert said[0].startswith("reward is 0 in every step")
    ours, actor = learner(core="none", states="rebuilt", burn_in_steps=0, gauge_every=0)
    metrics: dict[str, float] = {}
    for _ in range(6):
        rollout = actor.collect()
        rollout.obs.copy_(torch.tensor([1.0, 2.0, 3.0]))
        ours.deviation_check.check = lambda *_: None  # type: ignore[method-assign]
        metrics = ours.update(rollout)
    (note,) = ours.deviation_check.notes
    assert note.startswith("observation is the same in every step")
    assert not any(name.startswith("constant/") for name in metrics)


def test_healthy_batches_say_nothing():
    """S003-20: and a mask of actions, which seldom changes, is no observation."""
    env = as_rows([lambda: ScriptedEnv(spaces.Discrete(3), masked=True)] * 3, "loop")
    ours, actor = learner(env=env)
    for _ in range(6):
        rollout = actor.collect()
        ours.update(rollout)
    assert ours.deviation_check.notes == []


def test_metrics_vary_and_agree():
    """S003-19, S003-15: the ratio is that of the setting; sizes and ages grow."""
    ours, actor = learner(replay_ratio=3.0)
    rows = [ours.update(actor.collect()) for _ in range(12)]
    assert rows[-1]["gradient_steps"] == ours.gradient_steps == sum(row["minibatches"] for row in rows)
    for name in ("loss/q", "td_error", "replay/age", "replay/sequences", "q/mean", "grad_norm"):
        assert len({row[name] for row in rows[3:]}) > 3, name
    assert all(row["td_error"] >= 0 for row in rows[1:] if "td_error" in row)


# Checkpoints ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("noisy", [False, True])
def test_a_saved_learner_continues_bit_for_bit(algo, noisy):
    """S000-20: weights, target, optimiser, random stream, owed steps, epsilon and replay."""
    settings: dict[str, Any] = {
        "save_replay": True,
        "replay_ratio": 0.7,
        "target_every": 3,
        "target_rate": None,
    }
    if noisy and algo == "r2d2":
        settings["head"] = QHeadConfig(hidden=(8,), noisy=True)
    ours, actor = learner(algo, **settings)
    rollouts = [keep(actor.collect()) for _ in range(9)]
    ours.deviation_check.check = lambda *_: None  # type: ignore[method-assign]
    for i, rollout in enumerate(rollouts[:5]):
        ours.update(rollout, i / 9)
    saved = tree.clone(dict(ours.policy.state_dict()))
    tensors = {name: leaf.clone() for name, leaf in learner_tensors(ours).items()}
    other, _ = learner(algo, seed=0, **settings)
    other.deviation_check.check = lambda *_: None  # type: ignore[method-assign]
    nudge(other.policy)
    nudge(other.target)
    other.policy.load_state_dict(saved)
    load_learner(other, Learned(updates=ours.updates, optimizer=tensors))
    assert other.is_complete
    rows = [
        [one.update(rollout, 0.5 + i / 9) for i, rollout in enumerate(rollouts[5:])] for one in (ours, other)
    ]
    for one, two in zip(*rows):
        assert one.keys() == two.keys()
        assert [name for name in one if one[name] != two[name] and one[name] == one[name]] == []
    assert same(weights(ours.policy), weights(other.policy))
    assert same(weights(ours.target), weights(other.target))
    assert rows[0][-1]["gradient_steps"] > 3


def test_a_learner_without_its_replay_says_so():
    ours, actor = learner(save_replay=False)
    for _ in range(3):
        ours.update(actor.collect())
    other, _ = learner(save_replay=False)
    load_learner(other, Learned(optimizer=learner_tensors(ours)))
    assert not other.is_complete
    assert other.gradient_steps == ours.gradient_steps
    assert other.replay.steps == 0
    assert float(other.head.epsilon) == float(ours.head.epsilon)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"core": LSTMConfig(hidden=9)}, "another network"),
        ({"replay_capacity": 800, "save_replay": True}, "capacity"),
        ({"n_step": 1, "save_replay": True}, "n_step"),
    ],
)
def test_a_learner_of_other_settings_is_not_loaded(settings, words):
    """The error names what differs."""
    ours, actor = learner(save_replay=True)
    for _ in range(3):
        ours.update(actor.collect())
    other, _ = learner(**settings)
    with pytest.raises((ConfigError, StateError), match=words):
        load_learner(other, Learned(optimizer=learner_tensors(ours)))
