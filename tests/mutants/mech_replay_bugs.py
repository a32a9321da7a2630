"""Planted bugs in replays of the mech arena and in what its viewer is given."""

from __future__ import annotations

from collections.abc import Callable

from recollect.tasks.mech import events, frames, recording
from recollect.tasks.mech.recording import Chain, Recorder, Watch
from tests.mutants.mutant import Mutant
from tests.support.mech_games import game, states
from tests.tasks import test_mech_frames, test_mech_replays

CACHED = (game, states, test_mech_frames.frames_of_the_game, test_mech_replays.game)


def fresh(test: Callable[[], None]) -> Callable[[], None]:
    """The proof with a game that is made anew, which is not kept for other tests."""

    def proof() -> None:
        for made in CACHED:
            made.cache_clear()
        try:
            test()
        finally:
            for made in CACHED:
                made.cache_clear()

    return proof


reproduced = fresh(test_mech_replays.test_a_game_is_reproduced)
in_wrappers = fresh(test_mech_replays.test_games_within_wrappers_are_recorded_one_after_the_other)
columns = fresh(test_mech_frames.test_columns_are_the_states)
contacts = fresh(test_mech_frames.test_contacts_are_the_mechs_that_are_observed)
aims = fresh(test_mech_frames.test_aims_are_what_beams_hit)
told = fresh(test_mech_frames.test_events_are_those_of_the_game)

MECH_REPLAYS = [
    Mutant(
        "the hash of a game leaves out the heat",
        test_mech_replays.test_the_hash_covers_every_tensor_of_the_game,
        ((Chain, "add", "if name not in BESIDES", 'if name not in BESIDES | {"heat"}'),),
        by="assert (one.sha256 == other.sha256)",
    ),
    Mutant(
        "the hash of a game counts earlier games",
        test_mech_replays.test_the_hash_covers_every_tensor_of_the_game,
        ((Chain, "add", "if name not in BESIDES", 'if name != "root"'),),
        by="assert (one.sha256 == other.sha256)",
    ),
    Mutant(
        "the hash of a game leaves out the actions",
        fresh(test_mech_replays.test_an_action_without_effect_is_found_where_it_was_changed),
        ((Chain, "add", "() if action is None else sorted(tree.named_leaves(action))", "()"),),
        by="DID NOT RAISE",
    ),
    Mutant(
        "a game is played again with the actions of the decision before",
        reproduced,
        ((recording, "play_again", "part[decision]", "part[decision - 1]"),),
        by="differs from decision 1 of 24",
    ),
    Mutant(
        "actions are recorded one decision late",
        reproduced,
        (
            (
                Recorder,
                "_made",
                "for each in self._actions]",
                "for each in self._actions[:1] + self._actions[:-1]]",
            ),
        ),
        by="from decision 2 of 24",
    ),
    Mutant(
        "the last state of a game is taken from the next one",
        fresh(test_mech_replays.test_the_last_state_is_that_of_the_game),
        ((Watch, "_end", "self._report()", "pass"),),
        by="assert ages ==",
    ),
    Mutant(
        "every game of a slot is recorded as its first",
        in_wrappers,
        ((Recorder, "_add", "else self._episode + 1", "else 0"),),
        by="assert [(r.slot, r.episode",
    ),
    Mutant(
        "red is drawn where blue is",
        columns,
        ((frames, "_state", '{"x": arena.x, "y"', '{"x": arena.x.flip(1), "y"'),),
        by="assert_allclose",
    ),
    Mutant(
        "the contacts of red are named as those of blue",
        contacts,
        ((frames, "_state", "(contact + first) % (2 * n)", "contact"),),
        by="assert is_enemy ==",
    ),
    Mutant(
        "the aims of red are on red",
        aims,
        ((frames, "_aim", "torch.tensor([[n], [0]])", "torch.tensor([[n], [n]])"),),
        by="assert target // 5 != row // 5",
    ),
    Mutant(
        "aims are those of the next decision",
        fresh(test_mech_frames.test_aims_are_those_of_the_action),
        ((frames, "_aim", "values[decision]", "values[min(decision + 1, replay.decisions - 1)]"),),
        by="assert aims",
    ),
    Mutant(
        "the mech that did least damage is said to have destroyed another",
        told,
        ((events, "_killer", ").argmax())", ").argmin())"),),
        by="assert all(",
    ),
    Mutant(
        "hits on the other side are counted as one's own",
        told,
        (
            (
                events.Events,
                "add",
                "self._hit(side * n + i, (1 - side) * n + j,",
                "self._hit((1 - side) * n + j, side * n + i,",
            ),
        ),
        by="assert sum(",
    ),
]
