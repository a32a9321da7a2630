"""The external memory: slots that differ, reads before writes, any controller, and its way to disk."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import recollect as rc
from recollect.acting.actor import Actor
from recollect.base import row_threads, tree
from recollect.config.policy import EncoderConfig, PolicyConfig
from recollect.cores import LSTM, GRUConfig, NoMemory, PMMConfig
from recollect.errors import ConfigError
from recollect.policy.policy import Policy
from recollect.tasks import make_task

torch.set_num_threads(1)

SMALL = PMMConfig(hidden=6, slots=4, width=3, read_heads=2, controller=GRUConfig(hidden=5))


def build(config=SMALL):
    torch.manual_seed(0)
    core = config.build(3).double()
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return core


def run(core, T=6, B=2, chance=0.0, seed=0):
    """x, the initial state, first, and what unroll makes of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(T, B, 3, generator=generator, dtype=torch.float64).requires_grad_()
    first = torch.rand(T, B, generator=generator) < chance
    state = core.initial_state(B)
    return x, state, first, *core.unroll(x, state, first)


def spread(memory):
    """How far the slots [B, slots, width] of each row differ from each other."""
    return (memory - memory.mean(1, keepdim=True)).abs().amax((1, 2))


@pytest.mark.parametrize("T", [1, 6])
def test_slots_differ_from_the_first_step_on(T):
    """S004-15, correction 13: the memory begins with all slots equal, and learned keys tell them apart."""
    core = build()
    _, state, _, _, end = run(core, T)
    assert (spread(state["memory"]) == 0).all()
    assert (spread(end["memory"]) > 1e-3).all()


def test_with_equal_slot_keys_the_slots_stay_equal_for_ever():
    """Correction 13: what the keys are for. Their gradients are equal too: learning does not help."""
    core = build()
    with torch.no_grad():
        core.slot_keys[:] = core.slot_keys[:1].clone()
    _, _, _, y, end = run(core, 30)
    assert (spread(end["memory"]) < 1e-12).all()
    assert (end["memory"].abs() > 1e-3).any(), "or nothing was written at all"
    (gradient,) = torch.autograd.grad(y.square().sum(), core.slot_keys)
    assert spread(gradient.unsqueeze(0)) < 1e-12


def test_slots_of_a_fresh_core_differ():
    """Correction 13 as it is initialised, not only with weights drawn by a test."""
    torch.manual_seed(0)
    core = PMMConfig().build(3)
    _, end = core.unroll(torch.randn(20, 2, 3), core.initial_state(2), torch.zeros(20, 2).bool())
    assert (spread(end["memory"]) > 1e-2).all()


def test_reads_come_before_writes():
    """What is read at the first step is the empty memory; at the second, what the first one wrote."""
    core = build(PMMConfig(hidden=6, slots=4, width=3, controller="none"))
    x, _, _, y, _ = run(core, 2)
    plain = core.norm(core.out(torch.cat((x, torch.zeros(2, 2, 3)), 2)))
    torch.testing.assert_close(y[0], plain[0], atol=1e-12, rtol=0)
    assert not torch.allclose(y[1], plain[1], atol=1e-3)
    assert (torch.autograd.grad(y[1].square().sum(), x)[0][0] != 0).any(1).all()


def test_a_full_write_to_one_slot_replaces_it_and_no_other():
    """w = 1 and e = 1 at one slot: M_i = a there, all others as they were."""
    core = build(PMMConfig(hidden=6, slots=3, width=3, controller="none"))
    memory = torch.randn(1, 3, 3, dtype=torch.float64)
    with torch.no_grad():
        core.slot_keys.zero_()
        core.orders.weight.zero_()
        bias = core.orders.bias.zero_()
        bias[3:6] = memory[0, 1]  # the key of the write; that of the read is bias[0:3]
        bias[7] = 1e4  # as sharp as can be
        bias[8:11] = 100  # erase
        bias[11:14] = 0.5
        _, end = core.step(
            torch.zeros(1, 3).double(), {"controller": (), "memory": memory}, torch.zeros(1) > 0
        )
    torch.testing.assert_close(end["memory"][0, 1], torch.full((3,), 0.5, dtype=torch.float64).tanh())
    torch.testing.assert_close(end["memory"][0, [0, 2]], memory[0, [0, 2]])


def test_zero_keys_and_an_empty_memory_have_finite_gradients():
    """A norm of zero is smooth: the epsilon is under the root."""
    core = build()
    with torch.no_grad():
        core.slot_keys.zero_()
        core.orders.weight.zero_()
        core.orders.bias.zero_()
    x, _, _, y, end = run(core, 4)
    loss = y.square().sum() + end["memory"].square().sum()
    for gradient in torch.autograd.grad(loss, [x, *core.parameters()], allow_unused=True):
        assert gradient is None or gradient.isfinite().all()


@pytest.mark.parametrize(
    ("controller", "kind", "size"),
    [
        ("lstm", LSTM, 6),
        ("none", NoMemory, 3),
        ({"name": "lstm", "hidden": 4}, LSTM, 4),
        (lambda n: rc.LSTMConfig(hidden=7).build(n), LSTM, 7),
    ],
)
def test_any_core_can_be_the_controller(controller, kind, size):
    """S002-23: by name (of this width), mapping, or factory."""
    core = PMMConfig(hidden=6, slots=4, width=3, controller=controller).build(3)
    assert type(core.controller) is kind
    assert core.controller.output_size == size
    assert core.output_size == 6
    state = core.initial_state(5)
    y, _ = core.step(torch.randn(5, 3), state, torch.ones(5).bool())
    assert y.shape == (5, 6)
    assert core.has_memory
    assert all(leaf.shape[0] == 5 for leaf in tree.leaves(state))


def test_threads_change_nothing():
    """S002-23: groups of rows side by side, forward and backward, with a controller inside."""
    core = build()
    x, state, first, y, end = run(core, 40, 12, chance=0.1)
    wanted = [x, *core.parameters()]
    want = torch.autograd.grad(y.square().sum() + end["memory"].square().sum(), wanted)
    with row_threads.threads(2):
        y2, end2 = core.unroll(x, state, first)
        got = torch.autograd.grad(y2.square().sum() + end2["memory"].square().sum(), wanted)
    torch.testing.assert_close(y2, y, atol=1e-12, rtol=0)
    for one, two in zip(got, want):
        torch.testing.assert_close(one, two, atol=1e-10, rtol=1e-10)


def test_memory_and_output_stay_of_order_one():
    torch.manual_seed(0)
    core = PMMConfig(read_heads=2).build(16)
    with torch.no_grad():
        y, end = core.unroll(torch.randn(500, 2, 16), core.initial_state(2), torch.zeros(500, 2).bool())
    assert 0.5 < y[-1].std() < 2
    assert 0.01 < end["memory"].abs().max() < 10


def test_reaching_reaches_the_controller_and_the_memory():
    """An undecided write leaves about 1/e of the memory after so many steps."""
    far = PMMConfig(slots=4).reaching(200)
    assert far.controller.chrono == 200
    assert far.controller.hidden == far.hidden
    erase = torch.tensor(far.erase_bias).sigmoid() / 4
    assert (1 - erase) ** 200 == pytest.approx(0.37, abs=0.01)
    assert PMMConfig(controller="none").reaching(200).controller == rc.cores.NoneConfig()
    assert PMMConfig().reaching(2).erase_bias == 0
    core = far.build(3)
    assert (core.orders.bias.split(core.sizes)[2] == far.erase_bias).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"slots": 0}, "slots = 0"),
        ({"erase_bias": float("nan")}, "erase_bias = nan: it needs a number"),
        ({"controller": {}}, "name"),
    ],
)
def test_bad_settings_are_refused_with_the_fix(settings, words):
    with pytest.raises(ConfigError, match=words):
        PMMConfig(**settings)


def test_the_memory_is_stored_in_rollouts_and_reset_by_first():
    """S004-15, S004-4: every leaf at every chunk start, as the actor had it; zero where an episode began."""
    env = make_task("delayed-cue", 3, horizon=4)  # episodes of 6 steps
    torch.manual_seed(0)
    policy = Policy(
        env.observation_space, env.action_space, PolicyConfig(encoder=EncoderConfig(hidden=(8,)), core=SMALL)
    )
    steps = (0, 1, 6, 7)
    rollout = Actor(env, policy, rollout=10, state_steps=steps, seed=0).collect()
    states, first = rollout.states, rollout.first[:10]
    assert states["memory"].shape == (4, 3, 4, 3)
    assert states["controller"].shape == (4, 3, 1, 5)
    assert (states["memory"][0] == 0).all()
    assert (states["memory"][1] != 0).any((1, 2)).all()

    with torch.no_grad():
        x = policy.encoder(tree.index(rollout.obs, slice(0, 10)))
        _, want = policy.core.states_at(x, tree.index(states, 0), first, steps)
        for slot, state in enumerate(want):
            for got, leaf in zip(tree.leaves(tree.index(states, slot)), tree.leaves(state), strict=True):
                torch.testing.assert_close(got, leaf, atol=1e-6, rtol=0)
        assert first[6].all()
        assert (states["memory"][2] != 0).any((1, 2)).all(), "stored raw: the reset is the core's work"
        _, fresh = policy.core.step(x[6], policy.core.initial_state(3), first[6])
    torch.testing.assert_close(states["memory"][3], fresh["memory"], atol=1e-6, rtol=0)


class Stop(rc.Callback):
    """Stops at a number of steps, as Ctrl-C would."""

    def on_iteration(self, training, metrics):
        if training.steps >= 96:
            training.stop("enough")


def test_the_memory_is_checkpointed(tmp_path):
    """S004-15: a resumed run goes on bit for bit, in the middle of an episode."""
    settings: dict[str, Any] = {
        "rollout": 12,
        "chunk": 4,
        "num_envs": 4,
        "core": SMALL,
        "encoder": EncoderConfig(hidden=(8,)),
        "threads": 1,
        "progress": False,
        "checkpoint_every": 48,
    }
    whole = rc.train("delayed-cue", steps=192, run=str(tmp_path / "whole"), **settings)
    rc.train("delayed-cue", steps=192, run=str(tmp_path / "halves"), callbacks=[Stop()], **settings)
    halves = rc.resume(tmp_path / "halves", progress=False)
    for name, weight in whole.policy.state_dict().items():
        assert torch.equal(weight, halves.policy.state_dict()[name]), name
    one, two = (agent._trainer.learned(live=True).trainer.tensors for agent in (whole, halves))
    memories = [name for name in one if name.endswith("memory")]
    assert memories
    for name in memories:
        assert (one[name] != 0).any()
        assert torch.equal(one[name], two[name])
