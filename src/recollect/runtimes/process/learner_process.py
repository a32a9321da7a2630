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
process that is killed, or has no heartbeats, loses its state: the run ends, and continues from its last
checkpoint.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import connection, reduction
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recollect.base import row_threads, tree
from recollect.base.child_process import Child, Line
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Tree
from recollect.config.train import TrainConfig
from recollect.errors import LostError, RecollectError
from recollect.experience.rollout import Rollout
from recollect.learning.learner_state import Learned, learner_tensors
from recollect.runtimes import restart_limits
from recollect.runtimes.actor_server import on_cpu
from recollect.runtimes.learner_server import learner_threads
from recollect.runtimes.process.learner_process_server import Done, LearnerSetup, serve
from recollect.runtimes.process.weights import WeightBoard

POLL_SECONDS = 1.0
"""Seconds of waiting for a reply after which the heartbeats are compared."""


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
        self._heartbeats, self._silence = 0, 0.0
        """The heartbeats of the process so far, and the seconds of waiting since the last one."""

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
        self._heartbeats, self._silence = 0, 0.0
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

        An update may take any time, as long as the process has heartbeats.
        """
        result = None
        while self._asked:
            while not self.line.poll(POLL_SECONDS):
                self.check_heartbeats()
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

    def check_heartbeats(self) -> None:
        """To call after each ``POLL_SECONDS`` of waiting in vain; LostError if the process does not run.

        It counts these seconds, and reads no clock: a pause of the whole machine is no silence.
        """
        assert self._board is not None
        heartbeats = self._board.heartbeats
        self._silence = 0.0 if heartbeats > self._heartbeats else self._silence + POLL_SECONDS
        self._heartbeats = heartbeats
        patience = restart_limits.patience(self._config.env_timeout, is_started=heartbeats > 0)
        if patience is not None and self._silence > patience:
            why = restart_limits.STUCK if heartbeats else "it hangs while its network is loaded"
            error = LostError(f"{self._running} gave no sign of life for {self._silence:.0f} s: {why}")
            self._lose()
            raise error

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
        ready = connection.wait(list(waiting), POLL_SECONDS)
        for name in [] if ready else waiting.values():
            with naming(name):
                processes[name].check_heartbeats()
        for line in ready:
            name = waiting.pop(line)  # pyright: ignore[reportArgumentType]
            with naming(name):
                found[name] = processes[name].settle()
    return {name: found[name] for name in parts}


@contextmanager
def naming(group: str) -> Iterator[None]:
    """An error names the group."""
    try:
        yield
    except RecollectError as error:
        if group:
            error.args = (f"group {group!r}: {error}", *error.args[1:])
        raise
