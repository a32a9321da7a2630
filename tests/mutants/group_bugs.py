"""Bugs of envs with several agents: whose row, reward and end, and when a slot starts a new episode."""

from __future__ import annotations

from recollect.acting import evaluate as evaluations
from recollect.acting.actor import Actor
from recollect.envs import groups
from recollect.envs.group_views import GroupView, _Joint
from recollect.envs.pettingzoo_loop import PettingZooLoop
from recollect.envs.pettingzoo_rows import GroupRows
from recollect.errors import ConfigError
from tests.acting import test_absent_agents
from tests.envs import test_groups, test_pettingzoo, test_pettingzoo_errors
from tests.mutants.mutant import Edit, Mutant
from tests.support.grouped_worlds import EARLY, LATE

BY_HAND = "assert by_loop(env, 20, seed) == by_hand("


NOT_FIRST = "slot.rows[agent][0].next.first[slot.rows[agent][1]] = False"


def early() -> None:
    test_pettingzoo.test_equals_stepping_by_hand(EARLY, test_pettingzoo.PAIRS)


def late() -> None:
    test_pettingzoo.test_equals_stepping_by_hand(LATE, "shared")


def in_two_groups() -> None:
    mapping = {"x": "archer_*", "y": ["archer_1"], "z": "knight_0"}
    test_groups.test_bad_groups(mapping, test_groups.CAST, ConfigError, "in the groups x and y")


def living() -> None:
    test_absent_agents.test_evaluation(LATE, [2, 2, 2, 2, 5, 5, 5, 5, 6, 6, 6, 6])


def never() -> None:
    test_absent_agents.test_evaluation(test_absent_agents.NEVER, [4, 4, 4, 4, 6, 6, 6, 6])


def step(old: str, new: str) -> Edit:
    return (PettingZooLoop, "_step_slot", old, new)


AGENTS = [
    Mutant(
        "the row of a dead agent stays valid",
        early,
        ((GroupRows, "begin", "self.next.valid.fill(False)", "pass"),),
        by=BY_HAND,
    ),
    Mutant(
        "no first for an agent that was dead when its slot was reset",
        early,
        (
            (
                PettingZooLoop,
                "_appear",
                "part.next.first[row] = True",
                "part.next.first[row] = part.next.valid[row]",
            ),
        ),
        by=BY_HAND,
    ),
    Mutant(
        "no first for an agent that appears later",
        late,
        (step("self._appear(i, agent, obs, infos)", "self._appear(i, agent, obs, infos); " + NOT_FIRST),),
        by=BY_HAND,
    ),
    Mutant(
        "rows are ordered by agent, then slot",
        early,
        ((PettingZooLoop, "__init__", "i * len(part.group.agents) + k", "k * self.num_envs + i"),),
        by=BY_HAND,
    ),
    Mutant(
        "every agent gets the reward of the first",
        early,
        (step('_entry(rewards, agent, "rewards")', '_entry(rewards, slot.alive[0], "rewards")'),),
        by=BY_HAND,
    ),
    Mutant(
        "a slot is reset when its first agent ends",
        early,
        (step("if not slot.alive:", "if ended:"),),
        by=BY_HAND,
    ),
    Mutant(
        "the env gets actions of dead agents",
        early,
        (step("for agent in slot.alive}", "for agent in slot.rows}"),),
        by="actions of the living, and of no other",
    ),
    Mutant(
        "truncation of an agent becomes termination",
        early,
        (step("= terminated, truncated\n", "= True, truncated\n"),),
        by=BY_HAND,
    ),
    Mutant(
        "the last observation is not kept",
        early,
        (step("part.write_final(row, obs.get(agent), info)", "pass"),),
        by=BY_HAND,
    ),
    Mutant(
        "an agent may come back",
        test_pettingzoo_errors.test_an_agent_does_not_come_back,
        ((PettingZooLoop, "_check_leaving", "for agent in gone.intersection(present):", "for agent in ():"),),
        by="DID NOT RAISE",
    ),
    Mutant(
        "seeds begin at slot 0 in every worker",
        test_pettingzoo.test_seeds_do_not_depend_on_other_slots,
        ((PettingZooLoop, "reset", "[self.first_slot :]", "[: self.num_envs]"),),
        by='assert torch.equal(part.reset(7)["agents"], one[3:])',
    ),
    Mutant(
        "an absent agent may do nothing",
        test_pettingzoo.test_an_absent_row_stays_in_its_space,
        ((GroupRows, "__init__", "_ones(self._absent[MASK])", "self._absent[MASK]"),),
        by='assert obs["action_mask"].tolist()',
    ),
    Mutant(
        "a group has its agents in the order of its patterns",
        test_groups.test_groups_by_name_and_pattern,
        (
            (
                groups,
                "_matching",
                "[name for name in agents if any(fnmatch.fnmatchcase(name, pattern) for pattern in "
                "patterns)]",
                "list(dict.fromkeys(n for p in patterns for n in agents if fnmatch.fnmatchcase(n, p)))",
            ),
        ),
        by="assert make_groups(mapping, CAST) == {",
    ),
    Mutant(
        "an agent may be in two groups",
        in_two_groups,
        ((groups, "make_groups", "if len(homes) != 1:", "if not homes:"),),
        by="DID NOT RAISE",
    ),
    Mutant(
        "every view resets the env",
        test_groups.test_views_are_reset_together,
        ((_Joint, "restart", "if name == self.leader:", "if True:"),),
        by="DID NOT RAISE",
    ),
    Mutant(
        "every view saves the whole env",
        test_groups.test_views_resume,
        ((GroupView, "_snapshot", " if self._name == self._joint.leader else {}", ""),),
        by='assert not any(name.startswith("env:") for name in saved[1] or {})',
    ),
    Mutant(
        "first is ordered by agent, then slot",
        late,
        (
            (
                GroupRows,
                "finish",
                "self._now, self.next = self.next, self._now\n",
                "self.next.first[:] = self.next.first.reshape(-1, len(self.group.agents)).T.flatten()\n"
                "    self._now, self.next = self.next, self._now\n",
            ),
        ),
        by=BY_HAND,
        known="users of JaxMARL, Mava or BenchMARL",
    ),
    Mutant(
        "an evaluation waits for an agent that is never there",
        never,
        ((evaluations, "evaluate", "absent.count(list(players.values()), ends)", "pass"),),
        by="did not finish 12 episodes",
    ),
    Mutant(
        "an agent that dies early is taken for absent",
        living,
        ((evaluations._Absent, "_over", "lived |= valid", "lived[:] = valid"),),
        by="assert sorted(found.lengths) == lengths",
    ),
    Mutant(
        "infos of the dead",
        test_absent_agents.test_infos_of_the_living,
        ((Actor, "_mean", "self.env.agents > 1", "False"),),
        by='assert actor.info["info/step"]',
    ),
]
