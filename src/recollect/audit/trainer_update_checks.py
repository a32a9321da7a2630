"""Checks of a ``Trainer``'s updates and gradients."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from recollect.audit import closed_forms
from recollect.audit.results import Doubt, NotOffered, Passed, Problem
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer_returns_checks import script
from recollect.audit.tried import SEED, Tried, seeded
from recollect.base import tree


def padding_in_update(tried: Tried) -> Passed:
    """The weights after an update do not depend on numbers at invalid steps; the update changes them."""
    tried.offered("update", "parameters")
    if tried.make is None:
        raise NotOffered("it needs a function that makes the trainer anew, and an instance was given")
    rows = script(tried.trainer, "terminated", tried.steps, tried.rows)
    given = _whole_script(tried, rows)
    before, after = _updated(tried, given)
    again = _updated(tried, given)[1]
    moved = max(
        float((after[k].double() - before[k].double()).abs().max()) for k in after if after[k].numel()
    )
    noise = _distance(after, again)
    if moved == 0:
        raise Problem(
            "an update changes no weight",
            "Likely cause: the optimiser does not hold the network's parameters, or nothing is valid",
            "Fix: make the optimiser after the network has been moved to its device",
        )
    valid = given.is_valid

    def poison(leaf: Tensor) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        wide = valid.reshape(valid.shape + (1,) * (leaf.dim() - 2))
        return torch.where(wide, leaf, 30.0)

    bad = given.but(
        **{
            name: tree.map(poison, getattr(given, name))
            for name in ("obs", "reward", "value", "log_prob", "advantage", "returns")
            if getattr(given, name) is not None
        }
    )
    gap = _distance(after, _updated(tried, bad)[1])
    tolerance = max(tried.trainer.tolerance * moved, noise)
    if not gap <= tolerance:
        raise Problem(
            f"numbers at invalid steps change the weights after an update by {gap:.1e}; the update itself "
            f"changes them by {moved:.1e}",
            "Likely cause: padding or invalid rows weigh in the loss, in the advantages' statistics or in "
            "running statistics",
            "Fix: multiply the loss by the mask, and divide by the number of valid steps",
            measured=gap,
            tolerance=tolerance,
        )
    return Passed(f"weights moved by {moved:.1e}, by numbers at invalid steps not", gap, tolerance)


def _whole_script(tried: Tried, given: TracedRollout) -> TracedRollout:
    """A script with all parts that an update may read; steps after a row's last end are invalid."""
    tried.offered("act", "initial_state")
    acted = tried.play(tried.obs, given.first)
    after_end = given.ended.flip(0).long().cumsum(0).flip(0) == 0
    after_end &= given.ended.any(0)
    advantage = closed_forms.advantages(given.but(valid=~after_end)).float()
    assert given.value is not None
    log_prob = acted.outputs.get("log_prob")
    return given.but(
        valid=~after_end,
        obs=tried.obs,
        action=acted.action,
        log_prob=log_prob,
        state=acted.states,
        advantage=advantage,
        returns=advantage + given.value,
    )


def _updated(tried: Tried, given: TracedRollout) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Weights of a freshly made trainer before and after an update."""
    assert tried.make is not None
    with seeded(SEED):
        fresh = tried.make()
        assert fresh.parameters is not None
        assert fresh.update is not None
        before = {name: leaf.detach().clone() for name, leaf in fresh.parameters().items()}
        fresh.update(given)
        after = {name: leaf.detach().clone() for name, leaf in fresh.parameters().items()}
    return before, after


def _distance(a: Mapping[str, Tensor], b: Mapping[str, Tensor]) -> float:
    gaps = [float((a[name].double() - b[name].double()).abs().max()) for name in a if a[name].numel()]
    return max((torch.inf if gap != gap else gap for gap in gaps), default=0.0)


def gradient_reach(tried: Tried) -> str:
    """A loss reaches back to the start of its episode within the sequence; no further, and no other row."""
    tried.offered("evaluate", "initial_state")
    leaf = tried.obs
    if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
        raise NotOffered("observations are no floating-point tensor, so that nothing can be differentiated")
    action = None if tried.trainer.act is None else tried.acted.action
    obs = leaf.clone().requires_grad_(True)
    outputs, _ = tried.evaluate(obs, tried.initial(), tried.first, action, grad=True)
    outputs = {name: x for name, x in outputs.items() if x.requires_grad}
    if not outputs:
        raise Problem(
            "the outputs of `evaluate` have no gradient",
            "Likely cause: torch.no_grad around the learner's pass, or the features are detached",
            "Fix: compute the loss with a graph",
        )
    total = sum(x.double().reshape(*tried.first.shape, -1).sum(-1) for x in outputs.values())
    assert isinstance(total, Tensor)
    episode = tried.first.long().cumsum(0)
    reach, T, found = 0, tried.steps, 0
    for t in sorted({1, T // 2 - 1, T // 2, T - 1}):
        for row in range(tried.rows):
            grads = torch.autograd.grad(total[t, row], obs, retain_graph=True, allow_unused=True)[0]
            grad = torch.zeros_like(obs) if grads is None else grads
            size = grad.abs().reshape(T, tried.rows, -1).sum(-1)
            same = (episode[:, row] == episode[t, row]) & (torch.arange(T) <= t)
            others = size.clone()
            others[:, row] = 0
            wrong = size[:, row].masked_fill(same, 0)
            if others.any():
                raise Problem(
                    f"the loss of step {t}, row {row}, has a gradient in row "
                    f"{int(others.any(0).nonzero()[0])}",
                    "Likely cause: the network mixes rows (batch statistics, attention over rows)",
                    "Fix: process each row separately",
                )
            if wrong.any():
                raise Problem(
                    f"the loss of step {t}, row {row}, has a gradient at step {int(wrong.nonzero()[0])}, of "
                    "another episode or later",
                    "Likely cause: a reset inside the sequence does not cut the gradient",
                    "Fix: select the initial state where `first`",
                )
            if not size[t, row] > 0:
                continue
            found += 1
            steps_back = [t - s for s in same.nonzero().flatten().tolist() if size[s, row] > 0]
            reach = max([reach, *steps_back])
    if not found:
        raise Doubt("no output has a gradient with respect to its own observation")
    if reach == 0 and T > 1:
        raise Problem(
            "no loss reaches the step before it",
            "Likely cause: the state is detached between the steps of a sequence, so that nothing is learned "
            "through time",
            "Fix: detach at the start of sequences only",
            measured=0.0,
            tolerance=1.0,
        )
    longest = max(
        t - int((episode[:, row] == episode[t, row]).nonzero()[0])
        for t in (T // 2, T - 1)
        for row in range(tried.rows)
    )
    if reach < min(longest, 4):
        raise Problem(
            f"a loss reaches back {reach} steps, and sequences have episodes of {longest + 1} steps",
            "Likely cause: the state is detached inside sequences",
            "Fix: detach at the start of sequences only",
            measured=float(reach),
            tolerance=float(longest),
        )
    return f"a loss reaches back {reach} steps, exactly 0 over resets and other rows"
