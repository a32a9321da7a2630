"""What runs inside Ray actors: the one that collects, and the one that is told of their pulses.

Tensors travel as one array of bytes each time (``Packed``), whatever their dtypes: Ray's object store keeps
such an array apart, so that it is written once and read in place.
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

from recollect.acting.actor import allocate
from recollect.base import tree
from recollect.base.child_process import Raised, describe_raised
from recollect.base.shared_memory import Layout
from recollect.base.types import Tree
from recollect.errors import WeightsError
from recollect.experience.rollout import Finals
from recollect.runtimes.actor_server import Blueprint, Host, Report, Watchdog, rollout_of, tensors_of

PULSE = 5.0
"""Seconds between two signs of life."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tree of tensors as bytes."""

    layout: Layout
    data: np.ndarray
    """uint8; read-only once it has been in the object store."""

    def open(self) -> Tree:
        """The tensors in place: never write to what came out of the object store, others read it too."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
            return self.layout.over(self.data)

    def copy(self) -> Tree:
        """The tensors as copies."""
        return tree.clone(self.open())


def pack(value: Tree) -> Packed:
    """A copy of the tree, from whatever device."""
    packed = blank(Layout.of(value))
    tree.copy_(packed.open(), tree.map(lambda leaf: leaf.detach(), value))
    return packed


def blank(layout: Layout) -> Packed:
    """Memory to write tensors to."""
    return Packed(layout, torch.zeros(layout.size, dtype=torch.uint8).numpy())  # aligned, as numpy's is not


@dataclass(frozen=True, slots=True)
class Facts:
    """Where a player lives."""

    pid: int
    node: str
    """Its node's address."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.node}"


@dataclass(frozen=True, slots=True)
class Brought:
    """A rollout on its way to the learner."""

    report: Report
    tensors: Packed
    finals: Packed | None


class Player:
    """An actor and its env inside a Ray actor. Methods are called by name; what they raise is returned."""

    def __init__(self, lookout: Any, key: str, blueprint: Blueprint, rows: int, life: int, sequence: int):
        """Make the env.

        Args:
            lookout: the handle of the actor that is told of this one.
            key: what it knows this player by.
            blueprint: what to make.
            rows: of this actor.
            life: how often this actor died before.
            sequence: how many rollouts it has brought so far.
        """
        index, algo = blueprint.index, blueprint.config.algo
        self._lookout, self._key, self._pulsed = lookout, key, 0.0
        empty = allocate(blueprint.policy, rows, algo.rollout, algo.state_steps, index)
        self._memory = blank(Layout.of(tensors_of(empty)))
        buffer = rollout_of(self._memory.open(), algo.state_steps, index)
        self._host = Host(blueprint, life=life, sequence=sequence, buffers=[buffer])
        self._weights = Layout.of(self._host.weights)
        Watchdog(self._host, self._give_up, self._pulse)

    def facts(self) -> Facts:
        """Where this is."""
        return Facts(os.getpid(), ray.util.get_node_ip_address())

    def collect(self, ticket: int, version: int, weights: list[Any]) -> Brought:
        """Record a rollout with the weights that the one reference in ``weights`` stands for."""

        def load() -> int:
            packed: Any = ray.get(weights[0])
            if packed.layout != self._weights:
                raise WeightsError(
                    f"the weights of version {version} are not built like the policy of this actor"
                )
            tree.copy_(self._host.weights, packed.open())
            return version

        rollout, report = self._host.collect(ticket, load)
        return Brought(report, self._memory, pack_finals(rollout.finals))

    def snapshot(self) -> Packed | None:
        """All that decides the next rollouts, if the env can tell its part."""
        found = self._host.snapshot()
        return None if found is None else pack(found)

    def restore(self, snapshot: Packed, version: int) -> bool:
        """Go on from a snapshot; False, and new episodes, if it does not fit."""
        return self._host.restore(snapshot.copy(), version)

    def restart(self) -> None:
        """Begin new episodes with the next rollout."""
        self._host.restart_episodes()

    def close(self) -> None:
        """Close the env."""
        self._host.close()

    def _pulse(self) -> None:
        if time.monotonic() - self._pulsed > PULSE:
            self._pulsed = time.monotonic()
            self._lookout.pulse.remote(self._key)

    def _give_up(self, text: str) -> None:
        try:
            ray.get(self._lookout.hang.remote(self._key, text), timeout=5.0)
        finally:
            os._exit(1)


def lookout() -> type:
    """The class of a small Ray actor near the learner that is told of the players. See ``stand`` for why."""

    class Lookout:
        """Knows when every player last gave a sign of life, and what hung."""

        def __init__(self) -> None:
            import time

            self._now = time.monotonic
            self._pulses: dict[str, float] = {}
            self._hung: dict[str, str] = {}

        def pulse(self, key: str) -> None:
            """A player lives."""
            self._pulses[key] = self._now()

        def hang(self, key: str, text: str) -> None:
            """The env of a player hangs."""
            self._hung[key] = text

        def look(self, key: str) -> tuple[float | None, str | None]:
            """For how many seconds a player was silent (None: it never was heard), and what hung."""
            seen = self._pulses.get(key)
            return None if seen is None else self._now() - seen, self._hung.get(key)

    return Lookout


def stand() -> type:
    """A class for Ray actors that finds Recollect first.

    It is made in a function so that it travels by value: on a worker that does not have Recollect on its path
    a class of this module could not even be looked up.
    """

    class Stand:
        """Makes something out of bytes, once the modules that it needs can be found."""

        def begin(self, path: list[str], work: bytes, *handles: Any) -> Any:
            """``work``: a pickled ``answer``, a class and arguments for it, before which the handles go."""
            import pickle
            import sys

            sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
            self._answer, make, arguments = pickle.loads(work)
            self._made = self._answer(make, *handles, *arguments)
            return self.call("facts")

        def call(self, name: str, *arguments: Any) -> Any:
            """Call a method of what was made."""
            return self._answer(getattr(self._made, name, self._made), *arguments)

    return Stand


def answer(function: Callable[..., Any] | Raised, *arguments: Any) -> Any:
    """What the function returns; what it raises becomes a ``Raised``, which keeps type and traceback."""
    if isinstance(function, Raised):  # it was never made
        return function
    try:
        return function(*arguments)
    except BaseException as error:
        return describe_raised(error)


def finals(packed: Packed | None) -> Finals | None:
    """A copy of what ``pack_finals`` was given."""
    return None if packed is None else Finals(**packed.copy())


def pack_finals(found: Finals | None) -> Packed | None:
    """Final observations as bytes."""
    return None if found is None else pack({"time": found.time, "row": found.row, "obs": found.obs})
