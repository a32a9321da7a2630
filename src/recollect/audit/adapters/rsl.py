"""rsl_rl's PPO with recurrent models.

``of_algorithm(algorithm)`` wraps a PPO whose actor and critic are ``RNNModel``s that see one and the same
group of observations. Its weights are not changed, its storage is not used.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel, RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor

from recollect.audit.adapters.probes import ROWS, STEPS, WARMUP, Probe, Scripted, positions, rollout
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer
from recollect.base import tree
from recollect.errors import ConfigError

GROUP = "obs"
GROUPS = {"actor": [GROUP], "critic": [GROUP]}
GAUSSIAN = {"class_name": "GaussianDistribution", "init_std": 1.0}


def example(kind: str = "lstm") -> Trainer:
    """A small PPO with an LSTM for the actor and one for the critic."""
    torch.manual_seed(1)
    obs = TensorDict({GROUP: torch.zeros(ROWS, 3)}, batch_size=[ROWS])
    sizes: dict[str, Any] = {"hidden_dims": [8], "rnn_type": kind, "rnn_hidden_dim": 8}
    actor = RNNModel(obs, GROUPS, "actor", 2, distribution_cfg=dict(GAUSSIAN), **sizes)
    critic = RNNModel(obs, GROUPS, "critic", 1, **sizes)
    return of_algorithm(PPO(actor, critic, RolloutStorage("rl", ROWS, STEPS, obs, [2], "cpu")))


def of_algorithm(algorithm: PPO) -> Trainer:
    """The abilities of a PPO with recurrent models."""
    models = {"actor": algorithm.actor, "critic": algorithm.critic}
    groups = {group for model in models.values() for group in model.obs_groups}
    if len(groups) != 1 or not all(model.is_recurrent for model in models.values()):
        raise ConfigError(
            "the adapter for rsl_rl needs two RNNModels that see one and the same group of observations"
        )
    (group,) = groups
    width = algorithm.actor.obs_dim

    def theirs(obs: Tensor) -> TensorDict:
        return TensorDict({group: obs}, batch_size=list(obs.shape[:-1]))

    def initial_state(rows: int) -> dict[str, Any]:
        return {name: _zeros(model, rows) for name, model in models.items()}

    def act(obs: Tensor, state: Any, first: Tensor) -> tuple[dict[str, Tensor], Any]:
        for name, model in models.items():
            model.reset(hidden_state=_as_theirs(state[name]))
            model.reset(first)
        with torch.inference_mode():
            algorithm.act(theirs(obs))
        acted, after = algorithm.transition, _live(models, len(obs))
        outputs = {"action": acted.actions, "log_prob": acted.actions_log_prob.flatten()}
        outputs["value"] = acted.values.flatten()
        acted.clear()
        return {name: x.clone() for name, x in outputs.items()}, after

    def evaluate(obs: Tensor, state: Any, first: Tensor, action: Any) -> tuple[dict[str, Tensor], None]:
        T, B = first.shape
        storage = RolloutStorage("rl", B, T, theirs(obs[0]), list(action.shape[2:]), "cpu")
        storage.observations, storage.actions = theirs(obs), action
        storage.dones[:-1, :, 0] = first[1:]
        storage.distribution_params = ()
        for name, key in (("actor", "saved_hidden_state_a"), ("critic", "saved_hidden_state_c")):
            # States are stored after their reset: zeros, except for the given one.
            start = tree.map(lambda leaf: torch.where(_wide(first[0], leaf), 0.0, leaf), state[name])
            leaves = _leaves(_as_theirs(start))
            setattr(
                storage, key, [torch.cat([leaf[None], leaf.new_zeros(T - 1, *leaf.shape)]) for leaf in leaves]
            )
        (batch,) = storage.recurrent_mini_batch_generator(1, 1)
        log_prob, value = _learner(algorithm, batch)
        return {"log_prob": log_prob, "value": value}, None

    def record() -> TracedRollout:
        return _recorded(algorithm, theirs, models, width)

    def advantages(script: TracedRollout) -> tuple[Tensor, Tensor]:
        envs = [Scripted(script, row) for row in range(script.rows)]
        obs = TensorDict({GROUP: torch.zeros(script.rows, 1)}, batch_size=[script.rows])
        actor = MLPModel(obs, GROUPS, "actor", 1, hidden_dims=[2], distribution_cfg=dict(GAUSSIAN))
        critic = _ValueIsObservation(obs, GROUPS, "critic", 1, hidden_dims=[2])
        storage = RolloutStorage("rl", script.rows, script.steps, obs, [1], "cpu")
        scripted = PPO(actor, critic, storage, gamma=algorithm.gamma, lam=algorithm.lam)
        _collect(scripted, envs, script.steps, lambda x: TensorDict({GROUP: x}, batch_size=[script.rows]))
        returns = storage.returns[..., 0]
        return returns - storage.values[..., 0], returns

    return Trainer(
        f"rsl-rl-lib {version('rsl-rl-lib')} PPO",
        obs_shape=(width,),
        initial_state=initial_state,
        act=act,
        evaluate=evaluate,
        record=record,
        advantages=advantages,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.lam,
        parameters=lambda: {
            f"{name}.{key}": x for name, model in models.items() for key, x in model.state_dict().items()
        },
    )


class _ValueIsObservation(MLPModel):
    """A critic for scripts."""

    def forward(self, obs: TensorDict, *_: Any, **__: Any) -> Tensor:
        return self.get_latent(obs)


def _collect(
    algorithm: PPO, envs: list[Any], steps: int, theirs: Any, obs: Any = None, look: Any = None
) -> Any:
    """The package's loop of one rollout, from ``obs`` on; its envs reset themselves. Returns the next obs."""
    if obs is None:
        obs = theirs(torch.as_tensor(np.stack([env.reset()[0] for env in envs])))
    with torch.inference_mode():
        for _ in range(steps):
            if look is not None:
                look()
            actions = algorithm.act(obs)
            found = [env.step(action) for env, action in zip(envs, actions.numpy())]
            reward, terminated, truncated = (torch.tensor([one[i] for one in found]) for i in (1, 2, 3))
            shown = [env.reset()[0] if one[2] or one[3] else one[0] for env, one in zip(envs, found)]
            obs = theirs(torch.as_tensor(np.stack(shown)))
            extras = {"time_outs": truncated & ~terminated}
            algorithm.process_env_step(obs, reward.float(), (terminated | truncated), extras)
        if look is not None:
            look()
        algorithm.compute_returns(obs)
    return obs


def _recorded(algorithm: PPO, theirs: Any, models: dict[str, Any], width: int) -> TracedRollout:
    probes = [Probe(row, _box(width)) for row in range(ROWS)]
    T, B = STEPS, ROWS
    live: list[Any] = []
    like, actions = theirs(torch.zeros(B, width)), list(algorithm.storage.actions.shape[2:])
    storage = RolloutStorage("rl", B, T, like, actions, "cpu")
    with _borrowed(algorithm):
        algorithm.storage = RolloutStorage("rl", B, WARMUP, like, actions, "cpu")
        obs = _collect(algorithm, probes, WARMUP, theirs)
        algorithm.storage = storage
        obs = _collect(algorithm, probes, T, theirs, obs, lambda: live.append(_live(models, B)))
        env = rollout([probe.log for probe in probes], T, WARMUP)
        advantage = storage.returns - storage.values
        observations = storage.observations.clone()
        # The numbers of the steps travel in the place of the observations, and show which step went where.
        for leaf in storage.observations.values():
            leaf.copy_(positions(T, B)[..., None].expand_as(leaf) + 1)
        numbers = [
            torch.where(batch.masks, next(iter(batch.observations.values()))[..., 0].long() - 1, -1)
            for batch in storage.recurrent_mini_batch_generator(B, 1)
        ]
        storage.observations = observations
        states, learned = [], []
        for batch in storage.recurrent_mini_batch_generator(B, 1):
            states.append({name: _rows_first(state) for name, state in zip(models, batch.hidden_states)})
            with torch.no_grad():
                learned.append(_learner(algorithm, batch))
        kept = {"values": storage.values, "log_prob": storage.actions_log_prob, "returns": storage.returns}
        kept = {name: x[..., 0].clone() for name, x in kept.items()}
        final = torch.stack([_value(algorithm, theirs, env, live[t]["critic"], t) for t in range(T)])
        algorithm.critic.reset(hidden_state=_as_theirs(live[T]["critic"]))
        with torch.no_grad():
            bootstrap = algorithm.critic(obs)
    index = torch.cat(numbers, 1)
    return TracedRollout(
        first=env["first"],
        terminated=env["terminated"],
        truncated=env["truncated"],
        obs=env["obs"],
        action=storage.actions.clone(),
        reward=env["reward"],
        value=kept["values"],
        log_prob=kept["log_prob"],
        final_value=final,
        bootstrap=bootstrap.flatten().clone(),
        state=tree.stack(live),
        learner_log_prob=torch.cat([log_prob for log_prob, _ in learned], 1),
        learner_value=torch.cat([value for _, value in learned], 1),
        advantage=advantage[..., 0].clone(),
        returns=kept["returns"],
        chunk_index=index,
        chunk_state=tree.cat(states),
        chunk_first=torch.zeros_like(index, dtype=torch.bool),  # a sequence ends with its episode
        gamma=algorithm.gamma,
        gae_lambda=algorithm.lam,
    )


def _value(algorithm: PPO, theirs: Any, env: dict[str, Tensor], state: Any, t: int) -> Tensor:
    """V(the observation after step t, the critic's state after it), before any reset: [B]."""
    algorithm.critic.reset(hidden_state=_as_theirs(state))
    with torch.no_grad():
        algorithm.critic(theirs(env["obs"][t]))
        return algorithm.critic(theirs(env["final_obs"][t])).flatten()


def _learner(algorithm: PPO, batch: Any) -> tuple[Tensor, Tensor]:
    """Log-probs and values [T, B] of a minibatch, as the package's ``update`` computes them."""
    algorithm.actor(
        batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[0], stochastic_output=True
    )
    log_prob = algorithm.actor.get_output_log_prob(batch.actions)
    value = algorithm.critic(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[1])
    return log_prob, value.squeeze(-1)


@contextmanager
def _borrowed(algorithm: PPO) -> Iterator[None]:
    """Forgets its states before and after; the storage is put back."""
    storage, models = algorithm.storage, (algorithm.actor, algorithm.critic)
    for model in models:
        model.reset()
    try:
        yield
    finally:
        algorithm.storage = storage
        for model in models:
            model.reset()


def _live(models: dict[str, Any], rows: int) -> dict[str, Any]:
    """The input states of the next step [B, layers, H]."""
    found = {}
    for name, model in models.items():
        state = model.get_hidden_state()
        found[name] = _zeros(model, rows) if state is None else _rows_first(state)
    return found


def _zeros(model: Any, rows: int) -> Any:
    rnn = model.rnn.rnn
    leaf = torch.zeros(rows, rnn.num_layers, rnn.hidden_size)
    return (leaf, leaf) if isinstance(rnn, torch.nn.LSTM) else leaf


def _rows_first(state: Any) -> Any:
    """[layers, B, H] -> [B, layers, H]."""
    return tree.map(lambda leaf: leaf.transpose(0, 1).clone(), state)


def _as_theirs(state: Any) -> Any:
    """[B, layers, H] -> [layers, B, H]."""
    return tree.map(lambda leaf: leaf.transpose(0, 1).clone(), state)


def _leaves(state: Any) -> tuple[Tensor, ...]:
    return state if isinstance(state, tuple) else (state,)


def _wide(mask: Tensor, leaf: Tensor) -> Tensor:
    return mask.view(-1, *[1] * (leaf.dim() - 1))


def _box(width: int) -> Any:
    from gymnasium.spaces import Box

    return Box(-2, 2, (width,), np.float32)
