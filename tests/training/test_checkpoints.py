"""Agents on disk: everything comes back, nothing is executed, damage is told."""

from __future__ import annotations

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch

import recollect as rc
from recollect.base import tree
from recollect.base.spaces import space_from_json, space_to_json
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.cores import GRUConfig, LSTMConfig
from recollect.errors import ConfigError, RecollectError
from recollect.policy.policy import Policy
from recollect.tasks import make_task
from recollect.training import checkpoints
from tests.support.agents import ACTIONS, OBSERVATIONS, SMALL, AnySpace, small_agent
from tests.support.helpers import LastSeen


def same_weights(a: rc.Agent, b: rc.Agent) -> bool:
    one, two = a.policy.state_dict(), b.policy.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def damage(folder: Path, **changes: object) -> None:
    """Change the description, as an editor would."""
    file = folder / "agent.json"
    description = json.loads(file.read_text()) | changes
    if isinstance(description["sha256"], dict):  # as another version would have written it
        description["sha256"] |= {"agent.json": checkpoints.checksum(description)}
    file.write_text(json.dumps(description))


@pytest.fixture
def saved(tmp_path) -> Path:
    return small_agent().save(tmp_path / "agent")


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observation_spaces_round_trip(name, tmp_path):
    """S000-21: the space, its dtype and the order of its parts come back; so do the actions."""
    space = OBSERVATIONS[name]
    agent = small_agent(lambda: AnySpace(space))
    back = rc.load(agent.save(tmp_path / "a"), env=lambda: AnySpace(space))
    assert back.policy.observation_space == space
    if isinstance(space, gym.spaces.Dict):
        assert list(back.policy.observation_space.spaces) == list(space.spaces)
    seen = gym.vector.utils.batch_space(space, 20).sample()
    a, b = (x.predict(seen, None, True)[1] for x in (agent, back))
    assert all(torch.equal(p, q) for p, q in zip(tree.leaves(a), tree.leaves(b)))
    back.train(16, progress=False)  # the env's spaces are still those of the policy


@pytest.mark.parametrize("name", ACTIONS)
def test_action_spaces_round_trip(name, tmp_path):
    """S000-21, S000-16: the same for actions."""
    space = ACTIONS[name]
    agent = small_agent(lambda: AnySpace(None, space))
    back = rc.load(agent.save(tmp_path / "a"), env=lambda: AnySpace(None, space))
    assert back.policy.action_space == space
    seen = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    a, b = (x.predict(seen, None, True)[0] for x in (agent, back))
    flat = gym.spaces.flatten(gym.vector.utils.batch_space(space, 20), a)
    assert np.array_equal(flat, gym.spaces.flatten(gym.vector.utils.batch_space(space, 20), b))
    back.train(16, progress=False)


def test_stages_of_a_curriculum_round_trip(tmp_path):
    """Also where their order as numbers is not that as text."""
    stages = {90: {"win_reward": 1.0}, 1000: {"win_reward": 2.0}}
    agent = small_agent("mech", env_kwargs={"size": "duel"}, curriculum=stages)
    assert rc.load(agent.save(tmp_path / "a")).config.curriculum == stages


@pytest.mark.parametrize(
    "settings",
    [
        {"core": "gru"},
        {"core": "none"},
        {"core": GRUConfig(hidden=5, layers=2, learned_initial_state=True, chrono=9)},
        {"core": LSTMConfig(hidden=5, layers=2, forget_bias=0.5), "encoder": "mlp"},
        {"encoder": EncoderConfig(hidden=(7, 9), activation="silu", layer_norm=True)},
        {"head": HeadConfig(gain=0.3, log_std_init=-1.0), "normalise_value": False},
        {"normalise_observations": True, "value_decay": 0.5, "gamma": 0.9, "target_kl": 0.1},
        {"env_kwargs": {"horizon": 3, "cues": 4}, "last_action_reward": True, "target_return": 99.0},
    ],
    ids=str,
)
def test_settings_and_statistics_round_trip(settings, tmp_path):
    """S000-26, S001-6, S001-20: config, weights, PopArt and observation statistics, bit for bit."""
    agent = small_agent(steps=48, **settings)
    back = rc.load(agent.save(tmp_path / "a"))
    assert back.config == agent.config
    assert same_weights(agent, back)
    assert back.steps == agent.steps == 48
    assert np.array_equal(back.evaluate(6).returns, agent.evaluate(6).returns)


def test_training_goes_on_bit_for_bit(tmp_path):
    """S000-30, S004-20: with new episodes on both sides, a loaded agent trains as the one it was."""
    agent = small_agent(steps=48, normalise_observations=True, epochs=2)
    path = agent.save(tmp_path / "a")
    agent._trainer.restart_episodes()
    loaded, resaved = rc.load(path), rc.load(rc.load(path).save(tmp_path / "b"))
    for each in (agent, loaded, resaved):
        last = each.train(48, progress=False)
        assert last["steps"] == each.steps == 96
        assert last["updates"] == 6
    assert same_weights(agent, loaded)
    assert same_weights(agent, resaved), "saving a loaded agent loses nothing"
    forgetful = rc.load(path)
    forgetful._learned.optimizer.clear()
    forgetful.train(48, progress=False)
    assert not same_weights(agent, forgetful), "the optimiser matters"


def test_a_loaded_agent_needs_its_folder_no_more(saved, tmp_path):
    """S000-30: what was read is kept, whatever becomes of the folder."""
    one, two = rc.load(saved), rc.load(saved)
    saved.rename(tmp_path / "elsewhere")
    small_agent(seed=5).save(saved)
    one.train(16, progress=False)
    rc.load(tmp_path / "elsewhere").train(16, progress=False)
    two.train(16, progress=False)
    assert same_weights(one, two)


def test_statistics_are_in_the_file(saved):
    """S001-6: PopArt's numbers are saved with the weights."""
    back = rc.load(saved)
    assert float(back.policy.value_norm.weight) > 0
    assert "value_norm.std" in checkpoints.read(saved).weights


def test_state_dtype_survives(saved):
    """S004-20: a loaded policy's states have the dtypes and devices of the original's."""
    assert tree.spec(rc.load(saved).initial_state(2)) == tree.spec(small_agent().initial_state(2))


class Boom:
    def __reduce__(self):
        return os.mkdir, ("boom",)


def test_nothing_in_the_folder_is_executed(saved, tmp_path, monkeypatch):
    """A pickle in it, under any name, is never opened as one."""
    monkeypatch.chdir(tmp_path)
    for name in ("weights.pt", "agent.pkl", "optimizer.pt", "policy.py", "__init__.py"):
        (saved / name).write_bytes(pickle.dumps(Boom()))
    rc.load(saved).train(16, progress=False)
    assert not (tmp_path / "boom").exists()
    (saved / "weights.safetensors").write_bytes(pickle.dumps(Boom()))
    damage(
        saved,
        sha256={"weights.safetensors": checkpoints._sha256((saved / "weights.safetensors").read_bytes())},
    )
    with pytest.raises(RecollectError, match=r"weights\.safetensors cannot be read"):
        rc.load(saved)
    assert not (tmp_path / "boom").exists()


@pytest.mark.parametrize("name", ["weights.safetensors", "optimizer.safetensors"])
@pytest.mark.parametrize("how", ["cut", "flipped", "missing"])
def test_damaged_tensors_are_told(saved, name, how):
    """S000-30: by checksum, with the file's name and what to do."""
    file = saved / name
    data = bytearray(file.read_bytes())
    if how == "missing":
        file.unlink()
    else:
        data[-1] ^= 1
        file.write_bytes(data[:-10] if how == "cut" else data)
    with pytest.raises(RecollectError, match=rf"{name} is missing or differs.*take another copy"):
        rc.load(saved)


def test_damaged_descriptions_are_told(saved):
    """S000-30: no JSON, another format, parts missing or unknown: the file is named."""
    text = (saved / "agent.json").read_text()
    good = json.loads(text)
    config = good["config"]
    for changes, words in [
        ({"format": 99}, "has format 99, this Recollect reads 1: update Recollect"),
        ({"sha256": {}}, "weights.safetensors is missing or differs"),
        ({"sha256": None}, "is damaged"),
        ({"observation_space": {"ball": 3}}, r"agent\.json cannot be understood"),
        ({"config": {}}, r"agent\.json cannot be understood"),
        ({"config": config | {"velocity": 3}}, "cannot be understood.*velocity"),
        ({"config": config | {"steps": "many"}}, "cannot be understood.*steps = 'many'"),
        ({"config": config | {"algo": config["algo"] | {"chunk": 999}}}, "cannot be understood.*chunk = 999"),
    ]:
        (saved / "agent.json").write_text(text)
        damage(saved, **changes)
        with pytest.raises(RecollectError, match=words):
            rc.load(saved)
    for broken in ("{", "[]", "null"):
        (saved / "agent.json").write_text(broken)
        with pytest.raises(RecollectError, match=r"agent\.json is damaged"):
            rc.load(saved)
    (saved / "agent.json").write_text(text.replace('"updates": ', '"updates": 1'))
    with pytest.raises(RecollectError, match=r"agent\.json differs from what was saved"):
        rc.load(saved)
    del good["steps"]
    (saved / "agent.json").write_text(json.dumps(good))
    with pytest.raises(RecollectError, match=r"agent\.json is damaged \(KeyError\('steps'\)\)"):
        rc.load(saved)


def test_folders_without_an_agent(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecollectError, match=r"holds no agent: agent\.json is missing\. Agent\.save"):
        rc.load(tmp_path / "empty")
    with pytest.raises(RecollectError, match=r"there is no folder .*nowhere"):
        rc.load(tmp_path / "nowhere")


def test_saving_replaces_an_agent_and_nothing_else(tmp_path):
    """S000-30: an older agent is replaced whole; any other folder or file is refused and left alone."""
    first, second = small_agent(), small_agent(seed=3)
    path = first.save(tmp_path / "deep" / "agent")
    assert second.save(path) == path
    assert same_weights(rc.load(path), second)
    assert sorted(p.name for p in path.parent.iterdir()) == ["agent"], "nothing is left beside it"
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "cat.png").write_text("meow")
    (tmp_path / "file").write_text("x")
    for target in (foreign, tmp_path / "file"):
        with pytest.raises(RecollectError, match=r"exists.*choose another folder"):
            first.save(target)
    (path / "notes.txt").write_text("mine")
    with pytest.raises(RecollectError, match=r"also notes\.txt, which saving there would delete"):
        first.save(path)
    assert (path / "notes.txt").read_text() == (path / "notes.txt").read_text() == "mine"
    assert (foreign / "cat.png").read_text() == "meow"
    empty = tmp_path / "empty"
    empty.mkdir()
    assert same_weights(rc.load(first.save(empty)), first)


def test_a_failed_save_leaves_the_old_agent(saved, monkeypatch):
    """S000-30: written beside and renamed, so there whole or not at all."""
    before = checkpoints.read(saved).weights

    def full_disk(*_, **__):
        raise OSError("no space left")

    monkeypatch.setattr(checkpoints.json, "dumps", full_disk)
    with pytest.raises(OSError, match="no space left"):
        small_agent(seed=9).save(saved)
    monkeypatch.undo()
    assert all(torch.equal(value, before[name]) for name, value in checkpoints.read(saved).weights.items())
    assert sorted(p.name for p in saved.parent.iterdir()) == ["agent"]


class Own(Policy):
    """A subclass: code, which is not saved."""


def parts(core):
    return lambda o, a: Policy(o, a, PolicyConfig(encoder=SMALL["encoder"], core=core, head=SMALL["head"]))


@pytest.mark.parametrize(
    ("settings", "named", "factory"),
    [
        ({"core": lambda n: LastSeen(n)}, "a custom core", parts(lambda n: LastSeen(n))),
        ({"policy": lambda o, a: Own(o, a)}, "a custom policy", lambda o, a: Own(o, a)),
    ],
    ids=["core", "policy"],
)
def test_custom_parts_need_their_factory(settings, named, factory, tmp_path):
    """S000-21: code is never saved; the error names the fix, and with it the agent comes back."""
    drop = ("encoder", "core", "head") if "policy" in settings else ("core",)
    base = {key: value for key, value in SMALL.items() if key not in drop}
    agent = rc.train(AnySpace, steps=32, progress=False, **base, **settings)
    path = agent.save(tmp_path / "a")
    with pytest.raises(ConfigError, match=rf"saved with {named}.*load it with policy=factory"):
        rc.load(path)
    back = rc.load(path, policy=factory, env=AnySpace)
    assert same_weights(agent, back)
    back.train(16, progress=False)
    wrong = parts("gru")
    with pytest.raises(ConfigError, match="does not fit this policy"):
        rc.load(path, policy=wrong)


def test_unnamed_envs_have_to_be_given(tmp_path):
    """S000-21: an agent of a callable or an object asks for its env only when it needs one."""
    path = small_agent(make_task("delayed-cue", 2)).save(tmp_path / "a")
    agent = rc.load(path)
    agent.session().act(np.zeros(3, np.float32))
    for call in (lambda: agent.train(16), lambda: agent.evaluate(2)):
        with pytest.raises(ConfigError, match="give it again with env="):
            call()
    assert rc.load(path, env=make_task("delayed-cue", 5)).train(16, progress=False)["steps"] == 56
    with pytest.raises(ConfigError, match="the policy was made for observation_space"):
        rc.load(path, env="CartPole-v1").train(16)


def test_options_that_are_no_json(tmp_path):
    """S000-30: they do not stop a trained agent from being saved; a warning says what is lost."""
    agent = small_agent(lambda space: AnySpace(space), env_kwargs={"space": OBSERVATIONS["box"]})
    with pytest.warns(UserWarning, match=r"env_kwargs.*not saved.*load this agent with env"):
        path = agent.save(tmp_path / "a")
    assert same_weights(rc.load(path), agent)


def test_order_of_parts_decides_the_weights():
    """S000-21: a Dict that is not in alphabetical order stays so, or weights would meet other inputs."""
    space = gym.spaces.Dict(OrderedDict(b=gym.spaces.Discrete(2), a=gym.spaces.Discrete(3)))
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert list(again.spaces) == ["b", "a"]
    with pytest.raises(RecollectError, match="Text space cannot be saved"):
        space_to_json(gym.spaces.Text(5))
