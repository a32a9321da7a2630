"""Tasks whose episodes are known from the start, held to a slow truth step by step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from recollect.tasks import Task
from tests.reference.draws import Stream
from tests.reference.sequences import Script


def follows(task: Task, script: Callable[[Stream], Script], share: float, episodes: int = 3) -> int:
    """Play ``episodes`` in every row, half of the actions right; return how many points were earned.

    Raises where anything that is seen, earned or ended differs from the script.
    """
    seed = 5
    obs = task.reset(seed)
    generator = torch.Generator().manual_seed(0)
    points = 0
    for episode in range(episodes):
        scripts = [script(Stream(seed, row, episode)) for row in range(task.num_envs)]
        assert {len(steps) for steps in scripts} == {task.max_episode_steps}
        for t in range(task.max_episode_steps):
            assert obs.tolist() == [steps[t][0] for steps in scripts]
            action = torch.randint(0, 8, (task.num_envs,), generator=generator)
            for row in range(task.num_envs):
                due = scripts[row][t][1]
                if due is not None and row % 2 == 0:
                    action[row] = due
            right = [given == steps[t][1] for given, steps in zip(action.tolist(), scripts)]
            points += sum(right)
            step = task.step(action)
            torch.testing.assert_close(step.reward, torch.tensor(right).float() * share)
            last = t == task.max_episode_steps - 1
            assert step.terminated.tolist() == [last] * task.num_envs
            assert not step.truncated.any()
            if last:
                assert not step.final_obs.any()
            obs = step.obs
    return points


def constant(action: int) -> Callable[[Tensor, Tensor], Tensor]:
    """Always the same: as good as any policy that sees only the present."""
    return lambda obs, first: torch.full((len(obs),), action)
