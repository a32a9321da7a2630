# pyright: reportMissingImports=false
"""RLlib's PPO with ``use_lstm``, in its new API stack.

``of_config(config)`` builds an algorithm of the config on the auditor's env, in one process; the config's
env is not used, and its observations must be numbers [n].
"""

from __future__ import annotations

import logging
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.tune.registry import register_env
from torch import Tensor
from torch.distributions import Categorical

from recollect.audit.adapters.probes import POISON, Probe, rollout
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer
from recollect.base import tree

STEPS, SEQUENCE = 60, 4
"""Of a recorded rollout of one row; of the example's sequences."""
ENV = "recollect-audit-probe"


def example() -> Trainer:
    """PPO with the package's defaults but for the sizes."""
    model = DefaultModelConfig(use_lstm=True, max_seq_len=SEQUENCE, lstm_cell_size=8, fcnet_hiddens=[8])
    return of_config(PPOConfig().rl_module(model_config=model).debugging(seed=1))


def of_config(config: PPOConfig) -> Trainer:
    """The abilities of PPO with this config."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    register_env(ENV, lambda _: Probe())
    settings: Any = (
        config.copy(copy_frozen=False)
        .environment(ENV)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=1, rollout_fragment_length=STEPS)
        .learners(num_learners=0)
        .training(train_batch_size_per_learner=STEPS, minibatch_size=STEPS, num_epochs=1, lr=0.0)
    )
    algorithm = settings.build_algo()
    learner = algorithm.learner_group._learner
    module = learner.module[DEFAULT_MODULE_ID].unwrapped()
    start = tree.map(torch.as_tensor, module.get_initial_state())
    longest = module.model_config["max_seq_len"]

    def initial_state(rows: int) -> dict[str, Tensor]:
        return {name: leaf.expand(rows, *leaf.shape).clone() for name, leaf in start.items()}

    def reset(state: Any, first: Tensor) -> dict[str, Tensor]:
        """The connectors begin every episode with the initial state."""
        fresh = initial_state(len(first))
        wide = {name: first.view(-1, *[1] * (leaf.dim() - 1)) for name, leaf in state.items()}
        return {name: torch.where(wide[name], fresh[name], leaf) for name, leaf in state.items()}

    def act(obs: Tensor, state: Any, first: Tensor) -> tuple[dict[str, Tensor], Any]:
        batch = {Columns.OBS: obs[:, None], Columns.STATE_IN: reset(state, first)}
        with torch.no_grad():
            found = module.forward_exploration(dict(batch))
            value = module.compute_values(dict(batch))[:, 0]
        logits = found[Columns.ACTION_DIST_INPUTS][:, 0]
        chosen = Categorical(logits=logits)
        action = chosen.sample()
        outputs = {"action": action, "log_prob": chosen.log_prob(action), "logits": logits, "value": value}
        return outputs, found[Columns.STATE_OUT]

    def evaluate(obs: Tensor, state: Any, first: Tensor, action: Any) -> tuple[dict[str, Tensor], None]:
        """Each episode's part is a sequence of its own, as the package's connectors make them."""
        state = reset(state, first[0])
        rows = []
        for row in range(first.shape[1]):
            parts, opens = [], [0, *first[1:, row].nonzero().flatten().add(1).tolist(), len(first)]
            fresh = initial_state(first.shape[1])
            for begin, end in pairwise(opens):
                source = state if begin == 0 else fresh
                before = {name: leaf[row : row + 1] for name, leaf in source.items()}
                batch = {Columns.OBS: obs[None, begin:end, row], Columns.STATE_IN: before}
                parts.append(_learned(module, batch, action[None, begin:end, row]))
            rows.append({name: torch.cat([part[name][0] for part in parts]) for name in parts[0]})
        return {name: torch.stack([one[name] for one in rows], 1) for name in rows[0]}, None

    def record() -> TracedRollout:
        return _recorded(algorithm, module, longest)

    def batch_of(script: TracedRollout, at_end: float) -> list[dict[str, Any]]:
        """What the package's connectors make of the rows of a script: one entry for each episode."""
        compute = module.compute_values
        module.compute_values = lambda batch, embeddings=None: batch[Columns.OBS][..., 0]
        try:
            episodes, where = _episodes(script, start, at_end)
            batch = learner._learner_connector(
                rl_module=learner.module, batch={}, episodes=episodes, shared_data={}, metrics=None
            )[DEFAULT_MODULE_ID]
        finally:
            module.compute_values = compute
        lengths = [len(episode) for episode in episodes]
        names = (Postprocessing.ADVANTAGES, Postprocessing.VALUE_TARGETS)
        columns = {name: _unpadded(batch[name], lengths, longest) for name in names}
        return [
            {"where": where[i], **{name: columns[name][i][:-1] for name in names}} for i in range(len(where))
        ]

    def spread(script: TracedRollout, name: str, at_end: float = POISON) -> Tensor:
        found = torch.zeros(script.steps, script.rows)
        for one in batch_of(script, at_end):
            begin, end, row = one["where"]
            found[begin:end, row] = torch.as_tensor(one[name])
        return found

    def advantages(script: TracedRollout) -> tuple[Tensor, Tensor]:
        target = spread(script, Postprocessing.VALUE_TARGETS)
        assert script.value is not None
        return target - script.value, target

    def normalise(advantage: Tensor, valid: Tensor) -> Tensor:
        """The valid steps of each row as one episode; with values of 0, rewards make the advantages."""
        steps = valid.t().nonzero()  # (row, t), row by row
        wanted = advantage.t()[valid.t()]
        last = torch.ones_like(wanted, dtype=torch.bool)
        last[:-1] = steps[1:, 0] != steps[:-1, 0]
        following = torch.where(last, 0.0, torch.cat([wanted[1:], torch.zeros(1)]))
        script = TracedRollout(
            first=torch.cat([last[-1:], last[:-1]])[:, None],
            terminated=last[:, None],
            truncated=torch.zeros_like(last)[:, None],
            reward=(wanted - settings.gamma * settings.lambda_ * following)[:, None],
            value=torch.zeros(len(wanted), 1),
            bootstrap=torch.zeros(1),
        )
        found = torch.zeros_like(advantage)
        found[steps[:, 1], steps[:, 0]] = spread(script, Postprocessing.ADVANTAGES, at_end=0.0)[:, 0]
        return found

    return Trainer(
        f"ray {version('ray')} RLlib PPO",
        obs_shape=(3,),
        initial_state=initial_state,
        act=act,
        evaluate=evaluate,
        record=record,
        advantages=advantages,
        gamma=settings.gamma,
        gae_lambda=settings.lambda_,
        normalise=normalise,
        parameters=module.state_dict,
    )


def _learned(module: Any, batch: dict[str, Any], action: Tensor) -> dict[str, Tensor]:
    """The learner's forward pass of sequences [N, L]."""
    logits = module.forward_train(dict(batch))[Columns.ACTION_DIST_INPUTS]
    value = module.compute_values(dict(batch))
    return {"log_prob": Categorical(logits=logits).log_prob(action), "logits": logits, "value": value}


def _episodes(
    script: TracedRollout, start: dict[str, Tensor], at_end: float
) -> tuple[list[SingleAgentEpisode], list[tuple[int, int, int]]]:
    """The script as the package's episodes, whose first observed number is the value; their places."""
    episodes, where = [], []
    assert script.value is not None
    assert script.reward is not None
    state = {name: leaf.numpy() for name, leaf in start.items()}
    ended = script.terminated | script.truncated
    for row in range(script.rows):
        cuts = [0, *ended[:-1, row].nonzero().flatten().add(1).tolist(), script.steps]
        for begin, end in pairwise(cuts):
            last = end - 1
            shown = float(script.bootstrap[row]) if script.bootstrap is not None else 0.0
            if script.terminated[last, row]:
                shown = at_end
            elif script.truncated[last, row]:
                shown = at_end if script.final_value is None else float(script.final_value[last, row])
            values = [*script.value[begin:end, row].tolist(), shown]
            count = end - begin
            episode = SingleAgentEpisode(
                observations=[np.array([value, 0, 0], np.float32) for value in values],
                actions=[0] * count,
                rewards=script.reward[begin:end, row].tolist(),
                terminated=bool(script.terminated[last, row]),
                truncated=bool(script.truncated[last, row]) and not bool(script.terminated[last, row]),
                extra_model_outputs={
                    Columns.STATE_OUT: [state] * count,
                    Columns.ACTION_LOGP: [0.0] * count,
                    Columns.ACTION_DIST_INPUTS: [np.zeros(3, np.float32)] * count,
                },
                len_lookback_buffer=0,
            )
            episodes.append(episode.to_numpy())
            where.append((begin, end, row))
    return episodes, where


def _unpadded(padded: Any, lengths: list[int], longest: int) -> list[np.ndarray]:
    """[N, longest, ...]: the steps of each episode, without the padding behind them."""
    found, row, padded = [], 0, torch.as_tensor(padded)
    for length in lengths:
        rows = -(-length // longest)
        found.append(padded[row : row + rows].flatten(0, 1)[:length].detach().numpy())
        row += rows
    return found


def _recorded(algorithm: Any, module: Any, longest: int) -> TracedRollout:
    """The second iteration, which begins inside an episode."""
    live: dict[tuple[float, ...], tuple[Any, Any]] = {}
    batches: list[dict[str, Any]] = []
    acting = algorithm.env_runner.module
    explore, compute = acting.forward_exploration, GeneralAdvantageEstimation.__call__

    def watched(batch: dict[str, Any], **keywords: Any) -> Any:
        before = {name: leaf.clone() for name, leaf in batch[Columns.STATE_IN].items()}
        found = explore(batch, **keywords)
        # At a filler of the vector env the observation is a final one, which no action of the env followed.
        live[tuple(batch[Columns.OBS].flatten().tolist())] = (before, found[Columns.STATE_OUT])
        return found

    def keep(self: Any, *, rl_module: Any, episodes: Any, batch: Any, **keywords: Any) -> Any:
        batch = compute(self, rl_module=rl_module, episodes=episodes, batch=batch, **keywords)
        columns = dict(batch[DEFAULT_MODULE_ID])
        columns["lengths"] = [len(episode) for episode in episodes]
        columns["values"] = module.compute_values(dict(columns)).detach()
        batches.append(columns)
        return batch

    acting.forward_exploration, GeneralAdvantageEstimation.__call__ = watched, keep
    try:
        algorithm.train()
        probe = algorithm.env_runner.env.unwrapped.envs[0].unwrapped
        earlier = len(probe.log.obs)
        algorithm.train()
    finally:
        del acting.forward_exploration
        GeneralAdvantageEstimation.__call__ = compute
    seen = rollout([probe.log], STEPS, earlier)
    states = [live[tuple(obs.tolist())] for obs in seen["obs"][:, 0]]
    every = [*(before for before, _ in states), states[-1][1]]
    state = {name: torch.stack([one[name] for one in every]) for name in every[0]}
    return _trace(module, batches[1], seen, state, longest).but(
        gamma=algorithm.config.gamma, gae_lambda=algorithm.config.lambda_
    )


def _trace(
    module: Any, batch: dict[str, Any], seen: dict[str, Tensor], state: dict[str, Tensor], longest: int
) -> TracedRollout:
    """The rollout as it is in the batch [N, L] that the learner gets."""
    T = len(seen["first"])
    place = {tuple(obs.tolist()): t for t, obs in enumerate(seen["obs"][:, 0])}
    mask = batch[Columns.LOSS_MASK]
    N, L = mask.shape
    index = torch.full((N, L), -1)
    for n in range(N):
        for i in range(L):
            if mask[n, i]:
                index[n, i] = place[tuple(batch[Columns.OBS][n, i].tolist())]
    with torch.no_grad():
        learned = _learned(module, batch, batch[Columns.ACTIONS])

    def by_step(x: Tensor) -> Tensor:
        found = torch.zeros(T)
        found[index[mask]] = x[mask].float()
        return found[:, None]

    value = by_step(batch["values"])
    final = torch.zeros(T, 1)
    flat_value, flat_obs = batch["values"], batch[Columns.OBS]
    row = 0
    for length in batch["lengths"]:
        rows = -(-length // longest)
        obs = flat_obs[row : row + rows].flatten(0, 1)[:length]
        end = place[tuple(obs[-2].tolist())]
        final[end] = flat_value[row : row + rows].flatten()[length - 1]  # the artificial step
        row += rows
    used = (index >= 0).any(1)  # a row that holds the artificial step alone is no sequence
    log_prob = by_step(batch[Columns.ACTION_LOGP])
    target = by_step(batch[Postprocessing.VALUE_TARGETS])
    return TracedRollout(
        first=seen["first"],
        terminated=seen["terminated"],
        truncated=seen["truncated"],
        obs=seen["obs"],
        action=by_step(batch[Columns.ACTIONS]).long(),
        reward=seen["reward"],
        value=value,
        log_prob=log_prob,
        final_value=final,
        bootstrap=final[-1],
        state=state,
        learner_log_prob=by_step(learned["log_prob"]),
        learner_value=by_step(learned["value"]),
        advantage=target - value,
        returns=target,
        chunk_index=index[used].t(),
        chunk_state={name: leaf[used] for name, leaf in batch[Columns.STATE_IN].items()},
    )
