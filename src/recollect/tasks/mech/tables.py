"""The numbers of ``rules.py`` as tensors, for the mechs of a side and their weapons."""

from __future__ import annotations

import torch
from torch import Tensor

from recollect.tasks.mech.rules import CLASSES, MOUNTS, PACK, SCOUT, SHOTS, TRIGGERS, WEAPONS, Weapon, roster

INSTANT = ("laser", "flamer", "paint")
SHOT_KINDS = {"heavy": ("missile", "missile", "gauss"), "medium": ("autocannon",) * SHOTS}
"""The weapon of each shot that a mech of a class can have under way."""


class Tables:
    """[N] for mechs, [N, MOUNTS] for mounts, [N, SHOTS] for shots."""

    def __init__(self, mechs: int, device: torch.device):
        numbers = roster(mechs)
        classes = [CLASSES[number] for number in numbers]

        def of_mechs(name: str) -> Tensor:
            return torch.tensor([float(getattr(each, name)) for each in classes], device=device)

        def of_weapons(found: list[list[Weapon | None]], name: str, none: float = 0.0) -> Tensor:
            values = [[none if w is None else float(getattr(w, name)) for w in row] for row in found]
            return torch.tensor(values, device=device)

        self.number = torch.tensor(numbers, device=device)
        self.is_scout = self.number == SCOUT
        self.speed, self.turn, self.jet = map(of_mechs, ("speed", "turn", "jet"))
        self.hp, self.leg_hp, self.heat_cap = map(of_mechs, ("hp", "leg_hp", "heat_cap"))
        self.heat_loss, self.tons, self.noise = map(of_mechs, ("heat_loss", "tons", "noise"))

        names = [each.mounts for each in classes]
        mounted = [[WEAPONS.get(name) for name in row] for row in names]
        self.trigger = torch.tensor(TRIGGERS, device=device)
        self.range, self.arc = of_weapons(mounted, "range", -1.0), of_weapons(mounted, "cos_half_arc")
        self.heat, self.cooldown = of_weapons(mounted, "heat"), of_weapons(mounted, "cooldown")

        def is_one_of(*kinds: str) -> Tensor:
            return torch.tensor([[name in kinds for name in row] for row in names], device=device)

        self.exists, self.is_instant = is_one_of(*WEAPONS), is_one_of(*INSTANT).float()
        self.is_missile, self.is_paint, self.is_smoke = map(is_one_of, ("missile", "paint", "smoke"))
        self.hit_damage = of_weapons(mounted, "damage") * self.is_instant
        self.hit_heat = of_weapons(mounted, "target_heat") * self.is_instant

        kinds = [SHOT_KINDS.get(each.name, ("",) * SHOTS) for each in classes]
        shots = [[WEAPONS.get(name) for name in row] for row in kinds]
        self.shot_mount = torch.tensor(
            [[row.index(kind) if kind else 0 for kind in each] for row, each in zip(names, kinds)],
            device=device,
        )
        self.shot_exists = torch.tensor([[bool(kind) for kind in each] for each in kinds], device=device)
        self.shot_homes = torch.tensor(
            [[kind == "missile" for kind in each] for each in kinds], device=device
        )
        self.shot_suppresses = torch.tensor(
            [[kind == "autocannon" for kind in each] for each in kinds], device=device
        )
        self.shot_speed, self.shot_damage = of_weapons(shots, "speed", 1.0), of_weapons(shots, "damage")
        self.shot_stability, self.splash = of_weapons(shots, "stability"), of_weapons(shots, "splash")
        self.shot_life = of_weapons(shots, "range") / self.shot_speed
        self.shot_lead = (~self.shot_homes).float() / self.shot_speed
        is_same = self.shot_mount.unsqueeze(2) == self.shot_mount.unsqueeze(1)
        places = torch.arange(SHOTS, device=device)
        # [N, SHOTS, SHOTS]: shot q is of the same mount as shot p, and comes before it.
        self.earlier_shot = is_same & self.shot_exists.unsqueeze(2) & (places < places.unsqueeze(1))
        self.is_mount_of_shot = self.shot_mount.unsqueeze(2) == torch.arange(MOUNTS, device=device)

        self.halves = torch.tensor([0.5**i for i in range(mechs)], device=device)
        pack = torch.arange(mechs) // PACK
        mates = [[j for j in range(mechs) if pack[j] == pack[i] and j != i] for i in range(mechs)]
        self.mate = torch.tensor([[*each, *[0] * (PACK - 1 - len(each))] for each in mates], device=device)
        self.has_mate = torch.tensor(
            [[k < len(each) for k in range(PACK - 1)] for each in mates], device=device
        )
