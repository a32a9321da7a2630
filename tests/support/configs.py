"""Configs drawn by Hypothesis, for whatever must go there and back."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from recollect.config.policy import EncoderConfig, HeadConfig
from recollect.config.train import TrainConfig
from recollect.cores import GRUConfig, LSTMConfig, NoneConfig

positive = st.floats(1e-8, 1e3)
fraction = st.floats(0, 1, exclude_max=True)
shape = st.sampled_from(["constant", "linear", "cosine"])
words = st.text("abcno019-_./: #'\"{}[],&*!|>%@`~é", max_size=8)
chrono = st.none() | st.integers(2, 1000)


def _some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of the fields, the others by their defaults."""
    return st.fixed_dictionaries({}, optional=fields)


cores = st.one_of(
    st.sampled_from(["lstm", "gru", "none"]),
    _some(
        hidden=st.integers(1, 512), layers=st.integers(1, 3), chrono=chrono, forget_bias=st.floats(-3, 3)
    ).map(lambda fields: LSTMConfig(**fields)),
    _some(hidden=st.integers(1, 512), learned_initial_state=st.booleans(), chrono=chrono).map(
        lambda fields: GRUConfig(**fields)
    ),
    st.just(NoneConfig()),
)
encoders = st.none() | st.sampled_from(["auto", "mlp", "conv"])
encoders |= _some(
    hidden=st.lists(st.integers(1, 300), max_size=3).map(tuple),
    activation=st.sampled_from(["tanh", "relu", "silu"]),
    layer_norm=st.booleans(),
    images=st.sampled_from(["auto", "always", "never"]),
    tokens=st.sampled_from(["auto", "fast", "latent_attn_med", "never"]),
).map(lambda fields: EncoderConfig(**fields))
heads = _some(
    squash=st.sampled_from(["auto", True, False]), gain=st.floats(0, 10), log_std_init=st.floats(-4, 0.5)
).map(lambda fields: HeadConfig(**fields))

settings = _some(
    steps=st.integers(1, 10**12),
    num_envs=st.integers(1, 4096),
    seed=st.integers(0, 2**63 - 1),
    device=st.sampled_from(["cpu", "cuda", "cuda:1"]),
    target_return=st.none() | st.floats(-1e6, 1e6),
    last_action_reward=st.booleans(),
    threads=st.none() | st.integers(1, 64),
    parallel=st.sampled_from(["rows", "operations"]),
    init_from=st.none() | words.filter(lambda text: text.strip().lower() not in ("none", "null", "~", "")),
    sinks=st.sampled_from([(), ("tensorboard",), ("tensorboard", "wandb")]),
    max_seconds=st.none() | positive,
    memory_limit=st.none() | positive,
    rollout=st.integers(32, 256),
    chunk=st.integers(1, 32),
    recurrent_mode=st.sampled_from(["stored_state", "full"]),
    learning_rate=positive,
    critic_learning_rate=st.none() | positive,
    learning_rate_schedule=shape,
    learning_rate_warmup=fraction,
    gamma=fraction,
    clip=positive,
    entropy=st.floats(0, 1),
    target_kl=st.none() | positive,
    normalise_advantages=st.booleans(),
    tolerance=positive,
    normalise_value=st.booleans(),
    value_decay=fraction,
    core=cores,
    encoder=encoders,
    head=heads,
    algo=st.sampled_from(["ppo", "impala"]),
)
"""Some settings by the names that ``recollect.train`` takes."""
configs = settings.map(lambda values: TrainConfig().override(**values))
