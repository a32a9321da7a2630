"""All mutants: known bugs of recurrent learners, each the smallest change that brings it back."""

from __future__ import annotations

from collections.abc import Callable

from recollect.learning import actor_critic
from recollect.learning.learner import Learner
from recollect.policy.normalise import PopArt
from tests.mutants import proofs
from tests.mutants.advice_bugs import ADVICE
from tests.mutants.config_bugs import IGNORED
from tests.mutants.core_bugs import FUSED, OPTIONS, PADS, WALLS
from tests.mutants.cpu_kernel_bugs import CPU_KERNELS
from tests.mutants.critic_bugs import CRITICS
from tests.mutants.data_bugs import LAYOUT, LOSSES, SYMBOLS
from tests.mutants.dead_agent_bugs import DEAD
from tests.mutants.evidence_bugs import EVIDENCE
from tests.mutants.group_bugs import AGENTS
from tests.mutants.head_bugs import HEADS
from tests.mutants.impala_bugs import VTRACE
from tests.mutants.league_bugs import LEAGUES
from tests.mutants.league_game_bugs import LEAGUE_GAMES
from tests.mutants.leaks import LEAKS
from tests.mutants.logging_bugs import LOGGING
from tests.mutants.mech_bugs import MECHS
from tests.mutants.mech_game_bugs import MECH_GAMES
from tests.mutants.mech_kernel_bugs import MECH_KERNELS
from tests.mutants.mech_replay_bugs import MECH_REPLAYS
from tests.mutants.mech_task_bugs import MECH_TASK
from tests.mutants.memory_bugs import BOOTSTRAPS, BURN_IN, RESETS, STARTS
from tests.mutants.mutant import Edit, Mutant
from tests.mutants.opponent_bugs import OPPONENTS
from tests.mutants.optimiser_bugs import OPTIMISERS
from tests.mutants.own_code_bugs import TRUST
from tests.mutants.parallel_bugs import CHOICES
from tests.mutants.policies_bugs import POLICIES
from tests.mutants.ppo_bugs import CLIPS, EPOCHS
from tests.mutants.precision_bugs import ROUNDINGS
from tests.mutants.rating_bugs import RATINGS
from tests.mutants.recall_duel_bugs import RECALL_DUEL
from tests.mutants.recording_bugs import RECORDINGS
from tests.mutants.register_bugs import REGISTERED
from tests.mutants.replay_bugs import N_STEP, PRIORITIES, REPLAY, SAVED
from tests.mutants.replay_learner_bugs import EXPLORATION, LEARNED_FROM_REPLAY, PACES, TARGET_NETWORKS
from tests.mutants.run_bugs import RUNS
from tests.mutants.session_bugs import EVALUATIONS, SESSIONS
from tests.mutants.size_bugs import SIZES
from tests.mutants.treasure_bugs import TREASURE
from tests.mutants.value_bugs import VALUES

NORMALISER = (
    "entropy_coef = self.set_schedules(progress)",
    "entropy_coef = self.set_schedules(progress)\n"
    "    policy.obs_norm.update(rollout.obs[: rollout.steps], rollout.valid)",
)


def stopped(name: str, edits: tuple[Edit, ...], proof: Callable[[], None] = proofs.run) -> Mutant:
    return Mutant(name, proof, edits, by="deviate from the recorded ones")


STOPPED = [
    stopped("observation statistics move between acting and learning", ((Learner, "_update", *NORMALISER),)),
    stopped(
        "recorded values are not moved with the first statistics",
        ((actor_critic, "update_value_statistics", "value = value * scale + shift", "pass"),),
    ),
    stopped("an unpreserving PopArt", ((PopArt, "update", "head.weight.mul_(ratio)", "pass"),)),
    stopped("chunks start from zeros", STARTS[0].edits),
    stopped("chunk states are off by one chunk", STARTS[1].edits),
    stopped("every chunk starts from the state of step 0", STARTS[2].edits),
    stopped("the state of another row", STARTS[4].edits),
    stopped("the output state is stored", STARTS[3].edits),
    stopped("the learner resets one step late", RESETS[0].edits),
    stopped("no reset inside chunks", RESETS[2].edits),
    stopped("chunks by reshape without transpose", LAYOUT[0].edits),
    stopped("rows permuted between observations and actions", LAYOUT[1].edits),
    stopped("observations recorded too late", LAYOUT[2].edits),
    stopped("actions are resampled when evaluated", LOSSES[2].edits),
    stopped("burn-in from the chunk's state", BURN_IN[1].edits, proofs.burnt_run),
    stopped("burn-in for the chunks that open the rollout", BURN_IN[2].edits, proofs.burnt_run),
]
"""Those that the run itself must notice: its gauge raises AlignmentError."""

MUTANTS = [
    *RESETS,
    *STARTS,
    *BOOTSTRAPS,
    *LAYOUT,
    *BURN_IN,
    *LOSSES,
    *WALLS,
    *PADS,
    *OPTIONS,
    *FUSED,
    *VTRACE,
    *VALUES,
    *CLIPS,
    *EPOCHS,
    *EVIDENCE,
    *HEADS,
    *SESSIONS,
    *EVALUATIONS,
    *LOGGING,
    *ADVICE,
    *ROUNDINGS,
    *LEAKS,
    *IGNORED,
    *SIZES,
    *SYMBOLS,
    *RUNS,
    *TRUST,
    *AGENTS,
    *TREASURE,
    *RECALL_DUEL,
    *RATINGS,
    *MECHS,
    *MECH_GAMES,
    *MECH_KERNELS,
    *MECH_TASK,
    *POLICIES,
    *RECORDINGS,
    *MECH_REPLAYS,
    *REGISTERED,
    *DEAD,
    *CRITICS,
    *REPLAY,
    *PRIORITIES,
    *N_STEP,
    *SAVED,
    *LEARNED_FROM_REPLAY,
    *TARGET_NETWORKS,
    *PACES,
    *EXPLORATION,
    *OPPONENTS,
    *OPTIMISERS,
    *CPU_KERNELS,
    *CHOICES,
    *LEAGUES,
    *LEAGUE_GAMES,
]
