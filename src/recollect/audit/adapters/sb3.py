"""sb3-contrib's RecurrentPPO.

``of_model(model)`` wraps a model with a Box observation space. Its weights, env and rollout are not changed.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.buffers import RecurrentRolloutBuffer
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from stable_baselines3.common.callbacks import CallbackList
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from recollect.audit.adapters.probes import ROWS, STEPS, Probe, Scripted, positions, random_box, rollout
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer

KEPT = ("_last_obs", "_last_episode_starts", "_last_lstm_states", "num_timesteps", "ep_info_buffer")
KEPT += (
    "ep_success_buffer",
    "policy",
    "rollout_buffer",
    "n_epochs",
    "_logger",
    "_n_updates",
    "batch_size",
    "env",
)


def example(**settings: Any) -> Trainer:
    """A small RecurrentPPO, with the package's defaults but for the sizes and these settings."""
    env = DummyVecEnv([Probe])
    sizes = {"lstm_hidden_size": 8, "net_arch": [8]}
    model = RecurrentPPO("MlpLstmPolicy", env, policy_kwargs=sizes, seed=0, device="cpu", **settings)
    return of_model(model)


def example_plain() -> Trainer:
    """The same without the normalisation of advantages."""
    return example(normalize_advantage=False)


def of_model(model: RecurrentPPO) -> Trainer:
    """The abilities of a model, whatever its policy's networks."""
    policy = model.policy
    discrete = hasattr(model.action_space, "n")

    def initial_state(rows: int) -> dict[str, Any]:
        lstm = policy.lstm_actor
        zeros = torch.zeros(rows, lstm.num_layers, lstm.hidden_size)
        return {"pi": (zeros, zeros), "vf": (zeros, zeros)}

    def observations(steps: int, rows: int, generator: torch.Generator) -> Tensor:
        random = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        return torch.as_tensor(random_box(model.observation_space, random, (steps, rows)))

    def act(obs: Tensor, state: Any, first: Tensor) -> tuple[dict[str, Tensor], Any]:
        policy.set_training_mode(False)
        with torch.no_grad():
            action, value, log_prob, after = policy.forward(obs, _as_theirs(state), first.float())
        return {"action": action, "value": value.flatten(), "log_prob": log_prob}, _rows_first(after)

    def evaluate(obs: Tensor, state: Any, first: Tensor, action: Any) -> tuple[dict[str, Tensor], None]:
        policy.set_training_mode(True)
        T, B = first.shape
        by_row = [part.transpose(0, 1).flatten(0, 1) for part in (obs, action, first.float())]  # [B * T, ...]
        value, log_prob, _ = policy.evaluate_actions(by_row[0], by_row[1], _as_theirs(state), by_row[2])
        return {name: x.view(B, T).t() for name, x in (("value", value), ("log_prob", log_prob))}, None

    def record() -> TracedRollout:
        probes = [Probe(row, model.observation_space, model.action_space) for row in range(ROWS)]
        live: list[Any] = []
        with _borrowed(model, probes, STEPS) as buffer:
            forward = policy.forward

            def watched(obs: Tensor, lstm_states: RNNStates, episode_starts: Tensor, **keywords: Any) -> Any:
                live.append(_rows_first(lstm_states))
                return forward(obs, lstm_states, episode_starts, **keywords)

            policy.forward = watched
            try:
                _collect(model, buffer)
            finally:
                del policy.forward
            live.append(_rows_first(model._last_lstm_states))
            return _trace(model, buffer, probes, live, discrete)

    def advantages(script: TracedRollout) -> tuple[Tensor, Tensor]:
        envs = [Scripted(script, row) for row in range(script.rows)]
        with _borrowed(model, envs, script.steps) as buffer:
            states = _as_theirs(initial_state(script.rows))
            model.policy = _ValueIsObservation(states)
            _collect(model, buffer)
            return torch.as_tensor(buffer.advantages), torch.as_tensor(buffer.returns)

    def normalise(advantage: Tensor, valid: Tensor) -> Tensor:
        """By the package's own ``train``: at a ratio of 1 the policy loss has the gradient -A / count."""
        log_prob = torch.zeros(advantage.numel(), requires_grad=True)
        zeros = torch.zeros(advantage.numel())
        sample = SimpleNamespace(
            observations=None,
            actions=zeros,
            lstm_states=None,
            episode_starts=zeros,
            mask=valid.flatten().float(),
            advantages=advantage.flatten().float(),
            old_log_prob=zeros,
            old_values=zeros,
            returns=zeros,
        )
        with _borrowed(model, [Probe()], 1):
            model.policy = _LogProbs(log_prob)
            _train_once(model, sample)
        assert log_prob.grad is not None
        return (-log_prob.grad * valid.sum()).view(advantage.shape)

    def update(script: TracedRollout) -> None:
        """One optimiser step of the package's own ``train`` on the rows as its sequences, with its mask."""

        def by_row(part: Any) -> Tensor:
            return part.transpose(0, 1).flatten(0, 1)  # [T, B, ...] -> [B * T, ...]

        sample = SimpleNamespace(
            observations=by_row(script.obs),
            actions=by_row(script.action),
            lstm_states=_as_theirs(initial_state(script.rows)),
            episode_starts=by_row(script.first.float()),
            mask=by_row(script.is_valid.float()),
            advantages=by_row(script.advantage),
            old_log_prob=by_row(script.log_prob),
            old_values=by_row(script.value),
            returns=by_row(script.returns),
        )
        with _borrowed(model, [Probe()], 1):
            _train_once(model, sample)

    return Trainer(
        f"sb3-contrib {version('sb3-contrib')} RecurrentPPO",
        observations=observations,
        initial_state=initial_state,
        act=act,
        evaluate=evaluate,
        record=record,
        advantages=advantages,
        gamma=model.gamma,
        gae_lambda=model.gae_lambda,
        normalise=normalise if model.normalize_advantage else None,
        parameters=policy.state_dict,
        update=update,
    )


def _train_once(model: RecurrentPPO, sample: Any) -> None:
    """The package's ``train`` with one minibatch."""
    values = np.zeros((1, 1), np.float32)
    model.n_epochs = 1
    model.rollout_buffer = SimpleNamespace(get=lambda batch_size: [sample], values=values, returns=values)
    model.train()


class _ValueIsObservation:
    """A policy whose value is its observation, for the package's own collection of a script."""

    def __init__(self, states: RNNStates):
        self.states = states

    def __call__(self, obs: Tensor, lstm_states: Any, episode_starts: Tensor) -> tuple[Any, ...]:
        zeros = torch.zeros(len(obs))
        return zeros.long(), obs, zeros, self.states

    def predict_values(self, obs: Tensor, lstm_states: Any, episode_starts: Tensor) -> Tensor:
        return obs

    def obs_to_tensor(self, obs: np.ndarray) -> tuple[Tensor, bool]:
        return torch.as_tensor(obs)[None], False

    def set_training_mode(self, mode: bool) -> None: ...

    def reset_noise(self, n_envs: int) -> None: ...


class _LogProbs:
    """A policy with given log-probs, whose optimiser does nothing."""

    def __init__(self, log_prob: Tensor):
        self.log_prob = log_prob
        self.optimizer = SimpleNamespace(zero_grad=lambda: None, step=lambda: None, param_groups=[])

    def evaluate_actions(self, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
        zeros = torch.zeros(len(self.log_prob))
        return zeros, self.log_prob, zeros

    def set_training_mode(self, mode: bool) -> None: ...

    def parameters(self) -> list[Tensor]:
        return []


@contextmanager
def _borrowed(model: RecurrentPPO, envs: list[Any], steps: int) -> Iterator[RecurrentRolloutBuffer]:
    """The model with other envs and an empty buffer for them; everything is put back afterwards."""
    kept = {name: getattr(model, name) for name in KEPT if hasattr(model, name)}
    lstm = model.policy.lstm_actor
    vector = DummyVecEnv([lambda env=env: env for env in envs])
    shape = (lstm.num_layers, len(envs), lstm.hidden_size)
    zeros = torch.zeros(shape, device=model.device)
    model._last_obs = vector.reset()
    model._last_episode_starts = np.ones(len(envs), bool)
    model._last_lstm_states = RNNStates((zeros, zeros), (zeros, zeros))
    model.env, model._logger = vector, Logger(None, [])
    model.ep_info_buffer, model.ep_success_buffer = deque(maxlen=1), deque(maxlen=1)
    try:
        yield RecurrentRolloutBuffer(
            steps,
            vector.observation_space,
            vector.action_space,
            (steps, *shape),
            model.device,
            gae_lambda=model.gae_lambda,
            gamma=model.gamma,
            n_envs=len(envs),
        )
    finally:
        for name, value in kept.items():
            setattr(model, name, value)


def _collect(model: RecurrentPPO, buffer: RecurrentRolloutBuffer) -> None:
    callback = CallbackList([])
    callback.init_callback(model)
    space, model.action_space = model.action_space, buffer.action_space
    try:
        model.collect_rollouts(model.env, callback, buffer, buffer.buffer_size)
    finally:
        model.action_space = space


def _trace(
    model: RecurrentPPO, buffer: RecurrentRolloutBuffer, probes: list[Probe], live: list[Any], discrete: bool
) -> TracedRollout:
    """The rollout as it is in the buffer, and the sequences of one epoch."""
    T, B = buffer.buffer_size, len(probes)
    env = rollout([probe.log for probe in probes], T)
    kept = {
        name: torch.as_tensor(getattr(buffer, name).copy()) for name in ("actions", "values", "log_probs")
    }
    kept |= {name: torch.as_tensor(getattr(buffer, name).copy()) for name in ("advantages", "returns")}
    state = _stacked(live)  # [T + 1, B, ...]
    critic = [tuple(leaf[t].transpose(0, 1).contiguous() for leaf in state["vf"]) for t in range(1, T + 1)]
    policy = model.policy
    policy.set_training_mode(False)
    goes_on = torch.zeros(B)
    with torch.no_grad():
        final_value = [policy.predict_values(env["final_obs"][t], critic[t], goes_on) for t in range(T)]
        last_obs = policy.obs_to_tensor(model._last_obs)[0]
        bootstrap = policy.predict_values(
            last_obs, critic[-1], torch.as_tensor(model._last_episode_starts).float()
        )
    # The numbers of the steps travel in the place of the returns, and show which step went where.
    buffer.returns = positions(T, B).numpy().astype(np.float32)
    index, states, starts = [], [], []
    learner = torch.zeros(2, T * B)
    policy.set_training_mode(True)
    for sample in buffer.get(T * B // 4):
        sequences = sample.lstm_states.pi[0].shape[1]
        mask = sample.mask > 0
        number = torch.where(mask, sample.returns, -1).long()
        index.append(number.view(sequences, -1).t())
        starts.append(sample.episode_starts.view(sequences, -1).t() > 0)
        states.append(_rows_first(sample.lstm_states))
        actions = sample.actions.long().flatten() if discrete else sample.actions
        with torch.no_grad():
            value, log_prob, _ = policy.evaluate_actions(
                sample.observations, actions, sample.lstm_states, sample.episode_starts
            )
        learner[:, number[mask]] = torch.stack([value.flatten(), log_prob])[:, mask]
    longest = max(map(len, index))
    padded = [torch.nn.functional.pad(one, (0, 0, 0, longest - len(one)), value=-1) for one in index]
    resets = [torch.nn.functional.pad(one, (0, 0, 0, longest - len(one))) for one in starts]
    names = {"pi": None, "vf": None}
    joined = {name: tuple(torch.cat([s[name][i] for s in states]) for i in (0, 1)) for name in names}
    return TracedRollout(
        first=env["first"],
        terminated=env["terminated"],
        truncated=env["truncated"],
        obs=env["obs"],
        action=kept["actions"].squeeze(-1),
        reward=env["reward"],
        value=kept["values"],
        log_prob=kept["log_probs"],
        final_value=torch.stack(final_value).squeeze(-1),
        bootstrap=bootstrap.flatten(),
        state=state,
        learner_value=learner[0].view(T, B),
        learner_log_prob=learner[1].view(T, B),
        advantage=kept["advantages"],
        returns=kept["returns"],
        chunk_index=torch.cat(padded, 1),
        chunk_state=joined,
        chunk_first=torch.cat(resets, 1),
        gamma=model.gamma,
        gae_lambda=model.gae_lambda,
    )


def _rows_first(states: RNNStates) -> dict[str, Any]:
    """[layers, B, H] -> [B, layers, H]."""
    return {
        name: tuple(leaf.transpose(0, 1).clone() for leaf in getattr(states, name)) for name in ("pi", "vf")
    }


def _as_theirs(state: Any) -> RNNStates:
    """[B, layers, H] -> [layers, B, H]."""
    parts = (tuple(leaf.transpose(0, 1).contiguous() for leaf in state[name]) for name in ("pi", "vf"))
    return RNNStates(*parts)


def _stacked(states: list[Any]) -> dict[str, Any]:
    return {name: tuple(torch.stack([s[name][i] for s in states]) for i in (0, 1)) for name in ("pi", "vf")}
