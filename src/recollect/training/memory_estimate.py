"""The memory that a run takes at its peak, known before it starts.

Rollouts are counted by their shapes. An update also needs the targets, the sequences, the gradients, the
optimiser's state, and by far the most: the activations of one minibatch (of one of its parts, with
``accumulate``). They depend on encoder, core, kernels and options, so a tiny update is made with a copy of
the policy, at two sizes, and its tensors are counted.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from recollect.acting.actor import allocate
from recollect.algos.catalog import acting, make_learner
from recollect.base import row_threads, tree
from recollect.base.spaces import ACTION_MASK
from recollect.base.tensor_memory import TensorMemory
from recollect.config.algo_shared import LearnerConfig
from recollect.config.replay import ReplayConfig
from recollect.config.train import TrainConfig
from recollect.experience.rollout import Rollout, rollout_size
from recollect.learning.replay_learner import make_replay
from recollect.policy.policy import Policy
from recollect.runtimes.learner_server import learner_threads

PROCESS_BYTES = 160_000_000
"""Private memory of a process of Recollect: of an actor, an env worker or a learner (docs/scale.md)."""
TRIAL_SEQUENCES = 256
"""Most sequences of a trial, which has as many as a minibatch: kernels for few rows keep other tensors."""
TRIAL_STEPS = 128
"""The longest sequence of a trial; activations of longer ones are in proportion."""
WIDE = 10_000_000
"""Weights from which trials are smaller, since each step takes long."""
WEIGHTS_IN_BACKWARD = 3
"""Gradients and copies of the weights inside kernels, in multiples of the weights."""
RETAINED = 1.2
"""Resident memory for each byte of tensors: the allocator retains some between two operations."""
WORKING_BYTES = 100_000_000
"""Memory of libraries and threads while they work."""
LEARNER_PROCESS_WEIGHTS = 10
"""Copies of a group's weights for its learner process: its policy, the four of the weight board, two in the
training process, and three in a checkpoint (optimiser, target network)."""

Learners = Mapping[str, tuple[Policy, int]]
"""The policy and the rows of each group of agents."""


@dataclass(frozen=True, slots=True)
class StepBytes:
    """Bytes for each step of the rollout or the minibatch."""

    kept: float
    """Targets and sequences, for each step of the rollout, until the update ends."""
    prepared: float
    """The peak while they are computed."""
    activations: float
    """For each step of a minibatch, or of a part of it."""


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes at the peak of a run."""

    weights: int
    """The weights alone."""
    learner: int
    """Gradients, optimiser state, and the copies of the weights in a backward pass."""
    rollouts: int
    """All copies of the rollout."""
    targets: int
    """Targets and sequences of the rollout, or more while they are computed."""
    activations: int
    """Of one minibatch, or of one of its parts."""
    processes: int
    """Libraries at work, and other processes on this machine."""

    @property
    def new(self) -> int:
        """Bytes beside the weights, which are allocated first."""
        return self.learner + self.rollouts + self.targets + self.activations + self.processes

    @property
    def total(self) -> int:
        """All bytes."""
        return self.weights + self.new

    def __str__(self) -> str:
        parts = {
            "activations of one minibatch": self.activations,
            "rollouts": self.rollouts,
            "targets and sequences": self.targets,
            "weights, gradients and optimiser": self.weights + self.learner,
            "libraries and other processes": self.processes,
        }
        shown = sorted((size, name) for name, size in parts.items() if size >= 0.01 * self.total)
        return ", ".join(f"{name} {size / 1e9:.3g} GB" for size, name in reversed(shown))


def weight_bytes(policy: torch.nn.Module) -> int:
    """Bytes of all weights."""
    return sum(p.numel() * p.element_size() for p in policy.parameters())


def learner_bytes(weights: int) -> int:
    """Gradients, Adam's two averages, and the flat copy of the gradient whose norm is computed."""
    return 4 * weights


def rollout_bytes(policy: Policy, config: TrainConfig, rows: int) -> int:
    """All copies of the rollout on this machine."""
    algo = config.algo
    one = rollout_size(policy, rows, acting(algo), steps=algo.rollout).total
    recorded = 1 if config.mode == "lockstep" else config.lag_limit + 2
    if config.ray_address is not None:
        recorded = 0
    is_joined = config.actors > 1 or config.runtime == "ray"
    return one * (recorded + is_joined)


def upper_bound(learners: Learners, config: TrainConfig, rollouts: int) -> int:
    """Far more than any run takes, in no time: if this is available, no trial is needed.

    ``rollouts``: the bytes of one of each group.
    """
    total = 1000 * rollouts + process_bytes(config) + learner_process_bytes(learners, config)
    for policy, rows in learners.values():
        widths = sum(p.shape[0] if p.dim() else 1 for p in policy.parameters())  # outputs of all layers
        steps = rows * config.algo.rollout
        total += 100 * widths * steps + 2 * _learner_bytes(policy, config, steps)
    return total


def estimate(learners: Learners, config: TrainConfig, measured: Mapping[str, StepBytes]) -> MemoryEstimate:
    """The peak of a run, by the trial of each group's policy with the settings of the config."""
    algo, found = config.algo, list[MemoryEstimate]()
    assert isinstance(algo, LearnerConfig)
    for name, (policy, rows) in learners.items():
        steps, size = rows * algo.rollout, measured[name]
        part = steps / (algo.minibatches * algo.accumulate)
        activations = int(size.activations * part)
        targets = int(max(size.kept * steps, size.prepared * steps - activations))
        one = MemoryEstimate(
            weights=weight_bytes(policy),
            learner=_learner_bytes(policy, config, part),
            rollouts=rollout_bytes(policy, config, rows),
            targets=int(RETAINED * targets),
            activations=int(RETAINED * activations),
            processes=0,
        )
        found.append(one)
    at_work = found if config.learns_at_once else [max(found, key=lambda one: one.targets + one.activations)]
    return MemoryEstimate(
        weights=sum(one.weights for one in found),
        learner=sum(one.learner for one in found),
        rollouts=sum(one.rollouts for one in found),
        targets=sum(one.targets for one in at_work),
        activations=sum(one.activations for one in at_work),
        processes=WORKING_BYTES + process_bytes(config) + learner_process_bytes(learners, config),
    )


def trial(policy: Policy, algo: LearnerConfig, rows: int) -> StepBytes:
    """Make a tiny update with a copy of the policy, on the CPU, at two sizes, and count its tensors."""
    is_wide = sum(p.numel() for p in policy.parameters()) > WIDE
    length = min(algo.chunk_length, 4 if is_wide else TRIAL_STEPS)
    steps = min(2 * length, algo.rollout)  # two chunks: a single one is not copied
    sequences = algo.sequences(rows) // (algo.minibatches * algo.accumulate)
    large = max(4, min(sequences, 8 if is_wide else TRIAL_SEQUENCES) * length // steps)
    small = large // 2
    tiny = replace(
        algo,
        rollout=steps,
        chunk=min(algo.chunk, length),
        burn_in_steps=min(algo.burn_in_steps, length),
        minibatches=1,
        accumulate=1,
    )
    with torch.random.fork_rng(devices=[]), row_threads.intra_op_threads(1):
        own = copy.deepcopy(policy).cpu()
        few, many = (_measure(own, tiny, count) for count in (small, large))
    kept, prepared, peak = (size / (steps * large) for size in many)
    of_weights = WEIGHTS_IN_BACKWARD * weight_bytes(policy)
    if of_weights < many[2] / 2:
        # Not the growth: between the two sizes a kernel may change.
        activations = (many[2] - of_weights) / (steps * large)
    else:
        activations = min(peak, (many[2] - few[2]) / (steps * (large - small)))
    return StepBytes(kept, prepared, activations)


def _measure(policy: Policy, algo: LearnerConfig, rows: int) -> tuple[int, int, int]:
    """Bytes of ``StepBytes`` for all steps of an update of ``rows`` rows."""
    learner = make_learner(policy, algo)
    rollout = allocate(policy, rows, algo.rollout, acting(algo))
    rollout.valid.fill_(True)
    rollout.first[1, 0] = True  # most sequences have resets; kernels for those without keep other tensors
    allow_all_actions(rollout)
    with policy.computing():
        with TensorMemory() as before:
            rollout, data, _ = learner.targets(rollout)
            if algo.refresh_states or algo.recompute_advantages:
                rollout, data = learner.refresh(rollout, data)
            sequences = learner.sequences(rollout, data)
        kept, prepared = before.live, before.peak
        with TensorMemory() as step:
            learner.backward(sequences, torch.arange(sequences.count), 0.0)
    return kept, prepared, step.peak


def allow_all_actions(rollout: Rollout) -> None:
    """Set the masks of an empty rollout, if it has any."""
    if isinstance(rollout.obs, dict) and ACTION_MASK in rollout.obs:
        tree.map(lambda leaf: leaf.fill_(1), rollout.obs[ACTION_MASK])


def _learner_bytes(policy: Policy, config: TrainConfig, part: float) -> int:
    """Gradients, optimiser state and copies of the weights, of all learners on this machine.

    ``part``: the steps of a backward pass, in which each group of rows (``row_threads``) has gradients and
    copies of the cores' weights.
    """
    groups, length, weights = 1, config.algo.chunk_length, weight_bytes(policy)
    if not config.device.startswith("cuda") and config.parallel != "operations":
        groups = row_threads.group_count(length, int(part / length), threads=learner_threads(config))
    cores = sum(weight_bytes(trunk.core) for trunk in policy.trunks)
    backward = WEIGHTS_IN_BACKWARD * (weights + (groups - 1) * cores)
    learners = 1 if config.ray_address is not None else config.learners
    return learners * max(learner_bytes(weights), 2 * weights + backward)  # 2: Adam's averages


def process_bytes(config: TrainConfig) -> int:
    """Private memory of the other processes on this machine except learner processes."""
    if config.ray_address is not None:
        return 0
    actors = 0 if config.runtime == "inline" else config.actors
    return PROCESS_BYTES * (actors + config.actors * config.env_workers + config.learners - 1)


def learner_process_bytes(learners: Learners, config: TrainConfig) -> int:
    """What learner processes add: themselves, and copies of the weights, a rollout and a saved replay."""
    algo, found = config.algo, 0
    for policy, rows in learners.values() if config.learner_processes else ():
        found += PROCESS_BYTES + WORKING_BYTES + LEARNER_PROCESS_WEIGHTS * weight_bytes(policy)
        found += rollout_size(policy, rows, acting(algo), steps=algo.rollout).total
        if isinstance(algo, ReplayConfig) and algo.save_replay:
            found += replay_size(policy, algo, rows)
    return found


def replay_size(policy: Policy, algo: ReplayConfig, rows: int) -> int:
    """Bytes of the replay, without allocating it."""
    return make_replay(policy, algo, rows, device="meta").bytes


def replay_step_bytes(policy: Policy, algo: ReplayConfig) -> int:
    """Bytes at the peak of an optimiser step of a replay learner, by one on the CPU with a tiny replay."""
    rows = 4
    slots = algo.window + 2 * algo.rollout + 1
    tiny = replace(algo, replay_capacity=rows * slots, replay_warmup=0, save_replay=False)
    with torch.random.fork_rng(devices=[]), row_threads.intra_op_threads(1):
        own = copy.deepcopy(policy).cpu()
        learner = make_learner(own, tiny, rows=rows)
        rollout = allocate(own, rows, algo.rollout, acting(tiny))
        rollout.valid.fill_(True)
        rollout.first[0] = rollout.first[-1] = True
        rollout.terminated[-1] = True  # whole episodes, which can be drawn at once
        allow_all_actions(rollout)
        learner.replay.add(rollout)
        with own.computing(), TensorMemory() as step:
            learner.step()
    return int(RETAINED * step.peak)
