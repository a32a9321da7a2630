"""Adam with learning rates by group, gradient clipping, and steps that a flag on the device can skip."""

# pyright: reportPrivateImportUsage=false, reportCallIssue=false, reportArgumentType=false
# torch's stubs do not export its kernels for lists of tensors.

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from recollect.base import devices
from recollect.config.algo_shared import LearnerConfig
from recollect.errors import ConfigError
from recollect.policy.policy import Policy

BETAS = (0.9, 0.999)
EPS = 1e-5


class Adam:
    """Adam (Kingma and Ba, 2015), by the kernel of torch's fused ``torch.optim.Adam``, with its bits.

    Not a ``torch.optim.Optimizer``, whose constructor imports torch's compiler: half of the time until the
    first update of a run (decision 038).
    """

    def __init__(self, groups: list[dict[str, Any]], parameters: Sequence[nn.Parameter]):
        """``groups``: ``params`` and ``lr`` each; ``parameters``: all in ``groups``, as a list.

        Where a host read synchronises, learning rates are tensors, for CUDA graphs.
        """
        self._parameters, device = parameters, parameters[0].device
        if devices.synchronises(device):
            groups = [group | {"lr": torch.tensor(group["lr"], device=device)} for group in groups]
        self.param_groups = groups
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        """``step``, ``exp_avg`` and ``exp_avg_sq`` of every parameter that has had a gradient."""

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

    def zero_grad(self) -> None:
        """Free all gradients."""
        for parameter in self._parameters:
            parameter.grad = None

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
            grads = [p.grad for p in self._parameters if p.grad is not None]
            torch._foreach_mul_(grads, (limit / (norm + 1e-6)).clamp(max=1))
            self.step()
        else:
            self.step(((norm + 1e-6) / limit).clamp(min=1), skip)

    @torch.no_grad()
    def step(self, divisor: Tensor | None = None, skip: Tensor | None = None) -> None:
        """One step with the gradient, divided by ``divisor``; none if ``skip`` is 1."""
        for group in self.param_groups:
            by_dtype: dict[torch.dtype, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    by_dtype.setdefault(parameter.dtype, []).append(parameter)
            for parameters in by_dtype.values():
                self._step(parameters, group["lr"], divisor, skip)

    def _step(
        self, parameters: list[Tensor], lr: float | Tensor, divisor: Tensor | None, skip: Tensor | None
    ) -> None:
        """A step of parameters of one dtype, all of which have a gradient."""
        states = [self.state.get(parameter) or self._new_state(parameter) for parameter in parameters]
        steps = [state["step"] for state in states]
        torch._foreach_add_(steps, 1)
        torch._fused_adam_(
            parameters,
            [parameter.grad for parameter in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            steps,
            lr=lr,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=0.0,
            eps=EPS,
            amsgrad=False,
            maximize=False,
            grad_scale=divisor,
            found_inf=skip,
        )
        if skip is not None:
            torch._foreach_sub_(steps, [skip] * len(steps))

    def _new_state(self, parameter: Tensor) -> dict[str, Tensor]:
        state = self.state[parameter] = {
            "step": torch.zeros((), device=parameter.device),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
        return state


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
