"""The choice behind ``parallel="auto"``: how the threads of the learner divide its work.

Within every operation is faster on free cores, and several times slower if another program uses one of them
(decision 008). So a gradient of the run's size is timed both ways before the first update, in turns. The
choice becomes the value of the setting in the run's config, which every later process of the run reads.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

import torch

from recollect.acting.actor import allocate
from recollect.algos.catalog import acting, make_learner
from recollect.base import row_threads
from recollect.config.algo_shared import LearnerConfig
from recollect.config.train import TrainConfig
from recollect.learning.learner import Learner
from recollect.learning.sequences import Sequences
from recollect.policy.policy import Policy
from recollect.runtimes.learner_server import learner_threads
from recollect.training.memory_estimate import allow_all_actions

Parallel = Literal["rows", "operations"]

LARGE = 20_000_000
"""Weights x steps of a minibatch above which the choice matters; smaller work is divided by rows."""
MOST_STEPS = 4096
"""The most steps of the gradient that is timed."""
ROUNDS = 5
GAIN = 0.9
"""Operations are chosen if their median is at most this share of that of rows, and no round was slower than
the median of rows: on a shared machine some are."""

_choices: dict[tuple, Parallel] = {}
"""Equal work has one choice in a process, so that repeated runs stay equal bit for bit."""


def with_parallel(config: TrainConfig, learners: Mapping[str, tuple[Policy, int]]) -> TrainConfig:
    """The config with a choice in place of ``parallel="auto"``.

    Args:
        config: of a new run.
        learners: the policy of each group, and its rows.
    """
    if config.parallel != "auto":
        return config
    chosen: Parallel = "rows"
    (policy, rows), *others = learners.values()
    if not others and _may_pay(config, policy, rows):
        weights = sum(weight.numel() for weight in policy.parameters())
        key = (weights, rows, learner_threads(config), repr(config.algo), repr(policy.core))
        chosen = _choices[key] = _choices.get(key) or _measured(config, policy, rows)
    return replace(config, parallel=chosen)


def _may_pay(config: TrainConfig, policy: Policy, rows: int) -> bool:
    """Whether no other process of the run computes during an update, and the work is large enough."""
    algo = config.algo
    if not isinstance(algo, LearnerConfig) or config.device != "cpu" or learner_threads(config) < 2:
        return False
    if config.mode != "lockstep" or config.learners > 1 or config.learner_processes:
        return False
    weights = sum(weight.numel() for weight in policy.parameters())
    return weights * algo.rollout * rows / algo.minibatches >= LARGE


def _measured(config: TrainConfig, policy: Policy, rows: int) -> Parallel:
    algo, threads = config.algo, learner_threads(config)
    assert isinstance(algo, LearnerConfig)
    rows = min(math.ceil(rows / algo.minibatches), max(1, MOST_STEPS // algo.rollout))
    with torch.random.fork_rng(devices=[]), row_threads.intra_op_threads(1):
        own = copy.deepcopy(policy)
        learner = make_learner(own, algo)
        rollout = allocate(own, rows, algo.rollout, acting(algo))
        rollout.valid.fill_(True)
        allow_all_actions(rollout)
        with own.computing():
            rollout, data, _ = learner.targets(rollout)
            return _faster(learner, learner.sequences(rollout, data), threads)


def _faster(learner: Learner, sequences: Sequences, threads: int) -> Parallel:
    """The faster way to compute the gradient of these sequences."""
    seconds: dict[Parallel, list[float]] = {"rows": [], "operations": []}
    which = torch.arange(sequences.count)
    for number in range(1 + ROUNDS):
        for way, found in seconds.items():
            with ExitStack() as stack:
                stack.enter_context(row_threads.threads(threads if way == "rows" else 1))
                stack.enter_context(row_threads.intra_op_threads(threads if way == "operations" else 1))
                started = time.perf_counter()
                learner.backward(sequences, which, 0.0)
            if number:  # the first time of each includes the start of threads
                found.append(time.perf_counter() - started)
    return decided(seconds["rows"], seconds["operations"])


def decided(rows: list[float], operations: list[float]) -> Parallel:
    """The choice, given the seconds of every round."""
    limit = statistics.median(rows)
    is_faster = statistics.median(operations) <= GAIN * limit and max(operations) <= limit
    return "operations" if is_faster else "rows"
