"""Steps of a trace in words, for the terminal and for videos."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from recollect.base.formatting import percent, plural, short, short_list
from recollect.base.spaces import ACTION_MASK
from recollect.config.tasks import task_name
from recollect.envs.wrappers import ACTION, REWARD
from recollect.play.trace import Trace

SUITS = {"♠": "spades", "♦": "diamonds", "♣": "clubs", "♥": "hearts"}

ACTION_WORDS: dict[str, tuple[str, ...]] = {
    "t-maze": ("forward", "left", "back", "right"),
    "repeat-previous": tuple(SUITS),
    "repeat-first": tuple(SUITS),
    "position-cartpole": ("left", "right"),
    "forage": ("up", "down", "left", "right"),
    "treasure-hunt": ("up", "down", "left", "right"),
    "recall-duel": tuple(f"cue {cue}, bid {bid}" for cue in range(3) for bid in range(4)),
    "mech.ewar": ("off", "ECM", "ECCM"),
    "mech.sort": ("nearest first", "weakest first", "heaviest first"),
    "mech.target": ("contact 0", "contact 1", "contact 2", "contact 3", "contact 4", "nearest"),
}
"""Names of a task's actions, or of those of a part."""

_BESIDES = {ACTION, REWARD, ACTION_MASK}
"""Parts of an observation that are shown only if there are no others."""


ONE_OF_N = ("categorical", "values")
"""Kinds of parts whose action is one of n."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One part of an action, with its distribution."""

    part: str
    """Its name in the action space; empty if the action has one part."""
    kind: str
    """categorical, bernoulli, normal, or values (of all actions)."""
    value: list[float]
    """The action as passed to the env."""
    numbers: list[float]
    """Probabilities, the means of a normal, or values, NaN for masked actions."""
    std: list[float]
    """Standard deviations of a normal."""
    labels: list[str]
    """Names of the categories."""

    @property
    def index(self) -> int:
        """Index of the chosen category."""
        return int(self.value[0])

    def __str__(self) -> str:
        """For example ``left (97%)``, ``left (value 1.2)``, ``0 1 1`` or ``-0.52``."""
        name = "" if self.part.isdigit() or not self.part else f"{self.part} "
        if self.kind == "categorical":
            return f"{name}{self.labels[self.index]} ({percent(self.numbers[self.index])})"
        if self.kind == "values":
            return f"{name}{self.labels[self.index]} (value {short(self.numbers[self.index])})"
        if self.kind == "bernoulli":
            return name + " ".join(str(int(v)) for v in self.value)
        return name + short_list(self.value)


def choices(trace: Trace, step: int) -> list[Choice]:
    """The action of a step, part by part."""
    values = _flat(trace.action[step])
    made: list[Choice] = []
    for part in trace.distribution[step]:
        kind = part["kind"]
        numbers = [float("nan") if x is None else x for x in _numbers(part)]
        taken = 1 if kind in ONE_OF_N else len(numbers)
        own, values = values[:taken], values[taken:]
        start = part.get("start", 0)
        if kind in ONE_OF_N:
            own = [own[0] - start]
        labels = _labels(trace.env, part["part"], len(numbers), start)
        made.append(Choice(part["part"], kind, own, numbers, part.get("std", []), labels))
    return made


def chosen(trace: Trace, step: int) -> tuple[str, str]:
    """The action of a step and, if it is a single categorical, its probability."""
    made = choices(trace, step)
    if len(made) == 1 and made[0].kind == "categorical":
        return made[0].labels[made[0].index], percent(made[0].numbers[made[0].index])
    if len(made) == 1 and made[0].kind == "values":
        return made[0].labels[made[0].index], ""
    return ", ".join(map(str, made)) or str(trace.action[step]), ""


def ranking(trace: Trace, step: int, most: int = 4) -> str:
    """The action of a step and the values of all, the best first: ``left: left 1.2, right 0.8``.

    Empty if actions have no values, or several parts.
    """
    made = choices(trace, step)
    if len(made) != 1 or made[0].kind != "values":
        return ""
    choice = made[0]
    known = [i for i, x in enumerate(choice.numbers) if x == x]
    best = sorted(known, key=lambda i: -choice.numbers[i])[:most]
    values = ", ".join(f"{choice.labels[i]} {short(choice.numbers[i])}" for i in best)
    more = f", {len(known) - len(best)} more" if len(known) > len(best) else ""
    return f"{choice.labels[choice.index]}: {values}{more}"


def seen(trace: Trace, step: int) -> str:
    """The observation of a step in words."""
    if trace.words is not None:
        return trace.words[step]
    parts = trace.obs[step]
    shown = [part for part in parts if part["name"] not in _BESIDES] or parts
    return ", ".join(_part(part, alone=len(shown) == 1) for part in shown)


def heading(trace: Trace) -> str:
    """The env and the agent's training steps."""
    return f"{trace.env or 'an env without a name'} · trained for {trace.checkpoint_steps:,} steps"


def who(trace: Trace) -> str:
    """The agent and its group, if the env has several agents."""
    group = f" (group {trace.group})" if trace.group not in (None, trace.agent) else ""
    return "" if trace.agent is None else f"agent {trace.agent}{group}"


def ending(trace: Trace) -> str:
    """How the episode came out."""
    steps = plural(len(trace), "step")
    how = "terminated" if trace.terminated else "truncated" if trace.truncated else "cut by --max-steps"
    return f"return {short(trace.return_)} after {steps}, {how}"


def others(trace: Trace) -> str:
    """The returns of the other agents of the episode; empty if the agent is alone."""
    found = [f"{name} {short(total)}" for name, total in trace.returns.items() if name != trace.agent]
    return f"other agents: {', '.join(found)}" if found else ""


def most_active(traces: list[Trace], count: int) -> tuple[np.ndarray, np.ndarray]:
    """The units with the largest standard deviation over all steps, and the largest size of each.

    Returns their indices, at most ``count``, and the sizes, never zero.
    """
    memory = np.concatenate([trace.memory for trace in traces])
    order = np.argsort(-np.nan_to_num(memory.std(0)), kind="stable")[:count]
    return order, np.maximum(np.nan_to_num(np.abs(memory[:, order]).max(0)), 1e-9)


def _part(part: dict[str, Any], alone: bool) -> str:
    name = "" if alone or not part["name"] else f"{part['name']} "
    if part["kind"] == "discrete":
        return f"{name}{part['value']}"
    if part["kind"] == "image":
        return name + "image " + "x".join(map(str, part["shape"]))
    values = [float("nan") if v is None else v for v in part["values"]]
    if all(v in (0, 1) for v in values):
        return name + " ".join(str(int(v)) for v in values)
    return name + short_list(values)


def _numbers(part: dict[str, Any]) -> list[float | None]:
    return next((part[name] for name in ("probs", "mean", "q") if name in part), [])


def _labels(env: str | None, part: str, count: int, start: int) -> list[str]:
    """Words for the categories of an action, else their numbers."""
    words = ACTION_WORDS.get(".".join(filter(None, (task_name(env), part))))
    if words is not None and len(words) == count:
        return list(words)
    return [str(start + i) for i in range(count)]


def _flat(action: Any) -> list[float]:
    """All numbers of an action, in the order of its space."""
    if isinstance(action, dict | list):
        parts = action.values() if isinstance(action, dict) else action
        return [number for part in parts for number in _flat(part)]
    return [float("nan") if action is None else action]
