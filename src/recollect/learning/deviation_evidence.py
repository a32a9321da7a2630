"""Evidence: is a deviation between learner and record rounding, or a bug?

The learner compares recomputed fields of the head's record (log-probs and values, for an actor-critic) with
those recorded while acting. The part of rounding in their difference depends on the precision, the weights
and the length of the sequence, so no fixed tolerance separates rounding from a wrong state. A deviation above
the tolerance is only a suspicion. To settle it, the rows that deviate most are replayed step by step in
float64 on the CPU, from the stored states of the rollout::

    acting   = |recorded   - replayed|   too far: wrong state, reset, observation or weights while acting
    learning = |recomputed - replayed|   too far: wrong chunk, reset or kernel while learning
    rounding = |replayed with rounded weights and states - replayed|

Each of the first two must be within ``MARGIN`` times the rounding. In TF32 and bf16, where both round the
same factors, each must also be within ``LIKENESS`` times the other. Both limits grow with how much the policy
uses its memory, as does the effect of a wrong state. Decision 004 has the measurements.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recollect.base import tree
from recollect.base.types import Tree
from recollect.experience.rollout import Rollout
from recollect.policy.heads import ActionHead
from recollect.policy.policy import Policy

ROWS, DRAWS = 4, 2
"""The number of replayed rows, and of replays with random roundings."""
MARGIN = 10.0
"""The largest distance of a healthy run, in units of the random roundings."""
LIKENESS = 30.0
"""The largest distance of a healthy actor or learner, in units of the other's, where both round the factors
of products alike. The other may be exact by chance, so this limit is at least 3 roundings."""
ROUNDING = {"fp32": 2.0**-24, "tf32": 2.0**-11, "bf16": 2.0**-8}
"""The relative error of one rounding, by precision."""
PLACE = "place"
"""The name in ``batch.data`` of the place of each step in the rollout, t * B + b."""


def places(rollout: Rollout) -> Tensor:
    """[T, B] int64: t * B + b."""
    shape = rollout.reward.shape
    return torch.arange(shape.numel(), device=rollout.reward.device).view(shape)


class Compared(NamedTuple):
    """Recomputed and recorded numbers of some steps of a rollout, [N, ...] each."""

    place: Tensor
    recomputed: dict[str, Tensor]
    recorded: dict[str, Tensor]
    """By the names of the record's fields, in real units."""

    def largest_gap(self, units: Mapping[str, float]) -> Tensor:
        """Their largest difference, in units of each field; 0 without steps."""
        gaps = [
            ((self.recomputed[name] - self.recorded[name]).abs() / unit).flatten()
            for name, unit in units.items()
        ]
        return torch.cat([*gaps, gaps[0].new_zeros(1)]).max()


class Distance(NamedTuple):
    """The distance of one side, acting or learning, from the replay, in units of its field."""

    number: float
    """As recorded or recomputed."""
    found: float
    limit: float
    """The largest distance that rounding explains."""

    @property
    def is_wrong(self) -> bool:
        """Whether it is further from the replay than rounding explains; also if it is not finite."""
        return not self.found <= self.limit < math.inf


class Finding(NamedTuple):
    """The result of the replay for one number of the record, at the step that is hardest to explain."""

    name: str
    row: int
    step: int
    replayed: float
    acting: Distance
    learning: Distance

    @property
    def excess(self) -> float:
        """The larger distance in units of its limit."""
        return max(side.found / side.limit for side in (self.acting, self.learning))

    def __str__(self) -> str:
        acting, learning = self.acting, self.learning
        return (
            f"{self.name} of row {self.row} at step {self.step}: recorded {acting.number:.6g}, recomputed "
            f"{learning.number:.6g}, replayed in float64 {self.replayed:.6g}; the record is off by "
            f"{acting.found:.1e} (rounding explains {acting.limit:.1e}), the learner by "
            f"{learning.found:.1e} (rounding explains {learning.limit:.1e})"
        )


def verdict(findings: Sequence[Finding]) -> str | None:
    """The text of the error; None if rounding explains every deviation."""
    guilty = [found for found in findings if found.acting.is_wrong or found.learning.is_wrong]
    if not guilty:
        return None
    found = max(guilty, key=lambda found: found.excess)
    if found.acting.is_wrong and found.learning.is_wrong:
        cause = (
            "neither the record nor the learner follows from the stored state: look for dropout, batch "
            "statistics or hidden state in a custom network, or for one that computes otherwise in float64"
        )
    elif found.acting.is_wrong:
        cause = (
            "the learner is right and the record is wrong: the actor used another state, reset, "
            "observation or weights than the rollout holds; was an observation changed in place?"
        )
    else:
        cause = (
            "the record is right and the learner is wrong: it started a chunk from another state, reset at "
            "another step, or the core's `unroll` does not equal its `step`"
        )
    return f"{found}. So {cause}"


def examine(
    policy: Policy,
    rollout: Rollout,
    seen: Sequence[Compared],
    *,
    units: Mapping[str, float],
    tolerance: float,
) -> list[Finding]:
    """Replay the rows of ``rollout`` that deviate most; one finding for each number of the record.

    Args:
        policy: with the weights that acted.
        rollout: as recorded.
        seen: recomputed and recorded numbers, in parts.
        units: of the deviations of each field that is compared.
        tolerance: the smallest limit.
    """
    T, B = rollout.steps, rollout.rows
    # In float32 errors of single operations dominate, which differ between a step and a scan. Actors on a CPU
    # and a learner on a GPU that is told to use "tf32" or "bf16" do not round alike either.
    acts_elsewhere = policy.acts_elsewhere and policy.device.type == "cuda"
    is_alike = policy.precision != "fp32" and not acts_elsewhere
    place = torch.cat([part.place for part in seen]).cpu()
    made, kept = (_spread(seen, kind, units, place, T, B) for kind in ("recomputed", "recorded"))
    unit = {name: units[name.split(".")[0]] for name in made}
    is_seen = torch.zeros(T * B, dtype=torch.bool).index_fill_(0, place, True).view(T, B)
    gap = torch.stack([(made[name] - kept[name]).abs() / unit[name] for name in made]).amax(0)
    gap = gap.nan_to_num(torch.inf).masked_fill(~is_seen, -1)
    rows = gap.amax(0).topk(min(ROWS, B)).indices.sort().values
    truth, noise = _replays(policy, rollout, rows)
    findings = []
    for name in made:
        itself = 4 * ROUNDING["fp32"] * truth[name].abs().clamp(min=1)  # of the number, as it is stored
        rounding = torch.maximum(noise[name], itself) / unit[name]
        acting, learning = (
            ((found[name][:, rows] - truth[name]).abs() / unit[name]).masked_fill(~is_seen[:, rows], 0)
            for found in (kept, made)
        )
        limits = []
        for other in (learning, acting):
            limit = MARGIN * rounding
            if is_alike:
                limit = torch.minimum(limit, LIKENESS * torch.maximum(_so_far(other), 0.1 * rounding))
            limits.append(limit.clamp(min=tolerance))
        excess = torch.maximum(acting / limits[0], learning / limits[1]).nan_to_num(torch.inf)
        t, r = divmod(int(excess.argmax()), len(rows))
        row = int(rows[r])
        sides = (
            Distance(number[name][t, row].item(), found[t, r].item(), limit[t, r].item())
            for number, found, limit in zip((kept, made), (acting, learning), limits)
        )
        findings.append(Finding(name, row, t, truth[name][t, r].item(), *sides))
    return findings


def _so_far(distance: Tensor) -> Tensor:
    """The largest distance of any row up to each step, [T, R] -> [T, 1]; NaN as infinity."""
    return distance.nan_to_num(torch.inf).amax(1, keepdim=True).cummax(0).values


def _spread(
    seen: Sequence[Compared], kind: str, names: Iterable[str], place: Tensor, T: int, B: int
) -> dict[str, Tensor]:
    """The numbers of all parts as [T, B] float64 on the CPU, 0 elsewhere."""
    parts = {name: torch.cat([getattr(part, kind)[name].detach() for part in seen]) for name in names}
    return {
        name: torch.zeros(T * B, dtype=torch.float64).index_copy_(0, place, found.cpu().double()).view(T, B)
        for name, found in _numbers(parts, 1).items()
    }


def _numbers(record: Mapping[str, Tensor], lead: int) -> dict[str, Tensor]:
    """A tensor with ``lead`` dimensions for each number of a record: NAME, or NAME.0, NAME.1 and so on."""
    found: dict[str, Tensor] = {}
    for name, tensor in record.items():
        if tensor.dim() == lead:
            found[name] = tensor
        else:
            each = tensor.flatten(lead).unbind(-1)
            found |= {f"{name}.{i}": number for i, number in enumerate(each)}
    return found


@torch.no_grad()
def _replays(policy: Policy, rollout: Rollout, rows: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of ``rows`` in float64, [T, R], and the largest effect of rounding so far, [T, 1]."""
    exact = in_float64(policy)
    truth = replay(exact, rollout, rows)
    noise = {name: torch.zeros_like(value) for name, value in truth.items()}
    invalid = ~rollout.valid.cpu()[:, rows]
    for draw in range(DRAWS):
        generator = torch.Generator().manual_seed(draw)
        moved = replay(_rounded(exact, policy, generator), rollout, rows, generator)
        for name in truth:
            gap = (moved[name] - truth[name]).abs().nan_to_num(torch.inf).masked_fill(invalid, 0)
            noise[name] = torch.maximum(noise[name], gap)
    return truth, {name: _so_far(value) for name, value in noise.items()}


def in_float64(policy: Policy) -> Policy:
    """A copy of the policy on the CPU that computes in float64."""
    exact = copy.deepcopy(policy).to("cpu").double().requires_grad_(False)
    exact.config = replace(policy.config, precision="fp32")
    return exact


@torch.no_grad()
def replay(
    policy: Policy, rollout: Rollout, rows: Tensor, rounding: torch.Generator | None = None
) -> dict[str, Tensor]:
    """The compared numbers of ``rows`` [R], [T, R] each, step by step, from each stored state to the next.

    ``rounding``: draws once for every number of the state whether it is rounded up or down after each step.
    Errors then add up as they do where the input does not change.
    """
    here = rows.to(rollout.reward.device)

    def columns(value: Tree, steps: int = rollout.steps) -> Tree:
        taken = tree.map(lambda leaf: leaf[:steps].index_select(1, here).cpu(), value)
        return tree.map(lambda leaf: leaf.double() if leaf.is_floating_point() else leaf, taken)

    first, valid = columns(rollout.first), columns(rollout.valid)
    obs, action = (tree.zero_where(~valid, columns(value)) for value in (rollout.obs, rollout.action))
    stored = columns(rollout.states, len(rollout.state_steps))
    records, state, units = [], None, None
    for t in range(rollout.steps):
        if t in rollout.state_steps:
            state = tree.zero_where(~valid[t], tree.index(stored, rollout.state_steps.index(t)))
        *outputs, state = policy.step(tree.index(obs, t), state, first[t])
        records.append(policy.head.record(outputs, tree.index(action, t)))
        if rounding is not None:
            if units is None:
                units = tree.map(lambda leaf: _signs(leaf, rounding) * ROUNDING["fp32"], state)
            state = tree.map(lambda x, unit: _moved(x, unit) if x.is_floating_point() else x, state, units)
    compared = [name for name, field in policy.head.record_spec.items() if field.is_compared]
    return _numbers({name: torch.stack([one[name] for one in records]) for name in compared}, 2)


def _rounded(exact: Policy, policy: Policy, generator: torch.Generator) -> Policy:
    """A copy of ``exact`` with every weight moved by one rounding.

    Matrices, which are factors of products, are rounded as ``policy`` rounds them. The actor-critic head,
    critic, normalisers and all that is no matrix are float32 in every precision.
    """
    rounded, fine = copy.deepcopy(exact), ROUNDING["fp32"]
    is_on_cpu = policy.device.type != "cuda"  # where tf32 is fp32, and bf16 the encoder's alone
    thin: set[nn.Module | None] = {rounded.obs_norm, rounded.value_norm}
    if isinstance(rounded.head, ActionHead):
        thin.add(rounded.head)
    if policy.has_critic and not policy.is_compiled:
        thin.add(rounded.critic)
    encoders = {trunk.encoder for trunk in rounded.trunks}
    modules = [module for module in rounded.children() if module is not rounded.critic_trunk]
    modules += [] if rounded.critic_trunk is None else rounded.critic_trunk.children()
    for module in modules:
        is_fine = module in thin or (is_on_cpu and (module not in encoders or policy.precision == "tf32"))
        for weight in (*module.parameters(), *module.buffers()):
            if weight.is_floating_point():
                unit = fine if is_fine or weight.dim() < 2 else ROUNDING[policy.precision]
                weight.copy_(_moved(weight, _signs(weight, generator) * unit))
    return rounded


def _moved(x: Tensor, units: Tensor) -> Tensor:
    """``x`` with every finite number moved by ``units`` of itself."""
    return x + (x * units).nan_to_num(0, 0, 0)


def _signs(x: Tensor, generator: torch.Generator) -> Tensor:
    """1 or -1 for every number of ``x``."""
    return torch.randint(0, 2, x.shape, generator=generator, dtype=torch.float64).mul_(2).sub_(1)
