"""A learner besides the first, wherever it lives: a copy of the policy, and the learner of it.

It gets the state of the first learner once, and from then on its own rows of every batch. All of them take
the same steps, so that no weights need to travel.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.base import provenance, row_threads, tree
from recollect.config.train import TrainConfig
from recollect.experience.rollout import Rollout
from recollect.learning.learner import Learner
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.learning.ranks import Backend, Group, join_store
from recollect.policy.policy import Policy
from recollect.runtimes.actor_server import on_cpu, tensors_of


@dataclass(frozen=True, slots=True)
class LearnerBlueprint:
    """All that a learner elsewhere is made from. Travels by cloudpickle."""

    policy: Policy
    """A copy, on the CPU."""
    config: TrainConfig
    """With the device of this learner."""
    rank: int
    """Which learner; 0 is not made from a blueprint."""
    rows: tuple[int, ...]
    """How many rows each learner has."""
    address: tuple[str, int]
    """Where the first learner's store is."""
    backend: Backend

    @classmethod
    def of(
        cls,
        policy: Policy,
        config: TrainConfig,
        *,
        rank: int,
        rows: tuple[int, ...],
        address: tuple[str, int],
        device: str,
        backend: Backend,
    ) -> LearnerBlueprint:
        """With a copy of the policy."""
        return cls(on_cpu(policy), replace(config, device=device), rank, rows, address, backend)


@dataclass(frozen=True, slots=True)
class LearnerState:
    """All that decides the next update of a learner, beside its rollout. Copies."""

    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    """See ``recollect.learning.learner_state``."""
    updates: int
    is_checked: bool
    accepted: tuple[int, float, float]
    """See ``recollect.learning.deviation_check``."""

    @classmethod
    def of(cls, learner: Learner, device: str | None = None) -> LearnerState:
        """That of a learner now; on the device where each tensor is, if None."""

        def copy(named: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: t.detach().to(device or t.device, copy=True) for name, t in named.items()}

        weights = copy(learner.policy.state_dict())
        checks = learner.deviation_check
        tensors = copy(learner_tensors(learner))
        return cls(weights, tensors, learner.updates, checks.is_checked, checks.accepted)

    def put(self, learner: Learner) -> None:
        """Give it to a learner, which goes on from there."""
        learner.policy.load_state_dict(self.weights)
        learner.optimizer.state.clear()
        load_learner(learner, Learned(updates=self.updates, optimizer=self.tensors))
        checks = learner.deviation_check
        checks.is_checked, checks.accepted = self.is_checked, self.accepted


class LearnerHost:
    """Makes the learner and does what the first one does; whoever it lives with brings the messages."""

    def __init__(self, blueprint: LearnerBlueprint):
        self.blueprint = blueprint
        config = blueprint.config
        device = torch.device(config.device)
        if device.type == "cuda" and device.index is not None:  # "cuda" alone is the current one
            torch.cuda.set_device(device)
        policy = blueprint.policy.to(device)
        if config.compile:
            policy.compile_parts()
        self.learner = make_learner(policy, config.algo)
        self._group: Group | None = None

    def connect(self, host: str = "127.0.0.1") -> None:
        """Join the other learners; ``host``: the address of this machine that they can reach."""
        made = self.blueprint
        store = join_store(*made.address)
        self._group = Group(store, made.rank, made.rows, host=host, backend=made.backend)
        self.learner.ranks = self._group

    def load(self, state: LearnerState) -> None:
        """Become what the first learner is."""
        state.put(self.learner)

    def update(self, rollout: Rollout, progress: float, lag: int) -> None:
        """One iteration on its own rows of a batch, while all others do the same on theirs."""
        config = self.blueprint.config
        count = learner_threads(config)
        by_rows, by_operations = (count, 1) if config.parallel == "rows" else (1, count)
        with row_threads.threads(by_rows), row_threads.intra_op_threads(by_operations):
            self.learner.update(_on_device(rollout, config.device), progress, lag=lag)

    def close(self) -> None:
        """Leave the others: whoever waits for this one gets an error at once."""
        if self._group is not None:
            self._group.close()


def learner_threads(config: TrainConfig) -> int:
    """CPU threads of each learner: those of the setting, or its share of the cores."""
    return config.threads or max(1, provenance.usable_cores() // config.learners)


def _on_device(rollout: Rollout, device: str) -> Rollout:
    finals = None if rollout.finals is None else rollout.finals.to(device)
    moved = {name: tree.to(value, device) for name, value in tensors_of(rollout).items()}
    return replace(rollout, **moved, finals=finals)
