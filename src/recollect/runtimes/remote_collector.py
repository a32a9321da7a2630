"""The collector of the runtimes whose actors are in other processes.

``RemoteCollector`` decides which actor collects what, restarts actors that die, and keeps the counters. A
``Transport`` carries weights, requests and rollouts.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from recollect.config.train import TrainConfig
from recollect.envs.env_names import portable
from recollect.envs.factory import EnvSpec
from recollect.errors import LostError
from recollect.experience import group_rollout
from recollect.policy.policies import Network
from recollect.runtimes import restart_limits
from recollect.runtimes.actor_metrics import Reports
from recollect.runtimes.actor_server import Blueprint, on_cpu
from recollect.runtimes.collector import Batch, mean_info, merge_snapshots, split_snapshot
from recollect.runtimes.tickets import Tickets
from recollect.runtimes.transport import STARTED, Channel, Delivery, Transport


@dataclass(slots=True)
class ActorHandle:
    """One actor as the collector sees it, over all its restarts."""

    index: int
    channel: Channel
    restarts: int = 0
    """How often it was restarted."""
    deaths: int = 0
    """Deaths since the last finished rollout."""
    sequence: int = 0
    """Index of the next rollout."""
    requests: deque[int | None] = field(default_factory=deque)
    """Unanswered requests, in order: the ticket of a rollout, None for any other call."""
    since: float = 0.0
    """Time of the last reply, of the start, or of a request after an idle time."""
    answer: Any = None
    """The last reply that was not a rollout."""

    def expect(self, ticket: int | None) -> None:
        """Note a request."""
        if not self.requests and self.channel.is_started:
            self.since = time.monotonic()
        self.requests.append(ticket)

    def silence(self, env_timeout: float | None) -> LostError | None:
        """The error of a server that does not start, or whose process is stopped or stuck."""
        waited, is_started = time.monotonic() - self.since, self.channel.is_started
        patience = restart_limits.patience(env_timeout, is_started=is_started)
        if patience is None or waited <= patience:
            return None
        quiet, why = waited, self.channel.start_failure
        if is_started:
            quiet, why = self.channel.silence(), restart_limits.STUCK
        if quiet is None or quiet <= patience:
            return None
        return LostError(f"{self.channel} gave no sign of life for {quiet:.0f} s: {why}")


class RemoteCollector:
    """Actors in other processes. Their servers start with the first ``collect`` and run until ``close``."""

    def __init__(self, transport: Transport, env: EnvSpec, policy: Network, config: TrainConfig, rows: int):
        """``rows``: of all actors together."""
        self._transport, self._env, self._policy, self._config = transport, env, policy, config
        self.rows, self.host, self.make_peer = rows, transport.host, transport.make_peer
        self.is_exact = config.mode == "lockstep"  # actors that run ahead cannot be saved in mid-rollout
        self._lag = config.lag_limit
        self._handles: list[ActorHandle] = []
        self._tickets = Tickets(config.actors, self._lag, self.is_exact)
        self._delivered: dict[int, Delivery] = {}
        """Rollouts to learn from, by ticket."""
        self._in_use: list[Delivery] = []
        """The rollouts of the last batch."""
        self._reports = Reports(config.actors)
        self._notes: list[str] = []
        self._settings: dict[str, Any] | None = None
        """Of the curriculum, for servers that are started; None: it has none."""
        self._finalizer = weakref.finalize(self, transport.close)

    @property
    def pids(self) -> list[int]:
        """The processes of the actor servers, in order, as far as they are known."""
        return [pid for channel in self._transport.channels if (pid := channel.pid) is not None]

    def collect(self, version: int) -> Batch:
        """The rollouts of the tickets of update ``version``, in their order."""
        try:
            return self._collect(version)
        except BaseException:
            self.close()  # servers may be in the middle of a rollout or of a message
            raise

    def _collect(self, version: int) -> Batch:
        started = time.monotonic()
        self._start(version)
        for delivery in self._in_use:
            if delivery.release is not None:
                delivery.release()
        self._in_use.clear()
        self._assign(1)
        while ready := self._receive(0.0):  # replies that arrived during the update
            self._assign(1, ready)
        waiting = self._tickets.waiting
        while self._tickets.missing(version):
            # To all after a timeout: a server that was dead when it got its ticket was restarted without it.
            self._assign(1, self._receive(1.0) or None)
        self._tickets.learn(version)
        batch = [self._delivered.pop(ticket) for ticket in self._tickets.wanted(version)]
        self._in_use.extend(batch)
        if not self.is_exact:
            self._assign(self._lag + 1)  # so that no actor idles during the update
        waited = time.monotonic() - started
        notes, self._notes = [*self._transport.notes, *self._notes], []
        self._transport.notes.clear()
        reports = [(delivery.header.actor, delivery.report) for delivery in batch]
        rollouts = [group_rollout.read(delivery.slot, delivery.header) for delivery in batch]
        return Batch(
            [rollout.to(self._config.device) for rollout in rollouts],
            # The actors run in parallel: the slowest one counts.
            seconds={name: max(report.seconds[name] for _, report in reports) for name in ("env", "act")}
            | {"wait": waited},
            info=mean_info([(report.info, 1) for _, report in reports]),
            metrics=self._reports.metrics(reports, ready=waiting, running=self._tickets.running),
            restarted={actor for actor, report in reports if report.is_new},
            notes=notes,
        )

    def restore_counters(self, metrics: Mapping[str, float]) -> None:
        """Continue the counters from the last metrics of a resumed run."""
        self._reports.restore_counters(metrics)

    def publish(self, version: int) -> None:
        """Publish the policy's weights; in async mode idle actors start at once."""
        if not self._handles:
            return
        self._publish(version)
        if not self.is_exact:
            self._assign(1)

    def adjust(self, settings: dict[str, Any]) -> None:
        """Change settings of all envs. An actor that collects a rollout changes them after it."""
        self._settings = settings
        self._call_all("adjust", [(settings,)] * len(self._handles))

    def restart_episodes(self) -> None:
        """Start new episodes at the next ``collect``."""
        if not self._handles:
            return
        if self.is_exact and not self._tickets.running:
            for handle in self._handles:
                handle.sequence = 0
            self._call_all("restart_episodes", [()] * len(self._handles))
        else:
            self._end_servers()  # in the middle of a rollout: new servers have no leftovers

    def snapshot(self) -> dict[str, Tensor] | None:
        """The state that determines the next rollouts; None if an env has no snapshots."""
        if not self._handles:
            return None
        return merge_snapshots(self._call_all("snapshot", [()] * len(self._handles)))

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Resume from a snapshot of any runtime. If it does not fit, return False and start new episodes."""
        self._start(version)
        parts = split_snapshot(snapshot, len(self._handles))
        if not all(self._call_all("restore", [(part, version) for part in parts])):
            self.restart_episodes()
            return False
        for handle, part in zip(self._handles, parts):
            handle.sequence = int(part["sequence"])
        return True

    def close(self) -> None:
        """End all servers; the next ``collect`` would start new ones."""
        self._end_servers()
        self._transport.close()

    # -- starting ---------------------------------------------------------------------------------

    def _start(self, version: int) -> None:
        """Start all servers, unless they run and wait for this update."""
        if self._handles and self._tickets.is_next(version):
            return
        self._end_servers()  # after a failed update: its tickets are used up, and weights may have changed
        self._tickets = Tickets(self._config.actors, self._lag, self.is_exact, version)
        try:
            self._transport.open()
            self._publish(version)
            channels = self._transport.channels
            self._handles = [ActorHandle(index, channel) for index, channel in enumerate(channels)]
            for handle in self._handles:
                self._start_server(handle)
        except BaseException:
            self.close()
            raise

    def _start_server(self, handle: ActorHandle) -> None:
        handle.since = time.monotonic()
        env, policy, run = portable(self._env), on_cpu(self._policy), self._config.run
        # The current folder of an actor may be another one.
        config = replace(self._config, device="cpu", run=None if run is None else str(Path(run).absolute()))
        own = handle.index, handle.restarts, handle.sequence
        handle.channel.start(Blueprint(env, policy, config, *own, self._settings))

    def _end_servers(self) -> None:
        self._handles = []
        self._delivered.clear()
        self._in_use.clear()
        self._transport.end_servers()

    # -- working ----------------------------------------------------------------------------------

    def _publish(self, version: int) -> None:
        self._transport.publish(version, self._policy.state_dict())
        self._tickets.publish(version)

    def _assign(self, depth: int, handles: Sequence[ActorHandle] | None = None) -> None:
        """Give tickets to the actors with the fewest, up to ``depth`` each, while there is memory.

        A depth above 1 is only for the time of an update: a slow actor would delay its second ticket.
        ``handles``: the actors that may have become able to take one; None: all.
        """
        version = self._tickets.version if self.is_exact else None
        for level in range(depth):
            for handle in self._handles if handles is None else handles:
                requested = sum(ticket is not None for ticket in handle.requests)
                if requested != level or not handle.channel.has_room:
                    continue
                ticket = self._tickets.take(handle.index)
                if ticket is not None:
                    handle.expect(ticket)
                    try:
                        handle.channel.collect(ticket, version)
                    except LostError as error:
                        self._restart(handle, error)

    def _receive(self, timeout: float) -> list[ActorHandle]:
        """Handle the replies that arrive, waiting for the first. Returns the actors that sent one."""
        ready = [self._handles[index] for index in self._transport.wait(timeout)]
        for handle in ready:
            try:
                self._accept(handle, handle.channel.receive())
            except LostError as error:
                self._restart(handle, error)
        for handle in [] if ready or not timeout else self._handles:
            if handle.requests and (error := handle.silence(self._config.env_timeout)):
                self._restart(handle, error)
        return ready

    def _accept(self, handle: ActorHandle, reply: Any) -> None:
        handle.since = time.monotonic()
        if reply is STARTED:
            return
        ticket = handle.requests.popleft()
        if ticket is None:
            handle.answer = reply
            return
        delivery: Delivery = reply
        self._tickets.done(delivery.report.ticket, handle.index)
        self._delivered[ticket] = delivery
        self._notes.extend(delivery.report.notes)
        handle.deaths, handle.sequence = 0, delivery.header.sequence + 1

    def _restart(self, handle: ActorHandle, error: LostError) -> None:
        """Start a new server in place of one that died. Its unfinished rollouts are collected again."""
        handle.deaths += 1
        handle.channel.kill()
        handle.requests.clear()
        self._tickets.give_back(handle.index)
        restart_limits.check_deaths(handle.deaths, error)
        handle.restarts += 1
        self._reports.restarts += 1
        self._notes.append(f"{error}; it was restarted in new episodes")
        self._start_server(handle)

    def _call_all(self, method: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method of every server and return the replies; only between two rollouts.

        The reply of a server that died meanwhile is None: it was restarted and has lost its episodes.
        """
        try:
            for handle, given in zip(self._handles, arguments):
                handle.answer = None
                handle.expect(None)
                try:
                    handle.channel.call(method, *given)
                except LostError as error:
                    self._restart(handle, error)
            while any(handle.requests for handle in self._handles):
                self._receive(1.0)
        except BaseException:
            self.close()  # a late reply would be taken for that of another request
            raise
        return [handle.answer for handle in self._handles]
