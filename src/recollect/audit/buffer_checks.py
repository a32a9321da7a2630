"""Buffer size: a rollout holds every step of every row, rows stay apart, chunks lose nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from recollect.audit.env_recorder import Log
from recollect.audit.recorded_rollouts import Scene, positions, where, worst
from recollect.audit.results import Problem, Skip, small
from recollect.base import tree
from recollect.base.types import Tree
from recollect.experience.chunks import minibatches
from recollect.experience.rollout import Rollout
from recollect.learning.refresh_rollout import Outputs, recorded

PART = "buffer"
POISON = 12345.0


class Size:
    """T x B entries, each of them what the env gave and got."""

    name = "size"

    def __init__(self) -> None:
        self.entries = self.valid = self.rollouts = 0

    def look(self, scene: Scene) -> None:
        """Compare one rollout with the witness's log, number by number."""
        rollout, log, rows = scene.rollout, scene.log, scene.trial.rows
        T = scene.trial.algo.rollout
        if (rollout.steps, rollout.rows) != (T, rows) or len(log.reward) != T:
            raise Problem(
                f"a rollout of {rollout.steps} steps x {rollout.rows} rows after {len(log.reward)} env "
                f"steps of {rows} rows; the config says {T} x {rows} = {T * rows} entries",
                "Likely cause: the buffer counts env steps over all rows, or steps of one row only",
                "Fix: a rollout of vectorised envs holds rollout x num_envs steps",
            )
        for name, ours, theirs, mask in _pairs(scene):
            _compare(name, ours, theirs, mask)
        self.rollouts += 1
        self.entries, self.valid = T * rows, self.valid + int(log.valid.sum())
        self._shape = f"{T} steps x {rows} rows = {T * rows} entries"

    def result(self) -> str:
        """The sizes."""
        missing = self.rollouts * self.entries - self.valid
        fillers = f" but {missing} fillers" if missing else ""
        return (
            f"{self._shape} in each of {self.rollouts} rollouts; all valid{fillers}, all as the env gave them"
        )


def _pairs(scene: Scene) -> list[tuple[str, Tree, Tree, Tensor]]:
    """(name, what is recorded, what the env gave or got, where it is defined) of every part of a rollout."""
    rollout, log = scene.rollout, scene.log
    everywhere = torch.ones_like(log.valid)
    always = torch.ones_like(log.first)
    # What is seen after an end that no reset has followed yet is not defined, nor what the dead see.
    seen = torch.cat([log.valid, (log.first[-1] | log.inside).unsqueeze(0)])
    actions = [scene.trial.policy.to_env(tree.index(rollout.action, t)) for t in range(rollout.steps)]
    return [
        ("obs", rollout.obs, log.obs, seen),
        ("first", rollout.first, log.first, always),
        ("action", tree.stack(actions), log.action, everywhere),
        ("reward", rollout.reward, log.reward, everywhere),
        ("terminated", rollout.terminated, log.terminated, everywhere),
        ("truncated", rollout.truncated, log.truncated, everywhere),
        ("valid", rollout.valid, log.valid, everywhere),
    ]


def _compare(name: str, ours: Tree, theirs: Tree, mask: Tensor) -> None:
    for part, leaf in tree.named_leaves(ours, name):
        other = dict(tree.named_leaves(theirs, name))[part]
        wrong = _differ(leaf, other) & mask
        if not wrong.any():
            continue
        t, row = wrong.nonzero()[0].tolist()
        raise Problem(
            f"{part}: {int(wrong.sum())} of {mask.numel()} entries are not what the env "
            f"{'got' if name == 'action' else 'gave'}, first at step {t}, row {row}",
            _guess(leaf, other, mask),
            "Fix: write row b of step t into [t, b], and copy: the env may reuse its tensors",
        )


def _guess(ours: Tensor, theirs: Tensor, mask: Tensor) -> str:
    """The likely cause of a mismatch: swapped rows, or the values of another step."""
    rows = ours.shape[1]
    for shift in range(1, rows):
        if not (_differ(ours, theirs.roll(shift, 1)) & mask).any():
            return f"Likely cause: rows are swapped; row b holds that of row b - {shift}"
    if rows > 1 and not (_differ(ours, theirs.flip(1)) & mask).any():
        return "Likely cause: rows are swapped; they come in reverse order"
    for shift, what in ((1, "before"), (-1, "after")):
        moved, there = theirs.roll(shift, 0), mask.clone()
        there[0 if shift == 1 else -1] = False
        if not (_differ(ours, moved) & there).any():
            return f"Likely cause: it is recorded one step off; step t holds that of the step {what}"
    return "Likely cause: some entries are never written, or written again later (a tensor that is reused)"


def _differ(a: Tensor, b: Tensor) -> Tensor:
    """[T, B] bool: entries of [T, B, ...] that differ by more than rounding; NaN equals NaN."""
    is_float = a.is_floating_point()
    differ = ~torch.isclose(a, b, rtol=1e-6, atol=1e-6, equal_nan=True) if is_float else a != b
    return differ.flatten(2).any(2) if differ.dim() > 2 else differ


class RowsApart:
    """Advantages are those of the row alone: computed slowly, and with a sentinel in one row."""

    name = "rows apart"

    def __init__(self) -> None:
        self.gap, self.tried = 0.0, 0

    def look(self, scene: Scene) -> None:
        """Compare the learner's GAE with a plain recursion, then disturb row after row."""
        rollout, estimate = scene.rollout, self._estimate(scene)
        # What must not be looked at is poisoned: final values where nothing was cut, bootstraps after an end.
        poisoned = replace(
            recorded(rollout),
            final_value=rollout.final_value.masked_fill(~scene.log.cut, POISON),
            bootstrap=rollout.bootstrap.masked_fill(~scene.log.inside, POISON),
        )
        advantage, _ = estimate(rollout, poisoned)
        expected = self._slowly(scene)
        gap, t, row = worst((advantage - expected).abs() / expected.abs().max().clamp(min=1), rollout.valid)
        self.gap = max(self.gap, gap)
        if not gap <= 1e-4:
            raise Problem(
                f"advantages differ from GAE step by step by {gap:.1e} of their scale, at step {t}, row "
                f"{row}",
                "Likely cause: the trace runs over an end, a time limit is taken for a death, or a row's "
                "values come from another row",
                "Fix: see recollect.experience.returns.gae; cut the trace at terminated | truncated, "
                "bootstrap at truncated",
            )
        for row in sorted({0, rollout.rows // 2, rollout.rows - 1}):
            self._disturb(scene, row)

    def _disturb(self, scene: Scene, row: int) -> None:
        """A sentinel in everything of one row must show there and nowhere else."""
        rollout, estimate, made = scene.rollout, self._estimate(scene), recorded(scene.rollout)
        advantage, _ = estimate(rollout, made)
        sentinel = torch.zeros(rollout.rows, device=advantage.device)
        sentinel[row] = 1000.0
        changed = replace(rollout, reward=rollout.reward + sentinel)
        disturbed = replace(
            made,
            value=made.value + 0.5 * sentinel,
            final_value=made.final_value + 2 * sentinel,
            bootstrap=made.bootstrap + 3 * sentinel,
        )
        moved, _ = estimate(changed, disturbed)
        differs = (moved != advantage).any(0)
        others = [r for r in range(rollout.rows) if differs[r] and r != row]
        if others:
            raise Problem(
                f"a sentinel in row {row} changed the advantages of {len(others)} other rows (row "
                f"{others[0]})",
                "Likely cause: GAE runs over the end of one row into the next, as over a flat buffer",
                "Fix: compute it along time, [T, B], for every row by itself",
            )
        if rollout.valid[:, row].any() and not differs[row]:
            raise Problem(
                f"a sentinel in the rewards and values of row {row} does not show in its advantages",
                "Likely cause: the advantages are those of another row, or are not computed for all rows",
            )
        self.tried += 1

    @staticmethod
    def _estimate(scene: Scene) -> Callable[[Rollout, Outputs], tuple[Tensor, Tensor]]:
        """The algorithm's own advantages and returns."""
        advantages = getattr(scene.trial.learner.algorithm, "advantages", None)
        if advantages is None:
            raise Skip("the algorithm has no function `advantages`")
        return lambda rollout, outputs: advantages(rollout, outputs, scene.trial.algo)

    @staticmethod
    def _slowly(scene: Scene) -> Tensor:
        """GAE in float64 as it is defined, one row and one step at a time; V-trace too: nothing lags."""
        rollout, log, config = scene.rollout, scene.log, scene.trial.algo
        reward = log.reward.double() * config.reward_scale
        if config.reward_clip is not None:
            reward = reward.clamp(-config.reward_clip, config.reward_clip)
        value, final, last = (
            x.double().tolist() for x in (rollout.record["value"], rollout.final_value, rollout.bootstrap)
        )
        reward, terminated, cut = reward.tolist(), log.terminated.tolist(), log.truncated.tolist()
        valid = log.valid.tolist()
        rho, c = (min(1.0, getattr(config, name, 1.0)) for name in ("rho_clip", "c_clip"))
        advantage = torch.zeros(rollout.steps, rollout.rows, dtype=torch.float64)
        for b in range(rollout.rows):
            following = 0.0
            for t in reversed(range(rollout.steps)):
                if not valid[t][b]:
                    following = 0.0
                    continue
                future = value[t + 1][b] if t + 1 < rollout.steps else last[b]
                future = 0.0 if terminated[t][b] else final[t][b] if cut[t][b] else future
                delta = rho * (reward[t][b] + config.gamma * future - value[t][b])
                inside = 0.0 if terminated[t][b] or cut[t][b] else 1.0
                later = config.gamma * config.gae_lambda * inside * following
                advantage[t, b] = delta + rho * later
                following = delta + c * later
        return advantage.to(rollout.reward.device, torch.float32)

    def result(self) -> str:
        """The difference."""
        return (
            f"GAE equals the plain recursion to {small(self.gap)}; {self.tried} sentinels stayed in "
            "their rows"
        )


class Partition:
    """Chunks put together again are the rollout; minibatches use each of them once."""

    name = "chunks"

    def look(self, scene: Scene) -> None:
        """Cut a rollout whose every step is numbered, and look where the numbers went."""
        rollout, log, learner = scene.rollout, scene.log, scene.trial.learner
        chunks = learner.sequences(rollout, {"position": positions(rollout)}).whole()
        position, rows = chunks.data["position"], rollout.rows
        used = position[chunks.valid]
        expected = positions(rollout)[log.valid]
        self.count, self.length = chunks.count, chunks.valid.shape[0]
        self.steps = len(expected)
        if not torch.equal(used.sort().values, expected):
            lost = sorted(set(expected.tolist()) - set(used.tolist()))
            t, row = where(lost[0], rows) if lost else (-1, -1)
            what = f"{len(lost)} of {len(expected)} steps are in no chunk, first step {t} of row {row}"
            twice = f"{len(used)} valid steps in chunks, {len(expected)} in the rollout"
            raise Problem(
                what if lost else twice,
                "Likely cause: the rest of a rollout that the chunk length does not divide is dropped, or "
                "padding counts as experience",
                "Fix: pad the last chunk and mark the padding invalid",
            )
        # Episode segments stand one after another, each opened by its ``first``.
        is_packed = scene.trial.algo.batching == "episodes"
        self._check_order(position, chunks.valid, rows, chunks.first & is_packed)
        at = (position - 1).clamp(min=0)
        for name, ours, theirs in (
            ("obs", chunks.obs, _head(log)),
            ("first", chunks.first, log.first[:-1]),
            ("action", chunks.action, rollout.action),
            ("log_prob", chunks.data["log_prob"], rollout.record["log_prob"]),
        ):
            flat = tree.map(lambda leaf: leaf.flatten(0, 1)[at], theirs)  # [T, B, ..] -> [L, N, ..]
            _compare_chunks(name, ours, flat, chunks.valid)
        self._check_minibatches(scene)

    @staticmethod
    def _check_order(position: Tensor, valid: Tensor, rows: int, opens: Tensor) -> None:
        both = valid[1:] & valid[:-1] & ~opens[1:]
        jumps = (position[1:] - position[:-1] != rows) & both
        if jumps.any():
            step, chunk = jumps.nonzero()[0].tolist()
            (t, row), (t_next, row_next) = (where(int(position[step + i, chunk]), rows) for i in (0, 1))
            raise Problem(
                f"in chunk {chunk} step {t} of row {row} is followed by step {t_next} of row {row_next}",
                "Likely cause: [T, B] is reshaped to chunks without a transpose, so that rows and steps mix",
                "Fix: view [C, L, B], transpose to [L, C, B], then flatten the last two",
            )

    def _check_minibatches(self, scene: Scene) -> None:
        generator = torch.Generator(scene.rollout.reward.device).manual_seed(0)
        parts = list(minibatches(self.count, scene.trial.algo.minibatches, generator))
        order = torch.cat(parts).sort().values
        if not torch.equal(order, torch.arange(self.count, device=order.device)):
            raise Problem(
                f"the {len(parts)} minibatches hold {len(order.unique())} of {self.count} chunks",
                "Likely cause: the rest that the number of minibatches does not divide is dropped",
                "Fix: split into parts whose sizes differ by one at most",
            )
        self.parts = len(parts)

    def result(self) -> str:
        """The counts."""
        return (
            f"{self.count} chunks of {self.length} steps hold each of {self.steps} valid steps once, in "
            f"order; {self.parts} minibatches hold each chunk once"
        )


def _head(log: Log) -> Tree:
    return tree.map(lambda leaf: leaf[:-1], log.obs)


def _compare_chunks(name: str, ours: Tree, theirs: Tree, valid: Tensor) -> None:
    for (part, leaf), other in zip(tree.named_leaves(ours, name), tree.leaves(theirs)):
        wrong = _differ(leaf, other) & valid
        if wrong.any():
            raise Problem(
                f"{part} of {int(wrong.sum())} steps in the chunks is not that of the rollout",
                "Likely cause: parts of the rollout are cut or transposed in different ways",
                "Fix: cut everything by the same function",
            )
