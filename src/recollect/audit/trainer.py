"""``Trainer``: the abilities of somebody's recurrent trainer that the auditor can try.

Every ability is an optional function. What a trainer does not offer is reported as "not checked", never as
passed. A trainer that is a single script is audited by wrapping its functions::

    def trainer() -> Trainer:  # called anew for each check that changes weights
        torch.manual_seed(1)
        agent = Agent()

        def act(obs, state, first):
            action, log_prob, value, state = agent.step(obs, state, first)
            return {"action": action, "log_prob": log_prob, "value": value}, state

        def evaluate(obs, state, first, action):
            log_prob, value = agent.evaluate(obs, state, first, action)
            return {"log_prob": log_prob, "value": value}, None

        return Trainer("ppo.py", obs_shape=(4,), initial_state=zeros, act=act, evaluate=evaluate)

    print(audit_trainer(trainer))

``examples/audit_script.py`` does this for a script in the style of CleanRL.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from recollect.audit.trace import TracedRollout
from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.errors import ConfigError

Outputs = Mapping[str, Tensor]
"""Numbers per step by name, such as ``log_prob``, ``value``, ``logits``, ``mean``, ``q``.

``action`` is the action itself. The names that ``act`` and ``evaluate`` share are compared.
"""


class Evaluate(Protocol):
    """The learner's forward pass over a stored sequence."""

    def __call__(
        self, obs: Tree, state: State, first: Tensor, action: Tree | None, /
    ) -> tuple[Outputs, State | None]:
        """See ``Trainer.evaluate``."""
        ...


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer's abilities; those that are None are "not checked".

    Tensors are time-major [T, B, ...]. A state is a tensor, or a tuple or dict of tensors, with the rows
    FIRST in every leaf [B, ...]: transpose the [layers, B, H] of torch's LSTM in the wrapper.
    """

    name: str
    """Shown in the report, such as "sb3-contrib 2.7 RecurrentPPO"."""
    obs_shape: tuple[int, ...] | None = None
    """The shape of one observation; the auditor draws normal numbers. Not used with ``observations``."""
    observations: Callable[[int, int, torch.Generator], Tree] | None = None
    """``(steps, rows, generator) -> obs [T, B, ...]``: random observations, such as integers."""
    initial_state: Callable[[int], State] | None = None
    """``rows -> state [B, ...]``: the memory at an episode's start."""
    act: Callable[[Tree, State, Tensor], tuple[Outputs, State]] | None = None
    """``(obs [B, ...], state, first [B] bool) -> (outputs [B, ...], state)``: one step of the acting path.

    It resets the rows where ``first``, as the trainer does it. ``outputs`` has "action" if the trainer
    samples one; "log_prob" is of that action. The global random generators are seeded by the auditor.
    """
    evaluate: Evaluate | None = None
    """``(obs [T, B, ...], state [B, ...], first [T, B] bool, action [T, B, ...] or None) ->
    (outputs [T, B, ...], state or None)``: the learner's forward pass, with a graph, of sequences that were
    stored, from the state at their first step. It resets inside the sequences as the trainer does."""
    resets: bool = True
    """Whether ``act`` and ``evaluate`` know ``first``. If not, they only get it at step 0, as False, and the
    checks of resets are "not checked"."""
    record: Callable[[], TracedRollout] | None = None
    """A real rollout of the trainer on an env of yours with short episodes: what was stored, and as much of
    ``TracedRollout`` as the trainer has. Includes the sequences that it learns from (``chunk_index``,
    ``chunk_state``, ``learner_log_prob``)."""
    advantages: Callable[[TracedRollout], tuple[Tensor, Tensor | None]] | None = None
    """``script -> (advantage [T, B], returns [T, B] or None)``, before normalisation, of a scripted rollout:
    reward, value, first, terminated, truncated, final_value, bootstrap. By the trainer's own code, including
    the one that adds something at time limits."""
    gamma: float = 0.99
    """The discount of ``advantages``."""
    gae_lambda: float = 0.95
    """The lambda of ``advantages``; 1 for V-trace with equal policies and for discounted returns."""
    normalise: Callable[[Tensor, Tensor], Tensor] | None = None
    """``(advantage [T, B], valid [T, B] bool) -> [T, B]``: the trainer's normalisation of advantages, as
    it does it for one minibatch."""
    update: Callable[[TracedRollout], None] | None = None
    """One update (one epoch, no shuffling that matters) on a scripted rollout with obs, action, first, valid,
    reward, value, log_prob, final_value, bootstrap, state [T + 1, B, ...]; for trainers that can weigh steps:
    those with ``valid`` False must not count."""
    parameters: Callable[[], Mapping[str, Tensor]] | None = None
    """Weights and running statistics, such as ``lambda: net.state_dict()``; copied by the auditor."""
    tolerance: float = 1e-4
    """Largest allowed deviation of numbers of size 1."""

    def random_obs(self, steps: int, rows: int, seed: int) -> Tree:
        """[T, B, ...]: random observations."""
        generator = torch.Generator().manual_seed(seed)
        if self.observations is not None:
            return self.observations(steps, rows, generator)
        if self.obs_shape is None:
            raise ConfigError(f"{self.name}: give obs_shape or observations: the auditor needs inputs")
        return torch.randn(steps, rows, *self.obs_shape, generator=generator)


def of_module(
    module: nn.Module,
    *,
    obs_shape: tuple[int, ...],
    initial_state: Callable[[int], State],
    state_dim: int = 0,
    by_step: Callable[[Any, Any], tuple[Any, Any]] | None = None,
    name: str = "",
) -> Trainer:
    """A ``Trainer`` of any module with ``(x [T, B, ...], state) -> (y [T, B, ...], state)``.

    Args:
        module: called with whole sequences, and with sequences of one step.
        obs_shape: the shape of one input.
        initial_state: ``rows -> state`` as the module takes it.
        state_dim: the dimension of the rows in each leaf of the state; 1 for torch's LSTM and GRU.
        by_step: ``(x [B, ...], state) -> (y [B, ...], state)``: the module's own single step, if it has one.
        name: shown in the report.

    Example:
        >>> lstm = nn.LSTM(3, 8)
        >>> zeros = lambda rows: (torch.zeros(1, rows, 8), torch.zeros(1, rows, 8))
        >>> of_module(lstm, obs_shape=(3,), initial_state=zeros, state_dim=1).name
        'LSTM'
    """

    def rows_first(state: State) -> State:
        return tree.map(lambda leaf: leaf.movedim(state_dim, 0), state)

    def as_module(state: State) -> State:
        return tree.map(lambda leaf: leaf.movedim(0, state_dim).contiguous(), state)

    def evaluate(obs: Tree, state: State, first: Tensor, action: Tree | None) -> tuple[Outputs, State]:
        y, after = module(obs, as_module(state))
        return {"output": y}, rows_first(after)

    def act(obs: Tree, state: State, first: Tensor) -> tuple[Outputs, State]:
        if by_step is not None:
            y, after = by_step(obs, as_module(state))
        else:
            y, after = module(tree.map(lambda leaf: leaf[None], obs), as_module(state))
            y = y[0]
        return {"output": y}, rows_first(after)

    return Trainer(
        name or type(module).__name__,
        obs_shape=obs_shape,
        initial_state=lambda rows: rows_first(initial_state(rows)),
        act=act,
        evaluate=evaluate,
        resets=False,
        parameters=module.state_dict,
    )
