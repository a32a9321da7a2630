"""The inline runtime: all actors are in this process and act in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from recollect.acting.actor import interleaved
from recollect.acting.group_actor import AnyActor, make_actor
from recollect.algos.catalog import acting
from recollect.base.cuda_graphs import Graphs
from recollect.base.devices import Total
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv, BetweenRollouts
from recollect.envs.group_views import Groups
from recollect.errors import LostError
from recollect.policy.policies import Network
from recollect.runtimes import restart_limits
from recollect.runtimes.actor_envs import adjust
from recollect.runtimes.collector import Batch, actor_stream, mean_info, merge_snapshots, split_snapshot
from recollect.runtimes.learner_group import MakePeer


class InlineCollector:
    """Actors in this process that act with the learner's own policy."""

    is_exact = True
    host = "127.0.0.1"
    make_peer: MakePeer | None = None

    def __init__(self, envs: Sequence[BatchedEnv | Groups], policy: Network, config: TrainConfig):
        """``envs``: one per actor."""
        self.envs, self._policy, self._config = tuple(envs), policy, config
        self.rows = sum(env.num_envs * env.agents for env in envs)
        self._graphs = Graphs(envs[0].device, config.graphs and not config.compile)
        self.actors: list[AnyActor] = []
        """Empty until the next rollout starts new episodes."""

    def collect(self, version: int) -> Batch:
        """One rollout per actor. While the env workers of one actor step, another actor acts."""
        notes: list[str] = []
        while True:
            is_new = not self.actors
            try:
                actors = self._ready_actors(version, len(notes))
                rollouts = interleaved([actor.collecting(version) for actor in actors])
                break
            except LostError as error:  # an env worker died: the unfinished rollouts are discarded
                self.restart_episodes()
                notes.append(f"{error}; new episodes were started")
                if len(notes) == restart_limits.ATTEMPTS:
                    raise
            except BaseException:
                self.restart_episodes()  # the env is ahead of its actor by an unknown number of steps
                raise
        names = actors[0].seconds
        return Batch(
            rollouts,
            seconds={name: Total([actor.seconds[name] for actor in actors]) for name in names},
            info=mean_info([(actor.info, actor.rows) for actor in actors]),
            metrics={"start_seconds": self._graphs.seconds} if self._graphs.is_on else {},
            restarted=set(range(len(actors))) if is_new else set(),
            notes=[*notes, *self._graphs.taken_notes()],
        )

    def restore_counters(self, metrics: Mapping[str, float]) -> None:
        """Do nothing: there are no counters."""

    def publish(self, version: int) -> None:
        """The actors share the learner's weights. Envs do what they put off during the rollout."""
        for env in self.envs:
            if isinstance(env, BetweenRollouts):
                env.between_rollouts(self._config.algo.rollout)

    def adjust(self, settings: dict[str, Any]) -> None:
        """Change settings of all envs, each at the next reset of a slot."""
        for env in self.envs:
            adjust(env, settings)

    def restart_episodes(self) -> None:
        """Start new episodes at the next ``collect``."""
        for actor in self.actors:
            actor.close()
        self.actors = []

    def snapshot(self) -> dict[str, Tensor] | None:
        """The state that determines the next rollouts; None if an env has no snapshots."""
        return merge_snapshots([actor.snapshot() for actor in self.actors]) if self.actors else None

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Resume from a snapshot of as many actors on the same kind of device; else return False."""
        self.restart_episodes()
        actors = self._ready_actors(version)
        parts = split_snapshot(snapshot, len(actors))
        if not all(actor.fits(part) for actor, part in zip(actors, parts)):
            self.restart_episodes()
            return False
        for actor, part in zip(actors, parts):
            actor.restore(part)
        return True

    def close(self) -> None:
        """Close the envs."""
        self.restart_episodes()
        for env in self.envs:
            env.close()

    def _ready_actors(self, version: int, resets: int = 0) -> list[AnyActor]:
        if not self.actors:
            algo, seed = self._config.algo, self._config.seed
            wanted = acting(algo).keywords()
            self.actors = [
                make_actor(
                    env,
                    self._policy,
                    rollout=algo.rollout,
                    seed=actor_stream(seed, version, index, resets=resets),
                    index=index,
                    actors=self._config.actors,
                    graphs=self._graphs,
                    **wanted,
                )
                for index, env in enumerate(self.envs)
            ]
        return self.actors
