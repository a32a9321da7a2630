"""A worker process of a ``WorkerEnv`` or ``GroupedWorkerEnv``: it makes some slots of an env and steps them.

Observations, actions and rewards are in memory that all workers share with the actor's process. Each step
sends only a command and its answer over the connection.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.child_process import HungUpError, Line, describe_raised
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Step, Tree
from recollect.envs.contract import FLAGS, Adjustable, BatchedEnv, Resumable
from recollect.envs.groups import Group, GroupedEnv, OneGroup
from recollect.envs.space_values import step_zeros
from recollect.errors import EnvError

MakeSlots = Callable[[int, int], BatchedEnv] | Callable[[int, int], GroupedEnv]
"""``make(first_slot, count)`` makes slots of an env, which must not depend on the number of other slots."""
Settings = dict[str, Any] | None
"""The settings of an ``Adjustable`` env, sent with the next command; None: they have not changed."""
ONE = ""
"""The name of the only group of a BatchedEnv."""

STACK_SIGNAL = signal.SIGUSR1
"""Makes a worker write its stack to a file."""


@dataclass(frozen=True, slots=True)
class Made:
    """Properties of a worker's slots, sent to the actor's process at the start."""

    groups: dict[str, Group]
    """Those of a GroupedEnv; all agents of a BatchedEnv are one group, ``ONE``."""
    slot_rows: int
    """Rows that one slot may have in a snapshot: the agents of a BatchedEnv, 1 of a GroupedEnv."""
    is_resumable: bool
    adjustable: tuple[str, ...]
    """The settings that a curriculum may change; empty if the slots are not ``Adjustable``."""

    def layout(self, num_envs: int) -> Layout:
        """The shared memory of ``num_envs`` slots: of each group the action, and two steps, one to read and
        one to write.

        Every leaf is [B, ...]; each worker uses a slice of rows.
        """
        return Layout.of({name: _memory_of(group, num_envs) for name, group in self.groups.items()})


def _memory_of(group: Group, num_envs: int) -> Tree:
    rows = num_envs * len(group.agents)
    step = step_zeros(group.observation_space, rows)
    step["final_obs"] = step["obs"]  # of the same shapes
    return {"action": spaces.zeros(group.action_space, rows), "steps": (step, step)}


def serve(line: Line, make: MakeSlots, slots: range, stack: int) -> None:
    """Main function of a worker that makes ``slots``.

    ``line``: connection to the actor's process; ``stack``: file descriptor to write the stack to.
    """
    # faulthandler works in C, also while the env holds the interpreter lock.
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=False)
    torch.set_num_threads(1)
    env = make(slots.start, len(slots))
    try:
        grouped = OneGroup(env, ONE) if isinstance(env, BatchedEnv) else env
        slot_rows = env.agents if isinstance(env, BatchedEnv) else 1
        adjustable = tuple(env.adjustable) if isinstance(env, Adjustable) else ()
        made = Made(dict(grouped.groups), slot_rows, isinstance(env, Resumable), adjustable)
        line.send(cloudpickle.dumps(made))  # a space's class may be defined in the user's script
        commands = _Slots(grouped, _memory(line), slots, slot_rows)
        while True:
            name, *arguments = line.recv()
            try:
                answer = getattr(commands, name)(*arguments)
            except Exception as error:  # the actor raises it; a reset recovers
                answer = describe_raised(error)
            line.send(answer)
    finally:
        env.close()


class _Slots:
    """The commands of a worker."""

    def __init__(self, env: GroupedEnv, memory: Tree, slots: range, slot_rows: int):
        self._env: Any = env
        self._snapshot_rows = len(slots), len(slots) * slot_rows
        self._actions: dict[str, Tree] = {}
        self._steps: tuple[dict[str, Tree], dict[str, Tree]] = ({}, {})
        for name, group in env.groups.items():
            agents = len(group.agents)
            mine = tree.index(memory[name], slice(slots.start * agents, slots.stop * agents))
            self._actions[name], (self._steps[0][name], self._steps[1][name]) = mine["action"], mine["steps"]

    def reset(self, seed: int, into: int, settings: Settings) -> None:
        """Reset, with the observations in step ``into``."""
        self._adjust(settings)
        self._write_obs(self._env.reset(seed), into)

    def step(self, into: int, settings: Settings) -> dict[str, dict[str, Tensor]] | None:
        """Step, with the results in step ``into``. Returns the info of each group, None if all are empty."""
        self._adjust(settings)
        # Copies: the env may keep or change them, and the next action overwrites the memory.
        actions = {name: tree.clone(action) for name, action in self._actions.items()}
        steps: dict[str, Step] = self._env.step(actions)
        infos = {}
        for name, out in self._steps[into].items():
            step = steps[name]
            tree.copy_(out["obs"], step.obs)
            out["reward"].copy_(step.reward)
            for flag in FLAGS:
                out[flag].copy_(getattr(step, flag))
            if step.terminated.any() or step.truncated.any():
                tree.copy_(out["final_obs"], step.final_obs)
            if step.info:
                infos[name] = step.info
        return infos or None

    def snapshot(self) -> dict[str, Tensor]:
        """The state of the slots; every tensor is [slots, ...] or [rows, ...]."""
        saved, (slots, rows) = self._env.snapshot(), self._snapshot_rows
        for name, tensor in saved.items():
            if tensor.shape[:1] not in ((slots,), (rows,)):
                raise EnvError(
                    f"snapshot()[{name!r}] has shape {tuple(tensor.shape)} in a worker with {rows} rows: let "
                    "rows be the first dimension of everything, or use env_workers=0"
                )
        return saved

    def restore(self, snapshot: dict[str, Tensor], into: int, settings: Settings) -> None:
        """Continue from a snapshot, with the next observations in step ``into``."""
        self._adjust(settings)
        self._write_obs(self._env.restore(snapshot), into)

    def _adjust(self, settings: Settings) -> None:
        if settings is not None:
            self._env.adjust(**settings)

    def _write_obs(self, obs: dict[str, Tree], into: int) -> None:
        for name, out in self._steps[into].items():
            tree.copy_(out["obs"], obs[name])


def give_memory(line: Line, segment: Segment, layout: Layout) -> None:
    """Send shared memory to a worker, which cannot inherit it: its size depends on the worker's spaces."""
    line.send((layout, segment.size))
    with socket.socket(fileno=os.dup(line.fileno())) as channel:
        socket.send_fds(channel, [b"\0"], [segment.fd])


def _memory(line: Line) -> Tree:
    """Receive the memory of ``give_memory``."""
    layout, size = line.recv()
    with socket.socket(fileno=os.dup(line.fileno())) as channel:
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not fds:
        raise HungUpError
    return layout.view(Segment.attach(fds[0], size))
