"""The settings of the network: encoder, head and policy; and the names of encoders, heads and networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from recollect.base import parts
from recollect.base.registry import load
from recollect.base.tolerances import Precision
from recollect.config.convert import convert
from recollect.config.core_choice import as_config
from recollect.config.cores import FramesConfig
from recollect.config.fields import at_least, check_fields, check_names, hints
from recollect.config.own_code import as_own_code
from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
from recollect.errors import ConfigError, nearest


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    """Settings of the encoder, which is built from an observation space."""

    section = "encoder."
    code = "recollect.policy.encoders:Encoder"

    hidden: tuple[int, ...] = (64,)
    """Widths of the MLP's layers, also after a conv stack; () for no layer. Token networks have layers of
    their own."""
    activation: Literal["tanh", "relu", "silu"] = "tanh"
    """Activation after every layer."""
    layer_norm: bool = False
    """Normalise every layer of the MLP before its activation."""
    conv: Literal["small", "nature"] = "small"
    """The conv stack for images: small halves the sides with 3 x 3 layers down to 8, for any size; nature is
    DQN's, for images of 36 x 36 or more."""
    images: Literal["auto", "always", "never"] = "auto"
    """Which three-dimensional Boxes are images and go through the conv stack; auto: by their shape."""
    symbols: Literal["auto", "always", "never"] = "auto"
    """Which 8-bit three-dimensional Boxes are grids of symbols, such as MiniGrid's: numbers that name things.
    Each has a learned vector before the conv stack. auto: grids with a side below 8."""
    tokens: Literal[
        "auto", "fast", "latent_attn_tiny", "latent_attn_small", "latent_attn_med", "example", "never"
    ] = "auto"
    """The network for token sets, 8-bit Boxes of shape (M, 3). auto: fast, where there are any; a name: there
    must be some; never: they are plain numbers."""

    def __post_init__(self) -> None:
        check_fields(self)
        if any(not isinstance(width, int) or width < 1 for width in self.hidden):
            raise ConfigError(f"encoder.hidden = {self.hidden}: give widths of at least 1, such as (128,)")

    def build(self, observation_space: Any) -> Any:
        """The encoder for this space."""
        return load(self.code)(observation_space, self)


_BUILT_IN: dict[str, Any] = {
    "auto": EncoderConfig,
    "mlp": partial(EncoderConfig, images="never", symbols="never", tokens="never"),
    "conv": partial(EncoderConfig, images="always"),
}
parts.add_built_in("encoder", {name: (make, EncoderConfig.code) for name, make in _BUILT_IN.items()})
ENCODERS = parts.Configs("encoder")
"""Makes the config of an encoder by its name, including those that users register."""


def _as_encoder(spec: Any) -> Any:
    """``spec`` itself; but a mapping such as ``{"name": "conv", "hidden": [64]}`` becomes a config.

    Without a name it is that of the encoder that fits the space, "auto".
    """
    if not isinstance(spec, Mapping):
        return spec
    given = dict(spec)
    name = given.pop("name", "auto")
    if name not in ENCODERS:
        raise ConfigError(
            f"no encoder is called {name!r}{nearest(str(name), ENCODERS)}: the encoders are "
            f"{', '.join(ENCODERS)}; {parts.IF_OWN}"
        )
    start: Any = ENCODERS[name]()
    check_names("the encoder", type(start), given)
    types = hints(type(start))
    return replace(start, **{key: convert(x, types[key], f"encoder.{key}") for key, x in given.items()})


def encoder_configs() -> list[type]:
    """The config class of every kind of encoder."""
    return [make for make in ENCODERS.values() if isinstance(make, type)]


@dataclass(frozen=True, slots=True)
class HeadConfig:
    """Settings of the actor-critic head, which makes an action distribution of features."""

    section = "head."
    code = "recollect.policy.heads:ActionHead"

    squash: Literal["auto"] | bool = "auto"
    """Whether a Box action is tanh(u), scaled to its bounds; auto: where all bounds are finite."""
    state_dependent_std: bool = False
    """Whether the standard deviation is a function of the features; else one parameter per dimension."""
    log_std_init: float = -0.5
    """Initial log standard deviation, in units of the (pre-tanh) action."""
    log_std_min: float = -5.0
    """Lower bound of the log standard deviation."""
    log_std_max: float = 1.0
    """Upper bound of the log standard deviation; at most 1 for a squashed Box."""
    gain: float = 0.01
    """Gain of the orthogonal initial weights of the last layer; a small one makes all actions likely."""

    def __post_init__(self) -> None:
        check_fields(self)
        at_least(self, 0, "gain")
        if not self.log_std_min < self.log_std_max:
            raise ConfigError(
                f"head.log_std_min = {self.log_std_min} must be below head.log_std_max = {self.log_std_max}"
            )
        if not self.log_std_min <= self.log_std_init <= self.log_std_max:
            raise ConfigError(
                f"head.log_std_init = {self.log_std_init} is outside of "
                f"[{self.log_std_min}, {self.log_std_max}] (log_std_min, log_std_max): change one of them"
            )


_HEADS = {"actor_critic": HeadConfig, "q": QHeadConfig, "quantile": QuantileHeadConfig}
parts.add_built_in("head", {name: (kind, kind.code) for name, kind in _HEADS.items()})
HEADS = parts.Configs("head")
"""The config of every head by its name, including those that users register."""


def head_config(spec: Any, default: str = "actor_critic") -> Any:
    """The config of the head that ``spec`` names; None: of ``default``. Anything else stays as it is."""
    if spec is not None and not isinstance(spec, str):
        return spec
    name = default if spec is None else spec
    if name not in HEADS:
        raise ConfigError(
            f"head is {name!r}{nearest(name, HEADS)}: choose from {', '.join(HEADS)}; {parts.IF_OWN}"
        )
    return HEADS[name]()


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Settings of a policy. ``encoder``, ``core`` and ``head`` take a name, a config or a factory."""

    encoder: Any = None
    """How observations become features: a name, a config, a mapping such as {"hidden": [128]}; None: by the
    observation space, and with the core frames without hidden layers. Your own: "module:Class"."""
    core: Any = "lstm"
    """The memory: "lstm", "gru", "none", a core config, your own "module:Class", or a factory."""
    head: Any = None
    """How the memory's output becomes actions; None: as the algorithm needs, of PPO and IMPALA
    "actor_critic". Your own: "module:Class"."""
    critic: Literal["shared", "separate", "memoryless"] = "shared"
    """The network of the critic: "shared" is the actor's; "separate" is an encoder and a core of its own,
    with the settings of the actor's; "memoryless" is an encoder of its own without a core, for a critic that
    sees all that matters (critic_obs)."""
    critic_obs: tuple[str, ...] = ()
    """Keys of a Dict observation that only the critic sees, such as the observations of the whole team.
    Acting needs no such key. The critic needs a network of its own: critic = separate or memoryless."""
    normalise_observations: bool = True
    """Normalise Box observations by running statistics, except for images, grids of symbols and tokens."""
    normalise_last_action: bool = False
    """Normalise the last action (last_action_reward) even if it consists of one-hots. With many actions this
    makes them louder than the observation; runs from before this setting did it."""
    normalise_value: bool = True
    """PopArt: the critic predicts returns normalised by their running mean and standard deviation."""
    value_decay: float = 0.99
    """Decay of PopArt's return statistics per update."""
    precision: Precision = "auto"
    """Numerical precision of acting and learning: "fp32", "tf32" (products on a GPU are rounded to TF32) or
    "bf16" (the encoder, and on a GPU the products of LSTM and GRU, in bfloat16). "auto" is tf32 on a GPU,
    else fp32. On a GPU the action head, the critic and the first layer over numbers (in bf16 up to 16 of
    them) are always float32."""

    def __post_init__(self) -> None:
        for part in ("encoder", "core", "head"):
            object.__setattr__(self, part, as_own_code(part, getattr(self, part)))
        object.__setattr__(self, "encoder", _as_encoder(self.encoder))
        check_fields(self)
        if self.critic_obs and self.critic == "shared":
            raise ConfigError(
                f"critic_obs = {','.join(self.critic_obs)}: only the critic sees it, and critic = 'shared' "
                "has no network of its own: set critic='separate' (--critic separate) or 'memoryless'"
            )

    @property
    def encoder_spec(self) -> Any:
        """``encoder``; without one, frame stacks get the observations as they are."""
        core = as_config(self.core)
        is_stack = core == "frames" or isinstance(core, FramesConfig)
        return EncoderConfig(hidden=()) if is_stack and self.encoder is None else self.encoder

    def build(self, observation_space: Any, action_space: Any) -> Any:
        """The policy for these spaces."""
        return load("recollect.policy.policy:Policy")(observation_space, action_space, self)


POLICIES: dict[str, PolicyConfig] = {
    name: PolicyConfig(encoder=EncoderConfig(tokens=name))
    for name in ("fast", "latent_attn_tiny", "latent_attn_small", "latent_attn_med", "example")
}
"""Networks for token sets by name (``recollect.policy.tokens``), each with an LSTM; any other setting goes on
top. For observations without tokens they raise. tests/policy/test_zoo.py runs every one.

=====================  ==================================================================================
name                   how it reads the tokens
=====================  ==================================================================================
``fast``               drawn on a grid of cells, then two convolutions; the default for token sets
``latent_attn_tiny``   attention from 1 learned query of width 32: 4 heads, 2 layers
``latent_attn_small``  10 queries of width 64, 4 heads, 1 layer, then 2 of self-attention
``latent_attn_med``    10 queries of width 128, 8 heads, 3 layers, then 3 of self-attention
``example``            a small network for each token, then sum and maximum; an example to copy
=====================  ==================================================================================
"""


def named_policy(policy: Any, encoder: Any = None) -> Any:
    """The PolicyConfig of a name; anything else is returned unchanged.

    ``encoder``: the encoder that is set beside the name. A name chooses the encoder; another one is an error.
    """
    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise ConfigError(
            f"there is no policy {policy!r}{nearest(policy, POLICIES)}: choose {', '.join(POLICIES)}, which "
            "are for token sets; for other observations leave it out, and the network fits the space. Else "
            "give a PolicyConfig, or a function (observation_space, action_space) -> Policy"
        )
    if encoder is not None and getattr(encoder, "tokens", None) != policy:
        raise ConfigError(
            f"policy = {policy!r} is an encoder, and encoder is given besides: leave the policy out and "
            f"write encoder=EncoderConfig(tokens={policy!r}, ...), or leave the encoder out"
        )
    return POLICIES[policy]
