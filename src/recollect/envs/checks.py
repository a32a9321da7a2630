"""``check_batched_env`` and ``check_grouped_env``: test an env against its contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.types import Step, Tree
from recollect.envs.contract import FLAGS, BatchedEnv, Resumable
from recollect.envs.group_views import group_views
from recollect.envs.groups import GroupedEnv, OneGroup
from recollect.errors import ConfigError, EnvError, SpaceError


@dataclass(frozen=True, slots=True)
class Seen:
    """Counts over all rows: rules about the ends of episodes are tested only if episodes ended."""

    steps: int
    """Valid steps."""
    terminated: int
    truncated: int
    invalid: int
    """Invalid steps."""


def check_batched_env(env: BatchedEnv, *, steps: int = 200, seed: int = 0) -> Seen:
    """Step ``env`` with random actions and raise EnvError for the first rule of the contract that it breaks.

    Checks the structure, shape, dtype and device of all tensors; that observations are in their space and
    rewards are finite; the rules of ``BatchedEnv`` for ends, ``first`` and ``valid``; that the env does not
    change the action; that a seed determines all steps; and, for a ``Resumable`` env, that it continues from
    ``restore`` as after ``snapshot``. The env is reset at the end. Choose ``steps`` such that episodes end:
    the result counts them. One of several agents may be absent at a reset: a row whose first step is invalid
    must not be valid before ``first``.
    """
    _check_attributes(env)
    return _check(OneGroup(env, ""), {"": env}, steps, seed)[""]


def check_grouped_env(env: GroupedEnv, *, steps: int = 200, seed: int = 0) -> dict[str, Seen]:
    """``check_batched_env`` for the rows of each group, which step together; returns the counts by group."""
    views = group_views(env)
    for view in views.values():
        _check_attributes(view)
    return _check(env, views, steps, seed)


def _check(env: GroupedEnv, parts: Mapping[str, BatchedEnv], steps: int, seed: int) -> dict[str, Seen]:
    """Check ``env``, whose groups have the attributes of ``parts``."""
    if steps < 2:
        raise ConfigError(f"the check of an env with steps = {steps}: at least 2 are needed")
    actions, record, seen = _drive(env, parts, steps, seed, None)
    _, again, _ = _drive(env, parts, steps, seed, actions)
    _check_same(record, again, f"reset(seed={seed}) and the same actions", UNSEEDED)
    if isinstance(env, Resumable):
        _check_resume(env, parts, steps, seed, actions)
    env.reset(seed)
    return seen


UNSEEDED = (
    "the env draws from a random stream that reset(seed) does not set (np.random, torch's default "
    "generator, an RNG made in __init__), or keeps state over a reset"
)
_UNSAVED = "a part of the env's state is missing in snapshot, or is shared instead of copied"
_Record = dict[str, Tensor]
_Actions = list[dict[str, Tree]]


def _drive(
    env: GroupedEnv, parts: Mapping[str, BatchedEnv], steps: int, seed: int, actions: _Actions | None
) -> tuple[_Actions, list[_Record], dict[str, Seen]]:
    """Make and check ``steps`` steps, with the given or random actions."""
    rng = np.random.default_rng(seed)
    obs = env.reset(seed)
    _check_groups(obs, parts, "reset")
    inside = {name: _all_rows(part) for name, part in parts.items()}
    for name, part in parts.items():
        _check_tree(part, obs[name], f"reset{_of(name)}", "obs", inside[name])
    made, record = [], [_joined({name: _record(obs[name], "obs", inside[name]) for name in parts})]
    counts = {name: torch.zeros(4, dtype=torch.int64) for name in parts}
    for t in range(steps):
        action = (
            {name: random_action(part, obs[name], rng) for name, part in parts.items()}
            if actions is None
            else tree.clone(actions[t])
        )
        made.append(tree.clone(action))
        found = env.step(action)
        _check_groups(found, parts, f"step {t}")
        if not all(map(torch.equal, tree.leaves(action), tree.leaves(made[t]))):
            raise EnvError(
                f"step {t}: the env changed the action tensor in place, which belongs to the rollout: "
                "clone it, or avoid in-place operations such as clamp_"
            )
        for name, part in parts.items():
            step = found[name]
            may_lack = t == 0 and (name or part.agents > 1)
            if may_lack and isinstance(step, Step) and isinstance(step.valid, Tensor):
                inside[name] = inside[name] & step.valid  # agents that are absent at the reset
            _check_step(part, step, inside[name], f"step {t}{_of(name)}")
            inside[name] = step.first | (inside[name] & ~(step.terminated | step.truncated))
            flags = (step.valid, step.terminated, step.truncated, ~step.valid)
            counts[name] += torch.stack([flag.sum() for flag in flags]).cpu()
        obs = {name: step.obs for name, step in found.items()}
        record.append(_joined({name: _record_step(step) for name, step in found.items()}))
    return made, record, {name: Seen(*count.tolist()) for name, count in counts.items()}


def _check_groups(found: Any, parts: Mapping[str, BatchedEnv], where: str) -> None:
    if not isinstance(found, dict) or found.keys() != parts.keys():
        kind = sorted(found) if isinstance(found, dict) else f"a {type(found).__name__}"
        raise EnvError(f"{where} returned {kind}: return a dict with the groups {', '.join(parts)}")


def _all_rows(part: BatchedEnv) -> Tensor:
    return torch.ones(part.num_envs * part.agents, dtype=torch.bool, device=part.device)


def _of(group: str) -> str:
    """Names a group in an error; a BatchedEnv has one without a name."""
    return f", group {group!r}" if group else ""


def _joined(records: dict[str, _Record]) -> _Record:
    """The records of all groups in one."""
    return {f"{name}{_of(group)}": leaf for group, record in records.items() for name, leaf in record.items()}


def random_action(env: BatchedEnv, obs: Tree, rng: np.random.Generator) -> Tree:
    """A random action, within ``action_mask`` if the action is Discrete and has one."""
    action = spaces.sample(env.action_space, env.num_envs * env.agents, rng)
    if isinstance(env.action_space, gym_spaces.Discrete) and isinstance(obs, dict):
        mask = obs.get("action_mask")
        if mask is not None and mask.shape[1:] == (env.action_space.n,):
            weight = torch.from_numpy(rng.random(mask.shape)) + (mask.cpu() > 0)
            action = weight.argmax(1) + int(env.action_space.start)
    return tree.to(action, env.device)


def _check_attributes(env: BatchedEnv) -> None:
    for name in ("num_envs", "agents"):
        value = getattr(env, name, None)
        if not isinstance(value, int) or value < 1:
            raise EnvError(f"{name} is {value!r}: it must be an integer from 1 up")
    if not isinstance(getattr(env, "device", None), torch.device):
        raise EnvError("device must be a torch.device, such as torch.device('cpu')")
    for name in ("observation_space", "action_space"):
        space = getattr(env, name, None)
        if not isinstance(space, gym.Space):
            raise EnvError(f"{name} is {space!r}: it must be the gymnasium.Space of one row")
        try:
            list(spaces.walk(space, name))
        except SpaceError as error:
            raise EnvError(str(error)) from None


def _check_tree(env: BatchedEnv, obs: Tree, where: str, name: str, rows: Tensor) -> None:
    """Check structure, shape, dtype and device of all rows, and the values of ``rows`` [B]."""
    expected = tree.spec(spaces.zeros(env.observation_space, 1))
    try:
        found = tree.spec(obs)
        leaves = dict(tree.named_leaves(obs))
    except TypeError as error:
        raise EnvError(f"{where}: {name}: {error}") from None
    if found.keys() != expected.keys():
        raise EnvError(
            f"{where}: {name} has the parts {sorted(found)}, and observation_space {sorted(expected)}"
        )
    for part, space in spaces.walk(env.observation_space):
        leaf, label = leaves[part], f"{name}.{part}" if part else name
        shape, dtype = expected[part]
        batch = (env.num_envs * env.agents, *shape)
        if tuple(leaf.shape) != batch or leaf.dtype != dtype:
            raise EnvError(
                f"{where}: {label} is {leaf.dtype} {tuple(leaf.shape)}, expected {dtype} {batch}: "
                "rows come first, num_envs * agents of them, in the dtypes of recollect.base.spaces"
            )
        if leaf.device.type != env.device.type:
            raise EnvError(f"{where}: {label} is on {leaf.device}, and env.device is {env.device}")
        bad = (spaces.outside(space, leaf) & rows).nonzero()
        if len(bad):
            row = int(bad[0])
            raise EnvError(
                f"{where}: row {row} of {label} lies outside {space}: {leaf[row].tolist()!s:.200}. "
                "Is the space declared too small, or the value not finite?"
            )


def _check_step(env: BatchedEnv, step: Any, inside: Tensor, where: str) -> None:
    """Check the tensors and rules of one step; ``inside`` [B]: rows that were within an episode."""
    if not isinstance(step, Step):
        raise EnvError(f"{where}: step returned a {type(step).__name__}, not a recollect.Step")
    rows = (env.num_envs * env.agents,)
    for name in (*FLAGS, "reward"):
        value = getattr(step, name)
        dtype = torch.float32 if name == "reward" else torch.bool
        if not isinstance(value, Tensor) or value.dtype != dtype or tuple(value.shape) != rows:
            found = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise EnvError(f"{where}: {name} is {found}, expected {dtype} {rows}")
        if value.device.type != env.device.type:
            raise EnvError(f"{where}: {name} is on {value.device}, and env.device is {env.device}")
    for key, value in step.info.items():
        if not isinstance(value, Tensor) or tuple(value.shape) not in (rows, (env.num_envs,)):
            raise EnvError(
                f"{where}: info[{key!r}] must be a tensor {rows}, one number for each row, or "
                f"({env.num_envs},), one for each slot"
            )
    ended = step.terminated | step.truncated
    for broken, what in _rules(step, inside, ended):
        if broken.any():
            raise EnvError(f"{where}, row {int(broken.nonzero()[0])}: {what}")
    _check_tree(env, step.obs, where, "obs", step.first | (inside & ~ended))
    _check_tree(env, step.final_obs, where, "final_obs", ended)
    pairs = zip(tree.leaves(step.obs), tree.leaves(step.final_obs))
    is_shared = any(a.data_ptr() == b.data_ptr() and a.numel() for a, b in pairs)
    if is_shared and (ended & step.first).any():
        raise EnvError(
            f"{where}: an episode ended and was reset, and final_obs is the same memory as obs: the "
            "reset has overwritten the final observation. Copy it before the reset"
        )


def _rules(step: Step, inside: Tensor, ended: Tensor) -> list[tuple[Tensor, str]]:
    """(rows that break the rule [B], error message) for each rule."""
    idle = ~step.valid
    return [
        (~torch.isfinite(step.reward), "the reward is NaN or Inf: look for a division by zero"),
        (idle & ended, "a flag is set, but valid is false: an episode ends with a valid step"),
        (
            idle & (step.reward != 0),
            "the reward is not zero, but valid is false: a reward of the last real step belongs there",
        ),
        (
            idle & inside,
            "valid is false inside an episode: was terminated or truncated of the step before "
            "forgotten, or valid of the first step after a reset?",
        ),
        (
            step.valid & ~inside,
            "valid is true after an end that no first followed: was first forgotten at the reset?",
        ),
        (
            step.first & inside & ~ended,
            "first is true, but no episode ended before: were terminated and truncated forgotten, "
            "or is first one step late?",
        ),
    ]


def _record_step(step: Step) -> _Record:
    """The tensors of a step by name, with zeros where the contract defines no value."""
    ended = step.terminated | step.truncated
    flags = {name: getattr(step, name).clone() for name in (*FLAGS, "reward")}
    inside = step.first | (step.valid & ~ended)
    return flags | _record(step.obs, "obs", inside) | _record(step.final_obs, "final_obs", ended)


def _record(obs: Tree, name: str, rows: Tensor) -> _Record:
    return {part: leaf.clone() for part, leaf in tree.named_leaves(tree.zero_where(~rows, obs), name)}


def _check_same(one: list[_Record], other: list[_Record], how: str, cause: str) -> None:
    for t, (a, b) in enumerate(zip(one, other)):
        for name in a:
            differ = a[name] != b[name]
            if differ.any():
                row = int(differ.nonzero()[0, 0])
                raise EnvError(f"{how} gave another {name} after {t} steps, row {row}: {cause}")


def _check_resume(
    env: Any, parts: Mapping[str, BatchedEnv], steps: int, seed: int, actions: _Actions
) -> None:
    """Compare the steps after a snapshot with the same steps after ``restore``."""
    half = steps // 2
    env.reset(seed)
    before = [env.step(tree.clone(action)) for action in actions[:half]][-1]
    inside = {
        name: step.first | (step.valid & ~(step.terminated | step.truncated)) for name, step in before.items()
    }
    expected = _joined({name: _record(step.obs, "obs", inside[name]) for name, step in before.items()})
    saved = env.snapshot()

    def rest() -> list[_Record]:
        steps = (env.step(tree.clone(action)) for action in actions[half:])
        return [_joined({name: _record_step(step) for name, step in found.items()}) for found in steps]

    at_once = rest()
    obs = env.restore(saved)
    _check_groups(obs, parts, "restore")
    for name, part in parts.items():
        _check_tree(part, obs[name], f"restore{_of(name)}", "obs", inside[name])
    returned = _joined({name: _record(obs[name], "obs", inside[name]) for name in parts})
    later = rest()
    how = "restore(snapshot()) and the same actions"
    _check_same([expected], [returned], how, "restore must return the obs to act on next")
    _check_same(at_once, later, how, _UNSAVED)
