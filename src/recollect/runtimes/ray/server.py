"""The code inside Ray actors: the actor server, and the recipient of heartbeats.

Tensors travel as one array of bytes (``Packed``), whatever their dtypes: Ray's object store keeps such an
array apart, so that it is written once and read in place.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch

from recollect.acting.group_actor import allocate_all, empty_header
from recollect.algos.catalog import acting
from recollect.base import tree
from recollect.base.child_process import Raised, describe_raised
from recollect.base.shared_memory import Layout
from recollect.base.types import Tree
from recollect.errors import WeightsError
from recollect.experience.group_rollout import AnyHeader, read
from recollect.runtimes.actor_server import ActorServer, Blueprint, Report, Watchdog

HEARTBEAT = 5.0
"""Seconds between two heartbeats."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tree of tensors as bytes."""

    layout: Layout
    data: np.ndarray
    """uint8; read-only once it has been in the object store."""

    def open(self) -> Tree:
        """The tensors in place. Never write to those from the object store: it is shared."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            return self.layout.over(self.data)


def pack(value: Tree) -> Packed:
    """A copy of the tree, from any device."""
    packed = blank(Layout.of(value))
    tree.copy_(packed.open(), tree.map(lambda leaf: leaf.detach(), value))
    return packed


def blank(layout: Layout) -> Packed:
    """Zeroed memory for tensors."""
    return Packed(layout, torch.zeros(layout.size, dtype=torch.uint8).numpy())  # numpy's own is not aligned


@dataclass(frozen=True, slots=True)
class Location:
    """The place of a Ray actor."""

    pid: int
    node: str
    """Address of its node."""
    node_id: str
    """Ray's name of its node."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.node}"

    @classmethod
    def here(cls) -> Location:
        """The place of this process."""
        node_id = ray.get_runtime_context().get_node_id()
        return cls(os.getpid(), ray.util.get_node_ip_address(), node_id)


class RayActorServer:
    """An actor server in a Ray actor. Its methods are called by name, and their exceptions are returned."""

    def __init__(self, heartbeats: Any, key: str, blueprint: Blueprint, rows: int):
        """Open an env of ``rows`` rows; ``heartbeats``: handle of their recipient; ``key``: its key there."""
        algo = blueprint.config.algo
        wanted = acting(algo)
        self._heartbeats, self._key, self._last_beat = heartbeats, key, 0.0
        empty = allocate_all(blueprint.policy, rows, algo.rollout, wanted, blueprint.index)
        self._memory = blank(Layout.of(empty.slot()))
        self._slot = self._memory.open()
        buffer = read(self._slot, empty_header(blueprint.policy, wanted, blueprint.index))
        self._server = ActorServer(blueprint, [buffer])
        self._weights = Layout.of(self._server.weights)
        self.snapshot, self.restore = self._server.snapshot, self._server.restore
        self.restart_episodes, self.close = self._server.restart_episodes, self._server.close
        self.adjust = self._server.adjust
        Watchdog(self._server, self._give_up, self._beat)

    def location(self) -> Location:
        """The place of this server."""
        return Location.here()

    def collect(self, ticket: int, version: int, weights: list[Any]) -> tuple[Report, AnyHeader, Packed]:
        """Record a rollout with the weights of the one reference in ``weights``."""

        def load() -> int:
            packed: Any = ray.get(weights[0])
            if packed.layout != self._weights:
                raise WeightsError(
                    f"the weights of version {version} are not built like the policy of this actor"
                )
            tree.copy_(self._server.weights, packed.open())
            return version

        rollout, report = self._server.collect(ticket, load)
        return report, rollout.write_finals(self._slot), self._memory

    def _beat(self) -> None:
        if time.monotonic() - self._last_beat > HEARTBEAT:
            self._last_beat = time.monotonic()
            self._heartbeats.beat.remote(self._key)

    def _give_up(self, text: str) -> None:
        try:
            ray.get(self._heartbeats.hang.remote(self._key, text), timeout=5.0)
        finally:
            os._exit(1)


def heartbeats_class() -> type:
    """The class of a small Ray actor near the learner. See ``bootstrap_class`` for why it is made here."""

    class Heartbeats:
        """Keeps the time of every server's last heartbeat, and its report if it hangs."""

        def __init__(self) -> None:
            import time

            self._now = time.monotonic
            self._beats: dict[str, float] = {}
            self._hung: dict[str, str] = {}

        def beat(self, key: str) -> None:
            """Note a heartbeat."""
            self._beats[key] = self._now()

        def hang(self, key: str, text: str) -> None:
            """Note that the env of a server hangs."""
            self._hung[key] = text

        def look(self, key: str) -> tuple[float | None, str | None]:
            seen = self._beats.get(key)
            return None if seen is None else self._now() - seen, self._hung.get(key)

    return Heartbeats


def bootstrap_class() -> type:
    """A class for Ray actors that makes Recollect importable first.

    It is defined in a function so that it is pickled by value: a worker without Recollect on its path could
    not import a class of this module.
    """

    class Bootstrap:
        """Makes an object from bytes, once the modules that it needs can be imported."""

        def start(self, path: list[str], work: bytes, *handles: Any) -> Any:
            """``work``: pickled parts, ``call_safely``, a class, and its arguments after the handles."""
            import pickle
            import sys

            sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
            _, self._call, make, arguments = pickle.loads(work)
            self._made = self._call(make, *handles, *arguments)
            return self.call("location")

        def call(self, name: str, *arguments: Any) -> Any:
            """Call a method of the object."""
            return self._call(getattr(self._made, name, self._made), *arguments)

    return Bootstrap


def call_safely(function: Callable[..., Any] | Raised, *arguments: Any) -> Any:
    """The result of the function, or a ``Raised`` with the type and traceback of its exception."""
    if isinstance(function, Raised):  # the object could not be made
        return function
    try:
        return function(*arguments)
    except BaseException as error:
        return describe_raised(error)
