"""The processes runtime: every actor in an OS process of its own.

Rollouts are recorded straight into shared memory, in slots that are there from the start; only the number of
a slot crosses the line to the learner's process. Weights lie on a board (``weights.py``) from which an actor
takes them whole. Who collects what is decided by tickets (``tickets.py``).
"""

from __future__ import annotations

import selectors
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from recollect.acting.actor import allocate
from recollect.base import tree
from recollect.base.child_process import Child, allow_open_files, stop_all
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Tree
from recollect.config.train import TrainConfig
from recollect.envs.factory import EnvSpec
from recollect.errors import LostError
from recollect.experience.rollout import Finals, Rollout
from recollect.policy.policy import Policy
from recollect.runtimes import limits
from recollect.runtimes.actor_server import (
    Blueprint,
    Report,
    finals_example,
    get_finals,
    rollout_of,
    tensors_of,
)
from recollect.runtimes.collector import Batch, merged, parted
from recollect.runtimes.process.server import Place, act
from recollect.runtimes.process.weights import WeightBoard
from recollect.runtimes.reports import Reports
from recollect.runtimes.tickets import Tickets

FILES_PER_ACTOR = 4
"""Descriptors that an actor takes of this process: its line, its lifeline, its slots (twice)."""


@dataclass(slots=True)
class Seat:
    """One actor as the learner's process sees it."""

    index: int
    segment: Segment
    memory: list[Tree]
    """The tensors of every slot."""
    child: Child | None = None
    life: int = 0
    deaths: int = 0
    """In a row."""
    sequence: int = 0
    """The number of its next rollout."""
    started: float = 0.0
    """When its process was started, by ``time.monotonic``."""
    free: list[int] = field(default_factory=list)
    """Slots that nothing waits in."""
    taken: dict[int, int] = field(default_factory=dict)
    """The slot of every ticket that it has."""

    @property
    def process(self) -> Child:
        """Its process."""
        assert self.child is not None
        return self.child

    def silence(self, limit: float | None) -> LostError | None:
        """What there is to say of a process that is stopped, or stuck where not even its watchdog runs.

        ``limit``: seconds that a step of its env may take; None: any time, once it has started.
        """
        pulse, now = float(self.memory[0]["pulse"]), time.monotonic()
        is_begun = pulse > self.started
        quiet = now - (pulse if is_begun else self.started)
        patience = limits.patience(limit, is_begun=is_begun)
        if patience is None or quiet <= patience:
            return None
        why = "it is stopped, or stuck in native code" if is_begun else "it hangs where its env is made"
        return LostError(f"{self.process} gave no sign of life for {quiet:.0f} s: {why}")


@dataclass(frozen=True, slots=True)
class Brought:
    """A rollout that lies in a slot."""

    seat: Seat
    slot: int
    report: Report
    finals: int | Finals


class ProcessCrew:
    """Actors in processes. They start with the first ``collect`` and live until ``close``."""

    host, make_peer = "127.0.0.1", None

    def __init__(self, env: EnvSpec, policy: Policy, config: TrainConfig, *, agents: int):
        """``agents``: in each env slot."""
        self._env, self._policy, self._config = env, policy, config
        self.rows = config.num_envs * agents
        self.is_exact = config.mode == "lockstep"
        self._lag = config.lag_limit
        # In async mode one for every ticket that an actor may hold, and one that is being learned from.
        self._slots = 1 if self.is_exact else self._lag + 2
        self._seats: list[Seat] = []
        self._lines = selectors.DefaultSelector()
        """Of all seats."""
        self._board: WeightBoard | None = None
        self._layout: Layout | None = None
        self._tickets = Tickets(config.actors, self._lag, self.is_exact)
        self._brought: dict[int, Brought] = {}
        self._learning: list[Brought] = []
        self._reports = Reports(config.actors)
        self._notes: list[str] = []
        self._stop = weakref.finalize(self, _stop_seats, self._seats)

    @property
    def pids(self) -> list[int]:
        """The processes of the actors, in order; empty before they are started."""
        return [seat.process.pid for seat in self._seats]

    def collect(self, version: int) -> Batch:
        """The rollouts of the tickets of update ``version``, in their order."""
        try:
            return self._collect(version)
        except BaseException:
            self.close()  # in mid-rollout, or in mid-message: with new processes nothing is left over
            raise

    def _collect(self, version: int) -> Batch:
        started = time.monotonic()
        self._start(version)
        for brought in self._learning:
            brought.seat.free.append(brought.slot)
        self._learning.clear()
        self._hand_out(1)
        while self._pump(0.0):
            pass  # what came while the learner was busy
        waiting = self._tickets.waiting
        while self._tickets.missing(version):
            self._pump(1.0)
        self._tickets.learn(version)
        batch = [self._brought.pop(ticket) for ticket in self._tickets.wanted(version)]
        self._learning.extend(batch)
        if not self.is_exact:
            self._hand_out(self._lag + 1)  # so that nobody waits while the learner is busy
        waited = time.monotonic() - started
        notes, self._notes = self._notes, []
        return Batch(
            [self._rollout(brought) for brought in batch],
            seconds=self._reports.seconds([brought.report for brought in batch]) | {"wait": waited},
            info=self._reports.info([brought.report for brought in batch]),
            metrics=self._reports.metrics(
                [(brought.seat.index, brought.report) for brought in batch],
                ready=waiting,
                running=self._tickets.running,
            ),
            restarted={brought.seat.index for brought in batch if brought.report.is_new},
            notes=notes,
        )

    def recall(self, metrics: Mapping[str, float]) -> None:
        """Go on counting from the last metrics of a run that is resumed."""
        self._reports.recall(metrics)

    def publish(self, version: int) -> None:
        """Put the policy's weights on the board; in async mode actors may go on at once."""
        if not self._seats:
            return
        self._put_up(version)
        if not self.is_exact:
            self._hand_out(1)

    def restart_episodes(self) -> None:
        """Begin new episodes at the next ``collect``."""
        if not self._seats:
            return
        if self.is_exact and not self._tickets.running:
            for seat in self._seats:
                seat.sequence = 0
                self._tell(seat, ("restart",))
        else:
            self.close()  # in mid-rollout: with new processes nothing is left over

    def snapshot(self) -> dict[str, Tensor] | None:
        """All that decides the next rollouts; None if an env cannot tell its part."""
        if not self._seats:
            return None
        return merged(self._ask_all([("snapshot",)] * len(self._seats)))

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Go on from what ``snapshot`` returned, in whatever runtime that was."""
        self._start(version)
        parts = parted(snapshot, len(self._seats))
        fitted = self._ask_all([("restore", part, version) for part in parts])
        if not all(fitted):
            self.restart_episodes()
            return False
        for seat, part in zip(self._seats, parts):
            seat.sequence = int(part["sequence"])
        return True

    def close(self) -> None:
        """End all processes; the next ``collect`` would start new ones."""
        self._lines.close()
        self._lines = selectors.DefaultSelector()
        _stop_seats(self._seats)
        for seat in self._seats:
            seat.segment.close()
        self._seats.clear()
        if self._board is not None:
            self._board.close()
            self._board = None
        self._brought.clear()
        self._learning.clear()

    # -- starting ---------------------------------------------------------------------------------

    def _start(self, version: int) -> None:
        """Start all processes, if there are none, or if what they wait for is another update."""
        if self._seats and self._tickets.is_next(version):
            return
        self.close()  # of an update that failed: its tickets are used up, and weights may have moved
        config = self._config
        self._tickets = Tickets(config.actors, self._lag, self.is_exact, version)
        self._board = WeightBoard.create(self._policy.state_dict())
        self._put_up(version)
        layout = self._layout = Layout.of(self._slot_example())
        allow_open_files(FILES_PER_ACTOR * config.actors)
        try:
            for index in range(config.actors):
                segment = Segment.create(layout.size * self._slots, f"the rollouts of actor {index}")
                memory = [layout.view(segment, i * layout.size) for i in range(self._slots)]
                self._seats.append(Seat(index, segment, memory, free=list(range(self._slots))))
            for seat in self._seats:
                self._seat(seat)
        except BaseException:
            self.close()
            raise

    def _seat(self, seat: Seat) -> None:
        """A process for this actor."""
        config, board, layout = self._config, self._board, self._layout
        assert board is not None
        assert layout is not None
        place = Place(
            self._slots,
            layout,
            seat.segment.fd,
            seat.segment.size,
            board.fd,
            board.handle,
            config.algo.state_steps,
        )
        log = None if config.run is None else Path(config.run) / "logs" / f"actor-{seat.index}.log"
        seat.started = time.monotonic()
        seat.child = Child(
            act,
            Blueprint.of(self._env, self._policy, config, seat.index),
            place,
            seat.life,
            seat.sequence,
            name=f"actor {seat.index}",
            fds=(seat.segment.fd, board.fd),
            log=log,
        )
        self._lines.register(seat.child.line, selectors.EVENT_READ, seat)

    def _slot_example(self) -> Tree:
        algo, actors = self._config.algo, self._config.actors
        empty = allocate(self._policy, self.rows // actors, algo.rollout, algo.state_steps)
        pulse = torch.zeros((), dtype=torch.float64)
        return {"rollout": tensors_of(empty), "finals": finals_example(empty), "pulse": pulse}

    # -- working ----------------------------------------------------------------------------------

    def _put_up(self, version: int) -> None:
        assert self._board is not None
        self._board.publish(version, self._policy.state_dict())
        self._tickets.publish(version)

    def _hand_out(self, depth: int, seats: Sequence[Seat] | None = None) -> None:
        """Give tickets to those who have least to do, at most ``depth`` to each, as far as slots are free.

        More than one only before nobody has time to give out another: a slow actor would keep it waiting.
        ``seats``: those who can have become able to take one; None: all.
        """
        exactly = self._tickets.version if self.is_exact else None
        for level in range(depth):
            for seat in self._seats if seats is None else seats:
                if not seat.free or len(seat.taken) != level:
                    continue
                ticket = self._tickets.take(seat.index)
                if ticket is not None:
                    seat.taken[ticket] = seat.free.pop(0)
                    self._tell(seat, ("collect", ticket, seat.taken[ticket], exactly))

    def _tell(self, seat: Seat, message: Any) -> None:
        try:
            seat.process.send(message)
        except LostError as error:
            self._revive(seat, error)

    def _pump(self, timeout: float) -> bool:
        """Handle what the actors say, waiting for it if there is nothing. Returns whether there was."""
        ready: list[Seat] = [key.data for key, _ in self._lines.select(timeout)]
        for seat in ready:
            try:
                self._note(seat, seat.process.receive(0))
            except LostError as error:
                self._revive(seat, error)
        for seat in [] if ready else self._seats:
            if seat.taken and (error := seat.silence(self._config.env_timeout)):
                self._revive(seat, error)
        # To all where nothing came: one that was dead when it was given a ticket has a new life without it.
        self._hand_out(1, ready or None)
        return bool(ready)

    def _note(self, seat: Seat, message: Any) -> None:
        report, finals = message
        slot = seat.taken.pop(report.ticket)
        self._tickets.done(report.ticket, seat.index)
        self._brought[report.ticket] = Brought(seat, slot, report, finals)
        self._notes.extend(report.notes)
        seat.deaths, seat.sequence = 0, report.sequence + 1

    def _revive(self, seat: Seat, error: LostError) -> None:
        """A new process in place of one that died; its half-written slots are discarded."""
        seat.deaths += 1
        self._lines.unregister(seat.process.line)
        seat.process.stop(grace=0)
        for ticket in self._tickets.give_back(seat.index):
            seat.free.append(seat.taken.pop(ticket))
        limits.check_deaths(seat.deaths, error)
        seat.life += 1
        self._reports.restarts += 1
        self._notes.append(f"{error}; a new one goes on in new episodes")
        self._seat(seat)

    def _ask_all(self, messages: Sequence[Any]) -> list[Any]:
        """Send each actor its message and return their answers; only between two rollouts.

        One that died has lost its episodes: it is begun anew, and its answer is None.
        """
        asked = [seat.process for seat in self._seats]
        try:
            for seat, message in zip(self._seats, messages):
                self._tell(seat, message)
            return [
                self._answer(seat) if seat.process is child else None
                for seat, child in zip(self._seats, asked)
            ]
        except BaseException:
            self.close()  # an answer that is still to come would be taken for a rollout
            raise

    def _answer(self, seat: Seat) -> Any:
        error = None
        while error is None and not seat.process.line.poll(1.0):
            error = seat.silence(self._config.env_timeout)
        try:
            return seat.process.receive(0) if error is None else self._revive(seat, error)
        except LostError as lost:
            return self._revive(seat, lost)

    def _rollout(self, brought: Brought) -> Rollout:
        """The rollout in the slot, on the learner's device; it holds until the next ``collect``."""
        memory, report = brought.seat.memory[brought.slot], brought.report
        tensors, finals = memory["rollout"], get_finals(memory["finals"], brought.finals)
        device = torch.device(self._config.device)
        if device.type != "cpu":
            tensors = tree.to(tensors, device)
            finals = None if finals is None else finals.to(device)
        rollout = rollout_of(tensors, self._config.algo.state_steps, brought.seat.index)
        return replace(rollout, finals=finals, sequence=report.sequence, version=report.version)


def _stop_seats(seats: list[Seat]) -> None:
    stop_all([seat.child for seat in seats if seat.child is not None])
