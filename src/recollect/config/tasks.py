"""The options of the built-in tasks: ``--task.length 100``, ``env_kwargs={"length": 100}``."""

# ruff: noqa: RUF012 (the tables of sizes and bounds are never changed)
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args, get_type_hints

from recollect.errors import ConfigError

Size = Literal["easy", "medium", "hard"]
MOST = 10**6
"""Largest value of an option: tables are made of them."""


class TaskOptions:
    """The options of a task. The ``size`` decides those that are None."""

    __slots__ = ()
    name = ""
    """The short name, as in ``recollect train NAME``."""
    id = ""
    """The id in Gymnasium."""
    has_agents = False
    """Whether several agents play it, so that it is an env of PettingZoo, not of Gymnasium."""
    sizes: dict[str, dict[str, Any]] = {}
    """The options of each size: whole numbers, or floats."""
    bounds: dict[str, tuple[float, float]] = {}
    """Smallest and largest value of an option; 1 and ``MOST`` where nothing is said."""

    @classmethod
    def sizes_text(cls) -> str:
        """The sizes in words."""
        words = {size: ", ".join(f"{o} {v}" for o, v in each.items()) for size, each in cls.sizes.items()}
        return "; ".join(f"{size}: {options}" for size, options in words.items())

    def numbers(self) -> list[Any]:
        """The options of ``sizes``, in their order; the size decides those that are None."""
        size = getattr(self, "size", "")
        if self.sizes and size not in self.sizes:
            raise ConfigError(f"{self.name} has no size {size!r}: choose one of {', '.join(self.sizes)}")
        found = []
        for option, usual in self.sizes.get(size, {}).items():
            value = usual if getattr(self, option) is None else getattr(self, option)
            least, most = self.bounds.get(option, (1, MOST))
            is_float = isinstance(usual, float)
            if not isinstance(value, (int, float) if is_float else int) or not least <= value <= most:
                raise ConfigError(
                    f"{self.name}: {option} is {value!r}; it must be a {'' if is_float else 'whole '}number "
                    f"from {least} to {most}"
                )
            found.append(float(value) if is_float else value)
        return found

    def choice(self, option: str) -> str:
        """The value of an option that is a Literal."""
        value, allowed = getattr(self, option), get_args(get_type_hints(type(self))[option])
        if value not in allowed:
            raise ConfigError(f"{self.name}: {option} is {value!r}; choose one of {', '.join(allowed)}")
        return value


@dataclass(frozen=True, slots=True)
class SizedOptions(TaskOptions):
    """The options of a task of several sizes."""

    size: Size = "easy"
    """Sets the other options."""


@dataclass(frozen=True, slots=True)
class DelayedCueOptions(SizedOptions):
    """Delayed cue: see one of a few cues, wait, say which it was."""

    name, id = "delayed-cue", "recollect/DelayedCue-v0"
    sizes = {
        "easy": {"cues": 2, "horizon": 10},
        "medium": {"cues": 4, "horizon": 100},
        "hard": {"cues": 8, "horizon": 1000},
    }
    bounds = {"cues": (2, 4096), "horizon": (0, MOST)}

    cues: int | None = None
    """Number of different cues."""
    horizon: int | None = None
    """Blank steps between cue and query."""


@dataclass(frozen=True, slots=True)
class CopyOptions(SizedOptions):
    """Copy: read a few symbols, wait, write them down in the same order."""

    name, id = "copy", "recollect/Copy-v0"
    sizes = {
        "easy": {"length": 3, "delay": 10},
        "medium": {"length": 5, "delay": 50},
        "hard": {"length": 10, "delay": 100},
    }
    bounds = {"delay": (0, MOST)}

    length: int | None = None
    """Symbols to copy."""
    delay: int | None = None
    """Blank steps between reading and writing."""


@dataclass(frozen=True, slots=True)
class AssociativeRecallOptions(SizedOptions):
    """Associative recall: see pairs of a key and a value, then say the value of each key."""

    name, id = "associative-recall", "recollect/AssociativeRecall-v0"
    sizes = {"easy": {"pairs": 3}, "medium": {"pairs": 5}, "hard": {"pairs": 10}}
    bounds = {"pairs": (1, 2048)}

    pairs: int | None = None
    """Pairs of key and value."""


@dataclass(frozen=True, slots=True)
class RepeatPreviousOptions(SizedOptions):
    """Repeat previous (POPGym): say at every step the suit of the card k - 1 steps back."""

    name, id = "repeat-previous", "recollect/RepeatPrevious-v0"
    sizes = {
        "easy": {"decks": 1, "k": 4},
        "medium": {"decks": 2, "k": 32},
        "hard": {"decks": 3, "k": 64},
    }

    decks: int | None = None
    """Decks of 52 cards."""
    k: int | None = None
    """The card to name, counted back from the current one, which is 1."""


@dataclass(frozen=True, slots=True)
class RepeatFirstOptions(SizedOptions):
    """Repeat first (POPGym): say at every step the suit of the first card."""

    name, id = "repeat-first", "recollect/RepeatFirst-v0"
    sizes = {"easy": {"decks": 1}, "medium": {"decks": 8}, "hard": {"decks": 16}}

    decks: int | None = None
    """Decks of 52 cards."""


@dataclass(frozen=True, slots=True)
class TMazeOptions(SizedOptions):
    """T-maze: a sign at the start says where to turn at the end of a long corridor."""

    name, id = "t-maze", "recollect/TMaze-v0"
    sizes = {"easy": {"length": 10}, "medium": {"length": 50}, "hard": {"length": 250}}

    length: int | None = None
    """Cells of the corridor."""


@dataclass(frozen=True, slots=True)
class PositionCartPoleOptions(TaskOptions):
    """CartPole without velocities: balance a pole, seeing where things are but not how they move."""

    name, id = "position-cartpole", "recollect/PositionCartPole-v0"


@dataclass(frozen=True, slots=True)
class PositionPendulumOptions(TaskOptions):
    """Pendulum without velocities: swing a pole up, seeing where it is but not how it moves."""

    name, id = "position-pendulum", "recollect/PositionPendulum-v0"


@dataclass(frozen=True, slots=True)
class ForageOptions(SizedOptions):
    """Forage: carry food from bushes to a nest, through a world of which only the next cells are seen."""

    name, id = "forage", "recollect/Forage-v0"
    sizes = {
        "easy": {"side": 9, "kinds": 1, "view": 1, "limit": 100},
        "medium": {"side": 11, "kinds": 2, "view": 1, "limit": 100},
        "hard": {"side": 11, "kinds": 4, "view": 1, "limit": 200},
    }

    side: int | None = None
    """Side of the square world, in cells."""
    kinds: int | None = None
    """Kinds of bushes."""
    view: int | None = None
    """How far the agent sees, in cells."""
    limit: int | None = None
    """Steps of an episode."""


@dataclass(frozen=True, slots=True)
class TreasureHuntOptions(TaskOptions):
    """Treasure hunt: agents that see only nearby cells share a grid in which treasures appear."""

    name, id = "treasure-hunt", "recollect/TreasureHunt-v0"
    has_agents = True
    sizes = {
        "large": {"side": 21, "agents": 2, "view": 2, "items": 3, "spawn": 0.005, "length": 100},
        "small": {"side": 10, "agents": 5, "view": 2, "items": 1, "spawn": 0.02, "length": 50},
    }
    bounds = {"side": (3, 101), "agents": (1, 64), "view": (1, 10), "items": (1, 3), "spawn": (1e-6, 1.0)}

    size: Literal["large", "small"] = "large"
    """Sets the other options that are numbers."""
    side: int | None = None
    """Side of the square grid, in cells, with its walls."""
    agents: int | None = None
    """Agents in one grid."""
    view: int | None = None
    """How far an agent sees, in cells."""
    items: int | None = None
    """Kinds of items: 1: gems; 2: also bones; 3: also food."""
    spawn: float | None = None
    """Probability that an item appears in an empty cell in a turn."""
    length: int | None = None
    """Turns of an episode."""
    obs: Literal["onehot", "rgb"] = "onehot"
    """Observation of a cell: its kind one-hot, or its colour."""
    order: Literal["index", "random"] = "index"
    """Order in which agents move within a turn: by their number, or in a new random order in every turn."""


@dataclass(frozen=True, slots=True)
class RecallDuelOptions(SizedOptions):
    """Recall duel: two players see the same cues, wait, and then bid on who remembers each of them."""

    name, id = "recall-duel", "recollect/RecallDuel-v0"
    has_agents = True
    sizes = {
        "easy": {"cues": 3, "delay": 4},
        "medium": {"cues": 4, "delay": 50},
        "hard": {"cues": 8, "delay": 200},
    }
    bounds = {"cues": (2, 1024), "delay": (0, MOST)}

    cues: int | None = None
    """Number of different cues."""
    delay: int | None = None
    """Blank steps between the cues and the rounds."""


@dataclass(frozen=True, slots=True)
class MechOptions(TaskOptions):
    """Mech arena: two teams of mechs fight for a zone, seeing only what their sensors reach."""

    name, id = "mech", "recollect/MechArena-v0"
    has_agents = True
    sizes = {
        "duel": {"mechs": 1, "limit": 60, "maps": 16},
        "5v5": {"mechs": 5, "limit": 60, "maps": 16},
        "10v10": {"mechs": 10, "limit": 60, "maps": 16},
    }
    bounds = {"mechs": (1, 20), "limit": (1, 3600), "maps": (1, 1024)}

    size: Literal["duel", "5v5", "10v10"] = "10v10"
    """Sets mechs, limit and maps. The mechs of duel are mediums; others come in packs of five: heavy, two
    mediums, light, scout."""
    mechs: int | None = None
    """Mechs of a team."""
    limit: int | None = None
    """Seconds of a game. A decision takes a quarter of a second."""
    maps: int | None = None
    """Size of the pool of maps that games are played on."""
    map_seed: int = 0
    """Random seed of the pool of maps."""
    game_seed: int | None = None
    """All games start as the first of this random seed: same map, zone, places. None: each as it is drawn."""
    team: int | None = None
    """Mechs of a team that take part, at most ``mechs``; the others are absent. A curriculum may change it:
    that applies from the next game of each slot on. Without it all take part."""
    sensing: Literal["partial", "full"] = "partial"
    """Contacts are enemies that sensors see, or all living enemies."""
    comms: bool = True
    """Whether messages reach the mechs of the own pack."""
    ewar: bool = True
    """Whether scouts can jam and clear sensors."""
    target_selection: bool = True
    """Whether weapons aim at the chosen contact. Otherwise, and without a choice, they take the nearest."""
    contact_sort: bool = True
    """Whether a mech chooses the order of its contacts, and whether all are hostile. Otherwise the nearest
    come first."""
    spaces: Literal["hybrid", "flat"] = "hybrid"
    """Actions of parts, with masks in the observation; or one Box, and an observation without masks."""
    zone_reward: float = 3.0
    """Per second in the zone, times the team's tick, for mechs inside."""
    approach_reward: float = 1.5
    """For coming nearer to the zone: the difference of a potential. Halved for each teammate inside."""
    damage_reward: float = 0.05
    """Per point of damage to an enemy."""
    kill_reward: float = 10.0
    """For an enemy destroyed, to the mech that dealt most in the simulation step in which it was."""
    assist_reward: float = 5.0
    """For having painted an enemy that a teammate then hits with a missile, once per paint."""
    death_reward: float = -1.0
    """For being destroyed; half of it in a contested zone."""
    zone_combat: float = 2.0
    """Factor of the rewards for damage, kills and assists of mechs in a contested zone."""
    win_reward: float = 0.0
    """For each mech of the team that wins, and its negative for the other team's, at the end of a game. A
    curriculum may change it, as it may ``team``."""
    shaping_gamma: float = 0.99
    """The gamma of the potential in the reward for approach; that of the algorithm keeps optima unchanged."""


TASKS: dict[str, type[TaskOptions]] = {
    options.name: options
    for options in (
        DelayedCueOptions,
        CopyOptions,
        AssociativeRecallOptions,
        RepeatPreviousOptions,
        RepeatFirstOptions,
        TMazeOptions,
        PositionCartPoleOptions,
        PositionPendulumOptions,
        ForageOptions,
        TreasureHuntOptions,
        RecallDuelOptions,
        MechOptions,
    )
}
"""The options of every task by its short name."""


def task_name(env: object) -> str | None:
    """The short name of a built-in task, by its name or Gymnasium id; None for any other env."""
    if isinstance(env, str):
        return next((name for name, options in TASKS.items() if env in (name, options.id)), None)
    return None
