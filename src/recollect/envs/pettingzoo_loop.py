"""Parallel PettingZoo envs, stepped one after another in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import torch
from gymnasium import spaces as gym_spaces

from recollect.base import notices
from recollect.base.types import Step, Tree
from recollect.envs.groups import Group, Policies, check_actions, make_groups
from recollect.envs.pettingzoo import as_parallel, is_pettingzoo
from recollect.envs.pettingzoo_rows import MASK, AgentError, GroupRows, has_mask
from recollect.envs.space_values import env_seeds, flag, wrong_result
from recollect.errors import ConfigError, EnvError, SpaceError


class PettingZooLoop:
    """A GroupedEnv of parallel PettingZoo envs. A slot is reset in the step in which its last agent ends.

    Rows of agents that are dead, or not there yet, are invalid. Their observation is a constant of the space,
    with all actions allowed. An action mask in an agent's info becomes the key ``action_mask`` of its
    observation. Numbers in the infos become ``Step.info`` once all rows of the group have reported them; a
    row keeps the last number of its agent.
    """

    device = torch.device("cpu")

    def __init__(
        self, makers: Sequence[Callable[[], Any]], policies: Policies = "shared", *, first_slot: int = 0
    ) -> None:
        """Make the envs. ``first_slot``: the slot of the first one, if they are part of a larger env."""
        if not makers:
            raise ConfigError("num_envs is 0: a PettingZooLoop needs at least one env")
        self.first_slot, self.num_envs = first_slot, len(makers)
        self._steps = -1  # since the last reset; -1 before the first one
        self._slots = _make_all(makers, first_slot)
        agents = self._slots[0].spaces()
        groups = make_groups(policies, {str(agent): own for agent, own in agents.items()})
        masked = self._masked_agents(agents)
        self._parts = {
            name: GroupRows(group, self.num_envs, masked.intersection(group.agents))
            for name, group in groups.items()
        }
        self.groups: dict[str, Group] = {name: part.group for name, part in self._parts.items()}
        homes = {
            agent: (part, k) for part in self._parts.values() for k, agent in enumerate(part.group.agents)
        }
        for i, slot in enumerate(self._slots):
            for agent in agents:
                part, k = homes[str(agent)]
                slot.rows[agent] = part, i * len(part.group.agents) + k

    def reset(self, seed: int) -> dict[str, Tree]:
        """Reset env i with a seed derived from (seed, first_slot + i). Returns the obs of each group."""
        self._steps = 0
        for part in self._parts.values():
            part.begin()
        for i, own in enumerate(env_seeds(seed, self.first_slot + self.num_envs)[self.first_slot :]):
            self._restart(i, own)
        return {name: step.obs for name, step in self._finish().items()}

    def step(self, action: Mapping[str, Tree]) -> dict[str, Step]:
        """Apply the actions [B, ...] of each group; where a slot's episode ended, ``obs`` opens the next."""
        if self._steps < 0:
            raise EnvError("PettingZooLoop.step before PettingZooLoop.reset: call reset(seed) first")
        check_actions(self.groups, action)
        for name, part in self._parts.items():
            part.begin(action[name])
        self._steps += 1
        for i in range(self.num_envs):
            self._step_slot(i)
        return self._finish()

    def close(self) -> None:
        """Close all envs."""
        for slot in self._slots:
            slot.env.close()

    def _step_slot(self, i: int) -> None:
        """Step one env with the actions of its living agents, and reset it if none is left."""
        slot = self._slots[i]
        actions = {agent: slot.rows[agent][0].actions[slot.rows[agent][1]] for agent in slot.alive}
        try:
            result = slot.env.step(actions)
        except Exception as error:
            raise self._error(i, f"step({actions!r}) raised {type(error).__name__}: {error}") from error
        try:
            obs, rewards, terminations, truncations, infos = result
        except (TypeError, ValueError):
            raise self._error(i, wrong_result(result)) from None
        for name, value in zip(_RESULTS, result):
            if not isinstance(value, Mapping):
                raise self._error(
                    i, f"{name} is a {type(value).__name__}, not a dict with an entry per agent"
                )
        present = self._present(i)
        ended, staying = [], []
        for agent in slot.alive:
            part, row = slot.rows[agent]
            try:
                part.rewards[row] = _entry(rewards, agent, "rewards")
                terminated = flag("terminated", _entry(terminations, agent, "terminations"))
                truncated = flag("truncated", _entry(truncations, agent, "truncations"))
                info = _info(infos, agent)
                part.report(row, info)
                part.next.valid[row] = True
                if terminated or truncated:
                    part.next.terminated[row], part.next.truncated[row] = terminated, truncated
                    part.write_final(row, obs.get(agent), info)
                    ended.append(agent)
                else:
                    part.obs[row] = part.seen(_entry(obs, agent, "observations"), info)
                    staying.append(agent)
            except SpaceError as error:
                raise self._error(i, str(error), agent) from None
        slot.ended.update(ended)
        self._check_leaving(i, present, ended, staying)
        slot.alive = staying
        for agent in present:
            if agent not in slot.ended and agent not in staying:
                self._appear(i, agent, obs, infos)
        if not slot.alive:
            self._restart(i, None)

    def _check_leaving(self, i: int, present: list[Any], ended: list[Any], staying: list[Any]) -> None:
        """Raise unless agents leave ``agents`` in the step in which they end, and stay away."""
        for agent in staying:
            if agent not in present:
                raise self._error(
                    i,
                    "it is no longer in agents, and neither terminated nor truncated: set one of them in the "
                    "step in which an agent leaves",
                    agent,
                )
        gone = self._slots[i].ended
        if gone.issuperset(present):
            return  # the end of the episode, also for an env that does not empty ``agents``
        for agent in gone.intersection(present):
            if agent in ended:
                fix = "it has ended in this step, and is still in agents: take it out in the same step"
            else:
                fix = (
                    "it is in agents again after its end, and an agent lives once in an episode: keep it "
                    "alive without an effect, or let a new agent appear"
                )
            raise self._error(i, fix, agent)

    def _restart(self, i: int, seed: int | None) -> None:
        """Reset an env; its agents have ``first``."""
        slot = self._slots[i]
        obs, infos = self._reset_env(i, seed)
        slot.alive, slot.ended = [], set()
        for agent in self._present(i):
            self._appear(i, agent, obs, infos)
        if not slot.alive:
            raise self._error(i, "agents is empty after a reset: an episode starts with at least one agent")

    def _reset_env(self, i: int, seed: int | None) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        """Observations and infos of a reset."""
        env = self._slots[i].env
        try:
            result = env.reset() if seed is None else env.reset(seed=seed)
        except Exception as error:
            raise self._error(i, f"reset raised {type(error).__name__}: {error}") from error
        is_pair = isinstance(result, tuple) and len(result) == 2
        if not is_pair or not all(isinstance(part, Mapping) for part in result):
            raise self._error(
                i, f"reset returned a {type(result).__name__}, not (observations, infos), a dict each"
            )
        return result

    def _appear(self, i: int, agent: Any, obs: Mapping[Any, Any], infos: Mapping[Any, Any]) -> None:
        """Show the first observation of an agent."""
        slot = self._slots[i]
        part, row = slot.rows[agent]
        try:
            part.obs[row] = part.seen(_entry(obs, agent, "observations"), _info(infos, agent))
        except SpaceError as error:
            raise self._error(i, str(error), agent) from None
        part.next.first[row] = True
        slot.alive.append(agent)

    def _present(self, i: int) -> list[Any]:
        """``agents`` of an env, all of them among its possible ones."""
        slot = self._slots[i]
        present = list(slot.env.agents)
        for agent in present:
            if agent not in slot.rows:
                raise self._error(
                    i,
                    f"agents has {agent!r}, which is not in possible_agents: list all agents there that may "
                    "ever appear",
                )
        return present

    def _finish(self) -> dict[str, Step]:
        try:
            return {name: part.finish() for name, part in self._parts.items()}
        except AgentError as error:
            raise self._error(error.slot, str(error), error.agent) from None

    def _masked_agents(self, agents: Mapping[Any, tuple[gym.Space, gym.Space]]) -> set[str]:
        """Agents with an action mask in their info, which only a reset shows."""
        is_discrete = any(isinstance(action, gym_spaces.Discrete) for _, action in agents.values())
        if not is_discrete or all(has_mask(space) for space, _ in agents.values()):
            return set()
        _, infos = self._reset_env(0, 0)
        return {str(agent) for agent in agents if MASK in _info(infos, agent)}

    def _error(self, i: int, text: str, agent: Any = None) -> EnvError:
        where = f"env {self.first_slot + i} ({self._slots[i].name}), step {max(self._steps, 0)}"
        return EnvError(f"{where}: {text}" if agent is None else f"{where}, agent {agent!r}: {text}")


_RESULTS = ("observations", "rewards", "terminations", "truncations", "infos")


@dataclass(slots=True)
class _Slot:
    """One env, and where its agents are."""

    env: Any
    rows: dict[Any, tuple[GroupRows, int]] = field(default_factory=dict)
    """The part and row of each possible agent."""
    alive: list[Any] = field(default_factory=list)
    ended: set[Any] = field(default_factory=set)
    """Agents that ended in this episode."""

    @property
    def name(self) -> str:
        return str(getattr(self.env, "metadata", {}).get("name") or type(_unwrapped(self.env)).__name__)

    def spaces(self) -> dict[Any, tuple[gym.Space, gym.Space]]:
        """The observation and action space of each possible agent."""
        found = {
            agent: (self.env.observation_space(agent), self.env.action_space(agent))
            for agent in self.env.possible_agents
        }
        if len(set(map(str, found))) < len(found):
            raise SpaceError(f"possible_agents of {self.name} are {list(found)}: their texts must differ")
        for agent, own in found.items():
            if not all(isinstance(space, gym.Space) for space in own):
                raise SpaceError(
                    f"the spaces of agent {agent!r} of {self.name} are {own}: return gymnasium spaces"
                )
        return found


def _make_all(makers: Sequence[Callable[[], Any]], first_slot: int) -> list[_Slot]:
    slots: list[_Slot] = []
    used: set[int] = set()  # the ids of their innermost envs
    for i, make in enumerate(notices.counted(makers, "envs"), first_slot):
        env = make()
        if not is_pettingzoo(env):
            raise EnvError(
                f"the callable for env {i} returned a {type(env).__name__}, not a PettingZoo env: it must "
                "make a ParallelEnv or an AECEnv"
            )
        slot = _Slot(as_parallel(env))
        if not hasattr(slot.env, "possible_agents"):
            raise EnvError(
                f"env {i} ({slot.name}) has no possible_agents: list all agents that may ever appear"
            )
        if id(_unwrapped(env)) in used:
            raise EnvError(
                f"the callable for env {i} returned an env that is in use already: its agents would step one "
                "another's. Make a new env in each call"
            )
        slots.append(slot)
        used.add(id(_unwrapped(env)))
        own, expected = slot.spaces(), slots[0].spaces()
        if own != expected:
            differ = sorted(str(agent) for agent in own | expected if own.get(agent) != expected.get(agent))
            raise SpaceError(
                f"env {i} and env {first_slot} differ in possible_agents, or in the spaces of "
                f"{', '.join(differ)}: they must be equal"
            )
    return slots


def _entry(values: Mapping[Any, Any], agent: Any, name: str) -> Any:
    """The value of an agent in a result of the env."""
    if agent not in values:
        raise SpaceError(
            f"{name} has no entry for it: return one for every agent that was alive in this step"
        )
    return values[agent]


def _info(infos: Mapping[Any, Any], agent: Any) -> Mapping[str, Any]:
    """The info of an agent; empty if it has none."""
    info = infos.get(agent) or {}
    if not isinstance(info, Mapping):
        raise SpaceError(f"its info is a {type(info).__name__}, not a dict: infos has a dict for each agent")
    return info


def _unwrapped(env: Any) -> Any:
    return getattr(env, "unwrapped", env)
