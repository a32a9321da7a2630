"""Pendulum without velocities: swing a pole up from positions alone."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium.spaces import Box
from torch import Tensor

from recollect.config.tasks import PositionPendulumOptions
from recollect.tasks import random
from recollect.tasks.base import Task

SECONDS, MAX_SPEED, MAX_TORQUE = 0.05, 8.0, 2.0
GRAVITY_PULL = 3 * 10.0 / 2
"""3 g / (2 l), with a pole of 1 kg and 1 m."""
TORQUE_PULL = 3.0
"""3 / (m l^2)."""


class PositionPendulum(Task):
    """Gymnasium's Pendulum-v1 in float32, with the position as the only observation.

    Action, Box [1] in [-2, 2]: the torque, clipped to that range. theta = 0 is upright. Reward, from the
    state before the step: -(theta^2 + 0.1 speed^2 + 0.001 torque^2), theta in [-pi, pi). Never terminates;
    truncates after 200 steps. theta starts uniformly in [-pi, pi), the speed in [-1, 1).

    Observation, Box [2]: cos(theta), sin(theta). The speed has to be inferred from earlier positions.
    """

    Options = PositionPendulumOptions
    has_time_limit = True

    horizon = 1

    theta: Tensor
    speed: Tensor

    def __init__(self, num_envs: int, device: torch.device | str = "cpu") -> None:
        observed = Box(-1.0, 1.0, (2,), np.float32)
        torques = Box(-MAX_TORQUE, MAX_TORQUE, (1,), np.float32)
        super().__init__(num_envs, device, observed, torques, max_episode_steps=200)
        self._lanes = torch.arange(2, device=self.device)
        self._spread = torch.tensor([2 * math.pi, 2.0], device=self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        draws = random.uniform(random.bits(key.unsqueeze(1), self._lanes))
        theta, speed = draws.sub_(0.5).mul_(self._spread).unbind(1)
        return {"theta": theta, "speed": speed}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        torque = action.squeeze(1).clamp(-MAX_TORQUE, MAX_TORQUE)
        angle = (self.theta + _PI).remainder_(_TURN).sub_(_PI)
        cost = angle.square_().addcmul_(self.speed, self.speed, value=0.1)
        cost.addcmul_(torque, torque, value=0.001)
        self.speed.add_(self.theta.sin(), alpha=GRAVITY_PULL * SECONDS)
        self.speed.add_(torque, alpha=TORQUE_PULL * SECONDS).clamp_(-MAX_SPEED, MAX_SPEED)
        self.theta.add_(self.speed, alpha=SECONDS)
        return cost.neg_(), self._never

    def _observe(self) -> Tensor:
        return torch.stack((self.theta.cos(), self.theta.sin()), 1)


_PI, _TURN = random.constant(math.pi), random.constant(2 * math.pi)
