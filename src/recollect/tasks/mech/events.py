"""What happens in a game of the mech arena, found in the states before and after each decision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recollect.tasks.mech import body, zone
from recollect.tasks.mech.arena import MechArena
from recollect.tasks.mech.rules import CLASSES, MOUNTS, roster

STREAK = 4
"""Hits of a mech on another, with less than so many decisions between them, are one event."""
EMPTY, CONTESTED = 0, 3
"""The holder of the zone: nobody, 1 for blue, 2 for red, both."""
Event = dict[str, Any]
"""``at``: the number of decisions before it; ``kind``; and by kind ``who``, ``whom`` (rows), ``amount``,
``until``, ``value``."""


class Events:
    """The events of slot 0, in the order of time."""

    def __init__(self) -> None:
        self.found: list[Event] = []
        self._before: dict[str, Tensor] = {}
        self._hits: dict[tuple[int, int], Event] = {}
        self._at = 0

    def add(self, arena: MechArena) -> None:
        """Compare the present state with the one before."""
        now, before = _facts(arena), self._before
        self._before = now
        if not before:
            return
        self._at += 1
        n = arena.mechs

        def begins(name: str) -> list[int]:
            return (now[name] & ~before[name]).flatten().nonzero().flatten().tolist()

        damage = now["dealt"] - before["dealt"]
        for side, i, j in damage.nonzero().tolist():
            self._hit(side * n + i, (1 - side) * n + j, float(damage[side, i, j]))
        for row in begins("painted"):
            painter = (1 - row // n) * n + int(arena.painter[0].flatten()[row])
            self._add("paint", who=painter, whom=row)
        for row in now["smokes"].flatten().nonzero().flatten().tolist():
            self._add("smoke", who=row)
        for kind in ("fall", "shutdown", "legs"):
            for row in begins(kind):
                self._add(kind, who=row)
        for row in begins("dead"):
            self._add("kill", who=_killer(arena, damage, row), whom=row)
        if now["zone"] != before["zone"]:
            self._add("zone", value=int(now["zone"]))

    def end(self, ended: str, won: int) -> list[Event]:
        """All events, with the end of the game."""
        self._add("end", value=won, how=ended)
        return self.found

    def _add(self, kind: str, **more: Any) -> Event:
        self.found.append({"at": self._at, "kind": kind, **more})
        return self.found[-1]

    def _hit(self, who: int, whom: int, amount: float) -> None:
        last = self._hits.get((who, whom))
        if last is None or self._at - last["until"] > STREAK:
            last = self._hits[who, whom] = self._add("hit", who=who, whom=whom, amount=0.0)
        last["until"] = self._at
        last["amount"] = round(last["amount"] + amount, 3)


def holder(arena: MechArena) -> Tensor:
    """0-d int64: who holds the zone of slot 0."""
    inside = zone.hold(arena).inside[0].any(1).long()
    return inside[0] + 2 * inside[1]


def _facts(arena: MechArena) -> dict[str, Tensor]:
    """Copies of what is compared, [2, N] mostly; states that a dead mech cannot enter are false for it."""
    alive = arena.alive[0]
    smoke = torch.tensor([CLASSES[number].mounts[MOUNTS - 1] == "smoke" for number in roster(arena.mechs)])
    return {
        "dealt": arena.dealt[0].cpu().clone(),
        "painted": ((arena.painted[0] > 0) & alive).cpu(),
        "fall": ((arena.down[0] > 0) & alive).cpu(),
        "shutdown": (alive & ~body.senses(arena)[0]).cpu(),
        "legs": ((arena.legs[0] <= 0) & alive).cpu(),
        "dead": ~alive.cpu(),
        "smokes": arena.fired[0, :, :, MOUNTS - 1].cpu() & smoke,
        "zone": holder(arena).cpu(),
    }


def _killer(arena: MechArena, damage: Tensor, row: int) -> int:
    """The row of the enemy that destroyed the mech ``row``: of those that are paid for a kill in this
    decision, the one that did it most damage."""
    n = arena.mechs
    other, mech = 1 - row // n, row % n
    did = damage[other, :, mech]
    paid = did * (arena.parts["kill"][0, other].cpu() != 0)
    return other * n + int((paid if bool(paid.any()) else did).argmax())
