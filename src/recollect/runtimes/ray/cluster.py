"""The Ray cluster of a run: started on this machine for this run, or an existing one."""

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
from recollect.base.parts import Carried
from recollect.errors import ChildError, ConfigError, LostError, RecollectError, ResourceError

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
    from ray.util.scheduling_strategies import (
        NodeAffinitySchedulingStrategy,
        NodeLabelSchedulingStrategy,
        NotIn,
    )
except ImportError as error:  # an extra
    raise ConfigError(
        f"runtime = 'ray' needs the extra 'ray' ({error}): pip install 'recollect[ray]'"
    ) from error

from recollect.runtimes.ray.server import Location, bootstrap_class, call_safely, heartbeats_class

STORE = 256 * 2**20
"""The least size, in bytes, of the object store of a cluster that Recollect starts."""


@dataclass(slots=True)
class _Connection:
    """A connection of this program to Ray that Recollect has made. Its last user closes it."""

    folder: Path | None
    """The sockets and logs of a cluster that Recollect has started; None: the cluster existed before."""
    users: int = 1


_ours: _Connection | None = None


class Cluster:
    """The cluster of a run. ``close`` ends whatever was started or connected for it."""

    def __init__(self, address: str | None, *, cpus: int, store: int):
        """Connect, or start a cluster.

        ``address``: "auto" or host:port; None: the cluster that this program is connected to, or else a new
        one with ``cpus`` CPUs, whatever the machine has, and an object store of ``store`` bytes.
        """
        global _ours
        if address is not None and "://" in address:
            raise ConfigError(
                f"ray_address = {address!r}: Ray Client is not supported, because rollouts would pass "
                "through a proxy; run this program on a node of the cluster, with ray_address='auto'"
            )
        if not ray.is_initialized():
            _ours = _connect(address) if address is not None else _started(cpus, max(store, STORE))
        elif address not in (None, "auto", present := ray.get_runtime_context().gcs_address):
            raise ConfigError(
                f"ray_address = {address!r}, but this program is already connected to the Ray cluster at "
                f"{present}: leave ray_address out, or call ray.shutdown() before"
            )
        elif _ours is not None:
            _ours.users += 1
        self._connection = _ours

    @property
    def is_own(self) -> bool:
        """Whether Recollect has started it."""
        return self._connection is not None and self._connection.folder is not None

    def has_cpus(self, count: int) -> bool:
        """Whether so many CPUs are free now."""
        return ray.available_resources().get("CPU", 0.0) >= count

    def put(self, value: Any) -> Any:
        """Ray's reference to the value, which every node fetches at most once."""
        return ray.put(value)

    def wait(self, references: list[Any], timeout: float) -> list[Any]:
        """The references that are ready; waits up to ``timeout`` seconds for the first."""
        if not references or not ray.wait(references, num_returns=1, timeout=timeout)[0]:
            return []
        return ray.wait(references, num_returns=len(references), timeout=0)[0]

    def close(self) -> None:
        """Disconnect, and end the cluster if Recollect has started it and no other run uses it."""
        global _ours
        left, self._connection = self._connection, None
        if left is not None:
            left.users -= 1
        if left is None or left.users:
            return
        if left is _ours:
            _ours = None
            if ray.is_initialized():
                with signals_kept():
                    ray.shutdown(wait_for_processes=True)
        if left.folder is not None:
            shutil.rmtree(left.folder, ignore_errors=True)


def _connect(address: str) -> _Connection:
    """Connect to an existing cluster."""
    check_reachable(address)
    try:
        with signals_kept():
            ray.init(address=address, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        raise _absent(address, error) from error
    return _Connection(None)


def _started(cpus: int, store: int) -> _Connection:
    """Start a cluster on this machine."""
    # A folder with a short name: paths of Ray's sockets may have only 107 characters.
    short = "/tmp" if os.access("/tmp", os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="recollect-ray-", dir=short))
    try:
        with signals_kept(), on_loopback():
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
            raise ResourceError(f"a Ray cluster cannot be started on this machine: {error}") from error
        raise
    return _Connection(folder)


class Heartbeats:
    """The heartbeats of all actor servers: a Ray actor on the learner's node."""

    def __init__(self) -> None:
        here = ray.get_runtime_context().get_node_id()
        near = NodeAffinitySchedulingStrategy(node_id=here, soft=True)
        options: Any = {"num_cpus": 0, "max_restarts": -1, "scheduling_strategy": near}
        self.handle: Any = ray.remote(**options)(heartbeats_class()).remote()

    def look(self, key: str) -> tuple[float | None, str | None]:
        """Seconds since a server's last heartbeat (None: it had none), and its report if it hangs."""
        try:
            return ray.get(self.handle.look.remote(key), timeout=5.0)
        except RayError:
            return None, None

    def kill(self) -> None:
        """End it."""
        _kill(self.handle)


class Remote:
    """An object in a Ray actor: calls are sent at once and answered in order."""

    def __init__(
        self,
        name: str,
        make: Callable[..., Any],
        arguments: Sequence[Any],
        handles: Sequence[Any] = (),
        *,
        cpus: float,
        gpus: float = 0,
        avoid: str | None = None,
    ):
        """Start it, with ``cpus`` and ``gpus`` reserved for it.

        ``make``, its class, is called in the Ray actor with the handles of other Ray actors and the
        arguments, which are sent by cloudpickle. ``name`` is for errors. ``avoid``: a node that is taken only
        if there is no other.
        """
        self.name = name
        self.location: Location | None = None
        """Its place, once that is known."""
        try:
            work = cloudpickle.dumps((Carried(), call_safely, make, tuple(arguments)))
        except Exception as error:
            raise RecollectError(
                f"{name} cannot be started: its arguments cannot be sent to another process ({error}). "
                "Give the env by its name, or by a function that makes it"
            ) from error
        options: Any = {"num_cpus": cpus, "num_gpus": gpus, "scheduling_strategy": "SPREAD"}
        if avoid is not None:
            others: Any = {"ray.io/node-id": NotIn(avoid)}
            options["scheduling_strategy"] = NodeLabelSchedulingStrategy({}, soft=others)
            options["memory"] = 1  # without any need, Ray would ask a random node to place it
        self._handle: Any = ray.remote(**options, max_restarts=0)(bootstrap_class()).remote()
        path = [entry or os.getcwd() for entry in sys.path]
        self.started = self._handle.start.remote(path, work, *handles)
        """Ray's reference to its ``Location``, which is ready once the object is made."""

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a method. Returns Ray's reference to the reply."""
        return self._handle.call.remote(name, *arguments)

    def receive(self, reference: Any, timeout: float | None = None) -> Any:
        """The reply to a call. Raises LostError if the object died, alone or with its node, and a ChildError
        if it raised; a RecollectError is raised as it is, with the traceback as a note.
        """
        try:
            found = ray.get(reference, timeout=timeout)
        except GetTimeoutError:
            raise TimeoutError(f"{self.name} has not answered for {timeout:g} seconds") from None
        except RayTaskError as error:  # Recollect could not be imported there
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
        return self.name if self.location is None else f"{self.name} ({self.location})"


def close_all(remotes: Sequence[Remote], grace: float = 2.0) -> None:
    """End them: let them close first, and kill them after ``grace`` seconds."""
    if not ray.is_initialized():
        return
    with contextlib.suppress(Exception):
        ray.wait([r.call("close") for r in remotes], num_returns=len(remotes), timeout=grace)
    for remote in remotes:
        remote.kill()


def _kill(handle: Any) -> None:
    if ray.is_initialized():  # else Ray would start a cluster
        with contextlib.suppress(Exception):
            ray.kill(handle, no_restart=True)


def _how(error: RayError) -> str:
    text = str(error)
    if "node has died" in text or "node was terminated" in text:
        return "died with its node, which left the cluster"
    if isinstance(error, RayActorError):
        return "was killed or crashed (the system kills processes when memory runs out)"
    return f"lost its reply ({type(error).__name__}): a node may have left the cluster"


def check_reachable(address: str) -> None:
    """Validate the address quickly: Ray itself would retry for minutes."""
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
        "or leave ray_address out to start one on this machine"
    )


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """Let a new cluster listen on the loopback interface only.

    Ray does so where it supports only one machine (macOS, Windows), and has no public switch for it
    elsewhere. Without this private one, the cluster listens on all interfaces, protected by Ray's token.
    """
    constants: Any = sys.modules.get("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", None)
    if before is not None:
        constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if before is not None:
            constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Keep the handler of SIGTERM: that of ``ray.init`` would end a run without saving it."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
