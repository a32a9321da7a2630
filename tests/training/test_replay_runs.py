"""Runs of algorithms on replay: the same in every runtime, resumed, evaluated, saved and used."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base import tree
from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
from recollect.errors import AlignmentError, ConfigError
from recollect.experience.replay import Replay
from recollect.experience.replay_record import UNWRITTEN
from recollect.learning.learner_state import learner_tensors
from recollect.learning.replay_learner import ReplayLearner
from recollect.training.run_folder import Run
from tests.support.resumed import STEPS, Stop, assert_equal, rows, twice

SMALL: dict[str, Any] = {
    "rollout": 12,
    "chunk": 4,
    "burn_in_steps": 3,
    "n_step": 2,
    "stride": 3,
    "batch": 4,
    "num_envs": 4,
    "replay_capacity": 800,
    "replay_warmup": 60,
    "replay_ratio": 0.9,
    "target_every": 3,
    "target_rate": None,
    "epsilon_ladder": 3.0,
    "gauge_every": 1,
    "encoder": rc.EncoderConfig(hidden=(8,)),
    "core": rc.LSTMConfig(hidden=8, learned_initial_state=True),
    "threads": 1,
    "checkpoint_every": 96,
    "keep_checkpoints": 20,
    "progress": False,
}
NOISY = QHeadConfig(hidden=(8,), noisy=True)
FRAMES = {"core": rc.FramesConfig(frames=3), "states": "rebuilt", "encoder": None}
ALGOS: dict[str, dict[str, Any]] = {
    "r2d2": {"algo": "r2d2"},
    "noisy": {"algo": "r2d2", "head": NOISY, "normalise_observations": True},
    "iqn": {"algo": "iqn", "head": QuantileHeadConfig(hidden=(8,), embedding=4), "priority_exponent": 0.5},
    "frames": {"algo": "iqn", **FRAMES, "target_every": None, "target_rate": 0.1},
}
TASKS: dict[str, dict[str, Any]] = {
    "repeat-previous": {},
    "position-cartpole": {},
    "treasure-hunt": {"policies": "independent", "env_kwargs": {"length": 9}},
}


def run(algo: str, task: str = "repeat-previous", **settings: Any) -> rc.Agent:
    """Eight updates, the first of which only fill the replay."""
    chosen = {**SMALL, "steps": 384, **ALGOS[algo], **TASKS[task], **settings}
    return rc.train(task, **chosen)


def learners(agent: rc.Agent) -> dict[str, Any]:
    assert agent._trainer is not None
    return agent._trainer.learners


def collector(agent: rc.Agent) -> Any:
    assert agent._trainer is not None
    return agent._trainer.collector


def everything(agent: rc.Agent) -> dict[str, torch.Tensor]:
    """All that learning has made: weights, target networks, optimisers, replays, random streams."""
    found = {name: leaf.clone() for name, leaf in agent.network.state_dict().items()}
    for group, one in learners(agent).items():
        found |= {f"{group}:{n}": x.clone() for n, x in learner_tensors(one).items() if ":replay." not in n}
        if isinstance(one, ReplayLearner):
            found |= {f"{group}:{name}": leaf for name, leaf in held(one.replay).items()}
    return found


def held(replay: Replay) -> dict[str, torch.Tensor]:
    """What a replay holds, without the memory that was never written."""
    kept = replay.fields.word != UNWRITTEN
    kept[replay.rows * replay.capacity :] = False
    parts = {"obs": replay.obs, "action": replay.action, "record": replay.record}
    found = {f"replay:{name}": leaf[kept] for name, leaf in tree.named_leaves(parts)}
    return found | {"replay:head": replay.head.clone(), "replay:ready": replay.ready[:-1].clone()}


def steps_of(agent: rc.Agent) -> list[int]:
    return [one.gradient_steps for one in learners(agent).values()]


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("task", ["repeat-previous", "treasure-hunt"])
@pytest.mark.parametrize("algo", ["r2d2", "noisy", "iqn"])
def test_processes_learn_what_one_process_learns(algo, task):
    """S003-16, S003-22, S003-14: bit for bit, replay included; the actors explore at the same epsilons."""
    with run(algo, task, actors=2) as inline, run(algo, task, actors=2, runtime="processes") as other:
        assert min(steps_of(inline)) > 5
        assert_equal(everything(inline), everything(other))
        one, two = ([row["epsilon"] for row in agent.history.rows] for agent in (inline, other))
        assert one == two


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("runtime", ["inline", "processes"])
def test_what_is_recorded_is_reproduced(runtime):
    """M: through whole runs, with truncation, by every runtime."""
    for algo, task in (
        ("r2d2", "repeat-previous"),
        ("iqn", "position-cartpole"),
        ("frames", "repeat-previous"),
    ):
        with run(algo, task, rollout=11, actors=2, runtime=runtime) as agent:
            assert min(steps_of(agent)) > 3
            assert max(row["deviation/q"] for row in agent.history.rows) < 1e-5


@pytest.mark.parametrize("algo", ["r2d2", "iqn"])
def test_a_wrong_state_stops_the_run(algo, monkeypatch):
    """M: zeros are stored in its place."""
    play = Actor._play

    def forgetful(self: Any, *given: Any) -> Any:
        out = yield from play(self, *given)
        given[0].states = tree.map(torch.zeros_like, given[0].states)
        return out

    monkeypatch.setattr(Actor, "_play", forgetful)
    with pytest.raises(AlignmentError, match="deviate from the recorded ones"):
        run(algo)


@pytest.mark.usefixtures("warm_children")
def test_actors_run_ahead():
    """S003-9, S003-22: rollouts of older weights are learned from and are checked against those weights."""
    with run("r2d2", actors=2, runtime="processes", mode="async", max_lag=2, steps=768) as agent:
        assert min(steps_of(agent)) > 3
        assert max(row["lag/max"] for row in agent.history.rows) > 0


def test_every_stream_of_random_numbers_is_another():
    """S003-24: of each group's learner and actor; the same in the next run with that seed."""
    seen = []
    for _ in range(2):
        agent = run("r2d2", "treasure-hunt", actors=2)
        actors = [one for actor in collector(agent).actors for one in actor.actors.values()]
        found = [one.generator.initial_seed() for one in [*learners(agent).values(), *actors]]
        assert len(set(found)) == len(found) == 6
        seen.append(found)
    assert seen[0] == seen[1]


def test_the_warm_up_advances_the_memory():
    """M: rollouts before the first optimiser step are those of an actor whose state goes on."""
    agent = run("r2d2", replay_warmup=10_000, replay_capacity=20_000, steps=192)
    (actor,) = collector(agent).actors
    assert steps_of(agent) == [0]
    assert all(row["deviation/q"] < 1e-5 for row in agent.history.rows)
    assert not all(torch.equal(leaf[:1].expand_as(leaf), leaf) for leaf in tree.leaves(actor.state))


# Resuming ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
def test_resume_is_bit_for_bit_with_the_replay(algo, tmp_path):
    """S000-30, S002-7: replay, target network, owed steps, epsilon and noise go on."""
    whole, halves = twice(tmp_path, "repeat-previous", SMALL | ALGOS[algo] | {"save_replay": True}, 240)
    assert min(steps_of(whole)) > 5
    assert_equal(everything(whole), everything(halves))
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")


def test_resume_of_two_learners(tmp_path):
    """S002-7."""
    settings = SMALL | ALGOS["r2d2"] | TASKS["treasure-hunt"] | {"save_replay": True}
    whole, halves = twice(tmp_path, "treasure-hunt", settings, 240)
    assert_equal(everything(whole), everything(halves))


def test_resume_without_the_replay_says_so(tmp_path, capsys):
    """S000-30: it is filled again, and training goes on from the same weights."""
    path = tmp_path / "run"
    settings = SMALL | ALGOS["r2d2"]
    agent = rc.train("repeat-previous", steps=STEPS, run=str(path), callbacks=[Stop(240)], **settings)
    before = steps_of(agent)
    capsys.readouterr()
    agent = rc.resume(path, progress="plain")
    assert "with an empty replay, which is filled again: save_replay was off" in capsys.readouterr().err
    assert agent.steps == STEPS
    assert steps_of(agent) > before
    assert Run(path).metrics()[-1]["replay/steps"] <= STEPS - 240


def test_a_run_cannot_become_one_of_another_algorithm(tmp_path):
    """The error names the setting."""
    path = tmp_path / "run"
    rc.train("repeat-previous", steps=96, run=str(path), **SMALL, **ALGOS["r2d2"])
    different: list[dict[str, Any]] = [{"algo": "iqn"}, {"algo": "ppo"}, {"replay_capacity": 1600}]
    for changed in different:
        with pytest.raises(ConfigError, match=next(iter(changed))):
            rc.resume(path, progress=False, **changed)


# Evaluation ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["r2d2", "noisy", "iqn"])
def test_evaluations_leave_training_alone(algo, tmp_path):
    """S001-5: nothing is written to the replay, no random number is taken; and they can be repeated."""
    plain = run(algo)
    watched = run(algo, eval_every=48, eval_episodes=3, run=str(tmp_path / "run"))
    assert len(Run(tmp_path / "run").evaluations()) == 8
    one, two = everything(plain), everything(watched)
    assert_equal(one, two)
    first, second = (plain.evaluate(4, seed=1).returns for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert_equal(one, everything(plain))


def test_evaluations_are_greedy(tmp_path):
    """Sampled ones are refused; ``both`` means greedy, for random actions are no part of the policy."""
    with pytest.raises(ConfigError, match="eval_mode"):
        run("r2d2", eval_mode="sampled")
    for mode in ("both", "greedy"):
        path = tmp_path / mode
        run("r2d2", eval_mode=mode, eval_every=192, eval_episodes=2, run=str(path))
        evaluations = Run(path).evaluations()
        assert [(row["mode"], "sampled" in row) for row in evaluations] == [("greedy", False)] * 2


# Agents --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ALGOS)
def test_an_agent_is_saved_and_used(algo, tmp_path):
    """Sessions and predictions choose the greedy actions, after loading, too."""
    agent = run(algo)
    agent.save(tmp_path / "agent")
    other = rc.load(tmp_path / "agent")
    env = agent.make_env(3)
    obs, actions = env.reset(5), []
    sessions = [one.session(3) for one in (agent, other)]
    state, start = agent.initial_state(3), np.ones(3, bool)
    for _ in range(6):
        seen = obs.numpy()
        for session in sessions:
            session.reset(torch.from_numpy(start))
        one, two = (session.act(seen) for session in sessions)
        three, state = agent.predict(seen, state, start)
        np.testing.assert_array_equal(one, two)
        np.testing.assert_array_equal(one, three)
        actions.append(one)
        step = env.step(torch.as_tensor(one))
        obs, start = step.obs, step.first.numpy()
    assert agent.evaluate(3, seed=2).mean == other.evaluate(3, seed=2).mean


# Learning ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["r2d2", "iqn"])
def test_it_learns_to_remember(algo):
    """S003-22: repeat-previous is solved by a memory, or by frames that reach back far enough, and by nothing
    else."""
    settings: dict[str, Any] = {"gamma": 0.5, "reward_scale": 20.0, "learning_rate": 1e-3, "num_envs": 16}
    if algo == "iqn":
        settings |= {"core": rc.FramesConfig(frames=5), "states": "rebuilt", "burn_in_steps": 4}
        settings |= {"chunk": 8, "target_every": 100}
    settings |= {"threads": 1, "progress": False}
    agent = rc.train("repeat-previous", algo=algo, steps=100_000, target_return=0.9, **settings)
    assert agent.steps < 100_000
    assert agent.evaluate(32, seed=3).mean > 0.9


@pytest.mark.slow
def test_too_few_frames_do_not():
    """The last test can fail: the answer is four steps back."""
    settings: dict[str, Any] = {"gamma": 0.5, "reward_scale": 20.0, "learning_rate": 1e-3, "num_envs": 16}
    settings |= {"core": rc.FramesConfig(frames=3), "states": "rebuilt", "burn_in_steps": 2, "chunk": 8}
    agent = rc.train("repeat-previous", algo="iqn", steps=20_000, threads=1, progress=False, **settings)
    assert agent.evaluate(32, seed=3).mean < 0.5
