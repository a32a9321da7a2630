"""The inline runtime: the actors live in this process and act one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from recollect.acting.actor import Actor, together
from recollect.algos.catalog import acting
from recollect.base import tree
from recollect.base.devices import Total
from recollect.base.graphs import Graphs
from recollect.base.types import State
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.errors import LostError
from recollect.policy.policy import Policy
from recollect.runtimes import limits
from recollect.runtimes.collector import Batch, actor_stream, mean_info, merged, parted


class InlineCrew:
    """The actors as objects of this process, with the learner's own policy."""

    is_exact = True
    host, make_peer = "127.0.0.1", None

    def __init__(self, envs: Sequence[BatchedEnv], policy: Policy, config: TrainConfig):
        """``envs``: one for each actor."""
        self.envs, self._policy, self._config = tuple(envs), policy, config
        self.rows = sum(env.num_envs * env.agents for env in envs)
        self._graphs = Graphs(envs[0].device, config.graphs and not config.compile)
        self.actors: list[Actor] = []
        """Empty until the next rollout begins new episodes."""

    @property
    def state(self) -> State:
        """The live memories of all rows, in the order of the actors."""
        return tree.cat([actor.state for actor in self.actors])

    def collect(self, version: int) -> Batch:
        """One rollout of each actor; while the env of one steps elsewhere, another acts."""
        notes: list[str] = []
        for attempt in range(limits.ATTEMPTS):
            is_new = not self.actors
            try:
                actors = self._begun(version, attempt)
                rollouts = together([actor.collecting(version) for actor in actors])
                break
            except LostError as error:  # a worker of an env: nothing half known is learned from
                self.restart_episodes()
                notes.append(f"{error}; new episodes were begun")
                if attempt == limits.ATTEMPTS - 1:
                    raise
            except BaseException:
                self.restart_episodes()  # the env has gone on, and the actor does not know how far
                raise
        else:
            raise AssertionError("unreachable")
        names = actors[0].seconds
        return Batch(
            rollouts,
            seconds={name: Total([actor.seconds[name] for actor in actors]) for name in names},
            info=mean_info([(actor.info, actor.rows) for actor in actors]),
            metrics={"start_seconds": self._graphs.seconds} if self._graphs.is_on else {},
            restarted=set(range(len(actors))) if is_new else set(),
            notes=[*notes, *self._graphs.taken_notes()],
        )

    def recall(self, metrics: Mapping[str, float]) -> None:
        """Nothing to do: nothing is counted here."""

    def publish(self, version: int) -> None:
        """Nothing to do: they act with the very weights that are learned."""

    def restart_episodes(self) -> None:
        """Begin new episodes at the next ``collect``."""
        for actor in self.actors:
            actor.close()
        self.actors = []

    def snapshot(self) -> dict[str, Tensor] | None:
        """All that decides the next rollouts; None if an env cannot tell its part."""
        return merged([actor.snapshot() for actor in self.actors]) if self.actors else None

    def restore(self, snapshot: dict[str, Tensor], version: int) -> bool:
        """Go on from what ``snapshot`` returned, if it is one of so many actors on this kind of device."""
        self.restart_episodes()
        actors = self._begun(version)
        parts = parted(snapshot, len(actors))
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

    def _begun(self, version: int, again: int = 0) -> list[Actor]:
        if not self.actors:
            algo, seed = self._config.algo, self._config.seed
            state_steps, keeps_finals = acting(algo)
            self.actors = [
                Actor(
                    env,
                    self._policy,
                    rollout=algo.rollout,
                    state_steps=state_steps,
                    seed=actor_stream(seed, version, index, again=again),
                    index=index,
                    graphs=self._graphs,
                    keeps_finals=keeps_finals,
                )
                for index, env in enumerate(self.envs)
            ]
        return self.actors
