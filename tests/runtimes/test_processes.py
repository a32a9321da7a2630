"""Actors in processes: the numbers of inline bit for bit, and rollouts that are what the actors did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap

import gymnasium as gym
import pytest
import torch
from gymnasium.wrappers import TimeLimit

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base import tree
from recollect.envs import make_env
from recollect.errors import ConfigError
from recollect.runtimes.collector import actor_stream
from recollect.runtimes.remote_collector import RemoteCollector
from recollect.training.run_folder import Run
from tests.support.doomed import SMALL, UPDATE, differing, weights
from tests.support.helpers import assert_reproduced, deviation
from tests.support.process_runs import (
    Turns,
    common_rows,
    descendants,
    kept,
    process_collector,
    trained,
    wait_until_gone,
)

pytestmark = pytest.mark.usefixtures("warm_children")

MAMBA, PMM = rc.MambaConfig(hidden=8), rc.PMMConfig(hidden=8)


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("env", "core", "actors"),
    [
        ("delayed-cue", SMALL["core"], 4),
        ("CartPole-v1", MAMBA, 1),
        ("position-pendulum", SMALL["core"], 2),  # cut after 200 of the 240 steps of every row
        slow("delayed-cue", MAMBA, 4),
        slow("delayed-cue", SMALL["core"], 1),
        slow("delayed-cue", PMM, 4),
        slow("CartPole-v1", SMALL["core"], 4),
        slow("CartPole-v1", PMM, 1),
        slow("position-pendulum", MAMBA, 4),
    ],
    ids=lambda value: str(value).split("Config")[0],
)
def test_lockstep_is_inline_bit_for_bit(env, core, actors, tmp_path):
    """S003-16, S003-24: weights, statistics, optimiser and metrics after 20 updates, wherever actors live."""
    settings = {"core": core, "actors": actors, "normalise_observations": True, "normalise_value": True}
    settings |= {"checkpoint_every": 10**6}
    inline = trained(env, 20, run=str(tmp_path / "inline"), **settings)
    there = trained(env, 20, runtime="processes", run=str(tmp_path / "processes"), **settings)
    assert differing(inline, there) == []
    assert common_rows(tmp_path / "inline") == common_rows(tmp_path / "processes")
    assert differing(inline, trained(env, 20, seed=1, **settings)) != []


class Watch(rc.Callback):
    """Counts what it is told, and stops."""

    def __init__(self, updates: int = 0):
        self.updates, self.told = updates, []

    def on_iteration(self, training, metrics):
        self.told.append("iteration")
        if training.updates == self.updates:
            training.stop("enough")

    def on_episode(self, training, episode):
        self.told.append((episode.return_, episode.length))


@pytest.mark.parametrize(("first", "second"), [("inline", "processes"), ("processes", "inline")])
def test_a_run_goes_on_in_another_runtime_bit_for_bit(first, second, tmp_path, capsys):
    """S003-16, S000-30: stopped, evaluated, resumed elsewhere; the episodes are those of one runtime."""
    settings = SMALL | {"steps": 6 * UPDATE, "actors": 2, "eval_every": 2 * UPDATE, "eval_episodes": 2}
    one, two, three = Watch(), Watch(3), Watch()
    whole = rc.train("delayed-cue", run=str(tmp_path / "whole"), callbacks=[one], **settings)
    path = tmp_path / "run"
    with rc.train("delayed-cue", run=str(path), runtime=first, callbacks=[two], **settings) as agent:
        assert agent.steps == 3 * UPDATE
    with rc.resume(path, runtime=second, progress="plain", callbacks=[three]) as agent:
        assert differing(weights(whole), weights(agent)) == []
    assert "bit for bit" in capsys.readouterr().err
    assert common_rows(path) == common_rows(tmp_path / "whole")
    assert two.told + three.told == one.told
    assert Run(path).status["reason"] == "steps"
    evaluations = [[row["returns"] for row in Run(p).evaluations()] for p in (path, tmp_path / "whole")]
    assert evaluations[0] == evaluations[1]


def test_an_agent_trains_twice(tmp_path):
    """S003-12, S003-13: the learner's parameters stay the ones it has; nothing of its processes stays."""
    before = descendants(os.getpid())
    agents = {}
    for runtime in ("inline", "processes"):
        agent = agents[runtime] = rc.Agent.create("delayed-cue", config(runtime=runtime))
        parameters = {name: (p, p.data_ptr(), p.dtype) for name, p in agent.policy.named_parameters()}
        start = weights(agent)
        agent.train(3 * UPDATE, progress=False)
        agent.evaluate(2)
        agent.train(2 * UPDATE, progress=False)
        for name, p in agent.policy.named_parameters():
            assert (p, p.data_ptr(), p.dtype) == parameters[name]
            assert p.requires_grad
        learner = agent._trainer.learner
        held = {id(p) for group in learner.optimizer.param_groups for p in group["params"]}
        assert held == {id(p) for p, _, _ in parameters.values()}
        assert differing(start, weights(agent)) != []
    assert differing(weights(agents["inline"]), weights(agents["processes"])) == []
    collector = agents["processes"]._trainer.collector
    assert len(collector.pids) == 1
    agents["processes"].close()
    assert collector.pids == []
    assert descendants(os.getpid()) <= before
    assert agents["processes"].steps == 5 * UPDATE


def test_training_goes_on_after_an_update_that_failed(monkeypatch):
    """S000-25: the tickets of that update are used up; its batch is collected anew, as in one process."""
    after = {}
    for runtime in ("inline", "processes"):
        with rc.Agent.create("delayed-cue", config(runtime=runtime, actors=2)) as agent:
            agent.train(2 * UPDATE, progress=False)
            with monkeypatch.context() as patched:
                patched.setattr(agent._trainer.learner, "update", _interrupted)
                with pytest.raises(KeyboardInterrupt):
                    agent.train(UPDATE, progress=False)
            agent.train(2 * UPDATE, progress=False)
            after[runtime] = weights(agent)
    assert differing(after["inline"], after["processes"]) == []


def _interrupted(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_actor_that_is_dead_when_it_is_asked():
    """S000-25: killed between two rollouts, and nobody has looked since: a new one gets its ticket."""
    with process_collector("delayed-cue", actors=2) as (collector, policy):
        turns = Turns(collector, policy)
        turns.turn()
        os.kill(collector.pids[0], signal.SIGKILL)
        wait_until_gone({collector.pids[0]})
        assert turns.turn().restarted == {0}
        turns.turn()
        turns.check(0)


def config(**settings) -> rc.TrainConfig:
    settings = {name: value for name, value in SMALL.items() if name != "progress"} | settings
    return rc.TrainConfig().override(**settings)


def test_episodes_longer_than_a_rollout():
    """M, S004-18, S000-23, S001-2, S003-9: what processes record is what one long unroll gives; no graph."""
    with process_collector("position-pendulum", actors=2, num_envs=4) as (collector, policy):
        batches = []
        for version in range(18):  # 216 steps: past the end of an episode, with the same weights
            batch = collector.collect(version)
            for rollout in batch.rollouts:
                assert_reproduced(policy, rollout, 4)
                assert rollout.version == version
                assert not any(leaf.requires_grad for leaf in tree.leaves((rollout.states, rollout.record)))
            batches.append([kept(rollout) for rollout in batch.rollouts])
            collector.publish(version + 1)
        assert max(deviation(policy, batches[1][0], 4, forget=True)) > 1e-4
        assert not torch.equal(batches[0][0].action, batches[0][1].action), "streams of their own"
        for actor in range(2):
            mine = [batch[actor] for batch in batches]
            assert [rollout.sequence for rollout in mine] == list(range(18))
            obs = torch.cat([rollout.obs[:-1] for rollout in mine])
            first = torch.cat([rollout.first[:-1] for rollout in mine])
            action = torch.cat([rollout.action for rollout in mine])
            assert first.nonzero()[:, 0].unique().tolist() == [0, 200]
            with torch.no_grad():
                log_prob, _, value = policy.evaluate_actions(obs, action, policy.initial_state(2), first)
            for name, again in (("log_prob", log_prob), ("value", value)):
                recorded = torch.cat([rollout.record[name] for rollout in mine])
                torch.testing.assert_close(again, recorded, rtol=0, atol=1e-5)


def test_more_truncations_than_there_is_room_for():
    """S000-4: four in twelve steps, and room for two: what does not fit travels beside the shared memory."""
    make = lambda: TimeLimit(gym.make("CartPole-v1").unwrapped, 3)  # noqa: E731
    with process_collector(make, num_envs=2) as (collector, policy):
        assert isinstance(collector, RemoteCollector)
        (there,) = collector.collect(0).rollouts
        env = make_env(make, 2)
        here = Actor(env, policy, rollout=12, state_steps=(0, 4, 8), seed=actor_stream(0, 0, 0)).collect()
        assert there.finals is not None
        assert here.finals is not None
        assert len(there.finals.time) == 8
        for name in ("time", "row", "obs"):
            assert torch.equal(getattr(there.finals, name), getattr(here.finals, name))
        for name in ("obs", "action", "reward", "truncated", "final_value", "bootstrap"):
            assert torch.equal(getattr(there, name), getattr(here, name))


def test_everything_of_a_script(tmp_path):
    """A script without ``if __name__``: its env class, its registered id and its policy travel by value."""
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import gymnasium as gym
            import numpy as np
            import torch

            import recollect as rc

            print("once")
            torch.set_num_threads(1)

            class World(gym.Env):
                observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
                action_space = gym.spaces.Discrete(2)

                def reset(self, *, seed=None, options=None):
                    super().reset(seed=seed)
                    self.left = 5
                    return self.see(), {}

                def step(self, action):
                    self.left -= 1
                    return self.see(), float(action), self.left == 0, False, {}

                def see(self):
                    return self.np_random.uniform(-1, 1, 2).astype(np.float32)

            class Own(rc.Policy):
                pass

            def policy(observation_space, action_space):
                made = rc.PolicyConfig(encoder=rc.EncoderConfig(hidden=(8,)), core=rc.LSTMConfig(hidden=8))
                network = made.build(observation_space, action_space)
                network.__class__ = Own
                return network

            gym.register("World-v7", "__main__:World")
            settings = dict(num_envs=2, rollout=8, chunk=4, minibatches=2, steps=48, threads=1)
            settings["progress"] = False
            for env, more in ((World, {"policy": policy}), ("World-v7", {})):
                agents = [rc.train(env, runtime=name, **settings, **more) for name in ("inline", "processes")]
                same = [torch.equal(a, b) for a, b in zip(*(agent.policy.parameters() for agent in agents))]
                print(all(same))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=300
    )
    assert done.stdout.split() == ["once", "True", "True"], done.stderr
    assert done.stderr == ""


def test_an_env_object_cannot_be_made_again():
    env = gym.make_vec("CartPole-v1", 4, vectorization_mode="sync")
    with pytest.raises(ConfigError, match=r"runtime = 'processes', but the env is an object.*a function"):
        rc.train(env, runtime="processes", **SMALL)
    env.close()


def test_output_of_the_actors_is_kept(tmp_path):
    """In the run folder, not in the middle of the display."""
    settings = SMALL | {"steps": UPDATE, "runtime": "processes", "run": str(tmp_path / "run")}
    with rc.train(lambda: Chatty(), **settings):
        pass
    log = (tmp_path / "run" / "logs" / "actor-0.log").read_text()
    assert "hello from the env" in log


class Chatty(gym.Wrapper):
    def __init__(self) -> None:
        super().__init__(gym.make("CartPole-v1"))
        print("hello from the env", flush=True)
