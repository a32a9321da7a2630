"""skrl's PPO_RNN.

``of_agent(agent)`` wraps an agent whose models are written as in the package's recurrent examples: an
attribute ``sequence_length``, and in training mode sequences that begin at their first stored state. The
auditor changes ``sequence_length`` while it looks, and the agent must not have been trained yet.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from skrl.agents.torch.ppo import PPO_RNN
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import Tensor, nn

from recollect.audit.adapters.probes import ROWS, STEPS, Probe, Scripted, positions, random_box, rollout
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer

SEQUENCE = 8
ACTIONS = gym.spaces.Box(-1, 1, (2,), np.float32)


class _Recurrent(Model):
    """A GRU in the style of the package's examples."""

    def __init__(self, spaces: tuple[Any, Any], rows: int, outputs: int, hidden: int = 8):
        Model.__init__(self, observation_space=spaces[0], action_space=spaces[1], device="cpu")
        self.rows, self.hidden, self.sequence_length = rows, hidden, SEQUENCE
        self.gru = nn.GRU(self.num_observations, hidden, batch_first=True)
        self.net = nn.Linear(hidden, outputs)

    def get_specification(self) -> dict[str, Any]:
        """The shape of the state, as the package asks for it."""
        return {"rnn": {"sequence_length": self.sequence_length, "sizes": [(1, self.rows, self.hidden)]}}

    def _unroll(self, inputs: dict[str, Any]) -> tuple[Tensor, Tensor]:
        x, state = inputs["observations"], inputs["rnn"][0]
        if not self.training:
            y, state = self.gru(x[:, None], state)
            return self.net(y[:, 0]), state
        L = self.sequence_length
        x = x.view(-1, L, x.shape[-1])
        state = state.view(1, -1, L, self.hidden)[:, :, 0].contiguous()
        ended = (inputs["terminated"] | inputs["truncated"]).view(-1, L)
        outputs = []
        for t in range(L):
            y, state = self.gru(x[:, t : t + 1], state)
            outputs.append(y)
            state = torch.where(ended[None, :, t, None], 0.0, state)
        return self.net(torch.cat(outputs, 1).flatten(0, 1)), state


class _Policy(GaussianMixin, _Recurrent):
    def __init__(self, spaces: tuple[Any, Any], rows: int):
        _Recurrent.__init__(self, spaces, rows, spaces[1].shape[0])
        GaussianMixin.__init__(self)
        self.log_std = nn.Parameter(torch.zeros(spaces[1].shape[0]))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Means, and the next state."""
        mean, state = self._unroll(inputs)
        return mean, {"log_std": self.log_std, "rnn": [state]}


class _Value(DeterministicMixin, _Recurrent):
    def __init__(self, spaces: tuple[Any, Any], rows: int):
        _Recurrent.__init__(self, spaces, rows, 1)
        DeterministicMixin.__init__(self)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        """Values, and the next state."""
        value, state = self._unroll(inputs)
        return value, {"rnn": [state]}


class _ValueIsObservation(DeterministicMixin, Model):
    """A critic for scripts."""

    def __init__(self, space: Any):
        Model.__init__(self, observation_space=space, action_space=ACTIONS, device="cpu")
        DeterministicMixin.__init__(self)
        self.weight = nn.Parameter(torch.ones(1))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        return self.weight * inputs["observations"], {}


class _FixedPolicy(GaussianMixin, Model):
    """A policy for scripts."""

    def __init__(self, space: Any):
        Model.__init__(self, observation_space=space, action_space=ACTIONS, device="cpu")
        GaussianMixin.__init__(self)
        self.weight = nn.Parameter(torch.zeros(2))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        return self.weight.expand(len(inputs["observations"]), 2), {"log_std": self.weight}


def example(**settings: Any) -> Trainer:
    """A small PPO_RNN, with the package's defaults but for the sizes; ``settings`` are of its config."""
    torch.manual_seed(1)
    env = Probe(0, None, ACTIONS)
    spaces = (env.observation_space, ACTIONS)
    return of_models(_Policy(spaces, ROWS), _Value(spaces, ROWS), settings)


def of_models(policy: Any, value: Any, settings: dict[str, Any] | None = None) -> Trainer:
    """The abilities of a PPO_RNN with these two models and settings of its config.

    ``get_specification`` of both models must speak of ``probes.ROWS`` envs.
    """
    logging.getLogger("skrl").setLevel(logging.ERROR)
    settings = settings or {}
    sizes = [model.get_specification()["rnn"]["sizes"] for model in (policy, value)]
    names = ("policy", "value")

    def initial_state(rows: int) -> dict[str, tuple[Tensor, ...]]:
        return {
            name: tuple(torch.zeros(rows, layers, width) for layers, _, width in shapes)
            for name, shapes in zip(names, sizes)
        }

    def observations(steps: int, rows: int, generator: torch.Generator) -> Tensor:
        random = np.random.default_rng(int(torch.randint(2**31, (1,), generator=generator)))
        return torch.as_tensor(random_box(policy.observation_space, random, (steps, rows)))

    def act(obs: Tensor, state: Any, first: Tensor) -> tuple[dict[str, Tensor], Any]:
        """The agent sets the states of finished rows to zero before the next step."""
        policy.enable_training_mode(False)
        value.enable_training_mode(False)
        state = {
            name: [torch.where(first[:, None, None], 0.0, leaf) for leaf in state[name]] for name in names
        }
        with torch.no_grad():
            action, acted = policy.act(
                {"observations": obs, "rnn": _as_theirs(state["policy"])}, role="policy"
            )
            valued, after = value.act({"observations": obs, "rnn": _as_theirs(state["value"])}, role="value")
        outputs = {"action": action, "log_prob": acted["log_prob"].flatten(), "value": valued.flatten()}
        return outputs, {"policy": _rows_first(acted["rnn"]), "value": _rows_first(after["rnn"])}

    def evaluate(obs: Tensor, state: Any, first: Tensor, action: Any) -> tuple[dict[str, Tensor], None]:
        T, B = first.shape
        ended = torch.cat([first[1:], torch.zeros(1, B, dtype=torch.bool)])
        flat = {"observations": _by_row(obs), "taken_actions": _by_row(action)}
        flat |= {"terminated": _by_row(ended)[:, None], "truncated": torch.zeros(B * T, 1, dtype=torch.bool)}
        outputs = {}
        for name, model in zip(names, (policy, value)):
            start = [torch.where(first[0, :, None, None], 0.0, leaf) for leaf in state[name]]
            # A state per step, of which only that of the first step is used: [layers, B * T, H].
            stored = [leaf.repeat_interleave(T, 0).transpose(0, 1) for leaf in start]
            before, model.sequence_length = model.sequence_length, T
            model.enable_training_mode(True)
            try:
                got, more = model.act({**flat, "rnn": stored}, role=name)
            finally:
                model.sequence_length = before
            outputs[name] = more["log_prob"] if name == "policy" else got
        return {"log_prob": _steps(outputs["policy"], T), "value": _steps(outputs["value"], T)}, None

    def record() -> TracedRollout:
        probes = [Probe(row, policy.observation_space, policy.action_space) for row in range(ROWS)]
        return _recorded(policy, value, probes, settings)

    def advantages(script: TracedRollout) -> tuple[Tensor, Tensor]:
        envs = [Scripted(script, row) for row in range(script.rows)]
        space = Scripted.observation_space
        for env in envs:
            env.action_space = ACTIONS
        agent, _ = _run(_FixedPolicy(space), _ValueIsObservation(space), envs, script.steps, settings)
        returns = agent.memory.get_tensor_by_name("returns")[..., 0]
        return returns - agent.values, returns

    cfg = _config(settings, 1)
    return Trainer(
        f"skrl {version('skrl')} PPO_RNN",
        observations=observations,
        initial_state=initial_state,
        act=act,
        evaluate=evaluate,
        record=record,
        advantages=advantages,
        gamma=cfg["discount_factor"],
        gae_lambda=cfg["gae_lambda"],
        parameters=lambda: {**policy.state_dict(prefix="policy."), **value.state_dict(prefix="value.")},
    )


class _Watched(PPO_RNN):
    """Calls ``look`` between the advantages and the first optimiser step."""

    look: Callable[[Any], None] = staticmethod(lambda agent: None)

    def update(self, **keywords: Any) -> None:
        self.values = self.memory.get_tensor_by_name("values")[..., 0].clone()
        sample_all = self.memory.sample_all

        def watched(*args: Any, **more: Any) -> Any:
            self.memory.sample_all = sample_all
            self.look(self)
            return sample_all(*args, **more)

        self.memory.sample_all = watched
        super().update(**keywords)


def _config(settings: dict[str, Any], steps: int) -> dict[str, Any]:
    defaults = {"discount_factor": 0.99, "gae_lambda": 0.95}
    quiet = {"write_interval": 0, "checkpoint_interval": 0}
    fixed = {"rollouts": steps, "learning_epochs": 1, "mini_batches": 1, "learning_rate": 0.0}
    return {**defaults, **settings, **fixed, "experiment": quiet}


def _run(
    policy: Any, value: Any, envs: list[Any], steps: int, settings: dict[str, Any], look: Any = None
) -> tuple[Any, list[Any]]:
    """One rollout and an update with a learning rate of 0. Returns the agent and the live states."""
    vector = SyncVectorEnv([lambda env=env: env for env in envs], autoreset_mode=AutoresetMode.SAME_STEP)
    env = wrap_env(vector, wrapper="gymnasium", verbose=False)
    agent = _Watched(
        models={"policy": policy, "value": value},
        memory=RandomMemory(memory_size=steps, num_envs=len(envs), device=env.device),
        cfg=_config(settings, steps),
        observation_space=env.observation_space,
        action_space=env.action_space,
        device=env.device,
    )
    if look is not None:
        agent.look = look
    live: list[Any] = []
    for name, model in (("policy", policy), ("value", value)):
        model.act = _watching(model.act, model, name, live)
    try:
        SequentialTrainer(
            env=env, agents=agent, cfg={"timesteps": steps, "headless": True, "disable_progressbar": True}
        ).train()
    finally:
        del policy.act, value.act
    return agent, live


def _watching(act: Any, model: Any, name: str, live: list[Any]) -> Any:
    def watched(inputs: dict[str, Any], *, role: str = "") -> Any:
        if "rnn" in inputs and not model.training:
            live.append((name, _rows_first(inputs["rnn"])))
        return act(inputs, role=role)

    return watched


def _recorded(policy: Any, value: Any, probes: list[Probe], settings: dict[str, Any]) -> TracedRollout:
    found: dict[str, Any] = {}

    def look(agent: Any) -> None:
        memory, T, B = agent.memory, STEPS, len(probes)
        kept = {name: memory.get_tensor_by_name(name).clone() for name in ("returns", "log_prob", "actions")}
        found.update(kept)
        # The numbers of the steps travel in the place of the returns, and show which step went where.
        memory.get_tensor_by_name("returns").copy_(positions(T, B)[..., None].float())
        names = ["returns", "observations", "actions", "terminated", "truncated"]
        L, rnn = agent._rnn_sequence_length, agent._rnn_tensors_names
        (batch,) = memory.sample_all(names=names, mini_batches=1, sequence_length=L)
        (states,) = memory.sample_all(names=rnn, mini_batches=1, sequence_length=L)
        memory.get_tensor_by_name("returns").copy_(kept["returns"])
        number, obs, actions, terminated, truncated = batch
        flat = number.long().flatten()
        found["chunk_index"] = flat.view(-1, L).t()
        ended = (terminated | truncated).view(-1, L)
        found["chunk_first"] = torch.cat([torch.zeros_like(ended[:, :1]), ended[:, :-1]], 1).t()
        inputs = {
            "observations": obs,
            "taken_actions": actions,
            "terminated": terminated,
            "truncated": truncated,
        }
        for name, model in (("policy", policy), ("value", value)):
            stored = [one for one, key in zip(states, rnn) if name in key]
            found[f"chunk_{name}"] = tuple(one[::L] for one in stored)  # [N * L, layers, H] -> [N, layers, H]
            model.enable_training_mode(True)
            with torch.no_grad():
                got, more = model.act({**inputs, "rnn": [one.transpose(0, 1) for one in stored]}, role=name)
            learner = torch.zeros(T * B)
            learner[flat] = (more["log_prob"] if name == "policy" else got).flatten()
            found[f"learner_{name}"] = learner.view(T, B)

    agent, seen = _run(policy, value, probes, STEPS, settings, look)
    env = rollout([probe.log for probe in probes], STEPS)
    by_name = {name: [state for whose, state in seen if whose == name] for name in ("policy", "value")}
    value.enable_training_mode(False)
    with torch.no_grad():
        final = [
            value.act(
                {"observations": env["final_obs"][t], "rnn": _as_theirs(_after(value, by_name, env, t))}
            )[0]
            for t in range(STEPS)
        ]
    # After the last step the critic acts once more, for the bootstrap; the policy does not.
    last_policy = _rows_first(agent._rnn_initial_states["policy"])
    states = {"policy": [*by_name["policy"][:STEPS], last_policy], "value": by_name["value"][: STEPS + 1]}
    with torch.no_grad():
        last = {"observations": agent._current_next_observations, "rnn": _as_theirs(states["value"][-1])}
        bootstrap = value.act(last, role="value")[0]
    cfg = agent.cfg
    return TracedRollout(
        first=env["first"],
        terminated=env["terminated"],
        truncated=env["truncated"],
        obs=env["obs"],
        action=found["actions"],
        reward=env["reward"],
        value=agent.values,
        log_prob=found["log_prob"][..., 0],
        final_value=torch.stack(final)[..., 0],
        bootstrap=bootstrap.flatten(),
        state={name: _stacked(each) for name, each in states.items()},
        learner_log_prob=found["learner_policy"],
        learner_value=found["learner_value"],
        advantage=found["returns"][..., 0] - agent.values,
        returns=found["returns"][..., 0],
        chunk_index=found["chunk_index"],
        chunk_state={"policy": found["chunk_policy"], "value": found["chunk_value"]},
        chunk_first=found["chunk_first"],
        gamma=cfg.discount_factor,
        gae_lambda=cfg.gae_lambda,
    )


def _after(value: Any, by_name: dict[str, list[Any]], env: dict[str, Tensor], t: int) -> tuple[Tensor, ...]:
    """The critic's state after step t, before any reset."""
    inputs = {"observations": env["obs"][t], "rnn": _as_theirs(by_name["value"][t])}
    return _rows_first(value.act(inputs, role="value")[1]["rnn"])


def _stacked(states: list[Any]) -> tuple[Tensor, ...]:
    return tuple(torch.stack(leaves) for leaves in zip(*states))


def _rows_first(states: list[Tensor]) -> tuple[Tensor, ...]:
    """[layers, B, H] -> [B, layers, H]."""
    return tuple(leaf.transpose(0, 1).clone() for leaf in states)


def _as_theirs(states: Any) -> list[Tensor]:
    """[B, layers, H] -> [layers, B, H]."""
    return [leaf.transpose(0, 1).contiguous() for leaf in states]


def _by_row(x: Tensor) -> Tensor:
    """[T, B, ...] -> [B * T, ...]."""
    return x.transpose(0, 1).flatten(0, 1)


def _steps(x: Tensor, T: int) -> Tensor:
    """[B * T, 1] -> [T, B]."""
    return x.view(-1, T).t()
