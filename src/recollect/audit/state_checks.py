"""Storage and retrieval of state: acted with, stored, learned from and resumed, always the same one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.acting.session import Session
from recollect.audit.env_recorder import Log
from recollect.audit.recorded_rollouts import Scene, positions, where, worst
from recollect.audit.results import Doubt, Problem, Skip, small
from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.experience.chunks import Chunks
from recollect.learning.sequences import burn_in

PART = "state"


def value_unit(scene: Scene) -> float:
    """The unit of a deviation of values: their size, to which float32 rounding is relative."""
    value = scene.rollout.record["value"][scene.rollout.valid]
    largest = float(value.abs().max()) if len(value) else 0.0
    return max(1.0, largest, float(scene.trial.policy.value_scale))


class Acting:
    """The record of acting equals the policy's outputs, step by step, with explicit resets."""

    name = "acting"

    def __init__(self) -> None:
        self.log_prob = self.value = 0.0
        self.starts = self.steps = 0

    def look(self, scene: Scene) -> None:
        """Compare recorded log-probs and values with the replay, first steps and others apart."""
        rollout, log, replay = scene.rollout, scene.log, scene.replay
        tolerance, unit = scene.trial.subject.tolerance, value_unit(scene)
        gaps = {
            "log-probs": (rollout.record["log_prob"] - replay.log_prob).abs(),
            "values": (rollout.record["value"] - replay.value).abs() / unit,
        }
        opening = log.first[:-1] & log.valid
        # The first step that is off tells what went wrong; later ones follow from it.
        off = torch.stack([~(gap <= tolerance) & log.valid for gap in gaps.values()]).any(0)
        if off.any():
            t, row = off.nonzero()[0].tolist()
            largest = {name: worst(gap, log.valid)[0] for name, gap in gaps.items()}
            said = ", ".join(f"{name} by {gap:.1e}" for name, gap in largest.items())
            raise Problem(
                f"recorded and replayed differ: {said} (tolerance {tolerance:.0e}), first at step {t}, "
                f"row {row}",
                self._cause(bool(opening[t, row]), t, row, log),
                "Fix: pass on the state that act returned, and let `first` alone reset it",
            )
        self.log_prob = max(self.log_prob, worst(gaps["log-probs"], log.valid)[0])
        self.value = max(self.value, worst(gaps["values"], log.valid)[0])
        self.starts += int(opening.sum())
        self.steps += int(log.valid.sum())
        self.rows = scene.trial.rows

    @staticmethod
    def _cause(is_opening: bool, t: int, row: int, log: Log) -> str:
        if is_opening:
            return (
                f"Likely cause: the memory is not reset at an episode's first step (step {t} of row {row} "
                "opens one), or not to the initial state"
            )
        if t > 0 and bool(log.first[t - 1, row]):
            return "Likely cause: the memory is reset one step late, or reset twice"
        return (
            "Likely cause: the live state was changed in mid-episode (zeroed, reset at a rollout or chunk "
            "boundary, of another row), or the policy is not deterministic (dropout, batch statistics)"
        )

    def result(self) -> str:
        """The deviations."""
        resets = self.starts - self.rows
        found = (
            f"{self.steps} steps acted with their own memory, {resets} of them after a reset; log-probs to "
            f"{small(self.log_prob)}, values to {small(self.value)}"
        )
        if resets <= 0:
            raise Doubt(
                found,
                "No episode ended, so that a reset was never tried. If episodes never end, give the env "
                "a time limit (gymnasium.wrappers.TimeLimit): without ends there are no returns to measure",
            )
        return found


class Stored:
    """The stored states are those that the steps began with, and copies."""

    name = "stored states"

    def __init__(self) -> None:
        self.gap, self.count = 0.0, 0

    def look(self, scene: Scene) -> None:
        """Compare the states of a rollout with those of the replay; write into the live one."""
        if not scene.trial.policy.has_memory:
            raise Skip("the core has no memory")
        rollout, log, replay = scene.rollout, scene.log, scene.replay
        expected_steps = scene.trial.algo.state_steps
        if rollout.state_steps != expected_steps:
            raise Problem(
                f"states are stored at steps {rollout.state_steps}, the chunks begin at {expected_steps}",
                "Likely cause: actor and learner disagree about the chunk length or the burn-in",
            )
        tolerance = scene.trial.subject.tolerance
        for step in rollout.state_steps:
            gap, row = _state_gap(rollout.state_at(step), replay.states[step], log.valid[step])
            if not gap <= tolerance:
                raise Problem(
                    f"the state stored for step {step}, row {row}, is {gap:.1e} off the live one "
                    f"(tolerance {tolerance:.0e})",
                    self._cause(rollout.state_at(step), replay.states, step, log.valid[step], tolerance),
                    "Fix: copy the state that goes into act at that step, before `first` applies",
                )
            self.gap = max(self.gap, gap)
            self.count += int(log.valid[step].sum())
        gap, row = _state_gap(scene.trial.actor.state, replay.states[-1], log.inside)
        if not gap <= tolerance:
            raise Problem(
                f"after the rollout the live state of row {row} is {gap:.1e} off what the rollout left",
                "Likely cause: the state does not carry over to the next rollout",
                "Fix: keep the state that the last act returned",
            )
        self._check_copies(rollout.states, scene.trial.actor.state)

    @staticmethod
    def _cause(stored: State, states: list[State], step: int, rows: Tensor, tolerance: float) -> str:
        """Is it the state of another step, or none?"""
        for shift, what in ((1, "after"), (-1, "before")):
            if (
                0 <= step + shift < len(states)
                and _state_gap(stored, states[step + shift], rows)[0] <= tolerance
            ):
                return f"Likely cause: it is the state of the step {what}: stored too {_late(shift)}"
        if all(not leaf.any() for leaf in tree.leaves(stored)):
            return "Likely cause: zeros; it was never stored, or was reset although the episode goes on"
        return "Likely cause: the state of another row or step, or one that was changed after it was stored"

    @staticmethod
    def _check_copies(stored: State, live: State) -> None:
        before, now = tree.clone(stored), tree.clone(live)
        if any(leaf.requires_grad for leaf in (*tree.leaves(stored), *tree.leaves(live))):
            raise Problem(
                "stored or live states carry a graph of autograd",
                "Likely cause: acting outside of torch.no_grad, so that memory use grows with every step",
                "Fix: act under torch.no_grad, or detach the state",
            )
        try:
            tree.map(lambda leaf: leaf.add_(1 if leaf.is_floating_point() else 0), live)
            is_shared = any(not _equal(a, b) for a, b in zip(tree.leaves(stored), tree.leaves(before)))
        finally:
            tree.copy_(live, now)
        if is_shared:
            raise Problem(
                "writing into the live state changed a stored one: they share memory",
                "Likely cause: a view or the tensor itself is stored in place of a copy",
                "Fix: copy into the rollout's own buffer",
            )

    def result(self) -> str:
        """The deviation."""
        return f"{self.count} stored states equal the live ones to {small(self.gap)}, and are copies"


def _late(shift: int) -> str:
    return "late, after the step has changed it" if shift == 1 else "early"


def _state_gap(a: State, b: State, rows: Tensor) -> tuple[float, int]:
    """The largest difference over ``rows`` [B], in units of the leaf's size if above 1, and its row."""
    largest, at = 0.0, 0
    for x, y in zip(tree.leaves(a), tree.leaves(b)):
        x, y = (leaf.detach().float().reshape(len(leaf), -1) for leaf in (x, y))  # [B, ...] -> [B, N]
        # NaN equals NaN: what a dead agent's row holds is not defined, and is reset before it is used.
        gap = torch.where(_same(x, y), 0.0, (x - y).abs())
        unit = y[rows].nan_to_num().abs().max().clamp(min=1) if rows.any() else 1.0
        gap = (gap.nan_to_num(nan=torch.inf).amax(1) / unit).masked_fill(~rows, 0)
        if float(gap.max()) > largest:
            largest, at = float(gap.max()), int(gap.argmax())
    return largest, at


def _same(a: Tensor, b: Tensor) -> Tensor:
    return (a == b) | ((a != a) & (b != b))


def _equal(a: Tensor, b: Tensor) -> bool:
    return bool(_same(a, b).all())


class Learner:
    """Master test M: what the learner's unroll of the chunks gives is what was recorded."""

    name = "learner"

    def __init__(self) -> None:
        self.log_prob = self.value = self.forgotten = 0.0
        self.chunks = self.carried = 0
        self.tolerance = 0.0

    @torch.no_grad()
    def look(self, scene: Scene) -> None:
        """Recompute a rollout from its chunks."""
        learner, rollout = scene.trial.learner, scene.rollout
        self.tolerance = scene.trial.subject.tolerance
        chunks = learner.sequences(rollout, {"position": positions(rollout)}).whole()
        chunks = burn_in(scene.trial.policy, chunks)
        gaps = self._gaps(scene, chunks, chunks.state)
        off = torch.stack([~(gap <= self.tolerance) & chunks.valid for gap in gaps]).any(0)
        log_prob, value = (worst(gap, chunks.valid)[0] for gap in gaps)
        if off.any():
            # Of all chunks the earliest step within its chunk tells what went wrong.
            step, chunk = off.nonzero()[0].tolist()
            t, row = where(int(chunks.data["position"][step, chunk]), rollout.rows)
            raise Problem(
                f"recomputed log-probs deviate by {log_prob:.1e}, values by {value:.1e} (tolerance "
                f"{self.tolerance:.0e}); step {step} of a chunk is the first, step {t} of row {row}",
                self._cause(scene, chunks, step, chunk),
                "Fix: unroll each chunk from the stored input state of its first step, with `first` at "
                "every step",
            )
        self.log_prob, self.value = max(self.log_prob, log_prob), max(self.value, value)
        self.chunks += chunks.count
        self.carried += int((~chunks.first[0]).sum())
        if scene.trial.policy.has_memory:
            other = tree.map(torch.zeros_like, chunks.state)
            self.forgotten = max(
                self.forgotten, *(worst(g, chunks.valid)[0] for g in self._gaps(scene, chunks, other))
            )

    @staticmethod
    def _gaps(scene: Scene, chunks: Chunks, state: State) -> tuple[Tensor, Tensor]:
        """[L, N] each: deviations of log-probs, and of values in units of their size."""
        policy = scene.trial.policy
        log_prob, _, value = policy.evaluate_actions(chunks.obs, chunks.action, state, chunks.first)
        unit = value_unit(scene)
        return (log_prob - chunks.data["log_prob"]).abs(), (value - chunks.data["value"]).abs() / unit

    def _cause(self, scene: Scene, chunks: Chunks, step: int, chunk: int) -> str:
        one, other = (self._gaps(scene, chunks, chunks.state)[0] for _ in range(2))
        if not _equal(one, other):
            return "Likely cause: two calls of the network differ: dropout, or noise, is on while learning"
        if chunks.first[: step + 1, chunk].any():
            return (
                "Likely cause: a reset inside the chunk is missed, or applied at another step than "
                "while acting"
            )
        if step == 0:
            return "Likely cause: the chunk does not start from the state that its first action was chosen in"
        return (
            "Likely cause: the chunk's first steps agree and later ones do not: the core's unroll is not its "
            "step repeated"
        )

    def result(self) -> str:
        """The deviations, and what a forgotten state would have been."""
        found = (
            f"{self.chunks} chunks recomputed: log-probs to {small(self.log_prob)}, values to "
            f"{small(self.value)} (tolerance {self.tolerance:.0e})"
        )
        if self.forgotten == 0:
            return found
        if self.carried == 0:
            return f"{found}; every chunk starts with an episode, so that none needs a stored state"
        found += f"; a forgotten state would show as {small(self.forgotten)}"
        if self.forgotten < 10 * self.tolerance:
            raise Doubt(
                found,
                "The outputs hardly depend on the memory, so that a wrong one might not show. Lower "
                "`tolerance`, or look for observations that are constant or huge",
            )
        return found


class Ends:
    """V(final observation, state after the step) where an episode was cut; V at the rollout's end."""

    name = "values at ends"

    def __init__(self) -> None:
        self.gap, self.cut, self.open = 0.0, 0, 0

    def look(self, scene: Scene) -> None:
        """Compare with the replay."""
        rollout, log, replay = scene.rollout, scene.log, scene.replay
        unit, tolerance = value_unit(scene), scene.trial.subject.tolerance
        gap, t, row = worst((rollout.final_value - replay.final_value).abs() / unit, log.cut)
        if not gap <= tolerance:
            raise Problem(
                f"the value at the time limit of step {t}, row {row}, is {gap:.1e} off (tolerance "
                f"{tolerance:.0e})",
                "Likely cause: it is the value of the observation after the reset, or with a memory that "
                "was reset already",
                "Fix: value the final observation with the state after the step, before the reset",
            )
        inside = log.inside
        gap_last, _, row = worst((rollout.bootstrap - replay.bootstrap).abs()[None] / unit, inside[None])
        if not gap_last <= tolerance:
            raise Problem(
                f"the bootstrap of row {row} at the rollout's end is {gap_last:.1e} off (tolerance "
                f"{tolerance:.0e})",
                "Likely cause: zero, or the value of another step or state",
                "Fix: value obs[T] with the state after step T - 1",
            )
        self.gap = max(self.gap, gap, gap_last)
        self.cut += int(log.cut.sum())
        self.open += int(inside.sum())

    def result(self) -> str:
        """The counts."""
        cut = f"{self.cut} time limits" if self.cut else "no time limit came"
        return f"{cut}, {self.open} rows open at a rollout's end: values to {small(self.gap)}"


class Resumed:
    """A session that gets its memory back acts as if it had never lost it."""

    name = "session"

    def __init__(self) -> None:
        self.steps = 0

    def look(self, scene: Scene) -> None:
        """Talk, keep the memory, talk on; then again from the kept memory, here and in a new session."""
        if self.steps:
            return
        policy, log, rows = scene.trial.policy, scene.log, scene.trial.rows
        half = max(1, min(8, len(log.reward) // 2))
        session = Session(policy, rows, deterministic=False, seed=1)
        _talk(session, log, range(half))
        session.reset([0])  # so that a reset is pending
        memory = session.get_memory()
        kept = tree.clone(memory["state"])
        at_once = _talk(session, log, range(half, 2 * half))
        if not _equal_trees(memory["state"], kept):
            raise Problem(
                "get_memory gave out the live memory: it changed while the session went on",
                "Fix: return copies",
            )
        other = Session(policy, rows, deterministic=False, seed=2)
        for where_to, name in ((session, "the same session"), (other, "a new session")):
            where_to.set_memory(memory)
            actions, state = _talk(where_to, log, range(half, 2 * half))
            if actions != at_once[0] or not _equal_trees(state, at_once[1]):
                raise Problem(
                    f"after set_memory(get_memory()) {name} acts or remembers differently",
                    "Likely cause: state, pending resets or the random stream are not all kept, or acting "
                    "changed the memory that was handed out",
                )
        self.steps = half

    def result(self) -> str:
        """The length."""
        return f"get_memory, set_memory: the same next {self.steps} actions, also in a new session"


def _talk(session: Session, log: Log, steps: range) -> tuple[str, State]:
    """The session's actions on what the env showed at these steps, as text, and its memory after each."""
    actions, states = [], []
    for t in steps:
        actions.append(_lists(session.act(_numpy(tree.index(log.obs, t)))))
        states.append(session.get_memory()["state"])
        session.reset(log.first[t + 1].nonzero().flatten().tolist())
    return repr(actions), tree.stack(states)


def _equal_trees(a: State, b: State) -> bool:
    return all(_equal(x, y) for x, y in zip(tree.leaves(a), tree.leaves(b)))


def _numpy(obs: Tree) -> Any:
    """For a user's eyes; what the dead see, which may be NaN, becomes zeros."""
    return tree.map(lambda leaf: np.nan_to_num(leaf.cpu().numpy()), obs)


def _lists(action: Any) -> Any:
    if isinstance(action, dict):
        return {key: _lists(value) for key, value in action.items()}
    if isinstance(action, tuple | list):
        return [_lists(value) for value in action]
    return np.asarray(action).tolist()
