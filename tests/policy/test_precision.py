"""Mixed precision: what is bfloat16 and what is not, the tolerance with it, and where it is refused."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch

import recollect as rc
from recollect.algos.catalog import make_learner
from recollect.base import tree
from recollect.base.tolerances import TOLERANCES, tolerance
from recollect.config.policy import EncoderConfig
from recollect.config.ppo import PPOConfig
from recollect.cores import CORES, LSTMConfig
from recollect.errors import AlignmentError, ConfigError, DivergedError
from recollect.export.files import export_agent
from recollect.policy import precision
from tests.support import captured, dtypes
from tests.support.helpers import (
    GYM_WORLDS,
    ArenaWorld,
    ScriptedEnv,
    TensorWorld,
    as_rows,
    deviation,
    keep,
    make_actor,
    make_policy,
)

LSTM = LSTMConfig(hidden=16)
T = 23


@pytest.fixture(scope="module")
def bf16() -> None:
    """Only where this machine computes it rightly."""
    if precision.probe() != "ok":
        pytest.skip(f"bf16 on this CPU: {precision.probe()}")


def mixed(env: Any, core: Any = LSTM, **config: Any):
    wide = EncoderConfig(hidden=(64, 64))
    return make_policy(env, core, **({"encoder": wide, "precision": "bf16"} | config))


WORLDS = {
    "tensors": lambda: TensorWorld(3),
    "arena": lambda: ArenaWorld(2),
    **{name: lambda name=name: as_rows([ScriptedEnv] * 3, name) for name in GYM_WORLDS},
}


@pytest.mark.parametrize("world", WORLDS)
def test_acting_and_learning_agree(bf16, world):
    """M, S001-22: within the stated tolerance of bf16, over updates; a forgotten memory is far outside."""
    env = WORLDS[world]()
    policy = mixed(env, normalise_observations=True)
    actor = make_actor(env, policy, rollout=T, chunk=7)
    learner = make_learner(policy, PPOConfig(rollout=T, chunk=7, epochs=2, minibatches=2, learning_rate=0.01))
    limit = TOLERANCES["bf16"]
    for _ in range(3):
        rollout = actor.collect()
        log_prob, value = deviation(policy, rollout, 7)
        assert log_prob <= limit
        assert value <= limit * max(1.0, float(policy.value_scale))
        assert max(deviation(policy, rollout, 7, forget=True)) > 2 * limit, "the memory does not matter"
        metrics = learner.update(rollout)
        assert metrics["deviation/log_prob"] <= limit


def test_what_is_bfloat16_and_what_is_not(bf16):
    """S001-22: the encoder computes in it; states, log-probs, values, losses and moments are float32."""
    env = TensorWorld(3)
    policy = mixed(env)
    exact = mixed(env, precision="fp32")
    exact.load_state_dict(policy.state_dict())
    encoded: list[torch.dtype] = []
    policy.encoder.register_forward_hook(lambda _, __, out: encoded.append(out.dtype))
    actor = make_actor(env, policy, rollout=T, chunk=7)
    learner = make_learner(policy, PPOConfig(rollout=T, chunk=7))
    rollout = actor.collect()
    gap = max(deviation(exact, rollout, 7))
    assert 1e-5 < gap < 0.2, "it rounds, and not by much"
    learner.update(rollout)
    assert set(encoded) == {torch.bfloat16}
    recorded = (actor.state, rollout.states, rollout.record, rollout.bootstrap, rollout.final_value)
    learned = (tuple(policy.parameters()), tuple(p.grad for p in policy.parameters()))
    moments = tuple(learner.optimizer.state.values())
    assert {leaf.dtype for leaf in tree.leaves((recorded, learned, moments))} == {torch.float32}


@pytest.mark.parametrize("core", ["lstm", "gru", "mamba"])
@pytest.mark.parametrize("own", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("algo", dtypes.CONFIGS)
def test_ratios_targets_and_losses_are_float32(bf16, algo, own, core):
    """S001-22: and so is all that they are computed of, also inside of somebody's own autocast."""
    policy = captured.make_policy(core={"name": core, "hidden": 8}, precision="bf16")
    rollout = captured.make_rollout(policy, "all valid")
    with torch.autocast("cpu", torch.bfloat16, enabled=own):
        dtypes.assert_single(policy, rollout, algo)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_states_keep_their_dtype(bf16, core, name):
    """S004-20: also inside somebody's own autocast, acting and unrolling, for every core."""
    if core == "none":
        return
    env = TensorWorld(3)
    policy = make_policy(env, core, precision=name, encoder=EncoderConfig(hidden=(16,)))
    obs, first = env.reset(0), torch.tensor([True, False, False])
    start = policy.initial_state(3)
    with torch.autocast("cpu", torch.bfloat16):
        acted, stepped = policy.act(obs, start, first)
        dist, value, unrolled = policy.unroll(obs[None], start, first[None])
    assert tree.spec(start) == tree.spec(stepped) == tree.spec(unrolled)
    assert (
        acted.record["value"].dtype == value.dtype == dist.log_prob(acted.action[None]).dtype == torch.float32
    )
    torch.testing.assert_close(value[0], acted.record["value"], atol=1e-2, rtol=0)
    # The head too: in bfloat16 it would differ from what the learner computes.
    log_prob = dist.log_prob(tree.map(lambda leaf: leaf[None], acted.action))[0]
    torch.testing.assert_close(
        log_prob, acted.record["log_prob"], atol=1e-5 if name == "fp32" else 5e-2, rtol=0
    )


def test_the_tolerance_is_the_precision_s():
    """S001-22: the gauge that stops a run has a limit for each precision, unless one is given."""
    assert tolerance(None, "fp32") == 1e-4
    assert tolerance(None, "bf16") == TOLERANCES["bf16"] > 1e-4
    assert tolerance(0.5, "bf16") == tolerance(0.5, "fp32") == tolerance(0.5, "fp32", 5.0) == 0.5


@pytest.mark.parametrize("core", ["window", "lstm", {"name": "stack", "cores": ["gru", "window"]}])
def test_attention_rounds_more(core):
    """A run with attention stops at 5e-4, alone or in a stack, any other one at 1e-4."""
    env = TensorWorld(3)
    policy = make_policy(env, core, encoder=EncoderConfig(hidden=(16,)))
    learner = make_learner(policy, PPOConfig(rollout=T, chunk=7))
    actor = make_actor(env, policy, rollout=T, chunk=7)
    for error, stops in ((3e-4, core == "lstm"), (8e-4, True)):
        rollout = keep(actor.collect())
        rollout.record["log_prob"] += error
        with pytest.raises(AlignmentError) if stops else contextlib.nullcontext():
            learner.update(rollout)


@pytest.mark.parametrize(("name", "given"), [("fp32", None), ("bf16", None), ("bf16", 1e-7)])
def test_the_run_stops_beyond_it(bf16, name, given):
    """S001-22: a rollout that deviates by half the limit of bf16 stops a run in float32, or by its own."""
    env = TensorWorld(3)
    policy = mixed(env, precision=name)
    learner = make_learner(policy, PPOConfig(rollout=T, chunk=7, tolerance=given))
    rollout = keep(make_actor(env, policy, rollout=T, chunk=7).collect())
    rollout.record["log_prob"] += TOLERANCES["bf16"] / 2
    if (name, given) == ("bf16", None):
        assert learner.update(rollout)["encoder_bits"] == 16
        return
    with pytest.raises(AlignmentError, match="deviate"):
        learner.update(rollout)


def test_a_saved_agent_keeps_its_precision(bf16, tmp_path):
    """S001-22: what acts after a load is what was trained, to the bit; a session and an export too."""
    agent = rc.train(
        "delayed-cue", steps=512, precision="bf16", core=LSTM, threads=1, num_envs=4, progress=False
    )
    agent.save(tmp_path / "agent")
    again = rc.load(tmp_path / "agent")
    assert again.policy.config.precision == "bf16"
    obs = torch.randn(5, *agent.policy.observation_space.shape)
    first, start = torch.ones(5, dtype=torch.bool), agent.initial_state(5)
    one, two = (policy.act(obs, start, first)[0].record["value"] for policy in (agent.policy, again.policy))
    assert torch.equal(one, two)
    assert agent.evaluate(5).returns.tolist() == again.evaluate(5).returns.tolist()
    export_agent(again, tmp_path / "step.pt2", "torch")  # it compares by itself
    with pytest.raises(ConfigError, match="export it with format='torch'"):
        export_agent(again, tmp_path / "step.onnx", "onnx")


def test_a_gradient_that_is_not_finite_is_not_applied(bf16):
    """S001-22: the NaN guard holds: the run stops, and the weights are the last finite ones."""
    env = TensorWorld(3)
    policy = mixed(env)
    learner = make_learner(policy, PPOConfig(rollout=T, chunk=7))
    rollout = make_actor(env, policy, rollout=T, chunk=7).collect()
    weight = next(policy.encoder.parameters())
    before = weight.detach().clone()
    weight.register_hook(lambda grad: grad * float("nan"))
    with pytest.raises(DivergedError, match=r"the gradient is not finite, first in encoder"):
        learner.update(rollout)
    assert torch.equal(before, weight)


# Where it is not safe -------------------------------------------------------------------------------


@pytest.fixture
def unsafe(monkeypatch):
    monkeypatch.setattr(precision, "probe", lambda: "it ends the process (signal 4)")


def test_an_unsafe_cpu_is_refused(unsafe):
    """S001-22: before anything runs, with the way out; float32 goes on."""
    with pytest.raises(ConfigError, match=r"signal 4.*ONEDNN_MAX_CPU_ISA=AVX512_CORE.*precision='fp32'"):
        rc.train("delayed-cue", steps=64, precision="bf16", progress=False)
    policy = mixed(TensorWorld(3))  # a policy that was made by hand, or loaded
    with pytest.raises(ConfigError, match="not safe on this CPU"):
        policy.initial_state(3)
    mixed(TensorWorld(3), precision="fp32").initial_state(3)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", r"it ends the process \(signal 4\)"),
        ("raise ValueError('no such instruction')", "it fails: ValueError: no such instruction"),
        ("print('results are off by 75%')", "results are off by 75%"),
    ],
)
def test_the_probe_survives_what_it_finds(monkeypatch, script, words):
    """S001-22: an instruction that the CPU lacks ends the probe's process and not this one."""
    precision.probe.cache_clear()
    monkeypatch.setattr(precision, "_PROBE", script)
    try:
        with pytest.raises(AssertionError, match=words):
            raise AssertionError(precision.probe())
    finally:
        precision.probe.cache_clear()


def test_an_unknown_precision_is_refused():
    with pytest.raises(ConfigError, match=r"precision = 'fp16'.*: it needs auto or fp32 or tf32 or bf16"):
        rc.PolicyConfig(precision="fp16")  # pyright: ignore[reportArgumentType]


# Learning -------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_curves_are_alike(bf16):
    """S001-22: on CartPole without velocities both precisions learn, and about as fast."""
    curves = {name: curve(name) for name in TOLERANCES}
    for returns in curves.values():
        assert returns[-1] > 150
    gap = np.abs(np.array(curves["fp32"]) - np.array(curves["bf16"]))
    assert gap.mean() < 60, curves


def curve(name: Any) -> list[float]:
    settings: dict[str, Any] = {"precision": name, "threads": 1, "progress": False}
    agent = rc.train("position-cartpole", steps=60_000, **settings)
    steps, returns = agent.history.column("return")
    return np.interp(np.linspace(5_000, 60_000, 12), steps, returns).tolist()
