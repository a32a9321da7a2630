"""Trunks: an encoder followed by a core. The actor has one, and the critic shares it or has its own.

``step`` is one step of a trunk, ``unroll`` many. Both give the core ``first``, which resets the state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
from torch import Tensor, nn

from recollect.base import tree
from recollect.base.types import State, Tree
from recollect.config.policy import PolicyConfig
from recollect.cores import make_core
from recollect.cores.contract import Core
from recollect.errors import ConfigError, StateError
from recollect.policy import precision
from recollect.policy.encoders import make_encoder
from recollect.policy.head_contract import Head

Encode = Callable[[Tree], Tensor]
"""Observations [N, ...] -> features [N, D]."""


class CriticTrunk(nn.Module):
    """The encoder and the core of a critic that does not share the actor's."""

    def __init__(self, observation_space: gym.Space, config: PolicyConfig):
        super().__init__()
        has_memory = config.critic != "memoryless"
        encoder = config.encoder_spec if has_memory else config.encoder
        self.encoder: Any = make_encoder(encoder, observation_space)
        self.core = make_core(config.core if has_memory else "none", self.encoder.output_size)


def make_critic_trunk(observation_space: gym.Space, config: PolicyConfig, head: Head) -> CriticTrunk | None:
    """The critic's own trunk; None if it shares the actor's."""
    if config.critic == "shared":
        return None
    if not head.needs_critic:
        name = type(head).__name__
        raise ConfigError(f"critic = {config.critic!r}, and {name} needs no critic: leave critic out")
    return CriticTrunk(observation_space, config)


def step(encode: Encode, core: Core, obs: Tree, state: State, first: Tensor) -> tuple[Tensor, State]:
    """One step: obs [B, ...], state, first [B] -> y [B, D], state."""
    x = encode(obs)
    with precision.exact(x):
        return core.step(x, state, first)


def unroll(
    encode: Encode, core: Core, obs: Tree, state: State, first: Tensor, times: Sequence[int] | None = None
) -> tuple[Tensor, Any]:
    """T steps: obs [T, B, ...], the raw state at step 0, first [T, B] -> y [T, B, D], the last state.

    With ``times`` (ascending, 0..T): the raw input states of these steps instead of the last state.
    """
    x = _encode_sequence(encode, obs, first)
    with precision.exact(x):
        if times is not None:
            return core.states_at(x, state, first, times)
        y, state = core.unroll(x, state, first)
        return y, state


def _encode_sequence(encode: Encode, obs: Tree, first: Tensor) -> Tensor:
    """Features [T, B, D] of obs [T, B, ...], all steps in one pass of the encoder."""
    T, B = first.shape
    for name, leaf in tree.named_leaves(obs, "obs"):
        if leaf.shape[:2] != first.shape:
            raise StateError(
                f"Policy.unroll: {name} has shape {tuple(leaf.shape)}, first {tuple(first.shape)}: both "
                "must begin with [T, B], time first: was one of them transposed?"
            )
    flat = tree.map(lambda leaf: leaf.reshape(T * B, *leaf.shape[2:]), obs)  # [T, B, ..] -> [T * B, ..]
    return encode(flat).view(T, B, -1)  # [T * B, D] -> [T, B, D]


def joined(actor: Any, critic: Any) -> Any:
    """The state of a policy with two trunks; from lists of states, a list."""
    if isinstance(actor, list):
        return [joined(*both) for both in zip(actor, critic, strict=True)]
    return {"actor": actor, "critic": critic}


def check_joined(state: State) -> None:
    """Raise unless ``state`` has a part for the actor and one for the critic."""
    if not isinstance(state, dict) or state.keys() != {"actor", "critic"}:
        found = f"a dict of {list(state)}" if isinstance(state, dict) else f"a {type(state).__name__}"
        raise StateError(
            "the critic has a network of its own, so the state is a dict of actor and critic, and this is "
            f"{found}: start with policy.initial_state(rows), then pass the state that the last call "
            "returned. To act without the critic, use policy.actor_only()"
        )
