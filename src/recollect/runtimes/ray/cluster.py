"""The Ray cluster of a run: one of this machine for this run alone, or one that is there already."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle

from recollect.base.child_process import Raised, raised_error
from recollect.errors import ChildError, ConfigError, LostError, RecollectError, ResourceError

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as error:  # an extra
    raise ConfigError(
        f"runtime = 'ray' needs the extra 'ray' ({error}): pip install 'recollect[ray]'"
    ) from error

from recollect.runtimes.ray.server import Facts, answer, lookout, stand

STORE = 256 * 2**20
"""Bytes of the object store of a cluster of our own, at least."""


@dataclass(slots=True)
class _Connection:
    """Of this program to Ray, if it was made here. The last who uses it ends it."""

    folder: Path | None
    """Where a cluster of our own keeps its sockets and logs."""
    users: int = 1


_ours: _Connection | None = None


class Cluster:
    """The cluster of a run. What was started or connected for it is taken down again by ``close``."""

    def __init__(self, address: str | None, *, cpus: int, store: int):
        """Connect, or start a cluster.

        Args:
            address: of the cluster: "auto", or host:port. None: what this program is connected to already, or
                else a cluster of our own.
            cpus: that our own has: as many as there are actors, whatever the machine has.
            store: bytes of its object store.
        """
        global _ours
        if address is not None and "://" in address:
            raise ConfigError(
                f"ray_address = {address!r}: Ray Client is not supported, because rollouts would have to go "
                "through a proxy; run this program on a node of the cluster, with ray_address='auto'"
            )
        if not ray.is_initialized():
            _ours = _connect(address) if address is not None else _started(cpus, max(store, STORE))
        else:
            _check_same(address)
            if _ours is not None:
                _ours.users += 1
        self._connection = _ours

    @property
    def is_own(self) -> bool:
        """Whether it was started by Recollect."""
        return self._connection is not None and self._connection.folder is not None

    def has_cpus(self, count: int) -> bool:
        """Whether so many are free at present."""
        return ray.available_resources().get("CPU", 0.0) >= count

    @property
    def here(self) -> str:
        """The address of this machine in the cluster."""
        return ray.util.get_node_ip_address()

    def put(self, value: Any) -> Any:
        """Ray's reference to the value, which every node fetches once, however many there ask for it."""
        return ray.put(value)

    def wait(self, references: Sequence[Any], timeout: float) -> list[Any]:
        """Those of the references that are answered, once there is one or the time is over."""
        every = list(references)
        if not every or not ray.wait(every, num_returns=1, timeout=timeout)[0]:
            return []
        return ray.wait(every, num_returns=len(every), timeout=0)[0]

    def lookout(self) -> Lookout:
        """Somebody to be told of the players."""
        return Lookout()

    def close(self) -> None:
        """Leave the cluster, and end it if it is our own and nobody else uses it."""
        global _ours
        left, self._connection = self._connection, None
        if left is None:
            return
        left.users -= 1
        if left.users:
            return
        if ray.is_initialized() and left is _ours:
            with _signals_kept():
                ray.shutdown(wait_for_processes=True)
        if left is _ours:
            _ours = None
        if left.folder is not None:
            shutil.rmtree(left.folder, ignore_errors=True)


def _connect(address: str) -> _Connection:
    """To a cluster that is there."""
    _check_there(address)
    try:
        with _signals_kept():
            ray.init(address=address, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _absent(address, error) from error
    return _Connection(None)


def _started(cpus: int, store: int) -> _Connection:
    """A cluster of our own."""
    folder = Path(tempfile.mkdtemp(prefix="recollect-ray-", dir=_short_folder()))
    try:
        with _signals_kept(), _on_loopback():
            ray.init(
                address="local",
                num_cpus=cpus,
                object_store_memory=store,
                include_dashboard=False,
                logging_level=logging.ERROR,
                _temp_dir=str(folder),
            )
    except BaseException as error:
        ray.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, Exception):
            raise ResourceError(f"no Ray cluster can be started on this machine: {error}") from error
        raise
    return _Connection(folder)


class Lookout:
    """Whom the players tell that they live, or what hangs: a Ray actor on the learner's node."""

    def __init__(self) -> None:
        here = ray.get_runtime_context().get_node_id()
        near = NodeAffinitySchedulingStrategy(node_id=here, soft=True)
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": near}
        self.handle: Any = ray.remote(**options)(lookout()).remote()

    def look(self, key: str) -> tuple[float | None, str | None]:
        """For how many seconds a player was silent (None: it never was heard), and what hung."""
        try:
            return ray.get(self.handle.look.remote(key), timeout=5.0)
        except RayError:
            return None, None

    def kill(self) -> None:
        """End it."""
        _kill(self.handle)


class Remote:
    """Something of ours in a Ray actor: calls are sent at once and answered in their order."""

    def __init__(
        self,
        name: str,
        make: Callable[..., Any],
        arguments: Sequence[Any],
        handles: Sequence[Any] = (),
        *,
        cpus: float,
        gpus: float = 0,
    ):
        """Start it.

        Args:
            name: what it is, for errors.
            make: called in the Ray actor with the handles and the arguments.
            arguments: for it; all go by cloudpickle.
            handles: other Ray actors.
            cpus: that it occupies, in Ray's books.
            gpus: likewise.
        """
        self.name = name
        self.facts: Facts | None = None
        """Where it lives, once that is known."""
        try:
            work = cloudpickle.dumps((answer, make, tuple(arguments)))
        except Exception as error:
            raise RecollectError(
                f"{name} cannot be started: what it needs cannot be sent to another process ({error}). "
                "Give the env by its name, or by a function that makes it"
            ) from error
        options: dict[str, Any] = {
            "num_cpus": cpus,
            "num_gpus": gpus,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        self._handle: Any = ray.remote(**options)(stand()).remote()
        path = [entry or os.getcwd() for entry in sys.path]
        self.begun = self._handle.begin.remote(path, work, *handles)
        """Answered with its ``Facts`` once it is there."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method; returns Ray's reference to the answer."""
        return self._handle.call.remote(name, *arguments)

    def receive(self, reference: Any, timeout: float | None = None) -> Any:
        """The answer to a call.

        Raises:
            LostError: it died, with its node or alone.
            ChildError: it raised; a RecollectError comes as it is, with the traceback as a note.
            TimeoutError: no answer came.
        """
        try:
            found = ray.get(reference, timeout=timeout)
        except GetTimeoutError:
            raise TimeoutError(f"{self.name} has not answered for {timeout:g} seconds") from None
        except RayTaskError as error:  # where not even our own code could be found
            raise ChildError(f"{self.name} failed:\n{error}") from None
        except RayError as error:
            raise LostError(f"{self} {_how(error)}") from error
        if isinstance(found, Raised):
            raise raised_error(found, str(self))
        return found

    def kill(self) -> None:
        """End it at once."""
        _kill(self._handle)

    def __str__(self) -> str:
        return self.name if self.facts is None else f"{self.name} ({self.facts})"


def close_all(remotes: Sequence[Remote], grace: float = 2.0) -> None:
    """End them: first as they would like it, and after ``grace`` seconds by force."""
    if not ray.is_initialized():
        return
    with contextlib.suppress(Exception):
        ray.wait([r.call("close") for r in remotes], num_returns=len(remotes), timeout=grace)
    for remote in remotes:
        remote.kill()


def _kill(handle: Any) -> None:
    if ray.is_initialized():  # or Ray would start a cluster, to have where to kill it
        with contextlib.suppress(Exception):
            ray.kill(handle, no_restart=True)


def _how(error: RayError) -> str:
    text = str(error)
    if "node has died" in text or "node was terminated" in text:
        return "died with its node, which left the cluster"
    if isinstance(error, RayActorError):
        return "was killed or crashed (by somebody, or by the system because memory ran out)"
    return f"lost what it brought ({type(error).__name__}): a node may have left the cluster"


def _check_same(address: str | None) -> None:
    """The program is connected to a cluster: refuse if the setting names another."""
    present = ray.get_runtime_context().gcs_address
    if address not in (None, "auto", present):
        raise ConfigError(
            f"ray_address = {address!r}, but this program is connected to the Ray cluster at {present} "
            "already: leave ray_address out, or call ray.shutdown() before"
        )


def _check_there(address: str) -> None:
    """Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
    except (OSError, OverflowError) as error:
        raise _absent(address, error) from error


def _absent(address: str, error: Exception) -> ConfigError:
    return ConfigError(
        f"there is no Ray cluster at ray_address = {address!r} ({error}): start one with `ray start --head`, "
        "or leave ray_address out for one of this machine"
    )


def _short_folder() -> str | None:
    """Ray's sockets lie in its folder, and their paths may have only 107 characters."""
    return "/tmp" if os.access("/tmp", os.W_OK) else None


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """A cluster of one machine is nobody else's affair: it listens on the loopback interface only.

    Ray does so by itself where it has no clusters of many machines (macOS, Windows), and has no public switch
    for it elsewhere. If this one goes, the cluster listens on all interfaces, guarded by Ray's token.
    """
    constants: Any = sys.modules.get("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if before is None:
        yield
        return
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """``ray.init`` sets a handler for SIGTERM that would end a run without saving it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
