"""A resumed run goes on as if nothing had happened: bit for bit on tasks, in new episodes elsewhere."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect.base import tree
from recollect.cores.contract import Core
from recollect.errors import ConfigError, RecollectError
from recollect.training.run_folder import Run
from tests.support.helpers import CounterEnv, ScriptedEnv
from tests.support.resumed import EVERYTHING, SMALL, STEPS, Stop, assert_equal, rows, twice, weights


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
    from recollect.acting.actor import Actor

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
    with pytest.raises(ConfigError, match="eval_every needs a second instance"):
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
    actors = [agent._trainer.collector.actors for agent in (whole, halves)]
    live = [dict(tree.named_leaves(tuple(actor.state for actor in each))) for each in actors]
    assert_equal(*live)
    assert {leaf.dtype for leaf in live[0].values()} == {torch.float32, torch.bool, torch.int64}
