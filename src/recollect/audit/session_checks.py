"""Sessions: any calls, for any envs, act as each env alone would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recollect.acting.session import Session
from recollect.audit.recorded_rollouts import EnvLog, RecordedRollout
from recollect.audit.results import Passed, Problem
from recollect.audit.state_checks import equal
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.base.types import State, Tree
from recollect.errors import StateError
from recollect.policy.noisy import means
from recollect.policy.policy import Policy

TURNS, ENVS = 24, 5
"""Calls of a session, and its envs."""


def session(rollouts: Sequence[RecordedRollout]) -> str:
    """A session acts the same after ``set_memory(get_memory())``, here and in a new session."""
    one = rollouts[0]
    rows, half = one.rollout.rows, max(1, min(8, one.rollout.steps // 2))
    later = range(half, 2 * half)
    original = Session(one.policy, rows, deterministic=False, seed=1)
    _run_session(original, one.log, range(half))
    original.reset([0])  # so that a reset is pending
    memory = original.get_memory()
    kept = tree.clone(memory["state"])
    expected_actions, expected_states = _run_session(original, one.log, later)
    if not equal(memory["state"], kept):
        raise Problem(
            "get_memory returned the live memory: it changed while the session continued",
            "Fix: return copies",
        )
    other = Session(one.policy, rows, deterministic=False, seed=2)
    for resumed, name in ((original, "the same session"), (other, "a new session")):
        resumed.set_memory(memory)
        actions, states = _run_session(resumed, one.log, later)
        if actions != expected_actions or not equal(states, expected_states):
            raise Problem(
                f"after set_memory(get_memory()) {name} has other actions or states",
                "Likely cause: state, pending resets or the random stream are not all kept, or acting "
                "changed the returned memory",
            )
    return f"get_memory, set_memory: the same next {half} actions, also in a new session"


def _run_session(session: Session, log: EnvLog, steps: range) -> tuple[str, State]:
    """The session's actions on the logged observations of ``steps``, as text, and its state after each."""
    actions, states = [], []
    for t in steps:
        # The observations of dead agents may be NaN.
        obs = tree.map(lambda leaf: np.nan_to_num(leaf.cpu().numpy()), tree.index(log.obs, t))
        actions.append(_lists(session.act(obs)))
        states.append(session.get_memory()["state"])
        session.reset(log.first[t + 1].nonzero().flatten().tolist())
    return repr(actions), tree.stack(states)


def _lists(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _lists(value) for key, value in action.items()}
    if isinstance(action, tuple | list):
        return [_lists(value) for value in action]
    return np.asarray(action).tolist()


@dataclass
class _Alone:
    """One env by itself: a policy with one row, reset by hand."""

    policy: Policy
    state: State
    first: bool = True

    @torch.no_grad()
    def step(self, obs: Tree) -> Tree:
        """The greedy action for obs [1, ...]."""
        if self.first:
            self.state = self.policy.initial_state(1)
        self.first = False
        never = torch.zeros(1, dtype=torch.bool, device=self.policy.device)
        with means():
            *outputs, self.state = self.policy.step(obs, self.state, never)
            return self.policy.to_env(self.policy.head.choose(outputs, None, True))


def conversations(rollouts: Sequence[RecordedRollout]) -> Passed:
    """Calls for some envs, in any order, with resets and copies of memory, equal each env alone."""
    one = rollouts[-1]
    policy, rng, tolerance = one.policy.actor_only(), np.random.default_rng(4), one.setup.tolerance
    session = Session(one.policy, ENVS)
    alone = [_Alone(policy, policy.initial_state(1)) for _ in range(ENVS)]
    largest = 0.0
    for turn in range(TURNS):
        if turn % 3 == 1:
            for which in (_some(rng), _some(rng)):
                session.reset(which)
                _begin(alone, which)
        elif turn % 3 == 2:
            which = _some(rng)
            session.reset_memory(np.isin(np.arange(ENVS), which))
            for env in which:
                alone[env].state = policy.initial_state(1)
            _begin(alone, which)
        if turn % 4 == 3:
            session = _copied(session, one)
        largest = max(largest, _compare(session, alone, turn, tolerance))
        which = _some(rng)
        obs = _observations(one.log, rng, len(which))
        if turn % 2:  # a mask names the envs in their own order
            which = np.sort(which)
        given = np.isin(np.arange(ENVS), which) if turn % 2 else which
        session.act(tree.map(lambda leaf: leaf.cpu().numpy(), obs), rows=given)
        for place, env in enumerate(which.tolist()):
            alone[env].step(tree.map(lambda leaf, p=place: leaf[p : p + 1], obs))
        largest = max(largest, _compare(session, alone, turn, tolerance))
    _check_refusals(session)
    return Passed(
        f"{TURNS} calls for any of {ENVS} envs: as each alone, to {tiny(largest)}", largest, tolerance
    )


def _some(rng: np.random.Generator) -> np.ndarray:
    """Some envs, in any order."""
    return rng.permutation(ENVS)[: rng.integers(1, ENVS + 1)]


def _begin(alone: Sequence[_Alone], which: np.ndarray) -> None:
    for env in which:
        alone[env].first = True


def _observations(log: EnvLog, rng: np.random.Generator, count: int) -> Tree:
    """Observations [N, ...] of valid steps."""
    t, row = log.valid.nonzero(as_tuple=True)
    picked = torch.as_tensor(rng.integers(len(t), size=count), device=t.device)
    return tree.map(lambda leaf: leaf[t[picked], row[picked]], log.obs)


def _copied(session: Session, one: RecordedRollout) -> Session:
    """Another session that continues; a step of the old one, and of its memory, does not reach it."""
    memory = session.get_memory()
    other = Session(one.policy, ENVS, seed=9)
    other.set_memory(memory)
    session.reset()
    for leaf in (*tree.leaves(memory["state"]), memory["first"]):
        leaf.zero_()
    return other


def _compare(session: Session, alone: Sequence[_Alone], turn: int, tolerance: float) -> float:
    memory = session.get_memory()
    pending = [env.first for env in alone]
    if memory["first"].tolist() != pending:
        raise Problem(
            f"at call {turn} resets are pending for the envs {memory['first'].nonzero().flatten().tolist()}, "
            f"and were asked for {[env for env, first in enumerate(pending) if first]}",
            "Likely cause: a call for some envs drops or keeps the resets of others, or a mask is read as "
            "its opposite",
            "Fix: set the flags of the named envs, and clear them where act has used them",
        )
    states = tree.map(lambda *leaves: torch.cat(leaves), *[env.state for env in alone])
    gaps = [
        (ours.double() - right.double()).abs().nan_to_num(nan=torch.inf).amax()
        / right.double().abs().max().clamp(min=1)
        for ours, right in zip(tree.leaves(memory["state"]), tree.leaves(states))
        if right.numel()
    ]
    gap = float(torch.stack(gaps).max()) if gaps else 0.0
    if not gap <= tolerance:
        raise Problem(
            f"after call {turn} the memory of a session differs by {gap:.1e} from that of its envs alone",
            "Likely cause: states or resets of other envs are taken or put back when some act, in another "
            "order, or the memory of all is reset",
            "Fix: read and write the rows of the envs that act, in their order",
            measured=gap,
            tolerance=tolerance,
        )
    return gap


def _check_refusals(session: Session) -> None:
    """A memory that does not fit is refused, and changes nothing."""
    session.reset([0])
    before = session.get_memory()
    broken = session.get_memory()
    broken["first"] = ~torch.cat([before["first"], before["first"]])
    try:
        session.set_memory(broken)
        is_refused = False
    except StateError:
        is_refused = True
    after = session.get_memory()
    same = tree.spec(before, lead=0) == tree.spec(after, lead=0)
    if not (is_refused and same and all(equal(before[name], after[name]) for name in before)):
        raise Problem(
            "a memory of twice as many envs is accepted, or half of it",
            "Likely cause: only the states are compared, or parts are set before all are checked",
            "Fix: compare shapes of all parts first",
        )
