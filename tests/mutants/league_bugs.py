"""Bugs of leagues: opponents that change within a game, memories that survive, results booked elsewhere."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from recollect.acting import actor
from recollect.acting.actor import Actor
from recollect.base import devices
from recollect.league import cast, matchmaking
from recollect.league.assignment import Assignment
from recollect.league.cast import Cast
from recollect.league.games import Tally
from recollect.league.pool import Pool
from recollect.league.tiles import Tiles
from recollect.runtimes.inline_collector import InlineCollector
from recollect.training.league import League
from tests.league import test_captured_cast, test_cast, test_matchmaking, test_pool, test_tiles
from tests.mutants.mutant import Mutant
from tests.training import test_league


def here(test: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    """The test with a folder of its own."""
    return partial(_in_a_folder, test, *arguments)


def _in_a_folder(test: Callable[..., None], *arguments: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        test(Path(folder), *arguments)


def with_reads(test: Callable[..., None], *arguments: Any) -> Callable[[], None]:
    """``here`` on the path of a GPU."""

    def on_that_path() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(devices, "synchronises", lambda where: True)
            with tempfile.TemporaryDirectory() as folder:
                test(Path(folder), None, *arguments)

    return on_that_path


one_opponent = here(test_cast.test_one_opponent_for_each_game)
at_resets = here(test_cast.test_a_member_is_drawn_at_the_reset_of_its_slot)
memories = here(test_cast.test_memories_are_those_of_a_player_alone)
starts = here(test_cast.test_first_is_that_of_the_slot)
known = here(test_cast.test_members_that_always_win_or_lose)
restored = here(test_cast.test_a_restore_continues_bit_for_bit)
MEMORY = "the memory is that of the present game"
DRAWS = "assert faults_of(tmp_path) == []"
CONTINUES = "if not torch.equal(now[name], tensor)"
same_games = here(test_captured_cast.test_the_path_of_a_gpu_plays_the_same_games)
graphs = with_reads(test_captured_cast.test_graphs_are_the_eager_steps, 2)
uneven = partial(test_tiles.test_uneven_shares, [4] * 15 + [0])


def _training_in_tiles(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "synchronises", lambda where: True)
        test_captured_cast.test_trainings(folder, None, patch)


def _acting_with_reads(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "synchronises", lambda where: True)
        test_captured_cast.test_a_scripted_player_that_reads(folder, None, patch)


LEAGUES = [
    Mutant(
        "opponents are swapped within a game",
        one_opponent,
        ((Cast, "act", "slots.begin(fresh,", "slots.begin(torch.ones_like(fresh),"),),
        DRAWS,
    ),
    Mutant(
        "a new roster replaces the opponents of games that are played",
        at_resets,
        (
            (
                Cast,
                "adjust",
                "self._roster = Roster(**told) if self._is_told else None",
                "self._roster = Roster(**told) if self._is_told else None\n"
                "    if len(self._rows):\n        self._prepare()\n"
                "        self._slots.member.copy_(self._slots.drawn())",
            ),
        ),
        "fixed in a game",
    ),
    Mutant(
        "the memory is kept over a swap",
        memories,
        ((Cast, "act", "(fresh | self._restart)", "self._restart"),),
        MEMORY,
    ),
    Mutant(
        "an absent row keeps the memory of the opponent before",
        starts,
        ((Cast, "act", "(fresh | self._restart)[self._slot_of]", "first"),),
        "restarts with the game",
    ),
    Mutant(
        "one opponent for all slots",
        one_opponent,
        ((Assignment, "__init__", "self._slots + first_slot", "0 * self._slots"),),
        DRAWS,
    ),
    Mutant(
        "draws depend on the batch",
        here(test_cast.test_draws_do_not_depend_on_the_batch),
        ((Assignment, "__init__", "self._slots + first_slot", "self._slots"),),
        "assert all(found[0][key] == found[1][key]",
    ),
    Mutant(
        "members share one network, which has the weights loaded last",
        memories,
        ((Cast, "_load", "copy.deepcopy(template)", "template"),),
        MEMORY,
    ),
    Mutant(
        "members have the weights of a new network",
        memories,
        ((Cast, "_load", "policy.load_state_dict(pool.load(name, template.state_dict()))", "pass"),),
        MEMORY,
    ),
    Mutant(
        "a snapshot has the weights of another step",
        here(test_league.test_snapshots_are_those_of_their_step),
        (
            (
                League,
                "on_start",
                "self.pool, self._rosters",
                "self._old = training.weights()\n    self.pool, self._rosters",
            ),
            (League, "_promote", "training.weights()", "self._old"),
        ),
        "seen.of[member.steps]",
    ),
    Mutant(
        "an outcome is booked to another member",
        known,
        ((Assignment, "_book", "self.member,", "self.member.roll(1),"),),
        'assert found["strong"].loss',
    ),
    Mutant(
        "an outcome is booked to the opponent",
        here(test_cast.test_outcomes_are_those_of_the_env),
        ((cast, "_outcome", "won if opponent_is_second else -won", "won"),),
        "booked to the agent",
    ),
    Mutant(
        "a game that was abandoned is booked",
        here(test_cast.test_a_reset_in_the_middle_of_games_books_nothing),
        (
            (Assignment, "begin", "(games == self.finished + 1) & ", ""),
            (Assignment, "forget", "self.member.fill_(NOBODY)", "pass"),
        ),
        "== []",
    ),
    Mutant(
        "a resume forgets the memories of opponents",
        restored,
        (
            (
                Cast,
                "restore",
                'tree.copy_(self._memories(), tree.from_named(self._memories(), snapshot, "memory"))',
                "pass",
            ),
        ),
        CONTINUES,
    ),
    Mutant(
        "a resume repeats the random numbers of opponents",
        restored,
        (
            (
                Cast,
                "restore",
                "tensor.copy_(snapshot[name])",
                'name == "calls" or tensor.copy_(snapshot[name])',
            ),
        ),
        CONTINUES,
    ),
    Mutant(
        "games after the checkpoint stay in the log",
        restored,
        ((Cast, "_continue_log", "return log.keep(is_kept)", "return None"),),
        "later games are removed",
    ),
    Mutant(
        "members of the roster are loaded again and again",
        here(test_cast.test_few_networks_are_in_memory),
        ((Cast, "_policy", "{name} | self._needed()", "{name}"),),
        "once each",
    ),
    Mutant(
        "evaluations cannot be repeated",
        here(test_cast.test_an_evaluation_can_be_repeated, 4),
        ((Cast, "reset", "self._slots.game.fill_(-1)", "pass"),),
        "repeated",
    ),
    Mutant(
        "every game of an evaluation has the same opponent",
        here(test_cast.test_an_evaluation_can_be_repeated, 1),
        ((Assignment, "begin", "self.game += fresh", "self.game.clamp_(min=0)"),),
        "games of a slot have different opponents",
    ),
    Mutant(
        "games that were removed stay in the counts",
        here(test_matchmaking.test_a_tally_counts_every_game_once),
        ((Tally, "counts", "known != inode", "False"),),
        "as all games counted anew",
    ),
    Mutant(
        "half of a line is a game",
        here(test_matchmaking.test_a_tally_counts_every_game_once),
        ((Tally, "counts", "start += len(line)", "start = file.stat().st_size"),),
        "as all games counted anew",
    ),
    Mutant(
        "a new run takes over the snapshots of one that ended at once",
        here(test_league.test_what_a_run_left_that_ended_at_once_is_replaced),
        ((League, "on_start", "is_new=is_new", "is_new=False"),),
        "of this run",
    ),
    Mutant(
        "a game that lost its opponent counts",
        here(test_cast.test_a_restored_game_without_its_opponent_does_not_count),
        ((Assignment, "begin", "& ~self.is_void ", ""),),
        "assert first_games ==",
    ),
    Mutant(
        "a retired snapshot plays",
        here(test_pool.test_members_have_names_states_and_an_order),
        ((Pool, "set_state", "replace(one, state=state)", "one"),),
        "again.members] == [",
    ),
    Mutant(
        "snapshots of training that is repeated stay",
        here(test_league.test_an_earlier_checkpoint),
        ((League, "on_start", "self.pool.rewind(training.steps)", "pass"),),
        "assert folders(run) == before",
    ),
    Mutant(
        "an actor uses whatever folder its node has",
        here(test_cast.test_a_folder_that_is_not_shared, "other"),
        ((Cast, "adjust", "if owner is not None and", "if False and"),),
        "DID NOT RAISE",
    ),
    # On the path of a GPU
    Mutant(
        "in tiles, opponents are swapped within a game",
        same_games,
        ((Cast, "act", "slots.begin(fresh,", "slots.begin(fresh | (slots.steps == 2) & is_static,"),),
        "the same games",
    ),
    Mutant(
        "in tiles, the memory is kept over a swap",
        same_games,
        ((Cast, "act", "self._in_tiles(obs, starts, fresh)", "self._in_tiles(obs, starts & False, fresh)"),),
        "the same games",
    ),
    Mutant(
        "with room for a rollout, an outcome is booked to the member of another slot",
        same_games,
        (
            (
                Assignment,
                "_book",
                "self.member,",
                "self.member.roll(int(len(self._over) > len(won) + 1)),",
            ),
        ),
        "the same log",
    ),
    Mutant(
        "a tile has the weights of the next member",
        uneven,
        ((Tiles, "act", "of_tile[tile : tile + 1]", "(of_tile[tile : tile + 1] + 1) % self.capacity"),),
        "of the member",
    ),
    Mutant(
        "rows beyond the tiles of even shares are dropped",
        uneven,
        (
            (Tiles, "__init__", "+ capacity - 1", ""),
            (
                Tiles,
                "_divide",
                "return place,",
                "place = place.clamp(max=self.count * self.size - 1)\n    return place,",
            ),
        ),
        "the member of the row",
    ),
    Mutant(
        "a row that is left over in a tile writes its memory",
        uneven,
        (
            (
                Tiles,
                "act",
                "tree.index(tree.cat(states), place), memory",
                "tree.index(tree.cat(states), self._row), memory",
            ),
        ),
        "the memory of the member",
    ),
    Mutant(
        "the tiles keep the weights of the roster before",
        test_tiles.test_new_members_in_the_same_tensors,
        (
            (
                Tiles,
                "load",
                "self._weights[kind][i, span] = tensor.flatten()",
                "self._weights[kind][i, span] += tensor.flatten() * (not self._weights[kind][i, span].any())",
            ),
        ),
        "the weights of the present members",
    ),
    Mutant(
        "a captured league does not get the members of a new roster",
        graphs,
        ((Cast, "adjust", "self._has_acted and self._is_told", "False"),),
        "captured",
    ),
    Mutant(
        "graphs are kept although more members play",
        graphs,
        ((actor._Buffer, "__init__", "key = env.graph_key if has_more else None", "key = None"),),
        "captured",
    ),
    Mutant(
        "tiles are aliases of live weights",
        test_tiles.test_weights_are_copies,
        ((Tiles, "__init__", "copy.deepcopy(template)", "template"),),
        "assert",
    ),
    Mutant(
        "a resume of captured acting repeats its random numbers",
        with_reads(test_captured_cast.test_a_resume_of_captured_acting, 8),
        (
            (
                Cast,
                "restore",
                "tensor.copy_(snapshot[name])",
                'name == "calls" or tensor.copy_(snapshot[name])',
            ),
        ),
        "resumed",
    ),
    Mutant(
        "a resume has less room for members, so tiles of another size",
        with_reads(test_captured_cast.test_a_resume_of_captured_acting, 2),
        ((Cast, "restore", 'if "capacity" in snapshot else', "if False else"),),
        "resumed",
    ),
    Mutant(
        "rows of scripted players are in the tiles of a member that has left",
        with_reads(test_captured_cast.test_a_resume_of_captured_acting, 8),
        ((Tiles, "_divide", "# [M, R]", "\n    own[0] |= ~own.any(0)"),),
        "resumed",
    ),
    Mutant(
        "members in tiles act with the noise of training",
        test_tiles.test_members_act_without_noise,
        ((Tiles, "__init__", ".eval()", ""),),
        "without noise",
    ),
    Mutant(
        "acting without a graph has no room for games",
        here(_acting_with_reads),
        ((Actor, "collecting", "if isinstance(self", "if self._is_capturable and isinstance(self"),),
        "assert len(list(read_games(tmp_path))) ==",
    ),
    Mutant(
        "games are logged with the next rollout only",
        here(_training_in_tiles),
        ((InlineCollector, "publish", "env.between_rollouts(self._config.algo.rollout)", "pass"),),
        "logged before the callbacks",
    ),
    Mutant(
        "games without room are lost in silence",
        with_reads(test_captured_cast.test_more_games_than_were_expected),
        ((Assignment, "taken", "max(0, count - most)", "0"),),
        "DID NOT WARN",
    ),
    Mutant(
        "members that lose are preferred",
        test_matchmaking.test_pfsp_prefers_those_that_win,
        ((matchmaking, "_weight", "(1 - won)", "won"),),
        "assert one.shares",
    ),
]
