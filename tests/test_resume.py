"""A resumed run goes on as if nothing had happened: bit for bit on tasks, in new episodes elsewhere."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect import tree
from recollect.cores.base import Core
from recollect.errors import ConfigError, RecollectError
from recollect.runs import Run
from tests.helpers import CounterEnv, ScriptedEnv

SMALL: dict[str, Any] = {
    "rollout": 12,
    "chunk": 4,
    "num_envs": 4,
    "encoder": rc.EncoderConfig(hidden=(8,)),
    "threads": 1,
    "checkpoint_every": 96,
    "keep_checkpoints": 20,
    "progress": False,
}
EVERYTHING: dict[str, Any] = SMALL | {
    "core": rc.LSTMConfig(hidden=8, learned_initial_state=True),
    "normalise_value": True,
    "normalise_observations": True,
    "refresh_states": True,
    "recompute_advantages": True,
    "recurrent_mode": "burn_in",
    "burn_in_steps": 3,
    "learning_rate_schedule": "cosine",
    "learning_rate_warmup": 0.2,
    "entropy_schedule": "linear",
    "entropy_warmup": 0.1,
    "value_clip": 0.2,
    "target_kl": 0.05,
    "gauge_every": 3,
    "last_action_reward": True,
    "eval_every": 192,
    "eval_episodes": 4,
}
STEPS = 480  # ten iterations


class Stop(rc.Callback):
    """Stops at a number of steps, as Ctrl-C would."""

    def __init__(self, steps: int):
        self.steps = steps

    def on_iteration(self, training, metrics):
        if training.steps >= self.steps:
            training.stop("enough")


def weights(agent: rc.Agent) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> None:
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


def rows(path: Path) -> list[dict[str, Any]]:
    """The metrics but for those that are times."""
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds" and not k.startswith("speed/")} for row in lines]


def twice(tmp_path: Path, env: Any, settings: dict[str, Any], at: int = 240) -> tuple[rc.Agent, rc.Agent]:
    """The same training in one piece, and stopped at ``at`` and resumed from the disk."""
    whole = rc.train(env, steps=STEPS, run=str(tmp_path / "whole"), **settings)
    rc.train(env, steps=STEPS, run=str(tmp_path / "halves"), callbacks=[Stop(at)], **settings)
    halves = rc.resume(tmp_path / "halves", progress=False)
    return whole, halves


@pytest.mark.parametrize("env", ["delayed-cue", "t-maze", "repeat-previous", "position-pendulum"])
def test_resume_is_bit_for_bit_with_every_option_on(env, tmp_path):
    """S000-30, S001-24, S002-7, S004-15, S004-20: weights, optimiser, statistics, schedules, RNG, env and
    memory go on; the metrics and the evaluations are the same ones."""
    whole, halves = twice(tmp_path, env, EVERYTHING)
    assert_equal(weights(whole), weights(halves))
    assert rows(tmp_path / "whole") == rows(tmp_path / "halves")
    one, two = (Run(tmp_path / name) for name in ("whole", "halves"))
    assert [e["returns"] for e in one.evaluations()] == [e["returns"] for e in two.evaluations()]
    assert one.evaluations(), "or nothing was compared"
    names = [{p.name for p in run.checkpoints()} for run in (one, two)]
    assert names[1] - names[0] == {f"{240:012d}"}, "where it was stopped; all others are the same"
    assert names[0] < names[1]
    moments = [agent._trainer.learned(live=True) for agent in (whole, halves)]
    assert_equal(moments[0].optimizer, moments[1].optimizer)
    assert_equal(moments[0].trainer.tensors, moments[1].trainer.tensors)


@pytest.mark.parametrize("core", ["gru", "none"])
@pytest.mark.parametrize("at", [48, 432])
def test_resume_is_bit_for_bit_wherever_it_stopped(core, at, tmp_path):
    """S002-7: after the first update and before the last, with other cores."""
    settings = SMALL | {"core": core, "recurrent_mode": "none" if core == "none" else "full"}
    whole, halves = twice(tmp_path, "delayed-cue", settings, at)
    assert_equal(weights(whole), weights(halves))


def test_resume_from_every_checkpoint_leads_to_the_same_weights(tmp_path):
    """Metrics, evaluations and checkpoints after it are dropped and made again."""
    path = tmp_path / "run"
    whole = rc.train("delayed-cue", steps=STEPS, run=str(path), **SMALL)
    before = rows(path)
    for checkpoint in reversed(Run(path).checkpoints()[:-1]):
        again = rc.resume(path, checkpoint=int(checkpoint.name), progress=False)
        assert_equal(weights(whole), weights(again))
        assert rows(path) == before


def test_a_resume_that_forgets_the_memory_is_found(tmp_path, monkeypatch):
    """The comparison can fail: without the env's and the actor's state the weights differ."""
    from recollect.actor import Actor

    monkeypatch.setattr(Actor, "snapshot", lambda self: None)
    whole, halves = twice(tmp_path, "delayed-cue", SMALL)
    assert any(not torch.equal(a, b) for a, b in zip(weights(whole).values(), weights(halves).values()))


def test_two_threads_resume_bit_for_bit(tmp_path):
    """The split into groups of rows is part of the arithmetic and stays the same."""
    whole, halves = twice(tmp_path, "delayed-cue", SMALL | {"threads": 2, "num_envs": 8})
    assert_equal(weights(whole), weights(halves))


def test_foreign_envs_go_on_in_new_episodes_and_say_so(tmp_path, capsys):
    """Weights and counters go on; what the env was doing is lost, and that is told."""
    path = tmp_path / "run"
    rc.train("CartPole-v1", steps=STEPS, run=str(path), callbacks=[Stop(240)], **SMALL)
    episodes = Run(path).metrics()[-1]["episodes"]
    agent = rc.resume(path, progress="plain")
    assert agent.steps == STEPS
    assert Run(path).metrics()[-1]["episodes"] >= episodes
    assert "in new episodes" in capsys.readouterr().err


def test_own_envs_are_given_again(tmp_path):
    path = tmp_path / "run"
    rc.train(ScriptedEnv, steps=STEPS, run=str(path), callbacks=[Stop(240)], **SMALL)
    with pytest.raises(ConfigError, match=r"give it again with env="):
        rc.resume(path, progress=False)
    assert rc.resume(path, env=ScriptedEnv, progress=False).steps == STEPS


def test_an_env_with_other_spaces_is_refused(tmp_path):
    path = tmp_path / "run"
    rc.train(ScriptedEnv, steps=STEPS, run=str(path), callbacks=[Stop(240)], **SMALL)
    with pytest.raises(ConfigError, match="was made for observation_space"):
        rc.resume(path, env=lambda: CounterEnv(0), progress=False)
    assert rc.resume(path, env=ScriptedEnv, progress=False).steps == STEPS, "and nothing was lost"


def test_a_finished_run_trains_on_for_more_steps(tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    with pytest.raises(RecollectError, match=r"has finished \(steps\): give steps=N"):
        rc.resume(path, progress=False)
    assert rc.resume(path, steps=96, progress=False).steps == 192
    assert [row["steps"] for row in Run(path).metrics()] == [48, 96, 144, 192]
    assert Run(path).metrics()[2]["learning_rate"] == Run(path).metrics()[0]["learning_rate"], "anew"


def test_resume_changes_nothing_that_matters(tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=STEPS, run=str(path), callbacks=[Stop(48)], **SMALL)
    with pytest.raises(ConfigError, match=r"resume cannot change learning_rate.*init_from"):
        rc.resume(path, progress=False, learning_rate=1.0)
    rc.resume(path, progress=False, eval_every=96, eval_episodes=2)
    assert len(Run(path).evaluations()) > 1


def test_sampling_goes_on_from_the_same_random_stream(tmp_path):
    """S002-7: a session's memory and RNG survive get and set in another agent, loaded from the run."""
    path = tmp_path / "run"
    agent = rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    seen = torch.rand(5, 2, 3).numpy()
    live = agent.session(2, deterministic=False)
    live.act(seen[0])
    other = rc.load(path, checkpoint="last").session(2, deterministic=False)
    other.set_memory(live.get_memory())
    for obs in seen[1:]:
        assert (live.act(obs) == other.act(obs)).all()


def test_fine_tuning_starts_from_the_weights(tmp_path):
    path = tmp_path / "run"
    settings = SMALL | {"core": rc.GRUConfig(hidden=8)}
    first = rc.train("delayed-cue", steps=96, run=str(path), **settings)
    plain = {name: value for name, value in SMALL.items() if name != "encoder"}  # the network is the run's
    tuned = rc.train("delayed-cue", steps=48, init_from=str(path), learning_rate=1e-12, **plain)
    assert type(tuned.policy.core) is type(first.policy.core)
    assert tuned.steps == 48
    close = zip(tuned.policy.parameters(), first.policy.parameters())
    assert all(torch.allclose(a, b, atol=1e-3) for a, b in close if a.shape != (1, 8) and a.dim() > 1)
    with pytest.raises(ConfigError, match="fine-tuning needs the same spaces"):
        rc.train("delayed-cue", steps=48, init_from=str(path), env_kwargs={"cues": 5}, **plain)
    with pytest.raises(ConfigError, match="does not fit this policy"):
        rc.train("delayed-cue", steps=48, init_from=str(path), core="lstm", encoder=None, **plain)


def test_a_vector_env_is_kept_out_of_evaluations(tmp_path):
    env = gym.make_vec("recollect/DelayedCue-v0", num_envs=4)
    with pytest.raises(ConfigError, match="eval_every needs an env that can be made a second time"):
        rc.train(env, steps=96, eval_every=48, progress=False)


class Slots(Core):
    """External memory: leaves of several ranks and dtypes, as [B, M, D], [B, M] and [B]."""

    def __init__(self, input_size: int):
        super().__init__(input_size, input_size)
        self.start = torch.nn.Parameter(torch.randn(1, 3, input_size))

    def initial_state(self, batch: int) -> dict[str, torch.Tensor]:
        return {
            "slots": self.start.expand(batch, -1, -1),
            "used": torch.zeros(batch, 3, dtype=torch.bool),
            "next": torch.zeros(batch, dtype=torch.int64),
        }

    def _step(self, x: torch.Tensor, state: Any) -> tuple[torch.Tensor, Any]:
        where = torch.nn.functional.one_hot(state["next"], 3).bool()
        read = state["slots"].mean(1) + x + state["used"].sum(1, keepdim=True)
        slots = torch.where(where.unsqueeze(2), x.unsqueeze(1), state["slots"])
        return read, {"slots": slots, "used": state["used"] | where, "next": (state["next"] + 1) % 3}

    def _unroll(self, x: torch.Tensor, state: Any, first: torch.Tensor) -> tuple[torch.Tensor, Any]:
        outputs = []
        for x_t, first_t in zip(x, first):
            y, state = self._step(x_t, self.reset(state, first_t))
            outputs.append(y)
        return torch.stack(outputs), state


def slots_policy(observation_space: gym.Space, action_space: gym.Space) -> rc.Policy:
    config = rc.PolicyConfig(encoder=rc.EncoderConfig(hidden=(8,)), core=lambda size: Slots(size))
    return rc.Policy(observation_space, action_space, config)


def test_external_memory_is_kept_like_any_other(tmp_path):
    """S004-15, S004-20: leaves of all ranks and dtypes are stored, reset, saved and go on bit for bit."""
    settings = {name: value for name, value in SMALL.items() if name != "encoder"} | {"policy": slots_policy}
    whole = rc.train("delayed-cue", steps=STEPS, run=str(tmp_path / "whole"), **settings)
    rc.train("delayed-cue", steps=STEPS, run=str(tmp_path / "halves"), callbacks=[Stop(240)], **settings)
    with pytest.raises(ConfigError, match=r"saved with a custom .*load it with policy=factory"):
        rc.resume(tmp_path / "halves", progress=False)
    halves = rc.resume(tmp_path / "halves", policy=slots_policy, progress=False)
    assert_equal(weights(whole), weights(halves))
    live = [dict(tree.named_leaves(agent._trainer.crew.state)) for agent in (whole, halves)]
    assert_equal(*live)
    assert {leaf.dtype for leaf in live[0].values()} == {torch.float32, torch.bool, torch.int64}


def test_an_agent_from_a_run_is_free_of_its_folder(tmp_path):
    """Loaded, it may train on without a folder, or in a new one; the run stays as it was."""
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    agent = rc.load(path)
    assert agent.train(48, progress=False)["steps"] == 144
    assert agent.run is None
    assert Run(path).status["steps"] == 96


def test_a_solved_run_trains_on_past_its_target(tmp_path):
    path = tmp_path / "run"
    settings = SMALL | {"target_return": -1.0, "target_episodes": 1}
    agent = rc.train("delayed-cue", steps=STEPS, run=str(path), **settings)
    assert (Run(path).status["reason"], agent.steps) == ("target", 48)
    assert rc.resume(path, steps=144, progress=False).steps == 192


def test_training_twice_goes_on_with_the_clock_and_takes_one_callback_alone(tmp_path):
    agent = rc.train("delayed-cue", steps=96, run=str(tmp_path / "run"), callbacks=Stop(48), **SMALL)
    assert agent.steps == 48
    agent.train(48, progress=False, callbacks=lambda training, metrics: None)
    seconds = [row["seconds"] for row in Run(tmp_path / "run").metrics()]
    assert seconds == sorted(seconds)
    assert seconds[-1] > 0


class Raising(rc.Callback):
    """Fails at the start of a training, or at a number of steps."""

    def __init__(self, at: int | None = None):
        self.at = at

    def on_start(self, training):
        if self.at is None:
            raise RuntimeError("at the start")

    def on_iteration(self, training, metrics):
        if self.at is not None and training.steps >= self.at:
            raise RuntimeError("on the way")


@pytest.mark.parametrize("at", [None, 144])
def test_a_leg_that_died_early_is_not_forgotten(at, tmp_path):
    """Nothing of it is in a checkpoint yet, but how far it was to go is known."""
    path = tmp_path / "run"
    settings = SMALL | {"checkpoint_every": 10**6}
    rc.train("delayed-cue", steps=96, run=str(path), **settings)
    with pytest.raises(RuntimeError):
        rc.resume(path, steps=192, progress=False, callbacks=[Raising(at)])
    assert rc.resume(path, progress=False).steps == 288
    straight = tmp_path / "straight"
    rc.train("delayed-cue", steps=96, run=str(straight), **settings)
    rc.resume(straight, steps=192, progress=False)
    if at is None:
        assert rows(path) == rows(straight)


@pytest.mark.parametrize("steps", [0, -5])
def test_a_leg_has_steps(steps, tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    with pytest.raises(ConfigError, match=f"steps = {steps}: it must be at least 1"):
        rc.resume(path, steps=steps, progress=False)
    assert Run(path).status["steps"] == 96


def test_a_run_whose_time_is_used_up_says_so(tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=STEPS, run=str(path), max_seconds=1e-9, **SMALL)
    with pytest.raises(RecollectError, match=r"has used its 1e-09 seconds: give more with max_seconds"):
        rc.resume(path, progress=False)
    assert rc.resume(path, progress=False, max_seconds=None).steps == STEPS


def test_a_target_is_passed_from_any_checkpoint(tmp_path):
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=STEPS, run=str(path), target_return=-1.0, target_episodes=1, **SMALL)
    assert rc.resume(path, steps=144, checkpoint=48, progress=False).steps == 192


def test_a_run_without_its_checkpoints_is_not_overwritten(tmp_path):
    """Somebody removed them to save space: the metrics are still worth keeping."""
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), **SMALL)
    shutil.rmtree(path / "checkpoints")
    with pytest.raises(RecollectError, match="is a run already"):
        rc.train("delayed-cue", steps=48, run=str(path), **SMALL)
    assert len(Run(path).metrics()) == 2


def test_the_last_evaluation_counts_for_the_best(tmp_path):
    path = tmp_path / "run"
    agent = rc.train("delayed-cue", steps=96, run=str(path), eval_every=48, eval_episodes=4, **SMALL)
    assert agent.run is not None
    agent.run.add_evaluation(96, rc.Evaluation(np.full(3, 99.0), np.full(3, 1)))
    assert Run(path).status["best"]["mean"] == 99.0
    assert rc.load(path).steps == 96


def test_an_evaluation_that_failed_is_made_up(tmp_path, monkeypatch):
    path = tmp_path / "run"
    settings = SMALL | {"eval_every": 96, "eval_episodes": 2}
    evaluate = rc.Agent.evaluate
    monkeypatch.setattr(rc.Agent, "evaluate", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rc.train("delayed-cue", steps=192, run=str(path), **settings)
    monkeypatch.setattr(rc.Agent, "evaluate", evaluate)
    rc.resume(path, progress=False)
    assert len(Run(path).evaluations()) == 2


class Counted(ScriptedEnv):
    """Knows how many of its kind are open."""

    open = 0

    def __init__(self, size: Any = None):
        super().__init__()
        Counted.open += 1

    def close(self) -> None:
        Counted.open -= 1


def test_no_env_is_left_open(tmp_path):
    """Whatever fails, and whoever would have got the agent."""
    with pytest.raises(ConfigError):
        rc.train(Counted, minibatches=1000, progress=False)
    with pytest.raises(RuntimeError, match="on the way"):
        rc.train(Counted, steps=96, run=str(tmp_path / "run"), callbacks=[Raising(48)], **SMALL)
    with pytest.raises(RuntimeError, match="at the start"):
        rc.resume(tmp_path / "run", env=Counted, progress=False, callbacks=[Raising()])
    assert Counted.open == 0


def test_options_of_another_world_are_told(tmp_path):
    """By name they are dropped; a callable that does not take them says so."""
    path = tmp_path / "run"
    rc.train("delayed-cue", steps=96, run=str(path), env_kwargs={"horizon": 5}, **SMALL)
    assert rc.load(path, env="recollect/DelayedCue-v0").evaluate(2).lengths.tolist() == [12, 12]
    with pytest.raises(ConfigError, match=r"ScriptedEnv does not take the options \{'horizon': 5\}"):
        rc.load(path, env=ScriptedEnv).evaluate(2)
    with pytest.raises(ConfigError, match="torch sees no GPU here"):
        rc.load(path, device="cuda:9")


def test_keys_that_json_changes_are_not_saved_silently(tmp_path):
    with pytest.warns(UserWarning, match="are not plain JSON"):
        rc.train(Counted, steps=96, run=str(tmp_path / "run"), env_kwargs={"size": {0: "a"}}, **SMALL)


def test_three_that_start_together_do_not_share_a_folder(tmp_path):
    """One of them gets it; what it describes is what it holds."""
    code = (
        "import sys, recollect as rc;"
        "rc.train('delayed-cue', run=sys.argv[1], seed=int(sys.argv[2]), steps=96, num_envs=4, rollout=12,"
        " chunk=4, core=rc.LSTMConfig(hidden=8), progress=False)"
    )
    path = tmp_path / "run"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), str(seed)], stderr=subprocess.PIPE, text=True
        )
        for seed in range(3)
    ]
    errors = [process.communicate(timeout=120)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 1, 1], errors
    run = Run(path)
    winner = next(seed for seed, process in enumerate(started) if process.returncode == 0)
    assert run.description["config"]["seed"] == rc.load(path).config.seed == winner
    assert [row["steps"] for row in run.metrics()] == [48, 96]


def test_no_training_inside_of_itself():
    def again(training, metrics):
        training.agent.train(48, progress=False)

    with pytest.raises(ConfigError, match="is in training already"):
        rc.train("delayed-cue", steps=96, callbacks=[again], **SMALL)


def test_a_refused_training_leaves_the_one_under_way_as_it_was():
    ends: list[int] = []

    def again(training, metrics):
        with pytest.raises(ConfigError):
            training.agent.train(48, progress=False)
        ends.append(training.end)

    assert rc.train("delayed-cue", steps=192, callbacks=[again], **SMALL).steps == 192
    assert ends == [192] * 4


def test_a_stop_reaches_an_evaluation_that_never_ends(tmp_path):
    """Of an env without a time limit: it is given up, and the run ends as asked."""

    class Endless(ScriptedEnv):
        def step(self, action):
            obs, reward, *_ = super().step(action)
            self.left = 10**9
            return obs, reward, False, False, {}

    path = tmp_path / "run"
    settings = SMALL | {"eval_every": 48, "max_seconds": 2.0}
    rc.train(Endless, steps=STEPS, run=str(path), **settings)
    assert Run(path).status["reason"] == "time"
    assert Run(path).evaluations() == []


def test_paths_may_begin_at_home_and_be_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    rc.train("delayed-cue", steps=48, run="~/one", **SMALL)
    rc.train("delayed-cue", steps=48, run=tmp_path / "two", **SMALL)
    assert rc.load("~/one").steps == rc.load(tmp_path / "two").steps == 48
