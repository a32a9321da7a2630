"""The training loop: a few real updates, twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory
from weakref import ref

import torch
from torch import Tensor

from recollect.agent import Agent
from recollect.audit.results import Doubt, Problem, Skip
from recollect.audit.setup import Setup
from recollect.audit.update_checks import live_tensors
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.config.league import LEAGUE
from recollect.config.replay import ReplayConfig
from recollect.errors import AlignmentError, RecollectError
from recollect.learning import diagnostics
from recollect.policy.head_contract import Field
from recollect.policy.policies import by_group
from recollect.training.group_metrics import metrics_of
from recollect.training.metrics import History

PROCESS_UPDATES = 5
"""Updates of a training with actors in processes."""
TIMES = ("speed/", "seconds", "start_seconds")
"""Metrics that differ from run to run."""
PASSES = ("deviation", "grad_", "padding")
"""Metrics that depend on how sums are divided over learners."""
SUMS = 1e-3
"""Tolerance for sums in another order, over a few updates."""
ITERATIONS = 8
"""Iterations in which tensors may be left behind."""
UPDATES = 2
"""Updates of a training; with a replay, after it holds whole sequences."""
MAY_BE_MISSING = ("explained_variance", "state/drift", "replay/staleness")
"""Metrics that are NaN without variance, or without two states of one episode."""


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a short training."""

    before: dict[str, Tensor]
    after: dict[str, Tensor]
    """Weights and statistics."""
    learnable: list[str]
    """The names of weights that are not frozen."""
    metrics: list[dict[str, float]]
    fields: Mapping[str, Field]
    """The record of the head."""


def short_training(setup: Setup, rows: int, count: int = UPDATES) -> dict[str, Trained]:
    """A few updates of each group, made as ``recollect.train`` makes them; ``rows``: of all groups."""
    algo = setup.config.algo
    if isinstance(algo, ReplayConfig):
        count += -(-algo.window // algo.rollout)
    config = replace(setup.config, steps=count * algo.rollout * rows)
    with TemporaryDirectory() as folder, ExitStack() as opened:
        if config.vs == LEAGUE:  # its members are in a run folder
            config = replace(config, run=f"{folder}/run")
        agent = opened.enter_context(Agent.create(setup.env, config, setup.policy))
        policies = by_group(agent.network)
        before = {name: tree.clone(dict(policy.state_dict())) for name, policy in policies.items()}
        while len(agent.history.rows) < count:
            agent.train(progress=False)
            if config.max_seconds is not None:  # another leg would restart the schedules
                break
        return {
            name: Trained(
                before=before[name],
                after=tree.clone(dict(policy.state_dict())),
                learnable=[key for key, p in policy.named_parameters() if p.requires_grad],
                metrics=[metrics_of(name, row) for row in agent.history.rows],
                fields=policy.head.record_spec,
            )
            for name, policy in policies.items()
        }


def flat_training(setup: Setup, rows: int) -> str:
    """Of the tensors that each iteration of acting and learning makes, none lives much longer."""
    algo = setup.config.algo
    if isinstance(algo, ReplayConfig):
        raise Skip("a replay that is being filled keeps tables of its sequences")
    if setup.config.vs == LEAGUE:
        raise Skip("the opponents of a league are in the run folder of the training")
    config = replace(setup.config, steps=ITERATIONS * algo.rollout * rows)
    with Agent.create(setup.env, config, setup.policy) as agent:
        trainer, history = agent.need_trainer(), History(limit=1)
        trainer.begin(config.steps)
        made: list[list[ref[Tensor]]] = []
        with trainer.working():
            earlier: dict[int, ref[Tensor]] = {}
            for _ in range(ITERATIONS):
                history.add(trainer.iterate().metrics)
                now = {id(tensor): ref(tensor) for tensor in live_tensors()}
                made.append([one for name, one in now.items() if earlier.get(name) is not one])
                earlier = now
        count = len(live_tensors())
        # The first iteration allocates buffers, and the last tensors may still be in use.
        kept = [sum(one() is not None for one in found) for found in made[1:-2]]
    if sum(one > 0 for one in kept) >= len(kept) - 1:  # an env may keep a few, now and then
        raise Problem(
            f"of the tensors that {len(kept)} iterations have made, {kept} live on",
            "Likely cause: rollouts, final observations or metrics of earlier iterations are kept",
            "Fix: drop them when they have been learned from; keep numbers, not tensors",
            measured=float(min(kept)),
            tolerance=0.0,
        )
    if len(history.rows) > 1:
        raise Problem(
            f"a history of one update has the metrics of {len(history.rows)}",
            "Fix: drop the oldest where there are more than its limit",
        )
    return f"{count} tensors after {ITERATIONS} iterations; of those that one has made, {max(kept)} live on"


def versions(setup: Setup, rows: int) -> str:
    """Actors in processes of their own act with the weights whose version their rollouts name."""
    if setup.where.get("runtime", "inline") == "inline":
        raise Skip("acting and learning share one process")
    if setup.where["runtime"] != "processes":
        raise Skip(f"runtime {setup.where['runtime']}: its cluster is not started for an audit")
    actors = setup.where["actors"]
    rows = rows // setup.config.num_envs * setup.where["num_envs"]
    there = replace(setup, config=replace(setup.config, **setup.where))
    try:
        trained = short_training(there, rows, count=PROCESS_UPDATES)
    except AlignmentError as error:
        raise Problem(
            f"a rollout of another process is not reproduced by the weights that it names: {error}",
            "Likely cause: actors act with older or torn weights, name another version, or rollouts are "
            "mixed up between slots or actors",
            "Fix: read weights and version together, before the rollout, and copy rollouts out of their slot",
        ) from None
    lags = [row["lag"] for one in trained.values() for row in one.metrics if "lag" in row]
    largest = [
        deviation
        for one in trained.values()
        for row in one.metrics
        for deviation in diagnostics.deviations(row, one.fields).values()
    ]
    return (
        f"{PROCESS_UPDATES} updates from {actors} actors in processes, {setup.where['mode']}: deviations "
        f"up to {tiny(max(largest, default=0.0))}; lag up to {max(lags, default=0):g}"
    )


def processes(setup: Setup, rows: int) -> str:
    """A training in several processes, whose actors do not run ahead, is that of one process."""
    if not setup.where:
        raise Skip("the training has one process")
    if setup.where["runtime"] not in ("inline", "processes"):
        raise Skip(f"runtime {setup.where['runtime']}: its cluster is not started for an audit")
    rows = rows // setup.config.num_envs * setup.where["num_envs"]
    there = setup.where | {"mode": "lockstep", "max_lag": None}
    here = there | {"runtime": "inline", "env_workers": 0, "learners": 1, "learner_processes": False}
    found, right = (
        short_training(replace(setup, config=replace(setup.config, **where)), rows, count=PROCESS_UPDATES)
        for where in (there, here)
    )
    # Several learners add up their gradients in another order.
    tolerance, largest = (SUMS if there["learners"] > 1 else 0.0), 0.0
    for group, one in right.items():
        for name, gap in (*_metric_gaps(found[group], one), *_weight_gaps(found[group], one)):
            largest = max(largest, gap)
            if not gap <= tolerance:
                raise Problem(
                    f"in several processes {name} differs by {gap:.1e} from that of one process",
                    "Likely cause: a process has the steps, final observations, weights or seeds of another, "
                    "or of an earlier rollout; or learners do not add up their gradients",
                    "Fix: give each process its own rows, and copy them before they are overwritten",
                    measured=gap,
                    tolerance=tolerance,
                )
    return f"{PROCESS_UPDATES} updates: metrics and weights are those of one process, to {tiny(largest)}"


def _metric_gaps(found: Trained, right: Trained) -> Iterator[tuple[str, float]]:
    """The relative difference of every metric that is no time."""
    for number, (ours, theirs) in enumerate(zip(found.metrics, right.metrics)):
        for name, x in theirs.items():
            if name.startswith(TIMES + PASSES):
                continue
            y = ours.get(name, math.inf)
            same = x == y or (math.isnan(x) and math.isnan(y))
            yield f"{name} of update {number}", 0.0 if same else abs(x - y) / max(1.0, abs(x))


def _weight_gaps(found: Trained, right: Trained) -> Iterator[tuple[str, float]]:
    for name, leaf in right.after.items():
        gap = (leaf.double() - found.after[name].double()).abs()
        yield name, float(gap.max()) if gap.numel() else 0.0


def updates(trained: Trained, setup: Setup) -> str:
    """Updates change the weights, and all metrics are finite."""
    metrics = trained.metrics
    for number, row in enumerate(metrics):
        for name, x in row.items():
            if not math.isfinite(x) and name not in MAY_BE_MISSING:
                raise Problem(
                    f"update {number}: {name} is {x}",
                    "Likely cause: huge rewards or observations, or a loss that is not bounded",
                )
    before, after = trained.before, trained.after
    moved = [name for name in trained.learnable if not torch.equal(before[name], after[name])]
    # The value head also changes with the statistics of the returns, without any learning.
    if all(name.startswith("critic.") for name in moved):
        raise Problem(
            f"after {len(metrics)} updates no weight has learned anything",
            "Likely cause: the optimiser does not hold the network's parameters, or its step is not "
            "called; or the learning rate is 0",
            "Fix: make the optimiser after the network has been moved to its device",
        )
    # Only shown: a run whose learner does not reproduce the record stops by itself.
    largest = [max(diagnostics.deviations(row, trained.fields).values(), default=0.0) for row in metrics]
    return (
        f"{len(metrics)} updates moved {len(moved)} of {len(trained.learnable)} parameters; metrics finite; "
        f"deviations up to {tiny(max(largest))} (tolerance {setup.tolerance:.0e})"
    )


def same_seed(trained: Trained, again: Trained | None, setup: Setup) -> str:
    """A second training from the same seed, ``again``, ends with the same weights."""
    if again is None:
        raise Skip("the env is not repeatable (see the contract), so that two trainings differ anyway")
    gaps = {
        name: float((was.double() - again.after[name].double()).abs().max()) if was.numel() else 0.0
        for name, was in trained.after.items()
    }
    name = max(gaps, key=lambda key: gaps[key])
    seed = setup.config.seed
    if gaps[name] == 0:
        return f"two trainings from seed {seed} end with the same weights, bit for bit"
    found = f"two trainings from seed {seed} differ by up to {gaps[name]:.1e}, most in {name}"
    if setup.config.device.startswith("cuda"):
        raise Doubt(found, "A GPU may add numbers in another order each time; a CPU does not")
    raise Problem(
        found,
        "Likely cause: a random stream that the seed does not set (dropout, the global one of torch or "
        "NumPy), or an env that repeats an episode from a seed but not the episodes after it",
        "Fix: draw from a generator that reset(seed) or the config's seed sets",
    )


def learner_processes(trained: dict[str, Trained], setup: Setup, rows: int) -> str:
    """Learners in processes of their own end with the weights and metrics of those in this one."""
    advice = (
        "Likely cause: rollouts or weights arrive late, in part, or at another group, or more is learned "
        "from than was collected",
        "Fix: in lockstep each learner gets the last rollout of its group, and returns all weights",
    )
    config = replace(setup.config, learner_processes=True)
    try:
        there = short_training(replace(setup, config=config), rows)
    except RecollectError as error:
        raise Problem(f"learners in processes of their own stop: {error}", *advice) from None
    for name, here in trained.items():
        other, group = there[name], f"group {name}: " if name else ""
        differ = [
            f"the metric {metric}"
            for metric in ("minibatches", "gradient_steps", "reward/mean")
            if [row.get(metric) for row in here.metrics] != [row.get(metric) for row in other.metrics]
        ]
        differ += [key for key, was in here.after.items() if not torch.equal(was, other.after[key])]
        if differ:
            found = (
                f"{group}{differ[0]} of a learner in a process of its own is not that of one in this process"
            )
            if setup.config.device.startswith("cuda"):
                raise Doubt(found, "A GPU may add numbers in another order each time; a CPU does not")
            raise Problem(found, *advice)
    return f"{len(trained)} learners in processes: the weights and metrics of one process, bit for bit"


def run_metrics(agent: Agent, setup: Setup) -> str:
    """The metrics that a run recorded are finite, and its learner reproduced the record all the time."""
    rows = agent.history.rows
    if not rows:
        raise Skip("a saved agent has no metrics; only a run has")
    largest, count = 0.0, 0
    for name, policy in by_group(agent.network).items():
        for number, row in enumerate(metrics_of(name, row) for row in rows):
            for metric, x in row.items():
                if not math.isfinite(x) and metric not in MAY_BE_MISSING:
                    raise Problem(
                        f"update {number}: {metric} is {x}",
                        "Likely cause: huge rewards or observations, or a loss that is not bounded",
                    )
            found = diagnostics.deviations(row, policy.head.record_spec).values()
            largest, count = max([largest, *found]), count + bool(found)
    if not count:
        raise Skip("no update was compared with the record (gauge_every)")
    if not largest <= setup.tolerance:
        raise Problem(
            f"the learner deviated from the record by up to {largest:.1e} (tolerance {setup.tolerance:.0e})",
            "Likely cause: see the checks of storage and retrieval of state above",
            measured=largest,
            tolerance=setup.tolerance,
        )
    return f"{len(rows)} updates, {count} compared with the record: to {tiny(largest)}"
