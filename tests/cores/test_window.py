"""The attention core: what it sees and what it does not, its blocks, its gates, its settings."""

from __future__ import annotations

import pytest
import torch

import recollect as rc
from recollect.base import row_threads, tree
from recollect.config.policy import EncoderConfig
from recollect.cores import Window, WindowConfig
from recollect.errors import ConfigError
from recollect.kernels.cpu import window as kernel
from tests.reference.window import window as reference

torch.set_num_threads(1)

SMALL = WindowConfig(hidden=4, window=3, heads=2)


def build(config, dtype=torch.float64):
    torch.manual_seed(0)
    core = config.build(3).to(dtype)
    for parameter in core.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return core


def draw(core, T, B, seed=0, chance=0.0):
    """x, a state whose counts are anything from 0 to what fits, first."""
    generator = torch.Generator().manual_seed(seed)

    def leaf_like(leaf):
        if not leaf.is_floating_point():
            return torch.randint(0, core.config.window, (B,), generator=generator)
        return torch.randn(B, *leaf.shape[1:], generator=generator, dtype=leaf.dtype).requires_grad_()

    x = torch.randn(T, B, 3, generator=generator, dtype=torch.float64).requires_grad_()
    first = torch.rand(T, B, generator=generator) < chance
    return x, tree.map(leaf_like, core.initial_state(1)), first


def outcome(core, result, x, state):
    """Values and gradients, as one list."""
    y, end = result
    leaves = [y, *tree.leaves(end)]
    floats = [leaf for leaf in leaves if leaf.is_floating_point()]
    generator = torch.Generator().manual_seed(1)
    loss = sum((f * torch.randn(f.shape, generator=generator, dtype=f.dtype)).sum() for f in floats)
    inputs = [x, *state["layers"], *core.parameters()]
    return leaves + list(torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True))


def assert_close(got, want, tolerance=1e-10):
    for one, two in zip(got, want, strict=True):
        torch.testing.assert_close(one, two, atol=tolerance, rtol=tolerance)


def test_it_sees_exactly_as_many_steps_as_its_window():
    """S002-23: with one layer the gradient is not zero up to W - 1 steps back, and exactly zero beyond."""
    core = build(SMALL)
    x, state, first = draw(core, 9, 2)
    y, _ = core.unroll(x, state, first)
    for t in range(9):
        (dx,) = torch.autograd.grad(y[t].square().sum(), x, retain_graph=True)
        sees = (dx != 0).any(2).all(1)
        assert sees.tolist() == [t - 2 <= s <= t for s in range(9)]


def test_every_layer_sees_a_window_further():
    core = build(WindowConfig(hidden=4, window=3, heads=2, layers=2))
    x, state, first = draw(core, 9, 1)
    y, _ = core.unroll(x, state, first)
    (dx,) = torch.autograd.grad(y[8].square().sum(), x)
    assert (dx != 0).any(2).squeeze(1).tolist() == [s >= 4 for s in range(9)]


def test_only_as_much_of_the_memory_counts_as_is_of_this_episode():
    """S004-3: what stands in the slots before ``count`` reaches neither output nor gradient."""
    core = build(WindowConfig(hidden=4, window=5, heads=1))
    x, state, first = draw(core, 1, 5)
    (leaf,) = state["layers"]
    count = torch.arange(5)
    y, _ = core.unroll(x, {"layers": (leaf,), "count": count}, first)
    (gradient,) = torch.autograd.grad(y.square().sum(), leaf)
    sees = (gradient != 0).any(3).any(1)  # [B, W - 1]
    assert sees.tolist() == [[slot >= 4 - n for slot in range(4)] for n in count.tolist()]


def test_the_count_stops_at_what_the_memory_holds():
    core = build(SMALL)
    x, _, first = draw(core, 5, 1)
    state, counts = core.initial_state(1), []
    for t in range(5):
        _, state = core.step(x[t], state, first[t])
        counts.append(int(state["count"]))
    assert counts == [1, 2, 2, 2, 2]
    assert core.unroll(x, core.initial_state(1), first)[1]["count"].tolist() == [2]


@pytest.mark.parametrize(("T", "B"), [(1, 1), (5, 3), (7, 4)])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_blocks_of_every_size_give_the_same(T, B, size, monkeypatch):
    """S002-23: the reference's values and gradients, whatever rows and steps a block has, the last one
    shorter; also with windows longer than everything."""
    for config in (SMALL, WindowConfig(hidden=4, window=9, heads=1)):
        core = build(config)
        x, state, first = draw(core, T, B, chance=0.2)
        want = outcome(core, reference(core, x, state, first), x, state)
        monkeypatch.setattr(kernel, "QUERIES", size)
        monkeypatch.setattr(kernel, "SCORES", size * 2 * (size + config.window - 1) * config.heads)
        assert_close(outcome(core, core.unroll(x, state, first), x, state), want)


def test_nan_stays_in_its_episode_but_is_not_hidden():
    """S004-3: in values and gradients, for a NaN that comes in with x or stands in the memory; the queries
    of its own episode that see it are NaN, as when stepping."""
    core = build(WindowConfig(hidden=4, window=4, heads=2))
    x, state, first = draw(core, 9, 3)
    first[3, 1] = first[7, 1] = True
    bad = x.detach().clone()
    bad[4, 1] = float("nan")
    state = {"layers": state["layers"], "count": torch.tensor([3, 3, 3])}
    state["layers"][0].data[1, :, 1] = float("nan")  # seen by steps 0 and 1
    bad.requires_grad_()
    y, end = core.unroll(bad, state, first)
    assert y.isnan().any(2)[:, 1].tolist() == [t in (0, 1, 4, 5, 6) for t in range(9)]
    assert not y[:, [0, 2]].isnan().any()

    stepped, at = [], state
    for t in range(9):
        out, at = core.step(bad[t], at, first[t])
        stepped.append(out)
    torch.testing.assert_close(y, torch.stack(stepped), equal_nan=True, atol=1e-12, rtol=0)
    assert_close(tree.leaves(end), tree.leaves(at), 1e-12)

    loss = y[7:, 1].square().sum() + y[:, [0, 2]].square().sum()
    dx, dmemory = torch.autograd.grad(loss, [bad, *state["layers"]])
    assert dx[7:].isfinite().all()
    assert dx[:, [0, 2]].isfinite().all()
    assert dmemory[[0, 2]].isfinite().all()


def test_positions_alone_can_look_three_steps_back():
    """With no content in the query, a position that stands out makes the output the value of that age."""
    core = build(WindowConfig(hidden=4, window=6, heads=1))
    block = core.blocks[0]
    with torch.no_grad():
        block.attention_in.weight[:4] = 0  # q = 0
        block.u.zero_()
        block.v.fill_(1.0)
        block.positions.zero_()
        block.positions[:, 6 - 1 - 3] = 50.0
    q = torch.zeros(8, 1, 4, dtype=torch.float64)
    memory = torch.randn(1, 1, 5 + 8, 8, dtype=torch.float64)
    age = torch.arange(5, 13).unsqueeze(0)
    out = kernel.attend(q, block.u, block.v, memory, block.positions, age)
    torch.testing.assert_close(out[:, 0], memory[0, 0, 5 - 3 : 13 - 3, 4:], atol=1e-9, rtol=0)


def test_gates_begin_near_identity():
    """A GTrXL gate passes most of the stream through at first, and can close."""
    torch.manual_seed(0)
    core = WindowConfig(hidden=64, window=8, gating="gtrxl").build(3)
    gate = core.blocks[0].join_attention
    h, new = torch.randn(100, 64), torch.randn(100, 64)
    assert (gate(h, new) - h).norm() < 0.35 * h.norm()
    with torch.no_grad():
        gate.from_new.bias[64:128] = -100
    torch.testing.assert_close(gate(h, new), h)


def test_output_and_memory_are_of_order_one_after_hundreds_of_steps():
    torch.manual_seed(0)
    for gating in ("residual", "gtrxl"):
        core = WindowConfig(layers=2, gating=gating).build(16)
        with torch.no_grad():
            y, end = core.unroll(torch.randn(300, 2, 16), core.initial_state(2), torch.zeros(300, 2).bool())
        assert 0.5 < y[-1].std() < 2
        assert all(leaf.abs().max() < 10 for leaf in end["layers"])


def test_threads_change_nothing_with_counts_in_the_state():
    """S002-23: groups of rows side by side, forward and backward."""
    core = build(WindowConfig(hidden=4, window=5, heads=2, layers=2))
    x, state, first = draw(core, 40, 12, chance=0.1)
    want = outcome(core, core.unroll(x, state, first), x, state)
    with row_threads.threads(2):
        assert_close(outcome(core, core.unroll(x, state, first), x, state), want)


def test_the_state_is_batch_first_whatever_it_holds():
    """S004-4: keys and values of every layer, and an int64 count."""
    core = WindowConfig(hidden=8, window=5, heads=2, layers=2).build(3)
    spec = tree.spec(core.initial_state(7))
    assert [shape for shape, _ in spec.values()] == [(2, 4, 8), (2, 4, 8), ()]
    assert spec["count"][1] == torch.int64
    assert all(leaf.shape[0] == 7 for leaf in tree.leaves(core.initial_state(7)))


def test_reaching_makes_the_window_long_enough():
    assert WindowConfig().reaching(100).window == 102
    assert WindowConfig(window=200).reaching(100).window == 200


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"window": 1}, "at least 2"),
        ({"heads": 3}, "one of 1, 2, 4"),
        ({"gating": "gru"}, "residual or gtrxl"),
        ({"layers": 0}, "layers = 0"),
    ],
)
def test_bad_settings_are_refused_with_the_fix(settings, words):
    with pytest.raises(ConfigError, match=words):
        WindowConfig(**settings)
    assert isinstance(WindowConfig().build(3), Window)


class Stop(rc.Callback):
    """Stops at a number of steps, as Ctrl-C would."""

    def on_iteration(self, training, metrics):
        if training.steps >= 48:
            training.stop("enough")


def test_the_memory_is_checkpointed(tmp_path):
    """S004-4, S004-20: keys, values and counts, which are views into larger tensors while acting, go to disk
    and come back; a resumed run goes on bit for bit."""
    settings = {
        "rollout": 12,
        "chunk": 4,
        "num_envs": 4,
        "core": WindowConfig(hidden=8, window=5, heads=2, layers=2),
        "encoder": EncoderConfig(hidden=(8,)),
        "threads": 1,
        "progress": False,
        "checkpoint_every": 48,
    }
    whole = rc.train("delayed-cue", steps=96, run=str(tmp_path / "whole"), **settings)
    rc.train("delayed-cue", steps=96, run=str(tmp_path / "halves"), callbacks=[Stop()], **settings)
    halves = rc.resume(tmp_path / "halves", progress=False)
    for name, weight in whole.policy.state_dict().items():
        assert torch.equal(weight, halves.policy.state_dict()[name]), name
