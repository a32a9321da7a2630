"""Record episodes of an agent, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from recollect.acting.recording import record_env
from recollect.acting.trace import Trace
from recollect.envs.env_names import display_name

if TYPE_CHECKING:
    from recollect.agent import Agent
    from recollect.envs.factory import EnvSpec

__all__ = ["Trace", "record"]


def record(
    agent: Agent,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = 2000,
    max_size: int | None = None,
    agents: Sequence[str | int] | None = None,
    env: EnvSpec | None = None,
    env_kwargs: dict[str, Any] | None = None,
) -> list[Trace]:
    """Play episodes of one env, one after the other, and record every step: a trace for each agent.

    With one agent, the episodes are those of ``agent.evaluate(episodes, seed=seed, num_envs=1)``. A later
    training is not affected, except that it starts new episodes if its env is an instance.

    Args:
        agent: the agent, in eval mode while it plays.
        episodes: number of episodes.
        seed: seed of the env and of sampled actions.
        deterministic: the mode of each distribution instead of a sample.
        max_steps: maximum recorded steps of an episode; recording stops there.
        max_size: about as many bytes of a recorded episode; recording stops there.
        agents: the agents to record, by name or number from 0; None: all of them.
        env: another env than the agent's.
        env_kwargs: other env options than the training's, such as ``{"horizon": 200}``.
    """
    with agent.opened(1, env, env_kwargs) as batched:
        return record_env(
            agent.network,
            batched,
            episodes=episodes,
            seed=seed,
            deterministic=deterministic,
            max_steps=max_steps,
            max_size=max_size,
            agents=agents,
            name=display_name(agent.env if env is None else env),
            checkpoint_steps=agent.steps,
        )
