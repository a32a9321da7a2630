"""The learner of a group of agents in its own process: answers the requests of ``learner_process.py``."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, NamedTuple

from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.base import row_threads, tree
from recollect.base.child_process import HungUpError, Line, describe_raised
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Tree
from recollect.config.train import TrainConfig
from recollect.experience.rollout import Header, Rollout
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.policy.policy import Policy
from recollect.runtimes.process.weights import WeightBoard


@dataclass(frozen=True, slots=True)
class LearnerSetup:
    """The arguments of a learner process, sent by cloudpickle."""

    policy: Policy
    """A copy, on the CPU."""
    config: TrainConfig
    rows: int
    """Of every rollout."""
    seed: int
    """Of the learner's random stream."""
    threads: int
    """CPU threads of the update."""


class Done(NamedTuple):
    """The reply to an update, whose weights are on the board."""

    metrics: dict[str, float]
    updates: int
    notes: list[str]
    """Warnings for the user."""
    start_seconds: float
    """Time spent on captures so far."""


class LearnerServer:
    """The learner in its process. Each public method is a request."""

    def __init__(self, setup: LearnerSetup, board: WeightBoard):
        config = setup.config
        self._board, self._config, self._threads = board, config, setup.threads
        policy = setup.policy.to(config.device)
        if config.compile:
            policy.compile_parts()
        graphs = config.graphs and not config.compile
        self.learner = make_learner(policy, config.algo, rows=setup.rows, seed=setup.seed, graphs=graphs)
        self._slot: Tree = None

    def working(self) -> AbstractContextManager[Any]:
        """Set up the threads for all requests."""
        by_rows = self._config.parallel != "operations"
        stack = ExitStack()
        stack.enter_context(row_threads.threads(self._threads if by_rows else 1))
        stack.enter_context(row_threads.intra_op_threads(1 if by_rows else self._threads))
        return stack

    def use_weights(self, weights: dict[str, Tensor]) -> None:
        """Continue with these weights."""
        self.learner.policy.load_state_dict(weights)

    def use_slot(self, slot: Tree) -> None:
        """Read rollouts from this memory."""
        self._slot = slot

    def update(self, header: Header, progress: float, lag: int) -> Done:
        """``Learner.update`` with the rollout in the slot; the new weights are on the board."""
        learner = self.learner
        metrics = learner.update(Rollout.read(self._slot, header).to(self._config.device), progress, lag=lag)
        self._publish()
        notes = [*learner.graphs.taken_notes(), *learner.deviation_check.notes]
        learner.deviation_check.notes.clear()
        return Done(metrics, learner.updates, notes, learner.graphs.seconds)

    def load(self, tensors: dict[str, Tensor], updates: int) -> bool:
        """Continue with this state; whether it is complete."""
        load_learner(self.learner, Learned(updates=updates, optimizer=tensors))
        self._publish()
        return self.learner.is_complete

    def layout(self) -> Layout:
        """The layout of the learner's state."""
        return Layout.of(learner_tensors(self.learner))

    def save(self, into: dict[str, Tensor]) -> int:
        """Copy the state, and the weights to the board; the number of updates."""
        tree.copy_(into, learner_tensors(self.learner))
        self._publish()
        return self.learner.updates

    def _publish(self) -> None:
        self._board.publish(self.learner.updates, self.learner.policy.state_dict())


def serve(line: Line, setup: LearnerSetup, board_fd: int, board: Layout) -> None:
    """Answer requests until the parent closes the socket."""
    weights = WeightBoard.attach(board_fd, board)
    weights.keep_beating()
    server = LearnerServer(setup, weights)
    with server.working():
        while True:
            method, layout, arguments = line.recv()
            if layout is not None:
                segment = Segment.attach(reduction.recv_handle(line), layout.size)
                arguments = (layout.view(segment), *arguments)
            try:
                reply = getattr(server, method)(*arguments)
            except HungUpError:
                raise
            except Exception as error:  # as in the trainer's process, it does not end the learner
                reply = describe_raised(error)
            line.send(reply)
