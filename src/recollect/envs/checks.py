"""``check_batched_env``: tests a BatchedEnv against its contract."""

from __future__ import annotations

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
    the result counts them.
    """
    if steps < 2:
        raise ConfigError(f"check_batched_env(steps={steps}): at least 2 are needed")
    _check_attributes(env)
    actions, record, seen = _drive(env, steps, seed, None)
    _, again, _ = _drive(env, steps, seed, actions)
    _check_same(record, again, f"reset(seed={seed}) and the same actions", UNSEEDED)
    if isinstance(env, Resumable):
        _check_resume(env, steps, seed, actions)
    env.reset(seed)
    return seen


UNSEEDED = (
    "the env draws from a random stream that reset(seed) does not set (np.random, torch's default "
    "generator, an RNG made in __init__), or keeps state over a reset"
)
_UNSAVED = "a part of the env's state is missing in snapshot, or is shared instead of copied"
_Record = dict[str, Tensor]


def _drive(
    env: BatchedEnv, steps: int, seed: int, actions: list[Tree] | None
) -> tuple[list[Tree], list[_Record], Seen]:
    """Make and check ``steps`` steps, with the given or random actions."""
    rng = np.random.default_rng(seed)
    obs = env.reset(seed)
    inside = torch.ones(env.num_envs * env.agents, dtype=torch.bool, device=env.device)
    _check_tree(env, obs, "reset", "obs", inside)
    made, record = [], [_record(obs, "obs", inside)]
    counts = torch.zeros(4, dtype=torch.int64)
    for t in range(steps):
        action = random_action(env, obs, rng) if actions is None else tree.clone(actions[t])
        made.append(tree.clone(action))
        step = env.step(action)
        if not all(map(torch.equal, tree.leaves(action), tree.leaves(made[t]))):
            raise EnvError(
                f"step {t}: the env changed the action tensor in place, which belongs to the rollout: "
                "clone it, or avoid in-place operations such as clamp_"
            )
        _check_step(env, step, inside, t)
        inside = step.first | (inside & ~(step.terminated | step.truncated))
        obs = step.obs
        record.append(_record_step(step))
        flags = (step.valid, step.terminated, step.truncated, ~step.valid)
        counts += torch.stack([flag.sum() for flag in flags]).cpu()
    return made, record, Seen(*counts.tolist())


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


def _check_step(env: BatchedEnv, step: Any, inside: Tensor, t: int) -> None:
    """Check the tensors and rules of one step; ``inside`` [B]: rows that were within an episode."""
    where = f"step {t}"
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
        if not isinstance(value, Tensor) or tuple(value.shape) != rows:
            raise EnvError(f"{where}: info[{key!r}] must be a tensor {rows}, one number for each row")
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


def _check_resume(env: Any, steps: int, seed: int, actions: list[Tree]) -> None:
    """Compare the steps after a snapshot with the same steps after ``restore``."""
    half = steps // 2
    env.reset(seed)
    before = [env.step(tree.clone(action)) for action in actions[:half]][-1]
    inside = before.first | (before.valid & ~(before.terminated | before.truncated))
    expected = _record(before.obs, "obs", inside)
    saved = env.snapshot()
    at_once = [_record_step(env.step(tree.clone(action))) for action in actions[half:]]
    obs = env.restore(saved)
    _check_tree(env, obs, "restore", "obs", inside)
    returned = _record(obs, "obs", inside)
    later = [_record_step(env.step(tree.clone(action))) for action in actions[half:]]
    how = "restore(snapshot()) and the same actions"
    _check_same([expected], [returned], how, "restore must return the obs to act on next")
    _check_same(at_once, later, how, _UNSAVED)
