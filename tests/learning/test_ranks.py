"""Several learners are one: the same gradient, the same statistics, the same weights on every rank."""

from __future__ import annotations

import functools
import threading
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from recollect.acting.actor import Actor
from recollect.algos import impala
from recollect.errors import AlignmentError, LostError, RecollectError
from recollect.experience.chunks import minibatches
from recollect.experience.rollout import Rollout
from recollect.learning import actor_critic, diagnostics, ranks
from recollect.learning.actor_critic import normalise
from recollect.learning.learner import Learner
from recollect.learning.ranks import ALONE, Group
from recollect.learning.sequences import SharedSequences
from recollect.policy.normalise import Moments, ObservationNorm
from tests.mutants.mutant import Mutant
from tests.support.helpers import ArenaWorld, TensorWorld
from tests.support.ppo_setup import gradients, learner, same, weights
from tests.support.ranked import groups

OWN = {"passes", "recomputed", "padding"}
"""Metrics that differ: what a rank did, and the padding where it had nothing to do."""


def several(size: int, **given: Any) -> tuple[Learner, Actor, list[Learner]]:
    """One learner with its actor, and ``size`` more that begin as it does."""
    one, actor = learner(**given)
    return one, actor, [learner(**given)[0] for _ in range(size)]


def learn_together(run: Any, many: list[Learner], rollout: Rollout, progress: float, lag: int) -> list[Any]:
    """The metrics of every rank after an update on its rows of the rollout."""

    def one(group: Group) -> dict[str, float]:
        many[group.rank].ranks = group
        part = ranks.shards(rollout, group.rows)[group.rank]
        return many[group.rank].update(part, progress, lag=lag)

    return run(one)


def assert_alike(what: str, found: dict[str, float], truth: dict[str, float], **within: float) -> None:
    """The metrics are those of ``truth``; those that are not are named."""
    other = [name for name in truth if found[name] != pytest.approx(truth[name], nan_ok=True, **within)]
    assert not other, f"other than those {what}: {other}"


def check_same_learning(*rows: int, updates: int = 3, spoil: Any = None, lag: int = 0, **given: Any) -> None:
    """After some updates every rank has the weights of every other, bit for bit, and about those of one."""
    env = given.pop("env", TensorWorld)
    slots = sum(rows) // (2 if env is ArenaWorld else 1)
    one, actor, many = several(len(rows), env=env(slots), **given)
    waiting = [deepcopy(actor.collect()) for _ in range(lag)]
    with groups(*rows) as run:
        for update in range(updates):
            waiting.append(deepcopy(actor.collect()))
            rollout = waiting.pop(0)
            if spoil is not None:
                rollout = spoil(rollout)
            found = learn_together(run, many, rollout, update / updates, lag)
            alone = one.update(rollout, update / updates, lag=lag)
            for part in found:
                assert part.keys() == alone.keys()
                assert_alike("of rank 0", part, found[0], abs=0, rel=0)
            assert found[0]["padding"] >= alone["padding"] - 1e-6
            shared = {name: value for name, value in alone.items() if name not in OWN}
            assert_alike("of one learner", found[0], shared, rel=2e-3, abs=2e-4)
    for other in many[1:]:
        assert same(weights(many[0]), weights(other))
        assert torch.equal(many[0].generator.get_state(), other.generator.get_state())
    for name, value in weights(one).items():
        torch.testing.assert_close(many[0].policy.state_dict()[name], value, rtol=1e-3, atol=1e-5)


def dead_rows(rollout: Rollout) -> Rollout:
    """The first two rows are no experience, and hold NaN."""
    valid = rollout.valid.clone()
    valid[:, :2] = False
    reward = rollout.reward.masked_fill(~valid, torch.nan)
    return replace(rollout, valid=valid, reward=reward)


CASES: dict[str, dict[str, Any]] = {
    "no memory": {"core": "none", "recurrent_mode": "none"},
    "lstm": {},
    "burn-in": {"recurrent_mode": "burn_in", "burn_in_steps": 3},
    "refreshed": {"refresh_states": True, "recompute_advantages": True},
    "episodes": {"batching": "episodes"},
    "next observations": {"next_obs_coef": 0.5, "l2_init": 0.01, "weight_clip": 1.5},
    "in parts": {"accumulate": 2, "minibatches": 2, "recompute_activations": True},
    "until a KL": {"target_kl": 1e-4, "learning_rate": 0.01},
    "impala": {"algo": "impala"},
    "impala without memory": {"algo": "impala", "core": "none", "recurrent_mode": "none", "epochs": 1},
    "impala, clipped": {"algo": "impala", "clip": 0.2, "normalise_advantages": True},
}


@pytest.mark.parametrize("case", CASES)
def test_two_learners_learn_what_one_does(case: str):
    """S002-15: parameters stay equal on all ranks, and are those of one learner on the whole batch."""
    check_same_learning(2, 2, **CASES[case])


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_weights_that_moved_on(algo: str):
    """S002-15: with a lag every rank corrects for its rows, and the ratios are reported of all."""
    check_same_learning(3, 1, lag=1, algo=algo)


def test_dead_agents_on_every_rank():
    """S002-15, S000-13: NaN of dead agents reaches no other rank."""
    check_same_learning(4, 2, env=ArenaWorld)


@pytest.mark.parametrize(
    "case",
    [
        "lstm",
        "impala",
        *(pytest.param(case, marks=pytest.mark.slow) for case in ("episodes", "next observations")),
    ],
)
def test_three_learners_with_uneven_rows(case: str):
    """S002-15: some minibatches have nothing of some ranks, which take part all the same."""
    check_same_learning(2, 1, 1, minibatches=4 if case == "episodes" else 8, **CASES[case])


@pytest.mark.parametrize("batching", ["chunks", "episodes"])
def test_a_rank_without_any_experience(batching: str):
    """S002-15, S001-30: its rows count for nothing; the others learn as one learner does of all rows."""
    check_same_learning(2, 3, spoil=dead_rows, batching=batching)


# One minibatch -------------------------------------------------------------------------------------------


def backward(ppo: Learner, rollout: Rollout, number: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Gradients and statistics of one of the minibatches of a fresh rollout."""
    rollout, data, _ = ppo.targets(rollout, 0)
    sequences = ppo.sequences(rollout, data)
    drawn = list(minibatches(sequences.count, ppo.config.minibatches, ppo.generator, sequences.sizes))
    stats = ppo.backward(sequences, drawn[number], 0.01)
    return gradients(ppo), stats


def check_gradient(rows: tuple[int, ...] = (2, 2), spoil: Any = None, **given: Any) -> None:
    """The gradient of every minibatch, summed over the ranks, is that of one learner to 1e-6."""
    given = {"minibatches": 5} | given
    for number in range(given["minibatches"]):
        one, actor, many = several(len(rows), env=TensorWorld(sum(rows)), **given)
        actor.collect()
        rollout = actor.collect() if spoil is None else spoil(actor.collect())
        parts = ranks.shards(rollout, rows)

        def ranked(group: Group, many=many, parts=parts, number=number) -> Any:
            many[group.rank].ranks = group
            return backward(many[group.rank], parts[group.rank], number)

        with groups(*rows) as run:
            found = run(ranked)
        whole, stats = backward(one, rollout, number)
        size = torch.cat([grad.flatten() for grad in whole.values()]).norm()
        assert size > 0
        for theirs, _ in found:
            gap = torch.cat([(theirs[name] - whole[name]).flatten() for name in whole]).norm()
            assert gap <= 1e-6 * size
            assert same(theirs, found[0][0])
        for name in stats.keys() - OWN:
            torch.testing.assert_close(found[0][1][name], stats[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [(2, 2), (3, 1), (1, 2, 1)])
def test_the_gradient_is_that_of_one_learner(rows: tuple[int, ...]):
    """S002-15: for every minibatch, also those that some ranks have no share of."""
    check_gradient(rows, next_obs_coef=0.3)


one_update = functools.partial(check_same_learning, 2, 2, updates=1)
MUTANTS = [
    Mutant(
        "every rank normalises its own advantages",
        check_gradient,
        (
            (
                actor_critic,
                "normalise",
                "valid = ranks.gather(advantage, valid)",
                "ranks = advantage, ALONE",
            ),
        ),
        by="assert gap <= 1e-6 * size",
        known="data-parallel trainers that normalise in the minibatch",
    ),
    Mutant(
        "every rank scales by its own returns",
        check_gradient,
        (
            (
                actor_critic,
                "update_value_statistics",
                "ranks.gather(rollout.valid, returns)",
                "rollout.valid, returns",
            ),
        ),
        by="assert gap <= 1e-6 * size",
    ),
    Mutant(
        "every rank divides by its own valid steps",
        check_gradient,
        (
            (
                SharedSequences,
                "valid_steps",
                "self._counts[which.to(self._counts.device)].sum()",
                "self.own.valid_steps(self._mine(which))",
            ),
        ),
        by="assert gap <= 1e-6 * size",
        known="the average of the means of unequal shares",
    ),
    Mutant(
        "every rank divides by its own next observations",
        lambda: check_gradient(next_obs_coef=0.5),
        ((SharedSequences, "total", "self.ranks.sum(", "("),),
        by="assert gap <= 1e-6 * size",
    ),
    Mutant(
        "gradients stay local",
        check_gradient,
        ((ranks, "add_up", "total.view_as(parameter) if count > 0 else None", "parameter.grad"),),
        by="assert gap <= 1e-6 * size",
    ),
    Mutant(
        "every rank draws from its own rows",
        check_gradient,
        ((SharedSequences, "_mine", "self._place[which.to(self._place.device)]", "which % self.own.count"),),
        by="assert gap <= 1e-6 * size",
    ),
    Mutant(
        "observation statistics of a rank's own rows",
        lambda: check_same_learning(2, 2, updates=2),
        ((ObservationNorm, "update", "scaling.merge(leaf[valid], gather)", "scaling.merge(leaf[valid])"),),
        by="AlignmentError: update 0: the learners do not hold the same weights any more",
    ),
    Mutant(
        "the metrics of one rank's rows",
        one_update,
        ((diagnostics, "describe", "valid, *numbers = ranks.gather(", "valid, *numbers = ("),),
        by="other than those of rank 0: ['reward/mean'",
    ),
    Mutant(
        "the states of one rank's rows",
        one_update,
        ((diagnostics, "state_norms", "ranks.gather(norm, lived, together)", "norm, lived, together"),),
        by="other than those of rank 0: ['state/norm'",
    ),
    Mutant(
        "the ratios of one rank's rows",
        lambda: check_same_learning(2, 2, updates=2, lag=1, algo="impala"),
        ((impala, "_ratios", "log_ratio, valid = ranks.gather(", "log_ratio, valid = ("),),
        by="other than those of rank 0: ['rho/mean'",
    ),
    Mutant(
        "the pull towards the start once for every rank",
        lambda: check_same_learning(2, 2, updates=2, l2_init=1.0),
        ((Learner, "backward", "penalty = config.l2_init", "penalty = self.ranks.size * config.l2_init"),),
        by="'loss/l2_init'",
    ),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_local_statistics_are_noticed(mutant: Mutant):
    """S002-15, S001-30: each bug that makes something local fails the proof that the healthy code passes."""
    mutant.assert_caught()


# The parts ------------------------------------------------------------------------------------------------


def test_advantages_are_normalised_over_all_ranks():
    """S001-30: bit for bit what one learner makes of all rows, whatever invalid steps hold."""
    generator = torch.Generator().manual_seed(0)
    advantage = torch.randn(9, 7, generator=generator) * 3 + 1
    valid = torch.rand(9, 7, generator=generator) > 0.3
    valid[:, :2] = False
    advantage[~valid] = torch.nan
    whole = normalise(advantage, valid)
    with groups(2, 4, 1) as run:
        parts = run(lambda group: normalise(group.own(advantage), group.own(valid), group))
    assert torch.equal(torch.cat(parts, 1), whole)
    one = torch.tensor([[True, False]])
    with groups(1, 1) as run:  # one valid step on one rank only
        parts = run(lambda group: normalise(group.own(torch.ones(1, 2)), group.own(one), group))
    assert all((part == 0).all() for part in parts)


def test_moments_merge_over_ranks():
    """S002-15: count, mean and variance of all samples; the ranks agree bit for bit; one has none."""
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)) * 5 + 100
    whole = Moments((3,))
    own = [Moments((3,)) for _ in range(3)]
    cuts = [x[:20], x[20:20], x[20:]]
    with groups(1, 1, 1) as run:
        for _ in range(2):
            whole.merge(x)
            run(lambda group: own[group.rank].merge(cuts[group.rank], group.each))
    for name, value in whole.state_dict().items():
        torch.testing.assert_close(own[0].state_dict()[name], value, rtol=1e-12, atol=1e-9)
        assert all(torch.equal(part.state_dict()[name], own[0].state_dict()[name]) for part in own)
    assert whole.count == 100


def test_numbers_are_gathered_in_the_order_of_rows():
    """Mixed dtypes in one message, exact; ``own`` is the way back."""
    number = torch.arange(14, dtype=torch.float64).view(2, 7) / 3
    flag, count = number > 2, (number * 1e9).long()
    with groups(3, 1, 3) as run:
        found = run(lambda g: g.gather(g.own(number), g.own(flag), g.own(number).float()))
        sums = run(lambda g: g.sum(torch.tensor([g.rank + 1, 10])))
        highest = run(lambda g: g.max(torch.tensor([g.rank, -g.rank])))
        counted = run(lambda g: g.gather_any(g.own(count)[:, : g.rank]))
        with pytest.raises(RecollectError, match="holds 3 rows and was given 7"):
            run(lambda g: g.gather(number))
    for whole, flags, small in found:
        assert torch.equal(whole, number)
        assert torch.equal(flags, flag)
        assert torch.equal(small, number.float())
    assert all(total.tolist() == [6, 30] for total in sums)
    assert all(top.tolist() == [2, 0] for top in highest)
    assert [begin for _, begin in counted] == [0, 0, 1]
    assert all(torch.equal(all_, count[:, [3, 4, 5]]) for all_, _ in counted)


def test_alone_costs_nothing():
    x = torch.randn(3, 4)
    assert ALONE.sum(x) is ALONE.max(x) is ALONE.own(x) is x
    assert ALONE.gather(x, x) == (x, x)
    assert ALONE.each(x) == [x]


def test_a_gradient_that_only_one_rank_has():
    """A parameter that no rank used keeps no gradient; one that some used gets theirs."""

    def add(group: Group) -> list[Tensor | None]:
        used, unused = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
        if group.rank == 1:
            used.grad = torch.tensor([1.0, 2.0])
        numbers = {"kl": torch.tensor(0.5), "deviation/value": torch.tensor(float(group.rank))}
        stats = ranks.add_up(group, [used, unused], numbers, "deviation/")
        assert {name: float(value) for name, value in stats.items()} == {"kl": 1.0, "deviation/value": 1.0}
        return [used.grad, unused.grad]

    with groups(1, 1) as run:
        for used, unused in run(add):
            assert used is not None
            assert used.tolist() == [1.0, 2.0]
            assert unused is None


def test_learners_that_drift_apart_are_noticed():
    """S002-15: identical parameters are checked in every update, not hoped for."""
    with groups(1, 1) as run:
        run(lambda g: ranks.check_equal(g, [torch.ones(5)], 3))
        with pytest.raises(AlignmentError, match=r"update 3.*not hold the same weights"):
            run(lambda g: ranks.check_equal(g, [torch.ones(5), torch.full((2,), 1 + g.rank * 1e-7)], 3))


def test_a_rank_that_leaves_is_noticed_at_once():
    """S000-25: who waits for it gets an error, not a hang."""
    with groups(1, 1, timeout=60.0) as run, pytest.raises(LostError, match="has lost the other learners"):
        run(lambda g: g.close() if g.rank == 1 else g.sum(torch.zeros(3)))


def test_a_rank_that_does_not_answer_is_noticed():
    """S000-25: every wait has an end."""
    over = threading.Event()

    def wait(group: Group) -> None:
        if group.rank == 1:
            over.wait(30)
            return
        try:
            group.sum(torch.zeros(3))
        finally:
            over.set()

    with groups(1, 1, timeout=1.0) as run, pytest.raises(LostError, match="has not answered for 1 seconds"):
        run(wait)


def test_a_late_rollout_is_checked_by_one_rank_alone():
    """The first learner checks one with the weights that acted, and nobody else need answer."""
    one, actor, many = several(1, env=TensorWorld(4))
    rollout = actor.collect()
    with groups(2, 2) as run:

        def check(group: Group) -> dict[str, float]:
            many[0].ranks = group
            return many[0].deviation_check.check_late(rollout, one.policy, 0)

        found = run(lambda group: check(group) if group.rank == 0 else None)[0]
    assert 0 <= found["deviation/log_prob"] < 1e-5
