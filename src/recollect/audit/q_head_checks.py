"""Heads of action values: values by their papers' formulas, random actions by epsilon, noise on weights."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any, cast

import torch
from gymnasium import spaces
from torch import Tensor

from recollect.audit.drawn_replay import Recorded
from recollect.audit.replay_loss_checks import preferred
from recollect.audit.results import Passed, Problem, Skip
from recollect.base.formatting import tiny
from recollect.policy.layers import ACTIVATIONS
from recollect.policy.noisy import NoisyLinear, means
from recollect.policy.q_heads import QHead, QuantileHead

SIZES = (3, 2)
"""Choices of the two components of the actions that are tried."""
FEATURES, ROWS = 6, 7
DRAWS = 4_000
SIGMAS = 6.0
TOLERANCE = 1e-4
EPSILON, RATES = 0.6, (0.0, 0.5, 1.0)


def _head(rollouts: Recorded) -> QHead:
    """A new head of the same kind and settings, without noise, for actions of two components."""
    one = rollouts[0].policy.head
    kind = type(one)
    if kind is not QHead and kind is not QuantileHead:
        raise Skip("the head is your own")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config: Any = replace(cast(Any, one.config), noisy=False, gain=1.0)
        head = cast(type[QHead], kind)(spaces.MultiDiscrete(list(SIZES)), FEATURES, config)
    return head.to(rollouts[0].rollout.reward.device)


def _inputs(head: QHead) -> tuple[Tensor, Tensor]:
    """Outputs of a core [N, D], and masks [N, sum(nvec)]; one forbids a whole component."""
    generator = torch.Generator().manual_seed(2)
    y = torch.randn(ROWS, FEATURES, generator=generator)
    mask = (torch.rand(ROWS, sum(SIZES), generator=generator) < 0.6).to(torch.int8)
    mask[0], mask[1, : SIZES[0]], mask[2:, 0], mask[2:, -1] = 1, 0, 1, 1
    return y.to(head.epsilon.device), mask.to(head.epsilon.device)


@torch.no_grad()
def action_values(rollouts: Recorded) -> Passed:
    """Values equal V + A - mean A over allowed choices, and quantiles the formula of IQN, in plain loops."""
    head = _head(rollouts)
    y, mask = _inputs(head)
    worst = 0.0
    for given in (None, mask):
        if isinstance(head, QuantileHead):
            count = head.quantile_count
            middles = [(i + 0.5) / count for i in range(count)]
            asked = torch.tensor([0.1, 0.45, 0.9], device=y.device)
            pairs = [
                (head.quantiles(y, asked, given), _quantiles(head, y, asked.tolist(), given)),
                (head(y, given)[0], _quantiles(head, y, middles, given).mean(-2)),
            ]
        else:
            pairs = [(head(y, given)[0], _dueling(head, y, given))]
        for found, expected in pairs:
            gap = (found.double() - expected.double()).abs()
            gap = gap.masked_fill((found == expected) & found.isinf(), 0)
            worst = max(worst, float((gap / expected[expected.isfinite()].abs().max().clamp(min=1)).max()))
            if not worst <= TOLERANCE:
                raise Problem(
                    f"action values differ from their formula by {worst:.1e} (tolerance {TOLERANCE:.0e}), "
                    f"{'without' if given is None else 'with'} masks",
                    "Likely cause: V enters once for each component, forbidden choices count in the mean of "
                    "the advantages, or the fractions or cosines of the quantiles are off by one",
                    "Fix: see the equations of recollect.policy.q_heads",
                    measured=worst,
                    tolerance=TOLERANCE,
                )
    return Passed(
        f"values of {len(SIZES)} components, with and without masks: to {tiny(worst)}", worst, TOLERANCE
    )


def _dueling(head: QHead, x: Tensor, mask: Tensor | None) -> Tensor:
    """[N, sum(nvec)] for the inputs of the streams [N, width]."""
    advantage = head.advantage(x).double().cpu()
    value = torch.zeros(len(x)) if head.value is None else head.value(x).squeeze(-1)
    found = torch.full_like(advantage, -torch.inf)
    for row in range(len(x)):
        begin = 0
        for size in SIZES:
            choices = range(begin, begin + size)
            allowed = [a for a in choices if mask is None or mask[row, a]] or list(choices)
            mean = sum(float(advantage[row, a]) for a in allowed) / len(allowed)
            for a in allowed:
                dueling = 0.0 if head.value is None else float(value[row]) / len(SIZES) - mean
                found[row, a] = float(advantage[row, a]) + dueling
            begin += size
    return found.to(x.device)


def _quantiles(head: QuantileHead, y: Tensor, fractions: list[float], mask: Tensor | None) -> Tensor:
    """[N, fractions, sum(nvec)]"""
    psi = y if head.base is None else ACTIVATIONS[head.config.activation][0](head.base(y))
    found = []
    for tau in fractions:
        cosines = torch.tensor([math.cos(math.pi * i * tau) for i in range(head.cosines)], device=y.device)
        phi = (head.embed.weight @ cosines + head.embed.bias).clamp(min=0)
        found.append(_dueling(head, psi * phi, mask))
    return torch.stack(found, 1)


@torch.no_grad()
def random_actions(rollouts: Recorded) -> Passed:
    """A row acts at random with probability epsilon * its rate, over allowed actions, else greedily."""
    head = _head(rollouts)
    y, mask = _inputs(head)
    (q,) = head(y, mask)
    head.epsilon.fill_(EPSILON)
    generator = torch.Generator(q.device).manual_seed(3)
    best = preferred(head, q).tolist()
    worst = 0.0
    for rate in RATES:
        exploration = torch.full((DRAWS,), rate, device=q.device)
        for row in range(ROWS):
            drawn = head.choose((q[row].expand(DRAWS, -1),), generator, False, exploration).tolist()
            _, *greedy = head.choose((q[row].expand(2, -1),), generator, False, None).tolist()
            parts = [part.isfinite().nonzero().flatten().tolist() for part in q[row].split(SIZES)]
            every = list(product(*parts))
            for action in product(*map(range, SIZES)):
                share = EPSILON * rate * (action in every) / len(every)
                share += (1 - EPSILON * rate) * (list(action) == best[row])
                count = sum(tuple(one) == action for one in drawn)
                spread = max(1e-9, math.sqrt(DRAWS * share * (1 - share)))
                worst = max(worst, abs(count - DRAWS * share) / spread if share < 1 else DRAWS - count)
                if not worst <= SIGMAS or greedy != [best[row]]:
                    raise Problem(
                        f"of {DRAWS} actions with epsilon {EPSILON} and rate {rate} {count} are {action}, "
                        f"and {DRAWS * share:.0f} must be",
                        "Likely cause: epsilon or the row's own rate is ignored, masked actions are drawn, "
                        "or some are drawn more often than others",
                        "Fix: with probability epsilon * rate draw uniformly over allowed actions, else take "
                        "the greedy one",
                        measured=worst,
                        tolerance=SIGMAS,
                    )
    said = f"{len(RATES) * ROWS} times {DRAWS} actions: shares as epsilon says"
    return Passed(f"{said}, to {worst:.1f} standard deviations (tolerance {SIGMAS:g})", worst, SIGMAS)


@torch.no_grad()
def noise(rollouts: Recorded) -> str:
    """Noise of weights is factorised as in its paper; evaluations and sessions use the mean weights."""
    _head(rollouts)
    device = rollouts[0].rollout.reward.device
    layer, count = NoisyLinear(5, 4).to(device), 600
    generator = torch.Generator(device).manual_seed(4)
    squares = 0.0
    for _ in range(count):
        layer.draw_noise(generator)
        squares += float(layer.noise_in.square().sum() + layer.noise_out.square().sum())
    # f(e)^2 = |e|, of mean sqrt(2 / pi) and variance 1 - 2 / pi
    mean, spread = squares / (9 * count), math.sqrt((1 - 2 / math.pi) / (9 * count))
    wanted = math.sqrt(2 / math.pi)
    if not abs(mean - wanted) <= SIGMAS * spread:
        raise Problem(
            f"the mean square of {9 * count} drawn noises is {mean:.3f} in place of {wanted:.3f}",
            "Likely cause: the noise is e in place of f(e) = sign(e) sqrt(|e|)",
            "Fix: see recollect.policy.noisy",
        )
    x = torch.randn(3, 5, device=device, generator=generator)
    plain = x @ layer.weight.t() + layer.bias
    weight = layer.weight + layer.weight_std * layer.noise_out.unsqueeze(1) * layer.noise_in
    noisy = x @ weight.t() + layer.bias + layer.bias_std * layer.noise_out
    with means():
        session = layer(x)
    for found, expected, where in (
        (layer(x), noisy, "while acting and learning"),
        (layer.eval()(x), plain, "in an evaluation"),
        (session, plain, "in a session"),
    ):
        if not torch.allclose(found, expected, atol=1e-5):
            raise Problem(
                f"a noisy layer is not that of its formula {where}",
                "Likely cause: noise where the mean weights must be used, or none where it must be",
                "Fix: use the means in eval mode and inside noisy.means()",
            )
    return f"{9 * count} noises have the spread of the paper; evaluations and sessions are without noise"
