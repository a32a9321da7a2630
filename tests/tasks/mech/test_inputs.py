"""Options and actions, good and bad."""

from __future__ import annotations

import pytest
import torch

from recollect.base import tree
from recollect.errors import ConfigError
from recollect.tasks import make_task
from recollect.tasks.mech import actions
from recollect.tasks.mech.bot import MechBot
from tests.tasks.mech import scenes


def test_flat_spaces_play_the_same_game() -> None:
    """The flat form of a choice does what the choice does, and shows the same vector."""
    hybrid, flat = (scenes.arena(3, 2, limit=3, spaces=kind) for kind in ("hybrid", "flat"))
    assert flat.action_space.shape == (30,)
    assert flat.observation_space.shape == hybrid.observation_space["vector"].shape
    hybrid.reset(0)
    scenes.plant(hybrid, 0, 14.0)
    flat.restore(hybrid.snapshot())
    generator, bots = torch.Generator().manual_seed(0), [MechBot(hybrid), MechBot(flat)]
    for t in range(16):
        one, two = scenes.at_random(hybrid, generator), None
        if t % 2:
            one, two = (bot.play() for bot in bots)
        wide = actions.flattened(one)
        assert two is None or torch.equal(wide, two)
        a, b = hybrid.step(one), flat.step(wide)
        assert torch.equal(a.obs["vector"], b.obs)
        assert torch.equal(a.reward, b.reward)
        for name, value in hybrid.snapshot().items():
            assert torch.equal(value, flat.snapshot()[name]), name


@pytest.mark.parametrize("spaces", ["hybrid", "flat"])
def test_no_number_in_an_action_spoils_the_state(spaces: str) -> None:
    """NaN is 0, infinity is the bound; whole numbers out of range are clamped."""
    task = scenes.arena(5, 2, spaces=spaces)
    task.reset(0)
    generator = torch.Generator().manual_seed(0)
    for bad in (float("nan"), float("inf"), float("-inf"), 1e30):
        action = scenes.at_random(task, generator)
        action["target"] += 3
        action["ewar"] -= 1
        if spaces == "flat":
            action["target"], action["ewar"] = action["target"].clamp(max=5), action["ewar"].clamp(min=0)
            given = actions.flattened(action).fill_(bad)
        else:
            given = action | {name: torch.full_like(action[name], bad) for name in ("move", "message")}
        step = task.step(given)
        for leaf in (*tree.leaves(step.obs), step.reward, *task.snapshot().values()):
            assert leaf.isfinite().all()
        assert (task.message.abs() <= 1).all()
        if bad != bad and spaces == "hybrid":
            assert not task.vx.any()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mechs": 0}, "mechs is 0"),
        ({"mechs": 21}, "mechs is 21"),
        ({"team": 0}, "team is 0; it must be a whole number from 1 to mechs, 10"),
        ({"mechs": 3, "team": 4}, "team is 4.*3"),
        ({"team": 1.5}, "team is 1.5"),
        ({"size": "3v3"}, "3v3.*duel, 5v5, 10v10"),
        ({"sensing": "none"}, "sensing is 'none'.*partial, full"),
        ({"spaces": "box"}, "spaces is 'box'.*hybrid, flat"),
        ({"limit": 0}, "limit is 0"),
        ({"maps": 0}, "maps is 0"),
    ],
    ids=str,
)
def test_options_that_cannot_be(options: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_task("mech", 1, **options)


def test_sizes() -> None:
    """Duel, 5 v 5, 10 v 10; a game is at most 60 seconds of 4 decisions."""
    for size, mechs in (("duel", 1), ("5v5", 5), ("10v10", 10)):
        task = make_task("mech", 1, size=size, maps=1)
        assert (task.mechs, task.agents, task.max_episode_steps) == (mechs, 2 * mechs, 240)
        task.reset(0)
        assert task.alive.all()
        assert 3.75 <= float(task.radius) <= 11.25
        far = task.x.abs().minimum(task.y.abs())
        assert (far > 30).all(), "in the corners"
        assert torch.equal(task.x[:, 0], -task.x[:, 1])
    assert task.tables.number.tolist() == [3, 2, 2, 1, 0] * 2
    assert task.agent_names[:2] == ("blue_0", "blue_1")
    assert task.agent_names[-1] == "red_9"


@pytest.mark.parametrize("lethality", [-0.1, 1.1, "much", None])
def test_a_bot_names_what_it_takes(lethality: object) -> None:
    task = scenes.arena(1)
    with pytest.raises(ConfigError, match=r"lethality is .*from 0 to 1"):
        MechBot(task, lethality)
    with pytest.raises(ConfigError, match="knows is 'much'; choose fair or all"):
        MechBot(task, knows="much")
