"""The worker process of a ``WorkerEnv``: it makes some slots of an env and steps them.

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

import cloudpickle
import gymnasium as gym
import torch
from torch import Tensor

from recollect.base import spaces, tree
from recollect.base.child_process import HungUpError, Line, describe_raised
from recollect.base.shared_memory import Layout, Segment
from recollect.base.types import Tree
from recollect.envs.contract import FLAGS, BatchedEnv, Resumable
from recollect.envs.space_values import step_zeros
from recollect.errors import EnvError

MakeSlots = Callable[[int, int], BatchedEnv]
"""``make(first_slot, count)`` makes slots of an env, which must not depend on the number of other slots."""

STACK_SIGNAL = signal.SIGUSR1
"""Makes a worker write its stack to a file."""


@dataclass(frozen=True, slots=True)
class Made:
    """Properties of a worker's slots, sent to the actor's process at the start."""

    agents: int
    observation_space: gym.Space
    action_space: gym.Space
    is_resumable: bool

    def layout(self, num_envs: int) -> Layout:
        """The shared memory of ``num_envs`` slots: the action, and two steps, one to read and one to write.

        Every leaf is [B, ...]; each worker uses a slice of rows.
        """
        rows = num_envs * self.agents
        step = step_zeros(self.observation_space, rows)
        step["final_obs"] = step["obs"]  # of the same shapes
        return Layout.of({"action": spaces.zeros(self.action_space, rows), "steps": (step, step)})


def serve(line: Line, make: MakeSlots, slots: range, stack: int) -> None:
    """Main function of a worker that makes ``slots``.

    ``line``: connection to the actor's process; ``stack``: file descriptor to write the stack to.
    """
    # faulthandler works in C, also while the env holds the interpreter lock.
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=False)
    torch.set_num_threads(1)
    env = make(slots.start, len(slots))
    try:
        made = Made(env.agents, env.observation_space, env.action_space, isinstance(env, Resumable))
        line.send(cloudpickle.dumps(made))  # a space's class may be defined in the user's script
        commands = _Slots(env, _memory(line), slots)
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

    def __init__(self, env: BatchedEnv, memory: Tree, slots: range):
        self._env = env
        rows = slice(slots.start * env.agents, slots.stop * env.agents)
        mine = tree.index(memory, rows)
        self._action, self._steps = mine["action"], mine["steps"]

    def reset(self, seed: int, into: int) -> None:
        """Reset, with the observations in step ``into``."""
        tree.copy_(self._steps[into]["obs"], self._env.reset(seed))

    def step(self, into: int) -> dict[str, Tensor] | None:
        """Step, with the results in step ``into``. Returns the info, None if empty."""
        # A copy: the env may keep or change it, and the next action overwrites the memory.
        step = self._env.step(tree.clone(self._action))
        out = self._steps[into]
        tree.copy_(out["obs"], step.obs)
        out["reward"].copy_(step.reward)
        for name in FLAGS:
            out[name].copy_(getattr(step, name))
        if step.terminated.any() or step.truncated.any():
            tree.copy_(out["final_obs"], step.final_obs)
        return step.info or None

    def snapshot(self) -> dict[str, Tensor]:
        """The state of the slots; every tensor is [rows, ...]."""
        assert isinstance(self._env, Resumable)
        saved, rows = self._env.snapshot(), self._env.num_envs * self._env.agents
        for name, tensor in saved.items():
            if tensor.shape[:1] != (rows,):
                raise EnvError(
                    f"snapshot()[{name!r}] has shape {tuple(tensor.shape)} in a worker with {rows} rows: let "
                    "rows be the first dimension of everything, or use env_workers=0"
                )
        return saved

    def restore(self, snapshot: dict[str, Tensor], into: int) -> None:
        """Continue from a snapshot, with the next observations in step ``into``."""
        assert isinstance(self._env, Resumable)
        tree.copy_(self._steps[into]["obs"], self._env.restore(snapshot))


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
