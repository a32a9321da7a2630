# pyright: reportMissingImports=false
"""Sample Factory's APPO with ``use_rnn``.

``of_settings(name=value, ...)`` takes settings of the package's command line. The auditor trains for two
rollouts on its own env, in one process and with a learning rate of 0.
"""

from __future__ import annotations

import logging
import tempfile
from contextlib import nullcontext
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import torch
from sample_factory.algo.learning.learner import Learner
from sample_factory.algo.learning.rnn_utils import build_core_out_from_seq, build_rnn_inputs
from sample_factory.algo.utils.misc import ExperimentStatus
from sample_factory.algo.utils.tensor_dict import TensorDict
from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
from sample_factory.envs.env_utils import register_env
from sample_factory.model.actor_critic import create_actor_critic
from sample_factory.model.model_utils import get_rnn_size
from sample_factory.train import make_runner
from sample_factory.utils.utils import log
from torch import Tensor

from recollect.audit.adapters.probes import POISON, ROWS, STEPS, Probe, rollout
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer
from recollect.errors import RecollectError

ENV = "recollect-audit-probe"
PROBES: dict[int, Probe] = {}
"""The probes of the last training, by row."""


def make_probe(name: str, cfg: Any = None, env_config: Any = None, render_mode: str | None = None) -> Probe:
    """At module level, since the package also makes an env in a process of its own."""
    row = 0 if env_config is None else int(env_config["env_id"])
    PROBES[row] = Probe(row)
    PROBES[row].render_mode = None
    return PROBES[row]


def example(**settings: Any) -> Trainer:
    """The package's defaults but for the sizes; ``settings`` are of its command line."""
    return of_settings(**{"rnn_size": 8, "encoder_mlp_layers": 8, "seed": 1, **settings})


def example_plain() -> Trainer:
    """Without the normalisation of inputs, and with bootstraps at time limits."""
    return example(normalize_input=False, value_bootstrap=True)


def of_settings(**settings: Any) -> Trainer:
    """The abilities of a model and learner with these settings."""
    log.setLevel(logging.ERROR)
    register_env(ENV, make_probe)
    probe = Probe()
    spaces = (gym.spaces.Dict({"obs": probe.observation_space}), probe.action_space)
    cfg = _config("unused", settings)
    torch.manual_seed(cfg.seed or 0)
    model = create_actor_critic(cfg, *spaces)
    size = get_rnn_size(cfg)

    def act(obs: Tensor, state: Tensor, first: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """The sampler sets the states of new episodes to zero."""
        model.eval()
        with torch.no_grad():
            normalized = model.normalize_obs({"obs": obs.clone()})
            found = model(normalized, torch.where(first[:, None], 0.0, state))
        outputs = {
            "action": found["actions"].flatten(),
            "log_prob": found["log_prob_actions"],
            "value": found["values"],
        }
        outputs["logits"] = found["action_logits"]
        return outputs, found["new_rnn_states"]

    def evaluate(obs: Tensor, state: Tensor, first: Tensor, action: Any) -> tuple[dict[str, Tensor], None]:
        T, B = first.shape
        model.eval()  # so that the statistics of the inputs stay
        ended = torch.cat([first[1:], torch.zeros(1, B, dtype=torch.bool)])
        start = torch.where(first[0, :, None], 0.0, state)
        stored = torch.stack([start, *[torch.zeros_like(start)] * (T - 1)], 1).flatten(0, 1)  # [B * T, H]
        head = model.forward_head(model.normalize_obs({"obs": obs.transpose(0, 1).flatten(0, 1).clone()}))
        sequence, states, inverted = build_rnn_inputs(head, ended.t().flatten().float(), stored, T)
        core, _ = model.forward_core(sequence, states)
        found = model.forward_tail(
            build_core_out_from_seq(core, inverted), values_only=False, sample_actions=False
        )
        log_prob = model.action_distribution().log_prob(action.t().flatten()[:, None]).flatten()
        flat = {"log_prob": log_prob, "value": found["values"], "logits": found["action_logits"]}
        return {name: x.view(B, T, *x.shape[1:]).transpose(0, 1) for name, x in flat.items()}, None

    def advantages(script: TracedRollout) -> tuple[Tensor, Tensor]:
        chosen = {**settings, "normalize_returns": False, "normalize_input": False}
        learner = _learner(_config("unused", chosen), _ValueIsObservation())
        batch, _, _ = learner._prepare_batch(_scripted(script))
        return tuple(batch[name].view(script.rows, script.steps).t() for name in ("advantages", "returns"))

    def normalise(advantage: Tensor, valid: Tensor) -> Tensor:
        """By the package's own loss: at a ratio of 1 the policy loss has the gradient -A / count."""
        log_prob = torch.zeros(advantage.numel(), requires_grad=True)
        learner = _learner(_config("unused", {**settings, "use_rnn": False}), _LogProbs(log_prob))
        zeros = torch.zeros(advantage.numel())
        minibatch = _Batch(
            valids=valid.flatten(),
            normalized_obs=zeros[:, None],
            rnn_states=zeros[:, None],
            actions=zeros,
            action_logits=zeros[:, None],
            log_prob_actions=zeros,
            advantages=advantage.flatten(),
            returns=zeros,
        )
        found = learner._calculate_losses(minibatch, int((~valid).sum()))
        found[1].backward()
        assert log_prob.grad is not None
        return (-log_prob.grad * valid.sum()).view(advantage.shape)

    return Trainer(
        f"sample-factory {version('sample-factory')} APPO",
        obs_shape=(3,),
        initial_state=lambda rows: torch.zeros(rows, size),
        act=act,
        evaluate=evaluate,
        record=lambda: _recorded(settings),
        advantages=advantages,
        gamma=cfg.gamma,
        gae_lambda=cfg.gae_lambda,
        normalise=normalise,
        parameters=model.state_dict,
    )


class _Batch(SimpleNamespace):
    """A minibatch whose parts are also items."""

    def __getitem__(self, name: str) -> Any:
        return torch.zeros_like(self.returns) if name == "values" else getattr(self, name)


class _ValueIsObservation:
    """A model for scripts."""

    training = True

    def device_for_input_tensor(self, name: str) -> torch.device:
        return torch.device("cpu")

    def type_for_input_tensor(self, name: str) -> torch.dtype:
        return torch.float32

    def normalize_obs(self, obs: Any) -> Any:
        return obs

    def __call__(self, obs: Any, states: Tensor, values_only: bool = False) -> dict[str, Tensor]:
        return {"values": obs["obs"][:, 0]}


class _LogProbs:
    """A model with given log-probs."""

    action_space = None

    def __init__(self, log_prob: Tensor):
        self.log_prob = log_prob

    def forward_head(self, obs: Tensor) -> Tensor:
        return obs

    def forward_core(self, head: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        return head, states

    def forward_tail(self, core: Tensor, **_: Any) -> dict[str, Tensor]:
        return {"values": torch.zeros(len(core))}

    def action_distribution(self) -> Any:
        return SimpleNamespace(log_prob=lambda actions: self.log_prob)


def _learner(cfg: Any, model: Any) -> Any:
    """The package's learner around another model."""
    learner = object.__new__(Learner)
    learner.cfg, learner.actor_critic, learner.device = cfg, model, torch.device("cpu")
    learner.policy_id, learner.train_step = 0, 0
    learner.param_server = SimpleNamespace(policy_lock=nullcontext())
    learner.timing = SimpleNamespace(add_time=lambda name: nullcontext())
    learner.exploration_loss_func = lambda *_: 0.0
    learner.kl_loss_func = lambda *_: (None, 0.0)
    return learner


def _scripted(script: TracedRollout) -> Any:
    """The script as a batch of the package [B, T + 1], whose observations are the values to be predicted."""
    T, B = script.steps, script.rows
    assert script.value is not None
    assert script.reward is not None
    last = torch.full((B,), POISON) if script.bootstrap is None else script.bootstrap
    values = torch.cat([script.value, last[None]]).t().contiguous()  # [B, T + 1]
    done = (script.terminated | script.truncated).t().contiguous()
    zeros = torch.zeros(B, T)
    return TensorDict(
        obs=TensorDict(obs=values[..., None].clone()),
        rnn_states=torch.zeros(B, T + 1, 1),
        values=values.clone(),
        valids=torch.ones(B, T + 1, dtype=torch.bool),
        policy_id=zeros.int(),
        policy_version=zeros.int(),
        rewards=script.reward.t().clone(),
        dones=done,
        time_outs=script.truncated.t().contiguous() & ~script.terminated.t(),
        actions=zeros.clone(),
        log_prob_actions=zeros.clone(),
    )


def _config(folder: str, settings: dict[str, Any]) -> Any:
    fixed = {"env": ENV, "experiment": "audit", "train_dir": folder, "device": "cpu", "use_rnn": True}
    fixed |= {"serial_mode": True, "async_rl": False, "num_workers": 1, "num_envs_per_worker": ROWS}
    fixed |= {"worker_num_splits": 1, "rollout": STEPS, "recurrence": STEPS, "batch_size": STEPS * ROWS}
    fixed |= {"num_epochs": 1, "train_for_env_steps": 2 * STEPS * ROWS, "learning_rate": 0.0}
    argv = [f"--{name}={value}" for name, value in {**fixed, **settings}.items()]
    return parse_full_cfg(parse_sf_args(argv)[0], argv)


def _recorded(settings: dict[str, Any]) -> TracedRollout:
    """The second rollout of a training, which begins inside episodes."""
    batches: list[dict[str, Any]] = []
    prepare, calculate = Learner._prepare_batch, Learner._calculate_losses

    def watched_prepare(self: Any, batch: Any) -> Any:
        kept = {name: batch[name].clone() for name in ("actions", "log_prob_actions", "values", "rnn_states")}
        batches.append({**kept, "obs": batch["obs"]["obs"].clone()})
        return prepare(self, batch)

    def watched_calculate(self: Any, minibatch: Any, invalid: int) -> Any:
        found = calculate(self, minibatch, invalid)
        batches[-1].setdefault("ratio", found[-1]["ratio"].detach().clone())
        batches[-1].setdefault("learned", found[-1]["values"].detach().clone())
        return found

    Learner._prepare_batch, Learner._calculate_losses = watched_prepare, watched_calculate
    try:
        with tempfile.TemporaryDirectory(prefix="sample-factory-") as folder:
            _, runner = make_runner(_config(folder, settings))
            if runner.init() != ExperimentStatus.SUCCESS or runner.run() != ExperimentStatus.SUCCESS:
                raise RecollectError("Sample Factory's training of two rollouts failed: its log says why")
    finally:
        Learner._prepare_batch, Learner._calculate_losses = prepare, calculate
    batch = batches[1]
    logs = [PROBES[row].log for row in sorted(PROBES)]
    places = {tuple(obs.tolist()): (row, t) for row, log in enumerate(logs) for t, obs in enumerate(log.obs)}
    starts = dict(
        places[tuple(obs.tolist())] for obs in batch["obs"][:, 0]
    )  # where each row's trajectory starts
    order = list(starts)
    seen = rollout(logs, STEPS, [starts[row] for row in range(ROWS)])

    def by_step(x: Tensor) -> Tensor:
        """[N, T, ...] or [N * T] in the order of trajectories -> [T, B, ...]."""
        x = x.view(ROWS, -1, *batch["actions"].shape[2:]) if x.dim() == 1 else x
        found = torch.empty_like(x)
        found[order] = x
        return found.transpose(0, 1)

    log_prob = by_step(batch["log_prob_actions"])
    states = by_step(batch["rnn_states"])
    trace = TracedRollout(
        first=seen["first"],
        terminated=seen["terminated"],
        truncated=seen["truncated"],
        obs=seen["obs"],
        action=by_step(batch["actions"]).squeeze(-1),
        reward=seen["reward"],
        value=by_step(batch["values"][:, :-1]),
        log_prob=log_prob,
        state=states,
        learner_log_prob=log_prob + by_step(batch["ratio"].view(ROWS, -1)).log(),
        learner_value=by_step(batch["learned"].view(ROWS, -1)),
        chunk_index=torch.arange(STEPS)[:, None] * ROWS + torch.tensor(order),
        chunk_state=batch["rnn_states"][:, 0],
    )
    # With a normaliser of inputs, acting was done by other statistics than those of a fresh model.
    return trace if not settings.get("normalize_input", True) else trace.but(state=None)
