"""Exported files act as the agent does, for every kind of space, core and head, and say how to be driven."""

from __future__ import annotations

import argparse
import json
import re
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

import recollect as rc
from recollect.base import spaces, tree
from recollect.cli import export as command
from recollect.cli import main
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.config.q_heads import QHeadConfig, QuantileHeadConfig
from recollect.cores import CORES as REGISTERED
from recollect.cores import GRUConfig, LSTMConfig, NoneConfig
from recollect.errors import ConfigError, RecollectError, StorageError
from recollect.export.files import export_agent
from recollect.policy.masks import mask_space
from tests.support.agents import ACTIONS, OBSERVATIONS, small_agent
from tests.support.core_cases import CASES
from tests.support.grouped_worlds import Duo
from tests.support.token_worlds import token_space

DOCS = Path(__file__).parents[2] / "docs" / "export.md"
BOX, THREE = OBSERVATIONS["box"], gym.spaces.Discrete(3)
FORMATS = ["torch", "onnx"]

ALL_ACTIONS = gym.spaces.Dict(
    OrderedDict(
        one=gym.spaces.Discrete(3, start=5),
        many=gym.spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 0], [0, 2]]),
        bits=gym.spaces.MultiBinary([2, 2]),
        bounded=gym.spaces.Box(np.array([-2.0, 0.0]), np.array([1.0, 9.0])),
        free=gym.spaces.Box(-np.inf, np.inf, (2,)),
        scalar=gym.spaces.Box(-1, 1, ()),
    )
)
"""Every kind of action part at once: an export to ONNX takes a second."""
SEEN = ("box", "bounds", "scalar", "image", "discrete", "multidiscrete", "binary_grid", "dict")
ALL_OBSERVATIONS = gym.spaces.Dict(
    OrderedDict([*((key, OBSERVATIONS[key]) for key in SEEN), ("action_mask", mask_space(ALL_ACTIONS))])
)


def need_onnx(kind: str) -> None:
    if kind == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)


def make_agent(
    observation: gym.Space,
    action: gym.Space,
    encoder: Any = None,
    head: HeadConfig | None = None,
    **parts: Any,
) -> rc.Agent:
    """An untrained agent with weights and statistics of which none is zero or one."""
    torch.manual_seed(0)
    encoder = encoder or EncoderConfig(hidden=(8,))
    parts = {"core": LSTMConfig(hidden=8), "encoder": encoder, "head": head or HeadConfig(gain=1.0), **parts}
    config = PolicyConfig(**parts)
    policy = config.build(observation, action)
    for name, parameter in policy.named_parameters():
        if "initial" in name:
            nn.init.normal_(parameter)
    seen = tree.map(lambda leaf: leaf[None], spaces.sample(observation, 16, np.random.default_rng(1)))
    seen = tree.map(lambda leaf: leaf * 3 + 5 if leaf.is_floating_point() else leaf, seen)
    if policy.obs_norm is not None:
        policy.obs_norm.update(seen, torch.ones(1, 16, dtype=torch.bool))
    if policy.value_norm is not None:
        policy.value_norm.update(torch.randn(50) * 20 + 7, policy.critic)
    return rc.Agent(policy, rc.TrainConfig(policy=config), None)


class Driver:
    """Drives a file by its JSON alone, with numpy."""

    def __init__(self, file: Path, rows: int):
        self.about = json.loads(file.with_name(f"{file.name}.json").read_text(), parse_constant=_refuse)
        self.inputs = {one["name"]: one for one in self.about["inputs"]}
        self.names = [one["name"] for one in self.about["outputs"]]
        states = [self.inputs[part["input"]] for part in self.about["state"]]
        self.state = {one["name"]: np.zeros((rows, *one["shape"][1:]), one["dtype"]) for one in states}
        if self.about["kind"] == "torch":
            self.program = torch.export.load(file).module()
        else:
            import onnxruntime

            onnxruntime.set_seed(1)
            self.session = onnxruntime.InferenceSession(file)
            assert [node.name for node in self.session.get_inputs()] == list(self.inputs)
            assert [node.name for node in self.session.get_outputs()] == self.names

    def step(self, obs: dict[str, np.ndarray], first: np.ndarray) -> dict[str, np.ndarray]:
        given = {"first": first, **self.state, **obs}  # in another order than the file's: names decide
        for name, array in given.items():
            assert str(array.dtype) == self.inputs[name]["dtype"], name
            assert ["batch", *array.shape[1:]] == self.inputs[name]["shape"], name
        if self.about["kind"] == "torch":
            outputs = self.program({name: torch.from_numpy(given[name]) for name in self.inputs})
            outputs = {name: tensor.numpy() for name, tensor in outputs.items()}
        else:
            outputs = dict(zip(self.names, self.session.run(self.names, given)))
        for one in self.about["outputs"]:
            array = outputs[one["name"]]
            assert (str(array.dtype), ["batch", *array.shape[1:]]) == (one["dtype"], one["shape"])
        self.state = {part["input"]: outputs[part["output"]] for part in self.about["state"]}
        return outputs


def _refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def assert_acts_alike(agent: rc.Agent, file: Path, rows: int = 4, steps: int = 8) -> None:
    """The file's actions are those of ``predict``, its values and memories those of ``act``."""
    driver, rng = Driver(file, rows), np.random.default_rng(7)
    space = agent.policy.observation_space
    state = agent.initial_state(rows)
    for step in range(steps):
        obs = spaces.sample(space, rows, rng)
        first = np.ones(rows, bool) if step == 0 else rng.random(rows) < 0.3
        acted, _ = agent.policy.act(obs, state, torch.from_numpy(first), deterministic=True)
        arrays = tree.map(lambda leaf: leaf.numpy(), obs)
        action, state = agent.predict(arrays, state, first)
        outputs = driver.step({name: leaf.numpy() for name, leaf in tree.named_leaves(obs, "obs")}, first)
        action = spaces.map(lambda _, leaf: torch.as_tensor(leaf), agent.policy.action_space, action)
        for name, leaf in tree.named_leaves(action, "action"):
            np.testing.assert_allclose(outputs[name], leaf.numpy(), atol=1e-4)
        if "value" in acted.record:
            value = acted.record["value"].numpy()
            np.testing.assert_allclose(outputs["value"], value, rtol=1e-4, atol=1e-3)
        else:
            value = agent.policy.head.of(torch.from_numpy(outputs["q"]), acted.action).numpy()
            np.testing.assert_allclose(value, acted.record["q"].numpy(), rtol=1e-4, atol=1e-3)
        for name, leaf in tree.named_leaves(state, "next_state"):
            np.testing.assert_allclose(outputs[name], leaf.numpy(), atol=1e-4)


@pytest.mark.parametrize("kind", FORMATS)
def test_all_kinds_of_spaces_at_once_with_masks(kind: Any, tmp_path: Path) -> None:
    need_onnx(kind)
    agent = make_agent(ALL_OBSERVATIONS, ALL_ACTIONS)
    file = export_agent(agent, tmp_path / "agent.bin", kind)
    assert_acts_alike(agent, file)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["agent.bin", "agent.bin.json"]
    about = Driver(file, 1).about  # which refuses Infinity
    assert about["observation_space"]["dict"]["box"]["high"] is None
    assert about["action_space"]["dict"]["free"]["low"] is None
    assert_no_source(file)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("head", [QHeadConfig(gain=1.0), QuantileHeadConfig(gain=1.0)], ids=["q", "quantile"])
def test_action_values(head: Any, kind: Any, tmp_path: Path) -> None:
    """The values of all actions, with masks, from an agent that was saved and loaded."""
    need_onnx(kind)
    space = gym.spaces.MultiDiscrete([3, 2], start=[1, 0])
    observation = gym.spaces.Dict({"seen": BOX, "action_mask": mask_space(space)})
    make_agent(observation, space, head=head).save(tmp_path / "saved")
    agent = rc.load(tmp_path / "saved")
    file = export_agent(agent, tmp_path / "agent.bin", kind)
    assert_acts_alike(agent, file)
    about = Driver(file, 1).about
    assert about["distribution"] == [{"action": "action", "kind": "values", "parameters": {"q": "q"}}]
    with pytest.raises(ConfigError, match="takes the best action: leave deterministic=False"):
        export_agent(agent, tmp_path / "other", kind, deterministic=False)


def assert_no_source(file: Path) -> None:
    """Nobody learns from the file where the source lies."""
    data = file.read_bytes()
    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            data = b"".join(archive.read(name) for name in archive.namelist())
    assert b"value" in data  # so that it is not packed in some way that hides names
    assert str(Path(rc.__file__).parent).encode() not in data
    assert str(Path(__file__).parent).encode() not in data


@pytest.mark.parametrize(
    ("observation", "action"), [("image", "multidiscrete"), ("discrete", "scalar"), ("tuple", "tuple")]
)
def test_spaces_that_are_no_dict(observation: str, action: str, tmp_path: Path) -> None:
    agent = make_agent(OBSERVATIONS[observation], ACTIONS[action])
    assert_acts_alike(agent, export_agent(agent, tmp_path / "agent.pt2", "torch"))


NAMED = {name: config for name, config in CASES.items() if name in REGISTERED.keys() - {"gru", "none"}}
CORES = {
    "gru of 3 layers, learned": GRUConfig(hidden=8, layers=3, learned_initial_state=True),
    "lstm of 2 layers, learned": LSTMConfig(hidden=8, layers=2, learned_initial_state=True),
    "lstm, learned": LSTMConfig(hidden=8, learned_initial_state=True),
    "gru": GRUConfig(hidden=8),
    "none": NoneConfig(),
    **NAMED,
}


# tests/cores/test_every_core.py exports the cores with a name in every run.
@pytest.mark.parametrize(
    "core",
    [pytest.param(name, marks=[pytest.mark.slow] if name in NAMED else []) for name in CORES],
)
def test_every_core(core: str, tmp_path: Path) -> None:
    agent = make_agent(BOX, THREE, core=CORES[core])
    before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    file = export_agent(agent, tmp_path / "agent.pt2", "torch")
    assert_acts_alike(agent, file)
    state = json.loads((tmp_path / "agent.pt2.json").read_text())["state"]
    initial = tree.leaves(agent.initial_state(1))
    assert len(state) == len(initial)
    for part, leaf in zip(state, initial):
        if "learned" in core:
            np.testing.assert_allclose(np.array(part["initial"], np.float32), leaf[0].numpy())
        else:
            assert part["initial"] == "zeros"
    # The agent itself stays as it was.
    assert agent.policy.training
    assert all(parameter.requires_grad for parameter in agent.policy.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in agent.policy.state_dict().items())


@pytest.mark.parametrize(
    ("policy", "kind"),
    [
        ("fast", "torch"),
        pytest.param("latent_attn_tiny", "torch", marks=pytest.mark.slow),
        ("fast", "onnx"),
        pytest.param("latent_attn_tiny", "onnx", marks=pytest.mark.slow),
    ],
)
def test_token_policies(policy: str, kind: Any, tmp_path: Path) -> None:
    """S002-8: sets of tokens go in as the bytes that they are."""
    need_onnx(kind)
    encoder = EncoderConfig(tokens=policy, hidden=(8,))  # pyright: ignore[reportArgumentType]
    agent = make_agent(token_space(), THREE, encoder=encoder)
    file = export_agent(agent, tmp_path / "agent.bin", kind)
    assert_acts_alike(agent, file)
    assert Driver(file, 1).inputs["obs"]["dtype"] == "uint8"


@pytest.mark.slow
@pytest.mark.parametrize("core", sorted(REGISTERED))
def test_every_core_as_onnx(core: str, tmp_path: Path) -> None:
    need_onnx("onnx")
    agent = make_agent(BOX, THREE, core=CASES[core])
    assert_acts_alike(agent, export_agent(agent, tmp_path / "agent.onnx"))


def test_without_normalisation_unsquashed_with_layer_norm(tmp_path: Path) -> None:
    agent = make_agent(
        gym.spaces.Box(0, 255, (3, 40, 40), np.uint8),
        ACTIONS["box"],
        encoder=EncoderConfig(layer_norm=True, activation="silu", conv="nature", hidden=(8, 8)),
        head=HeadConfig(gain=3.0, squash=False, state_dependent_std=True),
        normalise_observations=False,
        normalise_value=False,
    )
    assert_acts_alike(agent, export_agent(agent, tmp_path / "agent.pt2", "torch"))


def test_a_trained_agent_that_sees_its_last_action_and_reward(tmp_path: Path) -> None:
    agent = small_agent("position-pendulum", last_action_reward=True)
    file = export_agent(agent, tmp_path / "agent.pt2", "torch")
    assert_acts_alike(agent, file)
    about = json.loads((tmp_path / "agent.pt2.json").read_text())
    assert about["last_action_reward"] is True
    assert {"obs.last_action", "obs.last_reward"} < {one["name"] for one in about["inputs"]}
    assert about["steps"] == agent.steps == 16
    assert about["env"] == "position-pendulum"
    assert about["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("kind", FORMATS)
def test_actions_are_drawn_from_the_distribution(kind: Any, tmp_path: Path) -> None:
    need_onnx(kind)
    action = gym.spaces.Dict(
        OrderedDict(
            pick=gym.spaces.Discrete(4, start=5),
            bits=gym.spaces.MultiBinary(2),
            move=gym.spaces.Box(-np.inf, np.inf, (1,)),
        )
    )
    space = gym.spaces.Dict({"action_mask": mask_space(action), "seen": BOX})
    agent = make_agent(space, action, core="none")  # which has a first all the same
    file = export_agent(agent, tmp_path / "agent.bin", kind, deterministic=False)
    rows = 4000
    mask = np.tile(np.array([1, 0, 1, 1], np.int8), (rows, 1))
    obs = {"obs.action_mask.pick": mask, "obs.seen": np.tile(np.array([2, 7, 3], np.float32), (rows, 1))}
    torch.manual_seed(3)
    driver = Driver(file, rows)
    assert driver.about["deterministic"] is False
    outputs = driver.step(obs, np.ones(rows, bool))
    share = np.bincount(outputs["action.pick"] - 5, minlength=4) / rows
    np.testing.assert_allclose(share, np.exp(outputs["logits.pick"][0]), atol=0.04)
    assert share[1] == 0
    np.testing.assert_allclose(
        outputs["action.bits"].mean(0), 1 / (1 + np.exp(-outputs["logits.bits"][0])), atol=0.04
    )
    std = np.exp(outputs["log_std.move"][0, 0])
    assert abs(outputs["action.move"].mean() - outputs["mean.move"][0, 0]) < 4 * std / rows**0.5
    assert abs(outputs["action.move"].std() / std - 1) < 0.05
    again = driver.step(obs, np.ones(rows, bool))
    assert (again["action.move"] != outputs["action.move"]).any()


def test_parameters_are_enough_to_sample_a_squashed_action(tmp_path: Path) -> None:
    agent = make_agent(BOX, ACTIONS["box"])
    driver = Driver(export_agent(agent, tmp_path / "agent.pt2", "torch"), 2)
    part, space = driver.about["distribution"][0], driver.about["action_space"]
    outputs = driver.step({"obs": np.ones((2, 3), np.float32)}, np.ones(2, bool))
    assert part["kind"] == "tanh_gaussian"
    squashed = (np.tanh(outputs[part["parameters"]["mean"]]) + 1) / 2
    low, high = space["low"], space["high"]
    np.testing.assert_allclose(low + (high - low) * squashed, outputs[part["action"]], atol=1e-5)


# What is asked for wrongly ----------------------------------------------------------------------


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = make_agent(BOX, THREE)
    missing = {"onnx"}
    monkeypatch.setattr(
        "recollect.export.files.find_spec", lambda name: None if name in missing else object()
    )
    install = re.escape("which is not installed: pip install 'recollect[onnx]'")
    with pytest.raises(RecollectError, match=f"ONNX needs onnx, {install}$"):
        export_agent(agent, tmp_path / "agent.onnx")
    missing = {"onnxruntime"}
    with pytest.raises(RecollectError, match=f"ONNX needs onnxruntime, {install}; .*--no-check"):
        export_agent(agent, tmp_path / "agent.onnx")
    missing = {"onnx", "onnxscript", "onnxruntime"}
    export_agent(agent, tmp_path / "agent.pt2", "torch")  # needs none of them


def test_wrong_calls(tmp_path: Path) -> None:
    agent = make_agent(BOX, THREE)
    with pytest.raises(ConfigError, match="choose onnx or torch"):
        export_agent(agent, tmp_path / "agent.tflite", "tflite")  # pyright: ignore[reportArgumentType]
    with pytest.raises(StorageError, match="is a folder: name a file"):
        export_agent(agent, tmp_path, "torch")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot be written"):
        export_agent(agent, tmp_path / "file" / "agent.pt2", "torch")
    space = gym.spaces.Dict({"a.b": BOX, "a": gym.spaces.Dict({"b": BOX})})
    with pytest.raises(RecollectError, match=r"two inputs .* named obs\.a\.b"):
        export_agent(make_agent(space, THREE, normalise_observations=False), tmp_path / "agent.pt2", "torch")


# The command and the docs -----------------------------------------------------------------------


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    agent = small_agent("delayed-cue", run=str(tmp_path / "cue"))
    parser = argparse.ArgumentParser()
    command.configure(parser)
    assert command.run(parser.parse_args([str(tmp_path / "cue"), "--format", "torch"]), []) == 0
    assert_acts_alike(agent, tmp_path / "cue" / "agent.pt2")
    out = tmp_path / "deep" / "brain.pt2"
    agent.save(tmp_path / "saved")
    flags = ["--format", "torch", "--out", str(out), "--no-check", "--sample"]
    command.run(parser.parse_args([str(tmp_path / "saved"), *flags]), [])
    assert json.loads(out.with_name("brain.pt2.json").read_text())["deterministic"] is False
    said = capsys.readouterr().out
    assert "checked against the agent" in said
    assert "brain.pt2.json: the agent after 16 steps of training, not checked" in said


def test_command_for_several_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """S001-29: a file for each group, or for one; each is checked, and says whose it is."""
    run = str(tmp_path / "duo")
    agent = small_agent(Duo, run=run)
    assert main(["export", run, "--format", "torch"]) == 0
    said = capsys.readouterr().out
    for group, members in agent.groups.items():
        file = tmp_path / "duo" / "agent" / f"{group}.pt2"
        assert_acts_alike(agent[group], file)
        about = json.loads(file.with_name(f"{group}.pt2.json").read_text())
        assert (about["group"], about["agents"]) == (group, list(members))
        assert (about["checked"], about["steps"]) == (True, agent.steps)
        assert f"{group}.pt2.json: the agent after {agent.steps} steps of training, checked" in said
    out = tmp_path / "one" / "brain.pt2"
    assert main(["export", run, "--format", "torch", "--group", "small", "--out", str(out)]) == 0
    assert_acts_alike(agent["small"], out)
    assert sorted(path.name for path in out.parent.iterdir()) == ["brain.pt2", "brain.pt2.json"]
    assert main(["export", run, "--format", "torch", "--group", "big"]) == 0
    capsys.readouterr()
    for wrong, says in {
        ("--group", "tiny"): "no group 'tiny': its groups are big, small",
        ("--out", str(out)): "--group NAME",
        ("--out", str(tmp_path / "both.pt2")): "the groups big, small",
    }.items():
        assert main(["export", run, "--format", "torch", *wrong]) == 2
        assert says in capsys.readouterr().err
    one = small_agent("delayed-cue")
    with pytest.raises(ConfigError, match="no group 'small': it has one policy"):
        export_agent(one, tmp_path / "x.pt2", "torch", group="small")
    assert not (tmp_path / "both.pt2").exists()


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It plays the very episodes that the agent plays."""
    need_onnx("onnx")
    core = GRUConfig(hidden=8, layers=2, learned_initial_state=True)
    agent = small_agent("CartPole-v1", core=core)
    export_agent(agent, tmp_path / "agent.onnx")
    blocks = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    example = next(block for block in blocks if "InferenceSession" in block)
    assert "recollect" not in example
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(example, str(DOCS), "exec"), names)
    assert names["returns"] == [_cartpole_return(agent, seed) for seed in range(3)]


def _cartpole_return(agent: rc.Agent, seed: int) -> float:
    env, live = gym.make("CartPole-v1"), agent.session()
    obs, _ = env.reset(seed=seed)
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(live.act(obs))
        total, over = total + float(reward), terminated or truncated
    return total
