"""Bugs of the rules of the recall duel and of its scripted player."""

from __future__ import annotations

import functools

from recollect.tasks.base import Task
from recollect.tasks.recall_duel import RecallBot, RecallDuel
from tests.mutants.mutant import Edit, Mutant
from tests.tasks import test_recall_duel

reference = functools.partial(test_recall_duel.test_every_step_is_that_of_the_reference, 3, 1)
golden = test_recall_duel.test_a_golden_game
rounds = functools.partial(test_recall_duel.test_who_wins_a_round, (1, 0), (0, 3), 1)
both_wrong = functools.partial(test_recall_duel.test_who_wins_a_round, (0, 3), (2, 1), 0)
both_right = functools.partial(test_recall_duel.test_who_wins_a_round, (1, 3), (1, 2), 1)


def edit(function: str, old: str, new: str) -> Edit:
    return (RecallDuel, function, old, new)


RECALL_DUEL = [
    Mutant(
        "a bid wins a round in which its player forgot the cue",
        rounds,
        (edit("_advance", "torch.where(right, bid, -1)", "bid"),),
        by="assert rewards ==",
    ),
    Mutant(
        "the higher bid wins when both forgot",
        both_wrong,
        (edit("_advance", "torch.where(right, bid, -1)", "bid + 4 * right"),),
        by="assert rewards ==",
    ),
    Mutant(
        "the lower bid wins",
        both_right,
        (edit("_advance", "torch.where(right, bid, -1)", "torch.where(right, 3 - bid, -1)"),),
        by="assert rewards ==",
    ),
    Mutant(
        "only the winner of a round pays",
        both_right,
        (edit("_advance", "self.chips.sub_(bid)", "self.chips.sub_(bid * (gain > 0))"),),
        by="assert task.chips",
    ),
    Mutant(
        "chips that are not there can be bid",
        golden,
        (edit("_advance", "torch.minimum(action % BIDS, self.chips)", "(action % BIDS)"),),
        by="assert play(task, (act(0, 3), act(2, 0)))",
    ),
    Mutant(
        "names count before the rounds",
        golden,
        (
            edit("_advance", "self.chips) * played", "self.chips)"),
            edit("_advance", "(action // BIDS == cue) & played", "(action // BIDS == cue)"),
        ),
        by="assert start ==",
    ),
    Mutant(
        "the cues can be seen all the time",
        golden,
        (edit("_observe", "* self._is_shown.index_select(0, self.age)", ""),),
        by="assert start ==",
    ),
    Mutant(
        "the cue of the next round is asked for",
        reference,
        (
            edit("_advance", "self.age.sub_(random.ONE)", "pass"),
            edit("_advance", "self.age.add_(random.ONE)", "pass"),
        ),
        by="assert torch.equal(step.reward",
    ),
    Mutant(
        "south sees its own lead as north does",
        test_recall_duel.test_swapping_sides_mirrors_the_game,
        (edit("_observe", "* self._sign / ROUNDS", "* self._sign.abs() / ROUNDS"),),
        by="assert torch.equal(a.obs, swapped(b.obs))",
    ),
    Mutant(
        "each player sees the chips of the other as its own",
        golden,
        (
            edit(
                "_observe",
                "[self.chips / CHIPS, self.chips.flip(1) / CHIPS",
                "[self.chips.flip(1) / CHIPS, self.chips / CHIPS",
            ),
        ),
        by="assert play(task, (act(1, 3), act(1, 1)))",
    ),
    Mutant(
        "south wins when north has more rounds",
        reference,
        (edit("_advance", "self.lead.sign().float()", "-self.lead.sign().float()"),),
        by="assert (task.won.tolist(), task.games.tolist()) == (results, finished)",
    ),
    Mutant(
        "the result is forgotten when the next game starts",
        reference,
        ((Task, "_outliving", "torch.where(is_first, new, getattr(self, name))", "new"),),
        by="assert (task.won.tolist(), task.games.tolist()) == (results, finished)",
    ),
    Mutant(
        "games are counted over resets of the env",
        reference,
        ((Task, "_outliving", "torch.where(is_first, new, getattr(self, name))", "getattr(self, name)"),),
        by="== ([0] * 12, [0] * 12)",
    ),
    Mutant(
        "one cue is drawn for all rounds",
        test_recall_duel.test_cues_are_uniform_and_the_same_for_both,
        (
            edit(
                "_begin",
                "random.bits(key.unsqueeze(1), self._cue_lanes)",
                "random.bits(key.unsqueeze(1), 0 * self._cue_lanes)",
            ),
        ),
        by="assert pairs.bincount",
    ),
    Mutant(
        "the bot forgets as often as it should recall",
        test_recall_duel.test_the_bot_recalls_as_often_as_it_is_told,
        ((RecallBot, "act", "random.uniform(luck) < self.memory", "random.uniform(luck) >= self.memory"),),
        by="assert found[",
    ),
    Mutant(
        "the bots of both sides share their luck",
        functools.partial(test_recall_duel.test_the_bids_of_the_bot, "random"),
        ((RecallBot, "act", "env.age[slot] * 2 + side", "env.age[slot] * 2"),),
        by="each side draws its own",
    ),
    Mutant(
        "the bot names a wrong cue whenever it forgets",
        test_recall_duel.test_the_bot_recalls_as_often_as_it_is_told,
        ((RecallBot, "act", "random.integers(guess, env.cues)", "(cue + 1) % env.cues"),),
        by="assert found[",
    ),
    Mutant(
        "the even bot spreads its chips over all rounds again",
        functools.partial(test_recall_duel.test_the_bids_of_the_bot, "even"),
        ((RecallBot, "act", "ROUNDS - number", "ROUNDS + 0 * number"),),
        by="[[2], [2], [1]]",
    ),
]
