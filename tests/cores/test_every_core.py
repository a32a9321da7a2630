"""What every core owes its users beside the law: sane numbers, types that stay, the same result again, files.

The law itself is in ``test_conformance``. Here the cores have their default size where that matters.
"""

from __future__ import annotations

import json
from typing import Any

import gymnasium as gym
import pytest
import torch

import recollect as rc
from recollect.base import row_threads, tree
from recollect.config.policy import EncoderConfig, HeadConfig, PolicyConfig
from recollect.cores import CORES, PRESETS, Core, make_core
from recollect.export.files import export_agent
from tests.support.core_cases import CASES, SINGLE, SINGLE_TOLERANCE

torch.set_num_threads(1)

D = 16
every_name = pytest.mark.parametrize("name", [*CORES, *PRESETS])
every_case = pytest.mark.parametrize("name", list(CASES))


def make(spec: Any, size: int = D) -> Any:
    torch.manual_seed(0)
    return make_core(spec, size)


def draw(T: int, B: int, chance: float, size: int = D) -> tuple[torch.Tensor, torch.Tensor]:
    """x [T, B, size] and first [T, B]."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(T, B, size, generator=generator)
    return x, torch.rand(T, B, generator=generator) < chance


def stepped(core: Any, x: torch.Tensor, state: Any, first: torch.Tensor) -> tuple[torch.Tensor, Any]:
    y = []
    for now, opens in zip(x, first):
        out, state = core.step(now, state, opens)
        y.append(out)
    return torch.stack(y), state


def assert_close(a: Any, b: Any, tolerance: float) -> None:
    for got, want in zip(tree.leaves(a), tree.leaves(b), strict=True):
        torch.testing.assert_close(got, want, atol=tolerance, rtol=tolerance)


# Numbers ----------------------------------------------------------------------------------------


@every_name
@torch.no_grad()
def test_long_sequences_in_single_precision(name):
    """S002-23: 300 steps of the default size stay within 1e-5 of stepping, the state too; the LSTM's
    and the GRU's within 1e-6."""
    core = make(name)
    x, first = draw(300, 3, 0.02)
    state = core.initial_state(3)
    assert_close(
        core.unroll(x, state, first),
        stepped(core, x, state, first),
        1e-6 if name in ("lstm", "gru") else 1e-5,
    )


@every_name
@torch.no_grad()
def test_the_scale_of_outputs_and_states(name):
    """Outputs that a linear head can use, from the start to 3,000 steps into an episode."""
    core = make(name)
    x, never = draw(3000, 2, 0.0)
    y, state = core.unroll(x, core.initial_state(2), never)
    for part in (y[1:20], y[280:300], y[2980:]):
        assert 0.01 < part.square().mean().sqrt() < 10
    assert y.isfinite().all()
    for leaf in tree.leaves(state):
        assert leaf.isfinite().all()
        assert leaf.abs().max() < 1e5


@every_case
def test_every_parameter_learns_from_the_start(name):
    """Gradients at initialisation are finite, and none is missing or all zero."""
    core = make(CASES[name], 3)
    x, first = draw(20, 4, 0.1, 3)
    y, _ = core.unroll(x.requires_grad_(), core.initial_state(4), first)
    (y * torch.randn(y.shape, generator=torch.Generator().manual_seed(2))).sum().backward()
    for parameter_name, parameter in [*core.named_parameters(), ("x", x)]:
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


# Types ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@every_case
def test_a_state_keeps_its_types_and_shapes(name, dtype):
    """S004-4, S004-20: through step, unroll, reset, cutting rows out and putting them back."""
    core = make(CASES[name], 3).to(dtype)
    x, first = draw(6, 4, 0.3, 3)
    x = x.to(dtype)
    state = tree.clone(core.initial_state(4))
    spec = tree.spec(state)
    assert all(kind in (dtype, torch.int64) for _, kind in spec.values())
    y, by_step = core.step(x[0], state, first[0])
    assert y.dtype == dtype
    y, by_unroll = core.unroll(x, state, first)
    assert y.dtype == dtype
    assert y.shape == (6, 4, core.output_size)
    rows = torch.tensor([2, 0])
    others = [
        core.reset(by_unroll, torch.tensor([True, False, True, False])),
        core.reset(by_unroll, torch.zeros(4, dtype=torch.bool)),
        tree.put(state, rows, tree.index(by_unroll, rows)),
        core.states_at(x, state, first, [3])[1][0],
    ]
    for kept in (by_step, by_unroll, *others):
        assert tree.spec(kept) == spec
        assert all(leaf.shape[0] == 4 for leaf in tree.leaves(kept))
    for leaf, was in zip(tree.leaves(tree.index(by_unroll, rows)), tree.leaves(by_unroll)):
        assert torch.equal(leaf, was[rows])


# The same again ---------------------------------------------------------------------------------


def results(core: Any, x: torch.Tensor, first: torch.Tensor) -> tuple[Any, Any]:
    """y and the end state, and the gradients of x and of all parameters."""
    x = x.clone().requires_grad_()
    y, end = core.unroll(x, tree.clone(core.initial_state(x.shape[1])), first)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(2))
    inputs = [x, *core.parameters()]
    gradients = torch.autograd.grad((y * weight).sum(), inputs, allow_unused=True, materialize_grads=True)
    return (y.detach(), *tree.leaves(tree.clone(end))), gradients


@every_case
def test_the_same_again_to_the_bit(name):
    """The same weights and inputs give the same values and gradients."""
    core = make(CASES[name], 3)
    x, first = draw(30, 6, 0.1, 3)
    for once, again in zip(results(core, x, first), results(core, x, first)):
        assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


@every_case
def test_groups_of_rows_change_nothing(name):
    """S002-23: unrolled in two threads, each with half the rows."""
    core = make(CASES[name], 3)
    x, first = draw(40, 9, 0.1, 3)
    values, gradients = results(core, x, first)
    with row_threads.threads(2):
        assert row_threads._groups(x) == 2
        in_groups, gradients_in_groups = results(core, x, first)
    assert_close(in_groups, values, SINGLE_TOLERANCE.get(name, SINGLE))
    for got, want in zip(gradients_in_groups, gradients, strict=True):
        torch.testing.assert_close(got, want, atol=1e-4 * want.abs().max().item() + 1e-7, rtol=1e-4)


# Files ------------------------------------------------------------------------------------------


# ONNX takes seconds a core. tests/export/test_files.py has it in every run, with an LSTM.
@pytest.mark.parametrize("kind", ["torch", pytest.param("onnx", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(CORES))
def test_every_core_can_be_exported(name, kind, tmp_path):
    """The file acts as the agent does, which ``export_agent`` checks over many steps and resets."""
    if kind == "onnx":
        for package in ("onnx", "onnxscript", "onnxruntime"):
            pytest.importorskip(package)
    torch.manual_seed(0)
    config = PolicyConfig(core=CASES[name], encoder=EncoderConfig(hidden=(8,)), head=HeadConfig(gain=1.0))
    policy = config.build(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(3))
    agent = rc.Agent(policy, rc.TrainConfig(policy=config), None)
    file = export_agent(agent, tmp_path / "agent", kind)
    about = json.loads(file.with_name("agent.json").read_text())
    assert about["checked"] is True
    types = {one["name"]: one["dtype"] for one in about["inputs"]}
    leaves = list(tree.named_leaves(agent.initial_state(1), "state"))
    assert [part["input"] for part in about["state"]] == [leaf_name for leaf_name, _ in leaves]
    for leaf_name, leaf in leaves:
        assert types[leaf_name] == str(leaf.dtype).removeprefix("torch.")


class Swapped(Core):
    """Two counters; ``_unroll`` gives them back in another order than it got them."""

    def __init__(self):
        super().__init__(1, 1)

    def initial_state(self, batch):
        return {"slow": torch.zeros(batch, 1), "fast": torch.zeros(batch, 1)}

    def _step(self, x, state):
        return x, {"fast": state["fast"] + 2, "slow": state["slow"] + 1}

    def _unroll(self, x, state, first):
        for t in range(len(x)):
            _, state = self._step(x[t], self.reset(state, first[t]))
        return x, state


def test_a_state_is_matched_by_name_not_by_order():
    """S004-4: a dict that comes back with its keys in another order holds the same memories."""
    core = Swapped()
    x, first = torch.zeros(4, 2, 1), torch.zeros(4, 2, dtype=torch.bool)
    _, end = core.unroll(x, core.initial_state(2), first)
    assert {name: leaf[0].item() for name, leaf in end.items()} == {"slow": 4, "fast": 8}
