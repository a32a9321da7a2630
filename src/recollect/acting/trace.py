"""Traces: episodes recorded step by step, with observations, actions, values and core states.

The report and ``recollect play`` show traces. ``Trace.save`` writes one JSON file;
``recollect.acting.trace_values`` converts spaces and tensors to JSON values.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recollect.acting.evaluate import evaluating
from recollect.acting.trace_values import (
    action_json,
    distribution_parts,
    image_part,
    observation_parts,
    rounded,
)
from recollect.base import row_threads, tree
from recollect.base.files import finite, write_atomically
from recollect.base.types import State, Tree
from recollect.envs.contract import BatchedEnv, Describes, Draws
from recollect.errors import ConfigError, RecollectError
from recollect.policy.policy import Policy

FORMAT = 1
"""Version of the JSON file."""
MAX_ABSENT = 10_000
"""Steps for which a recording waits for an agent that is dead or has not appeared."""
_NUMBERS = ("reward", "value", "log_prob")
_WIDTHS = {"png": 1, "values": 10, "probs": 10, "mean": 10, "std": 10}
"""Lists and texts of a step, with about the bytes of each element."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One episode of one row, T valid steps."""

    env: str | None
    """The env's name, if it has one."""
    seed: int
    """Seed of the recording, which may hold several episodes."""
    checkpoint_steps: int
    """Env steps that the agent was trained for."""
    leaves: tuple[tuple[str, int], ...]
    """Name and size of each leaf of the state, in the order of the columns of ``memory``."""
    first: np.ndarray
    """[T] bool: the step opens the episode."""
    reward: np.ndarray
    """[T]"""
    value: np.ndarray
    """[T] the critic's value before the step, in real units; NaN without a critic, or if the env lacks
    observations that only the critic sees."""
    action: list[Any]
    """T actions as passed to the env, as JSON values."""
    log_prob: np.ndarray
    """[T] log-probability of the action; NaN if the policy records none."""
    distribution: list[list[dict[str, Any]]]
    """T lists of the parts of the action distribution (``trace_values.distribution_parts``), empty for a head
    without one."""
    obs: list[list[dict[str, Any]]]
    """T lists of the parts of the observation (``trace_values.observation_parts``)."""
    words: list[str] | None
    """T observations in words, if the env describes them."""
    memory: np.ndarray
    """[T, units] input state of each step, after the reset by ``first``."""
    terminated: bool
    """Whether the episode terminated."""
    truncated: bool
    """Whether the env truncated the episode."""
    cut: bool
    """Whether the recording stopped before the episode's end, at a limit."""
    mode: str | None = None
    """The actions: "greedy" or "sampled"; None in a file of an older version."""

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def units(self) -> int:
        """Size of the state."""
        return self.memory.shape[1]

    @property
    def return_(self) -> float:
        """The sum of the rewards."""
        return float(sum(self.reward.tolist()))

    def to_json(self) -> dict[str, Any]:
        """JSON form. Numbers are rounded; NaN and Inf become None."""
        converted = {
            "leaves": [{"name": name, "size": size} for name, size in self.leaves],
            "first": self.first.tolist(),
            **{name: rounded(getattr(self, name)) for name in _NUMBERS},
            "memory": finite([[round(x, 4) for x in row] for row in self.memory.tolist()]),
        }
        about = {"format": FORMAT, "units": self.units, "return": rounded(self.return_, 7)[0]}
        return {field.name: getattr(self, field.name) for field in fields(self)} | converted | about

    @classmethod
    def from_json(cls, data: dict[str, Any] | str) -> Trace:
        """The inverse of ``to_json``, from its dict or the JSON text."""
        read: dict[str, Any] = json.loads(data) if isinstance(data, str) else data
        if read.get("format") != FORMAT:
            raise RecollectError(
                f"a recorded episode of format {read.get('format')!r}, but this version reads {FORMAT}: "
                "record it again with recollect play, or update Recollect"
            )
        converted = {
            "leaves": tuple((leaf["name"], leaf["size"]) for leaf in read["leaves"]),
            "first": np.array(read["first"], dtype=bool),
            **{name: np.array(read[name], dtype=float) for name in _NUMBERS},
            "memory": np.array(read["memory"], dtype=float).reshape(len(read["reward"]), read["units"]),
        }
        read.setdefault("mode", None)
        return cls(**{field.name: read[field.name] for field in fields(cls)} | converted)

    def save(self, path: str | Path) -> Path:
        """Write the JSON file; parent folders are created."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        write_atomically(path, text)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read what ``save`` wrote."""
        try:
            return cls.from_json(Path(path).read_text(encoding="utf-8"))
        except (json.JSONDecodeError, KeyError, TypeError, AttributeError, UnicodeDecodeError) as error:
            raise RecollectError(
                f"{path} is not a recorded episode ({type(error).__name__}: {error}): was it truncated? "
                "Record it again with recollect play"
            ) from None


@torch.no_grad()  # not inference_mode: tensors that an env allocates here may be changed in training
@row_threads.intra_op_threads(1)  # acting consists of tiny operations
def record_env(
    policy: Policy,
    env: BatchedEnv,
    *,
    episodes: int = 1,
    seed: int = 0,
    deterministic: bool = True,
    max_steps: int = 2000,
    max_size: int | None = None,
    cancelled: Callable[[], bool] | None = None,
    name: str | None = None,
    checkpoint_steps: int = 0,
) -> list[Trace]:
    """Play row 0 of ``env`` and record every step; ``recollect.play.trace.record`` describes the arguments.

    ``max_size``: about as many bytes of an episode, after which the recording stops, for observations of any
    size. ``cancelled``: called at every step; if true, the recording stops there.
    """
    if episodes < 1 or max_steps < 1:
        raise ConfigError(f"episodes = {episodes}, max_steps = {max_steps}: both must be at least 1")
    policy.check_spaces(env.observation_space, env.action_space, acts_only=True)
    if policy.observation_space != env.observation_space:
        policy = policy.actor_only()  # without values
    rows = env.num_envs * env.agents
    generator = torch.Generator(env.device).manual_seed(seed)
    traces: list[Trace] = []
    with evaluating(policy):
        obs, state = env.reset(seed), policy.initial_state(rows)
        first = torch.ones(rows, dtype=torch.bool, device=env.device)
        steps: list[dict[str, Any]] = []
        size = absent = 0
        while len(traces) < episodes:
            before = _before(policy, env, obs, state, first)  # env tensors are valid until the next step only
            acted, state = policy.act(obs, state, first, generator, deterministic)
            action = policy.to_env(acted.action)
            step = env.step(action)
            if step.valid[0]:
                after = {
                    "action": action_json(policy.action_space, action),
                    **{name: _number(acted.record, name) for name in ("log_prob", "value")},
                    "reward": float(step.reward[0]),
                }
                steps.append(before | after)
                terminated, truncated = bool(step.terminated[0]), bool(step.truncated[0])
                ended = terminated or truncated
                size += 0 if max_size is None else _size(before)
                is_full = len(steps) == max_steps or (max_size is not None and size >= max_size)
                if ended or is_full or (cancelled is not None and cancelled()):
                    columns: dict[str, Any] = {key: [row[key] for row in steps] for key in steps[0]}
                    columns |= {key: np.array(columns[key]) for key in ("first", "memory", *_NUMBERS)}
                    columns["words"] = None if columns["words"][0] is None else columns["words"]
                    columns |= {"terminated": terminated, "truncated": truncated, "cut": not ended}
                    columns["mode"] = "greedy" if deterministic else "sampled"
                    traces.append(Trace(name, seed, checkpoint_steps, leaf_names(policy), **columns))
                    if not ended:
                        break
                    steps, size = [], 0
            elif cancelled is not None and cancelled():
                break
            absent = 0 if step.valid[0] else absent + 1
            if absent == MAX_ABSENT:
                raise ConfigError(
                    f"row 0, which is recorded, was absent for {MAX_ABSENT:,} steps: it is the first agent. "
                    "List an agent first that appears in every episode"
                )
            obs, first = step.obs, step.first
    return traces


def leaf_names(policy: Policy) -> tuple[tuple[str, int], ...]:
    """Name and size of each leaf of the actor's state."""
    leaves = tree.leaves(policy.actor_state(policy.initial_state(1)))
    return tuple((name, leaf[0].numel()) for name, leaf in zip(policy.core.state_names, leaves, strict=True))


def _before(policy: Policy, env: BatchedEnv, obs: Tree, state: State, first: Tensor) -> dict[str, Any]:
    """The values of row 0 before a step: observation, state, distribution."""
    obs, first = tree.index(obs, slice(0, 1)), first[:1]
    state = tree.index(state, slice(0, 1))
    dist, *_ = policy.step(obs, state, first)
    memory = policy.core.reset(policy.actor_state(state), first)
    parts = [leaf.flatten().float() for leaf in tree.leaves(memory)]
    return {
        "first": bool(first),
        "memory": torch.cat(parts).cpu().numpy() if parts else np.zeros(0, np.float32),
        "distribution": distribution_parts(policy, dist) if policy.head.needs_critic else [],
        "obs": [*_picture(env), *observation_parts(policy.observation_space, obs)],
        "words": env.describe_row(obs) if isinstance(env, Describes) else None,
    }


def _picture(env: BatchedEnv) -> list[dict[str, Any]]:
    """The image of the env's first slot as a part of the observation, if it draws one."""
    image = env.picture() if isinstance(env, Draws) else None
    return [] if image is None else [{"name": "picture", **image_part(image)}]


def _number(record: dict[str, Tensor], name: str) -> float:
    """Of row 0; NaN if the head does not record it."""
    return float(record[name][0]) if name in record else np.nan


def _size(before: dict[str, Any]) -> int:
    """About the bytes that a step takes in the JSON file."""
    size = 200 + 9 * before["memory"].size
    for part in (*before["obs"], *before["distribution"]):
        size += sum(len(part[name]) * width for name, width in _WIDTHS.items() if name in part)
    return size
