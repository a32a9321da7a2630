"""Tasks of several agents: as one group, as several groups, as PettingZoo envs; trained, stopped, resumed."""

from __future__ import annotations

import base64
import io
import re
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
import torch
from gymnasium.utils.env_checker import data_equivalence
from pettingzoo.test import parallel_api_test, parallel_seed_test
from PIL import Image

import recollect as rc
from recollect.acting.recording import record_env
from recollect.base import tree
from recollect.cli import main
from recollect.envs import make_grouped_env
from recollect.envs.checks import check_batched_env, check_grouped_env
from recollect.envs.groups import AgentGroups, GroupedEnv
from recollect.envs.wrappers import LastActionReward
from recollect.errors import ConfigError, EnvError
from recollect.tasks import TASKS, Task, make_task, pettingzoo_envs
from recollect.tasks.pettingzoo_envs import TaskParallelEnv, parallel_env
from recollect.tasks.treasure import COLOURS, WALL
from tests.support.task_worlds import BRAWL, SMALL, copied, enough, random_actions, same, small

TOGETHER = [name for name, task in TASKS.items() if task.Options.has_agents]
every_task = pytest.mark.parametrize("name", TOGETHER)
with_brawl = pytest.mark.parametrize("name", [*TOGETHER, BRAWL])


def named(task: Task) -> dict[str, list[str]]:
    """Two groups, neither in the order of the agents nor side by side."""
    first, *middle, last = task.agent_names
    return {"ends": [last, first], "middle": middle} if middle else {"last": [last], "first": [first]}


def grouped(name: str, num_envs: int, policies: str, first_slot: int = 0) -> GroupedEnv:
    task = small(name, num_envs)
    choice = named(task) if policies == "named" else policies
    if name != BRAWL:
        options = {"env_kwargs": SMALL[name], "first_slot": first_slot}
        return make_grouped_env(TASKS[name].id, num_envs, policies=choice, **options)
    task.first_slot = first_slot
    return AgentGroups(task, task.agent_names, choice)


@with_brawl
@pytest.mark.parametrize("policies", ["shared", "independent", "named"])
def test_the_contract_of_every_grouping(name: str, policies: str) -> None:
    """Steps, ends, seeds, snapshots of all groups, and of the task itself."""
    env = grouped(name, 3, policies)
    assert isinstance(env, GroupedEnv)
    task = small(name, 3)
    seen = check_grouped_env(env, steps=enough(task))
    assert sum(one.truncated + one.terminated for one in seen.values()) >= 3 * 3
    assert any(one.invalid for one in seen.values()) == (name == BRAWL)
    check_batched_env(task, steps=enough(task))


@with_brawl
def test_groups_have_the_rows_of_their_agents(name: str) -> None:
    """S001-29: each group sees, does and earns what its agents do in the task; by name, in any slots."""
    whole = small(name, 5)
    agents, last = whole.agents, whole.agents - 1
    env = grouped(name, 3, "named", first_slot=2)
    members = {"ends": [0, last], "middle": [*range(1, last)]} if last > 1 else {"last": [1], "first": [0]}
    assert {group: own.agents for group, own in env.groups.items()} == {
        group: tuple(whole.agent_names[i] for i in own) for group, own in members.items()
    }

    def rows(values: Any, group: str) -> Any:
        return tree.map(lambda leaf: leaf.unflatten(0, (5, agents))[2:, members[group]].flatten(0, 1), values)

    obs, mine = whole.reset(4), env.reset(4)
    for action in random_actions(whole, 33):
        assert all(same(rows(obs, group), mine[group]) for group in members)
        step, parts = whole.step(action), env.step({group: rows(action, group) for group in members})
        for group, part in parts.items():
            assert same(rows(copied(step), group), copied(part))
            known = [tree.map(lambda value: value.nan_to_num(-99.0), info) for info in (step.info, part.info)]
            assert same(rows(known[0], group), known[1])
        obs, mine = step.obs, {group: part.obs for group, part in parts.items()}


def test_sides_are_groups_by_a_pattern() -> None:
    """Each side of the mech arena with a policy of its own."""
    env = make_grouped_env("mech", 2, policies={"blue": "blue_*", "red": "red_*"}, env_kwargs=SMALL["mech"])
    assert {group: own.agents for group, own in env.groups.items()} == {
        "blue": ("blue_0", "blue_1"),
        "red": ("red_0", "red_1"),
    }
    with pytest.raises(ConfigError, match=r"group 'green' has 'green_\*'.*no agent.*blue_0, blue_1, red_0"):
        make_grouped_env("mech", 2, policies={"green": "green_*"}, env_kwargs=SMALL["mech"])


def test_wrong_groups_are_named() -> None:
    env = make_grouped_env("treasure-hunt", 2, policies="independent")
    env.reset(0)
    with pytest.raises(EnvError, match=r"shape \(3,\) for group 'agent_1', which has 2 rows"):
        env.step(
            {"agent_0": torch.zeros(1, dtype=torch.int64), "agent_1": torch.zeros(3, dtype=torch.int64)}
            | {"agent_0": torch.zeros(2, dtype=torch.int64)}
        )
    with pytest.raises(EnvError, match="agent_0, agent_1"):
        env.step({"agent_0": torch.zeros(2, dtype=torch.int64)})
    with pytest.raises(ConfigError, match=r"tasks of several agents .treasure-hunt"):
        make_grouped_env("t-maze", 2, policies="independent")
    with pytest.raises(ConfigError, match=r"'agent_2'.*no agent"):
        make_grouped_env("treasure-hunt", 2, policies={"all": "agent_2"})


# Training ------------------------------------------------------------------------------------------------

LITTLE: dict[str, Any] = {
    "num_envs": 4,
    "rollout": 16,
    "chunk": 8,
    "minibatches": 1,
    "epochs": 1,
    "core": "gru",
    "threads": 1,
    "progress": False,
    "preset": False,
    "eval_every": 0,
    "env_kwargs": {"length": 20},
}
either = pytest.mark.parametrize("policies", ["shared", "independent"])


def trained(policies: str, steps: int = 1280, **settings: Any) -> rc.Agent:
    return rc.train("treasure-hunt", steps=steps, policies=policies, **LITTLE | settings)


def weights(agent: rc.Agent) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items()}


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.usefixtures("warm_children")
@either
@pytest.mark.parametrize("more", [{"runtime": "processes"}, {"env_workers": 2}], ids=["processes", "workers"])
def test_every_runtime_gets_the_same_weights(policies: str, more: dict[str, Any]) -> None:
    """S001-29, S002-2: in lockstep, with one policy for both agents and with two."""
    with trained(policies, actors=2) as inline, trained(policies, actors=2, **more) as other:
        assert_equal(weights(inline), weights(other))
        shown = ({k: v for k, v in one.history.rows[-1].items() if "info/" in k} for one in (inline, other))
        assert next(shown) == next(shown) != {}


@pytest.mark.usefixtures("warm_children")
@either
@pytest.mark.parametrize("more", [{}, {"env_workers": 2}], ids=["inline", "workers"])
def test_a_run_resumes_bit_for_bit(policies: str, more: dict[str, Any], tmp_path: Any) -> None:
    """S002-7: stopped in mid-episode and resumed, a run equals one that was not stopped."""
    with trained(policies, run=str(tmp_path / "whole"), **more) as whole:
        expected = weights(whole)

    def stop(training: Any, metrics: dict[str, float]) -> None:
        if training.updates == 3:
            training.stop()

    with trained(policies, run=str(tmp_path / "stopped"), callbacks=stop, **more) as stopped:
        assert 0 < stopped.steps < whole.steps
    with rc.resume(tmp_path / "stopped", progress=False) as resumed:
        assert resumed.steps == whole.steps
        assert_equal(weights(resumed), expected)


def test_a_policy_for_all_or_for_each() -> None:
    """Steps count agents; each agent's return is shown, and that of the team is their sum."""
    with trained("shared", 128) as shared, trained("independent", 128) as independent:
        assert shared.groups == {}
        assert independent.groups == {"agent_0": ("agent_0",), "agent_1": ("agent_1",)}
        for agent in (shared, independent):
            row = agent.history.rows[-1]
            assert row["steps"] == 4 * 2 * 16
            where = "info/agent_1/" if agent.groups else "info/"  # every group has all numbers
            each = row[f"{where}agent_0_return"] + row[f"{where}agent_1_return"]
            assert row[f"{where}team_return"] == pytest.approx(each, abs=1e-4)


# PettingZoo ----------------------------------------------------------------------------------------------


SPACES = [*TOGETHER, "mech flat"]
"""The tasks in PettingZoo's form, with parts as actions and with a Box."""


def options(name: str) -> dict[str, Any]:
    task, _, spaces = name.partition(" ")
    return SMALL[task] | ({"spaces": spaces} if spaces else {})


@pytest.mark.parametrize("name", SPACES)
def test_pettingzoo_finds_nothing_to_say(name: str) -> None:
    """The checks of its interface and of its seeds, by its function and by its id in the registry."""
    task, chosen = TASKS[name.split()[0]], options(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel_env(task.id, **chosen), num_cycles=200)
        parallel_seed_test(lambda: parallel_env(task.name, **chosen), num_cycles=70)
        parallel_api_test(pettingzoo.make("parallel", task.id, **chosen), num_cycles=200)
    assert task.id not in gym.registry, "Gymnasium's envs have one agent"


def zoo(name: str) -> tuple[Task, TaskParallelEnv]:
    """A task with one slot, and its PettingZoo form."""
    if name == BRAWL:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pettingzoo_envs, "make_task", lambda task, num_envs, **_: small(BRAWL, num_envs))
            return small(BRAWL, 1), parallel_env("mech")
    short = name.split()[0]
    return make_task(short, 1, **options(name)), parallel_env(short, **options(name))


@pytest.mark.parametrize("name", [*SPACES, BRAWL])
def test_pettingzoo_plays_what_the_task_plays(name: str) -> None:
    """S002-21: seed s is slot 0 of s; a reset without a seed goes on to the next episode, also in midst.

    S001-29: agents leave in the step in which they die, and those that are absent never appear.
    """
    task, env = zoo(name)
    obs, infos = env.reset(seed=9)
    assert env.possible_agents == list(task.agent_names)
    task.reset(0)
    want = task.reset_slots(torch.tensor([True]), torch.tensor([9]))
    ends, deaths = 0, 0

    def rows(values: Any) -> dict[str, Any]:
        """The values [agents, ...] of ``env.agents``."""
        return {agent: tree.index(values, task.agent_names.index(agent)) for agent in env.agents}

    def assert_seen(values: Any) -> None:
        assert obs.keys() == values.keys()
        for agent, value in values.items():
            assert env.observation_space(agent).contains(obs[agent])
            assert data_equivalence(obs[agent], tree.map(lambda leaf: leaf.numpy(), value))

    for action in random_actions(task, 3 * task.max_episode_steps + 4):
        assert env.agents == [agent for agent, here in zip(task.agent_names, task.present()) if here]
        assert_seen(rows(want))
        action = tree.map(lambda leaf: leaf.clamp(-1, 1) if leaf.is_floating_point() else leaf, action)
        given = tree.map(lambda leaf: leaf.numpy()[()], rows(action))
        step = task.step(action)
        left = [agent for agent, ended in rows(step.terminated | step.truncated).items() if ended]
        wanted = [rows(values) for values in (step.final_obs, step.reward, step.terminated, step.truncated)]
        obs, rewards, terminated, truncated, infos = env.step(given)
        assert_seen(wanted[0])
        for mine, theirs in zip((rewards, terminated, truncated), wanted[1:], strict=True):
            assert mine == {agent: value.item() for agent, value in theirs.items()}
        assert infos.keys() == obs.keys()
        for agent, info in infos.items():
            numbers = tree.index(step.info, task.agent_names.index(agent))
            assert info == {key: x for key, value in numbers.items() if (x := value.item()) == x}
        want = step.obs
        if (task.age == 0).all():
            assert env.agents == []
            with pytest.raises(EnvError, match="call reset"):
                env.step(given)
            obs, _ = env.reset()
            ends += 1
        else:
            assert not set(left) & set(env.agents)
            obs = {agent: obs[agent] for agent in env.agents}
            deaths += len(left)
    assert ends >= 3
    assert (deaths > 0) == (name == BRAWL)
    obs, _ = env.reset()
    want = task.reset_slots(torch.tensor([True]))
    assert_seen(rows(want))


def test_absent_agents_are_no_agents() -> None:
    """S001-29: a mech that takes no part is possible, but never there."""
    env = parallel_env("mech", mechs=3, team=1, limit=1, maps=1)
    obs, _ = env.reset(seed=1)
    assert env.agents == [*obs] == ["blue_0", "red_0"]
    assert len(env.possible_agents) == 6
    while env.agents:
        with pytest.raises(EnvError, match="give one of each of blue_0, red_0"):
            env.step(dict.fromkeys(env.possible_agents))
        obs, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        assert obs.keys() == {"blue_0", "red_0"}


def test_a_sample_takes_the_masks_of_an_observation() -> None:
    """Only the parts that are choices have one; PettingZoo's own tests sample like that."""
    env = parallel_env("mech", mechs=5, limit=1, maps=1)
    obs, _ = env.reset(seed=1)
    space = env.action_space("blue_0")
    assert space == env.task.action_space
    samples = [space.sample(obs["blue_0"]["action_mask"]) for _ in range(50)]
    assert {int(sample["ewar"]) for sample in samples} == {0}, "a heavy has no electronic warfare"
    assert all(space.contains(sample) for sample in samples)
    assert {int(space.sample()["ewar"]) for _ in range(50)} == {0, 1, 2}


def test_without_a_seed_every_env_is_another() -> None:
    first = [np.stack([*parallel_env("treasure-hunt", view=10).reset()[0].values()]) for _ in range(2)]
    assert not np.array_equal(*first)


def test_wrong_actions_are_named() -> None:
    env = parallel_env("treasure-hunt")
    with pytest.raises(EnvError, match="call reset"):
        env.step({})
    env.reset(seed=0)
    with pytest.raises(EnvError, match="give one of each of agent_0, agent_1"):
        env.step({"agent_0": 0})
    with pytest.raises(EnvError, match=r"4 of agent_1 is not in Discrete\(4\)"):
        env.step({"agent_0": 0, "agent_1": 4})


def test_pictures_and_words() -> None:
    """The picture after the end is that of the last step, not of the next episode."""
    options = {"side": 5, "view": 1, "length": 2, "spawn": 1.0, "items": 1}
    env = parallel_env("treasure-hunt", render_mode="rgb_array", **options)
    env.reset(seed=0)
    before = env.render()
    assert before.shape == (40, 40, 3)
    up = {"agent_0": 0, "agent_1": 0}
    env.step(up)
    assert not np.array_equal(env.render(), before)
    env.step(up)
    assert len(np.unique(env.render().reshape(-1, 3), axis=0)) == 5, "gems are still there"
    env.reset()
    assert len(np.unique(env.render().reshape(-1, 3), axis=0)) == 4, "no items at the start"
    text = parallel_env("treasure-hunt", render_mode="ansi", **options)
    text.reset(seed=0)
    assert [line.split(":")[0] for line in text.render().splitlines()] == ["agent_0", "agent_1"]
    assert parallel_env("treasure-hunt").render() is None


def test_it_trains_like_any_pettingzoo_env() -> None:
    """The adapter of PettingZoo envs gets from it what the task gives: groups, truncation, infos."""
    env = make_grouped_env(
        TaskParallelEnv, 2, policies="independent", env_kwargs={"task": "treasure-hunt", "length": 10}
    )
    seen = check_grouped_env(env, steps=25)
    assert {name: (one.truncated, one.invalid) for name, one in seen.items()} == {
        "agent_0": (4, 0),
        "agent_1": (4, 0),
    }


# Shown ---------------------------------------------------------------------------------------------------


def test_episodes_show_the_whole_grid() -> None:
    """A step has the picture of the env before it, also through a wrapper, and the words of row 0."""
    env = LastActionReward(make_task("treasure-hunt", 2, length=5))
    torch.manual_seed(0)
    policy = rc.PolicyConfig(core="gru").build(env.observation_space, env.action_space)
    trace, _ = record_env(policy, env, seed=3)  # of both agents
    twin = make_task("treasure-hunt", 2, length=5)
    state, first, generator = policy.initial_state(4), torch.ones(4, dtype=torch.bool), torch.Generator()
    obs, seen = env.reset(3), twin.reset(3)
    generator.manual_seed(3)
    assert len(trace) == 5
    for parts, words in zip(trace.obs, trace.words or [], strict=True):
        assert (parts[0]["name"], parts[0]["kind"]) == ("picture", "image")
        with Image.open(io.BytesIO(base64.b64decode(parts[0]["png"]))) as image:
            np.testing.assert_array_equal(np.asarray(image), twin.picture())
        assert words == twin.describe(seen[0].numpy())
        acted, state = policy.act(obs, state, first, generator, True)
        step = env.step(acted.action)
        obs, first, seen = step.obs, step.first, twin.step(acted.action).obs


def test_played_and_reported_from_the_command_line(tmp_path: Any, capsys: Any) -> None:
    run, gif = str(tmp_path / "run"), tmp_path / "hunt.gif"
    with trained("shared", 256, run=run, env_kwargs={"length": 6}):
        pass
    assert main(["play", run, "--episodes", "1", "--text"]) == 0
    assert re.search(r"wall \d (up|down|left|right)|nothing", capsys.readouterr().out)
    assert main(["play", run, "--episodes", "1", "--out", str(gif)]) == 0
    with Image.open(gif) as film:
        film.seek(2)
        shown = {colour for _, colour in film.convert("RGB").getcolors(10**6)}
    assert any(max(abs(a - b) for a, b in zip(colour, COLOURS[WALL])) < 6 for colour in shown)
    assert main(["report", run]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert '"name":"picture"' in page.replace(" ", "")
