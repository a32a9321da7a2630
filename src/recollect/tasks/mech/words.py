"""An observation of a mech in words."""

from __future__ import annotations

from math import hypot
from typing import Any

import numpy as np

from recollect.tasks.mech.observe import CONTACT, OWN
from recollect.tasks.mech.rules import CLASSES, CONTACTS, HALF, SEEN


def describe(obs: Any) -> str:
    """Class, health and heat of the mech, the way to the zone, and its contacts, as it observes them."""
    vector = np.asarray(obs["vector"] if isinstance(obs, dict) else obs, np.float64)
    own = dict(zip(OWN, vector.tolist()))
    if own["hit points"] <= 0:
        return "destroyed"
    kind = next(each.name for each in CLASSES if own[f"is {each.name}"] > 0)
    parts = [f"{kind} with {own['hit points']:.0%} hp", f"heat {own['heat']:.0%}"]
    parts += [state for state in ("fallen", "shut down", "painted") if own[state] > 0]
    parts += [name for name in ("ECM", "ECCM") if own[name] > 0]
    way = _way(own["zone ahead"], own["zone to the left"])
    zone = "in the zone" if own["inside"] > 0 else f"zone {own['distance to the zone'] * HALF:.0f} m {way}"
    parts.append(f"{zone}, contested" if own["contested"] > 0 else zone)
    contacts = vector[len(OWN) : len(OWN) + CONTACTS * len(CONTACT)].reshape(CONTACTS, -1)
    parts += [_contact(dict(zip(CONTACT, each))) for each in contacts.tolist() if each[0] > 0]
    return ", ".join(parts)


def _contact(found: dict[str, float]) -> str:
    """Such as ``enemy heavy 8 m ahead (40% hp, painted)``."""
    # The class is known by its weight, which is relative to that of the heaviest.
    heaviest = max(each.tons for each in CLASSES)
    kind = min(CLASSES, key=lambda each: abs(each.tons - found["tons"] * heaviest)).name
    side = "enemy" if found["is an enemy"] > 0 else "friend"
    state = [f"{found['hit points']:.0%} hp"]
    state += [name for name in ("painted", "shut down") if found[name] > 0]
    way = _way(found["ahead"], found["to the left"])
    return f"{side} {kind} {found['distance'] * SEEN:.0f} m {way} ({', '.join(state)})"


def _way(ahead: float, left: float) -> str:
    """One of eight directions, such as ``ahead left``."""
    part = hypot(ahead, left) * 0.38  # the sine of half of 45 degrees
    along = "ahead" if ahead > part else "behind" if ahead < -part else ""
    aside = "left" if left > part else "right" if left < -part else ""
    return " ".join(filter(None, (along, aside))) or "here"
