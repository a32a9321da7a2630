"""The algorithms by name: ``train(env, algo="impala", rho_clip=1.0)``, ``--algo impala --rho-clip 1``."""

from __future__ import annotations

from typing import Any

from recollect.base import parts
from recollect.config.algo_shared import AlgoConfig
from recollect.config.fields import field_names
from recollect.config.impala import ImpalaConfig
from recollect.config.iqn import IQNConfig
from recollect.config.ppo import PPOConfig
from recollect.config.r2d2 import R2D2Config
from recollect.errors import ConfigError, nearest

parts.add_built_in(
    "algo",
    {
        "ppo": (PPOConfig, "recollect.algos.ppo"),
        "impala": (ImpalaConfig, "recollect.algos.impala"),
        "r2d2": (R2D2Config, "recollect.algos.r2d2"),
        "iqn": (IQNConfig, "recollect.algos.iqn"),
    },
)
ALGOS = parts.Configs("algo")
"""The config class of every algorithm, including those that users register."""


def named_algo(algo: Any) -> AlgoConfig:
    """The config of a name; a config is returned unchanged."""
    if parts.part_of("algo", algo) is not None:
        return algo
    if not isinstance(algo, str) or algo not in ALGOS:
        near = nearest(algo, ALGOS) if isinstance(algo, str) else ""
        kinds = " or ".join(kind.__name__ for kind in ALGOS.values())
        raise ConfigError(
            f"algo = {algo!r}{near}: choose {' or '.join(ALGOS)}, or give a {kinds}; {parts.IF_OWN}"
        )
    return ALGOS[algo]()


def algo_name(config: AlgoConfig) -> str:
    """The name of the algorithm that a config belongs to."""
    return next(name for name, kind in ALGOS.items() if type(config) is kind)


def algo_fields() -> dict[str, list[str]]:
    """Every setting of an algorithm, and the names of the algorithms that have it."""
    found: dict[str, list[str]] = {}
    for name, kind in ALGOS.items():
        for field in field_names(kind):
            found.setdefault(field, []).append(name)
    return found


def check_has(algo: str, setting: str, where: str, fix: str) -> None:
    """Raise if only other algorithms have this setting; ``fix``: how to choose one, with {} for its name."""
    having = algo_fields()[setting]
    if algo not in having:
        raise ConfigError(
            f"{where}: {algo} has no such setting, {' and '.join(having)} has: leave it out, or choose "
            f"{fix.format(having[0])}"
        )
