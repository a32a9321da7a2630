"""Several groups of agents, each with its own policy: one run in every runtime, saved, resumed, evaluated."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.base.types import Step
from recollect.cli import main
from recollect.errors import AlignmentError, ConfigError, EnvError, RecollectError
from recollect.policy.policies import Policies
from recollect.training.group_metrics import merged
from tests.support.grouped_worlds import Camp, Duo

SMALL: dict[str, Any] = {
    "num_envs": 4,
    "rollout": 8,
    "chunk": 4,
    "minibatches": 1,
    "epochs": 1,
    "core": "gru",
    "threads": 1,
    "progress": False,
}
SPEAKER = "pettingzoo/simple_speaker_listener_v4"


def weights(agent: rc.Agent) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.network.state_dict().items()}


def trained(env: Any = Duo, steps: int = 320, **settings: Any) -> rc.Agent:
    return rc.train(env, steps=steps, **SMALL | settings)


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("more", [{"runtime": "processes"}, {"env_workers": 2}], ids=["processes", "workers"])
def test_two_groups_are_the_same_in_every_runtime(more):
    """S001-29, S002-2: in lockstep, two groups of a PettingZoo env get the same weights."""
    layout = {"actors": 2, "policies": "independent", "steps": 256}
    with trained(SPEAKER, **layout) as inline, trained(SPEAKER, **layout, **more) as other:
        assert_equal(weights(inline), weights(other))
        assert inline.steps == other.steps


def test_evaluations_on_the_way():
    """S001-5: a run with groups evaluates all of them, and ends with the weights of a run that does not."""
    groups: dict[str, Any] = {"policies": {"girls": ["ann", "cat"], "boys": ["bob"]}, "num_envs": 3}
    seen: list[set[str]] = []

    class Seen(rc.Callback):
        def on_evaluation(self, training, evaluation):
            seen.append(set(evaluation.groups))

    with trained(Camp, 144, eval_every=72, eval_episodes=6, callbacks=Seen(), **groups) as evaluated:
        assert seen == [{"girls", "boys"}] * len(seen)
        assert seen
        with trained(Camp, 144, eval_every=0, **groups) as without:
            assert_equal(weights(evaluated), weights(without))


def test_groups_learn_side_by_side():
    """S002-2: each in a thread, what they learn in one."""
    both, seen = threading.Barrier(2), set()
    config = rc.TrainConfig().override(**{k: v for k, v in SMALL.items() if k != "progress"} | {"threads": 2})
    with trained() as alone, rc.Agent.create(Duo, config) as agent:
        for learner in agent._trainer.learners.values():

            def update(*args: Any, own: Any = learner.update, **more: Any) -> dict[str, float]:
                both.wait(60)  # breaks if one update follows the other
                seen.add(threading.get_ident())
                return own(*args, **more)

            learner.update = update
        agent.train(320, progress=False)
        assert len(seen) == 2
        assert_equal(weights(alone), weights(agent))


@pytest.mark.usefixtures("warm_children")
def test_two_groups_with_actors_that_run_ahead():
    """S000-24: both learn, and rollouts of older weights are checked against these, in each group."""
    settings = {"runtime": "processes", "mode": "async", "max_lag": 2, "gauge_every": 1, "actors": 2}
    with trained(steps=4000, **settings) as agent:
        rows = agent.history.rows
        assert agent.steps >= 4000
    assert max(row["lag/max"] for row in rows) in (1, 2)
    late = [row for row in rows if row["lag/max"] > 0 and "group/small/deviation/value" in row]
    assert late
    for group in ("big", "small"):
        assert max(row[f"group/{group}/deviation/log_prob"] for row in late) < 1e-4
        assert all(row[f"group/{group}/learning_rate"] > 0 for row in rows)


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("group", ["big", "small"])
def test_the_late_check_sees_every_group(group):
    """S000-24: other weights of one group than those that are remembered stop the run."""
    late_check(group)


def late_check(group: str = "small") -> None:
    settings = {k: v for k, v in SMALL.items() if k != "progress"}
    settings |= {"runtime": "processes", "mode": "async", "max_lag": 2, "gauge_every": 1, "actors": 2}
    agent = rc.Agent.create(Duo, rc.TrainConfig().override(**settings))
    trainer: Any = agent._trainer
    remember = trainer._remember

    def wrong() -> None:
        remember()
        for name, tensor in trainer._past[trainer.learner.updates].items():
            if f"group/{group}." in name and tensor.dtype == torch.float32:
                tensor += 0.1

    trainer._remember = wrong
    with agent, pytest.raises(AlignmentError, match="deviate"):
        agent.train(8000, progress=False)


def test_each_group_has_its_own_policy_rows_and_metrics():
    """S001-29: rows are envs x agents of the group; a dead agent's steps do not count."""
    with trained(steps=96) as agent:
        assert agent.groups == {"big": ("a", "b"), "small": ("c",)}
        big, small = agent["big"].policy, agent["small"].policy
        assert (big.observation_space.shape, small.observation_space.shape) == ((2,), (3,))
        first = agent.history.rows[0]
        # Of four steps of an episode, "b" lives in two: 4 envs x 8 steps x (1 + 0.5) and 4 x 8.
        assert first["steps"] == 4 * 8 * (1.5 + 1)
        assert first["group/big/episodes"] == 4 * 2 * 2
        assert first["group/small/episodes"] == 4 * 2
        assert first["episodes"] == first["group/big/episodes"] + first["group/small/episodes"]
        assert {"group/big/entropy", "group/small/loss/value", "entropy", "return"} <= first.keys()
        assert first["deviation/log_prob"] == max(
            first["group/big/deviation/log_prob"], first["group/small/deviation/log_prob"]
        )


def test_groups_act_by_streams_of_their_own():
    """Two groups with equal spaces have other weights, and draw other random numbers."""
    with trained(Camp, steps=16, policies={"one": "ann", "two": ["bob", "cat"]}) as agent:
        assert isinstance(agent.network, Policies)
        one, two = agent.network.by_group.values()
        assert not torch.equal(one.encoder.mlp.weight, two.encoder.mlp.weight)
        assert agent._trainer is not None
        collector: Any = agent._trainer.collector
        seeds = [actor.generator.initial_seed() for actor in collector.actors[0].actors.values()]
        assert len(set(seeds)) == 2


def test_a_run_resumes_bit_for_bit(tmp_path):
    """S000-9: stopped in mid-episode and resumed, a run with two groups equals one that was not stopped."""
    settings = {"actors": 2, "last_action_reward": True, "eval_every": 0}
    with trained(run=str(tmp_path / "whole"), **settings) as whole:
        expected = weights(whole)

    def stop(training: Any, metrics: dict[str, float]) -> None:
        if training.updates == 2:
            training.stop()

    with trained(run=str(tmp_path / "stopped"), callbacks=stop, **settings) as stopped:
        assert 0 < stopped.steps < whole.steps
    with rc.resume(tmp_path / "stopped", env=Duo, progress=False) as resumed:
        assert resumed.steps == whole.steps
        assert_equal(weights(resumed), expected)


def test_saved_and_loaded(tmp_path):
    with trained() as agent:
        folder = agent.save(tmp_path / "saved")
        greedy = agent.evaluate(6, seed=3, eval_mode="greedy")
        with rc.load(folder, env=Duo) as loaded:
            assert_equal(weights(loaded), weights(agent))
            assert loaded.groups == agent.groups
            again = loaded.evaluate(6, seed=3, eval_mode="greedy")
            assert np.array_equal(again.returns, greedy.returns)
            loaded.train(160)


def test_an_evaluation_has_the_episodes_of_each_group():
    with trained(steps=96) as agent:
        both = agent.evaluate(6)
        assert {name: len(one.returns) for name, one in both.groups.items()} == {"big": 6, "small": 6}
        assert len(both.returns) == 12
        assert both.mean == pytest.approx(np.mean([one.mean for one in both.groups.values()]))
        assert both.sampled is not None
        assert both.sampled.groups.keys() == both.groups.keys()
        assert re.search(r"; big .*, small .*\)", str(both))
        assert set(both.to_json()["groups"]) == {"big", "small"}


def test_an_error_in_an_update_names_the_group():
    class Broken(Duo):
        def step(self, action: Any) -> dict[str, Step]:
            made = super().step(action)
            made["small"].reward.fill_(torch.nan)
            return made

    with pytest.raises(EnvError, match=r"^group 'small': .*reward"):
        trained(Broken)


def test_one_group_acts_alone():
    """``agent[group]`` predicts and has sessions like any agent; the whole has no single policy."""
    with trained(steps=96) as agent:
        small = agent["small"]
        action, _ = small.predict(np.zeros(3, np.float32), episode_start=True)
        assert action in range(4)
        assert small.session(2).act(np.zeros((2, 3), np.float32)).shape == (2,)
        with pytest.raises(ConfigError, match=r"'big', 'small'.*agent\[group\]"):
            agent.predict(np.zeros(3), episode_start=True)
        with pytest.raises(ConfigError, match="no group 'tiny': its groups are big, small"):
            agent["tiny"]


@pytest.mark.parametrize(
    ("env", "settings", "words"),
    [
        ("CartPole-v1", {"policies": "independent"}, "has no groups of agents: policies is for PettingZoo"),
        (SPEAKER, {}, "cannot share a policy.*policies='independent'"),
        (SPEAKER, {"policies": {"one": "speaker_0"}}, "'listener_0' is in no group"),
        (SPEAKER, {"policies": "{"}, "is no JSON"),
        (Duo, {"learners": 5}, "learners = 5, but a rollout has only 4 rows"),
        (Duo, {"policies": "independent"}, "makes all of its slots, with their groups"),
    ],
)
def test_bad_input(env, settings, words):
    with pytest.raises(RecollectError, match=words):
        trained(env, **settings)


def test_from_the_command_line(tmp_path: Path, capsys):
    """Train with a mapping from a file, resume, evaluate, report."""
    file = tmp_path / "pair.yaml"
    file.write_text(
        f'env: "{SPEAKER}"\nsteps: 128\nnum_envs: 4\nrollout: 8\nchunk: 4\nminibatches: 1\n'
        'policies:\n  talks: "speaker_*"\n  walks: [listener_0]\n'
    )
    run = str(tmp_path / "run")
    assert main(["train", "--config", str(file), "--run", run, "--threads", "1"]) == 0
    assert "talks: observation 3 float32" in "".join(capsys.readouterr())
    assert main(["resume", run, "--steps", "64", "--threads", "1"]) == 0
    assert main(["eval", run, "--episodes", "4"]) == 0
    assert re.search(r"talks -?\d.*walks -?\d", capsys.readouterr().out)
    assert main(["report", run]) == 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert "group/talks/return" in page
    assert main(["train", SPEAKER, "--steps", "32", "--policies", '{"all": "*"}', "--num-envs", "4"]) != 0
    assert "cannot share a policy" in capsys.readouterr().err


def test_metrics_of_all_groups():
    """Counts add up, the worst deviation counts, and anything else is a mean."""
    one = {"kl": 1.0, "episodes": 2.0, "deviation/value": 3.0, "x/max": 3.0, "x/min": 0.0}
    two = {"kl": 3.0, "episodes": 5.0, "deviation/value": 1.0, "x/max": 1.0, "x/min": -1.0}
    found = merged({"a": one, "b": two})
    assert {name: found[name] for name in one} == {
        "kl": 2.0,
        "episodes": 7.0,
        "deviation/value": 3.0,
        "x/max": 3.0,
        "x/min": -1.0,
    }
    assert found["group/b/kl"] == 3.0
    assert merged({"": one}) == one
