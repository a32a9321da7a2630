"""The action space, and what an action orders a mech to do until the next decision."""

from __future__ import annotations

from collections import OrderedDict
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from recollect.tasks.mech import body, sensing
from recollect.tasks.mech.rules import CONTACTS, OFF, VENT, WORDS

if TYPE_CHECKING:
    from recollect.tasks.mech.arena import MechArena

MOVES, TRIGGERS, TARGETS, MODES, ORDERS = 4, 5, CONTACTS + 1, 3, 3
"""Numbers of moves, triggers, targets (contacts and none), modes of electronic warfare, contact orders."""
NO_TARGET = CONTACTS
PARTS: OrderedDict[str, gym.Space] = OrderedDict(
    move=spaces.Box(-1.0, 1.0, (MOVES,), np.float32),
    fire=spaces.MultiBinary(TRIGGERS),
    target=spaces.Discrete(TARGETS),
    ewar=spaces.Discrete(MODES),
    sort=spaces.Discrete(ORDERS),
    hostile_only=spaces.MultiBinary(1),
    message=spaces.Box(-1.0, 1.0, (WORDS,), np.float32),
)
"""The parts of an action. Move: ahead, aside (left is positive), jump, turn (left is positive)."""
FLAT = OrderedDict(
    move=MOVES, fire=TRIGGERS, target=TARGETS, ewar=MODES, sort=ORDERS, hostile_only=1, message=WORDS
)
"""Numbers of each part in a flat action: choices are the largest, switches are on above 0."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What a decision orders, [E, 2, N]."""

    forward: Tensor
    strafe: Tensor
    jump: Tensor
    turn: Tensor
    triggers: Tensor
    """[E, 2, N, TRIGGERS] bool."""
    vent: Tensor
    target: Tensor
    """The enemy that weapons aim at; -1: none."""
    aimed: Tensor
    """[E, 2, N, N] bool: the same."""


def space(kind: str) -> gym.Space:
    """The action space of a row."""
    if kind == "flat":
        return spaces.Box(-1.0, 1.0, (sum(FLAT.values()),), np.float32)
    return spaces.Dict(deepcopy(list(PARTS.items())))  # a space has its own random numbers


def masks(arena: MechArena) -> dict[str, Tensor]:
    """The choices that a mech has: {part: [E, 2, N, choices] bool}."""
    shape = arena.x.shape
    target = arena.x.new_ones((*shape, TARGETS), dtype=torch.bool)
    target[..., :CONTACTS] = (arena.contact >= arena.mechs) & arena.options.target_selection
    ewar = arena.tables.is_scout & arena.options.ewar
    modes = torch.stack([torch.ones_like(ewar), ewar, ewar], -1).expand(*shape, MODES)
    return {"target": target, "ewar": modes}


def decode(arena: MechArena, action: Any) -> Orders:
    """The orders of ``action`` [B, ...]. Sets ewar, order of contacts and message of the next decision."""
    parts = _of_mechs(arena, action)
    forward, strafe, jump, turn = _within(parts["move"]).unbind(-1)
    triggers = parts["fire"] > 0

    target = _target(arena, parts["target"])
    ewar = parts["ewar"].clamp(0, MODES - 1)
    arena.ewar.copy_(torch.where(arena.tables.is_scout & arena.options.ewar, ewar, OFF))
    if arena.options.contact_sort:
        arena.sort.copy_(parts["sort"].clamp(0, ORDERS - 1))
        arena.hostile_only.copy_(parts["hostile_only"].squeeze(-1) > 0)
    if arena.options.comms:
        arena.message.copy_(_within(parts["message"]) * body.active(arena).unsqueeze(-1))
    aimed = target.unsqueeze(-1) == torch.arange(arena.mechs, device=arena.device)
    return Orders(forward, strafe, jump, turn, triggers, triggers[..., VENT], target, aimed)


def targets(arena: MechArena, action: Any) -> Tensor:
    """[E, 2, N]: the enemies that weapons will aim at with ``action``; -1: none. Changes nothing."""
    return _target(arena, _of_mechs(arena, action)["target"])


def _of_mechs(arena: MechArena, action: Any) -> dict[str, Tensor]:
    """The parts [E, 2, N, ...] of an action [B, ...]."""
    if arena.options.spaces == "flat":
        action = _parts(action)
    return {name: value.view(*arena.x.shape, *value.shape[1:]) for name, value in action.items()}


def _target(arena: MechArena, chosen: Tensor) -> Tensor:
    """[E, 2, N]: the enemies in the ``chosen`` contact slots, else the nearest; -1: none."""
    chosen = chosen.clamp(0, NO_TARGET).unsqueeze(-1)
    allowed = masks(arena)["target"].gather(-1, chosen)
    contact = arena.contact.gather(-1, chosen.clamp(max=CONTACTS - 1))
    is_enemy = allowed & (chosen < CONTACTS) & (contact >= arena.mechs)
    return torch.where(is_enemy, contact - arena.mechs, sensing.nearest(arena).unsqueeze(-1)).squeeze(-1)


def flattened(action: dict[str, Tensor]) -> Tensor:
    """The flat form [B, 30] of an action [B, ...] in parts."""
    wide = dict(action)
    for name in ("target", "ewar", "sort"):
        wide[name] = torch.nn.functional.one_hot(action[name], FLAT[name])
    for name in ("fire", "hostile_only"):
        wide[name] = action[name] * 2 - 1
    return torch.cat([wide[name].float() for name in FLAT], 1)


def _within(values: Tensor) -> Tensor:
    """Values from -1 to 1; 0 for what is no number."""
    return values.nan_to_num(0.0).clamp(-1.0, 1.0)


def _parts(action: Tensor) -> dict[str, Tensor]:
    """The parts of flat actions [B, 30]."""
    parts = dict(zip(FLAT, action.split(list(FLAT.values()), -1)))
    for name in ("target", "ewar", "sort"):
        parts[name] = parts[name].argmax(-1)
    return parts
