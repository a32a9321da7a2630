"""Several actors side by side: groups of rows, each with envs, memories and random streams of its own.

They act one after the other with the same weights, and their rollouts become one, in the order of the
actors. That layout is the same in whatever process an actor lives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from recollect import tree
from recollect.actor import Actor
from recollect.errors import RecollectError
from recollect.rollout import Finals, Rollout
from recollect.types import State


class Actors:
    """What an ``Actor`` is to the learner, for several of them."""

    def __init__(self, actors: Sequence[Actor]):
        self.actors = tuple(actors)
        self.rows = sum(actor.rows for actor in self.actors)

    @property
    def state(self) -> State:
        """The live memories of all rows, in the order of the actors."""
        return tree.cat([actor.state for actor in self.actors])

    @property
    def seconds(self) -> dict[str, float]:
        """The time that the last rollout took, by what it was spent on."""
        names = self.actors[0].seconds
        return {name: sum(actor.seconds[name] for actor in self.actors) for name in names}

    @property
    def info(self) -> dict[str, float]:
        """The means over the last rollout of all actors, each weighed by its rows."""
        found: dict[str, tuple[float, int]] = {}
        for actor in self.actors:
            for name, value in actor.info.items():
                total, rows = found.get(name, (0.0, 0))
                found[name] = total + value * actor.rows, rows + actor.rows
        return {name: total / rows for name, (total, rows) in sorted(found.items())}

    def collect(self, version: int = 0) -> Rollout:
        """One rollout of all rows."""
        return join([actor.collect(version) for actor in self.actors])

    def snapshot(self) -> dict[str, Tensor] | None:
        """All that decides the next rollouts; None if one of the envs cannot tell its part."""
        found: dict[str, Tensor] = {}
        for actor in self.actors:
            own = actor.snapshot()
            if own is None:
                return None
            found |= {f"{actor.index}/{name}": tensor for name, tensor in own.items()}
        return found

    def fits(self, snapshot: dict[str, Tensor]) -> bool:
        """Whether the snapshot is one of so many actors on the same kind of device."""
        return all(actor.fits(self._part(snapshot, actor)) for actor in self.actors)

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Go on from what ``snapshot`` returned."""
        for actor in self.actors:
            actor.restore(self._part(snapshot, actor))

    @staticmethod
    def _part(snapshot: dict[str, Tensor], actor: Actor) -> dict[str, Tensor]:
        prefix = f"{actor.index}/"
        return {k.removeprefix(prefix): v for k, v in snapshot.items() if k.startswith(prefix)}


def join(rollouts: Sequence[Rollout]) -> Rollout:
    """Rollouts of equally many steps and one version of the weights as one, row after row."""
    one = rollouts[0]
    if any(r.version != one.version or r.state_steps != one.state_steps for r in rollouts):
        raise RecollectError(
            f"rollouts of versions {sorted({r.version for r in rollouts})} cannot be joined: the actors "
            "must act with the same weights and store the same states"
        )
    rows = {
        name: tree.cat([getattr(r, name) for r in rollouts], dim=1)
        for name in ("obs", "first", "action", "record", "reward", "terminated", "truncated", "valid")
    }
    return replace(
        one,
        **rows,
        final_value=torch.cat([r.final_value for r in rollouts], dim=1),
        bootstrap=torch.cat([r.bootstrap for r in rollouts]),
        states=tree.cat([r.states for r in rollouts], dim=1),
        finals=_join_finals(rollouts),
    )


def _join_finals(rollouts: Sequence[Rollout]) -> Finals | None:
    offset, times, rows, obs = 0, [], [], []
    for rollout in rollouts:
        if rollout.finals is not None:
            times.append(rollout.finals.time)
            rows.append(rollout.finals.row + offset)
            obs.append(rollout.finals.obs)
        offset += rollout.rows
    if not times:
        return None
    time = torch.cat(times)
    order = time.argsort(stable=True)  # in order of time, as one actor has them
    return Finals(time[order], torch.cat(rows)[order], tree.index(tree.cat(obs), order))
