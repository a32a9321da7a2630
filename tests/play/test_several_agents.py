"""Episodes of several agents: every agent of every group is recorded, shown and filmed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting.recording import record_env
from recollect.agent import Agent
from recollect.base import tree
from recollect.base.seeds import stream
from recollect.cli import main
from recollect.config.train import TrainConfig
from recollect.envs import make_grouped_env
from recollect.envs.group_views import Groups
from recollect.play import record_film
from recollect.play.trace import record
from recollect.policy.policies import Policies
from recollect.training.recorded_episodes import EPISODES
from tests.support.agents import SMALL
from tests.support.grouped_worlds import LAST_TWO, LATE, Camp, Duo
from tests.support.report_runs import data_of

FLAGS = "--num-envs 4 --rollout 8 --chunk 4 --minibatches 1 --core gru --core.hidden 8 --threads 1".split()
HERE = "tests.play.test_several_agents"


class Late(Camp):
    """A Camp whose frames have the grey of the step."""

    metadata: ClassVar[dict[str, Any]] = {"name": "late_v0", "render_modes": ["rgb_array"], "render_fps": 9}

    def __init__(self, render_mode: str | None = None):
        super().__init__(LATE)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((8, 8, 3), 10 * self.now, np.uint8)


def short() -> Camp:
    return Camp(LAST_TWO)


def new_agent(env: Any, **settings: Any) -> Agent:
    return Agent.create(env, TrainConfig().override(**SMALL | {"num_envs": 4} | settings))


@pytest.fixture(scope="module")
def late_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "late"
    policies = {"early": "ann", "later": ["bob", "cat"]}
    rc.train(Late, policies=policies, steps=64, run=str(path), progress=False, **SMALL).close()
    return path


# Recordings ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("deterministic", [True, False])
def test_every_agent_is_recorded_as_its_policy_acts(deterministic: bool):
    """S000-7, S001-29: memory, values and actions of each group equal its own policy stepped by hand."""
    pairs = {"x": ["ann", "bob"], "y": "cat"}
    agent = new_agent(short, policies=pairs)
    assert isinstance(agent.network, Policies)
    traces = record(agent, episodes=2, seed=4, deterministic=deterministic)
    assert [(one.group, one.agent, one.episode, len(one)) for one in traces] == [
        *(("x", "ann", 0, 1), ("x", "bob", 0, 4), ("y", "cat", 0, 4)),
        *(("x", "ann", 1, 1), ("x", "bob", 1, 4), ("y", "cat", 1, 4)),
    ]
    policies, env = agent.network.by_group, make_grouped_env(short, 1, policies=pairs)
    obs = env.reset(4)
    states = {name: policies[name].initial_state(len(group.agents)) for name, group in env.groups.items()}
    firsts = {name: torch.ones(len(obs[name]), dtype=torch.bool) for name in obs}
    streams = {name: torch.Generator().manual_seed(stream(4, k)) for k, name in enumerate(policies)}
    rows = {"ann": ("x", 0), "bob": ("x", 1), "cat": ("y", 0)}
    for t in range(8):
        acted, memory = {}, {}
        for name, policy in policies.items():
            leaves = tree.leaves(policy.core.reset(states[name], firsts[name]))
            memory[name] = torch.cat([leaf.flatten(1) for leaf in leaves], 1).detach()
            acted[name], states[name] = policy.act(
                obs[name], states[name], firsts[name], streams[name], deterministic
            )
        steps = env.step({name: one.action for name, one in acted.items()})
        for trace in traces:
            name, row = rows[str(trace.agent)]
            if trace.episode != t // 4 or t % 4 >= len(trace):
                continue
            assert trace.value[t % 4] == acted[name].record["value"][row].item()
            assert trace.log_prob[t % 4] == acted[name].record["log_prob"][row].item()
            assert trace.action[t % 4] == acted[name].action[row].item()
            assert trace.reward[t % 4] == steps[name].reward[row].item()
            assert np.array_equal(trace.memory[t % 4], memory[name][row].numpy())
        obs = {name: step.obs for name, step in steps.items()}
        firsts = {name: step.first for name, step in steps.items()}


def test_its_episodes_are_those_of_evaluate():
    """S001-5: of each group, with the same seed."""
    agent = new_agent(Camp, policies="independent")
    traces = record(agent, episodes=3, seed=9, deterministic=False)
    again = agent.evaluate(3, seed=9, eval_mode="sampled", num_envs=1)
    for name, one in again.groups.items():
        own = [trace for trace in traces if trace.agent == trace.group == name]
        assert [trace.return_ for trace in own] == one.returns.tolist()
        assert [len(trace) for trace in own] == one.lengths.tolist()
    assert traces[0].returns == {trace.agent: trace.return_ for trace in traces[:3]}


def test_the_size_of_an_episode_is_that_of_all_agents():
    agent = new_agent(Duo)
    with agent.opened(1) as env:
        assert isinstance(env, Groups)
        whole, small = (
            record_env(agent.network, env, max_size=1000, agents=agents) for agents in (None, ["c"])
        )
    assert len(whole[0]) < len(small[0])
    assert whole[0].cut


# Play ----------------------------------------------------------------------------------------------


def test_play_shows_the_first_agent_or_the_chosen_one(late_run: Path, capsys: pytest.CaptureFixture[str]):
    again = [str(late_run), "--env", f"{HERE}:Late", "--text", "--episodes", "2"]
    assert main(["play", *again]) == 0
    out = capsys.readouterr().out
    assert "Episode 2 of 2, agent ann (group early), seed 0" in out
    assert out.count("after 6 steps, terminated") == 2
    assert out.count("other agents: bob ") == 2
    assert main(["play", *again, "--agent", "bob"]) == 0
    out = capsys.readouterr().out
    assert "Episode 1 of 2, agent bob (group later), seed 0" in out
    assert out.count("after 2 steps, truncated") == 2
    assert main(["play", *again, "--agent", "bobb"]) == 2
    assert "no agent 'bobb' (did you mean 'bob'?): its agents are ann, bob, cat" in capsys.readouterr().err


def test_play_films_the_chosen_agent(late_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    image = pytest.importorskip("PIL.Image")
    out = tmp_path / "bob.gif"
    again = [str(late_run), "--env", f"{HERE}:Late", "--episodes", "2", "--agent", "bob"]
    assert main(["play", *again, "--out", str(out)]) == 0
    assert "episode 2: return" in (said := capsys.readouterr().out)
    assert "other agents: ann" in said
    with image.open(out) as gif:
        assert gif.n_frames == 2 * 3


@pytest.mark.parametrize("policies", ["shared", "independent"])
def test_frames_stand_at_the_steps_of_an_agent(policies: str):
    """From its first step to the one after its last, although the env is reset twice at the start."""
    agent = new_agent(Late, policies=policies)
    film = record_film(agent, episodes=2, agents=["bob", "ann"])
    assert film.frames is not None
    assert film.fps == 9
    shown = [[int(frame.image[0, 0, 0]) for frame in frames] for frames in film.frames]
    assert [trace.agent for trace in film.traces] == ["ann", "bob"] * 2
    assert shown == [list(range(0, 70, 10)), [20, 30, 40]] * 2


# Report --------------------------------------------------------------------------------------------


def test_the_report_has_every_agent(late_run: Path, capsys: pytest.CaptureFixture[str]):
    """Recorded at the end of the training, and again by ``report --env``."""
    expected = [("ann", "early", 0, 6), ("bob", "later", 2, 2), ("cat", "later", 1, 5)]
    files = sorted((late_run / "episodes").glob("report-*.json"))
    assert len(files) == 3 * EPISODES
    for again in ([], ["--env", f"{HERE}:Late"]):
        for file in files if again else []:
            file.unlink()
        assert main(["report", str(late_run), *again]) == 0
        page = data_of(late_run / "report.html")
        assert page["episode_notes"] == []
        found = [(one["agent"], one["group"], one["start"], one["steps"]) for one in page["episodes"]]
        assert found == expected * EPISODES
        assert [one["number"] for one in page["episodes"]] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    capsys.readouterr()


def test_a_report_makes_an_env_of_pettingzoo_itself(tmp_path: Path):
    speaker, run = "pettingzoo/simple_speaker_listener_v4", tmp_path / "run"
    flags = [*FLAGS, "--policies", "independent", "--steps", "64", "--quiet", "--no-eval", "--no-report"]
    assert main(["train", speaker, *flags, "--run", str(run)]) == 0
    for file in (run / "episodes").iterdir():
        file.unlink()
    assert main(["report", str(run)]) == 0
    page = data_of(run / "report.html")
    assert page["episode_notes"] == []
    assert [one["agent"] for one in page["episodes"]] == ["speaker_0", "listener_0"] * EPISODES


def test_one_policy_for_several_agents_has_them_all_too(tmp_path: Path):
    run = str(tmp_path / "run")
    assert main(["train", f"{HERE}:Late", *FLAGS, "--steps", "64", "--run", run, "--quiet", "--no-eval"]) == 0
    page = data_of(tmp_path / "run" / "report.html")
    assert [one["agent"] for one in page["episodes"]] == ["ann", "bob", "cat"] * EPISODES
    assert {one["group"] for one in page["episodes"]} == {None}
