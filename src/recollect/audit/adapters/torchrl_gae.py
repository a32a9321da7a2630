# pyright: reportMissingImports=false
"""TorchRL's LSTM and GRU modules, its collector and its GAE.

``of_modules(actor, critic)`` wraps a ``ProbabilisticActor`` and a critic that share one ``LSTMModule`` or
``GRUModule``.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torch.distributions import Categorical
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, InitTracker, SerialEnv, TransformedEnv
from torchrl.modules import GRUModule, LSTMModule, ProbabilisticActor, ValueOperator, set_recurrent_mode
from torchrl.objectives.value import GAE

from recollect.audit.adapters.probes import POISON, ROWS, STEPS, Probe, positions, rollout
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer
from recollect.errors import ConfigError

OBS, VALUE = "observation", "state_value"


def example(kind: str = "lstm", backend: str = "pad") -> Trainer:
    """A small actor and critic over one LSTM; ``kind``: lstm or gru; ``backend``: of the package's module."""
    torch.manual_seed(1)
    width, states = 8, ["h", "c"] if kind == "lstm" else ["h"]
    rnn = (LSTMModule if kind == "lstm" else GRUModule)(
        input_size=3,
        hidden_size=width,
        in_keys=[OBS, *states],
        out_keys=["embed", *(("next", name) for name in states)],
        recurrent_backend=backend,
    )
    logits = TensorDictModule(nn.Linear(width, 3), in_keys=["embed"], out_keys=["logits"])
    actor = ProbabilisticActor(
        TensorDictSequential(rnn, logits),
        in_keys=["logits"],
        distribution_class=Categorical,
        return_log_prob=True,
        default_interaction_type=InteractionType.RANDOM,
    )
    value = ValueOperator(nn.Linear(width, 1), in_keys=["embed"])
    return of_modules(actor, TensorDictSequential(rnn, value))


def example_gru() -> Trainer:
    """A small actor and critic over one GRU."""
    return example("gru")


def of_modules(actor: Any, critic: Any, *, gamma: float = 0.99, lmbda: float = 0.95) -> Trainer:
    """The abilities of an actor and a critic over one recurrent module, and of GAE."""
    found = [module for module in actor.modules() if isinstance(module, LSTMModule | GRUModule)]
    if len(found) != 1 or found[0] not in list(critic.modules()):
        raise ConfigError(
            "the adapter for TorchRL needs one LSTMModule or GRUModule that actor and critic share"
        )
    (rnn,) = found
    keys = [key for key in rnn.in_keys[1:] if key != "is_init"]
    net = rnn.lstm if isinstance(rnn, LSTMModule) else rnn.gru
    log_prob_key = actor.log_prob_keys[0]

    def batch(obs: Tensor, state: Any, first: Tensor) -> TensorDict:
        return TensorDict({OBS: obs, "is_init": first[..., None], **state}, batch_size=list(first.shape))

    def initial_state(rows: int) -> dict[str, Tensor]:
        return {key: torch.zeros(rows, net.num_layers, net.hidden_size) for key in keys}

    def act(obs: Tensor, state: Any, first: Tensor) -> tuple[dict[str, Tensor], Any]:
        with set_recurrent_mode(False), torch.no_grad():
            acted = actor(batch(obs, state, first))
            value = critic(batch(obs, state, first))[VALUE]
        outputs = {"action": acted["action"], "log_prob": acted[log_prob_key], "value": value[..., 0]}
        return outputs, {key: acted["next", key] for key in keys}

    def evaluate(obs: Tensor, state: Any, first: Tensor, action: Any) -> tuple[dict[str, Tensor], None]:
        T = len(first)
        # States are stored after a reset: zeros, except for the given one.
        start = {key: torch.where(first[0, :, None, None], 0.0, leaf) for key, leaf in state.items()}
        stored = {key: torch.stack([x, *[torch.zeros_like(x)] * (T - 1)], 1) for key, x in start.items()}
        sequences = batch(obs.transpose(0, 1), stored, first.t())  # [B, T]
        with set_recurrent_mode(True):
            log_prob = actor.get_dist(sequences.clone()).log_prob(action.transpose(0, 1))
            value = critic(sequences.clone())[VALUE]
        return {"log_prob": log_prob.t(), "value": value[..., 0].t()}, None

    def record() -> TracedRollout:
        return _recorded(actor, critic, rnn, keys, gamma, lmbda)

    def advantages(script: TracedRollout) -> tuple[Tensor, Tensor]:
        value = TensorDictModule(nn.Identity(), in_keys=[OBS], out_keys=[VALUE])
        sequences = _scripted(script)
        GAE(gamma=gamma, lmbda=lmbda, value_network=value, deactivate_vmap=True)(sequences)
        return sequences["advantage"][..., 0].t(), sequences["value_target"][..., 0].t()

    return Trainer(
        f"torchrl {version('torchrl')} {type(rnn).__name__} and GAE",
        obs_shape=(net.input_size,),
        initial_state=initial_state,
        act=act,
        evaluate=evaluate,
        record=record,
        advantages=advantages,
        gamma=gamma,
        gae_lambda=lmbda,
        parameters=lambda: {**actor.state_dict(prefix="actor."), **critic.state_dict(prefix="critic.")},
    )


def _scripted(script: TracedRollout) -> TensorDict:
    """The package's format of a rollout [B, T], whose observations are the values to be predicted."""
    T, B = script.steps, script.rows
    assert script.value is not None
    assert script.reward is not None
    last = torch.zeros(B) if script.bootstrap is None else script.bootstrap
    following = torch.cat([script.value[1:], last[None]])
    final = torch.full((T, B), POISON) if script.final_value is None else script.final_value
    following = torch.where(script.truncated, final, following)
    following = torch.where(script.terminated, POISON, following)

    def theirs(x: Tensor) -> Tensor:
        return x.t()[..., None].clone()

    done = script.terminated | script.truncated
    after = {OBS: theirs(following), "reward": theirs(script.reward), "done": theirs(done)}
    after |= {"terminated": theirs(script.terminated), "truncated": theirs(script.truncated)}
    return TensorDict({OBS: theirs(script.value), "next": TensorDict(after, [B, T])}, [B, T])


def _recorded(
    actor: Any, critic: Any, rnn: Any, keys: list[str], gamma: float, lmbda: float
) -> TracedRollout:
    T, B = STEPS, ROWS
    probes = [Probe(row) for row in range(B)]
    live: list[dict[str, Tensor]] = []
    hook = rnn.register_forward_pre_hook(
        lambda _, args: live.append({key: args[0][key].clone() for key in keys})
    )
    tracked = SerialEnv(B, [lambda probe=probe: GymWrapper(probe) for probe in probes])
    env = TransformedEnv(tracked, InitTracker())
    env = env.append_transform(rnn.make_tensordict_primer())
    collector = Collector(env, actor, frames_per_batch=T * B, total_frames=2 * T * B)
    batches = list(collector)
    hook.remove()
    collector.shutdown()
    sequences = batches[1]  # the second begins inside episodes; [B, T]
    state = {key: torch.stack([one[key] for one in live[-T:]]) for key in keys}
    # The state after the last step, before a reset of rows that ended there.
    state = {key: torch.cat([state[key], sequences["next", key][None, :, -1]]) for key in keys}
    seen = rollout([probe.log for probe in probes], T, T)
    with torch.no_grad():
        gae = GAE(gamma=gamma, lmbda=lmbda, value_network=critic, deactivate_vmap=True)
        with set_recurrent_mode(True):
            log_prob = actor.get_dist(sequences.clone()).log_prob(sequences["action"])
            gae(sequences)
        after = sequences["next"].select(OBS, *keys)
        after["is_init"] = torch.zeros(B, T, 1, dtype=torch.bool)
        with set_recurrent_mode(False):
            value = critic(sequences.select(OBS, "is_init", *keys).clone())[VALUE][..., 0].t()
            following = critic(after)[VALUE][..., 0].t()
    return TracedRollout(
        first=seen["first"],
        terminated=seen["terminated"],
        truncated=seen["truncated"],
        obs=seen["obs"],
        action=sequences["action"].transpose(0, 1),
        reward=seen["reward"],
        value=value,
        log_prob=sequences[actor.log_prob_keys[0]].t(),
        final_value=following,
        bootstrap=following[-1],
        state=state,
        learner_log_prob=log_prob.t(),
        learner_value=sequences[VALUE][..., 0].t(),
        advantage=sequences["advantage"][..., 0].t(),
        returns=sequences["value_target"][..., 0].t(),
        chunk_index=positions(T, B),
        chunk_state={key: sequences[key][:, 0] for key in keys},
        chunk_first=sequences["is_init"][..., 0].t(),
        gamma=gamma,
        gae_lambda=lmbda,
    )
