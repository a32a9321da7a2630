"""The mech arena: two teams of mechs, blue and red, fight for a zone. ``arena.py`` is the task."""

from recollect.tasks.mech.arena import MechArena

__all__ = ["MechArena"]
