"""Training as CUDA graphs: the same weights as without them, nothing read on the way, and clean ways back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import recollect as rc
from recollect.base import tree
from recollect.errors import EnvError
from recollect.learning.captured_update import CapturedUpdate
from tests.support.recorded import silence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
SETTINGS = {"num_envs": 64, "rollout": 20, "chunk": 10, "device": "cuda", "progress": False, "minibatches": 2}


def train(task="position-cartpole", updates=7, said=None, callbacks=(), **settings) -> rc.Agent:
    steps = updates * SETTINGS["num_envs"] * SETTINGS["rollout"]

    class Listener(rc.Callback):
        def on_warning(self, training, text):
            if said is not None:
                said.append(text)

    return rc.train(task, steps=steps, callbacks=[Listener(), *callbacks], **SETTINGS | settings)


def graphs_of(agent: rc.Agent) -> list[bool]:
    """Whether acting and every optimiser step were recorded."""
    trainer = agent._trainer
    acting = [buffer.play_all.is_graph for actor in trainer.collector.actors for buffer in actor._buffers]
    return acting + [one.step.is_graph for one in trainer.learner.make_update()._minibatches.values()]


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru", "mamba", "window", "none"])
@pytest.mark.parametrize(
    "task", ["position-cartpole", "repeat-previous", "position-pendulum", "treasure-hunt"]
)
def test_graphs_learn_the_same(core, task):
    """S002-14, M: rollouts and updates as graphs end with the weights of those without."""
    mode = {"recurrent_mode": "none"} if core == "none" else {}
    said: list[str] = []
    graphed = train(task, core=core, said=said, **mode)
    plain = train(task, core=core, graphs=False, **mode)
    assert len(graphs_of(graphed)) == 2
    assert all(graphs_of(graphed)), said
    assert not said
    for (name, one), two in zip(graphed.policy.state_dict().items(), plain.policy.state_dict().values()):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    assert graphed.history.rows[-1]["episodes"] == plain.history.rows[-1]["episodes"]
    assert graphed.history.rows[-1]["start_seconds"] > 0


@pytest.mark.parametrize(
    "settings",
    [
        {"recurrent_mode": "burn_in", "burn_in_steps": 4},
        {"accumulate": 2, "target_kl": 0.02, "next_obs_coef": 0.1},
        {"weight_clip": 2.0, "l2_init": 0.01, "value_clip": 0.2},
        {"recompute_activations": True, "precision": "bf16"},
        {"refresh_states": True, "recompute_advantages": True},
        {"last_action_reward": True, "precision": "fp32"},
        {"algo": "impala"},
        {"actors": 2},
        {"minibatches": 3},
        {"core": {"name": "lstm", "hidden": 256}},
        {"core": {"name": "gru", "hidden": 256, "learned_initial_state": True}},
    ],
    ids=str,
)
def test_every_option_learns_the_same(settings):
    """S002-14: whatever an update is made of."""
    said: list[str] = []
    graphed, plain = train(said=said, **settings), train(graphs=False, **settings)
    assert all(graphs_of(graphed)), said
    assert not said
    for (name, one), two in zip(graphed.policy.state_dict().items(), plain.policy.state_dict().values()):
        torch.testing.assert_close(one, two, rtol=1e-2, atol=1e-3, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize("core", ["lstm", "gru", "mingru"])
def test_nothing_is_read_in_a_rollout_or_an_update(core, monkeypatch):
    """S001-1, S000-19: torch itself watches; everything is measured, and the metrics are read after the last
    optimiser step."""
    agent = train(core=core, updates=4, graphs=False, gauge_every=1, epochs=3)
    trainer = agent._trainer
    trainer.begin(10**6)
    finish = CapturedUpdate.finish

    def watched(self, metrics, stale):
        torch.cuda.set_sync_debug_mode("default")
        measured.extend(stale)
        return finish(self, metrics, stale)

    measured: list[torch.Tensor] = []
    monkeypatch.setattr(CapturedUpdate, "finish", watched)
    with silence():
        metrics = trainer.iterate().metrics
    assert len(measured) == 3, "after each epoch"
    assert metrics["minibatches"] == 6


def test_evaluations_leave_graphs_and_training_alone():
    """S001-5: between recorded updates; the same episodes and weights, but for the order of sums."""
    seen: list[float] = []

    class Count(rc.Callback):
        def on_evaluation(self, training, evaluation):
            seen.append(evaluation.mean)

    settings = {"task": "repeat-previous", "updates": 7}
    evaluated = train(eval_every=2 * 1280, eval_episodes=4, callbacks=[Count()], **settings)
    alone = train(**settings)
    assert len(seen) == 3
    assert all(graphs_of(evaluated))
    for (name, one), two in zip(evaluated.policy.state_dict().items(), alone.policy.state_dict().values()):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")
    assert evaluated.history.rows[-1]["episodes"] == alone.history.rows[-1]["episodes"]


class Reading(nn.Module):
    """An encoder that looks at a number."""

    output_size = 4

    def __init__(self, space):
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, obs):
        return self.layer(obs) if float(obs.sum()) < 1e9 else obs


def test_what_cannot_be_recorded_is_said_and_runs():
    """The numbers are those without graphs."""
    said: list[str] = []
    graphed, plain = train(said=said, encoder=Reading), train(encoder=Reading, graphs=False)
    assert not any(graphs_of(graphed))
    assert sum("without a CUDA graph" in text for text in said) == 2, said
    assert all("reads numbers on the host (at test_gpu_graphs.py" in text for text in said)
    for one, two in zip(graphed.policy.parameters(), plain.policy.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


def test_a_run_with_graphs_resumes(tmp_path):
    """S004-20: bit for bit, or nearly: sums on a GPU have no order."""
    settings = {"task": "repeat-previous", "updates": 12}
    whole = train(run=str(tmp_path / "whole"), **settings)
    stop = [lambda training, _: training.stop("half") if training.steps >= 6 * 1280 else None]
    train(run=str(tmp_path / "half"), callbacks=stop, **settings)
    halves = rc.resume(tmp_path / "half", progress=False)
    assert halves._trainer.is_exact
    for (name, one), two in zip(whole.policy.state_dict().items(), halves.policy.state_dict().values()):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4, msg=lambda m, name=name: f"{name}: {m}")


def test_a_nan_reward_stops_the_run_and_names_the_row():
    """Although nobody looks at rewards while the graphs run."""
    agent = train(updates=5)
    trainer = agent._trainer
    trainer.begin(10**6)
    before = tree.clone(dict(agent.policy.state_dict()))
    rollout = trainer.collector.collect(trainer.learner.updates).rollouts[0]
    rollout.reward[3, 7] = torch.nan
    with pytest.raises(EnvError, match="reward of row 7 is nan at step 3"):
        trainer.learner.update(rollout)
    for name, value in agent.policy.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_memory_stays_flat():
    """S002-12: no iteration after the first ones takes more than the one before."""
    agent = train(updates=6)
    trainer = agent._trainer
    trainer.begin(10**9)
    trainer.iterate()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        trainer.iterate()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() <= before + (1 << 16)


def test_a_fresh_process_records():
    """torch has warnings of its own about watching, once in a process: they are no reads."""
    script = (
        "from tests.training.test_gpu_graphs import graphs_of, train\n"
        "said = []\nassert all(graphs_of(train(updates=5, said=said))), said"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_new_episodes_are_recorded_anew():
    """The old graph is gone before the new one is made."""
    agent = train(updates=5)
    trainer = agent._trainer
    trainer.begin(10**6)
    for _ in range(3):
        trainer.restart_episodes()
        for _ in range(4):
            trainer.iterate()
        assert all(graphs_of(agent))


class Allocating(nn.Module):
    """An encoder that does what no graph may hold, and only while it is recorded."""

    output_size = 4

    def __init__(self, space):
        super().__init__()
        self.layer = nn.Linear(2, 4)

    def forward(self, obs):
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return self.layer(obs)


def test_a_recording_that_fails_leaves_no_damage():
    """Random streams, the current stream and other graphs are as before; the numbers are those without."""
    other = train(updates=5)
    before = torch.cuda.current_stream()
    said: list[str] = []
    graphed, plain = train(said=said, encoder=Allocating), train(encoder=Allocating, graphs=False)
    assert sum("capturing it failed" in text for text in said) == 2, said
    assert torch.cuda.current_stream() == before
    torch.rand(3, device="cuda")
    other._trainer.begin(10**6)
    other._trainer.iterate()
    for one, two in zip(graphed.policy.parameters(), plain.policy.parameters()):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
