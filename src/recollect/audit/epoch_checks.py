"""Whole updates, watched: what each epoch learns from, which minibatches, and with which gradient."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from recollect.algos import impala
from recollect.audit.loss_checks import plain_advantages
from recollect.audit.recorded_rollouts import RecordedRollout, plain_replay, positions
from recollect.audit.results import Passed, Problem
from recollect.base import tree
from recollect.base.formatting import tiny
from recollect.config.impala import ImpalaConfig
from recollect.experience.chunks import Chunks
from recollect.learning.algorithm import Targets
from recollect.learning.learner import Learner
from recollect.learning.refresh_rollout import Outputs, recorded
from recollect.learning.sequences import Sequences
from recollect.policy.policy import Policy

TOLERANCE = 1e-3
"""Of targets, states and gradients, in units of their size: weights have moved, so float32 has rounded."""
EPOCHS, MINIBATCHES, PARTS = 3, 2, 2
COPIED = ("obs", "first", "action", "valid", "data", "state")
"""Of a minibatch, which later ones overwrite where nothing is read on the host."""
RATE = 1e-2
"""A learning rate by which old and new weights differ visibly."""
KLS = (0.0, 0.0, 0.0, 1.0)
"""The KL that minibatches are said to have, 0 after these; the update must end with the fourth."""
PROGRESS, START, END = 0.5, 0.02, 0.5
"""Where in a run the update is, and the entropy bonus then: START (1 + (END - 1) PROGRESS)."""
KINDS: tuple[dict[str, Any], ...] = (
    {"refresh_states": True, "recompute_advantages": True, "normalise_advantages": False},
    {"refresh_states": True, "recompute_advantages": False, "normalise_advantages": True},
    {"refresh_states": False, "recompute_advantages": True, "normalise_advantages": True},
    {"refresh_states": False, "recompute_advantages": False, "target_kl": 0.1, "accumulate": 1},
    {"refresh_states": False, "recompute_advantages": False, "epochs": 1},
)
"""Settings of one update each, whatever the config says. In the last, newer weights than those that acted
learn."""


@dataclass
class _Step:
    """One minibatch: the parts that its loss saw, and the gradient of the optimiser step."""

    epoch: int
    parts: list[Chunks]
    entropy_coefs: list[float]
    weights: dict[str, Tensor]
    """The state of the policy when its loss was computed."""
    grads: dict[str, Tensor] = field(default_factory=dict)
    """Before they were clipped; empty if no step was made."""


class _Watched:
    """A learner of a copy of the policy, and the minibatches of its update."""

    def __init__(self, one: RecordedRollout, config: Any) -> None:
        self.policy = copy.deepcopy(one.policy)
        self.lag = int(config.epochs == 1)
        if self.lag:
            _make_newer(self.policy)
        self.initial = copy.deepcopy(self.policy)
        self.steps: list[_Step] = []
        self.epoch = -1
        algorithm = one.learner.algorithm
        position = positions(one.rollout)

        def targets(*given: Any, **more: Any) -> Targets:
            made = vars(algorithm)["targets"](*given, **more)
            return Targets(made.rollout, made.data | {"position": position}, made.metrics)

        def loss(policy: Policy, batch: Chunks, config: Any, coef: Any, *more: Any) -> Any:
            copied = {name: tree.clone(getattr(batch, name)) for name in COPIED}
            self._open().parts.append(replace(batch, **copied))
            self.steps[-1].entropy_coefs.append(float(coef))
            total, stats = vars(algorithm)["loss"](policy, batch, config, coef, *more)
            if config.target_kl is not None:
                number = len(self.steps) - 1
                stats["kl"] = torch.full_like(stats["kl"], KLS[number] if number < len(KLS) else 0.0)
            return total, stats

        watched = SimpleNamespace(acting=algorithm.acting, targets=targets, loss=loss)
        self.learner = Learner(self.policy, watched, config, seed=1)  # pyright: ignore[reportArgumentType]
        self._watch_epochs()
        step = self.learner.optimizer.clipped_step

        def clipped_step(norm: Tensor, *given: Any, **more: Any) -> None:
            if not float(more.get("skip") or 0):
                named = self.policy.named_parameters()
                self.steps[-1].grads = {name: p.grad.clone() for name, p in named if p.grad is not None}
            self._is_open = False
            step(norm, *given, **more)

        self.learner.optimizer.clipped_step = clipped_step  # type: ignore[method-assign]
        self._is_open = False

    def _watch_epochs(self) -> None:
        """Count the epochs where the update begins one."""
        make = self.learner.make_update

        def make_update() -> Any:
            update = make()
            epoch = type(update).epoch

            def watched(sequences: Sequences) -> bool:
                self.epoch += 1
                self._is_open = False
                return epoch(update, sequences)

            update.epoch = watched
            return update

        self.learner.make_update = make_update  # type: ignore[method-assign]

    def _open(self) -> _Step:
        """The minibatch whose loss is computed now."""
        if not self._is_open:
            kept = {name: leaf.clone() for name, leaf in self.policy.state_dict().items()}
            self.steps.append(_Step(self.epoch, [], [], kept))
            self._is_open = True
        return self.steps[-1]

    def at(self, step: _Step) -> Policy:
        """The policy as it was when the loss of a minibatch was computed."""
        policy = copy.deepcopy(self.policy)
        policy.load_state_dict(step.weights)
        return policy


def epochs(rollouts: Sequence[RecordedRollout]) -> Passed:
    """Every epoch learns from each step once, from the states and targets that the settings name, by the
    mean gradient of its minibatches; the KL ends an update; gauges change nothing."""
    one = rollouts[-1]
    one.known_algorithm("targets")
    one.values_at_ends(one.rollout)
    largest, count = 0.0, 0
    for kind in KINDS:
        config = _config(one, kind)
        watched = _Watched(one, config)
        watched.learner.update(one.rollout, PROGRESS, lag=watched.lag)
        _check_coverage(one, config, watched.steps)
        for step in watched.steps:
            largest = max(largest, _check_gradient(one, config, watched, step))
            count += 1
        largest = max(largest, _check_contents(one, config, watched))
        _check_kl(config, watched)
    _check_gauges(one)
    return Passed(f"{count} minibatches of {len(KINDS)} updates: to {tiny(largest)}", largest, TOLERANCE)


def _config(one: RecordedRollout, kind: dict[str, Any]) -> Any:
    config = replace(
        one.algo,
        **{"epochs": EPOCHS, "learning_rate": RATE, "actor_learning_rate": None, "learning_rate_warmup": 0.0},
        **{"entropy": START, "entropy_end": END, "entropy_schedule": "linear", "entropy_warmup": 0.0},
        **{"critic_learning_rate": None, "gauge_every": 1, "l2_init": 0.0, "next_obs_coef": 0.0},
        **{"recompute_activations": False, "weight_clip": None, "target_kl": None},
    )
    sequences = config.sequences(one.rollout.rows)
    minibatches = min(MINIBATCHES, sequences)
    fitting = {"minibatches": minibatches, "accumulate": min(PARTS, sequences // minibatches)}
    if config.batching == "episodes":  # it has no stored states
        kind = kind | {"refresh_states": False}
    return replace(config, **(fitting | kind))


def _check_coverage(one: RecordedRollout, config: Any, steps: Sequence[_Step]) -> None:
    """Each epoch has its number of minibatches, and each valid step once."""
    expected = positions(one.rollout)[one.rollout.valid].tolist()
    found: dict[int, list[int]] = {}
    minibatches: dict[int, int] = {}
    for step in steps:
        minibatches[step.epoch] = minibatches.get(step.epoch, 0) + 1
        for batch in step.parts:
            found.setdefault(step.epoch, []).extend(batch.data["position"][batch.valid].tolist())
    if config.target_kl is not None:
        return  # ends early
    if len(found) != config.epochs:
        raise Problem(
            f"an update of {config.epochs} epochs has learned in {len(found)}",
            "Likely cause: the loop over epochs ends one too early, or after the first",
            "Fix: run all of them",
        )
    for epoch, used in found.items():
        if minibatches[epoch] != config.minibatches or sorted(used) != expected:
            raise Problem(
                f"epoch {epoch + 1} learned from {len(set(used))} of {len(expected)} valid steps in "
                f"{minibatches[epoch]} of {config.minibatches} minibatches, {len(used) - len(set(used))} "
                "steps more than once",
                "Likely cause: a minibatch is left out, or one is learned from again and again",
                "Fix: draw a new permutation in each epoch, and go through all of it",
            )


def _check_gradient(one: RecordedRollout, config: Any, watched: _Watched, step: _Step) -> float:
    """The gradient of a step is that of the mean over the valid steps of its minibatch, and of no other."""
    coef = START * (1 + (END - 1) * PROGRESS)
    if any(not math.isclose(found, coef, rel_tol=1e-5) for found in step.entropy_coefs):
        raise Problem(
            f"the entropy bonus is weighted by {step.entropy_coefs[0]:.4g}, and by its schedule {coef:.4g}",
            "Likely cause: the schedule is not applied, or with the progress of another update",
            "Fix: coefficient = entropy (1 + (entropy_end - 1) progress) for a linear schedule",
        )
    if not step.grads:
        return 0.0
    policy = watched.at(step)
    count = torch.stack([batch.valid.sum() for batch in step.parts]).sum().clamp(min=1)
    with policy.computing():
        for batch in step.parts:
            loss = vars(one.learner.algorithm)["loss"](policy, batch, config, coef, count)[0]
            loss.backward()
    expected = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
    size = max(float(grad.abs().max()) for grad in expected.values())
    gaps = {name: float((step.grads[name] - grad).abs().max()) for name, grad in expected.items()}
    name = max(gaps, key=lambda key: gaps[key])
    gap = gaps[name] / max(size, 1e-12)
    if not gap <= TOLERANCE:
        raise Problem(
            f"the gradient of an optimiser step in epoch {step.epoch + 1} is {gap:.1e} of its size off that "
            f"of its minibatch, most in {name}",
            "Likely cause: gradients of the minibatch before, or of a metric, are left over, or the parts of "
            "a minibatch are divided by counts of their own, or of all steps",
            "Fix: zero the gradient before each minibatch, and divide every part by the valid steps of the "
            "whole minibatch",
            measured=gap,
            tolerance=TOLERANCE,
        )
    return gap


def _check_contents(one: RecordedRollout, config: Any, watched: _Watched) -> float:
    """States and targets of every epoch, by a replay with the weights at its start."""
    rollout, largest = one.rollout, 0.0
    opening = {step.epoch: step for step in reversed(watched.steps)}
    for epoch in sorted(opening):
        policy = watched.at(opening[epoch])
        # Statistics of the returns, and so the critic, move before the first epoch.
        fresh = plain_replay(policy if epoch else watched.initial, rollout, one.log, rollout.state_at(0))
        is_late = bool(watched.lag) and isinstance(config, ImpalaConfig)  # replays with the present weights
        is_new = is_late or (epoch > 0 and config.recompute_advantages)
        expected = _targets(one, config, fresh if is_new else recorded(rollout), policy)
        expected |= {"log_prob": rollout.record["log_prob"].double()}
        if not watched.lag:  # the recorded values, with the critic's new statistics
            first = watched.at(watched.steps[0])
            replayed = plain_replay(first, rollout, one.log, rollout.state_at(0))
            expected["value"] = replayed.record["value"].double()
        if isinstance(config, ImpalaConfig):
            expected[impala.START] = (fresh if is_new else recorded(rollout)).record["log_prob"].double()
        for step in (one for one in watched.steps if one.epoch == epoch):
            for batch in step.parts:
                largest = max(largest, _check_targets(batch, expected, epoch, is_new))
                if one.policy.has_memory and batch.prefix is None and one.algo.batching == "chunks":
                    is_fresh = is_late or (epoch > 0 and config.refresh_states)
                    _check_states(one, batch, fresh, epoch, is_new=is_fresh)
    return largest


def _targets(one: RecordedRollout, config: Any, outputs: Outputs, policy: Policy) -> dict[str, Tensor]:
    """[T, B] float64 each: advantages and returns by their formulas."""
    advantage, returns = plain_advantages(one, outputs, config)
    valid = one.rollout.valid.cpu()
    if isinstance(config, ImpalaConfig):
        advantage = advantage / float(policy.value_scale)
    if config.normalise_advantages:
        spread = advantage[valid].std(correction=0)
        advantage = (advantage - advantage[valid].mean()) / (spread + 1e-8)
    return {"advantage": advantage, "return": returns}


def _check_targets(batch: Chunks, expected: dict[str, Tensor], epoch: int, is_new: bool) -> float:
    at, valid, largest = (batch.data["position"] - 1).clamp(min=0).cpu(), batch.valid.cpu(), 0.0
    for name, right in expected.items():
        if name not in batch.data or not valid.any():
            continue
        right = right.cpu().flatten()[at][valid]
        gap = (batch.data[name].double().cpu()[valid] - right).abs().max() / right.abs().max().clamp(min=1)
        largest = max(largest, float(gap))
        if not gap <= TOLERANCE:
            source = "weights at its start" if is_new else "weights that acted"
            raise Problem(
                f"in epoch {epoch + 1} {name} is {float(gap):.1e} off what the {source} give",
                "Likely cause: advantages are recomputed in other epochs than asked for, or from recorded "
                "numbers, replace the log-probabilities or values of acting; or are not normalised again",
                "Fix: recompute advantages and returns before every epoch but the first, if at all, and "
                "nothing else",
                measured=float(gap),
                tolerance=TOLERANCE,
            )
    return largest


def _check_states(one: RecordedRollout, batch: Chunks, fresh: Outputs, epoch: int, *, is_new: bool) -> None:
    """The state of each chunk: as acted, or that of a replay by the weights at the epoch's start."""
    rows, rollout = one.rollout.rows, one.rollout
    position = batch.data["position"][0]
    for chunk in (batch.valid[0] & ~batch.first[0]).nonzero().flatten().tolist():
        t, row = divmod(int(position[chunk]) - 1, rows)
        source = fresh.states if is_new else tree.stack([rollout.state_at(s) for s in rollout.state_steps])
        place = t if is_new else rollout.state_steps.index(t)
        right = tree.map(lambda leaf, p=place, r=row: leaf[p, r].double(), source)
        found = tree.map(lambda leaf, c=chunk: leaf[c].double(), batch.state)
        gap = max(
            float((a - b).abs().max() / b.abs().max().clamp(min=1)) if a.numel() else 0.0
            for a, b in zip(tree.leaves(found), tree.leaves(right))
        )
        if not gap <= TOLERANCE:
            whose = "the weights at its start" if is_new else "the weights that acted"
            raise Problem(
                f"in epoch {epoch + 1} the chunk of step {t}, row {row}, starts {gap:.1e} off the state of "
                f"{whose}",
                "Likely cause: states are refreshed in other epochs than asked for, or those of other steps "
                "or rows are used",
                "Fix: refresh stored states before every epoch but the first, if at all",
                measured=gap,
                tolerance=TOLERANCE,
            )


def _check_kl(config: Any, watched: _Watched) -> None:
    """No step is made with or after the minibatch whose KL is above the target."""
    if config.target_kl is None:
        return
    made = [bool(step.grads) for step in watched.steps]
    allowed = KLS.index(1.0)
    if sum(made) != min(allowed, len(made)) or any(made[allowed:]):
        raise Problem(
            f"the KL of minibatch {allowed + 1} is above target_kl, and {sum(made)} optimiser steps are made",
            "Likely cause: the KL ends an epoch and not the update, or is read one step late",
            "Fix: end the whole update before the step whose KL is above the target",
        )


@torch.no_grad()
def _make_newer(policy: Policy) -> None:
    generator = torch.Generator().manual_seed(4)
    for weight in policy.parameters():
        weight += 0.05 * torch.randn(weight.shape, generator=generator).to(weight)


def _check_gauges(one: RecordedRollout) -> None:
    """An update ends with the same weights whether memory is measured or not."""
    config, found = _config(one, {}), []
    for every in (0, 1):
        policy = copy.deepcopy(one.policy)
        learner = Learner(policy, one.learner.algorithm, replace(config, gauge_every=every), seed=1)
        learner.update(one.rollout, PROGRESS)
        grads = {name: p.grad for name, p in policy.named_parameters() if p.grad is not None}
        found.append({**policy.state_dict(), **{f"the gradient of {name}": x for name, x in grads.items()}})
    differing = [name for name, leaf in found[0].items() if not torch.equal(leaf, found[1][name])]
    if differing:
        raise Problem(
            f"measuring staleness changes {differing[0]}",
            "Likely cause: a metric draws random numbers of the learner, refreshes what is learned from, or "
            "leaves a gradient behind",
            "Fix: measure on copies, without a gradient and with a generator of their own",
        )
