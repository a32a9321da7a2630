"""The learner of a group of agents in a process of its own.

::

    trainer     ── rollout ──▶ shared memory ──────────▶     learner process: update
       │        ◀── weights ── board with checksums ◀──            │
       └─────── ◀── metrics, notes, errors: socket  ◀──────────────┘

The process has everything that an update changes: weights, optimiser, random stream, target network,
replay. After each update the new weights are copied to the policy of the trainer, so that publishing,
evaluations and callbacks are those of a learner in the trainer's process. The rest of the state is copied
only for a checkpoint.

An update that raises leaves the process running, in the state that a learner in this process would be in. A
process that is killed loses its state: the run ends, and continues from its last checkpoint.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, reduction
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.algos.catalog import make_learner
from recollect.base import row_threads, tree
from recollect.base.child_process import Child, HungUpError, Line, describe_raised
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Tree
from recollect.config.train import TrainConfig
from recollect.errors import LostError, RecollectError
from recollect.experience.rollout import Header, Rollout
from recollect.learning.learner_state import Learned, learner_tensors, load_learner
from recollect.policy.policy import Policy
from recollect.runtimes.actor_server import on_cpu
from recollect.runtimes.learner_server import learner_threads
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


class Memory(NamedTuple):
    """Shared memory that both processes use."""

    layout: Layout
    segment: Segment
    tensors: Any


class LearnerProcess:
    """The learner of one group, as the trainer sees it. Requests are answered in their order."""

    def __init__(self, learner: Any, config: TrainConfig, *, name: str, rows: Mapping[str, int], seed: int):
        """The process starts with ``start``, or with the first update.

        Args:
            learner: of this process. Its policy gets the weights, and it checks late rollouts; it never
                updates.
            config: the settings of the run.
            name: of the group; "" if there is only one.
            rows: of the rollouts of every group.
            seed: of the learner's random stream.
        """
        self.learner, self._config, self._rows, self._seed = learner, config, rows[name], seed
        self.name = f"the learner of {name}" if name else "the learner"
        self._threads = row_threads.share(learner_threads(config), list(rows.values()))
        if config.parallel == "operations":  # threads of several processes would wait for each other
            self._threads = max(1, learner_threads(config) // len(rows))
        self._child: Child | None = None
        self._board: WeightBoard | None = None
        self._layout: Layout | None = None
        self._slot: Tree = None
        self._asked: list[Callable[[Any], Any]] = []
        """What to do with the replies that are outstanding."""
        self._kept: dict[str, Tensor] | None = None
        """The state that the next process starts with; None: that of a new learner."""
        self._is_lost = False

    @property
    def line(self) -> Line:
        """The socket that becomes readable with a reply."""
        return self._running.line

    @property
    def pid(self) -> int | None:
        """The process; None: it does not run."""
        return None if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the process, if it does not run. Does not wait for it."""
        if self._child is not None:
            return
        if self._is_lost:
            raise LostError(
                f"{self.name} has ended, and its optimiser and its replay with it: resume the run"
            )
        policy, config = self.learner.policy, self._config
        self._weights = tree.clone({name: t.detach().cpu() for name, t in policy.state_dict().items()})
        self._board = WeightBoard.create(self._weights)
        setup = LearnerSetup(on_cpu(policy), config, self._rows, self._seed, self._threads)
        log = f"{self.name.removeprefix('the ').replace(' ', '-')}.log"
        self._child = Child(
            serve,
            setup,
            self._board.fd,
            self._board.handle,
            name=self.name,
            fds=(self._board.fd,),
            log=None if config.run is None else Path(config.run) / "logs" / log,
        )
        self._end = weakref.finalize(self, self._child.stop)
        self._layout = self._slot = None
        if self._kept is not None:
            memory = self._memory(Layout.of(self._kept), "state")
            tree.copy_(memory.tensors, self._kept)
            self._kept = None
            self._ask("load", self.learner.updates, memory=memory, reply=self._loaded)

    def begin(self, rollout: Rollout, progress: float, lag: int) -> None:
        """Start an update; the rollout may change after this call."""
        self.start()
        self.settle()
        layout = Layout.of(rollout.slot())
        if layout != self._layout:
            memory = self._memory(layout, "rollouts")
            self._ask("use_slot", memory=memory)
            self.settle()
            self._slot, self._layout = memory.tensors, layout
        self._ask("update", rollout.write(self._slot), progress, lag, reply=self._updated)

    def settle(self) -> Any:
        """Wait for the outstanding replies and return the last. An error of the process is raised.

        There is no time limit: an update may take any time, and a process that ends closes its socket.
        """
        result = None
        while self._asked:
            try:
                reply = self._running.receive()
            except LostError:
                self._lose()
                raise
            except Exception:
                self._asked.pop(0)
                raise
            result = self._asked.pop(0)(reply)
        return result

    def tensors(self) -> dict[str, Tensor]:
        """The state of the learner (``learner_state``). Copies the weights of the same moment, too."""
        if self._is_lost:
            self.start()
        if self._child is None:
            return learner_tensors(self.learner) if self._kept is None else self._kept
        self.settle()
        self._ask("layout")
        memory = self._memory(self.settle(), "state")
        self._ask("save", memory=memory, reply=self._take_weights)
        self.settle()
        return memory.tensors

    def load(self, learned: Learned) -> None:
        """Continue with this state, and with the present weights of the policy, in a new process.

        Does not wait for it: ``settle`` raises if the state does not fit, and sets ``learner.is_complete``.
        """
        self.close()
        self._is_lost = False
        self.learner.updates = learned.updates
        if learned.optimizer:
            self._kept = learned.optimizer
            self.start()

    def follow(self) -> None:
        """Send the policy's weights to the process, if the user has changed them since the last update."""
        if self._child is None:
            return
        self.settle()
        own = {name: tensor.detach().cpu() for name, tensor in self.learner.policy.state_dict().items()}
        if not all(torch.equal(own[name], known) for name, known in self._weights.items()):
            memory = self._memory(Layout.of(own), "weights")
            tree.copy_(memory.tensors, own)
            self._ask("use_weights", memory=memory)

    def dismiss(self) -> None:
        """End the process and keep its state for the next one."""
        if self._child is not None:
            kept = self.tensors()
            self.close()
            self._kept = kept

    def close(self) -> None:
        """End the process; its state is lost."""
        self._asked.clear()
        self._kept = None
        if self._child is not None:
            self._end()
            self._child = None
        if self._board is not None:
            self._board.close()
            self._board = None
        self._layout = self._slot = None

    @property
    def _running(self) -> Child:
        assert self._child is not None
        return self._child

    def _memory(self, layout: Layout, what: str) -> Memory:
        """New shared memory for tensors of this layout."""
        segment = Segment.create(layout.size, f"the {what} of {self.name}")
        return Memory(layout, segment, layout.view(segment))

    def _ask(
        self,
        method: str,
        *arguments: Any,
        memory: Memory | None = None,
        reply: Callable[[Any], Any] = lambda result: result,
    ) -> None:
        """Call a method of the process, with the tensors of ``memory`` as its first argument."""
        try:
            self._running.send((method, None if memory is None else memory.layout, arguments))
        except LostError:
            self._lose()
            raise
        if memory is not None:
            with suppress(OSError):  # it has ended: ``settle`` says why
                reduction.send_handle(self.line, memory.segment.fd, self._running.pid)
        self._asked.append(reply)

    def _lose(self) -> None:
        self.close()
        self._is_lost = True

    def _loaded(self, is_complete: bool) -> None:
        self._take_weights(self.learner.updates)  # a learner also sets what acting reads, such as epsilon
        self.learner.is_complete = is_complete

    def _updated(self, done: Done) -> dict[str, float]:
        learner = self.learner
        self._take_weights(done.updates)
        learner.deviation_check.notes += done.notes
        learner.graphs.seconds = done.start_seconds
        return done.metrics

    def _take_weights(self, updates: int) -> None:
        assert self._board is not None
        self._board.read(self._weights, version=updates)
        self.learner.policy.load_state_dict(self._weights)
        self.learner.updates = updates


def update_at_once(
    processes: Mapping[str, LearnerProcess], parts: Mapping[str, Rollout], progress: float, lag: int
) -> dict[str, dict[str, float]]:
    """One update of each group by its part, all at the same time; the metrics by group.

    The first error is raised at once; updates that still run are waited for by the next request.
    """
    for name, part in parts.items():
        with naming(name):
            processes[name].begin(part, progress, lag)
    waiting = {processes[name].line: name for name in parts}
    found: dict[str, dict[str, float]] = {}
    while waiting:
        for line in connection.wait(list(waiting)):
            name = waiting.pop(line)  # pyright: ignore[reportArgumentType]
            with naming(name):
                found[name] = processes[name].settle()
    return {name: found[name] for name in parts}


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
        by_rows = self._config.parallel == "rows"
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
    server = LearnerServer(setup, WeightBoard.attach(board_fd, board))
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


@contextmanager
def naming(group: str) -> Iterator[None]:
    """An error names the group."""
    try:
        yield
    except RecollectError as error:
        if group:
            error.args = (f"group {group!r}: {error}", *error.args[1:])
        raise
