"""Adam with learning rates by group, gradient clipping, and steps that a flag on the device can skip."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recollect.base import devices
from recollect.config.algo_shared import LearnerConfig
from recollect.errors import ConfigError
from recollect.policy.policy import Policy


class Adam(torch.optim.Adam):
    """torch's fused Adam. Where a host read synchronises, learning rates are tensors, for CUDA graphs."""

    def __init__(self, groups: list[dict], parameters: Sequence[nn.Parameter]):
        """``parameters``: all in ``groups``, as a list: walking the modules takes longer than clipping."""
        self._parameters, device = parameters, parameters[0].device
        if devices.synchronises(device):
            groups = [group | {"lr": torch.tensor(group["lr"], device=device)} for group in groups]
        super().__init__(groups, eps=1e-5, fused=True, capturable=device.type == "cuda")

    @property
    def rate(self) -> float:
        """The learning rate of the first group."""
        return self.param_groups[0]["rate"]

    def set_rates(self, share: float) -> None:
        """Set the learning rate of every group to this share of its base rate."""
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
        """One step with the gradient, of norm ``norm``, scaled down to the norm ``limit``.

        ``skip``: a tensor on the device; if it is 1, the step changes nothing. With it Adam's kernel clips,
        too: it divides the gradient by ``grad_scale``.
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
    """Every parameter in exactly one group: heads with a learning rate of their own, and the rest."""
    heads: list[tuple[str, list[nn.Module], float | None]] = [
        ("actor", [policy.head], config.actor_learning_rate)
    ]
    if policy.has_critic:
        heads.append(("critic", [policy.critic, *policy.trunks[1:]], config.critic_learning_rate))
    elif config.critic_learning_rate is not None:
        raise ConfigError("critic_learning_rate is set, and the policy's head has no critic: leave it unset")
    own = {
        name: ([weight for part in parts for weight in part.parameters()], rate)
        for name, parts, rate in heads
        if rate is not None
    }
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
