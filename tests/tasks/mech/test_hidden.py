"""What a mech does not know changes neither its observation nor what the scripted player does with it."""

from __future__ import annotations

import torch

from recollect.tasks.mech import MechArena, observe, sensing
from recollect.tasks.mech.bot import MechBot
from tests.tasks.mech import scenes

PUBLIC = ("sound ahead", "to the left", "behind", "to the right", "contested", "own tick", "their tick")
"""Numbers that tell of enemies out of sight: sound, and who holds the zone."""
CHANGED = ("x", "y", "z", "hx", "hy", "vx", "vy", "vz", "hp", "legs", "heat", "stability", "down", "cooldown")


def private(vector: torch.Tensor) -> torch.Tensor:
    """Observations without the numbers that tell of enemies out of sight."""
    public = [observe.OWN.index(name) for name in PUBLIC]
    kept = [i for i in range(vector.shape[-1]) if i not in public]
    return vector[..., kept]


def scramble_unknown(task: MechArena, side: int, number: int, generator: torch.Generator) -> torch.Tensor:
    """Change and move away what the mech does not know of its enemies. Returns [E, N]: which were changed."""
    hidden = ~sensing.known(task)[:, side, number] & task.alive[:, 1 - side]
    for name in CHANGED:
        field = getattr(task, name)[:, 1 - side]
        other = torch.rand(field.shape, generator=generator) * 4 + 0.5
        if name in "xy":  # far from everything
            own = getattr(task, name)[:, side, number].unsqueeze(1)
            other = torch.where(own > 0, -1.0, 1.0) * (44 + other)
        mask = hidden.view(*hidden.shape, *(1,) * (field.dim() - 2))
        field.copy_(torch.where(mask, other, field))
    task.message[:, 1 - side].uniform_(-1, 1, generator=generator)
    sensing.update(task)
    assert not (hidden & sensing.known(task)[:, side, number]).any()
    return hidden


def test_an_unknown_enemy_changes_nothing() -> None:
    """Observation, masks and scripted actions of a mech are the same wherever enemies are that it does
    not know, apart from sound and the ticks of the zone."""
    check_hidden()


def check_hidden(knows: str = "fair") -> None:
    task = scenes.arena(5, 6, limit=30)
    bot, generator, changed = MechBot(task, knows=knows), torch.Generator().manual_seed(0), 0
    for seed in range(3):
        task.reset(seed)
        scenes.plant(task, seed, 34.0)
        task.ewar.zero_()  # enemies that jam may be felt
        task.step(scenes.idle(task))
        state = task.snapshot()
        for side, number in ((0, 0), (0, 3), (1, 1), (1, 4)):
            obs = task.restore(state)
            sensing.update(task)
            memory = bot.snapshot()
            action = bot.play()
            bot.restore(memory)
            hidden = scramble_unknown(task, side, number, generator)
            rows = torch.arange(6) * 10 + side * 5 + number
            other = task._observe()
            assert torch.equal(private(obs["vector"][rows]), private(other["vector"][rows]))
            for name, mask in obs["action_mask"].items():
                assert torch.equal(mask[rows], other["action_mask"][name][rows])
            for name, part in bot.play().items():
                assert torch.equal(part[rows], action[name][rows]), f"the bot knows: {name}"
            changed += int(hidden.sum())
    assert changed > 60


def test_a_bot_that_knows_all_acts_on_what_it_does_not_see() -> None:
    task = scenes.arena(5, 4)
    task.reset(0)
    scenes.plant(task, 0, 34.0)
    fair, knowing = MechBot(task).play(), MechBot(task, knows="all").play()
    assert not torch.equal(fair["move"], knowing["move"])
