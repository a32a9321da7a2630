"""Bugs of what a user does with a league: matches, members from elsewhere, pruning, the report."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import recollect as rc
from recollect.league import matchmaking, prune, results
from recollect.league.matches import MatchLog
from recollect.league.pool import Pool
from recollect.reports import league as report
from recollect.training import opponents
from recollect.training.league import League
from tests.league import test_matches, test_matchmaking, test_pool, test_prune
from tests.mutants.league_bugs import here
from tests.mutants.mutant import Mutant
from tests.reports import test_league as test_report
from tests.training import test_league, test_league_games
from tests.training.test_league import SMALL, TwoSides

elsewhere = here(test_league_games.test_a_member_from_elsewhere_plays)
fits = here(test_league_games.test_it_must_fit)
frozen = here(test_pool.test_a_member_from_elsewhere)
beaten = here(test_prune.test_members_that_are_beaten_go_first)
stays = here(test_prune.test_the_anchor_and_the_newest_stay)
once = here(test_matches.test_the_same_games_are_not_counted_twice)


def with_a_run(test: Callable[..., None]) -> Callable[[], None]:
    """The test with a short run."""
    return partial(_with_a_run, test)


def _with_a_run(test: Callable[..., None]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        rc.train(TwoSides, steps=300, run=str(run), **SMALL).close()
        agent: Any = rc.load(run, env=TwoSides)
        test(agent, run)


def both_modes(agent: Any, _: Path) -> None:
    """With a patch of its own."""
    with pytest.MonkeyPatch.context() as patch:
        test_league_games.test_both_act_in_the_same_mode(agent, patch)


def within_a_gate() -> None:
    """With a patch and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        test_league.test_a_run_that_ends_within_a_gate(Path(folder), patch)


by_hand = with_a_run(test_league_games.test_a_match_of_two_snapshots_is_that_of_their_weights)

LEAGUE_GAMES = [
    Mutant(
        "wins of a match on the second side are booked to the other player",
        here(test_matches.test_games_are_those_of_their_sides),
        ((MatchLog, "add", "second.loss, second.draw, second.win", "second.win, second.draw, second.loss"),),
        "assert dict(counts) ==",
    ),
    Mutant(
        "matches of replaced weights count",
        here(test_matches.test_games_of_other_weights_do_not_count),
        ((MatchLog, "read", "if one.weights == (weights.get(one.first), weights.get(one.second))", ""),),
        "log.read()}",
    ),
    Mutant(
        "every match of a pair has the same games",
        once,
        ((MatchLog, "next_seed", "default=SEED - 1) + 1", "default=SEED)"),),
        "a seed of its own",
    ),
    Mutant(
        "matches that are played at the same time count twice",
        once,
        ((MatchLog, "add", "if seed != self.next_seed(one, other):", "if False:"),),
        'match="meanwhile"',
    ),
    Mutant(
        "games of the agent in training are those of its snapshot",
        here(test_matches.test_games_of_the_training_and_of_matches_are_added_up),
        ((results, "played", "snapshot + LEARNER", "snapshot"),),
        'assert total["s0", "bot"] + total["bot", "s0"] == 40',
    ),
    Mutant(
        "games of the training replace those of matches",
        here(test_matches.test_games_of_the_training_and_of_matches_are_added_up),
        ((results, "payoff", "match.second, won] += count", "match.second, won] = count"),),
        "assert sum(total.values()) ==",
    ),
    Mutant(
        "both players of a match have the same weights",
        by_hand,
        (
            (
                opponents,
                "match",
                "partial(_member, agent, pool, other, seed + 1)",
                "partial(_member, agent, pool, one, seed + 1)",
            ),
        ),
        "by_hand.to_json()",
    ),
    Mutant(
        "both players of a match draw the same random numbers",
        by_hand,
        ((opponents, "match", "other, seed + 1)", "other, seed)"),),
        "by_hand.to_json()",
    ),
    Mutant(
        "another agent always samples",
        with_a_run(both_modes),
        ((opponents, "against", "versus.player.deterministic = deterministic", "pass"),),
        "the mode of both",
    ),
    Mutant(
        "a rewind removes members from elsewhere",
        frozen,
        ((Pool, "rewind", "member.is_own and member.steps > steps", "member.steps > steps"),),
        "a rewind is of the run's own",
    ),
    Mutant(
        "members from elsewhere count in the names of snapshots",
        frozen,
        ((Pool, "add", "member.is_own", "member.is_snapshot"),),
        'assert made.add(network(6).state_dict(), 200).name == "s2"',
    ),
    Mutant(
        "a member from elsewhere is a past self",
        test_matchmaking.test_a_member_from_elsewhere_is_no_past_self,
        ((matchmaking, "choose", "if one.is_own", "if one.is_snapshot"),),
        "it is no past self",
    ),
    Mutant(
        "no snapshots until the agent is as old as a member from elsewhere",
        elsewhere,
        (
            (
                League,
                "_update",
                "self._last_steps, self",
                "max((one.steps for one in self.pool.members), default=None), self",
            ),
        ),
        "snapshots are made as before",
    ),
    Mutant(
        "a candidate waits for the next snapshot after a crash in its gate",
        within_a_gate,
        ((League, "_update", 'if one.state == "candidate":', 'if promoted and one.state == "candidate":'),),
        "assert folders(run) == folders(whole)",
    ),
    Mutant(
        "a name leads out of the folder",
        here(test_pool.test_names_of_members_from_elsewhere, "../x"),
        ((Pool, "add_other", "if not ADDED.fullmatch(name) or SNAPSHOT.fullmatch(name):", "if False:"),),
        'match="--name"',
    ),
    Mutant(
        "an agent of another env is added",
        fits,
        (
            (
                opponents,
                "add_member",
                "pool.difference(signature(two_sides_of(env), other.config.env_kwargs))",
                "''",
            ),
        ),
        "match=words",
    ),
    Mutant(
        "an agent with another network is added",
        fits,
        ((opponents, "add_member", "if other.policy.made_by is not None or names:", "if False:"),),
        "match=words",
    ),
    Mutant(
        "the anchor is retired",
        stays,
        ((prune, "ranked", "stays = (pool.anchor, pool.newest)", "stays = (pool.newest,)"),),
        "s0 is the anchor",
    ),
    Mutant(
        "the newest snapshot is retired",
        stays,
        ((prune, "ranked", "stays = (pool.anchor, pool.newest)", "stays = (pool.anchor,)"),),
        "s0 is the anchor",
    ),
    Mutant(
        "members that win are retired first",
        beaten,
        ((prune, "ranked", "-one.score", "one.score"),),
        "s6 is the newest",
    ),
    Mutant(
        "a lucky game is evidence",
        beaten,
        ((prune, "ranked", "results.games)[0]", "results.games)[1]"),),
        "s6 is the newest",
    ),
    Mutant(
        "a dry run retires",
        here(test_prune.test_a_dry_run_changes_nothing),
        ((prune, "prune", "if not dry_run:", "if True:"),),
        "nothing is written",
    ),
    Mutant(
        "games against an agent of long ago decide",
        here(test_prune.test_old_games_do_not_count),
        ((prune, "prune", "+ 1 - RECENT", "- 1000"),),
        'prune(pool, 2)] == ["s1"]',
    ),
    Mutant(
        "the matrix shows the games of one side",
        here(test_report.test_the_matrix_counts_every_game_once),
        ((report, "_matrix", "found.payoff.counts.get((b, a), (0, 0, 0))", "(0, 0, 0)"),),
        "(cells[",
    ),
    Mutant(
        "the agent in training is drawn at the step of its snapshot",
        here(test_report.test_ratings_over_time),
        ((report, "_agent", "(one.steps + max(one.steps, end)) / 2", "one.steps"),),
        'found["agent"]["steps"]',
    ),
]
