"""The contract of a transport: it starts actor servers, publishes weights and brings rollouts back.

There is one for processes on this machine (``process/``) and one for a Ray cluster (``ray/``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from recollect.base.types import Tree
from recollect.experience.group_rollout import AnyHeader
from recollect.runtimes.actor_server import Blueprint, Report
from recollect.runtimes.learner_group import MakePeer

STARTED = object()
"""The reply of a server that has opened its env."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """A rollout that has arrived."""

    report: Report
    header: AnyHeader
    slot: Tree
    """The memory of the rollout."""
    release: Callable[[], None] | None = None
    """Called when the slot is no longer needed, if it is used again."""


class Channel(Protocol):
    """The connection to one actor server. It outlives the server: a restarted one gets the same channel.

    Requests are answered in their order. ``str(channel)`` names the actor and its process.
    """

    start_failure: str
    """The likely causes if the server does not start."""

    @property
    def pid(self) -> int | None:
        """The server's process; None: not known yet."""
        ...

    @property
    def is_started(self) -> bool:
        """Whether the server has opened its env."""
        ...

    @property
    def has_room(self) -> bool:
        """Whether there is memory for another rollout."""
        ...

    def start(self, blueprint: Blueprint) -> None:
        """Start a server."""
        ...

    def collect(self, ticket: int, version: int | None) -> None:
        """Request a rollout; the reply is a ``Delivery``. ``version``: of the weights; None: the newest."""
        ...

    def call(self, method: str, *arguments: Any) -> None:
        """Request a call of another method; the reply is its result."""
        ...

    def receive(self) -> Any:
        """The reply that ``Transport.wait`` has announced; ``STARTED`` if the server only reports its start.

        Raises:
            LostError: the server died or hangs.
            ChildError: it raised; a RecollectError is raised as it is.
        """
        ...

    def silence(self) -> float | None:
        """Seconds since the server's last heartbeat; None: not known."""
        ...

    def kill(self) -> None:
        """End the server at once, and discard its unanswered requests."""
        ...


class Transport(Protocol):
    """Starts actor servers and carries weights to them."""

    notes: list[str]
    """Messages to the user."""
    host: str
    """The address of this machine for other learners."""
    make_peer: MakePeer | None
    """Starts another learner; None: in a process on this machine."""

    @property
    def channels(self) -> Sequence[Channel]:
        """One per actor, in order; empty while there are no servers."""
        ...

    def open(self) -> None:
        """Make the channels, without servers yet."""
        ...

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Make these weights the newest."""
        ...

    def wait(self, timeout: float) -> list[int]:
        """The actors with a reply to receive; waits up to ``timeout`` seconds for the first."""
        ...

    def end_servers(self) -> None:
        """End all servers and drop the channels."""
        ...

    def close(self) -> None:
        """End everything that was started."""
        ...
