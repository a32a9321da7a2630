# pyright: reportMissingImports=false
"""tianshou's PPO with a recurrent actor.

``of_algorithm(algorithm)`` wraps a PPO whose actor carries a state with the rows first, such as ``Recurrent``
and ``RecurrentActorProb``. The buffer stacks ``stack_num`` observations, as the package's documentation asks
of recurrent networks.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from tianshou.algorithm import PPO
from tianshou.algorithm.algorithm_base import policy_within_training_step
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Recurrent
from tianshou.utils.net.continuous import RecurrentCritic
from torch import Tensor, nn
from torch.distributions import Categorical

from recollect.audit.adapters.probes import ROWS, STEPS, Probe, Scripted, positions, rollout
from recollect.audit.trace import TracedRollout
from recollect.audit.trainer import Trainer

STACK = 4


def example(stack_num: int = STACK) -> Trainer:
    """A small PPO with the package's recurrent actor and critic."""
    torch.manual_seed(1)
    space = Probe().observation_space
    actor = Recurrent(layer_num=1, state_shape=3, action_shape=3, hidden_layer_size=8)
    critic = RecurrentCritic(layer_num=1, state_shape=(3,), hidden_layer_size=8)
    policy = ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=lambda logits: Categorical(logits=logits),
        action_space=Probe().action_space,
        observation_space=space,
        action_scaling=False,
    )
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory())
    state = {"hidden": (1, 8), "cell": (1, 8)}
    return of_algorithm(algorithm, obs_shape=(3,), state_shapes=state, stack_num=stack_num)


def of_algorithm(
    algorithm: PPO,
    *,
    obs_shape: tuple[int, ...],
    state_shapes: dict[str, tuple[int, ...]],
    stack_num: int = STACK,
) -> Trainer:
    """The abilities of a PPO.

    Args:
        algorithm: with an actor that carries a state.
        obs_shape: of one observation.
        state_shapes: the shape of each part of the state, without its rows.
        stack_num: of the buffer that it is trained from.
    """
    policy = algorithm.policy

    def initial_state(rows: int) -> dict[str, Tensor]:
        return {name: torch.zeros(rows, *shape) for name, shape in state_shapes.items()}

    def act(obs: Tensor, state: Any, first: Tensor) -> tuple[dict[str, Tensor], Any]:
        """The collector sets the states of new episodes to zero."""
        kept = Batch({name: leaf.clone() for name, leaf in state.items()})
        for leaf in kept.values():
            leaf[first] = 0
        with torch.no_grad(), policy_within_training_step(policy):
            acted = policy(Batch(obs=obs.numpy(), info=Batch()), kept)
        outputs = {"action": acted.act, "log_prob": acted.dist.log_prob(acted.act), "logits": acted.logits}
        return outputs, {name: acted.state[name] for name in state_shapes}

    def evaluate(obs: Tensor, state: Any, first: Tensor, action: Any) -> tuple[dict[str, Tensor], None]:
        """As the update does: from the stacks that the buffer hands out, without a state."""
        T, B = first.shape
        buffer = VectorReplayBuffer(T * B, B, stack_num=stack_num)
        never, number = np.zeros(B, bool), positions(T, B).numpy()[..., None]
        for t in range(T):
            ended = first[t + 1].numpy() if t + 1 < T else never
            step = {"obs": number[t], "act": action[t].numpy(), "rew": np.zeros(B), "obs_next": number[t]}
            buffer.add(Batch(**step, terminated=ended, truncated=never, info=Batch()))
        batch, _ = buffer.sample(0)
        # The numbers of the steps went through the buffer; now the observations themselves, with a graph.
        stacks = torch.as_tensor(batch.obs)[..., 0]  # [B * T] or [B * T, stack_num]
        batch.obs = obs.flatten(0, 1)[stacks]
        learned = policy(batch)
        log_prob = learned.dist.log_prob(torch.as_tensor(batch.act))
        return {
            "log_prob": _steps(log_prob, B),
            "logits": learned.logits.view(B, T, -1).transpose(0, 1),
        }, None

    def record() -> TracedRollout:
        return _recorded(algorithm, stack_num)

    def advantages(script: TracedRollout) -> tuple[Tensor, Tensor]:
        envs = [Scripted(script, row) for row in range(script.rows)]
        kept = algorithm.critic
        algorithm.critic = _ValueIsObservation()
        fixed = ProbabilisticActorPolicy(
            actor=_Uniform(),
            dist_fn=lambda logits: Categorical(logits=logits),
            action_space=envs[0].action_space,
            action_scaling=False,
        )
        algorithm.policy = fixed
        try:
            batch = _collected(algorithm, envs, script.steps, 1)
        finally:
            algorithm.critic, algorithm.policy = kept, policy
        return _steps(batch.adv, script.rows), _steps(batch.returns, script.rows)

    return Trainer(
        f"tianshou {version('tianshou')} PPO, stack_num={stack_num}",
        obs_shape=obs_shape,
        initial_state=initial_state,
        act=act,
        evaluate=evaluate,
        record=record,
        advantages=advantages,
        gamma=algorithm.gamma,
        gae_lambda=algorithm.gae_lambda,
        parameters=lambda: {
            **policy.state_dict(prefix="policy."),
            **algorithm.critic.state_dict(prefix="critic."),
        },
    )


class _ValueIsObservation(nn.Module):
    def forward(self, obs: Any, **_: Any) -> Tensor:
        return torch.as_tensor(obs)


class _Uniform(nn.Module):
    def forward(self, obs: Any, state: Any = None, info: Any = None) -> tuple[Tensor, None]:
        return torch.zeros(len(obs), 2), None


def _collected(algorithm: PPO, envs: list[Any], steps: int, stack_num: int, skip: int = 0) -> Any:
    """The batch of one rollout, as PPO's update gets it: [B * T, ...]."""
    vector = DummyVectorEnv([lambda env=env: env for env in envs])
    count = len(envs)
    buffer = VectorReplayBuffer(steps * count, count, stack_num=stack_num)
    collector = Collector(algorithm.policy, vector, buffer)
    collector.reset()
    with policy_within_training_step(algorithm.policy):
        if skip:
            collector.collect(n_step=skip * count)
            collector.reset_buffer(keep_statistics=True)
        collector.collect(n_step=steps * count)
    batch, indices = buffer.sample(0)
    return algorithm._preprocess_batch(batch, buffer, indices)


def _recorded(algorithm: PPO, stack_num: int) -> TracedRollout:
    probes = [Probe(row) for row in range(ROWS)]
    policy, T, B = algorithm.policy, STEPS, ROWS
    live: list[Any] = []
    log_probs: list[Tensor] = []
    forward = policy.forward

    def watched(batch: Any, state: Any = None, **keywords: Any) -> Any:
        acted = forward(batch, state, **keywords)
        if np.ndim(batch.obs) == 2:  # acting: no stacks
            after = dict(acted.state.items())
            before = (
                {name: torch.zeros_like(leaf) for name, leaf in after.items()} if state is None else state
            )
            live.append({name: before[name].clone() for name in after})
            log_probs.append(acted.dist.log_prob(acted.act).detach())
            live_after[0] = {name: leaf.clone() for name, leaf in after.items()}
        return acted

    live_after: list[Any] = [None]
    policy.forward = watched
    try:
        batch = _collected(algorithm, probes, T, stack_num)
    finally:
        del policy.forward
    seen = rollout([probe.log for probe in probes], T)
    with torch.no_grad():
        following = _steps(algorithm.critic(batch.obs_next).flatten(), B)
    live = [*live[:T], live_after[0]]
    return TracedRollout(
        first=seen["first"],
        terminated=seen["terminated"],
        truncated=seen["truncated"],
        obs=seen["obs"],
        action=_steps(torch.as_tensor(batch.act), B).long(),
        reward=seen["reward"],
        log_prob=torch.stack(log_probs[:T]),
        value=_steps(batch.v_s, B),
        final_value=following,
        bootstrap=following[-1],
        state={name: torch.stack([one[name] for one in live]) for name in live[0]},
        learner_log_prob=_steps(batch.logp_old, B),
        advantage=_steps(batch.adv, B),
        returns=_steps(batch.returns, B),
        gamma=algorithm.gamma,
        gae_lambda=algorithm.gae_lambda,
    )


def _steps(x: Any, rows: int) -> Tensor:
    """[B * T] -> [T, B]."""
    return torch.as_tensor(x).view(rows, -1).t()
