"""What a game of the mech arena is made of, for the slow truth in ``mech.py``."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from recollect.tasks.mech.rules import Class

F = np.float32
Key = tuple[int, int]
"""Side and number of a mech."""


class Mech(SimpleNamespace):
    """A mech with the fields of the task, those of pairs as lists over the enemies."""

    side: int
    number: int
    kind: Class

    def __getattr__(self, name: str) -> Any:  # for type checkers: fields come from the task
        raise AttributeError(name)

    @property
    def key(self) -> Key:
        return self.side, self.number

    @property
    def lives(self) -> bool:
        return bool(self.hp > 0)

    @property
    def senses(self) -> bool:
        return bool(self.lives and self.heat <= F(self.kind.heat_cap))

    @property
    def is_active(self) -> bool:
        return bool(self.senses and self.down <= 0)

    @property
    def is_scout(self) -> bool:
        return self.kind.name == "scout"


@dataclass
class Order:
    """What a mech shall do: the parts of its action, and the number of the enemy it aims at (-1: none)."""

    forward: F
    strafe: F
    jump: F
    turn: F
    fire: list[bool]
    aim: int


@dataclass
class Hit:
    by: Mech
    on: Mech
    damage: float = 0.0
    stability: float = 0.0
    heat: float = 0.0
    paints: bool = False
    missile: bool = False
    suppresses: bool = False


@dataclass
class Outcome:
    """The parts of each mech's reward and their sum, and whether the game is decided."""

    parts: dict[Key, dict[str, F]] = field(default_factory=dict)
    reward: dict[Key, F] = field(default_factory=dict)
    is_over: bool = False


def unit(value: float) -> F:
    """A number of an action: from -1 to 1; what is no number is 0."""
    return F(0.0) if np.isnan(value) else F(min(max(value, -1.0), 1.0))


def norm(*vector: F) -> F:
    """The length of a vector."""
    return np.sqrt(sum((v * v for v in vector[1:]), vector[0] * vector[0]))
