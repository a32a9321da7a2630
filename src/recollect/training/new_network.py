"""The network of a new agent, made from the spaces of its env; checks of device, settings and memory."""

from __future__ import annotations

from collections.abc import Callable

import gymnasium as gym
import torch

from recollect.config.own_code import OwnCode
from recollect.config.policy import PolicyConfig
from recollect.config.train import TrainConfig
from recollect.envs.contract import BatchedEnv
from recollect.envs.group_views import Groups, views_of
from recollect.errors import ConfigError
from recollect.policy import compiled, precision
from recollect.policy.policies import Network, Policies, by_group
from recollect.policy.policy import Policy
from recollect.training.memory_check import check_memory, check_network

PolicyFactory = Callable[[gym.Space, gym.Space], Policy]
"""Makes a policy from an observation space and an action space."""


def check_config(config: TrainConfig, policy: PolicyFactory | None) -> None:
    """Validate the device, the precision, and that a policy factory comes without network settings."""
    check_device(config.device)
    precision.check(config.policy.precision, torch.device(config.device))
    if config.compile:
        compiled.check_backend(torch.device(config.device))
    if policy is not None and config.chosen_policy != PolicyConfig():
        raise ConfigError(
            "policy is a factory, which makes the whole network: settings such as encoder, core and head "
            "would have no effect. Set them inside the factory, or leave it out"
        )


def check_device(name: str) -> None:
    """Raise ConfigError unless the device is the CPU or a GPU that torch can use."""
    kind = torch.device(name).type
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device = {name!r}: choose cpu or cuda")
    if kind == "cpu":
        return
    if not torch.cuda.is_available():
        raise ConfigError(f"device = {name!r}, but torch sees no GPU here: use device='cpu' (--device cpu)")
    if (torch.device(name).index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device = {name!r}, but the GPUs here are 0 to {torch.cuda.device_count() - 1}")


def new_network(
    config: TrainConfig, policy: PolicyFactory | None, env: BatchedEnv | Groups
) -> tuple[Network, str | None]:
    """The initial policy, or one for each group, for the spaces of ``env``.

    And a warning if the run hardly fits into memory.
    """
    views = views_of(env)
    for view in views.values() if policy is None else ():
        check_network(config, view.observation_space, view.action_space)
    with torch.random.fork_rng(devices=[]):  # the caller's own random stream goes on as it was
        torch.manual_seed(config.seed)
        network = made_network(policy or config.policy.build, env)
    made = by_group(network)
    learners = {name: (made[name], config.num_envs * view.agents) for name, view in views.items()}
    return network, check_memory(config, learners)


def made_network(make: PolicyFactory, env: BatchedEnv | Groups) -> Network:
    """The policy that the factory makes for the spaces of ``env``, or one for each group."""
    made = {
        name: made_policy(make, view.observation_space, view.action_space)
        for name, view in views_of(env).items()
    }
    return Policies(made, env.members) if isinstance(env, Groups) else made[""]


def made_policy(make: PolicyFactory, observation_space: gym.Space, action_space: gym.Space) -> Policy:
    """The policy that the factory makes; ConfigError if it makes something else."""
    if not callable(make):
        raise ConfigError(
            f"policy is a {type(make).__name__}: give a PolicyConfig, or a function (observation_space, "
            "action_space) -> Policy"
        )
    policy = make(observation_space, action_space)
    if not isinstance(policy, Policy):
        raise ConfigError(f"the policy factory made a {type(policy).__name__}; it needs to make a Policy")
    policy.factory = make.name if isinstance(make, OwnCode) else None
    return policy
