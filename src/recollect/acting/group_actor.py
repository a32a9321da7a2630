"""The actor of an env with several groups of agents: an ``Actor`` for each, which act in turn."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from recollect.acting.actor import Actor, allocate, interleaved
from recollect.base.devices import Total
from recollect.base.seeds import stream
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import SEPARATOR, Groups, group_part
from recollect.experience.group_rollout import AnyHeader, AnyRollout, GroupHeader, GroupRollout
from recollect.experience.rollout import Acting, Header
from recollect.policy.policies import Network, Policies, rows_by_group
from recollect.policy.policy import Policy


class GroupActor:
    """Steps an env with the policies of all groups and records a rollout of each. An ``Actor`` otherwise."""

    def __init__(
        self,
        env: Groups,
        policies: Policies,
        *,
        seed: int,
        buffers: Sequence[GroupRollout] = (),
        **options: Any,
    ):
        """``options``: as those of ``Actor``. Every group draws from a random stream of its own."""
        self.actors = {
            name: Actor(
                view,
                policies.by_group[name],
                seed=seed,
                sampling_seed=stream(seed, number),
                buffers=[buffer.parts[name] for buffer in buffers],
                **options,
            )
            for number, (name, view) in enumerate(env.views.items())
        }
        self.rows = sum(actor.rows for actor in self.actors.values())

    @property
    def sequence(self) -> int:
        """Index of the next rollout."""
        return self._first.sequence

    @sequence.setter
    def sequence(self, value: int) -> None:
        for actor in self.actors.values():
            actor.sequence = value

    @property
    def in_env_since(self) -> float | None:
        """Start of the env step in progress; None: no step is in progress."""
        since = [actor.in_env_since for actor in self.actors.values()]
        return None if None in since else max(filter(None, since))  # it starts when the last group acts

    @property
    def seconds(self) -> dict[str, SupportsFloat]:
        """Time of the last rollout by activity."""
        names = self._first.seconds
        return {name: Total([actor.seconds[name] for actor in self.actors.values()]) for name in names}

    @property
    def info(self) -> dict[str, Tensor]:
        """The means of ``Step.info``, as ``info/GROUP/NAME``."""
        return {
            f"info/{group}/{name.removeprefix('info/')}": value
            for group, actor in self.actors.items()
            for name, value in actor.info.items()
        }

    def collect(self, version: int = 0, buffer: int = 0) -> GroupRollout:
        """Record T steps of every group. The next call with the same buffer overwrites the rollouts."""
        return interleaved([self.collecting(version, buffer)])[0]

    def collecting(self, version: int = 0, buffer: int = 0) -> Generator[None, None, GroupRollout]:
        """``collect`` as a generator, which yields while the env steps."""
        running = {name: actor.collecting(version, buffer) for name, actor in self.actors.items()}
        done: dict[str, Any] = {}
        while True:
            for name, one in running.items():
                try:
                    next(one)
                except StopIteration as end:
                    done[name] = end.value
            if done:  # all groups make equally many steps
                return GroupRollout({name: done[name] for name in running})
            yield

    def close(self) -> None:
        """Free the graphs."""
        for actor in self.actors.values():
            actor.close()

    def snapshot(self) -> dict[str, Tensor] | None:
        """Copies of all that determines the next rollouts, as GROUP:NAME; None if the env has none."""
        found: dict[str, Tensor] = {"sequence": torch.tensor(self.sequence)}
        for group, actor in self.actors.items():
            own = actor.snapshot()
            if own is None:
                return None
            found |= {f"{group}{SEPARATOR}{name}": tensor for name, tensor in own.items()}
        return found

    def fits(self, snapshot: dict[str, Tensor]) -> bool:
        """Whether the snapshot is of an actor with the same groups, on the same type of device."""
        return all(actor.fits(group_part(snapshot, group)) for group, actor in self.actors.items())

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Continue from a snapshot; the first group restores the env."""
        for group, actor in self.actors.items():
            actor.restore(group_part(snapshot, group))

    @property
    def _first(self) -> Actor:
        return next(iter(self.actors.values()))


AnyActor = Actor | GroupActor


def make_actor(env: BatchedEnv | Groups, network: Network, **options: Any) -> Any:
    """The actor of an env with one group of agents, or with several."""
    if isinstance(env, Groups):
        assert isinstance(network, Policies)
        return GroupActor(env, network, **options)
    assert isinstance(network, Policy)
    return Actor(env, network, **options)


def allocate_all(network: Network, rows: int, steps: int, wanted: Acting, actor: int = 0) -> AnyRollout:
    """An empty rollout of ``rows`` rows, or of each group, on the CPU."""
    if isinstance(network, Policy):
        return allocate(network, rows, steps, wanted, actor)
    policies, sizes = network.by_group, rows_by_group(network, rows)
    return GroupRollout(
        {name: allocate(policies[name], sizes[name], steps, wanted, actor) for name in policies}
    )


def empty_header(network: Network, wanted: Acting, actor: int) -> AnyHeader:
    """The header of a rollout that is to be recorded."""
    header = Header(wanted.state_steps, actor)
    return header if isinstance(network, Policy) else GroupHeader(dict.fromkeys(network.by_group, header))
