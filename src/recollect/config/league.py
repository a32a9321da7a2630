"""The settings of ``vs="league"``, which are its ``vs_kwargs``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from recollect.config.convert import convert
from recollect.config.fields import above_zero, at_least, check_fields, check_names, hints
from recollect.errors import ConfigError

LEAGUE = "league"
"""The ``vs`` of a run against a league, and the name of its folder in the run."""
SNAPSHOT = re.compile(r"s(0|[1-9][0-9]{0,8})")
"""The names of the snapshots that a run makes of its agent."""
ADDED = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,49}")
"""The names that an agent from elsewhere may have in a league, but those of ``SNAPSHOT``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeagueConfig:
    """How opponents are chosen and snapshots become members."""

    matchmaking: Literal["pfsp", "uniform", "latest"] = "pfsp"
    """Which members are opponents: those that win most against the agent more often ("pfsp"), all equally
    often ("uniform"), or the newest snapshot only ("latest")."""
    self_play: float = 0.2
    """Share of the games against the newest snapshot, whatever its chance by ``matchmaking``."""
    promote_every: int = 100_000
    """Env steps between two snapshots of the agent. The first is made before the training."""
    gate: float | None = None
    """Share of games that a snapshot has to win against the newest member to become a member itself; a draw
    counts half. None: every snapshot becomes a member."""
    gate_games: int = 100
    """Number of these games, half of them on each side."""
    refresh_every: int = 20_000
    """Env steps after which opponents and their chances are chosen anew. A game keeps its opponent."""
    opponents: int = 8
    """Most members that are opponents between two such choices; each has its weights in memory."""
    member: str | None = None
    """Only this member, such as "s3", in an evaluation."""
    folder: str | None = None
    """The folder of the league. None: ``league`` in the folder of the run."""

    section = "vs."

    def __post_init__(self) -> None:
        """Validate."""
        check_fields(self)
        at_least(self, 1, "promote_every", "gate_games", "refresh_every", "opponents")
        at_least(self, 0, "self_play")
        above_zero(self, "gate")
        for name in ("self_play", "gate"):
            if (getattr(self, name) or 0) > 1:
                raise ConfigError(f"vs.{name} = {getattr(self, name)}: it is a share, at most 1")


def league_config(options: Mapping[str, Any]) -> LeagueConfig:
    """The settings in ``TrainConfig.vs_kwargs``, which may be words of a command line."""
    check_names("vs = 'league'", LeagueConfig, options)
    kinds = hints(LeagueConfig)
    return LeagueConfig(
        **{
            name: convert(value, kinds[name], f"vs.{name}") if isinstance(value, str) else value
            for name, value in options.items()
        }
    )
