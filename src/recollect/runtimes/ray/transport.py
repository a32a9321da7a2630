"""The Ray runtime: every actor server is a Ray actor, on any machine of the cluster.

A rollout comes back through Ray's object store as one array. The weights of a version are put there once, and
every node fetches them once.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from recollect.algos.catalog import acting
from recollect.base import tree
from recollect.config.train import TrainConfig
from recollect.errors import LostError
from recollect.experience.rollout import Rollout, rollout_size
from recollect.policy.policies import Network, by_group, rows_by_group
from recollect.runtimes.actor_server import Blueprint
from recollect.runtimes.learner_group import MakePeer, devices_and_backend
from recollect.runtimes.learner_server import LearnerBlueprint
from recollect.runtimes.ray.cluster import Cluster, Heartbeats, Remote, close_all
from recollect.runtimes.ray.learner import RayPeer
from recollect.runtimes.ray.server import Location, RayActorServer, pack
from recollect.runtimes.transport import STARTED, Delivery


class RayChannel:
    """The connection to one actor, over all its restarts. See ``remote_collector.py``."""

    start_failure = "the cluster has no room for it, or it hangs while its env is made"
    has_room = True

    def __init__(self, index: int, transport: RayTransport):
        self._index, self._transport = index, transport
        self._key = ""
        self._last_node: str | None = None
        """Where the last server that started was."""
        self.remote: Remote | None = None
        self.calls: deque[tuple[Any, Any]] = deque()
        """Ray's references to the replies, in order, each with the weights that have to be kept for it."""

    @property
    def _actor(self) -> Remote:
        assert self.remote is not None
        return self.remote

    @property
    def pid(self) -> int | None:
        """The server's process; None: not known yet."""
        location = None if self.remote is None else self.remote.location
        return None if location is None else location.pid

    @property
    def is_started(self) -> bool:
        """Whether the server has opened its env."""
        return self._actor.location is not None

    def start(self, blueprint: Blueprint) -> None:
        """Start a Ray actor."""
        transport, self._key = self._transport, uuid.uuid4().hex
        cpus, avoid = transport.cpus, None
        if blueprint.restarts:  # the CPU of the last one may have left with its node
            cpus = int(transport.cluster.has_cpus(1))
            # Ray may take seconds to notice that a node has left, and would use it until then.
            avoid = self._last_node
        self.remote = Remote(
            f"actor {self._index}",
            RayActorServer,
            (self._key, blueprint, transport.rows_per_actor),
            handles=[transport.heartbeats.handle],
            cpus=cpus,
            avoid=avoid,
        )
        self.calls = deque([(self.remote.started, None)])

    def collect(self, ticket: int, version: int | None) -> None:
        """Request a rollout with the newest weights."""
        weights = self._transport.weights
        # Inside a list the reference is not resolved on the way, so that the server measures the transfer.
        reply = self._actor.call("collect", ticket, self._transport.version, [weights])
        self.calls.append((reply, weights))

    def call(self, method: str, *arguments: Any) -> None:
        """Request a call of a method."""
        self.calls.append((self._actor.call(method, *arguments), None))

    def receive(self) -> Any:
        """The next reply."""
        try:
            reply = self._actor.receive(self.calls[0][0])
        except LostError as error:
            _, hung = self._transport.heartbeats.look(self._key)
            raise error if hung is None else LostError(f"{self} hangs: {hung}") from error
        self.calls.popleft()
        if not self.is_started:
            self._actor.location, self._last_node = reply, reply.node_id
            return STARTED
        if not isinstance(reply, tuple):
            return reply
        report, header, packed = reply
        slot = packed.open()
        # The object store is read-only. Several rollouts are copied when they are joined.
        return Delivery(report, header, tree.clone(slot) if self._transport.is_single else slot)

    def silence(self) -> float | None:
        """Seconds since the server's last heartbeat; None: not known."""
        return self._transport.heartbeats.look(self._key)[0]

    def kill(self) -> None:
        """End the Ray actor at once."""
        self._actor.kill()
        self.calls.clear()

    def __str__(self) -> str:
        return str(self.remote)


class RayTransport:
    """Starts actor servers on a Ray cluster and carries weights to them."""

    def __init__(self, policy: Network, config: TrainConfig, rows: int):
        """``rows``: of all actors together."""
        self._policy, self._config, self._rows = policy, config, rows
        self._cluster: Cluster | None = None
        self._heartbeats: Heartbeats | None = None
        self.channels: list[RayChannel] = []
        self.notes: list[str] = []
        self.cpus = 1
        """CPUs that each server reserves."""
        self.version, self.weights = -1, None
        """The newest weights: their version, and Ray's reference to them."""
        self.rows_per_actor = rows // config.actors
        self.is_single = config.actors == 1 and torch.device(config.device).type == "cpu"
        """Whether rollouts are learned from in the memory in which they arrive."""
        self.host = "127.0.0.1"
        self.make_peer: MakePeer | None = None
        """Starts another learner on the cluster; None: in a process, which is faster on one machine."""
        if config.learners > 1 and devices_and_backend(config)[1] == "gloo" and not self.cluster.is_own:
            self.host, self.make_peer = Location.here().node, self._make_peer

    def _make_peer(self, blueprint: LearnerBlueprint, example: Rollout) -> RayPeer:
        return RayPeer(self.cluster, blueprint, example)

    @property
    def cluster(self) -> Cluster:
        """The cluster, which is connected or started on first use."""
        if self._cluster is None:
            config, algo = self._config, self._config.algo
            rows = rows_by_group(self._policy, self._rows)
            size = sum(
                rollout_size(policy, rows[name], acting(algo), steps=algo.rollout).total
                for name, policy in by_group(self._policy).items()
            )
            size += tree.size_bytes(dict(self._policy.state_dict()))
            store = 2 * (config.lag_limit + 3) * size  # twice the largest size of rollouts and weights
            self._cluster = Cluster(config.ray_address, cpus=config.actors, store=store)
        return self._cluster

    @property
    def heartbeats(self) -> Heartbeats:
        """The heartbeats of all servers."""
        assert self._heartbeats is not None
        return self._heartbeats

    def open(self) -> None:
        """Connect to the cluster."""
        actors = self._config.actors
        self.cpus = int(self.cluster.has_cpus(actors))
        self._heartbeats = self._heartbeats or Heartbeats()
        if not self.cpus:
            self.notes.append(
                f"the Ray cluster has fewer than {actors} free CPUs: the actors share those that it has"
            )
        self.channels.extend(RayChannel(index, self) for index in range(actors))

    def publish(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Put the weights into the object store."""
        self.version, self.weights = version, self.cluster.put(pack(dict(weights)))

    def wait(self, timeout: float) -> list[int]:
        """The actors with a reply to receive."""
        heads = {channel.calls[0][0]: i for i, channel in enumerate(self.channels) if channel.calls}
        return [heads[reply] for reply in self.cluster.wait(list(heads), timeout)]

    def end_servers(self) -> None:
        """End the Ray actors; the cluster stays."""
        close_all([channel.remote for channel in self.channels if channel.remote is not None])
        self.channels.clear()
        self.weights = None

    def close(self) -> None:
        """End the Ray actors, and the cluster if Recollect has started it."""
        self.end_servers()
        if self._heartbeats is not None:
            self._heartbeats.kill()
            self._heartbeats = None
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None
