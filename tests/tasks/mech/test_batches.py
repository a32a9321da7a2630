"""Slots are independent games; snapshots, resets, absent and dead mechs."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.base.types import Step
from recollect.errors import ConfigError
from recollect.tasks.mech import MechArena, sensing
from recollect.tasks.mech.bot import MechBot
from tests.tasks.mech import scenes


def rows_of(task: MechArena, slot: int) -> slice:
    return slice(slot * task.agents, (slot + 1) * task.agents)


def assert_same_step(a: Step, b: Step) -> None:
    for one, two in zip(tree.leaves(a.obs), tree.leaves(b.obs), strict=True):
        assert torch.equal(one, two), "obs"
    for one, two in zip(tree.leaves(a.final_obs), tree.leaves(b.final_obs), strict=True):
        assert torch.equal(one, two), "final_obs"
    for name in ("first", "reward", "terminated", "truncated", "valid"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    for name, value in a.info.items():
        assert torch.equal(value.nan_to_num(), b.info[name].nan_to_num()), name


def part_of(task: MechArena, step: Step, slot: int) -> Step:
    rows = rows_of(task, slot)

    def cut(leaf: torch.Tensor) -> torch.Tensor:
        return leaf[rows]

    return Step(
        obs=tree.map(cut, step.obs),
        first=cut(step.first),
        reward=cut(step.reward),
        terminated=cut(step.terminated),
        truncated=cut(step.truncated),
        final_obs=tree.map(cut, step.final_obs),
        valid=cut(step.valid),
        info={name: cut(value) for name, value in step.info.items()},
    )


@pytest.mark.parametrize("mechs", [1, 5])
def test_a_batch_is_its_games_one_by_one(mechs: int) -> None:
    """Bit for bit, from reset to reset: rows do not depend on the other slots of the batch."""
    check_batch(mechs)


def check_batch(mechs: int, steps: int = 18) -> None:
    slots = 3
    whole = scenes.arena(mechs, slots, limit=4)
    singles = [scenes.arena(mechs, 1, limit=4) for _ in range(slots)]
    for i, single in enumerate(singles):
        single.first_slot = i
    obs = whole.reset(5)["vector"]
    for i, single in enumerate(singles):
        assert torch.equal(single.reset(5)["vector"], obs[rows_of(whole, i)])
    scenes.plant(whole, 1, 12.0)
    state = whole.snapshot()
    for i, single in enumerate(singles):
        single.restore({name: value[i : i + 1] for name, value in state.items()})
    bot, generator = MechBot(whole), torch.Generator().manual_seed(0)
    for _ in range(steps):
        action = scenes.mixed(whole, bot, generator)
        step = whole.step(action)
        for i, single in enumerate(singles):
            own = single.step(tree.map(lambda leaf, i=i: leaf[rows_of(whole, i)], action))
            assert_same_step(own, part_of(whole, step, i))


def test_a_snapshot_determines_the_game() -> None:
    """Another task that restores it plays on alike, across an end; a reset slot leaves others alone."""
    one, two = (scenes.arena(3, 2, limit=3) for _ in range(2))
    one.reset(1)
    scenes.plant(one, 2, 12.0)
    generator = torch.Generator().manual_seed(1)
    for _ in range(4):
        one.step(scenes.at_random(one, generator))
    two.reset(99)
    obs = two.restore(one.snapshot())
    assert torch.equal(obs["vector"], one._observe()["vector"])
    for _ in range(10):
        action = scenes.at_random(one, generator)
        assert_same_step(one.step(action), two.step(action))
    before = one.snapshot()
    obs = one.reset_slots(torch.tensor([False, True]))
    after = one.snapshot()
    for name, value in before.items():
        assert torch.equal(after[name][0], value[0]), name
    assert not torch.equal(after["x"][1], before["x"][1])
    assert after["age"].tolist() == [int(before["age"][0]), 0]
    assert torch.equal(obs["vector"][rows_of(one, 0)], two._observe()["vector"][rows_of(one, 0)])


def test_the_first_observation_shows_contacts() -> None:
    """Friends are contacts from the start, with full sensing enemies too; also after a reset in play."""
    task = scenes.arena(5, 2, sensing="full", limit=1)
    task.reset(0)
    assert (task.contact[..., :3] >= 0).all()
    assert (task.contact[..., 3] >= 5).all()
    for _ in range(4):
        task.step(scenes.idle(task))
    assert task.age.tolist() == [0, 0]
    assert (task.contact[..., 3] >= 5).all()
    assert torch.equal(task.square, scenes.squares(task))


def test_absent_mechs_take_no_part() -> None:
    """Their rows are never valid; they see nobody, are seen by nobody, block nobody and score nothing."""
    task = scenes.arena(4, 2, team=2, limit=3, sensing="full")
    task.reset(0)
    absent = task.enemies >= 2
    everywhere = absent.expand(2, 2, 4)
    generator = torch.Generator().manual_seed(0)
    for t in range(14):
        if t == 3:  # living and absent mechs in one place
            for axis in (task.x, task.y):
                axis.copy_(axis[:, :, :1] + 0.1 * task.enemies)
            task.z.copy_(task.ground(task.x, task.y))
            task.score.zero_()
            sensing.update(task)
        before = task.x.clone(), task.y.clone(), task.age.clone()
        step = task.step(scenes.at_random(task, generator))
        assert not step.valid.view(2, 2, 4)[everywhere].any()
        assert not step.first.view(2, 2, 4)[everywhere].any()
        assert not step.obs["vector"].view(2, 2, 4, -1)[everywhere].any()
        assert not step.reward.view(2, 2, 4)[everywhere].any()
        assert not (step.terminated | step.truncated).view(2, 2, 4)[everywhere].any()
        assert not task.sees[:, :, absent].any()
        assert not task.sees[..., absent].any()
        assert not (task.contact % 4 >= 2)[task.contact >= 0].any()
        assert not task.fired[:, :, absent].any()
        if (task.age > before[2]).all():
            assert torch.equal(task.x[:, :, absent], before[0][:, :, absent])
    assert task.games.min() >= 1


def test_absent_mechs_do_not_block() -> None:
    task = scenes.stage((0, scenes.MEDIUM, 0.0, 20.0, 1.0, 0.0))
    put_absent = (0, 0, scenes.SECOND)
    task.x[put_absent], task.y[put_absent] = 1.0, 20.0
    for _ in range(4):
        scenes.act(task, {(0, scenes.MEDIUM): {"move": [1.0, 0, 0, 0]}})
    assert abs(float(task.x[0, 0, scenes.MEDIUM]) - 5.5) < 1e-4


def test_a_new_team_size_holds_from_the_next_game_on() -> None:
    """S001-21: of each slot; games in progress keep theirs."""
    task = scenes.arena(5, 2, team=2, limit=2)
    task.reset(0)
    task.step(scenes.idle(task))
    task.reset_slots(torch.tensor([False, True]))
    task.adjust(4)
    for t in range(9):
        step = task.step(scenes.idle(task))
        valid = step.valid.view(2, 2, 5).sum(2).tolist()
        assert valid == [[2, 2] if t < 7 else [4, 4], [2, 2] if t < 8 else [4, 4]], t
        assert step.first.view(2, 2, 5)[0].sum() == (8 if t == 6 else 0)
    with pytest.raises(ConfigError, match=r"team is 6.*1 to mechs, 5"):
        task.adjust(6)


def test_dead_rows() -> None:
    """A mech that dies terminates its row; from then on the row is invalid, earns nothing, observes zeros.

    It can choose no target, sees nobody, and is nobody's contact.
    """
    task = scenes.arena(3, 2, limit=15, win_reward=3.0)
    task.reset(0)
    scenes.plant(task, 5, 10.0)
    task.hp.clamp_(max=10)
    generator, died_before, deaths = torch.Generator().manual_seed(2), ~task.alive.flatten(), 0
    for _ in range(40):
        step = task.step(scenes.at_random(task, generator))
        assert torch.equal(step.valid, ~died_before)
        ended = (task.age == 0).repeat_interleave(6)
        for value in (step.reward, *scenes.parts_of(step).values()):
            assert not value[died_before].any()
        vector, masks = step.final_obs["vector"], step.final_obs["action_mask"]
        living = vector[:, 0] > 0
        dies = step.valid & ~living
        assert (step.terminated[dies] & ~step.truncated[dies]).all()
        assert not vector[~living].any()
        assert (masks["target"][~living][:, :5] == 0).all()
        assert (masks["target"][:, 5] == 1).all()
        assert not (step.terminated | step.truncated | step.first)[died_before & ~ended].any()
        alive = task.alive
        assert not (task.sees & ~(alive.unsqueeze(3) & task.theirs(alive).unsqueeze(2))).any()
        everybody = torch.cat([alive, task.theirs(alive)], 2).unsqueeze(2).expand(-1, -1, 3, -1)
        shown = everybody.gather(3, task.contact.clamp(min=0)) | (task.contact < 0)
        assert shown.all()
        died_before = ~alive.flatten()
        deaths += int(dies.sum())
    assert deaths >= 4


def test_a_dead_mech_blocks_nobody() -> None:
    """Its wreck can be walked through, and shots pass it."""
    task = scenes.stage(
        (0, scenes.MEDIUM, -3.0, 20.0, 1.0, 0.0),
        (1, scenes.SECOND, -1.0, 20.0, 1.0, 0.0),
        (1, scenes.MEDIUM, 6.0, 20.0, 1.0, 0.0),
    )
    task.hp[0, 1, scenes.SECOND] = 0
    sensing.update(task)
    scenes.act(task, {(0, scenes.MEDIUM): {"fire": [2]}})
    for _ in range(3):
        scenes.act(task, {(0, scenes.MEDIUM): {"move": [1.0, 0, 0, 0]}})
    assert task.x[0, 0, scenes.MEDIUM] > 1.0
    assert task.hp[0, 1, scenes.MEDIUM] < 150
