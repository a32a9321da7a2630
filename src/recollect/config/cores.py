"""The settings of each core; ``core_specs`` has those of cores that contain other cores."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from recollect.base.parts import part_of
from recollect.config.fields import at_least, check_fields
from recollect.errors import ConfigError


class CoreConfig:
    """The settings of a core: a frozen dataclass whose fields all have defaults.

    A config may also have ``reaching(steps) -> config``: the same core, initialised so that it can remember
    over this many steps. The presets of tasks with a long memory use it.
    """

    __slots__ = ()
    section = "core."
    """Prefix of the settings in error messages."""
    code = ""
    """Module and class of a built-in core, which takes the input size and the config."""
    at_least_1: tuple[str, ...] = ()
    """Fields that must be at least 1; ``heads`` among them must divide ``hidden``."""
    at_least_2: tuple[str, ...] = ()
    """Fields that must be at least 2, or None."""

    def __post_init__(self) -> None:
        """Validate."""
        check_fields(self)
        at_least(self, 1, *self.at_least_1)
        at_least(self, 2, *self.at_least_2)
        if "heads" in self.at_least_1:
            _check_heads(self)

    def build(self, input_size: int) -> Any:
        """The core for inputs of ``input_size`` features."""
        part = part_of("core", self)
        if part is None:
            raise ConfigError(
                f"{type(self).__name__} is the config of no core: register one with "
                f"@recollect.register('core', NAME, config={type(self).__name__})"
            )
        return part.load()(input_size, self)


def _check_heads(config: Any) -> None:
    hidden, heads = config.hidden, config.heads
    if hidden % heads:
        fitting = -(-hidden // heads) * heads
        divisors = ", ".join(str(n) for n in range(1, hidden + 1) if hidden % n == 0)
        raise ConfigError(
            f"core.hidden = {hidden} is no multiple of core.heads = {heads}: use another width, such as "
            f"{fitting}, or one of {divisors} heads"
        )


class GatedConfig(CoreConfig):
    """The settings of a core with gates: ``chrono`` opens them for that many steps at the start."""

    __slots__ = ()
    at_least_2 = ("chrono",)

    def reaching(self, steps: int) -> Self:
        """With gates that start open for ``steps`` steps."""
        return replace(self, chrono=max(2, steps))  # pyright: ignore


@dataclass(frozen=True, slots=True)
class NoneConfig(CoreConfig):
    """The core without memory has no settings."""

    code = "recollect.cores.none:NoMemory"


@dataclass(frozen=True, slots=True)
class FramesConfig(CoreConfig):
    """Settings of frame stacks."""

    code = "recollect.cores.frames:Frames"
    at_least_1 = ("frames",)

    frames: int = 4
    """Number of inputs side by side, the present one included; at least 1."""


@dataclass(frozen=True, slots=True)
class LSTMConfig(GatedConfig):
    """Settings of the LSTM core."""

    code = "recollect.cores.lstm:LSTM"
    at_least_1 = ("hidden", "layers")

    hidden: int = 128
    """Size of h and c in every layer, and of the output."""
    layers: int = 1
    """Number of stacked layers; each takes the h of the one below."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    forget_bias: float = 1.0
    """Initial bias of the forget gates; with 1 the core remembers over a few steps from the start."""
    chrono: int | None = None
    """Longest time to remember, in steps, for chrono initialisation, which replaces forget_bias."""
    layer_norm: bool = False
    """Whether the input of every layer and the output are normalised; the recurrence is unchanged."""


@dataclass(frozen=True, slots=True)
class GRUConfig(GatedConfig):
    """Settings of the GRU core."""

    code = "recollect.cores.gru:GRU"
    at_least_1 = ("hidden", "layers")

    hidden: int = 128
    """Size of h in every layer, and of the output."""
    layers: int = 1
    """Number of stacked layers; each takes the h of the one below."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    chrono: int | None = None
    """Longest time to remember, in steps, for chrono initialisation of the update gates."""
    layer_norm: bool = False
    """Whether the input of every layer and the output are normalised; the recurrence is unchanged."""


@dataclass(frozen=True, slots=True)
class SLSTMConfig(GatedConfig):
    """Settings of the sLSTM core."""

    code = "recollect.cores.slstm:SLSTM"
    at_least_1 = ("hidden", "heads")

    hidden: int = 128
    """Size of h, c and m, and of the output."""
    heads: int = 4
    """Groups of units; the recurrent weights mix h only within a group."""
    norm: bool = True
    """Whether the output is normalised over each head, with a learned scale and shift."""
    forget_bias: float = 2.0
    """Initial bias of the forget gates; with 2 the core forgets over about eight steps."""
    chrono: int | None = None
    """Longest time to remember, in steps, for chrono initialisation, which replaces forget_bias."""


@dataclass(frozen=True, slots=True)
class MLSTMConfig(CoreConfig):
    """Settings of the mLSTM core."""

    code = "recollect.cores.mlstm:MLSTM"
    at_least_1 = ("hidden", "heads", "conv")

    hidden: int = 128
    """Size of the queries, keys and values of all heads together, and of the output."""
    heads: int = 4
    """Number of heads; each has a memory of (hidden / heads) squared numbers, and its own gates."""
    conv: int = 4
    """Steps of the convolution before queries, keys and output gates, the current one included;
    1: no convolution."""
    forget_min: float = 1.0
    """Initial bias of the first head's forget gate: it forgets over about e^forget_min steps."""
    forget_max: float = 6.0
    """Initial bias of the last head's forget gate; those between are evenly spread."""

    def __post_init__(self) -> None:
        CoreConfig.__post_init__(self)
        if self.forget_min > self.forget_max:
            raise ConfigError(
                f"core.forget_min = {self.forget_min!r} and core.forget_max = {self.forget_max!r}: they need "
                "forget_min <= forget_max, such as 1.0 and 6.0"
            )

    def reaching(self, steps: int) -> MLSTMConfig:
        """With a last head that starts to forget over at least ``steps`` steps."""
        return replace(self, forget_max=max(self.forget_max, math.log(max(2, steps))))


@dataclass(frozen=True, slots=True)
class MinGRUConfig(GatedConfig):
    """Settings of the minGRU core."""

    code = "recollect.cores.mingru_minlstm:MinGRU"
    at_least_1 = ("hidden", "convolution")

    hidden: int = 128
    """Size of h and of the output."""
    learned_initial_state: bool = False
    """Whether the state at the start of an episode is learned; otherwise it is zero."""
    chrono: int = 32
    """Longest time to remember, in steps: the initial gates are spread from one step to this."""
    convolution: int = 4
    """Steps of the convolution before the gates, the current one included; 1: no convolution."""

    def reaching(self, steps: int) -> Self:
        """With gates that start open for up to twice ``steps`` steps."""
        return replace(self, chrono=2 * max(1, steps))


@dataclass(frozen=True, slots=True)
class MinLSTMConfig(MinGRUConfig):
    """Settings of the minLSTM core."""

    code = "recollect.cores.mingru_minlstm:MinLSTM"


@dataclass(frozen=True, slots=True)
class LRUConfig(CoreConfig):
    """Settings of the LRU core."""

    code = "recollect.cores.lru_rtu:LRU"
    at_least_1 = ("hidden", "units")

    hidden: int = 128
    """Size of the output."""
    units: int = 128
    """Units of the state: complex numbers, or pairs of real ones."""
    r_min: float = 0.5
    """Smallest initial decay factor of a unit per step."""
    r_max: float = 0.99
    """Largest initial decay factor: a unit remembers for about 1 / (1 - r) steps."""
    max_phase: float = 3.1416
    """Largest initial angle, in radians, by which a unit turns in a step."""

    def __post_init__(self) -> None:
        CoreConfig.__post_init__(self)
        if not 0 <= self.r_min < self.r_max < 1:
            raise ConfigError(
                f"core.r_min = {self.r_min!r} and core.r_max = {self.r_max!r}: decay factors need "
                "0 <= r_min < r_max < 1; a unit remembers for about 1 / (1 - r) steps"
            )
        if not 0 < self.max_phase <= 2 * math.pi:
            raise ConfigError(
                f"core.max_phase = {self.max_phase!r}: it is an angle in radians, above 0 and at most 6.28"
            )

    def reaching(self, steps: int) -> Self:
        """With units that remember for a tenth of ``steps`` to twice as long."""
        steps = max(2, steps)
        return replace(self, r_min=math.exp(-10 / steps), r_max=math.exp(-0.5 / steps))


@dataclass(frozen=True, slots=True)
class RTUConfig(LRUConfig):
    """Settings of the RTU core."""

    code = "recollect.cores.lru_rtu:RTU"


@dataclass(frozen=True, slots=True)
class MambaConfig(CoreConfig):
    """Settings of the Mamba core."""

    code = "recollect.cores.mamba:Mamba"
    at_least_1 = ("hidden", "d_state", "expand", "dt_rank")
    at_least_2 = ("conv",)

    hidden: int = 128
    """Size of the output."""
    d_state: int = 16
    """Size of the state of every channel."""
    expand: int = 1
    """Number of channels, as a multiple of hidden."""
    conv: int = 4
    """Steps of the convolution, the current one included; at least 2."""
    dt_rank: int | None = None
    """Size of the bottleneck that computes the step sizes; None: a sixteenth of hidden."""
    dt_min: float = 0.01
    """Smallest initial step size. A memory with decay a fades over about 1 / (dt a) steps."""
    dt_max: float = 1.0
    """Largest initial step size."""
    a_min: float = 0.1
    """Smallest initial decay a = -A in every channel; the others are spread up to d_state."""

    def __post_init__(self) -> None:
        CoreConfig.__post_init__(self)
        if not 0 < self.a_min <= self.d_state:
            raise ConfigError(
                f"core.a_min = {self.a_min!r}: it must be above 0 and at most d_state = {self.d_state}, the "
                "largest decay"
            )
        if not 0 < self.dt_min <= self.dt_max < math.inf:
            raise ConfigError(
                f"core.dt_min = {self.dt_min!r} and core.dt_max = {self.dt_max!r}: step sizes need "
                "0 < dt_min <= dt_max, such as 0.01 and 1.0"
            )

    def reaching(self, steps: int) -> MambaConfig:
        """With a memory in every channel that fades over at least ``steps`` steps.

        The decays become slower, not the steps smaller, which would also write less.
        """
        return replace(self, a_min=min(self.a_min, 1 / (max(1, steps) * self.dt_max)))


@dataclass(frozen=True, slots=True)
class FFMConfig(CoreConfig):
    """Settings of Fast and Forgetful Memory."""

    code = "recollect.cores.ffm:FFM"
    at_least_1 = ("hidden", "trace", "context")
    at_least_2 = ("chrono",)

    hidden: int = 128
    """Size of the output."""
    trace: int = 32
    """Number of traces, the features of an input that are remembered."""
    context: int = 4
    """Rotation speeds of every trace; the state has 2 * trace * context numbers."""
    chrono: int = 128
    """Longest time to remember, in steps: the initial decays are spread from one step to this."""

    def reaching(self, steps: int) -> FFMConfig:
        """With traces that last for up to twice ``steps`` steps."""
        return replace(self, chrono=2 * max(1, steps))


@dataclass(frozen=True, slots=True)
class WindowConfig(CoreConfig):
    """Settings of the attention core."""

    code = "recollect.cores.window:Window"
    at_least_1 = ("hidden", "layers", "heads", "expansion")
    at_least_2 = ("window",)

    hidden: int = 128
    """Width of the residual stream, and of the output."""
    window: int = 64
    """Steps that a layer attends to, the current one included; at least 2."""
    layers: int = 1
    """Number of attention layers; each one extends the reach by window - 1 steps."""
    heads: int = 4
    """Attention heads of every layer; hidden must be a multiple of it."""
    expansion: int = 2
    """Width of the hidden layer of every MLP, as a multiple of hidden."""
    gating: Literal["residual", "gtrxl"] = "residual"
    """How a block joins the stream: added (residual), or by GTrXL's gate, which starts near identity."""

    def reaching(self, steps: int) -> WindowConfig:
        """With a window that holds a step, the step ``steps`` before it, and one more."""
        return replace(self, window=max(self.window, steps + 2))
