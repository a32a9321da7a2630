"""Policies by name: ``train(env, policy="fast", core="gru")``, ``--policy fast --core gru``.

Each is a PolicyConfig to start from, with an LSTM; any core, head or other setting goes on top. Those here
are for observations that are, or have among them, sets of tokens (``recollect.policy.tokens``): for any
other space they raise, and the network is chosen by the space if none is named.

=====================  ==================================================================================
name                   how it looks at the tokens
=====================  ==================================================================================
``fast``               drawn on a grid of cells, two convolutions; also what is taken if none is named
``latent_attn_tiny``   attention from 1 learned query of width 32: 4 heads, 2 layers
``latent_attn_small``  10 queries of width 64, 4 heads, 1 layer, then 2 of self-attention
``latent_attn_med``    10 queries of width 128, 8 heads, 3 layers, then 3 of self-attention
``example``            a small network for each token, then their sum and maximum; made to be copied
=====================  ==================================================================================

A new one joins ``POLICIES``, and thereby the tests of tests/policy/test_zoo.py, with one line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recollect.errors import ConfigError, nearest
from recollect.policy.encoders import EncoderConfig
from recollect.policy.policy import PolicyConfig

POLICIES: dict[str, Callable[[], PolicyConfig]] = {
    "fast": lambda: PolicyConfig(encoder=EncoderConfig(tokens="fast")),
    "latent_attn_tiny": lambda: PolicyConfig(encoder=EncoderConfig(tokens="latent_attn_tiny")),
    "latent_attn_small": lambda: PolicyConfig(encoder=EncoderConfig(tokens="latent_attn_small")),
    "latent_attn_med": lambda: PolicyConfig(encoder=EncoderConfig(tokens="latent_attn_med")),
    "example": lambda: PolicyConfig(encoder=EncoderConfig(tokens="example")),
}
"""The config of every policy that has a name."""


def named_policy(policy: Any, encoder: Any = None) -> Any:
    """The PolicyConfig of a name; whatever is no name comes back as it is.

    ``encoder``: what is set beside the name. A name is a choice of the encoder; another one is refused.
    """
    if not isinstance(policy, str):
        return policy
    if policy not in POLICIES:
        raise ConfigError(
            f"there is no policy {policy!r}{nearest(policy, POLICIES)}: choose {', '.join(POLICIES)}, which "
            "are for token sets; for other observations leave it out, and the network fits the space. Else "
            "give a PolicyConfig, or a function (observation_space, action_space) -> Policy"
        )
    config = POLICIES[policy]()
    tokens = config.encoder.tokens
    if encoder is not None and getattr(encoder, "tokens", None) != tokens:
        raise ConfigError(
            f"policy = {policy!r} is an encoder, and encoder is given besides: leave the policy out and "
            f"write encoder=EncoderConfig(tokens={tokens!r}, ...), or leave the encoder out"
        )
    return config
