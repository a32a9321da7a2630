"""A callable that makes a whole batch of rows: everything that a name can have."""

from __future__ import annotations

import functools

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect.cli import main
from recollect.doctor import recommendation
from recollect.envs import factory as gym_module
from recollect.envs import make_env
from recollect.envs.checks import check_batched_env
from recollect.envs.factory import makes_batches
from recollect.errors import ConfigError, EnvError
from recollect.tasks import TASKS
from recollect.training.run_folder import Run
from tests.support.batch_worlds import Recall, make_recall
from tests.support.doomed import SMALL, UPDATE, differing, without
from tests.support.process_runs import common_rows, trained

pytestmark = pytest.mark.usefixtures("warm_children")


class Single(gym.Env):
    """One env whose own option happens to be called ``num_envs``."""

    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def __init__(self, num_envs: int = 3):
        self.worlds = num_envs


@pytest.mark.parametrize(
    ("env", "is_batch"),
    [
        (Recall, True),
        (make_recall, True),
        (functools.partial(Recall, length=2), True),
        (lambda num_envs: Recall(num_envs), True),
        (TASKS["delayed-cue"], True),
        (Single, False),
        (lambda: Single(), False),
        (lambda **options: Single(**options), False),
        (Recall(2), False),
        (dict, False),
        ("delayed-cue", False),
    ],
)
def test_a_parameter_num_envs_asks_for_a_batch(env, is_batch):
    assert makes_batches(env) is is_batch


def test_the_callable_gets_what_it_has_a_parameter_for():
    """``num_envs`` always, ``device`` where it has one, and the options."""
    env = make_env(Recall, 6, env_kwargs={"length": 3})
    assert isinstance(env, Recall)
    assert (env.num_envs, env.length, env.device) == (6, 3, torch.device("cpu"))
    met = check_batched_env(env)
    assert min(met.terminated, met.truncated) > 0
    assert make_env(make_recall, 2).num_envs == 2
    assert make_env(Single, 2, env_kwargs={"num_envs": 5}).num_envs == 2


def test_a_callable_may_make_a_vector_env():
    def vector(num_envs: int) -> gym.vector.VectorEnv:
        return gym.make_vec("CartPole-v1", num_envs=num_envs, vectorization_mode="sync")

    env = make_env(vector, 3)
    assert env.num_envs == 3
    check_batched_env(env, steps=30)
    env.close()


def test_the_device_is_the_callables_affair_if_it_has_that_parameter(monkeypatch):
    """Else the rows are on the CPU, and their tensors travel."""
    asked, carried = [], []

    def forgetful(num_envs: int, device: torch.device) -> Recall:
        asked.append(device)
        return Recall(num_envs)

    monkeypatch.setattr(gym_module, "on_device", lambda env, device: carried.append(device) or env)
    with pytest.raises(ConfigError, match="device is cuda, and the given Recall is on cpu"):
        make_env(forgetful, 4, device="cuda")
    assert asked == [torch.device("cuda")]
    make_env(make_recall, 4, device="cuda")
    assert carried == [torch.device("cuda")]


def single(num_envs: int) -> gym.Env:
    return gym.make("CartPole-v1")


def test_what_is_not_as_it_was_asked_for_is_refused():
    """Class, cause and fix; and what was made is closed."""
    made = []

    def kept(num_envs: int) -> Recall:
        made.append(Recall(2))
        return made[0]

    with pytest.raises(ConfigError, match=r"kept\(num_envs=4\) made a Recall of 2 .* as many as num_envs"):
        make_env(kept, 4)
    assert made[0].is_closed
    with pytest.raises(ConfigError, match=r"single\(num_envs=4\).*must make a BatchedEnv .* lacks agents"):
        make_env(single, 4)
    with pytest.raises(ConfigError, match=r"Recall\(num_envs=4.*color='red'\) failed.*env_kwargs"):
        make_env(Recall, 4, env_kwargs={"color": "red"})
    with pytest.raises(ConfigError, match=r"env_kwargs has num_envs.*--num-envs"):
        make_env(Recall, 4, env_kwargs={"num_envs": 2})
    with pytest.raises(EnvError, match=r"returned a Recall.*needs a parameter num_envs"):
        make_env(lambda: Recall(4), 4)
    with pytest.raises(ConfigError, match=r"env_workers = 2.*--runtime processes --actors"):
        rc.train(Recall, **SMALL | {"env_workers": 2})
    with pytest.raises(ConfigError, match=r"env_workers = 2.*--runtime processes --actors"):
        rc.train(Recall, **SMALL | {"env_workers": 2, "runtime": "processes"})


def test_it_trains_with_actors_evaluations_and_a_resume(tmp_path):
    """Envs are made for every actor, for evaluations while training and after it, and for play."""
    settings = SMALL | {"steps": 4 * UPDATE, "actors": 2, "eval_every": 2 * UPDATE, "eval_episodes": 3}
    settings |= {"env_kwargs": {"length": 3}, "run": str(tmp_path / "run"), "checkpoint_every": 10**6}
    with rc.train(Recall, **settings) as agent:
        assert [len(row["returns"]) for row in Run(tmp_path / "run").evaluations()] == [3, 3]
        assert agent.evaluate(episodes=5).lengths.tolist() == [3] * 5
        assert agent.evaluate(episodes=2, env_kwargs={"length": 6}).lengths.tolist() == [6] * 2
        assert agent.can_make_env
    with rc.resume(
        tmp_path / "run", env=Recall, env_kwargs={"length": 3}, steps=UPDATE, progress=False
    ) as agent:
        assert agent.steps == 5 * UPDATE


def test_lockstep_is_inline_bit_for_bit(tmp_path):
    """S003-16: a user's batched env in processes of two actors, with truncations inside of rollouts."""
    settings = {"actors": 2, "normalise_observations": True, "checkpoint_every": 10**6}
    inline = trained(Recall, 6, run=str(tmp_path / "inline"), **settings)
    there = trained(Recall, 6, runtime="processes", run=str(tmp_path / "there"), **settings)
    assert differing(inline, there) == []
    assert common_rows(tmp_path / "inline") == common_rows(tmp_path / "there")
    assert differing(inline, trained(Recall, 6, seed=1, **settings)) != []
    assert differing(inline, trained(Recall, 6, **settings | {"actors": 1})) != []


def test_each_actor_has_rows_of_its_own():
    """Not the same episodes twice: the actors' seeds differ."""
    config = rc.TrainConfig().override(**without(SMALL, "progress"), actors=2)
    with rc.Agent.create(Recall, config) as agent:
        agent.train(UPDATE, progress=False)
        one, two = agent._trainer.collector.envs
        assert one is not two
        assert one.num_envs == two.num_envs == SMALL["num_envs"] // 2
        assert not torch.equal(one._random.get_state(), two._random.get_state())


def test_the_command_line(tmp_path, capsys, monkeypatch):
    """``module:factory`` trains in processes, is evaluated, verified and played."""
    name = "tests.support.batch_worlds:make_recall"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    tiny = "--num-envs 4 --rollout 16 --chunk 8 --core.hidden 8 --encoder.hidden 8 --threads 1".split()
    more = "--steps 128 --actors 2 --runtime processes --run run --quiet --no-report --no-eval".split()
    assert main(["train", name, *tiny, *more, "--task.length", "3"]) == 0
    assert main(["eval", "run", "--env", name, "--task.length", "3", "--episodes", "2"]) == 0
    assert "length 3," in capsys.readouterr().out
    assert main(["play", "run", "--env", name, "--task.length", "3", "--episodes", "1"]) == 0
    assert main(["verify", name, *tiny]) == 0, capsys.readouterr().out


def test_doctor_tries_no_workers_on_it(monkeypatch):
    """They would be refused."""
    tried = []
    monkeypatch.setattr(recommendation, "measure_speed", lambda seconds, env, **given: tried.append(given))
    recommendation.try_out("tests.support.batch_worlds:Recall", cores=2)
    assert [given.get("env_workers") for given in tried] == [None, None]
    assert [given.get("runtime") for given in tried] == [None, "processes"]
