"""A learner besides the first in a Ray actor, on any machine of the cluster."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import torch

from recollect.base import tree
from recollect.base.shared_memory import Layout
from recollect.experience.rollout import Header, Rollout
from recollect.runtimes.learner_server import LearnerBlueprint, LearnerHost, LearnerState
from recollect.runtimes.ray.cluster import Cluster, Remote, close_all
from recollect.runtimes.ray.server import Location, Packed, blank


class RayPeer:
    """Another learner, as the process of the first one sees it. See ``learner_group.Peer``."""

    def __init__(self, cluster: Cluster, blueprint: LearnerBlueprint, example: Rollout):
        """Start it; ``example``: a rollout of its rows."""
        is_gpu = torch.device(blueprint.config.device).type == "cuda"
        if is_gpu:  # Ray shows it one GPU of the node
            blueprint = replace(blueprint, config=replace(blueprint.config, device="cuda:0"))
        self._layout = Layout.of(example.slot())
        self._remote = Remote(
            blueprint.name,
            RemoteLearner,
            (blueprint,),
            cpus=1 if cluster.has_cpus(1) else 0,
            gpus=1 if is_gpu else 0,
        )
        self._calls = deque([self._remote.started, self._remote.call("connect")])

    def load(self, state: LearnerState) -> None:
        """Give it the state of the first learner."""
        self._calls.append(self._remote.call("load", state))

    def begin(self, rollout: Rollout, progress: float, lag: int) -> None:
        """Start an update on its rows of a batch, which may change after the reply."""
        packed = blank(self._layout)
        header = rollout.write(packed.open())
        self._calls.append(self._remote.call("update", packed, header, progress, lag))

    def done(self, timeout: float) -> None:
        """Wait for its reply; a LostError, ChildError or TimeoutError if there is none."""
        found = self._remote.receive(self._calls[0], timeout)
        self._calls.popleft()
        if isinstance(found, Location):
            self._remote.location = found

    def stop(self) -> None:
        """End it."""
        close_all([self._remote])


class RemoteLearner:
    """The learner inside the Ray actor."""

    def __init__(self, blueprint: LearnerBlueprint):
        self._host = LearnerHost(blueprint)
        self.load, self.close = self._host.load, self._host.close

    def location(self) -> Location:
        """The place of this learner."""
        return Location.here()

    def connect(self) -> None:
        """Connect to the other learners."""
        self._host.connect(Location.here().node)

    def update(self, packed: Packed, header: Header, progress: float, lag: int) -> None:
        """One update on its own rows of a batch."""
        self._host.update(Rollout.read(tree.clone(packed.open()), header), progress, lag)
