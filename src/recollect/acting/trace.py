"""Traces: episodes recorded step by step, with observations, actions, values and core states.

The report and ``recollect play`` show traces. ``acting.recording`` makes them, ``Trace.save`` writes one JSON
file, and ``acting.trace_values`` converts spaces and tensors to JSON values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from recollect.acting.trace_values import rounded
from recollect.base.files import finite, write_atomically
from recollect.errors import RecollectError

FORMAT = 1
"""Version of the JSON file."""
NUMBERS = ("reward", "value", "log_prob")
"""The columns of numbers."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One episode of one agent, T valid steps."""

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
    agent: str | None = None
    """The name of the agent; None: the env has no other."""
    group: str | None = None
    """The group of the agent, if there are several."""
    episode: int = 0
    """Index of the env's episode within the recording."""
    start: int = 0
    """Step of that episode in which the agent appeared."""
    returns: dict[str, float] = field(default_factory=dict)
    """The returns of all agents of the episode by name; empty if the env has one agent."""

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
            **{name: rounded(getattr(self, name)) for name in NUMBERS},
            "memory": finite([[round(x, 4) for x in row] for row in self.memory.tolist()]),
            "returns": {name: rounded(total, 7)[0] for name, total in self.returns.items()},
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
            **{name: np.array(read[name], dtype=float) for name in NUMBERS},
            "memory": np.array(read["memory"], dtype=float).reshape(len(read["reward"]), read["units"]),
        }
        newer = {"mode": None, "agent": None, "group": None, "episode": 0, "start": 0, "returns": {}}
        read = newer | read
        converted["returns"] = {
            name: np.nan if total is None else total for name, total in read["returns"].items()
        }
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
