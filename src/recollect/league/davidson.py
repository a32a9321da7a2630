"""Maximum likelihood of Davidson's model: Bradley-Terry with draws, and with an advantage of the first side.

Davidson (1970), "On extending the Bradley-Terry model to accommodate ties in paired comparison experiments";
the advantage multiplies the odds of the first side, as in Davidson and Beaver (1977). Player i, on the first
side, against player j:

    P(i wins) : P(draw) : P(j wins)  =  exp(theta / 2) : exp(delta) : exp(-theta / 2)
    theta = r_i - r_j + side

So r_i - r_j is the log of the odds of a win against a loss. Without draws this is Bradley-Terry.

The prior is a normal distribution of standard deviation ``PRIOR`` for all parameters, around the mean of the
ratings for these. The log posterior is strictly concave: it has one maximum, also for players who won all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

ELO = 400 / math.log(10)
"""Elo points of a difference of 1 in log odds: 400 points are odds of 10 to 1."""
PRIOR = 4000 / ELO
"""Standard deviation of the prior. It bounds players who won all; it weighs less than a hundredth of a game
between equal players. The players of a training are a long ladder, each known by some games against the next
ones: with 1000 points, the prior drew the ends of twenty rungs together, and 77% of the intervals covered the
truth."""
_STEPS = 200
_LONGEST = 1.0
"""Largest change of a parameter in one step: within it the curvature of a logistic changes little."""
_DONE = 1e-5
"""A step as short as this is the last one: the error that it leaves is of the size of its square."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Parameters of the model, for a batch of payoffs."""

    ratings: np.ndarray
    """[S, n] in log odds, around a mean of 0."""
    side: np.ndarray
    """[S]: the advantage of the first side, in log odds."""
    delta: np.ndarray
    """[S]: the log of the weight of a draw."""

    @property
    def stacked(self) -> np.ndarray:
        """[S, n + 2]: all of them."""
        return np.concatenate([self.ratings, self.side[:, None], self.delta[:, None]], 1)


def probabilities(theta: np.ndarray, delta: np.ndarray) -> np.ndarray:
    """[3, ...]: of a win, a draw and a loss of the first side."""
    logits = np.stack(np.broadcast_arrays(theta / 2, delta, -theta / 2))
    weights = np.exp(logits - logits.max(0))
    return weights / weights.sum(0)


def fit(games: np.ndarray, has_side: bool, start: np.ndarray | None = None) -> Fit:
    """The maximum for each of the payoffs [S, 3, n, n] (wins, draws, losses of the first side).

    ``has_side``: estimate the advantage of the first side; else it is 0. ``start`` [n + 2]: parameters near
    the maximum. Newton's method, all payoffs side by side.
    """
    samples, n = len(games), games.shape[-1]
    x = np.zeros((samples, n + 2)) if start is None else np.tile(start, (samples, 1))
    open_ = np.arange(samples)
    for _ in range(_STEPS):
        gradient, curvature = _derivatives(games[open_], x[open_])
        if not has_side:
            gradient[:, n], curvature[:, n], curvature[:, :, n], curvature[:, n, n] = 0.0, 0.0, 0.0, 1.0
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        longest = np.abs(step).max(1)
        x[open_] += step * np.minimum(1.0, _LONGEST / np.maximum(longest, _LONGEST))[:, None]
        open_ = open_[longest > _DONE]
        if not len(open_):
            return Fit(x[:, :n] - x[:, :n].mean(1, keepdims=True), x[:, n], x[:, n + 1])
    raise ArithmeticError(f"ratings: Newton's method has not converged in {_STEPS} steps")


def _derivatives(games: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The gradient [S, n + 2] of the log posterior, and minus its Hessian [S, n + 2, n + 2]."""
    n = games.shape[-1]
    ratings, side, delta = x[:, :n], x[:, n], x[:, n + 1]
    theta = ratings[:, :, None] - ratings[:, None, :] + side[:, None, None]
    win, draw, loss = probabilities(theta, delta[:, None, None])
    total = games.sum(1)
    # Of each pair: derivatives by its theta and by delta, and the curvatures.
    by_theta = (games[:, 0] - games[:, 2] - total * (win - loss)) / 2
    by_delta = games[:, 1] - total * draw
    both_theta = total * (win + loss - (win - loss) ** 2) / 4
    theta_delta = -total * (win - loss) * draw / 2
    both_delta = total * draw * (1 - draw)

    # theta = r_i - r_j + side: rows count for +, columns for -.
    gradient = -x / PRIOR**2
    gradient[:, :n] += by_theta.sum(2) - by_theta.sum(1)
    gradient[:, n] += by_theta.sum((1, 2))
    gradient[:, n + 1] += by_delta.sum((1, 2))
    curvature = np.zeros((len(x), n + 2, n + 2))
    curvature[:, :n, :n] = -both_theta - both_theta.swapaxes(1, 2)
    every = np.arange(n + 2)
    curvature[:, every[:n], every[:n]] += both_theta.sum(2) + both_theta.sum(1)
    for column, pairs in ((n, both_theta), (n + 1, theta_delta)):
        curvature[:, :n, column] = curvature[:, column, :n] = pairs.sum(2) - pairs.sum(1)
    curvature[:, n, n] = both_theta.sum((1, 2))
    curvature[:, n, n + 1] = curvature[:, n + 1, n] = theta_delta.sum((1, 2))
    curvature[:, n + 1, n + 1] = both_delta.sum((1, 2))
    curvature[:, every, every] += 1 / PRIOR**2
    return gradient, curvature
