"""What every task owes to BatchedEnv and Resumable."""

from __future__ import annotations

import pytest
import torch

from recollect.base import spaces, tree
from recollect.envs.contract import BatchedEnv, Resumable
from recollect.errors import ConfigError, EnvError
from recollect.tasks import TASKS, make_task, task_options
from tests.support.task_worlds import (
    BRAWL,
    NAMES,
    contained,
    copied,
    enough,
    random_actions,
    record,
    same,
    seen,
    small,
)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_resumable_batched_env(name: str) -> None:
    task = small(name, 5)
    assert isinstance(task, BatchedEnv)
    assert isinstance(task, Resumable)
    assert len(task.agent_names) == len({*task.agent_names}) == task.agents
    assert (task.agents > 1) == task.Options.has_agents
    rows = 5 * task.agents
    assert task.horizon >= 1
    assert task.__doc__
    obs = task.reset(0)
    like = tree.spec(spaces.zeros(task.observation_space, rows))
    for action in random_actions(task, 60):
        assert contained(task.observation_space, obs)
        step = task.step(action)
        for each in (step.obs, step.final_obs):
            assert tree.spec(each) == like
            assert all(len(leaf) == rows for leaf in tree.leaves(each))
        assert step.reward.dtype == torch.float32
        for flag in (step.first, step.terminated, step.truncated, step.valid):
            assert flag.dtype == torch.bool
            assert flag.shape == (rows,)
        assert step.reward.shape == (rows,)
        assert all(value.shape == (rows,) for value in step.info.values())
        obs = step.obs


@pytest.mark.parametrize("name", NAMES)
def test_autoreset_shows_the_new_episode_before_any_action(name: str) -> None:
    """S002-21, S000-1: at an end ``obs`` is episode e + 1 at age 0, as if no action had been made.

    A twin that starts at episode e + 1 without having played sees the same, whatever was done
    before; ``final_obs`` is the old episode's; terminated and truncated are never both true.
    """
    task = small(name, 4)
    task.reset(3)
    episode = torch.zeros(4, dtype=torch.int64)
    ends = 0
    for action in random_actions(task, enough(task)):
        before = task.snapshot()
        step = task.step(action)
        assert not (step.terminated & step.truncated).any()
        slots = task.age == 0
        starts = slots.repeat_interleave(task.agents)
        assert torch.equal(step.first, starts & task.present())
        ended = step.terminated | step.truncated
        assert (ended | ~step.valid)[starts].all(), "agents that live end together"
        episode += slots
        if starts.any():
            twin = small(name, 4)
            twin.reset(3)
            for _ in range(int(episode.max())):
                twin_obs = twin.reset_slots(twin.snapshot()["episode"] < episode)
            assert same(tree.index(step.obs, starts), tree.index(twin_obs, starts))
            assert torch.equal(before["episode"], episode - slots.long())
            ends += int(slots.sum())
        else:
            assert same(step.obs, step.final_obs)
    assert ends >= 4


@pytest.mark.parametrize("name", NAMES)
def test_rows_without_a_living_agent_are_invalid(name: str) -> None:
    """S001-29: an agent that dies ends, earns nothing more, and is invalid until its next episode."""
    task = small(name, 4)
    task.reset(3)
    lives, deaths = task.present(), 0
    for action in random_actions(task, enough(task)):
        step = task.step(action)
        assert torch.equal(step.valid, lives)
        ended = step.terminated | step.truncated
        assert not (ended & ~lives).any()
        assert not step.reward[~lives].any()
        deaths += int((ended & ~step.first)[~(task.age == 0).repeat_interleave(task.agents)].sum())
        lives = (lives & ~ended) | step.first
        assert torch.equal(lives, task.present())
    assert (deaths > 0) == (name == BRAWL)


@pytest.mark.parametrize("name", NAMES)
def test_rows_do_not_know_of_each_other(name: str) -> None:
    """Slot i of 16 is slot i of 3, for the same actions, and other slots' actions do not matter."""
    many, few, other = small(name, 16), small(name, 3), small(name, 16)
    rows = 3 * many.agents

    def cut(values):
        return tree.index(values, slice(rows))

    assert same(cut(many.reset(7)), few.reset(7))
    other.reset(7)
    actions = random_actions(many, enough(many))
    mixed = [
        tree.map(lambda own, new: torch.cat([own[:rows], new[rows:]]), own, new)
        for own, new in zip(actions, random_actions(many, enough(many), seed=1))
    ]
    whole = [cut(step) for step in record(many, actions)]
    assert same(whole, record(few, [cut(action) for action in actions]))
    elsewhere = [cut(step) for step in record(other, mixed)]
    assert same([seen(step) for step in whole], [seen(step) for step in elsewhere])


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_decides(name: str) -> None:
    one, two = small(name, 32), small(name, 32)
    actions = random_actions(one, enough(one))
    one.reset(1)
    two.reset(1)
    stream = record(one, actions)
    assert same(stream, record(two, actions))
    one.reset(1)  # also after playing
    assert same(stream, record(one, actions))
    two.reset(2)
    assert not same(stream, record(two, actions))


@pytest.mark.parametrize("name", NAMES)
def test_episodes_and_rows_differ(name: str) -> None:
    """A first sight is no constant: neither over rows nor over episodes of one row."""
    task = small(name, 64)

    def together(obs):
        return torch.cat([leaf.view(len(leaf), -1).double() for leaf in tree.leaves(obs)], 1)

    over_rows = together(task.reset(0))
    assert len(over_rows.unique(dim=0)) > 1
    everywhere = torch.ones(64, dtype=torch.bool)
    over_episodes = torch.stack([together(task.reset_slots(everywhere))[0] for _ in range(32)])
    assert len(over_episodes.unique(dim=0)) > 1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [0, 37])
def test_restore_continues_bit_for_bit(name: str, at: int) -> None:
    task, later = small(name, 6), small(name, 6)
    actions = random_actions(task, at + enough(task))
    obs = task.reset(11)
    for action in actions[:at]:
        obs = task.step(action).obs
    obs = tree.clone(obs)
    snapshot = task.snapshot()
    future = record(task, actions[at:])
    assert same(later.restore(snapshot), obs)  # a new env
    assert same(future, record(later, actions[at:]))
    assert same(task.restore(snapshot), obs)  # the same one, which went on; a copy was kept
    assert same(future, record(task, actions[at:]))


@pytest.mark.parametrize("name", NAMES)
def test_reset_slots_leaves_the_others_alone(name: str) -> None:
    task, twin = small(name, 4), small(name, 4)
    task.reset(0)
    twin.reset(0)
    actions = random_actions(task, 8)
    task.step(actions[0])
    twin.step(actions[0])
    chosen = torch.tensor([False, True, False, False])
    task.reset_slots(chosen)
    others = ~chosen.repeat_interleave(task.agents)
    for action in actions[1:]:
        a, b = (seen(copied(each.step(action))) for each in (task, twin))
        assert same(tree.index(a, others), tree.index(b, others))


def test_wrong_actions_are_named() -> None:
    task = make_task("delayed-cue", 4)
    with pytest.raises(EnvError, match="before reset"):
        task.step(torch.zeros(4, dtype=torch.int64))
    task.reset(0)
    with pytest.raises(EnvError, match=r"torch.int64 \[3\] on cpu.*expected torch.int64 \[4\]"):
        task.step(torch.zeros(3, dtype=torch.int64))
    with pytest.raises(EnvError, match="float32"):
        task.step(torch.zeros(4))
    with pytest.raises(EnvError, match="a list"):
        task.step([0, 0, 0, 0])  # pyright: ignore[reportArgumentType]
    pendulum = make_task("position-pendulum", 2)
    pendulum.reset(0)
    with pytest.raises(EnvError, match=r"\[2, 1\]"):
        pendulum.step(torch.zeros(2))


def test_a_foreign_snapshot_is_refused() -> None:
    task = make_task("t-maze", 4)
    task.reset(0)
    with pytest.raises(EnvError, match="another num_envs"):
        make_task("t-maze", 3).restore(task.snapshot())
    with pytest.raises(EnvError, match="another task"):
        make_task("repeat-first", 4).restore(task.snapshot())
    with pytest.raises(EnvError, match="before reset"):
        make_task("t-maze", 3).snapshot()


def test_make_task_knows_names_ids_and_options() -> None:
    for name, task in TASKS.items():
        assert type(make_task(name, 2)) is type(make_task(task.id, 2)) is task
    assert task_options(TASKS["delayed-cue"]) == ["size", "cues", "horizon"]
    with pytest.raises(ConfigError, match="did you mean 'delayed-cue'"):
        make_task("delayedcue", 2)
    with pytest.raises(ConfigError, match="did you mean 'recollect/TMaze-v0'"):
        make_task("recollect/Tmaze-v0", 2)
    with pytest.raises(ConfigError, match="did you mean 'horizon'"):
        make_task("delayed-cue", 2, horizn=3)
    with pytest.raises(ConfigError, match="no size 'huge'"):
        make_task("delayed-cue", 2, size="huge")
    with pytest.raises(ConfigError, match="options are none"):
        make_task("position-cartpole", 2, size="easy")
    with pytest.raises(ConfigError, match="cues is 1"):
        make_task("delayed-cue", 2, cues=1)
    with pytest.raises(ConfigError, match="k is 52"):
        make_task("repeat-previous", 2, k=52)
    with pytest.raises(ConfigError, match="num_envs is 0"):
        make_task("t-maze", 0)
