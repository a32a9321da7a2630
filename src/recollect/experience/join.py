"""The rollouts of several actors as one.

Actors are groups of rows, each with envs, memories and random streams of its own. That layout is the same in
whatever process an actor lives, and so is the order in which their rows stand in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from recollect.base import tree
from recollect.base.types import Tree
from recollect.errors import RecollectError
from recollect.experience.rollout import Finals, Rollout

ROWS = dict.fromkeys(
    ("obs", "first", "action", "record", "reward", "terminated", "truncated", "valid", "final_value"), 1
) | {"bootstrap": 0, "states": 1}
"""The tensors of a rollout but for its finals, and which of their dimensions is rows."""


def join(rollouts: Sequence[Rollout], *, is_mixed: bool = False, into: Rollout | None = None) -> Rollout:
    """Rollouts of equally many steps as one, row after row; a single one comes back as it is.

    Args:
        rollouts: in the order of their rows. They have one version of the weights,
        is_mixed: unless this is set: then the oldest is that of the whole.
        into: what an earlier call returned for rollouts of these shapes, and nobody needs any longer: its
            memory is used again. Fresh memory of many megabytes costs more than the copy.
    """
    one = rollouts[0]
    if len(rollouts) == 1:
        return one
    versions = sorted({r.version for r in rollouts})
    if any(r.state_steps != one.state_steps for r in rollouts) or (len(versions) > 1 and not is_mixed):
        raise RecollectError(
            f"rollouts of versions {versions} cannot be joined: in lockstep the actors must act with the "
            "same weights and store the same states"
        )

    def joined(name: str, dim: int) -> Tree:
        parts = [getattr(r, name) for r in rollouts]
        if into is None:
            return tree.cat(parts, dim)
        return tree.map(lambda out, *xs: torch.cat(xs, dim, out=out), getattr(into, name), *parts)

    return replace(
        one,
        **{name: joined(name, dim) for name, dim in ROWS.items()},
        finals=_join_finals(rollouts),
        version=versions[0],
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
