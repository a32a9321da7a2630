"""The numbers of the mech arena: classes, weapons, time, distances.

Metres, seconds, degrees; damage in hit points. Sums over mechs are of numbers that float32 adds without
rounding (multiples of 1/8), so that no order of summation matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, radians

DT = 0.05
"""Seconds of a simulation step."""
RATE = 20.0
"""Simulation steps of a second. To multiply by it rounds alike everywhere, to divide by ``DT`` does not."""
SUBSTEPS = 5
"""Simulation steps of a decision."""
DECISION = 0.25
"""Seconds of a decision."""
HALF = 50
"""Half the side of the map, whose centre is (0, 0). Cells are 1 m wide."""
PACK = 5
"""Mechs of a pack: those who hear each other's messages."""
WORDS = 8
"""Numbers in a message."""
CONTACTS = 5
"""Contact slots of a mech."""
FRIENDS = 3
"""Contact slots for friends, unless all are for enemies. One more is for an enemy, one is reserved."""
SAMPLES = 16
"""Points at which a line of sight is tested, evenly spaced and symmetric about its middle."""
GRAVITY = 9.81
BORDER = 49.5
"""Farthest that a mech can be from the centre along an axis."""
CEILING = 8.0
"""Jump jets push up to this height above the ground."""
RADIUS = 0.75
"""Two mechs on the ground keep twice this distance; shots hit within ``HIT_RADIUS`` of a mech's middle."""
HIT_RADIUS = 1.0
HEIGHT = 2.0
"""Of a mech: it sees, fires and is hit at half of it above its feet."""
STEP_UP = 1.0
"""Highest step that a mech walks up; shots fly into what is higher than they are."""
SEEN = 14.0
"""Sensor range without electronic warfare."""
HEARD = 40.0
"""Farthest source of sound that is felt."""


@dataclass(frozen=True, slots=True)
class Class:
    """A class of mechs."""

    name: str
    speed: float
    turn: float
    """rad/s."""
    hp: float
    leg_hp: float
    heat_cap: float
    heat_loss: float
    """Per second."""
    jet: float
    """Upward acceleration of the jump jets, m/s^2."""
    tons: float
    noise: float
    """Mass factor of its sound."""
    mounts: tuple[str, str, str, str, str]
    """The weapon of each mount: primary, secondary, tertiary, second tertiary, special; "": none."""


CLASSES = (
    Class("scout", 7.0, 1.8, 60, 30, 75, 13, 18, 20, 1.0, ("paint", "", "", "", "smoke")),
    Class("light", 6.8, 1.5, 80, 40, 80, 12, 16, 35, 1.5, ("flamer", "laser", "paint", "", "smoke")),
    Class("medium", 5.5, 1.0, 150, 75, 100, 11, 0, 55, 2.5, ("laser", "", "autocannon", "paint", "smoke")),
    Class("heavy", 2.5, 0.6, 200, 100, 130, 10, 0, 85, 4.0, ("laser", "missile", "gauss", "", "smoke")),
)
SCOUT, LIGHT, MEDIUM, HEAVY = range(4)
MOUNTS = 5
TRIGGERS = (0, 1, 2, 2, 3)
"""The trigger that fires each mount: primary, secondary, tertiary, tertiary, special. Trigger 4 vents."""
TRIGGER_NAMES = ("primary", "secondary", "tertiary", "special", "vent")
VENT = 4

PACK_ROSTER = (HEAVY, MEDIUM, MEDIUM, LIGHT, SCOUT)
"""The classes of a pack, in the order of its mechs. Smaller teams are the first mechs of it."""


def roster(mechs: int) -> list[int]:
    """The class of each mech of a side: packs, or a single medium."""
    return [MEDIUM] if mechs == 1 else [PACK_ROSTER[i % PACK] for i in range(mechs)]


@dataclass(frozen=True, slots=True)
class Weapon:
    """A weapon."""

    name: str
    range: float
    damage: float
    stability: float
    """Stability that a hit takes."""
    heat: float
    """Of the mech that fires."""
    cooldown: float
    arc: float
    """Degrees, symmetric about the heading."""
    speed: float = 0.0
    """Of its shots, m/s; 0: it hits at once."""
    target_heat: float = 0.0
    """Heat that a hit adds to the target."""
    splash: float = 0.0
    """Radius in which others take half of the damage; 0: none."""

    @property
    def cos_half_arc(self) -> float:
        """The cosine of half the arc."""
        return round(cos(radians(self.arc / 2)), 12)


WEAPONS = {
    weapon.name: weapon
    for weapon in (
        Weapon("laser", 8, 14, 0, 22, 0.6, 120, target_heat=6),
        Weapon("flamer", 4.5, 4, 0, 10, 0.15, 90, target_heat=15),
        Weapon("missile", 50, 40, 15, 45, 3, 180, 12, splash=2.5),
        Weapon("gauss", 20, 50, 60, 15, 4, 60, 40, splash=1.5),
        Weapon("autocannon", 12, 8, 5, 6, 0.2, 90, 25),
        Weapon("paint", 10, 0, 0, 5, 1, 60),
        Weapon("smoke", 20, 0, 0, 10, 5, 180, 15),
    )
}
MISSILE_IN_SIGHT = 12.0
"""Range of a missile at a target that is in sight, but not painted."""
SPLASH_SHARE = 0.5
REAR = round(cos(radians(45)), 12)
REAR_FACTOR = 1.5
PAINTED = 5.0
"""Seconds that paint lasts."""
SUPPRESSED = 1.2
"""Seconds after a hit by an autocannon in which stability is regained at ``SUPPRESSION`` of its rate."""
SUPPRESSION = 0.25
SMOKE_RADIUS = 4.0
SMOKE_LASTS = 10.0
SMOKE_AHEAD = 10.0
"""How far ahead a smoke shell falls if the mech aims at nothing."""
SHOTS = 3
"""Shots of a mech that can be under way: two missiles and a gauss slug, or three shells of an autocannon."""
CLOUDS = 3
"""Clouds of a mech that can exist, including one that is still a shell."""

STABILITY = 100.0
REGAIN = 10.0
"""Stability per second; half while moving, half without legs."""
FALL_SECONDS = 3.0
RISEN = 50.0
"""Stability after a fall."""
LEGLESS = 0.4
"""Factor of the speed without legs."""
BACKWARD = 0.5
"""Factor of the speed backward and sideways."""
LEG_SHARE = 0.25
"""Share of all damage that the legs take as well, from their own points."""
JET_HEAT = 20.0
"""Heat per second of the jump jets."""

OFF, ECM, ECCM = range(3)
EWAR_HEAT = (0.0, 3.0, 2.0)
EWAR_RADIUS = 50.0
JAMMED, CLEARED, LEAST, MOST = 0.85, 0.65, 0.25, 1.5
"""Sensor range is ``SEEN`` * clip(1 - JAMMED * jam + CLEARED * eccm, LEAST, MOST)."""

ZONE_RADIUS = 7.5
"""Of the zone around the centre, times a number from 0.5 to 1.5 that is drawn for each game."""
CONTESTED = 0.25
"""Tick of a contested zone, plus the side's margin in tonnage as a share of all tons inside."""
