"""What is configured is what happens: every epoch runs, and a key that means nothing is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import recollect as rc
from recollect.base import devices
from recollect.config.toml_yaml import read_config
from recollect.errors import ConfigError
from recollect.learning.learner import Learner
from recollect.training.parse_config import parse_config
from tests.support.config_runs import TASK
from tests.support.ppo_setup import learner

EPOCHS, MINIBATCHES, UPDATES = 3, 4, 2
RUNS: dict[str, dict[str, Any]] = {
    "ppo": {},
    "burn-in": {"recurrent_mode": "burn_in", "burn_in_steps": 2},
    "refreshed": {"refresh_states": True, "recompute_advantages": True},
    "parts": {"accumulate": 2},
    "episodes": {"batching": "episodes"},
    "impala": {"algo": "impala"},
    "two actors": {"actors": 2},
    "two learners": {"learners": 2},
    "learner process": {"learner_processes": True},
    "processes": {"runtime": "processes"},
    "gpu": {"graphs": False},
}


@pytest.mark.usefixtures("warm_children")
@pytest.mark.parametrize("run", RUNS)
def test_every_epoch_runs(run):
    """S003-17: Adam has made a step for each minibatch of each epoch of each update, wherever it learned."""
    with pytest.MonkeyPatch.context() as patched:
        if run == "gpu":
            patched.setattr(devices, "synchronises", lambda where: True)
        settings = TASK | {"epochs": EPOCHS, "minibatches": MINIBATCHES, "num_envs": 4} | RUNS[run]
        steps = UPDATES * settings["num_envs"] * settings["rollout"]
        with rc.train("delayed-cue", progress=False, **settings | {"steps": steps}) as agent:
            tensors = agent._so_far().optimizer
            made = {int(leaf) for name, leaf in tensors.items() if name.endswith(":step")}
    assert made == {UPDATES * EPOCHS * MINIBATCHES}
    assert [row["minibatches"] for row in agent.history.rows] == [EPOCHS * MINIBATCHES] * UPDATES


def test_every_epoch_learns_from_everything(monkeypatch):
    """S003-17: each pass takes every sequence once, in an order of its own."""
    seen: list[torch.Tensor] = []
    backward = Learner.backward

    def spy(self: Any, sequences: Any, which: torch.Tensor, entropy_coef: Any) -> Any:
        seen.append(which)
        return backward(self, sequences, which, entropy_coef)

    monkeypatch.setattr(Learner, "backward", spy)
    ppo, actor = learner(epochs=EPOCHS, minibatches=MINIBATCHES)
    sequences = ppo.update(actor.collect())["sequences"]
    passes = [torch.cat(seen[i : i + MINIBATCHES]).tolist() for i in range(0, len(seen), MINIBATCHES)]
    assert len(passes) == EPOCHS
    assert all(sorted(one) == list(range(int(sequences))) for one in passes)
    assert len({tuple(one) for one in passes}) == EPOCHS


KEYS = {
    "setting": ("learnin_rate: 1", "--learnin-rate 1", {"learnin_rate": 1}),
    "core": (
        "core: {name: gru, hiden: 8}",
        "--core gru --core.hiden 8",
        {"core": {"name": "gru", "hiden": 8}},
    ),
    "core in a stack": (
        "core: {name: stack, cores: [{name: gru, hiden: 8}]}",
        None,
        {"core": {"name": "stack", "cores": [{"name": "gru", "hiden": 8}]}},
    ),
    "encoder": ("encoder: {hiden: 8}", "--encoder.hiden 8", {"encoder": {"hiden": 8}}),
    "head": ("head: {gian: 1}", "--head.gian 1", {"head": {"gian": 1}}),
    "policy": ("policy: {value_deca: 0.5}", "--policy.value-deca 1", {"policy": {"value_deca": 0.5}}),
    "algorithm": ("algo: {clp: 0.1}", "--algo.clp 0.1", {"algo": {"clp": 0.1}}),
    "another algorithm": ("algo: impala\nvalue_clip: 1", "--rho-clip 1", {"rho_clip": 1}),
    "task": ("env: delayed-cue\ntask: {horizn: 3}", "--task.horizn 3", {"env_kwargs": {"horizn": 3}}),
}


@pytest.mark.parametrize("where", KEYS)
def test_unknown_keys_are_refused(where, tmp_path):
    """S003-17: in files, flags and Python, at the top and inside of every part, before anything runs."""
    text, flags, keywords = KEYS[where]
    path = tmp_path / "run.yaml"
    path.write_text(text)
    small = TASK | {"progress": False}

    def train_by_file() -> None:
        given = {name: value for name, value in read_config(path).items() if name != "env"}
        rc.train("delayed-cue", **small | given)

    assert_refused(train_by_file)
    if flags is not None:
        assert_refused(lambda: parse_config(flags.split(), env="delayed-cue"))
    assert_refused(lambda: rc.train("delayed-cue", **small | keywords))


def assert_refused(made: Callable[[], Any]) -> None:
    try:
        made()
    except ConfigError:
        return
    raise AssertionError("it was accepted")
