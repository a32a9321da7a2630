"""The state of a learner as tensors by name, for checkpoints and for other ranks.

=====================  =========================================================================
name                   content
=====================  =========================================================================
``PARAMETER:step``     Adam's step count, and its moments as ``:exp_avg`` and ``:exp_avg_sq``
``PARAMETER:start``    the weight at the start of the training, if a setting needs it
``PARAMETER:weight``   a weight of the learner that is not the policy's
``minibatches:rng``    the random stream of minibatches
=====================  =========================================================================
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from recollect.errors import ConfigError
from recollect.learning.deviation_check import NOTHING
from recollect.learning.regularise_weights import Origin

RNG = "minibatches:rng"
OWN = "weight"


@dataclass(frozen=True, slots=True)
class TrainerState:
    """The state of a trainer besides weights and optimiser, to resume bit for bit."""

    numbers: dict[str, Any]
    """As JSON."""
    tensors: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Learned:
    """How far an agent has been trained, and what it needs to continue."""

    steps: int = 0
    """Env steps."""
    updates: int = 0
    """Rollouts learned from."""
    optimizer: dict[str, Tensor] = field(default_factory=dict)
    """By the names above; empty for an agent that was never trained."""
    trainer: TrainerState | None = None
    """Only in the checkpoints of a run."""


def load_learner(learner: Any, learned: Learned) -> None:
    """Continue with the saved optimiser and random stream, if there are any."""
    learner.updates, learner.deviation_check.accepted = learned.updates, NOTHING
    tensors = learned.optimizer
    learner.forget_graphs()
    for name, parameter in learner.named_parameters():
        state = {
            key: tensors[f"{name}:{key}"].to(parameter.device, copy=True)
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{name}:{key}" in tensors
        }
        for key, value in state.items():
            # Adam's kernel does not check sizes: it would write out of bounds.
            if value.dtype != parameter.dtype or value.shape != (() if key == "step" else parameter.shape):
                raise ConfigError(
                    f"the saved optimiser does not fit this policy: {key} of {name} is {value.dtype} "
                    f"{tuple(value.shape)}; was it saved with another network?"
                )
        if state:
            learner.optimizer.state[parameter] = state
        if f"{name}:{OWN}" in tensors:
            parameter.detach().copy_(tensors[f"{name}:{OWN}"])
    learner.load_more(tensors)
    if learner.config.is_anchored:
        learner.origin = Origin.from_tensors(learner.policy, tensors)
    rng = tensors.get(RNG)
    # A generator of another kind of device cannot continue the stream: it restarts from its seed.
    if rng is not None and rng.shape == learner.generator.get_state().shape:
        learner.generator.set_state(rng)


def learner_tensors(learner: Any) -> dict[str, Tensor]:
    """The state for ``load_learner``: Adam's moments by parameter, the random stream, initial weights."""
    names = {id(p): name for name, p in learner.named_parameters()}
    moments = {
        f"{names[id(parameter)]}:{key}": value
        for parameter, state in learner.optimizer.state.items()
        for key, value in state.items()
    }
    start = {} if learner.origin is None else learner.origin.tensors()
    policy = {id(p) for p in learner.policy.parameters()}
    own = {f"{name}:{OWN}": p.detach() for name, p in learner.named_parameters() if id(p) not in policy}
    return moments | start | own | learner.more_tensors() | {RNG: learner.generator.get_state()}
