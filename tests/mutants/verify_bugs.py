"""Bugs that ``recollect verify`` must find, each with the check that must fail for it."""

from __future__ import annotations

from dataclasses import dataclass

from recollect.acting.session import Session
from recollect.algos import r2d2
from recollect.experience import replay_stream
from recollect.experience.replay import Replay
from recollect.learning import replay_algorithm
from recollect.learning.learner import Learner
from recollect.learning.optimiser import Adam
from recollect.learning.replay_learner import ReplayLearner
from recollect.policy import trunks
from tests.mutants.bugs import MUTANTS
from tests.mutants.edits import ACT, UNROLL, collect, next_value
from tests.mutants.mutant import Edit


@dataclass(frozen=True)
class Planted:
    """One bug, the check that must find it, and words of what that check must say."""

    check: str
    name: str
    edits: tuple[Edit, ...]
    by: str


BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


def known(check: str, name: str, by: str) -> Planted:
    """A mutant of the library that has a proof of its own, too."""
    return Planted(check, name, BY_NAME[name].edits, by)


FOUND_BY = [
    Planted(
        "size",
        "rows swapped in the buffer",
        (collect("views.reward[t].copy_(step.reward)", "views.reward[t].copy_(step.reward.roll(1))"),),
        by="Likely cause: rows are swapped",
    ),
    Planted(
        "size",
        "one row is never written",
        (collect("tree.copy_(views.obs[t], obs)\n", "tree.copy_(views.obs[t][:-1], obs[:-1])\n"),),
        by="some entries are never written",
    ),
    known("size", "rows permuted between observations and actions", by="Likely cause: rows are swapped"),
    known(
        "size",
        "actor and learner both reset one step late",
        by="first: 27 of 72 entries differ from those of the env",
    ),
    Planted(
        "rows apart",
        "GAE over a flat buffer",
        (
            next_value(
                "following = torch.cat([value[1:], bootstrap.unsqueeze(0)])",
                "following = torch.cat([value.flatten()[1:], bootstrap[-1:]]).view_as(value)",
            ),
        ),
        by="advantages differ from GAE step by step",
    ),
    known("rows apart", "truncation as termination", by="advantages differ from GAE step by step"),
    known("rows apart", "truncated wins where both are true", by="advantages differ from GAE step by step"),
    known("chunks", "the remainder of the rollout is dropped", by="6 of 69 steps are in no chunk"),
    known("chunks", "chunks by reshape without transpose", by="reshaped to chunks without a transpose"),
    known("chunks", "padding is valid", by="84 valid steps in chunks, 69 in the rollout"),
    Planted(
        "acting",
        "the state is zeroed in mid-episode",
        (collect(ACT, f"{ACT}\n        state = tree.map(torch.zeros_like, state) if t == 10 else state"),),
        by="changed in mid-episode",
    ),
    Planted(
        "acting",
        "the state is zeroed at the rollout's start",
        (
            collect(
                "obs, first, state = self.obs, self.first, self.state",
                "obs, first, state = self.obs, self.first, policy.initial_state(self.rows)",
            ),
        ),
        by="changed in mid-episode",
    ),
    known("acting", "one end resets every row", by="changed in mid-episode"),
    known("stored states", "the output state is stored in place of the input state", by="stored too late"),
    known("stored states", "stored states are the live ones, not copies", by="changed after it was stored"),
    known("stored states", "the live state keeps its graph", by="carry a graph of autograd"),
    known("learner", "no reset inside chunks", by="a reset inside the chunk is missed"),
    known("learner", "the learner resets one step late", by="a reset inside the chunk is missed"),
    known("learner", "chunks start from zeros", by="does not start from the state"),
    known("learner", "the state of another row", by="does not start from the state"),
    known(
        "values at ends",
        "V of the reset observation at a truncation",
        by="the value at the time limit of step",
    ),
    known("values at ends", "V(final) with the reset state", by="the value at the time limit of step"),
    known("values at ends", "the rollout ends with a value of zero", by="the bootstrap of row"),
    Planted(
        "session",
        "a session forgets its pending resets",
        (
            (
                Session,
                "set_memory",
                'self._first = given["first"].to(self._device, copy=True)',
                "self._first = ~self._first",
            ),
        ),
        by="a new session has other actions or states",
    ),
    Planted(
        "session",
        "a session hands out its live memory",
        (
            (Session, "get_memory", "tree.clone(self._state)", "self._state"),
            (
                Session,
                "act",
                "self._state = tree.put(self._state, which, state)",
                "tree.copy_(self._state, tree.put(self._state, which, state))",
            ),
        ),
        by="return copies",
    ),
    Planted(
        "updates",
        "the optimiser never steps",
        ((Adam, "clipped_step", "self.step()", "pass"),),
        by="no weight has learned anything",
    ),
    known("updates", "values move with their statistics", by="the record is wrong"),
    Planted(
        "same seed",
        "minibatches are drawn without a seed",
        ((Learner, "__init__", ".manual_seed(seed)", ".manual_seed(torch.seed() % 2**40)"),),
        by="two trainings from seed 0 differ",
    ),
    known("through time", "gradients do not flow through time", by="does not depend on the step before it"),
    known("through time", "padding counts in the loss", by="depends on step 0 of another chunk"),
    Planted(
        "parameters",
        "the core is detached",
        ((trunks, "unroll", UNROLL, f"{UNROLL}\n        y = y.detach()"),),
        by="heads learn alone",
    ),
    Planted(
        "parameters",
        "the encoder is detached",
        ((trunks, "unroll", "unroll(x, state", "unroll(x.detach(), state"),),
        by="the features are detached before the core",
    ),
    Planted(
        "through time",
        "the gradient of a row reaches the others",
        (
            (
                trunks,
                "unroll",
                UNROLL,
                f"{UNROLL}\n        y = y + (y.mean(1, keepdim=True) - y.mean(1, keepdim=True).detach())",
            ),
        ),
        by="depends on step 0 of another chunk",
    ),
]

FOUND_IN_REPLAY = [
    Planted(
        "sequences",
        "a sequence runs on into the next episode",
        (
            (
                Replay,
                "read",
                "absent = episode != own",
                "absent = episode != episode",
            ),
        ),
        by="ends its episode, and the sequence continues",
    ),
    Planted(
        "sequences",
        "final observations are not stored",
        ((replay_stream, "place", "valid & truncated & ~terminated", "valid & truncated & False"),),
        by="no final observation follows a time limit",
    ),
    Planted(
        "sequences",
        "a final observation is that of the next episode",
        (
            (
                Replay,
                "_add_finals",
                "leaf.index_copy_(0, slots, new), self.obs, finals.obs)",
                "leaf.index_copy_(0, slots, rollout.obs[time + 1, row]), self.obs, finals.obs)",
            ),
        ),
        by="the final obs of",
    ),
    Planted(
        "sequences",
        "actions are written one step late",
        (
            (
                Replay,
                "add",
                "tree.map(put, self.action, rollout.action)",
                "tree.map(put, self.action, rollout.action.roll(1, 0))",
            ),
        ),
        by="action of",
    ),
    Planted(
        "sequences",
        "sequences are drawn before they are complete",
        ((Replay, "sampleable", "& complete", ""),),
        by="is followed by nothing, but its episode continues",
    ),
    Planted(
        "rows apart",
        "targets continue in the next sequence",
        (
            (
                r2d2,
                "loss",
                "reward=batch.reward,",
                "reward=batch.reward + batch.reward.roll(1, 1),",
            ),
        ),
        by="changed the errors of",
    ),
    Planted(
        "rows apart",
        "the rewards are not used",
        ((r2d2, "loss", "reward=batch.reward,", "reward=batch.reward * 0,"),),
        by="does not change its errors",
    ),
    Planted(
        "padding",
        "positions after the end weigh in the loss",
        (
            (
                replay_algorithm,
                "windows",
                "learned = is_step[:length] * weight",
                "learned = torch.ones_like(sample.reward[:length]) * weight",
            ),
        ),
        by="positions without a step weigh in the loss",
    ),
    Planted(
        "learner",
        "the burn-in does not reset at an episode's start",
        (
            (
                replay_algorithm,
                "windows",
                "sample.first[:burn_in])[1]",
                "torch.zeros_like(sample.first[:burn_in]))[1]",
            ),
        ),
        by="recorded and recomputed differ",
    ),
    Planted(
        "learner",
        "the burn-in starts from zeros",
        (
            (
                replay_algorithm,
                "windows",
                "state = sample.state",
                "state = network.initial_state(len(sample.entries))",
            ),
        ),
        by="recorded and recomputed differ",
    ),
    Planted(
        "learner",
        "the burn-in ends a step early",
        (
            (
                replay_algorithm,
                "windows",
                "tree.map(lambda leaf: leaf[:burn_in], sample.obs)",
                "tree.map(lambda leaf: torch.cat([leaf[:1], leaf[: burn_in - 1]]), sample.obs)",
            ),
        ),
        by="recorded and recomputed differ",
    ),
    Planted(
        "target network",
        "the target network never moves",
        ((ReplayLearner, "_follow", "if share:", "if False:"),),
        by="of the target network is",
    ),
    Planted(
        "target network",
        "the target network moves with every step",
        ((ReplayLearner, "_follow", "config.target_rate or float(", "config.target_rate or 1.0 + float("),),
        by="of the target network is",
    ),
    Planted(
        "parameters",
        "the target network learns",
        (
            (
                ReplayLearner,
                "__init__",
                "copy.deepcopy(policy).requires_grad_(False)",
                "copy.deepcopy(policy)",
            ),
        ),
        by="the target network's weights require a gradient",
    ),
    Planted(
        "parameters",
        "no gradient through the head",
        ((trunks, "unroll", UNROLL, f"{UNROLL}\n        y = y.detach()"),),
        by="heads learn alone",
    ),
    Planted(
        "through time",
        "the burn-in has a gradient",
        ((replay_algorithm, "windows", "with torch.no_grad():", "with torch.enable_grad():"),),
        by="the state after the burn-in carries a graph",
    ),
    Planted(
        "same seed",
        "sequences are drawn without a seed",
        ((ReplayLearner, "__init__", ".manual_seed(seed)", ".manual_seed(torch.seed() % 2**40)"),),
        by="two trainings from seed 0 differ",
    ),
]
"""The same for ``algo="r2d2"``."""
