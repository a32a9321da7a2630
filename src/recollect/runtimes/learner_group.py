"""Data-parallel learners: the first in this process, the others in other processes.

To the trainer a ``LearnerGroup`` is a learner: it gets the whole batch and distributes its rows. All learners
have the same state; checkpoints hold that of the first.

If a learner is killed or raises, the update ends with its error: the others see its closed sockets. The first
learner then returns to its state before the update, so that a checkpoint never holds half an update.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch

from recollect.config.train import TrainConfig
from recollect.errors import AlignmentError, DivergedError, EnvError, LostError
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.learner import Learner
from recollect.learning.ranks import ALONE, Backend, Group, GroupError, even_rows, host_store, shards
from recollect.runtimes.actor_server import on_cpu
from recollect.runtimes.learner_server import LearnerBlueprint, LearnerState
from recollect.runtimes.process.learner import ProcessPeer

PATIENCE = 120.0
"""Seconds for a learner to start, or to reply once the first one is done."""
REPORT_SECONDS = 5.0
"""Seconds in which failed learners may still report their error."""


class Peer(Protocol):
    """Another learner, as this process sees it. Every call except ``stop`` is followed by one ``done``.

    A new one replies twice: when it is ready to connect, and when it is connected.
    """

    def load(self, state: LearnerState) -> None:
        """Give it the state of the first learner."""
        ...

    def begin(self, rollout: Rollout, progress: float, lag: int) -> None:
        """Start an update on its rows of a batch, which may change after its reply."""
        ...

    def done(self, timeout: float) -> None:
        """Wait for its reply.

        Raises:
            LostError: it was killed.
            ChildError: it raised; a RecollectError is raised as it is.
            TimeoutError: there was no reply.
        """
        ...

    def stop(self) -> None:
        """End it, by force if necessary."""
        ...


MakePeer = Callable[[LearnerBlueprint, Rollout], Peer]
"""Starts a learner. The rollout is an example of those that it will get."""


class LearnerGroup:
    """``config.learners`` learners, of which ``learner`` is the first."""

    def __init__(
        self,
        learner: Learner,
        config: TrainConfig,
        rows: int,
        *,
        name: str = "",
        make: MakePeer | None = None,
        host: str = "127.0.0.1",
    ):
        """The other learners start with the first update.

        ``learner``: the one in this process; ``rows``: of every batch; ``name``: of the group of agents;
        ``make``: starts another learner (None: in a process on this machine); ``host``: the address of this
        machine for the others.
        """
        self.learner, self._config, self._name, self._host = learner, config, name, host
        self.rows = even_rows(rows, config.learners)
        self._make = make or ProcessPeer
        self._peers: list[Peer] = []
        self._asked: list[Peer] = []
        """Those with outstanding replies."""
        self._group: Group | None = None
        self._is_equal = False
        self._stop = weakref.finalize(self, _stop_all, self._peers)

    def update(self, rollout: Rollout, progress: float = 0.0, *, lag: int = 0) -> dict[str, float]:
        """``Learner.update`` on the whole batch, by all learners."""
        diagnostics.check_finite_rollout(rollout)  # here, where no learner waits for another
        before = LearnerState.of(self.learner)
        parts = shards(rollout, self.rows)
        try:
            self._start(parts)
            for peer, part in zip(self._peers, parts[1:]):
                peer.begin(part, progress, lag)
                self._asked.append(peer)
            metrics = self.learner.update(parts[0], progress, lag=lag)
            self._wait()
        except BaseException as error:
            cause = self._cause(error)
            self.close()
            # After an error that all learners raise, the weights stay as one learner would leave them.
            if not isinstance(error, DivergedError | AlignmentError | EnvError):
                before.put(self.learner)
            if cause is error:
                raise
            raise cause from error
        return metrics

    def forget(self) -> None:
        """Send the state of the first learner, which was replaced, to the others before the next update."""
        self._is_equal = False

    def close(self) -> None:
        """End the other learners; the next update would start new ones."""
        self.learner.ranks = ALONE
        self._is_equal = False
        self._asked.clear()
        if self._group is not None:
            self._group.close()
            self._group = None
        _stop_all(self._peers)

    def _start(self, parts: list[Rollout]) -> None:
        """Start the other learners, if there are none, and give them the state of the first."""
        if not self._peers:
            devices, backend = devices_and_backend(self._config)
            store, port = host_store(self._host)
            for rank in range(1, len(self.rows)):
                policy, config = on_cpu(self.learner.policy), replace(self._config, device=devices[rank])
                address = (self._host, port)
                blueprint = LearnerBlueprint(policy, config, rank, self.rows, address, backend, self._name)
                self._peers.append(self._make(blueprint, parts[rank]))
            self._asked.extend(self._peers)
            self._wait()  # before connecting: a learner that fails to start would be waited for
            self._asked.extend(self._peers)
            self._group = Group(store, 0, self.rows, host=self._host, backend=backend)
            self._wait()
            self.learner.ranks = self._group
        if not self._is_equal:
            state = LearnerState.of(self.learner, "cpu")
            for peer in self._peers:
                peer.load(state)
                self._asked.append(peer)
            self._wait()
            self._is_equal = True

    def _wait(self) -> None:
        """Wait for all outstanding replies."""
        while self._asked:
            self._asked.pop(0).done(PATIENCE)

    def _cause(self, error: BaseException) -> BaseException:
        """The error of the learner that failed first, if the group was disconnected."""
        if not isinstance(error, GroupError):
            return error
        if self._group is not None:
            self._group.close()  # the others stop waiting for the first learner
        ends, found = time.monotonic() + REPORT_SECONDS, []
        for peer in self._asked:
            try:
                peer.done(max(0.0, ends - time.monotonic()))
            except TimeoutError:
                continue
            except Exception as last:
                found.append(last)
        own = [last for last in found if not isinstance(last, GroupError)]
        return min(own, key=lambda last: isinstance(last, LostError), default=error)


def devices_and_backend(config: TrainConfig) -> tuple[list[str], Backend]:
    """The device of every learner on this machine, a GPU each if there are enough, and their backend."""
    device = torch.device(config.device)
    if device.type == "cuda" and device.index is None and torch.cuda.device_count() >= config.learners > 1:
        return [f"cuda:{rank}" for rank in range(config.learners)], "nccl"
    return [config.device] * config.learners, "gloo"


def _stop_all(peers: list[Peer]) -> None:
    for peer in peers:
        peer.stop()
    peers.clear()
