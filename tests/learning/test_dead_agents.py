"""Dead agents weigh nothing: masking their steps equals removing them, for every algorithm and head.

Users of JaxMARL, Mava and BenchMARL met losses averaged over the dead, rows of the critic in another order
than the reset mask, and an env's end in place of the agent's. ``mutants/dead_agent_bugs.py`` plants each.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.base import devices
from recollect.config.algo_choice import ALGOS
from recollect.config.core_choice import CORES
from recollect.cores import LSTMConfig
from recollect.experience.rollout import Rollout
from recollect.learning import learner as learning
from recollect.learning.learner import Learner
from recollect.learning.optimiser import Adam
from recollect.policy.policy import Policy
from recollect.training.episodes import EpisodeTracker
from tests.learning.test_master import HEADS
from tests.learning.test_ranks import learn_together
from tests.support.helpers import ScriptedEnv, make_policy
from tests.support.lives import BURN_IN, CHUNK, HOMES, LIVES, LIVING, ROWS, T, by_life, live, with_the_dead
from tests.support.ranked import groups

LSTM = LSTMConfig(hidden=6)
LEARN_FROM_ROLLOUTS = ("ppo", "impala")
"""A replay does not store the steps of the dead: tests/experience/test_replay.py."""
OWN = {"padding", "sequences"}
"""Metrics that say how much was masked."""
STATES = ("state/", "staleness")
"""Metrics of the stored states, computed in float32."""

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "raw advantages": {"normalise_advantages": False},
    "value clip": {"value_clip": 0.1},
    "reward clip": {"reward_scale": 0.5, "reward_clip": 0.4},
    "until a KL": {"target_kl": 1e-3, "learning_rate": 0.01, "epochs": 5},
    "far": {"learning_rate": 0.05, "epochs": 4, "clip": 0.05},
    "next observations": {"next_obs_coef": 0.5},
    "burn-in": {"recurrent_mode": "burn_in", "burn_in_steps": BURN_IN},
    "full": {"recurrent_mode": "full", "chunk": T},
    "refreshed": {"refresh_states": True, "recompute_advantages": True},
    "recomputed": {"recompute_advantages": True},
    "episodes": {"batching": "episodes"},
    "episodes in minibatches": {"batching": "episodes", "minibatches": 2},
    "in parts": {"accumulate": 3},
    "minibatches": {"minibatches": 2},
    "recomputed activations": {"recompute_activations": True},
    "l2": {"l2_init": 0.01, "weight_clip": 1.5},
}
CASES = [("ppo", name) for name in OPTIONS] + [
    ("impala", name) for name in OPTIONS if name not in ("value clip",)
]
MORE: dict[str, dict[str, Any]] = {
    "clipped": {"clip": 0.2, "normalise_advantages": True},
    "tight traces": {"rho_clip": 0.8, "c_clip": 0.7, "lag": 1},
    "lag": {"lag": 2},
}
"""Of IMPALA alone."""


class Found(NamedTuple):
    """What an update has computed."""

    targets: dict[str, Tensor]
    gradients: list[dict[str, Tensor]]
    """For each optimiser step."""
    metrics: dict[str, float]
    weights: dict[str, Tensor]
    """With the statistics of observations and values."""


def make(algo: str = "ppo", head: str = "discrete", core: Any = LSTM, **settings: Any) -> Learner:
    """A learner in float64."""
    options = dict(HEADS[head])
    network = make_policy(
        ScriptedEnv(**{k: v for k, v in options.items() if k != "squash"}),
        core,
        squash=options.get("squash", "auto"),
        normalise_observations=True,
    ).double()
    given = {"rollout": T, "chunk": CHUNK, "minibatches": 1, "epochs": 2, "gauge_every": 1, "entropy": 0.02}
    config = ALGOS[algo](**given | settings)
    config.check(network, ROWS)
    return make_learner(network, config)


def parts_by_home(ours: Any, rows: int) -> Any:
    """``minibatches`` that gives all steps of the same living row to the same minibatch."""
    seen: list[Any] = []
    sequences = ours.sequences

    def spied(*given: Any) -> Any:
        seen[:] = [sequences(*given)]
        return seen[0]

    def parts(count: int, number: int, *_: Any) -> Iterator[Tensor]:
        of_row = getattr(seen[0], "begin", torch.arange(count)) % rows
        home = of_row if rows == LIVING else torch.tensor(HOMES)[of_row]
        for part in range(number):
            yield (home % number == part).nonzero().flatten()

    ours.sequences = spied
    return parts


def learn(ours: Learner, rollout: Rollout, lag: int = 0) -> Found:
    """One update, and what it computed on the way."""
    data: dict[str, Tensor] = {}
    gradients: list[dict[str, Tensor]] = []
    targets = ours.targets

    def spied(*given: Any) -> Any:
        found = targets(*given)
        data.update(found.data)
        return found

    step = ours.optimizer.step

    def note(*given: Any) -> None:
        gradients.append({n: p.grad.clone() for n, p in ours.named_parameters() if p.grad is not None})
        step(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ours, "sequences", ours.sequences)  # is put back
        patch.setattr(learning, "minibatches", parts_by_home(ours, rollout.rows))
        patch.setattr(ours, "targets", spied)
        patch.setattr(ours.optimizer, "step", note)
        metrics = ours.update(rollout, lag=lag)
    weights = {name: leaf.clone() for name, leaf in ours.policy.state_dict().items()}
    return Found(data, gradients, metrics, weights)


def same(name: str, masked: Any, removed: Any, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(
        masked, removed, atol=tolerance, rtol=tolerance, equal_nan=True, msg=lambda m: f"{name}: {m}"
    )


def assert_same(masked: Found, removed: Found, has_burn_in: bool) -> None:
    """All that the update with the dead has computed is what the one without them has."""
    assert masked.targets.keys() == removed.targets.keys() >= {"advantage", "return", "value"}
    for name, value in removed.targets.items():
        same(name, by_life(masked.targets[name], False), by_life(value, True))
    assert len(masked.gradients) == len(removed.gradients)
    for ours, theirs in zip(masked.gradients, removed.gradients):
        assert ours.keys() == theirs.keys()
        for name, grad in theirs.items():
            same(f"gradient of {name}", ours[name], grad)
    assert masked.metrics.keys() == removed.metrics.keys()
    for name in removed.metrics.keys() - OWN:
        if has_burn_in and name.startswith(STATES):
            continue  # states are stored before each chunk but the first, so a moved life may have one less
        tolerance = 1e-6 if name.startswith(STATES) else 1e-10
        same(name, masked.metrics[name], removed.metrics[name], tolerance)
    for name, value in removed.weights.items():
        same(name, masked.weights[name], value)


def experience(
    policy: Policy, ours: Learner, seed: int, garbage: float = torch.nan
) -> tuple[Rollout, Rollout]:
    """A rollout with the dead, whose numbers are ``garbage``, and the same without them."""
    alive, states = live(policy, ours.algorithm.acting(ours.config), seed)
    return with_the_dead(alive, states, garbage), alive


def check(
    algo: str = "ppo", head: str = "discrete", *, lag: int = 0, garbage: float = torch.nan, **settings: Any
) -> None:
    """Two updates with the dead equal two without them."""
    masked, removed = (make(algo, head, **settings) for _ in range(2))
    old = deepcopy(removed.policy)
    for update in range(2):
        if not lag:
            old = deepcopy(removed.policy)
        dead, alive = experience(old, removed, update, garbage)
        if lag:
            with torch.no_grad():
                for field in ("log_prob", "value"):
                    noise = torch.randn(T, ROWS, generator=torch.Generator().manual_seed(update)) * 0.5
                    _spoil(dead, alive, field, noise.double())
        assert_same(learn(masked, dead, lag), learn(removed, alive, lag), masked.config.burn_in_steps > 0)


def _spoil(dead: Rollout, alive: Rollout, field: str, noise: Tensor) -> None:
    """Add noise to a field of the record, as other weights would have recorded it."""
    for life in LIVES:
        steps, later = slice(life.begin, life.end), slice(life.begin + life.later, life.end + life.later)
        alive.record[field][steps, life.home] += noise[later, life.row]
        dead.record[field][later, life.row] += noise[later, life.row]


@pytest.mark.parametrize("garbage", [torch.nan, 1e6])
@pytest.mark.parametrize(("algo", "option"), CASES)
def test_every_option(algo: str, option: str, garbage: float):
    """S001-29: loss, gradients, advantages, returns, statistics and metrics, to 1e-10, for every option."""
    check(algo, garbage=garbage, **OPTIONS[option])


@pytest.mark.parametrize("option", MORE)
def test_every_option_of_impala(option: str):
    """S001-29: the same with ratios that are not 1."""
    check("impala", **MORE[option])


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("algo", LEARN_FROM_ROLLOUTS)
def test_every_head(algo: str, head: str):
    """S001-29: the same for every action space; the masks of the dead forbid every action."""
    check(algo, head)


@pytest.mark.parametrize("core", [name for name in CORES if name != "lstm"])
def test_every_core(core: str):
    """S001-29: the same for every memory."""
    mode = {"recurrent_mode": "none"} if core == "none" else {}
    check("ppo", core=core, **mode)
    check("impala", core=core, **mode)


@pytest.mark.parametrize("option", ["plain", "burn-in", "next observations", "refreshed", "in parts"])
@pytest.mark.parametrize("algo", LEARN_FROM_ROLLOUTS)
def test_without_host_reads(algo: str, option: str, monkeypatch: pytest.MonkeyPatch):
    """S001-29: the same where a host read synchronises, as on a GPU: masks are never read."""
    step = Adam.clipped_step  # torch takes the scale of float64 gradients in float32
    monkeypatch.setattr(
        Adam, "clipped_step", lambda self, norm, *rest, **skip: step(self, norm.float(), *rest, **skip)
    )
    monkeypatch.setattr(devices, "synchronises", lambda _: True)
    check(algo, max_grad_norm=1e9, **OPTIONS[option])


@pytest.mark.parametrize("option", ["plain", "next observations", "episodes"])
@pytest.mark.parametrize("algo", LEARN_FROM_ROLLOUTS)
def test_several_learners(algo: str, option: str):
    """S001-29: three learners with a slot each, each with dead agents, learn as one."""
    removed, *many = (make(algo, **OPTIONS[option]) for _ in range(4))
    with groups(3, 3, 3) as run:
        for update in range(2):
            dead, alive = experience(deepcopy(removed.policy), removed, update)
            theirs = learn(removed, alive)
            found = learn_together(run, many, dead, 0.0, 0)
            for name in theirs.metrics.keys() - OWN:
                tolerance = 1e-6 if name.startswith(STATES) else 1e-10
                same(name, found[0][name], theirs.metrics[name], tolerance)
            for name, value in theirs.weights.items():
                same(name, many[0].policy.state_dict()[name], value)


def test_the_dead_are_garbage():
    """The comparison can fail: most rows have dead steps, all of which hold NaN."""
    ours = make()
    dead, alive = experience(ours.policy, ours, 0)
    assert alive.valid.all()
    assert not dead.valid[:, [2, 8]].any()
    assert int(dead.valid.sum()) == alive.valid.numel()
    for leaf in (dead.obs[:T], dead.reward, *dead.record.values()):
        assert leaf[~dead.valid].isnan().all()
        assert not leaf[dead.valid].isnan().any()


@pytest.mark.parametrize("is_read_late", [False, True])
def test_episodes(is_read_late: bool, monkeypatch: pytest.MonkeyPatch):
    """S001-29: the returns and lengths of the lives that ended, and the number of steps."""
    monkeypatch.setattr(devices, "synchronises", lambda _: is_read_late)
    ours, found, means = make(), [], []
    for rollout in experience(ours.policy, ours, 0):
        tracker = EpisodeTracker(rollout.rows)
        part = tracker.add(rollout)
        found.append(sorted(zip(part.returns.tolist(), part.lengths.tolist())))
        means.append(tracker.metrics())
        assert part.steps == T * LIVING
    np.testing.assert_allclose(*found, rtol=1e-12)
    assert means[0] == pytest.approx(means[1], rel=1e-12)
    assert len(found[0]) == sum(bool(life.how) for life in LIVES)
