"""Bugs of tasks whose agents die or are absent, and of the mech arena as a member of the catalogue."""

from __future__ import annotations

import functools

from recollect.envs import checks
from recollect.tasks.base import Task
from recollect.tasks.mech import actions, sensing, words
from recollect.tasks.pettingzoo_envs import TaskParallelEnv
from tests.mutants.mutant import Mutant
from tests.support.reads import unread
from tests.support.task_worlds import BRAWL
from tests.tasks import test_agents, test_captured_tasks, test_contract, test_mech_words

lives = functools.partial(test_contract.test_rows_without_a_living_agent_are_invalid, BRAWL)
starts = functools.partial(test_contract.test_autoreset_shows_the_new_episode_before_any_action, BRAWL)
zoo = functools.partial(test_agents.test_pettingzoo_plays_what_the_task_plays, BRAWL)
seeds = functools.partial(test_agents.test_pettingzoo_finds_nothing_to_say, "mech")
grouped = functools.partial(test_agents.test_the_contract_of_every_grouping, BRAWL, "shared")
captured = functools.partial(test_captured_tasks.test_a_step_reads_nothing, "mech", unread)

MECH_TASK = [
    Mutant(
        "an agent that dies does not terminate",
        lives,
        ((Task, "step", "(terminated & valid) | died", "terminated & valid"),),
        by="assert torch.equal(lives, task.present())",
    ),
    Mutant(
        "absent agents begin an episode",
        starts,
        ((Task, "step", "first = first & self.present()", "pass"),),
        by="assert torch.equal(step.first, starts & task.present())",
    ),
    Mutant(
        "dead agents stay in PettingZoo",
        zoo,
        (
            (
                TaskParallelEnv,
                "step",
                "if not (terminated[agent] or truncated[agent])]",
                "if not self._is_over]",
            ),
        ),
        by="assert not set(left) & set(env.agents)",
    ),
    Mutant(
        "absent agents appear in PettingZoo",
        test_agents.test_absent_agents_are_no_agents,
        ((TaskParallelEnv, "reset", "self._living_rows()", "range(len(self.possible_agents))"),),
        by='assert env.agents == [*obs] == ["blue_0", "red_0"]',
    ),
    Mutant(
        "agents of all envs draw from one action space",
        seeds,
        ((actions, "space", "deepcopy(list(PARTS.items()))", "list(PARTS.items())"),),
        by="Incorrect action seeding",
    ),
    Mutant(
        "absent rows break the contract of a BatchedEnv",
        grouped,
        ((checks, "_drive", "(name or part.agents > 1)", "name"),),
        by="valid is false inside an episode",
    ),
    Mutant(
        "who is in sight is read on the host",
        captured,
        ((sensing, "_clear", "devices.synchronises(wanted)", 'wanted.device.type != "cpu"'),),
        by="reads numbers on the host",
    ),
    Mutant(
        "left and right are exchanged in words",
        functools.partial(test_mech_words.test_a_fight_in_the_zone, "hybrid"),
        ((words, "_way", '"left" if left > part else "right"', '"right" if left > part else "left"'),),
        by="ahead left",
    ),
]
