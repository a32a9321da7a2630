"""Short forms for the edits of functions that many mutants change."""

from __future__ import annotations

from recollect.acting.actor import Actor
from recollect.experience import chunks as splits
from recollect.experience import returns
from recollect.policy import trunks
from tests.mutants.mutant import Edit

UNROLL = "y, state = core.unroll(x, state, first)"
ACT = "acted, state = self._act(obs, state, first)"

# What notices the bugs that many proofs share.
DEVIATES = "log-probs deviate by"
FINAL_VALUES = "assert torch.equal(rollout.final_value[cut], after[cut])"
DOUBLE_SUM = "torch.testing.assert_close(ours, truth, atol=1e-9, rtol=1e-9)"
GRADIENT = "torch.testing.assert_close(grad, truth"


def unroll(first: str) -> Edit:
    """The learner's ``first`` replaced."""
    return (trunks, "unroll", UNROLL, UNROLL.replace("first", first))


def collect(old: str, new: str) -> Edit:
    return (Actor, "_play", old, new)


def chunks(old: str, new: str) -> Edit:
    return (splits, "make_chunks", old, new)


def gae(old: str, new: str) -> Edit:
    return (returns, "gae", old, new)


def next_value(old: str, new: str) -> Edit:
    """Of ``gae`` and ``vtrace`` alike."""
    return (returns, "_next_value", old, new)
