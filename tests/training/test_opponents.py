"""Training against an opponent: the setting ``vs`` in every place that makes the env of a run."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base.devices import Mean
from recollect.config.flags import parse_settings
from recollect.config.toml_yaml import read_config, write_config
from recollect.config.train import TrainConfig
from recollect.envs.env_names import portable
from recollect.envs.groups import AgentGroups
from recollect.envs.versus import Versus, find_versus
from recollect.envs.workers import WorkerEnv
from recollect.errors import ConfigError
from recollect.runtimes.actor_envs import make_slots, open_actor_env, open_env
from recollect.runtimes.collector import Batch
from tests.support import resumed
from tests.support.doomed import without
from tests.support.process_runs import common_rows, process_collector, trained
from tests.support.two_sides import MEMBERS, TwoSides

SMALL: dict[str, Any] = resumed.SMALL | {"num_envs": 6, "core": rc.GRUConfig(hidden=8)}
VS: dict[str, Any] = {"vs": "echo", "vs_kwargs": {"error": 0.5}}
STAGES = {0: {"team": 1, "error": 0.1}, 150: {"team": 2}, 300: {"error": 0.9}}


def test_half_of_the_rows_learn() -> None:
    """S001-29: as many rows as one side has, in every slot."""
    with rc.train(TwoSides, steps=72, **SMALL, **VS) as agent:
        assert agent._trainer is not None
        assert agent._trainer.collector.rows == 6 * MEMBERS
        env = agent.make_env(3)
        assert isinstance(env, Versus)
        assert env.player.error == 0.5
        assert agent.evaluate(8).lengths.max() <= 6


@pytest.mark.parametrize(("result", "name"), [(1, "loss"), (-1, "win"), (0, "draw")])
def test_metrics_of_known_results(result: int, name: str) -> None:
    with rc.train(TwoSides, steps=300, vs="fixed", vs_kwargs={"result": result}, **SMALL) as agent:
        last = agent.history.last
    assert {key: last[f"info/{key}"] for key in ("win", "draw", "loss")} == {
        key: float(key == name) for key in ("win", "draw", "loss")
    }


def test_no_metric_before_the_first_game_is_over() -> None:
    settings = SMALL | {"rollout": 2, "chunk": 2}
    with rc.train(TwoSides, steps=1, vs="fixed", **settings) as agent:
        assert "info/win" not in agent.history.last
        assert "info/age" in agent.history.last


def test_means_leave_out_what_is_no_value() -> None:
    mean = Mean()
    for value, weight in ((float("nan"), 5), (2.0, 1), (4.0, 3)):
        mean.add(value, weight)
    assert float(mean) == 3.5


def test_means_of_rows_and_of_slots() -> None:
    """Of several agents the living count; a number of a slot counts once; NaN never."""
    nan = float("nan")
    actor: Any = SimpleNamespace(env=SimpleNamespace(agents=2), rows=4)
    valid = torch.tensor([True, False, True, True])
    assert float(Actor._mean(actor, torch.tensor([1.0, 9.0, 2.0, nan]), valid)) == 1.5
    assert float(Actor._mean(actor, torch.tensor([1.0, 4.0]), valid)) == 2.5
    assert float(Actor._mean(actor, torch.tensor([nan, 4.0]), valid)) == 4.0
    assert Actor._mean(actor, torch.full((4,), nan), valid).isnan()
    alone: Any = SimpleNamespace(env=SimpleNamespace(agents=1), rows=4)
    assert float(Actor._mean(alone, torch.tensor([1.0, 9.0, 2.0, nan]), valid)) == 4.0


def test_sides_go_on_over_actors_and_workers() -> None:
    """Three slots of each actor: the second begins with the second side."""
    config = TrainConfig(num_envs=6, actors=2, **VS)
    for index, sides in enumerate((("north", "south", "north"), ("south", "north", "south"))):
        assert find_versus(open_actor_env(TwoSides, config, index)).sides == sides
    assert make_slots(portable(TwoSides), config, 3, 0, 2).sides == ("south", "north")


@pytest.mark.parametrize("curriculum", [{}, STAGES])
def test_processes_equal_inline(curriculum: dict[int, Any]) -> None:
    """S001-21: lockstep processes, bit for bit, also over the stages of a curriculum."""
    settings = SMALL | VS | {"actors": 2, "curriculum": curriculum}
    del settings["progress"]
    alone = trained(TwoSides, 12, **settings)
    apart = trained(TwoSides, 12, runtime="processes", **settings)
    resumed.assert_equal(alone, apart)


def test_env_workers_equal_inline() -> None:
    """S001-21: the mech arena and its bot, with more mechs after some steps, bit for bit."""
    arena = {"size": "5v5", "mechs": 2, "limit": 3, "maps": 1}
    stages = {0: {"team": 1}, 60: {"team": 2, "lethality": 0.5}}
    settings = {"num_envs": 3, "env_kwargs": arena, "vs": "bot", "curriculum": stages}
    alone = trained("mech", 4, **settings)
    resumed.assert_equal(alone, trained("mech", 4, env_workers=2, **settings))
    small = trained("mech", 4, **settings | {"curriculum": {0: {"team": 1}}})
    assert any(not torch.equal(alone[name], small[name]) for name in alone)


def test_the_stages_follow_the_steps() -> None:
    """S001-21: before each update, the settings of the steps done; each change once."""
    told: list[tuple[int, dict[str, Any]]] = []
    with pytest.MonkeyPatch.context() as patch:
        config = TrainConfig(curriculum={100: {"team": 1}, 0: {"error": 0.2}, 200: {"error": 0.3}}, **VS)
        agent = rc.Agent.create(TwoSides, config.override(**without(SMALL, "progress")))
        trainer = agent._trainer
        assert trainer is not None
        patch.setattr(trainer.collector, "adjust", lambda settings: told.append((trainer.steps, settings)))
        trainer.begin(400)
        with agent, trainer.working():
            done = [0]
            while not trainer.is_at_end:
                trainer.iterate()
                done.append(trainer.steps)
    changes = [next(step for step in done if step >= at) for at in (0, 100, 200)]
    found = [{"error": 0.2}, {"error": 0.2, "team": 1}, {"error": 0.3, "team": 1}]
    assert told == list(zip(changes, found, strict=True))


def seconds_live(batch: Batch) -> bool:
    """Whether the second agent of a side takes part in a game of any slot."""
    return bool(batch.rollouts[0].valid[:, 1::MEMBERS].any())


def test_a_restarted_actor_has_the_present_stage() -> None:
    with process_collector(TwoSides, **VS, curriculum={0: {}}) as (collector, _):
        collector.adjust({"team": 1})
        assert not seconds_live(collector.collect(0))
        os.kill(collector.pids[0], signal.SIGKILL)
        collector.publish(1)
        batch = collector.collect(1)
        assert batch.notes
        assert not seconds_live(batch)
        collector.adjust({})
        collector.publish(2)
        assert seconds_live(collector.collect(2))


def two_groups(num_envs: int) -> AgentGroups:
    """Each side with a policy of its own."""
    env = TwoSides(num_envs)
    return AgentGroups(env, env.agent_names, {"north": "north_*", "south": "south_*"})


def test_a_curriculum_of_groups() -> None:
    """And numbers of slots reach every group."""
    with rc.train(two_groups, steps=300, curriculum={0: {"team": 1}, 200: {"team": 2}}, **SMALL) as agent:
        assert agent._trainer is not None
        env = agent._trainer.collector.envs[0]
        assert env.adjustable == ("team",)
        assert agent.history.last["info/north/age"] == agent.history.last["info/south/age"] > 1
        assert agent.evaluate(4).groups.keys() == {"north", "south"}


def test_an_async_run_reaches_the_last_stage() -> None:
    settings = SMALL | VS | {"actors": 2, "runtime": "processes", "mode": "async", "curriculum": STAGES}
    with rc.train(TwoSides, steps=700, **settings) as agent:
        assert agent._trainer is not None
        assert agent._trainer.collector._settings == {"team": 2, "error": 0.9}


@pytest.mark.parametrize("extra", [{}, {"actors": 2, "runtime": "processes"}], ids=["inline", "processes"])
def test_resume(tmp_path: Path, extra: dict[str, Any]) -> None:
    """The stages of a curriculum are a function of the steps: a resume needs nothing else."""
    settings = resumed.SMALL | VS | extra | {"num_envs": 6, "curriculum": STAGES, "last_action_reward": True}
    whole, halves = resumed.twice(tmp_path, TwoSides, settings, at=200)
    with whole, halves:
        resumed.assert_equal(resumed.weights(whole), resumed.weights(halves))
    one, two = (
        [without(row, "seconds") for row in common_rows(tmp_path / name)] for name in ("whole", "halves")
    )
    assert one == two


def test_evaluations_and_recorded_episodes(tmp_path: Path) -> None:
    settings = SMALL | VS | {"eval_every": 100, "eval_episodes": 4, "last_action_reward": True}
    with rc.train(TwoSides, steps=200, run=str(tmp_path / "run"), **settings) as agent:
        assert agent.run is not None
        assert agent.run.evaluations()
    assert (tmp_path / "run" / "episodes" / "report.json").exists()
    again = rc.load(tmp_path / "run", env=TwoSides)
    assert (again.config.vs, again.config.vs_kwargs) == ("echo", {"error": 0.5})
    assert isinstance(again.make_env(2), Versus)


def test_an_env_object() -> None:
    with rc.train(TwoSides(6), steps=72, **SMALL, **VS) as agent:
        assert agent.evaluate(4).returns.size == 4


def test_verify() -> None:
    assert rc.verify(TwoSides, **VS, num_envs=4, rollout=12, chunk=4).ok


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"vs": "ecko"}, ("ecko", "echo", "fixed")),
        ({"vs": "echo", "vs_kwargs": {"x": 1}}, ("vs_kwargs", "x")),
        ({"vs": "echo", "policies": "independent"}, ("policies", "vs")),
        ({"vs_kwargs": {"error": 1}}, ("vs_kwargs", "--vs")),
        ({"vs": "self", "vs_kwargs": {"error": 1}}, ("vs_kwargs", "--vs")),
        ({"curriculum": {0: {"teem": 1}}}, ("teem", "team")),
        ({"curriculum": {0: {"error": 0.5}}}, ("error", "team")),
        ({"curriculum": {0: {}, 100: {"team": 3}}}, ("team", "3")),
        ({"curriculum": {"soon": {"team": 1}}}, ("soon", "500k")),
        ({"curriculum": {"1000": {}, "1k": {}}}, ("twice",)),
        ({"curriculum": "team"}, ("mapping",)),
    ],
)
def test_errors_before_the_training(settings: dict[str, Any], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as raised:
        rc.train(TwoSides, **SMALL, **settings)
    assert all(word in str(raised.value) for word in words)


@pytest.mark.parametrize("settings", [{"vs": "echo"}, {"vs": "self"}, {"curriculum": {0: {"team": 1}}}])
def test_envs_that_cannot(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"two-sided|Adjustable"):
        rc.train("delayed-cue", **SMALL, **settings)


def test_flags_and_files(tmp_path: Path) -> None:
    words = ["--vs", "echo", "--vs.error", "0.5", "--curriculum", "{0: {team: 1}, 1.5k: {team: 2}}"]
    found = parse_settings(words)
    assert found == {**VS, "curriculum": "{0: {team: 1}, 1.5k: {team: 2}}"}
    config = TrainConfig().override(**found)
    assert config.curriculum == {0: {"team": 1}, 1500: {"team": 2}}
    read = read_config(write_config(tmp_path / "config.yaml", config, "mech"))
    assert {name: read[name] for name in ("vs", "vs_kwargs")} == VS
    assert TrainConfig().override(**{k: v for k, v in read.items() if k not in ("env", "preset")}) == config
    plain = read_config(write_config(tmp_path / "plain.yaml", TrainConfig(), "mech"))
    assert "vs" not in plain
    (tmp_path / "own.toml").write_text('vs = "echo"\n[curriculum]\n0 = {team = 1}\n500k = {team = 2}\n')
    own = TrainConfig().override(**read_config(tmp_path / "own.toml"))
    assert (own.vs, own.curriculum) == ("echo", {0: {"team": 1}, 500_000: {"team": 2}})


def test_evaluations_have_the_last_stage() -> None:
    """Unless an option of the env is given for the evaluation."""
    config = TrainConfig(num_envs=2, curriculum=STAGES, **VS)
    env = find_versus(open_env(TwoSides, config))
    assert (int(env.env._team), env.player.error) == (2, 0.9)
    env = find_versus(open_env(TwoSides, config, 2, {"team": 1}))
    assert (int(env.env._team), env.player.error) == (1, 0.9)


def played(env: Any, steps: int, changes: dict[int, dict[str, Any]]) -> list[torch.Tensor]:
    """What each step shows, with settings that change before the steps of ``changes``."""
    found = [env.reset(1).clone()]
    for t in range(steps):
        if t in changes:
            env.adjust(**changes[t])
        step = env.step(torch.zeros(env.num_envs * MEMBERS, dtype=torch.int64))
        found.append(torch.cat([step.obs, step.reward.unsqueeze(1), step.valid.float().unsqueeze(1)], 1))
    return found


def test_settings_change_at_resets_only() -> None:
    """S001-21: the number of agents and the opponent's error, both from each slot's next reset on."""
    config = TrainConfig(num_envs=4, **VS)
    plain, changed = (open_env(TwoSides, config) for _ in range(2))
    ages: list[torch.Tensor] = []
    for env in (plain, changed):
        env.reset(1)
    is_old = torch.ones(4, dtype=torch.bool)
    for t in range(30):
        if t == 1:
            changed.adjust(team=1, error=1.0)
        action = torch.zeros(4 * MEMBERS, dtype=torch.int64)
        one, two = plain.step(action), changed.step(action)
        old = is_old.repeat_interleave(MEMBERS)
        assert torch.equal(one.reward[old], two.reward[old])
        assert torch.equal(one.valid[old], two.valid[old])
        assert torch.equal(plain.env.points[is_old], changed.env.points[is_old])
        assert not two.valid.view(4, MEMBERS)[~is_old, 1].any(), "one agent of each side in new games"
        is_old = is_old & ~(two.first.view(4, MEMBERS)[:, 0] & (t >= 1))
        ages.append(changed.env.age.clone())
    assert not is_old.any()
    assert len({tuple(age.tolist()) for age in ages}) > 6, "slots are reset at different times"


def test_workers_change_settings_as_one_process() -> None:
    make = partial(make_slots, portable(TwoSides), TrainConfig(num_envs=2, **VS), 0)
    env = WorkerEnv(make, 2, workers=1)
    try:
        changes = {0: {"error": 0.0}, 3: {"team": 1, "error": 1.0}, 12: {}}
        one, two = played(env, 20, changes), played(make(0, 2), 20, changes)
        assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))
        env.adjust(team=1)
        env._workers[0].child.stop()  # the reset starts it again
        assert torch.equal(played(env, 12, {})[-1], played(alone_with(make, team=1), 12, {})[-1])
    finally:
        env.close()


def alone_with(make: Any, **settings: Any) -> Any:
    env = make(0, 2)
    env.adjust(**settings)
    return env
