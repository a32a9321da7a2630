"""The parts of the reward."""

from __future__ import annotations

import pytest
import torch

from recollect.tasks.mech import sensing
from recollect.tasks.mech.bot import MechBot
from tests.tasks.mech import scenes
from tests.tasks.mech.scenes import LIGHT, MEDIUM, SCOUT, SECOND


def test_parts_sum_to_the_reward_and_accounts_balance() -> None:
    """Over games: damage dealt is damage taken, up to what exceeds the hit points of those that die; kills
    are deaths; and the parts of the reward are what the weights make of them."""
    task = scenes.arena(5, 6, limit=8, win_reward=1.0, zone_combat=1.0)
    task.reset(0)
    bot, generator = MechBot(task), torch.Generator().manual_seed(3)
    kills = deaths = 0
    for t in range(40):
        if t % 20 == 0:
            scenes.plant(task, t, 16.0)
        flew = ((task.shot_left > 0).any(3) & ~task.alive).any(2)
        hp, lived, dealt = task.hp.clone(), task.alive.clone(), task.dealt.clone()
        step = task.step(scenes.mixed(task, bot, generator))
        parts = scenes.parts_of(step)
        total = sum(parts.values())
        torch.testing.assert_close(step.reward, total, rtol=1e-6, atol=1e-6)
        kill, death = (parts[name].view(6, 2, 5) for name in ("kill", "death"))
        killed, died = kill.sum(2) / 10, (death < 0).sum(2).flip(1).float()
        # A shot may still fly whose mech is dead: nobody is paid for it.
        orphans = ((task.shot_left > 0).any(3) & ~lived).any(2)
        assert (killed <= died).all()
        assert torch.equal(killed[~flew & ~orphans], died[~flew & ~orphans])
        kills, deaths = kills + int(killed.sum()), deaths + int(died.sum())
        plays = task.age > 0
        given = (task.dealt - dealt).sum(2).flip(1)  # of each mech: what its enemies dealt
        taken = hp - task.hp
        survives = lived & task.alive & plays.view(-1, 1, 1)
        assert torch.equal(given[survives], taken[survives])
        dies = lived & ~task.alive & plays.view(-1, 1, 1)
        assert (given[dies] >= taken[dies]).all()
        assert torch.equal(task.hp[~lived & plays.view(-1, 1, 1)], hp[~lived & plays.view(-1, 1, 1)])
        damage = parts["damage"].view(6, 2, 5)[plays]
        expected = (task.dealt - dealt).sum(3)[plays] * 0.05
        torch.testing.assert_close(damage[lived[plays]], expected[lived[plays]])
    assert deaths >= kills > 8


@pytest.mark.parametrize("gamma", [1.0, 0.99])
def test_shaping_telescopes(gamma: float) -> None:
    """The discounted sum of a mech's rewards for approach is minus its potential at the start, whatever it
    does and however its game ends."""
    check_telescope(gamma)


def check_telescope(gamma: float) -> None:
    task = scenes.arena(3, 4, limit=40, shaping_gamma=gamma)
    task.reset(0)
    scenes.plant(task, 3, 30.0)
    task.score.zero_()
    task.hp.clamp_(max=60)
    task.step(scenes.idle(task))
    start, lived = task.potential.clone(), task.alive.clone()
    assert (start[lived] < 0).any()
    total, factor = torch.zeros_like(start), 1.0
    bot, generator = MechBot(task), torch.Generator().manual_seed(1)
    running = (task.age > 0).view(-1, 1, 1).clone()
    for t in range(26):
        if t == 24:
            task.score.fill_(1000.0)
        step = task.step(scenes.mixed(task, bot, generator))
        total += running * factor * step.info["reward_approach"].view_as(total)
        factor *= gamma
        running &= (task.age > 1).view(-1, 1, 1)
    assert not running.any()
    torch.testing.assert_close(total[lived], -1.5 * start[lived], rtol=1e-4, atol=1e-4)
    assert not total[~lived].any()


def test_approach_by_hand() -> None:
    """1.5 per 50 m nearer to the edge of the zone, half as much for each teammate inside, nothing inside."""
    for mates, factor in ((0, 1.0), (1, 0.5), (2, 0.25)):
        task = scenes.stage((0, MEDIUM, 30.0, 0.0, -1.0, 0.0), shaping_gamma=1.0)
        for number in (SECOND, SCOUT)[:mates]:
            scenes.put(task, 0, number, 0.0, 2.0 * (number - 3))
        scenes.act(task)
        step = scenes.act(task, {(0, MEDIUM): {"move": [1.0, 0, 0, 0]}})
        assert float(step.info["reward_approach"][MEDIUM]) == pytest.approx(
            1.5 * factor * 5.5 * 0.25 / 50, rel=1e-3
        )
    scenes.put(task, 0, MEDIUM, 2.0, -3.0)
    scenes.act(task)
    step = scenes.act(task, {(0, MEDIUM): {"move": [1.0, 0, 0, 0]}})
    assert float(step.info["reward_approach"][MEDIUM]) == 0.0


def fight(shooter: float, victim: float, third: float | None = None) -> torch.Tensor:
    """[2]: rewards for damage and kill of blue's medium, and for death of red's light, which it kills;
    x of both, and of another of red that contests the zone."""
    task = scenes.stage((0, MEDIUM, shooter, 0.0, 1.0, 0.0), (1, LIGHT, victim, 0.0, -1.0, 0.0))
    scenes.put(task, 1, SCOUT, *((0.0, third) if third is not None else (40.0, 40.0)))
    task.hp[0, 1, LIGHT] = 10.0
    task.clear[0, 0, MEDIUM, LIGHT] = True
    sensing.update(task)
    task.contact[0, 0, MEDIUM, 3] = 5 + LIGHT
    step = scenes.act(task, {(0, MEDIUM): {"fire": [0], "target": 3}})
    return torch.stack(
        [
            step.info["reward_damage"][MEDIUM],
            step.info["reward_kill"][MEDIUM],
            step.info["reward_death"][5 + LIGHT],
        ]
    )


def test_combat_in_a_contested_zone() -> None:
    """Twice the reward for fighters inside, half the penalty for those that die inside; else as usual."""
    assert fight(20.0, 26.0).tolist() == pytest.approx([0.7, 10.0, -1.0])
    assert fight(4.0, 10.0, 3.0).tolist() == pytest.approx([1.4, 20.0, -1.0]), "it dies outside"
    assert fight(-1.0, 4.5, 3.0).tolist() == pytest.approx([1.4, 20.0, -0.5])
    assert fight(-1.0, 4.5).tolist() == pytest.approx([0.7, 10.0, -1.0]), "nobody else contests"
