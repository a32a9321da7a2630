"""Sight, sensor range, contacts, sound and messages."""

from __future__ import annotations

import pytest
import torch

from recollect.tasks.mech import MechArena, actions, observe, sensing
from recollect.tasks.mech.bot import MechBot
from recollect.tasks.mech.rules import CONTACTS
from tests.tasks.mech import scenes
from tests.tasks.mech.scenes import HEAVY, LIGHT, MEDIUM, SCOUT, SECOND

OWN = {name: index for index, name in enumerate(observe.OWN)}


def own(task: MechArena, side: int, number: int, name: str, count: int = 1) -> list[float]:
    """Numbers that a mech observes of itself."""
    vector = observe.of(task)["vector"][side * task.mechs + number]
    return vector[OWN[name] : OWN[name] + count].tolist()


def contacts_of(task: MechArena, side: int, number: int) -> torch.Tensor:
    """[CONTACTS, 16]: the contacts that a mech observes."""
    vector = observe.of(task)["vector"][side * task.mechs + number]
    width = len(observe.CONTACT)
    return vector[len(OWN) : len(OWN) + CONTACTS * width].view(CONTACTS, width)


def test_contacts_over_games() -> None:
    """Sight is mutual; contacts are known living mechs without repeats, friends before enemies, sorted; slots
    that are masked are those without an enemy."""
    task = scenes.arena(10, 3, limit=10)
    task.reset(0)
    scenes.plant(task, 1, 22.0)
    bot, generator = MechBot(task), torch.Generator().manual_seed(0)
    seen = 0
    for _ in range(16):
        step = task.step(scenes.mixed(task, bot, generator, 0.5))
        assert torch.equal(task.clear, task.theirs(task.clear).transpose(2, 3)), "sight is mutual"
        assert not (task.sees & ~task.clear).any()
        assert (task.square[task.sees] <= (task.range**2).unsqueeze(3).expand_as(task.sees)[task.sees]).all()
        check_contacts(task)
        mask = step.obs["action_mask"]["target"].view(3, 2, 10, 6).bool()
        assert torch.equal(mask[..., :5], task.contact >= 10)
        assert mask[..., 5].all()
        seen += int(task.sees.sum())
    assert seen > 40


def check_contacts(task: MechArena) -> None:
    known = sensing.known(task)
    friends = task.own_square()
    order = {
        0: lambda e, s, i, j: float(task.square[e, s, i, j]),
        1: lambda e, s, i, j: float(task.hp[e, 1 - s, j]),
        2: lambda e, s, i, j: -float(task.tables.tons[j]),
    }
    n = task.mechs
    for e, s, i in torch.cartesian_prod(*(torch.arange(k) for k in task.x.shape)).tolist():
        slots = task.contact[e, s, i].tolist()
        enemies = [slot - n for slot in slots if slot >= n]
        mates = [slot for slot in slots if 0 <= slot < n]
        assert len(set(slots) - {-1}) == len(enemies) + len(mates)
        if task.hostile_only[e, s, i]:
            assert not mates
            assert all(slot >= 0 for slot in slots[: len(enemies)]), "no gaps"
        else:
            assert all(0 <= slot < n for slot in slots[: len(mates)]), "friends first"
            assert slots[4] == -1, "reserved"
            assert len(mates) == min(3, int(task.alive[e, s].sum()) - 1) or not mates
        value = order[int(task.sort[e, s, i])]
        ranked = sorted(
            (value(e, s, i, j), j) for j in range(n) if known[e, s, i, j] and task.alive[e, 1 - s, j]
        )
        assert [j for _, j in ranked][: len(enemies)] == enemies
        assert i not in mates
        if int(task.sort[e, s, i]) == 0:
            near = [float(friends[e, s, i, j]) for j in mates]
            assert near == sorted(near)


def test_of_equal_contacts_the_first_comes_first() -> None:
    """Two enemies as far away, as weak and as heavy as each other: in the order of their numbers."""
    task = scenes.stage(
        (0, MEDIUM, 0.0, 20.0, 1.0, 0.0), (1, MEDIUM, 6.0, 22.0, 1.0, 0.0), (1, SECOND, 6.0, 18.0, 1.0, 0.0)
    )
    for order in range(3):
        scenes.act(task, {(0, MEDIUM): {"sort": order, "hostile_only": [1]}})
        assert task.contact[0, 0, MEDIUM].tolist() == [5 + MEDIUM, 5 + SECOND, -1, -1, -1]


@pytest.mark.parametrize(
    ("jams", "clears", "reach"),
    [(False, False, 14.0), (True, False, 3.5), (False, True, 21.0), (True, True, 11.2)],
)
def test_sensor_range(jams: bool, clears: bool, reach: float) -> None:
    """14 m; 3.5 m under ECM, 21 m with ECCM, 11.2 m with both; within 50 m of a scout that can act."""
    for metres, sees in ((reach - 0.05, True), (reach + 0.05, False)):
        task = scenes.stage(
            (0, MEDIUM, 0.0, 20.0, 1.0, 0.0),
            (0, SCOUT, -2.0, 20.0, 1.0, 0.0),
            (1, SECOND, metres, 20.0, 1.0, 0.0),
            (1, SCOUT, 30.0, 20.0, 1.0, 0.0),
        )
        scenes.act(task, {(0, SCOUT): {"ewar": 2 * clears}, (1, SCOUT): {"ewar": int(jams)}})
        assert float(task.range[0, 0, MEDIUM]) == pytest.approx(reach)
        assert bool(task.sees[0, 0, MEDIUM, SECOND]) == sees
    task.x[0, :, SCOUT] = torch.tensor([-51.0, 51.0])
    sensing.update(task)
    assert float(task.range[0, 0, MEDIUM]) == 14.0, "too far"
    task.x[0, :, SCOUT] = torch.tensor([-2.0, 30.0])
    task.down[0, :, SCOUT] = 1.0
    sensing.update(task)
    assert float(task.range[0, 0, MEDIUM]) == 14.0, "they lie on the ground"


def test_only_scouts_have_electronic_warfare() -> None:
    task = scenes.stage((0, MEDIUM, 0.0, 20.0, 1.0, 0.0), (0, SCOUT, 2.0, 24.0, 1.0, 0.0))
    scenes.act(task, {(0, number): {"ewar": 1} for number in range(5)})
    assert task.ewar[0, 0].tolist() == [0, 0, 0, 0, 1]
    assert float(task.heat[0, 0, SCOUT]) == 0.0, "it cools faster than ECM heats"
    modes = observe.of(task)["action_mask"]["ewar"].view(2, 5, 3)
    assert modes[0].tolist() == [[1, 0, 0]] * 4 + [[1, 1, 1]]
    for mode, heat in ((1, 3.0), (2, 2.0)):
        task.heat[0, 0, SCOUT] = 50.0
        scenes.act(task, {(0, SCOUT): {"ewar": mode}})
        assert float(task.heat[0, 0, SCOUT]) == pytest.approx(50 + (heat - 13) / 4)


def test_walls_and_smoke_block_sight() -> None:
    """A wall, or a cloud of 4 m that has landed; not one that still flies, nor one beside the line."""
    task = scenes.stage((0, MEDIUM, 0.5, 20.5, 1.0, 0.0), (1, SECOND, 9.5, 20.5, 1.0, 0.0))
    assert task.sees[0, 0, MEDIUM, SECOND]
    assert task.sees[0, 1, SECOND, MEDIUM]
    for y, left, sees in ((16.6, 9.0, False), (16.4, 9.0, True), (20.5, 10.05, True), (20.5, 10.0, False)):
        task.smoke_x[0, 0, LIGHT], task.smoke_y[0, 0, LIGHT] = 5.0, y
        task.smoke_left[0, 0, LIGHT] = torch.tensor([0.0, left, 0.0])
        sensing.update(task)
        assert bool(task.sees[0, 0, MEDIUM, SECOND]) == sees
    task.smoke_left.zero_()
    for x in (4.5, 5.5):
        scenes.wall(task, x, 20.5, 0.95)
    sensing.update(task)
    assert task.sees[0, 0, MEDIUM, SECOND], "lower than their middles"
    scenes.wall(task, 4.5, 20.5, 1.05)
    scenes.wall(task, 5.5, 20.5, 1.05)
    sensing.update(task)
    assert not task.clear[0].any()
    task.z[0, 0, MEDIUM] = task.z[0, 1, SECOND] = 0.1
    sensing.update(task)
    assert task.sees[0, 0, MEDIUM, SECOND], "over it"


@pytest.mark.parametrize("side", [0, 1])
def test_the_dead_and_the_shut_down_see_nothing(side: int) -> None:
    """Nor are the dead seen, painted or not; those that are shut down are."""
    for name, value in (("heat", 101.0), ("hp", 0.0)):
        task = scenes.stage((side, MEDIUM, 0.0, 20.0, 1.0, 0.0), (1 - side, MEDIUM, 6.0, 20.0, 1.0, 0.0))
        task.painted[0, :, MEDIUM] = 5.0
        getattr(task, name)[0, side, MEDIUM] = value
        sensing.update(task)
        assert not task.sees[0, side, MEDIUM].any(), "it sees"
        assert not sensing.known(task)[0, side, MEDIUM].any()
        assert (task.contact[0, side, MEDIUM] == -1).all()
        is_seen = [bool(found[0, 1 - side, MEDIUM, MEDIUM]) for found in (task.sees, sensing.known(task))]
        assert is_seen == [name == "heat"] * 2, "is seen"


def test_paint_makes_known() -> None:
    """A painted enemy is a contact of all its enemies, wherever it is; a missile reaches it at 50 m."""
    task = scenes.stage((0, HEAVY, -20.0, 20.0, 1.0, 0.0), (1, SECOND, 20.0, 20.0, 1.0, 0.0))
    assert (task.contact[0, 0, HEAVY] < 5).all()
    task.painted[0, 1, SECOND] = 5.0
    sensing.update(task)
    assert task.contact[0, 0, HEAVY].tolist()[3] == 5 + SECOND
    found = contacts_of(task, 0, HEAVY)[3]
    values = dict(zip(observe.CONTACT, found.tolist()))
    assert values["distance"] * 14 == pytest.approx(40.0)
    assert (values["is there"], values["is an enemy"], values["in sight"]) == (1, 1, 0)
    assert values["painted"] == 1.0


def test_what_a_contact_looks_like() -> None:
    """In the frame of the mech that sees it: ahead and to the left."""
    task = scenes.stage((0, MEDIUM, 0.0, 20.0, 0.0, 1.0), (1, SECOND, -3.0, 24.0, -1.0, 0.0))
    task.hp[0, 1, SECOND] = 75.0
    values = dict(zip(observe.CONTACT, contacts_of(task, 0, MEDIUM)[3].tolist()))
    assert values["ahead"] * 14 == pytest.approx(4.0)
    assert values["to the left"] * 14 == pytest.approx(3.0)
    assert values["distance"] * 14 == pytest.approx(5.0)
    assert values["heading left"] == pytest.approx(1.0)
    assert values["hit points"] == 0.5
    assert (values["in sight"], values["in front"]) == (1, 1)


def test_sound() -> None:
    """Speed times mass factor, less with distance, up to 40 m, in four quadrants; also of what is unseen."""
    names = ["sound ahead", "to the left", "behind", "to the right"]
    start = OWN[names[0]]
    for x, y, loudest in ((10.0, 23.0, 0), (-3.0, 30.0, 1), (-10.0, 17.0, 2), (3.0, 10.0, 3)):
        task = scenes.stage((0, MEDIUM, 0.0, 20.0, 1.0, 0.0), (1, HEAVY, x, y, 1.0, 0.0))
        task.vx[0, 1, HEAVY] = 2.5
        heard = own(task, 0, MEDIUM, names[0], 4)
        distance = (x * x + (y - 20) ** 2) ** 0.5
        assert heard[loudest] == pytest.approx(2.5 * 4 * (1 - distance / 40) / 10, rel=1e-5)
        assert sum(v > 0 for v in heard) == 1
        assert start == OWN["sensor range"] + 1
    task.hp[0, 1, HEAVY] = 0.0
    assert own(task, 0, MEDIUM, names[0], 4) == [0.0] * 4


# Messages --------------------------------------------------------------------------------------------------


def heard(task: MechArena, side: int, number: int) -> list[list[float]]:
    vector = observe.of(task)["vector"].view(2, task.mechs, -1)[side, number]
    return vector[-32:].view(4, 8).tolist()


def test_messages_reach_the_pack_one_decision_late() -> None:
    """What a mech says with its action is in the next observation of its pack, once, and nowhere else."""
    task = scenes.arena(10, 1)
    task.reset(0)
    words = torch.arange(8) / 10 + 0.1
    scenes.act(task, {(0, 1): {"message": words}})
    for number in (0, 2, 3, 4):
        slots = heard(task, 0, number)
        place = [mate for mate in range(5) if mate != number].index(1)
        assert slots[place] == words.tolist()
        assert sum(map(sum, slots)) == pytest.approx(float(words.sum()))
    for side, number in ((0, 1), (0, 5), (0, 9), (1, 0), (1, 1)):
        assert not any(map(any, heard(task, side, number)))
    task.hp[0, 0, 1] = 0.0
    assert not any(map(any, heard(task, 0, 0))), "the dead are silent"
    scenes.act(task)
    assert not task.message.any(), "said once"


# Switches --------------------------------------------------------------------------------------------------


def test_switches_keep_shapes_and_take_effect() -> None:
    """comms, ewar, target_selection and contact_sort, each off."""
    whole = scenes.arena(5)
    for name in ("comms", "ewar", "target_selection", "contact_sort"):
        task = scenes.arena(5, **{name: False})
        assert task.observation_space == whole.observation_space
        assert task.action_space == whole.action_space
        task = stage_for_switches(**{name: False})
        action = {
            "message": torch.ones(8),
            "ewar": 1,
            "target": 1,
            "sort": 2,
            "hostile_only": [1],
            "fire": [0],
        }
        mask = observe.of(task)["action_mask"]
        rows = {(0, MEDIUM): dict(action), (0, SCOUT): {"ewar": 1}}
        scenes.act(task, rows)
        assert bool(task.message.any()) == (name != "comms")
        assert bool(task.ewar.any()) == (name != "ewar")
        assert bool(task.hostile_only.any()) == bool(task.sort.any()) == (name != "contact_sort")
        chosen = HEAVY if name != "target_selection" else SECOND
        assert task.hp[0, 1].tolist() == [
            *(200 - 14 * (chosen == HEAVY), 0, 150 - 14 * (chosen == SECOND)),
            *(80, 0),
        ]
        assert bool(mask["target"][1, :5].any()) == (name != "target_selection")
        assert bool(mask["ewar"][SCOUT, 1:].any()) == (name != "ewar")
        enemies = (task.contact[0, 0, MEDIUM] >= 5).sum()
        assert enemies == (2 if name != "contact_sort" else 1)


def stage_for_switches(**options: bool) -> MechArena:
    """Blue's medium has two enemies in contact: the nearer medium in slot 0, the heavy in slot 1."""
    task = scenes.stage(
        (0, MEDIUM, 0.0, 20.0, 1.0, 0.0),
        (0, SCOUT, -3.0, 20.0, 1.0, 0.0),
        (1, SECOND, 5.0, 20.5, -1.0, 0.0),
        (1, HEAVY, 6.0, 18.5, -1.0, 0.0),
        **options,
    )
    task.hostile_only[0, 0, MEDIUM] = True
    sensing.update(task)
    assert task.contact[0, 0, MEDIUM].tolist() == [5 + SECOND, 5 + HEAVY, -1, -1, -1]
    if not task.options.contact_sort:
        task.hostile_only.zero_()
    return task


def test_a_choice_that_is_masked_is_the_nearest() -> None:
    """An empty slot, or a friend, is no target: weapons aim at the nearest enemy."""
    for choice in (0, 2, 3, 4, actions.NO_TARGET):
        task = stage_for_switches()
        task.hostile_only.zero_()
        sensing.update(task)
        scenes.act(task, {(0, MEDIUM): {"target": choice, "fire": [0]}})
        assert float(task.hp[0, 1, SECOND]) == 136.0
