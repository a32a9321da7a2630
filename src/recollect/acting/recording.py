"""``record_env``: plays episodes and records them as traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.acting.evaluate import evaluating
from recollect.acting.trace import NUMBERS, Trace
from recollect.acting.trace_values import (
    action_json,
    distribution_parts,
    image_part,
    observation_parts,
    value_parts,
)
from recollect.base import row_threads, tree
from recollect.base.seeds import stream
from recollect.base.types import State, Step, Tree
from recollect.envs.contract import BatchedEnv, Describes, Draws
from recollect.envs.group_views import Groups, joint, views_of
from recollect.envs.groups import agent_names
from recollect.errors import ConfigError, nearest
from recollect.policy.policies import Network, by_group
from recollect.policy.policy import Policy
from recollect.policy.q_heads import QHead

MAX_ABSENT = 10_000
"""Steps for which a recording waits for an agent that is dead or has not appeared."""
MOST_PICTURES = 4
"""Agents whose traces have the picture of the env; with more of them it would fill the record."""
_WIDTHS = {"png": 1, "values": 10, "probs": 10, "mean": 10, "std": 10, "q": 10}
"""Lists and texts of a step, with about the bytes of each element."""


@torch.no_grad()  # not inference_mode: tensors that an env allocates here may be changed in training
@row_threads.intra_op_threads(1)  # acting consists of tiny operations
def record_env(
    network: Network,
    env: BatchedEnv | Groups,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = 2000,
    max_size: int | None = None,
    cancelled: Callable[[], bool] | None = None,
    agents: Sequence[str | int] | None = None,
    name: str | None = None,
    checkpoint_steps: int = 0,
) -> list[Trace]:
    """Play slot 0 of ``env`` and record every step; ``recollect.play.trace.record`` describes the arguments.

    ``max_size``: about as many bytes of an episode, after which the recording stops, for observations of any
    size. ``cancelled``: called at every step; if true, the recording stops there.
    """
    if episodes < 1 or max_steps < 1:
        raise ConfigError(f"episodes = {episodes}, max_steps = {max_steps}: both must be at least 1")
    mode = "greedy" if deterministic else "sampled"
    about: dict[str, Any] = {"env": name, "seed": seed, "checkpoint_steps": checkpoint_steps, "mode": mode}
    traces: list[Trace] = []
    with evaluating(network):
        slot = _Slot(network, env, seed, agents)
        found = episode = absent = 0
        while found < episodes:
            slot.step(deterministic)
            absent = 0 if slot.recorded_steps else absent + 1
            is_full = slot.recorded_steps >= max_steps or (max_size is not None and slot.size >= max_size)
            is_over = slot.is_over()
            stops = (is_full and not is_over) or (cancelled is not None and cancelled())
            if is_over or stops:
                made = list(slot.traces(about | {"episode": episode}))
                traces += made
                found, episode = found + bool(made), episode + 1
                slot.restart()
            if stops:
                break
            if absent == MAX_ABSENT:
                raise ConfigError(
                    f"{slot.recorded} could not be recorded, because of absence for {MAX_ABSENT:,} steps: "
                    "choose an agent that appears in every episode"
                )
    return traces


def leaf_names(policy: Policy) -> tuple[tuple[str, int], ...]:
    """Name and size of each leaf of the actor's state."""
    leaves = tree.leaves(policy.actor_state(policy.initial_state(1)))
    return tuple((name, leaf[0].numel()) for name, leaf in zip(policy.core.state_names, leaves, strict=True))


class _Slot:
    """Slot 0 of an env, with its agents of all groups."""

    def __init__(
        self, network: Network, env: BatchedEnv | Groups, seed: int, agents: Sequence[str | int] | None
    ):
        self._env, policies = joint(env), by_group(network)
        obs = self._env.reset(seed)
        self._players = {
            group: _Player(group, policies[group], view, obs[group], stream(seed, number) if group else seed)
            for number, (group, view) in enumerate(views_of(env).items())
        }
        self._lives = [life for player in self._players.values() for life in player.lives]
        names = [life.name for life in self._lives]
        chosen = range(len(names)) if agents is None else [_number_of(agent, names) for agent in agents]
        self._recorded = [self._lives[number] for number in chosen]
        for life in self._recorded:
            life.is_recorded = True
        self._now = 0
        self.size = 0
        """About the bytes of the record of this episode."""

    @property
    def recorded(self) -> str:
        """The names of the agents that are recorded."""
        return ", ".join(f"agent {life.name}" for life in self._recorded)

    @property
    def recorded_steps(self) -> int:
        """Steps of this episode since the first agent that is recorded appeared."""
        return max((self._now - life.start for life in self._recorded if life.steps), default=0)

    def is_over(self) -> bool:
        """Whether the episode is over: an agent has ended, and no other lives or has just appeared."""
        if any(life.is_alive for life in self._lives) or not any(life.has_ended for life in self._lives):
            return False
        appear = [life for player in self._players.values() for life in player.appearing()]
        return not appear or any(life.has_ended for life in appear)

    def step(self, deterministic: bool) -> None:
        """Make one step."""
        actions = {group: player.act(deterministic) for group, player in self._players.items()}
        steps = self._env.step(actions)
        made = [player.take(steps[group], self._now) for group, player in self._players.items()]
        self.size += sum(size for size, _ in made)
        self._now += any(is_there for _, is_there in made)

    def traces(self, about: dict[str, Any]) -> Iterator[Trace]:
        """The episode so far of the agents that are recorded and were there."""
        returns = {life.name: life.total for life in self._lives if life.is_alive or life.has_ended}
        about = about | {"returns": returns if len(self._lives) > 1 else {}}
        for player in self._players.values():
            yield from player.traces(about)

    def restart(self) -> None:
        """Start a new episode."""
        self._now = self.size = 0
        for life in self._lives:
            life.restart()


def _number_of(agent: str | int, names: Sequence[str]) -> int:
    """The place of an agent, given by its name or place."""
    if isinstance(agent, str) and agent in names:
        return names.index(agent)
    if isinstance(agent, int) and 0 <= agent < len(names):
        return agent
    hint = nearest(str(agent), names)
    raise ConfigError(f"the env has no agent {agent!r}{hint}: its agents are {', '.join(names)}")


class _Life:
    """One agent in the present episode."""

    def __init__(self, row: int, name: str):
        self.row, self.name, self.is_recorded = row, name, False
        self.restart()

    def restart(self) -> None:
        """Start a new episode."""
        self.is_alive = self.terminated = self.truncated = False
        self.start, self.total = 0, 0.0
        self.steps: list[dict[str, Any]] = []

    @property
    def has_ended(self) -> bool:
        """Whether the agent has had its end."""
        return self.terminated or self.truncated


class _Player:
    """The rows of one group: live state, and the agents of slot 0."""

    def __init__(self, group: str, policy: Policy, env: BatchedEnv, obs: Tree, seed: int):
        policy.check_spaces(env.observation_space, env.action_space, acts_only=True)
        if policy.observation_space != env.observation_space:
            policy = policy.actor_only()  # without values
        rows = env.num_envs * env.agents
        self._group, self._policy, self._env, self._obs = group, policy, env, obs
        self._state = policy.initial_state(rows)
        self._first = torch.ones(rows, dtype=torch.bool, device=env.device)
        self._generator = torch.Generator(env.device).manual_seed(seed)
        names = agent_names(env)
        self.lives = [_Life(row, names[row]) for row in range(env.agents)]

    def appearing(self) -> list[_Life]:
        """The agents for which an episode starts now."""
        return [life for life in self.lives if self._first[life.row]]

    def act(self, deterministic: bool) -> Tree:
        """The env's actions [B, ...]."""
        obs, state, first = self._obs, self._state, self._first
        # Before the step, because tensors of an env are valid until the next one only.
        recorded = [life for life in self.lives if life.is_recorded and not life.has_ended]
        is_drawn = recorded and sum(life.is_recorded for life in self.lives) <= MOST_PICTURES
        picture = _picture(self._env) if is_drawn else []
        self._before = {
            life.row: _before(self._policy, self._env, picture, obs, state, first, life.row)
            for life in recorded
        }
        acted, self._state = self._policy.act(obs, state, first, self._generator, deterministic)
        self._record, self._action = acted.record, self._policy.to_env(acted.action)
        return self._action

    def take(self, step: Step, now: int) -> tuple[int, bool]:
        """Add step ``now`` of the episode. Returns about the bytes of its record, and whether an agent was
        there."""
        size, valid = 0, step.valid.tolist()
        for life in self.lives:
            row = life.row
            if life.has_ended or not valid[row] or not (life.is_alive or self._first[row]):
                continue
            life.start = life.start if life.is_alive else now
            life.terminated, life.truncated = bool(step.terminated[row]), bool(step.truncated[row])
            life.is_alive = not life.has_ended
            reward = float(step.reward[row])
            life.total += reward
            if life.is_recorded:
                before = self._before[row]
                action = action_json(self._policy.action_space, self._action, row)
                value = "q" if "q" in self._record else "value"
                numbers = {
                    "log_prob": _number(self._record, "log_prob", row),
                    "value": _number(self._record, value, row),
                }
                life.steps.append(before | numbers | {"action": action, "reward": reward})
                size += _size(before)
        self._obs, self._first = step.obs, step.first
        return size, any(valid[: len(self.lives)])

    def traces(self, about: dict[str, Any]) -> Iterator[Trace]:
        """The episode so far of the agents that are recorded and were there."""
        for life in self.lives:
            if not life.steps:
                continue
            columns: dict[str, Any] = {key: [step[key] for step in life.steps] for key in life.steps[0]}
            columns |= {key: np.array(columns[key]) for key in ("first", "memory", *NUMBERS)}
            columns["words"] = None if columns["words"][0] is None else columns["words"]
            columns |= {"terminated": life.terminated, "truncated": life.truncated}
            columns |= {"agent": life.name if about["returns"] else None, "group": self._group or None}
            columns |= {"start": life.start, "cut": not life.has_ended, "leaves": leaf_names(self._policy)}
            yield Trace(**about, **columns)


def _before(
    policy: Policy,
    env: BatchedEnv,
    picture: list[dict[str, Any]],
    obs: Tree,
    state: State,
    first: Tensor,
    row: int,
) -> dict[str, Any]:
    """The values of a row before a step: observation, state, distribution."""
    own = slice(row, row + 1)
    obs, state, first = tree.index(obs, own), tree.index(state, own), first[own]
    output, *_ = policy.step(obs, state, first)
    parts_of_action: list[dict[str, Any]] = []
    if policy.head.needs_critic:
        parts_of_action = distribution_parts(policy, output)
    elif isinstance(policy.head, QHead):
        parts_of_action = value_parts(policy.action_space, output)
    memory = policy.core.reset(policy.actor_state(state), first)
    parts = [leaf.flatten().float() for leaf in tree.leaves(memory)]
    return {
        "first": bool(first),
        "memory": torch.cat(parts).cpu().numpy() if parts else np.zeros(0, np.float32),
        "distribution": parts_of_action,
        "obs": [*picture, *observation_parts(policy.observation_space, obs)],
        "words": env.describe_row(obs) if isinstance(env, Describes) else None,
    }


def _picture(env: BatchedEnv) -> list[dict[str, Any]]:
    """The image of the env's first slot as a part of the observation, if it draws one."""
    image = env.picture() if isinstance(env, Draws) else None
    return [] if image is None else [{"name": "picture", **image_part(image)}]


def _number(record: dict[str, Tensor], name: str, row: int) -> float:
    """Of a row; NaN if the head does not record it."""
    return float(record[name][row]) if name in record else np.nan


def _size(before: dict[str, Any]) -> int:
    """About the bytes that a step takes in the JSON file."""
    size = 200 + 9 * before["memory"].size
    for part in (*before["obs"], *before["distribution"]):
        size += sum(len(part[name]) * width for name, width in _WIDTHS.items() if name in part)
    return size
