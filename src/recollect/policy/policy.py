"""Policy: an encoder, a core, and a head; with an actor-critic head also a critic.

Every method takes the state as an argument and none stores it. ``act`` is one step of the actor, ``unroll``
many steps of the learner. Both use the same encoder, core, normalisers and heads, and the core applies
``first`` in both, so that the two agree.

The critic reads the output of the core, or has a trunk of its own (``PolicyConfig.critic``). Then the state
is a dict of ``actor`` and ``critic``, and ``actor_only`` is the policy without the critic.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn

from recollect.base import tree
from recollect.base.spaces import ACTION_MASK
from recollect.base.tolerances import on_device
from recollect.base.types import State, Tree
from recollect.config.policy import PolicyConfig, head_config
from recollect.config.serialise import CUSTOM
from recollect.cores import make_core
from recollect.errors import ConfigError
from recollect.kernels import exact_linear
from recollect.policy import precision, trunks
from recollect.policy.compiled import Compiled
from recollect.policy.critic_obs import actor_space, obs_without, space_without
from recollect.policy.distributions import Distribution
from recollect.policy.encoders import make_encoder
from recollect.policy.head_contract import Head
from recollect.policy.heads import ActionHead, make_head
from recollect.policy.masks import check_mask_space
from recollect.policy.normalise import ObservationNorm, PopArt
from recollect.policy.trunks import check_joined, joined


class Acted(NamedTuple):
    """One acting step of B rows."""

    action: Tree
    """[B, ...] as stored and learned from; ``Policy.to_env`` converts it to the env's action."""
    record: dict[str, Tensor]
    """[B, ...] each: what the head records beside the action (``Head.record_spec``)."""


GUARDED = (
    *("initial_state", "has_memory", "act", "step", "unroll", "unroll_core", "unroll_with_states"),
    *("evaluate_actions", "value", "actor_only", "actor_state", "_advance", "_through"),
)
"""Methods that handle the state or the order of time; a subclass must not override them."""


class Policy(nn.Module):
    """See the module's docstring. Custom networks are passed as ``encoder``, ``core`` or ``head``.

    A subclass may override the row-wise methods around the core: ``_encode``, ``_distribution``, ``_value``,
    ``to_env``, for a critic with its own encoder ``_encode_for_critic``; not those that handle the state
    (``GUARDED``).
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Raise for a subclass that overrides a guarded method."""
        super().__init_subclass__(**kwargs)
        taken = [name for name in GUARDED if getattr(cls, name) is not getattr(Policy, name)]
        if taken:
            raise ConfigError(
                f"{cls.__name__} overrides Policy.{', '.join(taken)}: acting and learning share the code "
                "that handles the state, so that they cannot differ. Write an encoder for observations and a "
                "core (_step, _unroll, initial_state) for memory, and a head (choose, record) for actions; a "
                "policy may override _encode, _distribution, _value and to_env (docs/own-policy.md)"
            )

    critic: nn.Linear
    """Only if ``has_critic``."""

    def __init__(
        self,
        observation_space: gym.Space,
        action_space: gym.Space,
        config: PolicyConfig | None = None,
        head: Callable[[gym.Space, int], Head] | None = None,
    ):
        """For an env with these spaces.

        Args:
            observation_space: of one row.
            action_space: of one row.
            config: the settings of encoder, core and head.
            head: in place of ``config.head``, such as a class of your own. Without a critic
                (``Head.needs_critic``) values are not normalised either.
        """
        super().__init__()
        config = config or PolicyConfig()
        self.config = config = replace(config, head=head_config(config.head if head is None else head))
        self.observation_space, self.action_space = observation_space, action_space
        self.actor_space = actor_space(observation_space, config.critic_obs)
        """The observations that acting needs: those without ``critic_obs``."""
        self.encoder = make_encoder(config.encoder_spec, self.actor_space)
        self.core = make_core(config.core, self.encoder.output_size)
        size = self.core.output_size
        self.head: Head = make_head(config.head, action_space, size)
        self.has_critic = self.head.needs_critic
        """Whether the policy estimates values."""
        self.critic_trunk = trunks.make_critic_trunk(observation_space, config, self.head)
        if self.has_critic:
            self.critic = nn.Linear(self.trunks[-1].core.output_size, 1)
            nn.init.orthogonal_(self.critic.weight)
            nn.init.zeros_(self.critic.bias)
        self.obs_norm: ObservationNorm | None = None
        if config.normalise_observations:
            self.obs_norm = ObservationNorm(observation_space, last_action=config.normalise_last_action)
        has_norm = self.has_critic and config.normalise_value
        self.value_norm = PopArt(config.value_decay) if has_norm else None
        self.acts_elsewhere = False
        """Whether copies act on a CPU while this one learns; ``precision="auto"`` is then that of a CPU."""
        self.factory: str | None = None
        """The name of the factory that made it, ``module:attribute``, if it has one."""
        self._compiled: Compiled | None = None
        is_dict = isinstance(observation_space, gym.spaces.Dict)
        mask = observation_space.spaces.get(ACTION_MASK) if is_dict else None
        self._masked = mask is not None
        if mask is not None:
            check_mask_space(action_space, mask)

    @property
    def has_memory(self) -> bool:
        """Whether a core has a state."""
        return any(trunk.core.has_memory for trunk in self.trunks)

    @cached_property
    def is_trunk_fixed(self) -> bool:
        """Whether encoder and core have no tensors to save: copies of the policy cannot differ in them."""
        return not (self.encoder.state_dict() or self.core.state_dict())

    @property
    def trunks(self) -> tuple[Any, ...]:
        """Each has an ``encoder`` and a ``core``: the policy itself, and the critic's own trunk if any."""
        return (self,) if self.critic_trunk is None else (self, self.critic_trunk)

    def actor_only(self) -> Policy:
        """The policy without a separate critic, with the same weights: its state is the actor's, observations
        may lack ``critic_obs``, and it records nothing. The policy itself if the critic shares its trunk."""
        if self.critic_trunk is None:
            return self
        actor, own = copy.copy(self), ("critic", "critic_trunk")
        kept = {name: part for name, part in self.named_children() if name not in own}
        vars(actor).update(_modules=kept, critic_trunk=None, has_critic=False)
        actor.observation_space = self.actor_space
        return actor

    def actor_state(self, state: State) -> State:
        """The part of ``state`` that acting needs."""
        return state if self.critic_trunk is None else state["actor"]

    @property
    def made_by(self) -> str | None:
        """The factory that made it: its name, or "custom" for a subclass without one, which no file
        describes. None: ``config`` describes it."""
        return self.factory or (None if type(self) is Policy else CUSTOM)

    @property
    def is_compiled(self) -> bool:
        """Whether ``compile_parts`` was called."""
        return self._compiled is not None

    @property
    def value_scale(self) -> Tensor | float:
        """The unit of the value loss: the standard deviation of the returns, or 1."""
        return 1.0 if self.value_norm is None else self.value_norm.std

    def check_spaces(
        self, observation_space: gym.Space, action_space: gym.Space, *, acts_only: bool = False
    ) -> None:
        """Raise a ConfigError unless these are its spaces. ``acts_only``: ``critic_obs`` may be missing."""
        observed = self.observation_space, observation_space
        if acts_only:
            observed = self.actor_space, space_without(observation_space, self.config.critic_obs)
        for name, (ours, theirs) in (
            ("observation", observed),
            ("action", (self.action_space, action_space)),
        ):
            if ours != theirs:
                raise ConfigError(
                    f"the policy was made for {name}_space {ours}, the env has {theirs}: "
                    "build the policy from this env's spaces, or use the env that it was made for"
                )

    @property
    def precision(self) -> str:
        """The precision on its present device: never "auto"."""
        return on_device(self.config.precision, "cpu" if self.acts_elsewhere else self.device.type)

    def computing(self) -> AbstractContextManager:
        """The precision context. The policy's methods enter it; for a backward pass the caller must."""
        device = self.device
        return precision.computing(self.precision, device) if device.type == "cuda" else nullcontext()

    @property
    def encoder_bits(self) -> int:
        """Bits of the encoder's floating-point numbers."""
        return 16 if self.config.precision == "bf16" else torch.finfo(self.dtype).bits

    def initial_state(self, batch: int) -> State:
        """A copy of the state before an episode's first step, for ``batch`` rows."""
        precision.check(self.config.precision, self.device)  # here, because every use starts here
        state, trunk = self.core.initial_state(batch), self.critic_trunk
        return tree.clone(state if trunk is None else joined(state, trunk.core.initial_state(batch)))

    @torch.no_grad()
    def act(
        self,
        obs: Tree,
        state: State,
        first: Tensor,
        generator: torch.Generator | None = None,
        deterministic: bool = False,
        exploration: Tensor | None = None,
    ) -> tuple[Acted, State]:
        """Choose actions: obs [B, ...], state, first [B] -> action and its record [B], state.

        ``exploration`` [B]: how much each row explores, as the algorithm gives it to the head.
        """
        *outputs, state = self.step(obs, state, first)
        action = self.head.choose(outputs, generator, deterministic, exploration)
        has_record = self.has_critic or not self.head.needs_critic
        return Acted(action, self.head.record(outputs, action) if has_record else {}), state

    def step(self, obs: Tree, state: State, first: Tensor) -> tuple[Any, ...]:
        """One step without an action: obs [B, ...], state, first [B] -> the head's outputs [B], state.

        The outputs of an actor-critic head are the action distribution and the value, None if ``actor_only``.
        """
        with self.computing():
            y, value, state = self._parts._advance(obs, state, first)
            with precision.exact(y):
                if not self.head.needs_critic:
                    return *self.head(y, self.mask(obs)), state
                return self._distribution(y, obs), value, state

    def to_env(self, action: Tree) -> Tree:
        """The env's action for a stored action: squashed, scaled, clipped, offset."""
        return self.head.to_env(action)

    def unroll(
        self, obs: Tree, state: State, first: Tensor, features: list[Tensor] | None = None
    ) -> tuple[Any, ...]:
        """Replay T steps: obs [T, B, ...], the raw state at step 0, first [T, B].

        Returns the head's outputs [T, B] and the state after the last step. Those of an actor-critic head are
        the action distribution and the value in real units. The input of the head, y [T, B, D], is appended
        to ``features`` if given.
        """
        with self.computing():
            y, of_critic, state = self._through(trunks.unroll, self._parts, obs, state, first)
            with precision.exact(y):
                if features is not None:
                    features.append(y)
                return *self._heads(y, of_critic, obs), state

    def unroll_core(self, obs: Tree, state: State, first: Tensor) -> tuple[Tensor, State]:
        """``unroll`` without the head: its input y [T, B, D], and the state after the last step."""
        with self.computing():
            y, _, state = self._through(trunks.unroll, self._parts, obs, state, first)
        return y, state

    def evaluate_actions(
        self, obs: Tree, action: Tree, state: State, first: Tensor, features: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """log_prob, entropy and value [T, B] of given actions [T, B, ...], with an actor-critic head.

        ``features``: as in ``unroll``.
        """
        dist, value, _ = self.unroll(obs, state, first, features)
        return dist.log_prob(action), dist.entropy(), value

    @torch.no_grad()
    def value(self, obs: Tree, state: State, first: Tensor) -> Tensor:
        """V(obs [B, ...], state) [B] in real units. Changes no state and draws no random number."""
        with self.computing():
            value = self._parts._advance(obs, state, first)[1]
        if value is None:
            raise ConfigError(
                f"a value was asked of a policy whose {type(self.head).__name__} has no critic: its "
                "algorithm must not ask for values (Acting.needs_values=False), or the head must set "
                "needs_critic"
            )
        return value

    def unroll_with_states(
        self, obs: Tree, state: State, first: Tensor, times: Sequence[int]
    ) -> tuple[Any, ...]:
        """``unroll`` that returns the raw input states of the steps ``times`` (ascending, 0..T)."""
        with self.computing():
            at_times = partial(trunks.unroll, times=times)
            y, of_critic, states = self._through(at_times, self._parts, obs, state, first)
            with precision.exact(y):
                return *self._heads(y, of_critic, obs), states

    def compile_parts(self, backend: str | None = None) -> None:
        """Use torch.compile for encoder, step and value from now on. Copies and pickles stay eager."""
        self._compiled = Compiled(self, backend)

    @property
    def compiled_graphs(self) -> int:
        """The number of graphs compiled so far."""
        return 0 if self._compiled is None else self._compiled.graphs

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self._weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return self._weight.dtype

    @property
    def _weight(self) -> Tensor:
        return self.critic.weight if self.has_critic else next(self.head.parameters())

    @property
    def _parts(self) -> Policy | Compiled:
        """The object that computes ``_encode``, ``_value`` and ``_advance``."""
        return self if self._compiled is None else self._compiled

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_compiled": None}

    def _advance(self, obs: Tree, state: State, first: Tensor) -> tuple[Tensor, Tensor | None, State]:
        """One step up to the head: obs [B, ...], state, first [B] -> y [B, D], V [B], state.

        V is None without a critic.
        """
        y, of_critic, state = self._through(trunks.step, self, obs, state, first)
        with precision.exact(y):
            return y, self._value(of_critic) if self.has_critic else None, state

    def _through(
        self, run: Callable[..., tuple[Tensor, Any]], parts: Any, obs: Tree, state: State, first: Tensor
    ) -> tuple[Tensor, Tensor, Any]:
        """``run`` (``trunks.step`` or ``unroll``) of each trunk, with the encoders of ``parts``.

        Returns the inputs of the head and of the critic, y [..., D], and the state.
        """
        trunk, seen = self.critic_trunk, obs_without(obs, self.config.critic_obs)
        if trunk is None:
            y, state = run(parts._encode, self.core, seen, state, first)
            return y, y, state
        check_joined(state)
        y, actor = run(parts._encode, self.core, seen, state["actor"], first)
        of_critic, critic = run(parts._encode_for_critic, trunk.core, obs, state["critic"], first)
        return y, of_critic, joined(actor, critic)

    def _encode(self, obs: Tree) -> Tensor:
        """Features [N, D] of obs [N, ...]."""
        return self._features(self.encoder, obs)

    def _encode_for_critic(self, obs: Tree) -> Tensor:
        """Features [N, D] of obs [N, ...], by the critic's own encoder."""
        return self._features(self.trunks[-1].encoder, obs)

    def _features(self, encoder: nn.Module, obs: Tree) -> Tensor:
        with precision.encoding(self.config.precision, self.device):
            return precision.widen(encoder(obs if self.obs_norm is None else self.obs_norm(obs)))

    def _heads(self, y: Tensor, of_critic: Tensor, obs: Tree) -> tuple[Any, ...]:
        """y [T, B, D] of the actor and of the critic -> the head's outputs [T, B]."""
        if not self.head.needs_critic:
            return self.head(y, self.mask(obs))
        both = self._joint(y, obs) if of_critic is y else None
        return (self._distribution(y, obs), self._parts._value(of_critic)) if both is None else both

    def _joint(self, y: Tensor, obs: Tree) -> tuple[Distribution, Tensor] | None:
        """``_distribution`` and ``_value`` of y [T, B, D] in one pass over y, with the same bits.

        None if a subclass overrides one of them, if one is compiled, or if the kernels cannot run. An acting
        step has so few rows that two passes are as fast.
        """
        cls = type(self)
        has_own = cls._distribution is not Policy._distribution or cls._value is not Policy._value
        head = self.head
        if has_own or self._compiled is not None or type(head) is not ActionHead:
            return None
        found = exact_linear.together(y, head.linear, self.critic)
        if found is None:
            return None
        return head.distribution(found[0], self.mask(obs)), self._in_real_units(found[1])

    def _distribution(self, y: Tensor, obs: Tree) -> Distribution:
        return self.head(y, self.mask(obs))

    def _value(self, y: Tensor) -> Tensor:
        return self._in_real_units(exact_linear.through(self.critic, y))

    def mask(self, obs: Tree) -> Tree | None:
        """The action masks in observations; None: their space has none."""
        return obs[ACTION_MASK] if self._masked else None

    def _in_real_units(self, predicted: Tensor) -> Tensor:
        """The critic's predictions [..., 1] as values [...] in real units."""
        value = precision.widen(predicted.squeeze(-1))
        return value if self.value_norm is None else self.value_norm.denormalise(value)
