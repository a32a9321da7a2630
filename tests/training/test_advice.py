"""Advice: episodes beyond the reach of gradients, slow envs, gauges out of range, solved tasks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import recollect as rc
from recollect.cli import main
from recollect.config.train import TrainConfig
from recollect.reports.data import gather_run
from recollect.reports.read_run import read_folder
from recollect.training import advice
from recollect.training.advice import Advisor
from recollect.training.gauges import BY_NAME, judge
from recollect.training.metrics import History
from recollect.training.run_folder import Run

QUIET = {"advantage/std": 1.0, "value/std": 1.0, "reward/std": 1.0}


class Coin(gym.Env):
    """An episode of ``steps`` steps; the last reward is 0 or 1 at random: there is nothing to learn."""

    observation_space = gym.spaces.Box(-1, 1, (2,))
    action_space = gym.spaces.Discrete(2)

    def __init__(self, steps: int = 12):
        self.steps, self.left = steps, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = self.steps
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        reward = float(self.np_random.integers(2)) if self.left == 0 else 0.0
        return np.zeros(2, np.float32), reward, self.left == 0, False, {}


COIN = {"num_envs": 4, "rollout": 12, "chunk": 4, "epochs": 1, "minibatches": 1, "steps": 24 * 48}
COIN |= {"core": rc.LSTMConfig(hidden=4), "threads": 1, "progress": False}


def told(returns: list[float], spread: float = 0.5, length: float = 100.0, **options: Any) -> list[str]:
    """The advice of a run with these mean returns, one per update of 1000 steps, out of 30 updates."""
    config = options.pop("config", TrainConfig())
    advisor, history, said = Advisor(config, **options), History(), list[str]()
    advisor.begin(history, 0, 30_000)
    for i, value in enumerate(returns):
        row = QUIET | {"return": value, "return_spread": spread, "length": length}
        row |= {"steps": 1000.0 * (i + 1), "episodes": 50.0 * (i + 1)}
        history.add(row)
        said += advisor.watch(row)
    return said


# The reach of gradients ------------------------------------------------------------------------------------


def test_long_episodes_without_improvement():
    """Once, with the measured length, the reach, and values that cover the length."""
    noise = [0.5 + 0.02 * (-1) ** i for i in range(30)]
    (text,) = told(noise, length=100.0)
    for words in (
        "last 100 steps",
        "reach back 32",
        "recurrent_mode='full'",
        "num_envs=32",
        "core.chrono=100",
    ):
        assert words in text
    assert "rollout=" not in text, "128 steps cover 100"
    (text,) = told(noise, length=300.0, config=TrainConfig().override(core="gru", num_envs=64))
    assert "rollout=512" in text
    assert "core.chrono=300" in text
    assert "num_envs" not in text
    whole = TrainConfig().override(recurrent_mode="full", rollout=2048)
    (text,) = told(noise, length=27_000.0, config=whole)
    assert "rollout=4096" in text, "not 32768"
    assert "recurrent_mode" not in text


REPLAY = TrainConfig().override(algo="r2d2")
FRAMES = TrainConfig().override(algo="iqn", core="frames", states="rebuilt", burn_in_steps=3)


def test_long_episodes_of_a_replay():
    """S003: longer sequences in smaller batches, with settings that the algorithm has."""
    (text,) = told([0.5] * 30, length=100.0, config=REPLAY)
    for words in ("reach back 20", "chunk=128", "batch=5", "core.chrono=100"):
        assert words in text
    for words in ("recurrent_mode", "rollout", "num_envs"):
        assert words not in text


def test_small_gradients_of_action_values_are_no_news():
    """Before rewards are found all errors are small."""
    said = {}
    for config in (TrainConfig(), REPLAY):
        advisor = Advisor(config, patience=5)
        row = QUIET | {"grad_norm": 0.01, "grad_norm_max": 0.02, "grad_clip_rate": 0.0}
        said[config.algo.default_head] = [advisor.watch(row) for _ in range(8)]
    assert any("stayed below 0.1" in text for texts in said["actor_critic"] for text in texts)
    assert not any(said["q"])


def test_a_plateau_after_a_small_rise_is_no_improvement():
    """Such as that of the best agent without memory."""
    rise = [0.2, 0.3, 0.4, 0.5, *[0.52, 0.5] * 13]
    assert len(told(rise, spread=0.5)) == 1


@pytest.mark.parametrize(
    ("returns", "options"),
    [
        ([0.5] * 30, {"length": 40.0}),
        ([0.5] * 30, {"has_memory": False}),
        ([0.5] * 30, {"config": TrainConfig(init_from="runs/before")}),
        ([0.5] * 30, {"config": TrainConfig().override(recurrent_mode="full")}),
        ([0.0] * 30, {"spread": 0.0}),
        ([0.5] * 10, {}),
        ([20.0, 200.0, *[500.0] * 28], {"spread": 0.0, "length": 500.0}),
        ([-200.0, -50.0, 100.0, *[240.0] * 27], {"spread": 60.0, "length": 300.0}),
        ([0.02 * i for i in range(30)], {"spread": 0.4}),
        ([0.1, 0.5, 0.9, *[0.1] * 27], {"spread": 0.3}),
        ([0.5] * 30, {"config": FRAMES}),
    ],
    ids=[
        *("short", "memoryless", "fine-tuned", "covered", "constant", "early", "solved", "noisy-solved"),
        *("rising", "collapsed", "frames"),
    ],
)
def test_no_false_alarm_about_the_reach(returns, options):
    assert told(returns, **options) == []


def test_the_run_and_its_report_say_that_gradients_do_not_reach(tmp_path, monkeypatch, capsys):
    """From the command line: the display, the events and the report; a chunk that covers them is silent."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "coins.py").write_text("from tests.training.test_advice import Coin\n")
    flags = "--num-envs 4 --rollout 12 --epochs 1 --minibatches 1 --core.hidden 4 --threads 1 --plain"
    train = ["train", "coins.py:Coin", *flags.split(), "--steps", str(24 * 48), "--no-report"]
    assert main([*train, "--chunk", "4", "--run", "short"]) == 0
    assert "advice: episodes last 12 steps, gradients reach back 4 steps" in capsys.readouterr().err
    (event,) = [event for event in Run(tmp_path / "short").events() if event["kind"] == "advice"]
    data = gather_run(read_folder(tmp_path / "short"), [])
    assert event["text"] in [event["text"] for event in data["events"]]
    assert "1 piece of advice" in data["advice"]
    assert main([*train, "--chunk", "12", "--run", "long"]) == 0
    assert "advice" not in capsys.readouterr().err
    assert "piece" not in gather_run(read_folder(tmp_path / "long"), [])["advice"]


def test_a_resumed_run_remembers_its_first_return(tmp_path):
    """The rise before the interruption counts."""
    history = History()
    for i in range(20):
        row = {"return": min(500.0, 50.0 * i), "return_spread": 20.0, "steps": 1000.0 * i, "episodes": 99.0}
        history.add(row)
    advisor = Advisor(TrainConfig())
    advisor.begin(history, 0, 30_000)
    for i in range(20, 30):
        row = QUIET | {"return": 500.0, "return_spread": 20.0, "length": 500.0}
        row |= {"steps": 1000.0 * i, "episodes": 99.0}
        history.add(row)
        assert advisor.watch(row) == []


# The env's time --------------------------------------------------------------------------------------------


def slow(**more: float) -> list[list[str]]:
    """What is said after each of four updates of 30 seconds each."""
    advisor = Advisor(TrainConfig(), env="my worlds:Env")
    advisor.begin(History(), 0, 30_000)
    speeds = {"speed/total": 100.0, "speed/env": 160.0} | more
    return [advisor.watch(QUIET | speeds | {"steps": 3000.0 * (i + 1)}) for i in range(4)]


def test_an_env_that_takes_half_of_the_time():
    """Once, after a minute, with the command; with remote actors the share of their time counts."""
    first, second, *rest = slow()
    assert (first, rest) == ([], [[], []])
    assert "62%" in second[0]
    assert "recollect doctor --env 'my worlds:Env'" in second[0]
    assert sum(map(len, slow(**{"speed/env": 300.0}))) == 0
    assert sum(map(len, slow(**{"speed/env": 50.0, "time/env": 0.4}))) == 0
    assert "70%" in slow(**{"speed/env": 900.0, "time/env": 0.7})[1][0]


def test_the_command_for_the_env_of_a_run(monkeypatch):
    """Its name, and for a class a place for it."""
    monkeypatch.setattr(advice, "ENV_SECONDS", 0.0)
    monkeypatch.setattr(advice, "ENV_SHARE", 0.0)

    class Kept(rc.Callback):
        said: list[str] = []  # noqa: RUF012

        def on_advice(self, training: Any, text: str) -> None:
            self.said.append(text)

    for env in ("CartPole-v1", Coin):
        rc.train(env, **COIN | {"steps": 96}, callbacks=[Kept()]).close()
    by_name, by_class = Kept.said
    assert "doctor --env CartPole-v1`" in by_name
    assert "doctor --env module:Env`" in by_class


# Gauges ----------------------------------------------------------------------------------------------------


def test_a_gauge_that_stays_out_of_its_range():
    """Once, after the patience, in the words of the report; also if it is measured now and then only."""
    advisor = Advisor(TrainConfig(), patience=10, settling=2)
    said = [advisor.watch(QUIET | {"kl": 0.05}) for _ in range(30)]
    assert [len(one) for one in said] == [0] * 11 + [1] + [0] * 18
    assert BY_NAME["kl"].above[:-1] in said[11][0]
    advisor = Advisor(TrainConfig(), patience=100)
    rows = [QUIET | ({"staleness": 0.5} if i % 20 == 0 else {}) for i in range(200)]
    assert ["staleness" in text for row in rows for text in advisor.watch(row)] == [True]
    advisor = Advisor(TrainConfig(), patience=10, settling=2)
    assert not any(advisor.watch(QUIET | {"kl": (0.05, 0.01, 0.01)[i % 3]}) for i in range(50))


def test_a_solved_task_is_not_unstable():
    """One failure makes equal values differ, and an explained variance of noise means nothing."""
    advisor, history = Advisor(TrainConfig(), patience=10, settling=2), History()
    advisor.begin(history, 0, 100_000)
    for i in range(60):
        solved = {"return": 1.0, "return_spread": 0.0} if i > 5 else {"return": 0.5, "return_spread": 0.5}
        spike = {"value/std": 20.0, "advantage/std": 20.0, "reward/std": 20.0} if i == 40 else {}
        row = QUIET | solved | {"steps": 100.0 * i, "episodes": 100.0, "length": 12.0} | spike
        row |= {"explained_variance": -0.5, "grad_norm": 0.01, "grad_norm_max": 0.01, "grad_clip_rate": 0.0}
        history.add(row)
        assert advisor.watch(row) == [], i


def test_the_report_judges_as_the_run_does():
    values = np.full(40, -0.5)
    assert judge(BY_NAME["explained_variance"], values, {}).verdict == "below"
    assert judge(BY_NAME["explained_variance"], values, {}, is_settled=True).verdict == "unjudged"
    assert judge(BY_NAME["kl"], values + 1, {}, is_settled=True).verdict == "above"
