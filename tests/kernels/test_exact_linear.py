"""Linear layers with few inputs or outputs, in float32: in Triton's interpreter, and on a GPU."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch.nn import functional as F

from recollect.algos.catalog import make_learner
from recollect.base import devices, triton_support
from recollect.config.policy import EncoderConfig, PolicyConfig
from recollect.config.ppo import PPOConfig
from recollect.cores import LSTMConfig
from recollect.kernels import exact_linear
from recollect.policy.layers import Dense, mlp
from recollect.policy.policy import Policy
from tests.support.helpers import TensorWorld, assert_reproduced, make_actor, make_policy
from tests.support.recorded import recorded

SIZES = [
    *((7, K, M) for K, M in ((1, 64), (2, 64), (3, 128), (13, 7), (16, 100), (2, 1), (1, 1), (16, 16))),
    *((37, K, M) for K, M in ((64, 1), (128, 2), (128, 3), (100, 7), (128, 16), (17, 3), (300, 2))),
    (1, 2, 64),
    (1, 128, 3),
    (300, 3, 20),  # several blocks of rows, the last one not full
    (300, 40, 5),
]
"""Rows, inputs, outputs."""
every_size = pytest.mark.parametrize(("N", "K", "M"), SIZES)


def draw(N, K, M, device="cpu"):
    """x, weight, bias."""
    noise = torch.Generator().manual_seed(100 * K + M)
    shapes, scales = ((N, K), (M, K), (M,)), (1.0, K**-0.5, 0.5)
    return [(s * torch.randn(shape, generator=noise)).to(device) for shape, s in zip(shapes, scales)]


def plain(x, weight, bias, activation=None):
    y = F.linear(x, weight, bias)
    return y if activation is None else torch.tanh(y)


def _weights(y):
    """Of a sum of y's numbers: around 1.5, so that their sums do not cancel."""
    return (1.5 + torch.sin(torch.arange(y.numel(), device=y.device))).view(y.shape).to(y.dtype)


def run(function, inputs, activation):
    """The result and the gradients of x, weight and bias, if there is one."""
    inputs = [None if t is None else t.detach().requires_grad_() for t in inputs]
    y = function(*inputs, activation)
    weights = _weights(y)
    return [y, *torch.autograd.grad((y * weights).sum(), [t for t in inputs if t is not None])]


def assert_right(inputs, activation, limit=1e-6):
    """Values and gradients against float64; the tanh may be off by 2e-7 on a number, absolutely."""
    assert exact_linear.suits(*inputs[:2])
    got = run(exact_linear.linear, inputs, activation)
    want = run(plain, [None if t is None else t.double() for t in inputs], activation)
    for k, (a, b) in enumerate(zip(got, want, strict=True)):
        assert a.dtype == torch.float32
        assert a.shape == b.shape
        error, largest = (a - b).abs().max().item(), b.abs().max().item()
        assert error <= limit * largest + 4e-7, f"result {k} is {error:.1e} off, of {largest:.1e}"


@pytest.mark.parametrize("activation", [None, "tanh"])
@every_size
def test_equals_float64(N, K, M, activation, fused_on_cpu):
    """S002-14: values and all gradients."""
    assert_right(draw(N, K, M), activation)


@pytest.mark.parametrize(("K", "M"), [(3, 20), (40, 3)])
def test_without_a_bias(K, M, fused_on_cpu):
    x, weight, _ = draw(9, K, M)
    assert_right([x, weight, None], None)


@pytest.mark.parametrize(("K", "M"), [(3, 20), (40, 3)])
def test_any_shape_and_strides(K, M, fused_on_cpu):
    """Leading dimensions, none of them too; memory in another order, or not from 16 bytes on."""
    x, weight, bias = draw(24, K, M)
    assert_right([x.view(2, 3, 4, K), weight, bias], None)
    assert_right([x[0], weight, bias], None)
    assert_right([x.view(4, 6, K).transpose(0, 1), weight.t().contiguous().t(), bias], "tanh")
    odd = torch.cat([x.flatten()[:1], x.flatten()])[1:].view(24, K)
    assert torch.equal(exact_linear.linear(odd, weight, bias), exact_linear.linear(x, weight, bias))
    x.requires_grad_()
    (got,) = torch.autograd.grad(exact_linear.linear(x, weight, bias).sum(), x)  # an expanded gradient
    torch.testing.assert_close(got, weight.sum(0).expand(24, K))


@pytest.mark.parametrize(("K", "M"), [(3, 20), (40, 3)])
def test_only_what_is_asked_for(K, M, fused_on_cpu):
    """Observations need no gradient; frozen weights get none."""
    want = run(exact_linear.linear, draw(9, K, M), None)[1:]
    for asked in ((0,), (1,), (2,), (1, 2), (0, 1)):
        inputs = [t.requires_grad_(i in asked) for i, t in enumerate(draw(9, K, M))]
        y = exact_linear.linear(*inputs)
        (y * _weights(y)).sum().backward()
        for i, t in enumerate(inputs):
            assert (t.grad is not None) == (i in asked)
            assert t.grad is None or torch.equal(t.grad, want[i])


@pytest.mark.parametrize(("K", "M"), [(3, 20), (40, 3)])
def test_no_rows(K, M, fused_on_cpu):
    x, weight, bias = (t.requires_grad_() for t in draw(0, K, M))
    y = exact_linear.linear(x, weight, bias, "tanh")
    assert y.shape == (0, M)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, K)
    assert not weight.grad.any()
    assert not bias.grad.any()


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize(("K", "M"), [(3, 20), (40, 3)])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nan_stays_in_its_row(K, M, bad, fused_on_cpu):
    """As in torch: what a row says and its gradient are its own affair, and the weights' gradient sees it."""
    x, weight, bias = draw(9, K, M)
    clean = run(exact_linear.linear, (x, weight, bias), None)
    x[4, K - 1] = bad
    broken = run(exact_linear.linear, (x, weight, bias), None)
    others = torch.arange(9) != 4
    assert not broken[0][4].isfinite().any()
    assert torch.equal(broken[0][others], clean[0][others])
    assert torch.equal(broken[1], clean[1])
    assert not broken[2][:, K - 1].isfinite().any()
    assert torch.equal(broken[2][:, : K - 1], clean[2][:, : K - 1])


def assert_same_bits(counts, K, M, device="cpu", activation=None):
    """A row alone and among others, with gradients and without; an output alone and beside others."""
    x, weight, bias = draw(max(counts), K, M, device)
    with devices.rounded("tf32"):
        whole = exact_linear.linear(x, weight, bias, activation)
        for n in counts:
            assert torch.equal(exact_linear.linear(x[-n:], weight, bias, activation), whole[-n:])
            assert torch.equal(
                exact_linear.linear(x[:n], weight.requires_grad_(), bias, activation), whole[:n]
            )
        weight = weight.detach()
        for m in range(min(M, 4)):
            one = exact_linear.linear(x, weight[m : m + 1].clone(), bias[m : m + 1].clone(), activation)
            assert torch.equal(one, whole[:, m : m + 1])


@pytest.mark.parametrize(("K", "M"), [(2, 64), (40, 3), (128, 3)])
def test_the_same_bits_among_any_rows(K, M, fused_on_cpu):
    """S002-14: what is acted with few rows is learned with many."""
    assert_same_bits((1, 17, 70), K, M)


def test_autocast_changes_nothing(fused_on_cpu):
    """Neither forwards nor backwards: the layers are float32 in bf16 too."""
    for sizes in ((9, 3, 20), (9, 40, 3)):
        want = run(exact_linear.linear, draw(*sizes), "tanh")
        with torch.autocast("cpu", torch.bfloat16):
            got = run(exact_linear.linear, draw(*sizes), "tanh")
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_nothing_is_read_on_the_host(fused_on_cpu, unread, monkeypatch):
    """All but the kernels themselves, which cannot: a CUDA graph holds the whole of it."""
    monkeypatch.setattr(exact_linear, "_launch", lambda *args, **flags: None)
    for sizes in ((9, 3, 20), (9, 40, 3)):
        inputs = draw(*sizes)
        with unread():
            run(exact_linear.linear, inputs, "tanh")


def test_who_is_thin(fused_on_cpu):
    """And whoever is not is torch's, bit for bit."""
    for K, M, dtype, is_thin in (
        (16, 1024, torch.float32, True),
        (17, 17, torch.float32, False),
        (16, 1025, torch.float32, False),
        (1024, 4, torch.float32, True),
        (1024, 5, torch.float32, False),
        (2, 64, torch.float64, False),
        (2, 64, torch.bfloat16, False),
    ):
        x, weight, bias = (t.to(dtype) for t in draw(3, K, M))
        assert exact_linear.suits(x, weight) == is_thin
        if not is_thin:
            assert torch.equal(exact_linear.linear(x, weight, bias, "tanh"), plain(x, weight, bias, "tanh"))
    x, weight, bias = draw(3, 2, 64)
    with pytest.raises(RuntimeError):
        exact_linear.linear(x[:, :1], weight, bias)  # sizes that do not match are torch's to refuse


def test_the_cpu_stays_as_it_was():
    """Without a GPU these layers are torch's."""
    for K, M in ((2, 64), (128, 3)):
        x, weight, bias = draw(9, K, M)
        assert not exact_linear.suits(x, weight)
        assert torch.equal(exact_linear.linear(x, weight, bias, "tanh"), plain(x, weight, bias, "tanh"))


# In a policy --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("activation", "layer_norm"), [("tanh", False), ("tanh", True), ("silu", False)])
def test_the_first_layer_over_numbers(activation, layer_norm, fused_on_cpu, monkeypatch):
    """It is the first one only, the same function with the same weights, whatever comes after."""
    torch.manual_seed(0)
    layers = mlp(3, (20, 8), activation, layer_norm, exact_first=True)
    torch.manual_seed(0)
    usual = mlp(3, (20, 8), activation, layer_norm)
    assert [layer.exact for layer in layers.children()] == [True, False]
    assert layers.state_dict().keys() == usual.state_dict().keys()
    x, calls = torch.randn(5, 3), []
    kernel = exact_linear._forward
    monkeypatch.setattr(exact_linear, "_forward", lambda *args: calls.append(args[3]) or kernel(*args))
    torch.testing.assert_close(layers(x), usual(x), atol=2e-6, rtol=1e-5)
    assert calls == [activation == "tanh" and not layer_norm]


def test_images_and_further_layers_are_not_exact():
    space = spaces.Dict({"see": spaces.Box(0, 255, (12, 12, 3), np.uint8), "feel": spaces.Box(-1, 1, (3,))})
    encoder = EncoderConfig(hidden=(16, 16)).build(space)
    exact = [name for name, layer in encoder.named_modules() if isinstance(layer, Dense) and layer.exact]
    assert exact == ["mlp.0"]


def says(policy, obs, first, atol=0.0):
    """Log-probs and values [T, B] by unroll; the same by steps, bit by bit, and the values by ``value``."""
    state = policy.initial_state(obs.shape[1])
    with torch.no_grad():
        dist, value, _ = policy.unroll(obs, state, first)
        for t in range(len(obs)):
            alone = policy.value(obs[t], state, first[t])
            stepped, one, state = policy.step(obs[t], state, first[t])
            found = (stepped.log_probs, one, alone)
            torch.testing.assert_close(found, (dist.log_probs[t], value[t], value[t]), atol=atol, rtol=0)
    return dist.log_probs, value


@pytest.mark.parametrize("normalise_value", [False, True])
def test_steps_are_the_unroll_bit_by_bit(normalise_value, fused_on_cpu):
    """S002-14: without a core there is nothing else that rounds; learning takes both heads in one pass."""
    env = TensorWorld(5)
    policy = make_policy(env, "none", encoder=EncoderConfig(hidden=(40,)), normalise_value=normalise_value)
    if policy.value_norm is not None:
        policy.value_norm.update(torch.tensor([-3.0, 5.0]), policy.critic)
    obs, first = torch.randn(6, 5, 3), torch.rand(6, 5) < 0.3
    assert policy._joint(torch.zeros(6, 5, 40), obs) is not None
    says(policy, obs, first)


def test_a_policy_learns_the_same(fused_on_cpu, monkeypatch):
    """Values and gradients of a whole policy with these layers and without; PopArt moves the critic."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTMConfig(hidden=20), encoder=EncoderConfig(hidden=(24,)))
    obs, first = torch.randn(4, 3, 3), torch.rand(4, 3) < 0.3
    action = torch.randint(3, (4, 3))

    def learned(policy):
        assert policy.value_norm is not None
        policy.value_norm.update(torch.tensor([1.0, 5.0]), policy.critic)
        found = policy.evaluate_actions(obs, action, policy.initial_state(3), first)
        loss = sum(t.square().sum() for t in found)
        return [*found, *torch.autograd.grad(loss, list(policy.parameters()))]

    got = learned(copy.deepcopy(policy))
    monkeypatch.setattr(triton_support, "_is_forced", False)
    assert policy._joint(torch.zeros(4, 3, 20), obs) is None
    for a, b in zip(got, learned(policy), strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


def test_acting_is_reproduced(fused_on_cpu):
    """What was acted is found again, and learned from."""
    env = TensorWorld(3)
    policy = make_policy(env, LSTMConfig(hidden=16))
    rollout = make_actor(env, policy, rollout=6, chunk=3).collect()
    assert_reproduced(policy, rollout, 3)
    make_learner(policy, PPOConfig(rollout=6, chunk=3, epochs=1)).update(rollout)


@pytest.mark.parametrize("own", ["_value", "_distribution", "head", "critic", "hook"])
def test_a_subclass_has_its_own(own, fused_on_cpu):
    """S002-9: what it overrides is what acts and learns."""

    class Mine(Policy):
        if own == "_value":

            def _value(self, y):
                return super()._value(y) + 100

        if own == "_distribution":

            def _distribution(self, y, obs):
                return super()._distribution(y + 100, obs)

    env = TensorWorld(2)
    torch.manual_seed(0)
    policy = Mine(env.observation_space, env.action_space, PolicyConfig(core="none"))
    if own == "critic":
        policy.critic = type("Critic", (torch.nn.Linear,), {})(64, 1)
    if own == "hook":
        policy.critic.register_forward_hook(lambda *given: given[2] + 100)
    if own == "head":
        policy.head = type("Head", (type(policy.head),), {})(env.action_space, 64)
    plain = Policy(env.observation_space, env.action_space, PolicyConfig(core="none"))
    plain.load_state_dict(policy.state_dict())
    obs, first = torch.randn(3, 2, 3), torch.zeros(3, 2, dtype=torch.bool)
    assert policy._joint(torch.zeros(3, 2, 64), obs) is None
    log_probs, value = says(policy, obs, first, 1e-6 if own == "critic" else 0)  # that one is torch's
    usual_log_probs, usual_value = says(plain, obs, first)
    torch.testing.assert_close(value, usual_value + (100 if own in ("_value", "hook") else 0))
    assert torch.allclose(log_probs, usual_log_probs) == (own != "_distribution")


# On a GPU ---------------------------------------------------------------------------------------


def on_gpu(test):
    is_ready = torch.cuda.is_available() and triton_support.why_not(torch.device("cuda")) is None
    return pytest.mark.gpu(pytest.mark.skipif(not is_ready, reason="needs a CUDA device and Triton")(test))


LARGE = [(100_003, K, M) for K, M in ((2, 64), (16, 128), (128, 1), (128, 3), (256, 16), (1024, 4))]


@on_gpu
@pytest.mark.parametrize("activation", [None, "tanh"])
@pytest.mark.parametrize(("N", "K", "M"), [*SIZES, *LARGE])
def test_gpu_equals_float64(N, K, M, activation):
    """S002-14: also where torch's own products would be TF32."""
    with devices.rounded("tf32"):
        assert_right(draw(N, K, M, "cuda"), activation, limit=1e-5)


@on_gpu
@pytest.mark.parametrize("activation", [None, "tanh"])
@pytest.mark.parametrize(("K", "M"), [(2, 64), (4, 128), (128, 3), (128, 16), (100, 5)])
def test_gpu_the_same_bits_among_any_rows(K, M, activation):
    """S002-14: 1, 1000, the rows of an acting step, of a minibatch."""
    assert_same_bits((1, 1000, 16_384, 262_144), K, M, "cuda", activation)


@on_gpu
@pytest.mark.parametrize(("K", "M"), [(2, 64), (128, 3)])
def test_gpu_graph(K, M):
    """S002-14: recorded, with nothing read on the host, it computes the same bits."""
    inputs = draw(20_000, K, M, "cuda")
    want = run(exact_linear.linear, inputs, "tanh")
    graph, got = recorded(lambda: run(exact_linear.linear, inputs, "tanh"), is_silent=True)
    for t in got:
        t.detach().fill_(float("nan"))
    graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


@on_gpu
@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_gpu_heads_do_not_deviate(precision):
    """S002-14: a policy without a core says of 16,384 rows what it says of 262,144, bit by bit."""
    env = TensorWorld(2)
    policy = make_policy(env, "none", encoder=EncoderConfig(hidden=(128,)), precision=precision).cuda()
    obs = torch.randn(16, 16_384, 3, device="cuda")
    first = torch.zeros(16, 16_384, dtype=torch.bool, device="cuda")
    assert policy._joint(torch.zeros(1, 1, 128, device="cuda"), obs) is not None
    says(policy, obs, first)


@on_gpu
def test_gpu_wide_layers_are_float32():
    """More than few inputs and outputs: torch's product, but not in TF32."""
    x, weight, bias = draw(20_000, 100, 64, "cuda")
    assert not exact_linear.suits(x, weight)
    with devices.rounded("tf32"):
        got = exact_linear.linear(x, weight, bias)
    torch.testing.assert_close(
        got.double(), plain(*(t.double() for t in (x, weight, bias))), atol=1e-5, rtol=0
    )
