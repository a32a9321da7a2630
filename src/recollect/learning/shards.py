"""The split of a rollout's rows over several learners."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from recollect.base import tree
from recollect.errors import ConfigError
from recollect.experience.join import ROWS
from recollect.experience.rollout import Finals, Rollout


def even_rows(rows: int, learners: int) -> tuple[int, ...]:
    """Number of rows of each learner: ``rows`` split evenly, to within one."""
    if rows < learners:
        raise ConfigError(
            f"learners = {learners}, but a rollout has only {rows} rows, and every learner needs one: lower "
            "learners, or raise num_envs"
        )
    return tuple(rows // learners + (rank < rows % learners) for rank in range(learners))


def shards(rollout: Rollout, rows: tuple[int, ...]) -> list[Rollout]:
    """The rollout split into parts with these numbers of rows, in order, as views."""
    ends = list(accumulate(rows))
    return [rows_of(rollout, end - count, end) for count, end in zip(rows, ends)]


def rows_of(rollout: Rollout, begin: int, end: int) -> Rollout:
    """The rows from ``begin`` to before ``end`` of a rollout, as views."""
    some = slice(begin, end)
    parts = {
        name: tree.index(getattr(rollout, name), (slice(None),) * dim + (some,)) for name, dim in ROWS.items()
    }
    return replace(rollout, **parts, finals=_finals_of(rollout.finals, begin, end))


def _finals_of(finals: Finals | None, begin: int, end: int) -> Finals | None:
    if finals is None:
        return None
    own = (finals.row >= begin) & (finals.row < end)
    if not own.any():
        return None
    return Finals(finals.time[own], finals.row[own] - begin, tree.index(finals.obs, own))
