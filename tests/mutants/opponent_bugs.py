"""Bugs of opponents: whose side, whose result, what the player is told, and when settings change."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from recollect.acting.actor import Actor
from recollect.acting.versus_games import _Tally
from recollect.envs import versus
from recollect.envs.versus import Versus
from recollect.envs.workers import _Workers
from recollect.runtimes import actor_envs
from recollect.training import opponents
from recollect.training.trainer import Trainer
from tests.acting import test_versus_games
from tests.envs import test_versus
from tests.mutants.mutant import Mutant
from tests.support.two_sides import Echo
from tests.training import test_opponents

by_rows = functools.partial(test_versus.test_rows_are_those_of_the_env_played_by_hand, 3)
SAME = "assert same(one[name], value)"
RESUMED = "assert all(same(one[name], two[name])"
SIDES = "test_sides_go_on_over_actors_and_workers"
at_resets = test_opponents.test_settings_change_at_resets_only


def with_agent(test: Any, *arguments: Any) -> None:
    agent = test_versus_games.rc.train(
        test_versus_games.TwoSides, steps=48, vs="echo", last_action_reward=True, **test_versus_games.SMALL
    )
    with agent:
        test(agent, *arguments)


by_hand = functools.partial(with_agent, test_versus_games.test_equals_counting_by_hand)
of_sides = functools.partial(with_agent, test_versus_games.test_results_of_each_side)
loses = functools.partial(with_agent, test_versus_games.test_a_player_that_always_does_the_same, -1, "win")


def own_options() -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_versus_games.test_options_given_win_over_the_curriculum(patch)


OPPONENTS = [
    Mutant(
        "the learner has the first side of every slot", by_rows, ((versus, "_second", "% 2", "* 0"),), SAME
    ),
    Mutant(
        "the sides begin anew in every actor",
        test_opponents.test_sides_go_on_over_actors_and_workers,
        ((actor_envs, "open_actor_env", "config.env_kwargs, index * count", "config.env_kwargs"),),
        SIDES,
    ),
    Mutant(
        "the sides begin anew in every env worker",
        test_opponents.test_sides_go_on_over_actors_and_workers,
        ((actor_envs, "make_slots", "start + first_slot", "first_slot"),),
        SIDES,
    ),
    Mutant(
        "a result is booked to the first side",
        loses,
        ((Versus, "outcomes", "self.env.won * self._sign", "self.env.won"),),
        "assert shares(one.total)",
    ),
    Mutant(
        "a result is booked to the other side",
        of_sides,
        ((_Tally, "add", "self._results[self._side[slot]]", "self._results[self._side[slot - 1]]"),),
        'found.sides["north"]',
    ),
    Mutant(
        "the games that end first count",
        by_hand,
        ((_Tally, "add", "if counts[slot]:", "if True:"),),
        "== sides",
    ),
    Mutant(
        "the dead count in means",
        by_hand,
        ((_Tally, "_add_info", "has_value &= valid", "pass"),),
        "assert found.info",
    ),
    Mutant(
        "a slot without a game has a result",
        test_opponents.test_no_metric_before_the_first_game_is_over,
        ((Versus, "outcomes", ".masked_fill(unplayed, math.nan)", ""),),
        'assert "info/win" not in',
    ),
    Mutant(
        "no value counts as zero",
        test_opponents.test_means_of_rows_and_of_slots,
        ((Actor, "_mean", "value.nanmean()", "value.nan_to_num().mean()"),),
        "test_means_of_rows_and_of_slots",
    ),
    Mutant(
        "the actions of the sides are swapped",
        by_rows,
        ((Versus, "step", "[action, theirs]", "[theirs, action]"),),
        SAME,
    ),
    Mutant(
        "the player acts on an old observation",
        test_versus.test_the_player_gets_rows_observations_and_starts,
        ((Versus, "_split", "tree.copy_(self._obs, theirs)", "pass"),),
        "assert shown_ages == ages",
    ),
    Mutant(
        "the player acts on the observation before the reset",
        by_rows,
        ((Versus, "step", "self._split(step.obs, ", "self._split(step.final_obs, "),),
        SAME,
    ),
    Mutant(
        "the player is not told of a new game",
        by_rows,
        ((Versus, "_split", "self._first.copy_(first)", "self._first.zero_()"),),
        SAME,
    ),
    Mutant(
        "the player restarts in every step",
        by_rows,
        ((Versus, "_split", "self._first.copy_(first)", "self._first.fill_(True)"),),
        SAME,
    ),
    Mutant(
        "the learner sees the rows of the player",
        test_versus.test_no_row_of_the_player_reaches_the_learner,
        (
            (
                Versus,
                "step",
                "tree.index(step.final_obs, self._mine)",
                "tree.index(step.final_obs, self._theirs)",
            ),
        ),
        'assert torch.equal(step.final_obs["obs"]',
    ),
    Mutant(
        "a resume forgets what the player remembers",
        test_versus.test_snapshot,
        ((Versus, "_restore", 'self.player.restore(parts["player"])', "pass"),),
        RESUMED,
    ),
    Mutant(
        "a resume forgets who starts a game",
        test_versus.test_snapshot,
        ((Versus, "_restore", 'parts["versus"]["first"]', "self._first.clone()"),),
        RESUMED,
    ),
    Mutant(
        "settings change in the middle of a game",
        at_resets,
        ((Echo, "act", "torch.where(first, self.error, self.errs[rows])", "self.error"),),
        "assert torch.equal(",
    ),
    Mutant(
        "settings do not reach the player",
        test_opponents.test_workers_change_settings_as_one_process,
        ((_Workers, "_begin", "changed, self._changed = self._changed, None", "changed = None"),),
        "for a, b in zip(one, two",
    ),
    Mutant(
        "the curriculum wins over options that are given",
        own_options,
        ((opponents, "against", "set(env.adjustable) - given if", "set(env.adjustable) if"),),
        "(1, 0.25)",
    ),
    Mutant(
        "a stage is not reached",
        test_opponents.test_the_stages_follow_the_steps,
        ((Trainer, "_adjust", "settings != self._settings", "self._settings is None"),),
        "assert told == ",
    ),
]
