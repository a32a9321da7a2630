"""A learner besides the first in a Ray actor, on whatever machine of the cluster has room for it."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import replace
from typing import Any

import torch

from recollect.experience.rollout import Rollout
from recollect.runtimes.actor_server import rollout_of, tensors_of
from recollect.runtimes.learner_host import LearnerBlueprint, LearnerHost, LearnerState
from recollect.runtimes.ray.cluster import Cluster, Remote, close_all, ray
from recollect.runtimes.ray.server import Facts, Packed, finals, pack, pack_finals


class RayPeer:
    """Another learner, as the first one's process sees it. See ``learners.Peer``."""

    def __init__(self, cluster: Cluster, blueprint: LearnerBlueprint, example: Rollout):
        """Start it; ``example`` is what other peers need."""
        is_gpu = torch.device(blueprint.config.device).type == "cuda"
        if is_gpu:  # Ray shows it one of the node's
            blueprint = replace(blueprint, config=replace(blueprint.config, device="cuda:0"))
        self._remote = Remote(
            f"learner {blueprint.rank}",
            RemoteLearner,
            (blueprint,),
            cpus=1 if cluster.has_cpus(1) else 0,
            gpus=1 if is_gpu else 0,
        )
        self._calls = deque([self._remote.begun, self._remote.call("connect")])

    def load(self, state: LearnerState) -> None:
        """Let it become what the first learner is."""
        self._calls.append(self._remote.call("load", state))

    def begin(self, rollout: Rollout, progress: float, lag: int) -> None:
        """Give it its rows of a batch, to learn from at once."""
        about = {name: getattr(rollout, name) for name in ("actor", "sequence", "version")}
        packed, cut = pack(tensors_of(rollout)), pack_finals(rollout.finals)
        call = self._remote.call("update", packed, cut, rollout.state_steps, about, progress, lag)
        self._calls.append(call)

    def done(self, timeout: float) -> None:
        """Wait for its answer."""
        found = self._remote.receive(self._calls[0], timeout)
        self._calls.popleft()
        if isinstance(found, Facts):
            self._remote.facts = found

    def stop(self) -> None:
        """End it."""
        close_all([self._remote])


class RemoteLearner:
    """The learner inside the Ray actor."""

    def __init__(self, blueprint: LearnerBlueprint):
        self._host = LearnerHost(blueprint)

    def facts(self) -> Facts:
        """Where this is."""
        return Facts(os.getpid(), ray.util.get_node_ip_address())

    def connect(self) -> None:
        """Join the other learners."""
        self._host.connect(ray.util.get_node_ip_address())

    def load(self, state: LearnerState) -> None:
        """Become what the first learner is."""
        self._host.load(state)

    def update(
        self,
        rollout: Packed,
        cut: Packed | None,
        state_steps: tuple[int, ...],
        about: dict[str, int],
        progress: float,
        lag: int,
    ) -> None:
        """One iteration on its own rows of a batch."""
        tensors: Any = rollout.copy()
        made = rollout_of(tensors, state_steps, about.pop("actor"))
        self._host.update(replace(made, finals=finals(cut), **about), progress, lag)

    def close(self) -> None:
        """Leave the others."""
        self._host.close()
