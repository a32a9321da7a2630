"""Gymnasium's CartPole and Pendulum without velocities: control a pole from positions alone."""

from __future__ import annotations

import math

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from recollect.config.tasks import PositionCartPoleOptions, PositionPendulumOptions
from recollect.tasks import random
from recollect.tasks.base import Task

GRAVITY, POLE_MASS, TOTAL_MASS, HALF_LENGTH = 9.8, 0.1, 1.1, 0.5
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FORCE, CARTPOLE_SECONDS = 10.0, 0.02
X_LIMIT, THETA_LIMIT = 2.4, 12 * 2 * math.pi / 360

PENDULUM_SECONDS, MAX_SPEED, MAX_TORQUE = 0.05, 8.0, 2.0
GRAVITY_PULL = 3 * 10.0 / 2
"""3 g / (2 l), with a pole of 1 kg and 1 m."""
TORQUE_PULL = 3.0
"""3 / (m l^2)."""

_HALF, _TENTH, _GRAVITY = random.constant(0.5), random.constant(0.1), random.constant(GRAVITY)
_PI, _TURN = random.constant(math.pi), random.constant(2 * math.pi)


class PositionCartPole(Task):
    """Gymnasium's CartPole-v1 (Euler, 0.02 s) in float32, with positions as the only observation.

    Action, Discrete(2): push left or right with 10 N. The reward is 1 in every step, including the last.
    Terminates when x leaves [-2.4, 2.4] or theta [-12, 12] degrees; truncates after 500 steps. All four
    numbers of the state start uniformly in [-0.05, 0.05). (An episode that terminates in step 500 is not
    truncated as well; in Gymnasium it is.)

    Observation, Box [2]: x, theta. The velocities have to be inferred from earlier positions.
    """

    Options = PositionCartPoleOptions
    has_time_limit = True

    max_return = 500.0
    horizon = 1

    place: Tensor
    """[B, 2]: x, theta."""
    speed: Tensor
    """[B, 2]: their velocities."""

    def __init__(self, num_envs: int, device: torch.device | str = "cpu") -> None:
        high = np.array([2 * X_LIMIT, 2 * THETA_LIMIT], np.float32)
        observed = Box(-high, high, dtype=np.float32)
        super().__init__(num_envs, device, observed, Discrete(2), max_episode_steps=500)
        self._reward = torch.ones(num_envs, device=self.device)
        self._limits = torch.tensor([X_LIMIT, THETA_LIMIT], device=self.device)
        self._pushes = torch.tensor([-FORCE / TOTAL_MASS, FORCE / TOTAL_MASS], device=self.device)
        self._inertia = torch.full((num_envs,), HALF_LENGTH * 4.0 / 3.0, device=self.device)
        self._lanes = torch.arange(4, device=self.device)

    def _begin(self, key: Tensor) -> dict[str, Tensor]:
        draws = random.uniform(random.bits(key.unsqueeze(1), self._lanes))
        place, speed = draws.sub_(_HALF).mul_(_TENTH).split(2, 1)
        return {"place": place, "speed": speed}

    def _advance(self, action: Tensor) -> tuple[Tensor, Tensor]:
        theta, theta_speed = self.place[:, 1], self.speed[:, 1]
        sin, cos = theta.sin(), theta.cos()
        # Gymnasium's equations, with the constants folded:
        #   push = (force + m l theta_speed^2 sin) / M
        #   theta_acc = (g sin - cos push) / (l (4/3 - m cos^2 / M))
        #   x_acc = push - m l theta_acc cos / M
        push = self._pushes.index_select(0, action)
        push.addcmul_(theta_speed.square(), sin, value=POLE_MOMENT / TOTAL_MASS)
        inertia = torch.addcmul(self._inertia, cos, cos, value=-POLE_MOMENT / TOTAL_MASS)
        theta_acc = sin.mul_(_GRAVITY).addcmul_(cos, push, value=-1.0).div_(inertia)
        x_acc = push.addcmul_(theta_acc, cos, value=-POLE_MOMENT / TOTAL_MASS)
        # Euler: the positions move by the old velocities.
        self.place.add_(self.speed, alpha=CARTPOLE_SECONDS)
        self.speed.add_(torch.stack((x_acc, theta_acc), 1), alpha=CARTPOLE_SECONDS)
        terminated = (self.place.abs() > self._limits).any(1)
        return self._reward, terminated

    def _observe(self) -> Tensor:
        return self.place.clone()


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
        self.speed.add_(self.theta.sin(), alpha=GRAVITY_PULL * PENDULUM_SECONDS)
        self.speed.add_(torque, alpha=TORQUE_PULL * PENDULUM_SECONDS).clamp_(-MAX_SPEED, MAX_SPEED)
        self.theta.add_(self.speed, alpha=PENDULUM_SECONDS)
        return cost.neg_(), self._never

    def _observe(self) -> Tensor:
        return torch.stack((self.theta.cos(), self.theta.sin()), 1)
