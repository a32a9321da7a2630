"""The split of a rollout's rows over several learners."""

from __future__ import annotations

from itertools import accumulate

from recollect.errors import ConfigError
from recollect.experience.rollout import Rollout


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
    return [rollout.select_rows(end - count, end) for count, end in zip(rows, ends)]
