"""Bugs of the rules of treasure hunt, and of the rows of a task of several agents."""

from __future__ import annotations

import functools

from recollect.envs.groups import AgentGroups
from recollect.tasks import treasure
from recollect.tasks.base import Task
from recollect.tasks.pettingzoo_envs import TaskParallelEnv
from recollect.tasks.treasure import TreasureHunt
from tests.envs import test_workers
from tests.mutants.mutant import Edit, Mutant
from tests.tasks import test_agents, test_treasure

large = functools.partial(test_treasure.test_items_appear_at_their_rate, "large", 0.005, 3)
groups = functools.partial(test_agents.test_groups_have_the_rows_of_their_agents, "treasure-hunt")
zoo = functools.partial(test_agents.test_pettingzoo_plays_what_the_task_plays, "treasure-hunt")
slots = functools.partial(test_workers.test_a_slot_does_not_depend_on_the_others, "treasure-hunt")


def edit(function: str, old: str, new: str) -> Edit:
    return (TreasureHunt, function, old, new)


TREASURE = [
    Mutant(
        "agents walk through each other",
        test_treasure.test_agents_block_and_cost_nothing,
        (edit("_move", "kind >= WALL", "kind == WALL"),),
        by="grid(task)",
    ),
    Mutant(
        "a wall costs nothing",
        test_treasure.test_walls_block_and_cost,
        (edit("_make_tables", "torch.tensor(VALUES)", "torch.tensor(VALUES).clamp(min=-0.0)"),),
        by="assert play(task, action) == [-1.0]",
    ),
    Mutant(
        "the reward is for the cell that the agent is in after the move",
        test_treasure.test_walls_block_and_cost,
        (edit("_move", "found.append(kind)", "found.append(torch.where(kind >= WALL, EMPTY, kind))"),),
        by="assert play(task, action) == [-1.0]",
    ),
    Mutant(
        "items stay after they were collected",
        test_treasure.test_items_are_collected_by_stepping_on_them,
        (edit("_move", "self.board.scatter_(1, here, EMPTY)", "self.board.scatter_(1, here, kind % AGENT)"),),
        by="assert",
    ),
    Mutant(
        "agents move in the opposite order",
        test_treasure.test_agent_0_comes_first_to_what_both_want,
        (
            edit("_move", "turns = None\n", "turns = torch.arange(self.agents).flip(0).expand_as(cells)\n"),
            edit("_move", 'if self.order == "random":\n', "if True:\n"),
            edit("_move", "turns = random.bits(key, self._order_lanes).argsort(1)", "pass"),
        ),
        by="assert play(task, RIGHT, LEFT) == [10.0, 0.0]",
    ),
    Mutant(
        "a drawn order that is the same in every turn",
        test_treasure.test_in_random_order_everybody_comes_first_as_often,
        (edit("_move", "random.bits(key,", "random.bits(self.key.unsqueeze(1),"),),
        by="winners[0] == winners[1]",
    ),
    Mutant(
        "rewards in the order of the turns",
        functools.partial(test_treasure.test_every_step_is_that_of_the_reference, test_treasure.WORLDS[1]),
        (edit("_move", "torch.empty_like(rewards).scatter_(1, turns, rewards)", "rewards"),),
        by="assert step.reward.tolist() == rewards",
    ),
    Mutant(
        "items replace items",
        test_treasure.test_items_stay,
        (
            edit(
                "_advance",
                "field += appears.mul_(field == EMPTY)",
                "field += appears.sub(field).mul_((field < WALL) & (appears > 0))",
            ),
        ),
        by="assert grid(task)",
    ),
    Mutant(
        "items appear before the moves",
        test_treasure.test_a_turn_moves_then_spawns_then_observes,
        (
            edit("_advance", "reward = self._move(action.view(self.cells.shape), key)", "pass"),
            edit("_advance", "reward.view(-1)", "self._move(action.view(self.cells.shape), key).view(-1)"),
        ),
        by="assert step.reward.tolist() == [0.0]",
    ),
    Mutant(
        "one kind of item has the whole rate, the others more",
        large,
        (edit("_make_tables", "* k / self.items", "* (self.items - k + 1)"),),
        by="chi_square",
    ),
    Mutant(
        "the same items in every turn",
        large,
        (edit("_advance", "self.age * self._turn_words", "0 * self.age * self._turn_words"),),
        by="chi_square",
    ),
    Mutant(
        "both halves of a random word are the same",
        large,
        (
            edit(
                "_advance",
                "random.bits(key, self._lanes).view(torch.int32)",
                "random.bits(key, self._lanes).int().repeat_interleave(2, 1)",
            ),
        ),
        by="count.var()",
    ),
    Mutant(
        "agents may start on one cell",
        test_treasure.test_agents_start_anywhere_but_not_together,
        (edit("_begin", "free.scatter_(1, at.unsqueeze(1), False)", "pass"),),
        by="assert pairs.diagonal().sum() == 0",
    ),
    Mutant(
        "an agent does not see itself",
        test_treasure.test_what_is_seen_by_hand,
        (
            edit(
                "_observe",
                "kinds = self.board.gather(1, around).flatten().int()",
                "kinds = self.board.gather(1, around).flatten().int(); "
                "kinds.view(-1, len(self._window))[:, len(self._window) // 2] = EMPTY",
            ),
        ),
        by="assert first ==",
    ),
    Mutant(
        "empty cells are a kind of the one-hot observation",
        test_treasure.test_what_is_seen_by_hand,
        (
            (treasure, "_sights", "if feature is not None", "if True"),
            (treasure, "_sights", "table[kind, feature]", "table[kind, feature or 0]"),
        ),
        by="assert second ==",
    ),
    Mutant(
        "the metric of an agent is that of another",
        test_treasure.test_metrics_show_each_agent_and_the_team,
        (edit("_info", "each.unbind(1)", "each.flip(1).unbind(1)"),),
        by="assert_allclose",
    ),
    Mutant(
        "actions of the groups in the order of the groups",
        groups,
        ((AgentGroups, "step", "tree.index(actions, self._order)", "actions"),),
        by="assert same(rows(copied(step), group), copied(part))",
    ),
    Mutant(
        "slots of a larger task are those from 0 on",
        slots,
        ((Task, "reset", "self._slots + self.first_slot", "self._slots"),),
        by="assert_same",
    ),
    Mutant(
        "PettingZoo sees the next episode at an end",
        zoo,
        ((TaskParallelEnv, "step", "self._by_agent(step.final_obs)", "self._by_agent(step.obs)"),),
        by="assert_seen(wanted[0])",
    ),
]
