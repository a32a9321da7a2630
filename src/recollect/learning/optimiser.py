"""Adam for learners: groups with rates of their own, clipping, and steps that a device can skip by itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recollect.base import devices
from recollect.config.learner import LearnerConfig
from recollect.policy.policy import Policy


class Adam(torch.optim.Adam):
    """torch's fused Adam. Where to look at numbers would mean to wait, its rates are tensors, because a CUDA
    graph knows no others."""

    def __init__(self, groups: list[dict], parameters: Sequence[nn.Parameter]):
        """``parameters``: all of those in ``groups``. A list: to walk the modules costs more than to clip."""
        self._parameters, device = parameters, parameters[0].device
        if devices.synchronises(device):
            groups = [group | {"lr": torch.tensor(group["lr"], device=device)} for group in groups]
        super().__init__(groups, eps=1e-5, fused=True, capturable=device.type == "cuda")

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return self.param_groups[0]["rate"]

    def set_rates(self, share: float) -> None:
        """Every group learns with this share of its own rate from now on."""
        for group in self.param_groups:
            group["rate"] = group["base_lr"] * share
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(group["rate"])
            else:
                group["lr"] = group["rate"]

    def norm(self) -> Tensor:
        """The norm of the gradient of all parameters."""
        grads = [p.grad for p in self._parameters if p.grad is not None]
        return torch.linalg.vector_norm(torch.cat([grad.flatten() for grad in grads]))

    def clipped_step(self, norm: Tensor, limit: float, skip: Tensor | None = None) -> None:
        """One step, with the gradient, which has that norm, scaled down to ``limit``.

        ``skip``: 1 on the device if the step is to change nothing. Then Adam's kernel clips as well: it
        divides by ``grad_scale``.
        """
        if skip is None:
            scale = (limit / (norm + 1e-6)).clamp(max=1)
            for parameter in self._parameters:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)
        self.grad_scale = None if skip is None else ((norm + 1e-6) / limit).clamp(min=1)
        self.found_inf = skip
        self.step()


def parameter_groups(policy: Policy, config: LearnerConfig, predictor: nn.Module | None = None) -> list[dict]:
    """Every parameter in exactly one group: the heads that have a rate of their own, and the rest."""
    own = {
        "actor": (list(policy.head.parameters()), config.actor_learning_rate),
        "critic": (list(policy.critic.parameters()), config.critic_learning_rate),
    }
    own = {name: (ps, rate) for name, (ps, rate) in own.items() if rate is not None}
    taken = {id(p) for ps, _ in own.values() for p in ps}
    rest = [p for p in policy.parameters() if id(p) not in taken]
    groups = {"trunk": (rest, config.learning_rate)} | own
    if predictor is not None:
        groups["next_obs"] = (list(predictor.parameters()), config.learning_rate)
    return [
        {"params": ps, "lr": lr, "base_lr": lr, "rate": lr, "name": name}
        for name, (ps, lr) in groups.items()
        if ps
    ]
