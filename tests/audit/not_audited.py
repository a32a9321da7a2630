"""The mutants that the auditor does not find: those out of its scope, by reason, and those that it misses."""

from __future__ import annotations

import importlib
import pkgutil

from tests import mutants
from tests.mutants.advice_bugs import ADVICE
from tests.mutants.evidence_bugs import EVIDENCE
from tests.mutants.league_game_bugs import LEAGUE_GAMES
from tests.mutants.mech_bugs import MECHS
from tests.mutants.mech_game_bugs import MECH_GAMES
from tests.mutants.mech_kernel_bugs import MECH_KERNELS
from tests.mutants.mech_replay_bugs import MECH_REPLAYS
from tests.mutants.mech_task_bugs import MECH_TASK
from tests.mutants.mutant import Mutant
from tests.mutants.own_code_bugs import TRUST
from tests.mutants.parallel_bugs import CHOICES
from tests.mutants.rating_bugs import RATINGS
from tests.mutants.recall_duel_bugs import RECALL_DUEL
from tests.mutants.recording_bugs import RECORDINGS
from tests.mutants.register_bugs import REGISTERED
from tests.mutants.run_bugs import RUNS
from tests.mutants.size_bugs import SIZES
from tests.mutants.treasure_bugs import TREASURE

LISTS_OUT_OF_SCOPE: dict[str, tuple[list[Mutant], ...]] = {
    "rules of tasks and games": (TREASURE, RECALL_DUEL, MECHS, MECH_GAMES, MECH_KERNELS, MECH_TASK),
    "ratings, matches and members that are added or retired": (RATINGS, LEAGUE_GAMES),
    "recordings and advice": (RECORDINGS, MECH_REPLAYS, ADVICE),
    "run folders, trust and registered parts": (RUNS, TRUST, REGISTERED),
    "the choice of threads": (CHOICES,),
    "memory and its estimates": (SIZES,),
    "the alarm of a run that compares the learner with the record": (EVIDENCE,),
}
"""Lists of which every mutant is out of scope, but for those in the table or in ``MISSED``."""
OUT_OF_SCOPE: dict[str, tuple[str, ...]] = {
    "an error is raised, or an error for a mistake is lacking": (
        "final observations are always valued",
        "iqn takes a head without quantiles",
        "an unknown setting is ignored",
        "mode is ignored",
        "a missing bootstrap is taken for zero",
        "an agent may come back",
        "an agent may be in two groups",
        "a session needs the critic's keys",
        "a session refuses the critic's keys",
    ),
    "it takes longer, or more memory": (
        "the end of a rollout is always valued",
        "a refresh values what nobody needs",
        "all fields are stored",
        "the size of a rollout counts all fields",
        "every view saves the whole env",
        "the loss is read in every minibatch, to be logged",
        "staleness is read after every epoch, to be logged",
        "members of the roster are loaded again and again",
        "traced steps never normalise",
    ),
    "only a text or a report is wrong": (
        "a replay of another format is not told from one of another space",
        "constant rewards are reported again and again",
        "constant rewards are not noticed",
        "a greedy evaluation is compared with a sampled one",
        "the report shows episodes of the weights at the end, not of the best",
    ),
    "the alarm of a run that compares the learner with the record": (
        "only the first number of a field is replayed",
        "fields that cannot be compared are replayed",
        "the unit of a field is ignored",
        "the scale of a field is ignored",
        "a loss may leave out a deviation",
        "the first update checks its first minibatch alone",
        "only the first group is checked against the weights that acted",
        "the deviation of one group is averaged away by another",
    ),
    "the number of threads": (
        "sessions act with all threads",
        "the number of threads is not restored",
        "threads that serve at once leave a default of one",
        "each learner process uses all threads",
    ),
    "lost, late or silent processes": (
        "a group keeps its update after a learner of another group was killed",
        "a stopped learner process is waited for without limit",
        "a long update counts as silence",
        "a learner process that starts has no more time than one that runs",
        "a learner process beats only between updates",
        "a killed learner process is replaced by one with a new optimiser",
        "an actor that fails keeps it to itself",
        "a restarted actor goes to the node that it was lost with",
    ),
    "run folders": (
        "a relative path of a run is another folder for an actor",
        "an actor uses whatever folder its node has",
    ),
}
"""Names of mutants that make no training and no evaluation silently wrong, by the reason."""
MISSED: dict[str, tuple[str, ...]] = {
    "members of a league: drawn, stored, resumed": (
        "a candidate waits for the next snapshot after a crash in its gate",
    ),
    "leagues on the path of a GPU": (
        "a captured league does not get the members of a new roster",
        "graphs are kept although more members play",
        "a resume has less room for members, so tiles of another size",
        "members in tiles act with the noise of training",
        "acting without a graph has no room for games",
        "games are logged with the next rollout only",
        "games without room are lost in silence",
    ),
    "settings and sides of opponents": (
        "the sides begin anew in every env worker",
        "settings do not reach the player",
        "the curriculum wins over options that are given",
        "another agent always samples",
    ),
    "envs": (
        "the live observation is the env's own",
        "wrappers are applied from the outermost to the innermost",
        "options of own code are dropped",
    ),
    "traced steps, which its short rollouts do not reach": (
        "traced steps do not reset",
        "the proof of a traced step draws random numbers",
        "traced steps are not compared",
        "traced steps are compared once",
        "traced steps skip hooks",
    ),
    "leaks": (
        "a buffer of every update is kept",
        "past weights are never pruned",
    ),
    "processes": (
        "the first rollout after a resume explores as at the start",
        "weights that the user has changed are ignored",
        "final observations are written to slot 0",
        "a slot is given out while it is learned from",
        "a slot is given out while its rollout waits",
        "final observations of the second actor stand in the rows of the first",
        "the lag is logged as none",
        "past weights are pruned one update too early",
        "a rollout may lag by one update too many",
        "the lag of the first rollout stands for all",
        "a rollout may come from the future",
        "observation statistics are not merged over learners on a GPU",
        "weights of a Ray actor are older than the version named",
        "a Ray actor sends no final observations",
        "the newest rollouts, whatever their tickets",
    ),
}
"""Names of mutants in the auditor's scope that no check finds yet, by their kind."""


def missed() -> set[str]:
    """Names of the mutants in scope that are not found."""
    return {name for names in MISSED.values() for name in names}


def out_of_scope(found: set[str]) -> set[str]:
    """Names of the mutants that need not be found; ``found``: those that are, of whatever list."""
    lists = (one for lists in LISTS_OUT_OF_SCOPE.values() for one in lists)
    of_lists = {mutant.name for one in lists for mutant in one} - found - missed()
    return of_lists | {name for names in OUT_OF_SCOPE.values() for name in names}


def every() -> set[str]:
    """Names of all mutants of all lists in ``tests.mutants``; needs Ray, for its own."""
    names: set[str] = set()
    for module in pkgutil.iter_modules(mutants.__path__):
        if module.name.startswith("test_"):
            continue
        for value in vars(importlib.import_module(f"{mutants.__name__}.{module.name}")).values():
            if isinstance(value, list):
                names |= {one.name for one in value if isinstance(one, Mutant)}
    return names
