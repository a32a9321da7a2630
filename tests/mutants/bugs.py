"""All mutants: known bugs of recurrent learners, each the smallest change that brings it back."""

from __future__ import annotations

from recollect.algos.ppo import PPO
from recollect.policy.normalise import PopArt
from tests.mutants import proofs
from tests.mutants.core_bugs import OPTIONS, PADS, WALLS
from tests.mutants.data_bugs import LAYOUT, LOSSES
from tests.mutants.impala_bugs import VTRACE
from tests.mutants.memory_bugs import BOOTSTRAPS, BURN_IN, RESETS, STARTS
from tests.mutants.mutant import Mutant

NORMALISER = (
    "entropy_coef = self._schedule(progress)",
    "entropy_coef = self._schedule(progress)\n"
    "    policy.obs_norm.update(rollout.obs[: rollout.steps], rollout.valid)",
)
STOPPED = [
    Mutant(
        "observation statistics move between acting and learning",
        proofs.run,
        ((PPO, "_update", *NORMALISER),),
    ),
    Mutant(
        "recorded values are not moved with the first statistics",
        proofs.run,
        ((PPO, "_described", "value = value * scale + shift", "pass"),),
    ),
    Mutant("an unpreserving PopArt", proofs.run, ((PopArt, "update", "head.weight.mul_(ratio)", "pass"),)),
    Mutant("chunks start from zeros", proofs.run, STARTS[0].edits),
    Mutant("chunk states are off by one chunk", proofs.run, STARTS[1].edits),
    Mutant("every chunk starts from the state of step 0", proofs.run, STARTS[2].edits),
    Mutant("the state of another row", proofs.run, STARTS[4].edits),
    Mutant("the output state is stored", proofs.run, STARTS[3].edits),
    Mutant("the learner resets one step late", proofs.run, RESETS[0].edits),
    Mutant("no reset inside chunks", proofs.run, RESETS[2].edits),
    Mutant("chunks by reshape without transpose", proofs.run, LAYOUT[0].edits),
    Mutant("rows permuted between observations and actions", proofs.run, LAYOUT[1].edits),
    Mutant("observations recorded too late", proofs.run, LAYOUT[2].edits),
    Mutant("actions are resampled when evaluated", proofs.run, LOSSES[2].edits),
    Mutant("burn-in from the chunk's state", proofs.burnt_run, BURN_IN[1].edits),
    Mutant("burn-in for the chunks that open the rollout", proofs.burnt_run, BURN_IN[2].edits),
]
"""Those that the run itself must notice: its gauge raises AlignmentError."""

MUTANTS = [*RESETS, *STARTS, *BOOTSTRAPS, *LAYOUT, *BURN_IN, *LOSSES, *WALLS, *PADS, *OPTIONS, *VTRACE]
