"""The far side of ``WorkerEnv``: the process that makes some slots of an env and steps them.

What is seen, done and earned lies in memory that all workers share with the process that acts. Over the line
goes a word for every step: what to do, and that it is done.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
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
from recollect.base.types import Step, Tree
from recollect.envs.contract import BatchedEnv, Resumable
from recollect.errors import EnvError

MakeSlots = Callable[[int, int], BatchedEnv]
"""``make(first_slot, count)``: slots of an env, which must not depend on how many others there are."""

STACK_SIGNAL = signal.SIGUSR1
"""Makes a worker write down where it is."""
FLAGS = ("first", "terminated", "truncated", "valid")


@dataclass(frozen=True, slots=True)
class Made:
    """What a worker tells of its slots once they are made."""

    agents: int
    observation_space: gym.Space
    action_space: gym.Space
    is_resumable: bool

    @classmethod
    def of(cls, env: BatchedEnv) -> Made:
        """As the env says."""
        return cls(env.agents, env.observation_space, env.action_space, isinstance(env, Resumable))

    def layout(self, num_envs: int) -> Layout:
        """Of the memory for ``num_envs`` slots: the action, and two steps, one to read and one to write.

        Every leaf is [B, ...], so that a worker has a slice of each.
        """
        rows = num_envs * self.agents
        step = {
            "obs": spaces.zeros(self.observation_space, rows),
            "final_obs": spaces.zeros(self.observation_space, rows),
            "reward": torch.zeros(rows),
            **{name: torch.zeros(rows, dtype=torch.bool) for name in FLAGS},
        }
        return Layout.of({"action": spaces.zeros(self.action_space, rows), "steps": (step, step)})


def serve(line: Line, make: MakeSlots, slots: range, stack: int) -> None:
    """The life of a worker.

    Args:
        line: to the process that acts.
        make: makes the slots.
        slots: which ones.
        stack: the file descriptor for where it is, when it is asked by ``STACK_SIGNAL``.
    """
    # By a signal and in C: it works also while the env holds the interpreter lock.
    faulthandler.register(STACK_SIGNAL, file=stack, all_threads=False)
    torch.set_num_threads(1)
    env = make(slots.start, len(slots))
    try:
        line.send(cloudpickle.dumps(Made.of(env)))  # a space may be of a class of the user's script
        commands = _Slots(env, _memory(line), slots)
        while True:
            name, *arguments = line.recv()
            try:
                answer = getattr(commands, name)(*arguments)
            except Exception as error:  # the caller's to handle: a reset begins anew
                answer = describe_raised(error)
            line.send(answer)
    finally:
        env.close()


class _Slots:
    """The commands that a worker knows."""

    def __init__(self, env: BatchedEnv, memory: Tree, slots: range):
        self._env = env
        rows = slice(slots.start * env.agents, slots.stop * env.agents)
        mine = tree.index(memory, rows)
        self._action, self._steps = mine["action"], mine["steps"]

    def reset(self, seed: int, into: int) -> None:
        """Start anew, with the first observations in step ``into``."""
        tree.copy_(self._steps[into]["obs"], self._env.reset(seed))

    def step(self, into: int) -> dict[str, Tensor] | None:
        """Make a step, into step ``into``. Returns its info, if there is any."""
        # A copy: the env may keep or change it, and the memory holds the next action soon.
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
        """The state of the slots, with rows first in every tensor."""
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
        """Go on from a snapshot, with what to act on next in step ``into``."""
        assert isinstance(self._env, Resumable)
        tree.copy_(self._steps[into]["obs"], self._env.restore(snapshot))


def as_step(memory: Tree) -> Step:
    """The Step whose tensors are one of the two in shared memory."""
    return Step(**memory)


def give_memory(line: Line, segment: Segment, layout: Layout) -> None:
    """Send shared memory to a worker: it could not inherit what is made only once it has told its spaces."""
    line.send((layout, segment.size))
    with socket.socket(fileno=os.dup(line.fileno())) as channel:
        socket.send_fds(channel, [b"\0"], [segment.fd])


def _memory(line: Line) -> Tree:
    """What ``give_memory`` sends."""
    layout, size = line.recv()
    with socket.socket(fileno=os.dup(line.fileno())) as channel:
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    if not fds:
        raise HungUpError
    return layout.view(Segment.attach(fds[0], size))


def read_made(data: bytes) -> Made:
    """What a worker told."""
    return pickle.loads(data)
