"""The host of a learner besides the first, in another process: a copy of the policy, and its learner.

It gets the state of the first learner once, and then its own rows of every batch. All learners take the same
steps, so that no weights are sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.base import provenance, row_threads
from recollect.config.train import TrainConfig
from recollect.experience.rollout import Rollout
from recollect.learning.learner import Learner
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.learning.ranks import Backend, Group, join_store
from recollect.policy.policy import Policy


@dataclass(frozen=True, slots=True)
class LearnerBlueprint:
    """The arguments of a learner host, sent by cloudpickle."""

    policy: Policy
    """A copy, on the CPU."""
    config: TrainConfig
    """With the device of this learner."""
    rank: int
    """Index of the learner; never 0."""
    rows: tuple[int, ...]
    """The number of rows of each learner."""
    address: tuple[str, int]
    """Address of the first learner's store."""
    backend: Backend
    group: str = ""
    """The group of agents, if there are several."""

    @property
    def name(self) -> str:
        """For errors and logs."""
        return f"learner {self.rank}" + (f" of {self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class LearnerState:
    """A copy of the state that, with a rollout, determines the next update of a learner."""

    weights: dict[str, Tensor]
    tensors: dict[str, Tensor]
    """See ``recollect.learning.learner_state``."""
    updates: int
    is_checked: bool
    accepted: tuple[float, ...]
    """See ``recollect.learning.deviation_check``."""

    @classmethod
    def of(cls, learner: Learner, device: str | None = None) -> LearnerState:
        """The state of a learner, on ``device``; None: each tensor stays on its own."""

        def copy(named: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: t.detach().to(device or t.device, copy=True) for name, t in named.items()}

        weights = copy(learner.policy.state_dict())
        checks = learner.deviation_check
        tensors = copy(learner_tensors(learner))
        return cls(weights, tensors, learner.updates, checks.is_checked, checks.accepted)

    def put(self, learner: Learner) -> None:
        """Restore this state in a learner."""
        learner.policy.load_state_dict(self.weights)
        learner.optimizer.state.clear()
        load_learner(learner, Learned(updates=self.updates, optimizer=self.tensors))
        checks = learner.deviation_check
        checks.is_checked, checks.accepted = self.is_checked, self.accepted


class LearnerHost:
    """Makes the learner and follows the first one. The transport brings the requests."""

    def __init__(self, blueprint: LearnerBlueprint):
        self.blueprint = blueprint
        config = blueprint.config
        device = torch.device(config.device)
        if device.type == "cuda" and device.index is not None:  # "cuda" alone is the current device
            torch.cuda.set_device(device)
        policy = blueprint.policy.to(device)
        if config.compile:
            policy.compile_parts()
        self.learner = make_learner(policy, config.algo)
        self._group: Group | None = None

    def connect(self, host: str = "127.0.0.1") -> None:
        """Connect to the other learners; ``host``: the address of this machine for them."""
        made = self.blueprint
        store = join_store(*made.address)
        self._group = Group(store, made.rank, made.rows, host=host, backend=made.backend)
        self.learner.ranks = self._group

    def load(self, state: LearnerState) -> None:
        """Restore the state of the first learner."""
        state.put(self.learner)

    def update(self, rollout: Rollout, progress: float, lag: int) -> None:
        """One update on its own rows of a batch, together with all other learners."""
        config = self.blueprint.config
        count = learner_threads(config)
        by_rows, by_operations = (1, count) if config.parallel == "operations" else (count, 1)
        with row_threads.threads(by_rows), row_threads.intra_op_threads(by_operations):
            self.learner.update(rollout.to(config.device), progress, lag=lag)

    def close(self) -> None:
        """Disconnect: a learner that waits for this one gets an error at once."""
        if self._group is not None:
            self._group.close()


def learner_threads(config: TrainConfig) -> int:
    """CPU threads of each learner: the setting, or its share of the cores."""
    return config.threads or max(1, provenance.usable_cores() // config.learners)
