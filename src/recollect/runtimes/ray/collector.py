"""The Ray runtime: every actor in a Ray actor, on whatever machines the cluster has.

Rollouts come back through Ray's object store, each as one array. The weights of a version are put there once,
and every node fetches them once. Who collects what is decided by tickets (``tickets.py``), as with processes.
"""

from __future__ import annotations

import time
import uuid
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from recollect.base import tree
from recollect.config.train import TrainConfig
from recollect.envs.factory import EnvSpec
from recollect.errors import LostError
from recollect.experience.rollout import Rollout, rollout_size
from recollect.policy.policy import Policy
from recollect.runtimes import limits
from recollect.runtimes.actor_server import Blueprint, rollout_of
from recollect.runtimes.collector import Batch, merged, parted
from recollect.runtimes.learner_host import LearnerBlueprint
from recollect.runtimes.learners import MakePeer, places
from recollect.runtimes.ray.cluster import Cluster, Remote
from recollect.runtimes.ray.handles import Call, Held, Seat
from recollect.runtimes.ray.learner import RayPeer
from recollect.runtimes.ray.server import Brought, Facts, Packed, Player, finals, pack
from recollect.runtimes.reports import Reports
from recollect.runtimes.tickets import Tickets


class RayCrew:
    """Actors in Ray actors. They start with the first ``collect`` and live until ``close``."""

    def __init__(self, env: EnvSpec, policy: Policy, config: TrainConfig, *, agents: int):
        """``agents``: in each env slot."""
        self._env, self._policy, self._config = env, policy, config
        self.rows = config.num_envs * agents
        self.is_exact = config.mode == "lockstep"
        self._lag = config.lag_limit
        self._held = Held()
        self._tickets = Tickets(config.actors, self._lag, self.is_exact)
        self._weights: Any = None
        self._brought: dict[int, tuple[int, Brought]] = {}
        """By ticket: the actor, and what it brought."""
        self._answers: dict[int, Any] = {}
        """By actor: what else it was asked for."""
        self._reports = Reports(config.actors)
        self._notes: list[str] = []
        self._stop = weakref.finalize(self, Held.close, self._held)
        self.host: str = "127.0.0.1"
        self.make_peer: MakePeer | None = None
        if config.learners > 1 and places(config)[1] == "gloo":
            cluster = self._connected()
            if not cluster.is_own:  # on one machine processes do, with shared memory
                self.host, self.make_peer = cluster.here, partial(_make_peer, weakref.ref(self))

    @property
    def homes(self) -> list[Facts | None]:
        """Where the actors live, in order; None: not known yet."""
        return [seat.actor.facts for seat in self._held.seats]

    def collect(self, version: int) -> Batch:
        """The rollouts of the tickets of update ``version``, in their order."""
        try:
            return self._collect(version)
        except BaseException:
            self.close()  # in mid-rollout: with new actors nothing is left over
            raise

    def _collect(self, version: int) -> Batch:
        started = time.monotonic()
        self._start(version)
        while self._pump(0.0):
            pass  # what came while the learner was busy
        waiting = self._tickets.waiting
        self._hand_out(1)
        while self._tickets.missing(version):
            self._pump(1.0)
            self._hand_out(1)
        self._tickets.learn(version)
        batch = [self._brought.pop(ticket) for ticket in self._tickets.wanted(version)]
        if not self.is_exact:
            self._hand_out(self._lag + 1)  # so that nobody waits while the learner is busy
        waited = time.monotonic() - started
        notes, self._notes = self._notes, []
        reports = [(index, brought.report) for index, brought in batch]
        return Batch(
            [self._rollout(index, brought) for index, brought in batch],
            seconds=self._reports.seconds([report for _, report in reports]) | {"wait": waited},
            info=self._reports.info([report for _, report in reports]),
            metrics=self._reports.metrics(
                reports,
                ready=waiting,
                running=self._tickets.running,
            ),
            restarted={index for index, report in reports if report.is_new},
            notes=notes,
        )

    def recall(self, metrics: Mapping[str, float]) -> None:
        """Go on counting from the last metrics of a run that is resumed."""
        self._reports.recall(metrics)

    def publish(self, version: int) -> None:
        """Put the policy's weights into the object store; in async mode actors may go on at once."""
        if not self._held.seats:
            return
        self._put_up(version)
        if not self.is_exact:
            self._hand_out(1)

    def restart_episodes(self) -> None:
        """Begin new episodes at the next ``collect``."""
        if not self._held.seats:
            return
        if self.is_exact and not self._tickets.running:
            for seat in self._held.seats:
                seat.sequence = 0
            self._ask_all([("restart",)] * len(self._held.seats))
        else:
            self._dismiss()  # in mid-rollout: with new actors nothing is left over

    def snapshot(self) -> dict[str, Tensor] | None:
        """All that decides the next rollouts; None if an env cannot tell its part."""
        if not self._held.seats:
            return None
        found = self._ask_all([("snapshot",)] * len(self._held.seats))
        return merged([None if part is None else part.copy() for part in found])

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Go on from what ``snapshot`` returned, in whatever runtime that was."""
        self._start(version)
        parts = parted(snapshot, len(self._held.seats))
        fitted = self._ask_all([("restore", pack(part), version) for part in parts])
        if not all(fitted):
            self.restart_episodes()
            return False
        for seat, part in zip(self._held.seats, parts):
            seat.sequence = int(part["sequence"])
        return True

    def close(self) -> None:
        """End all actors, and the cluster if it is our own; the next ``collect`` would start new ones."""
        self._dismiss()
        self._held.close()

    # -- starting ---------------------------------------------------------------------------------

    def _start(self, version: int) -> None:
        """Start all actors, if there are none, or if what they wait for is another update."""
        held, config = self._held, self._config
        if held.seats and self._tickets.is_next(version):
            return
        self._dismiss()  # of an update that failed: its tickets are used up, and weights may have moved
        cluster = self._connected()
        self._tickets = Tickets(config.actors, self._lag, self.is_exact, version)
        self._put_up(version)
        cpus = 1 if cluster.has_cpus(config.actors) else 0
        if not cpus:
            self._notes.append(
                f"the Ray cluster has fewer than {config.actors} free CPUs: the actors share what there is"
            )
        try:
            for index in range(config.actors):
                held.seats.append(Seat(index))
            for seat in held.seats:
                self._seat(seat, cpus)
        except BaseException:
            self.close()
            raise

    def _connected(self) -> Cluster:
        """The cluster, which is started if need be."""
        held, config = self._held, self._config
        if held.cluster is None:
            held.cluster = Cluster(config.ray_address, cpus=config.actors, store=self._store_bytes())
            held.lookout = held.cluster.lookout()
        return held.cluster

    def _seat(self, seat: Seat, cpus: int) -> None:
        """A Ray actor for this actor."""
        blueprint = Blueprint.of(self._env, self._policy, self._config, seat.index)
        seat.key = uuid.uuid4().hex
        rows = self.rows // self._config.actors
        seat.remote = Remote(
            f"actor {seat.index}",
            Player,
            (seat.key, blueprint, rows, seat.life, seat.sequence),
            handles=[self._held.watch.handle],
            cpus=cpus,
        )
        seat.calls = deque([Call("begin", seat.remote.begun)])
        seat.since = time.monotonic()

    def _store_bytes(self) -> int:
        """What rollouts and weights take in the object store at most, twice."""
        size = rollout_size(self._config.algo, self._policy, self.rows)
        weights = tree.size_bytes(dict(self._policy.state_dict()))
        return 2 * (self._lag + 3) * (size.total + weights)

    def _dismiss(self) -> None:
        """End the actors; the cluster stays."""
        self._held.dismiss()
        self._brought.clear()
        self._weights = None

    # -- working ----------------------------------------------------------------------------------

    def _put_up(self, version: int) -> None:
        self._weights = self._connected().put(pack(dict(self._policy.state_dict())))
        self._tickets.publish(version)

    def _hand_out(self, depth: int) -> None:
        """Give tickets to those who have least to do, at most ``depth`` to each.

        An actor acts with the newest weights of the moment in which it gets its ticket. So it gets more than
        one only before nobody has time to give it another.
        """
        for already in range(depth):
            for seat in self._held.seats:
                if seat.tickets == already and (ticket := self._tickets.take(seat.index)) is not None:
                    # In a list the reference stays one, so that its way to the actor is measured there.
                    message = ("collect", ticket, self._tickets.version, [self._weights])
                    seat.ask("collect", message, ticket=ticket, weights=self._weights)

    def _pump(self, timeout: float) -> bool:
        """Handle what the actors answered, waiting for it if there is nothing. Returns whether there was."""
        heads = {seat.calls[0].answer: seat for seat in self._held.seats if seat.calls}
        ready = self._connected().wait(list(heads), timeout)
        for answer in ready:
            self._note(heads[answer])
        if not ready and timeout:
            for seat in self._held.seats:
                if error := seat.silence(self._config.env_timeout, self._held.watch):
                    self._revive(seat, error)
        return bool(ready)

    def _note(self, seat: Seat) -> None:
        """The answer to the first of its calls is there."""
        try:
            found = seat.actor.receive(seat.calls[0].answer)
        except LostError as error:
            self._revive(seat, error)
            return
        call, seat.since = seat.calls.popleft(), time.monotonic()
        if call.what == "begin":
            seat.actor.facts = found
        elif call.what == "ask":
            self._answers[seat.index] = found
        else:
            self._tickets.done(call.ticket, seat.index)
            self._brought[call.ticket] = seat.index, found
            self._notes.extend(found.report.notes)
            seat.deaths, seat.sequence = 0, found.report.sequence + 1

    def _revive(self, seat: Seat, error: LostError) -> None:
        """A new Ray actor in place of one that died. What it had not brought is collected anew."""
        cluster = self._connected()
        _, hung = self._held.watch.look(seat.key)
        if hung is not None:
            error = LostError(f"{seat.actor} hangs: {hung}")
        seat.deaths += 1
        seat.actor.kill()
        seat.calls.clear()
        self._tickets.give_back(seat.index)
        limits.check_deaths(seat.deaths, error)
        seat.life += 1
        self._reports.restarts += 1
        self._notes.append(f"{error}; a new one goes on in new episodes")
        # What the dead one had may be gone with its node, and Ray would wait for another node forever.
        self._seat(seat, 1 if cluster.has_cpus(1) else 0)

    def _ask_all(self, messages: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send each actor its message and return their answers; only between two rollouts.

        One that died has lost its episodes: it is begun anew, and its answer is None.
        """
        self._answers.clear()
        for seat, message in zip(self._held.seats, messages):
            seat.ask("ask", message)
        while any(seat.calls for seat in self._held.seats):
            self._pump(1.0)
        return [self._answers.get(seat.index) for seat in self._held.seats]

    def _rollout(self, index: int, brought: Brought) -> Rollout:
        """The rollout on the learner's device."""
        device, report = self._config.device, brought.report
        rollout = rollout_of(self._moved(brought.tensors), self._config.algo.state_steps, index)
        cut = finals(brought.finals)
        cut = None if cut is None else cut.to(device)
        return replace(rollout, finals=cut, sequence=report.sequence, version=report.version)

    def _moved(self, packed: Packed) -> Any:
        """The tensors on the learner's device: a copy, but where several rollouts are joined anyway."""
        if torch.device(self._config.device).type != "cpu":
            return tree.to(packed.open(), self._config.device)
        return packed.copy() if self._config.actors == 1 else packed.open()


def _make_peer(crew: weakref.ref[RayCrew], blueprint: LearnerBlueprint, example: Rollout) -> RayPeer:
    """Another learner on the cluster of the crew, which does not own it."""
    owner = crew()
    assert owner is not None
    return RayPeer(owner._connected(), blueprint, example)
