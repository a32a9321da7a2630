"""Several learners in place of one: the first in this process, the others elsewhere.

To the trainer a ``LearnerGroup`` is a learner: it gets the whole batch, and deals out its rows. The first
learner's state is the state of all, and what checkpoints hold.

One that is killed, or raises, ends the update with its error: the others notice by its closed sockets. The
first learner then gets back the state it had before, so that what is saved was never half an update.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from recollect.base import tree
from recollect.base.child_process import Child, Line
from recollect.base.shared_memory import Layout, Segment
from recollect.config.train import TrainConfig
from recollect.errors import AlignmentError, DivergedError, EnvError, LostError
from recollect.experience.rollout import Rollout
from recollect.learning import diagnostics
from recollect.learning.learner import Learner
from recollect.learning.ranks import ALONE, Backend, Group, GroupError, host_store
from recollect.learning.shards import even_rows, shards
from recollect.runtimes.actor_server import finals_example, get_finals, put_finals, rollout_of, tensors_of
from recollect.runtimes.learner_host import LearnerBlueprint, LearnerHost, LearnerState

PATIENCE = 120.0
"""Seconds for a learner to start, or to answer once the first one is done."""
LAST_WORDS = 5.0
"""Seconds in which learners that failed may still say why."""


class Peer(Protocol):
    """Another learner, as this process sees it. Every call but ``stop`` is answered by one ``done``.

    One that was just made answers twice: when it is ready to connect, and when it is connected.
    """

    def load(self, state: LearnerState) -> None:
        """Let it become what the first learner is."""
        ...

    def begin(self, rollout: Rollout, progress: float, lag: int) -> None:
        """Give it its rows of a batch, to learn from at once. They may change after its answer."""
        ...

    def done(self, timeout: float) -> None:
        """Wait for its answer.

        Raises:
            LostError: it was killed.
            ChildError: it raised; or what it raised, if that is a RecollectError.
            TimeoutError: it does not answer.
        """
        ...

    def stop(self) -> None:
        """End it, by force if need be."""
        ...


MakePeer = Callable[[LearnerBlueprint, Rollout], Peer]
"""Starts a learner; the rollout is an example of what it will learn from."""


class LearnerGroup:
    """What trains in place of ``learner``, which is the first of ``config.learners``."""

    def __init__(
        self,
        learner: Learner,
        config: TrainConfig,
        rows: int,
        *,
        make: MakePeer | None = None,
        host: str = "127.0.0.1",
    ):
        """Nothing is started before the first update.

        Args:
            learner: of this process.
            config: of the run.
            rows: of every batch.
            make: starts another learner; it also gets the first rollout that it will learn from. None: a
                process on this machine.
            host: the address of this machine that the others can reach.
        """
        self.learner, self._config, self._host = learner, config, host
        self.rows = even_rows(rows, config.learners)
        self._make = make or ChildPeer
        self._peers: list[Peer] = []
        self._asked: list[Peer] = []  # whose answers are still to come
        self._group: Group | None = None
        self._is_equal = False
        self._stop = weakref.finalize(self, _stop_all, self._peers)

    def update(self, rollout: Rollout, progress: float = 0.0, *, lag: int = 0) -> dict[str, float]:
        """``Learner.update`` of the whole batch, by all learners."""
        diagnostics.check_finite_rollout(rollout)  # of all rows, while nobody waits for anybody
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
            # What the learners find out together leaves the weights as one learner would leave them.
            if not isinstance(error, DivergedError | AlignmentError | EnvError):
                before.put(self.learner)
            if cause is error:
                raise
            raise cause from error
        return metrics

    def forget(self) -> None:
        """The first learner was given another state: the others get it before the next update."""
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
        """Start the other learners, if there are none, and make them equal to the first."""
        if not self._peers:
            devices, backend = places(self._config)
            store, port = host_store(self._host)
            for rank in range(1, len(self.rows)):
                blueprint = LearnerBlueprint.of(
                    self.learner.policy,
                    self._config,
                    rank=rank,
                    rows=self.rows,
                    address=(self._host, port),
                    device=devices[rank],
                    backend=backend,
                )
                self._peers.append(self._make(blueprint, parts[rank]))
            self._asked.extend(self._peers)
            self._wait()  # so that nobody is waited for who could not even start
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
        """For the answers of all who were asked."""
        while self._asked:
            self._asked.pop(0).done(PATIENCE)

    def _cause(self, error: BaseException) -> BaseException:
        """Why the learners lost each other: the error of the one with which it began."""
        if not isinstance(error, GroupError):
            return error
        if self._group is not None:
            self._group.close()  # whoever still waits for the first learner need not
        ends, found = time.monotonic() + LAST_WORDS, []
        for peer in self._asked:
            try:
                peer.done(max(0.0, ends - time.monotonic()))
            except TimeoutError:
                continue
            except Exception as last:
                found.append(last)
        own = [last for last in found if not isinstance(last, GroupError)]
        return min(own, key=lambda last: isinstance(last, LostError), default=error)


def places(config: TrainConfig) -> tuple[list[str], Backend]:
    """The device of every learner on this machine, and how they talk: a GPU each, if there are so many."""
    device = torch.device(config.device)
    if device.type == "cuda" and device.index is None and torch.cuda.device_count() >= config.learners > 1:
        return [f"cuda:{rank}" for rank in range(config.learners)], "nccl"
    return [config.device] * config.learners, "gloo"


# In processes of this machine ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """Where a learner finds its rows, as its process is told."""

    layout: Layout
    fd: int
    size: int


class ChildPeer:
    """A learner in a process of its own. Its rows lie in shared memory; little else is sent."""

    def __init__(self, blueprint: LearnerBlueprint, example: Rollout):
        """Start it; ``example``: a rollout of its rows."""
        layout = Layout.of({"rollout": tensors_of(example), "finals": finals_example(example)})
        self._segment = Segment.create(layout.size, f"the rows of learner {blueprint.rank}")
        self._memory = layout.view(self._segment)
        run = blueprint.config.run
        self._child = Child(
            live,
            blueprint,
            Place(layout, self._segment.fd, self._segment.size),
            name=f"learner {blueprint.rank}",
            fds=(self._segment.fd,),
            log=None if run is None else Path(run) / "logs" / f"learner-{blueprint.rank}.log",
        )

    @property
    def pid(self) -> int:
        """Of its process."""
        return self._child.pid

    def load(self, state: LearnerState) -> None:
        """Let it become what the first learner is."""
        self._child.send(("load", state))

    def begin(self, rollout: Rollout, progress: float, lag: int) -> None:
        """Give it its rows of a batch, to learn from at once."""
        tree.copy_(self._memory["rollout"], tensors_of(rollout))
        finals = put_finals(self._memory["finals"], rollout.finals)
        about = (rollout.state_steps, rollout.actor, rollout.sequence, rollout.version)
        self._child.send(("update", about, finals, progress, lag))

    def done(self, timeout: float) -> None:
        """Wait for its answer."""
        self._child.receive(timeout)

    def stop(self) -> None:
        """End its process."""
        self._child.stop()
        self._segment.close()


def live(line: Line, blueprint: LearnerBlueprint, place: Place) -> None:
    """The life of a learner's process."""
    memory = place.layout.view(Segment.attach(place.fd, place.size))
    host = LearnerHost(blueprint)
    try:
        line.send("ready")
        host.connect()
        line.send("connected")
        while True:
            kind, *rest = line.recv()
            if kind == "load":
                host.load(*rest)
            else:
                (state_steps, actor, sequence, version), finals, progress, lag = rest
                rollout = rollout_of(memory["rollout"], state_steps, actor)
                found = get_finals(memory["finals"], finals)
                rollout = replace(rollout, finals=found, sequence=sequence, version=version)
                host.update(rollout, progress, lag)
            line.send(kind)
    finally:
        host.close()


def _stop_all(peers: list[Peer]) -> None:
    for peer in peers:
        peer.stop()
    peers.clear()
